//! What of this machine matters to a host of virtual machines. Looks at everything, changes nothing.

use crate::hooks::{Hook, Kernel, HOOKS, OF_THE_SCHEDULER};
use crate::kicks;
use crate::posted::is_on;
use std::path::Path;
use tandem_daemon::finding::{Finding, State};

/// Parameters of the KVM modules that decide what can be seen, and what they hide when they are on.
const HIDING: [(&str, &str); 5] = [
    ("kvm_intel/parameters/enable_apicv", "APICv"),
    ("kvm_intel/parameters/enable_ipiv", "IPI virtualisation"),
    ("kvm_intel/parameters/enable_device_posted_irqs", "posted interrupts of devices"),
    ("kvm_amd/parameters/avic", "AVIC"),
    ("kvm_amd/parameters/enable_device_posted_irqs", "posted interrupts of devices"),
];

/// Looks below `root`; nothing where there is no KVM.
pub fn examine(root: &Path) -> Vec<Finding> {
    if !root.join("sys/module/kvm").exists() {
        return Vec::new();
    }
    let kernel = Kernel::under(root);
    vec![
        hooks(&kernel),
        of_the_scheduler(&kernel),
        boosts(&kernel, kicks::programs_may_kick),
        hidden(root),
        polling(root),
    ]
}

fn hooks(kernel: &Kernel) -> Finding {
    let missing = kernel.missing();
    let without: Vec<String> = missing.iter().map(|hook| format!("{} ({})", hook.name, hook.tells)).collect();
    let (state, advice) = if missing.iter().any(|hook| hook.needed) {
        (State::Note, "tandem host cannot tell which thread runs which vCPU on this kernel")
    } else if missing.is_empty() {
        (State::Good, "")
    } else {
        (State::Note, "what these tell will be missing from tandem host --observe")
    };
    let found = if without.is_empty() {
        format!("all {} are there", HOOKS.len())
    } else {
        format!("{} of {} are there; not {}", HOOKS.len() - missing.len(), HOOKS.len(), without.join(", "))
    };
    Finding { subject: "hooks in KVM", state, found, advice }
}

fn of_the_scheduler(kernel: &Kernel) -> Finding {
    let there = kernel.of_the_scheduler();
    let names = |hooks: &[&Hook]| hooks.iter().map(|hook| hook.name).collect::<Vec<_>>().join(", ");
    // Of the functions that handle exits a machine has those of its processor's maker.
    let handles_exits = |hook: &Hook| hook.name.ends_with("_handle_exit");
    let one_handles = there.iter().any(|hook| handles_exits(hook));
    let missing: Vec<&Hook> = OF_THE_SCHEDULER
        .iter()
        .filter(|hook| !(there.contains(hook) || one_handles && handles_exits(hook)))
        .collect();
    let (state, found, advice) = if there.is_empty() {
        (State::Note, "none".to_owned(), "tandem host schedules vCPUs as any other thread on this kernel")
    } else if missing.is_empty() {
        (State::Good, names(&there), "")
    } else {
        let found = format!("{}; not {}", names(&there), names(&missing));
        (State::Note, found, "vCPUs are known; what the missing ones tell is not (docs/HOST.md)")
    };
    Finding { subject: "hooks of tandem host", state, found, advice }
}

/// Does a vCPU that is interrupted come first, and when?
fn boosts(kernel: &Kernel, may_kick: impl Fn() -> bool) -> Finding {
    let seen = kernel.of_the_scheduler().iter().any(|hook| hook.program == "host_interrupt");
    let (state, found, advice) = match (seen, seen && may_kick()) {
        (false, _) => (State::Note, "no: interrupts are not seen", "vCPUs that do I/O have their share, and no boost"),
        (true, true) => (State::Good, "at once", ""),
        (true, false) => (
            State::Note,
            "within a millisecond",
            "the type information of this kernel lacks scx_bpf_kick_cpu_impl(), or shows its hidden argument: it was built with pahole before 1.27",
        ),
    };
    Finding { subject: "boosts for I/O", state, found: found.to_owned(), advice }
}

/// What hardware delivers past KVM.
fn hidden(root: &Path) -> Finding {
    let hides = |(parameter, _): &&(&str, &str)| is_on(root, Path::new(parameter)) == Some(true);
    let mut on: Vec<&str> = HIDING.iter().filter(hides).map(|(_, name)| *name).collect();
    on.dedup();
    let (state, found, advice) = if on.is_empty() {
        (State::Good, "none: KVM sees every interrupt".to_owned(), "")
    } else {
        (
            State::Note,
            on.join(", "),
            "IPIs that it delivers to a vCPU which was preempted are not seen; interrupts of devices that are passed through are looked for each millisecond; those of virtio and vhost are seen",
        )
    };
    Finding { subject: "interrupts past KVM", state, found, advice }
}

/// A halting vCPU that polls keeps its pCPU.
fn polling(root: &Path) -> Finding {
    let text =
        std::fs::read_to_string(root.join("sys/module/kvm/parameters/halt_poll_ns")).unwrap_or_default();
    let ns: u64 = text.trim().parse().unwrap_or(0);
    let found = match ns {
        0 => "off".to_owned(),
        ns => format!("for up to {} us; KVM ends it when another task is in the pCPU's run queue", ns / 1000),
    };
    Finding { subject: "halt polling", state: State::Good, found, advice: "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn without_kvm_there_is_nothing_to_say() {
        assert_eq!(examine(machine(&[]).path()), []);
    }

    #[test]
    fn a_boost_needs_interrupts_and_comes_at_once_where_programs_may_kick() {
        let dir = machine(&[(
            "sys/kernel/btf/kvm",
            "\0kvm_arch_vcpu_ioctl_run\0kvm_arch_destroy_vm\0__apic_accept_irq\0",
        )]);
        let kernel = Kernel::under(dir.path());
        assert_eq!(boosts(&kernel, || true).found, "at once");
        assert_eq!(boosts(&kernel, || false).found, "within a millisecond");
        let none = Kernel::under(machine(&[]).path());
        assert_eq!(boosts(&none, || true).state, State::Note);
    }

    #[test]
    fn what_hardware_hides_is_named() {
        let dir = machine(&[
            ("sys/module/kvm/parameters/halt_poll_ns", "200000\n"),
            ("sys/module/kvm_amd/parameters/avic", "Y\n"),
            ("sys/module/kvm_intel/parameters/enable_ipiv", "N\n"),
        ]);
        let findings = examine(dir.path());
        let of = |subject: &str| findings.iter().find(|finding| finding.subject == subject).unwrap();
        assert_eq!(
            (of("interrupts past KVM").state, of("interrupts past KVM").found.as_str()),
            (State::Note, "AVIC")
        );
        assert!(of("halt polling").found.contains("200 us"));
        assert!(of("hooks in KVM").found.contains("not kvm_arch_vcpu_ioctl_run"), "no type information");
    }
}
