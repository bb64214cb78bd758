//! What observer and scheduler hang on in KVM, proven to be there before they are loaded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What kind of place it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A function of the KVM modules, at its entry (fentry).
    Function,
    /// A tracepoint of the KVM modules.
    Tracepoint,
    /// A function of the kernel itself that KVM calls.
    KernelFunction,
}

/// A place in KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// Its name in the kernel.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Program that hangs on it.
    pub program: &'static str,
    /// What is not known without it.
    pub tells: &'static str,
    /// Nothing can be said without it.
    pub needed: bool,
}

/// Those of the observer.
pub const HOOKS: [Hook; 6] = [
    Hook {
        name: "kvm_arch_vcpu_ioctl_run",
        kind: Kind::Function,
        program: "observe_run",
        tells: "which thread runs which vCPU",
        needed: true,
    },
    Hook {
        name: "kvm_sched_in",
        kind: Kind::Function,
        program: "observe_comes",
        tells: "vCPUs that were there before, as long as they need no VMM",
        needed: false,
    },
    Hook {
        name: "kvm_arch_vcpu_destroy",
        kind: Kind::Function,
        program: "observe_vcpu_gone",
        tells: "that a VM has ended (its threads' end tells it otherwise)",
        needed: false,
    },
    Hook {
        name: "__apic_accept_irq",
        kind: Kind::Function,
        program: "observe_interrupt",
        tells: "interrupts, and how long they wait for their vCPU",
        needed: false,
    },
    Hook {
        name: "kvm_exit",
        kind: Kind::Tracepoint,
        program: "observe_exit",
        tells: "exits by reason",
        needed: false,
    },
    Hook {
        name: "kvm_vcpu_wakeup",
        kind: Kind::Tracepoint,
        program: "observe_halt_ends",
        tells: "halts that ended while KVM still polled",
        needed: false,
    },
];

/// Those of the scheduler.
pub const OF_THE_SCHEDULER: [Hook; 13] = [
    Hook {
        name: "kvm_arch_vcpu_ioctl_run",
        kind: Kind::Function,
        program: "host_vcpu_runs",
        tells: "which thread runs which vCPU",
        needed: true,
    },
    Hook {
        name: "kvm_arch_destroy_vm",
        kind: Kind::Function,
        program: "host_vm_ends",
        tells: "that a VM has ended",
        needed: true,
    },
    Hook {
        name: "kvm_sched_in",
        kind: Kind::Function,
        program: "host_vcpu_comes",
        tells: "vCPUs that were there before",
        needed: false,
    },
    Hook {
        name: "kvm_exit",
        kind: Kind::Tracepoint,
        program: "host_vcpu_exits",
        tells: "where a vCPU out of quota can stop on a preemptible kernel",
        needed: false,
    },
    Hook {
        name: "kvm_vcpu_block",
        kind: Kind::Function,
        program: "host_block_begins",
        tells: "that it sleeps",
        needed: false,
    },
    Hook {
        name: "xfer_to_guest_mode_handle_work",
        kind: Kind::KernelFunction,
        program: "host_work_begins",
        tells: "where a vCPU out of quota can stop",
        needed: false,
    },
    Hook {
        name: "vmx_handle_exit",
        kind: Kind::Function,
        program: "host_handles_vmx",
        tells: "where else it can (Intel)",
        needed: false,
    },
    Hook {
        name: "svm_handle_exit",
        kind: Kind::Function,
        program: "host_handles_svm",
        tells: "where else it can (AMD)",
        needed: false,
    },
    Hook {
        name: "tdx_handle_exit",
        kind: Kind::Function,
        program: "host_handles_tdx",
        tells: "where else it can (TDX)",
        needed: false,
    },
    Hook {
        name: "__apic_accept_irq",
        kind: Kind::Function,
        program: "host_interrupt",
        tells: "that a vCPU is interrupted, and by what",
        needed: false,
    },
    Hook {
        name: "ioeventfd_write",
        kind: Kind::Function,
        program: "host_kick",
        tells: "that a vCPU kicks a device",
        needed: false,
    },
    Hook {
        name: "kvm_mmio",
        kind: Kind::Tracepoint,
        program: "host_mmio",
        tells: "that it writes to one in memory",
        needed: false,
    },
    Hook {
        name: "kvm_pio",
        kind: Kind::Tracepoint,
        program: "host_pio",
        tells: "that it writes to one at a port",
        needed: false,
    },
];

/// Modules that KVM consists of.
const MODULES: [&str; 3] = ["kvm", "kvm_intel", "kvm_amd"];
/// What it is part of where it is built in.
const BUILT_IN: &str = "vmlinux";

/// What the kernel says of itself.
#[derive(Debug, Default)]
pub struct Kernel {
    /// Type information of KVM.
    types: Vec<Vec<u8>>,
    /// Type information of the kernel itself.
    own_types: Vec<u8>,
    /// KVM's common part is a module, with type information of its own.
    is_module: bool,
    traceable: Option<BTreeSet<String>>,
}

impl Kernel {
    /// Of the running one, as seen below `root`.
    pub fn under(root: &Path) -> Self {
        let btf = root.join("sys/kernel/btf");
        let read = |name: &str| std::fs::read(btf.join(name)).ok();
        let types: Vec<Vec<u8>> = MODULES.iter().filter_map(|module| read(module)).collect();
        let own_types = read(BUILT_IN).unwrap_or_default();
        let lists: [PathBuf; 2] = [
            root.join("sys/kernel/tracing/available_filter_functions"),
            root.join("sys/kernel/debug/tracing/available_filter_functions"),
        ];
        let traceable = lists.iter().find_map(|list| std::fs::read_to_string(list).ok()).map(|text| {
            text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
        });
        let is_module = btf.join(MODULES[0]).exists();
        Self { types, own_types, is_module, traceable }
    }

    /// Does KVM's type information speak of this name?
    fn knows(&self, name: &str) -> bool {
        let name = format!("\0{name}\0");
        // The kernel's own is twenty times as much to search.
        let built_in = || !self.is_module && contains(&self.own_types, name.as_bytes());
        self.types.iter().any(|types| contains(types, name.as_bytes())) || built_in()
    }

    fn can_trace(&self, name: &str) -> bool {
        self.traceable.as_ref().is_none_or(|traceable| traceable.contains(name))
    }

    /// Can this hook be used?
    pub fn has(&self, hook: &Hook) -> bool {
        match hook.kind {
            Kind::Function => self.knows(hook.name) && self.can_trace(hook.name),
            Kind::KernelFunction => {
                self.can_trace(hook.name)
                    && contains(&self.own_types, format!("\0{}\0", hook.name).as_bytes())
            }
            Kind::Tracepoint => self.knows(&format!("btf_trace_{}", hook.name)),
        }
    }

    /// The observer's hooks that cannot be used.
    pub fn missing(&self) -> Vec<&'static Hook> {
        HOOKS.iter().filter(|hook| !self.has(hook)).collect()
    }

    /// The scheduler's hooks that can be used: none of them if one that it needs is missing.
    pub fn of_the_scheduler(&self) -> Vec<&'static Hook> {
        let (there, missing): (Vec<&Hook>, Vec<&Hook>) =
            OF_THE_SCHEDULER.iter().partition(|hook| self.has(hook));
        if missing.iter().any(|hook| hook.needed) {
            Vec::new()
        } else {
            there
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(names: &[&str], traceable: Option<&[&str]>) -> Kernel {
        let dir = tempfile::tempdir().unwrap();
        let btf = dir.path().join("sys/kernel/btf");
        std::fs::create_dir_all(&btf).unwrap();
        std::fs::write(btf.join("kvm"), format!("\0{}\0", names.join("\0"))).unwrap();
        if let Some(traceable) = traceable {
            let tracing = dir.path().join("sys/kernel/tracing");
            std::fs::create_dir_all(&tracing).unwrap();
            let lines: Vec<String> = traceable.iter().map(|name| format!("{name} [kvm]")).collect();
            std::fs::write(tracing.join("available_filter_functions"), lines.join("\n")).unwrap();
        }
        Kernel::under(dir.path())
    }

    fn is_missing(kernel: &Kernel, name: &str) -> bool {
        kernel.missing().iter().any(|hook| hook.name == name)
    }

    #[test]
    fn a_function_must_be_known_and_traceable() {
        let name = "kvm_arch_vcpu_ioctl_run";
        assert!(!is_missing(&kernel(&[name], Some(&[name])), name));
        assert!(is_missing(&kernel(&[name], Some(&["other"])), name), "it was inlined");
        assert!(is_missing(&kernel(&["kvm_arch_vcpu_ioctl_run_old"], Some(&[name])), name));
        assert!(!is_missing(&kernel(&[name], None), name), "no list: believed until it is attached to");
    }

    #[test]
    fn without_a_needed_hook_the_scheduler_has_none() {
        let all = ["kvm_arch_vcpu_ioctl_run", "kvm_arch_destroy_vm", "btf_trace_kvm_exit"];
        assert_eq!(kernel(&all, None).of_the_scheduler().len(), 3);
        assert!(kernel(&[all[0], all[2]], None).of_the_scheduler().is_empty());
    }

    #[test]
    fn a_tracepoint_is_known_by_its_type() {
        assert!(!is_missing(&kernel(&["btf_trace_kvm_exit"], None), "kvm_exit"));
        assert!(is_missing(&kernel(&["kvm_exit"], None), "kvm_exit"));
    }
}
