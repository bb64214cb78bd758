//! What the observer hangs on in the kernel and in KVM, proven to be there before it is loaded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What kind of place it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A function of the KVM modules, at its entry (fentry).
    Function,
    /// A tracepoint of the KVM modules.
    Tracepoint,
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

/// All of them.
pub const HOOKS: [Hook; 5] = [
    Hook {
        name: "kvm_arch_vcpu_ioctl_run",
        kind: Kind::Function,
        program: "observe_run",
        tells: "which thread runs which vCPU",
        needed: true,
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
        tells: "exits by reason, and steal as the guest reads it",
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

/// Modules that KVM consists of.
const MODULES: [&str; 3] = ["kvm", "kvm_intel", "kvm_amd"];
/// What it is part of where it is built in.
const BUILT_IN: &str = "vmlinux";

/// What the kernel says of itself.
#[derive(Debug, Default)]
pub struct Kernel {
    types: Vec<Vec<u8>>,
    traceable: Option<BTreeSet<String>>,
}

impl Kernel {
    /// Of the running one, as seen below `root`.
    pub fn under(root: &Path) -> Self {
        let btf = root.join("sys/kernel/btf");
        let read = |name: &str| std::fs::read(btf.join(name)).ok();
        let mut types: Vec<Vec<u8>> = MODULES.iter().filter_map(|module| read(module)).collect();
        if types.is_empty() {
            // Twenty times as much to search.
            types.extend(read(BUILT_IN));
        }
        let lists: [PathBuf; 2] = [
            root.join("sys/kernel/tracing/available_filter_functions"),
            root.join("sys/kernel/debug/tracing/available_filter_functions"),
        ];
        let traceable = lists.iter().find_map(|list| std::fs::read_to_string(list).ok()).map(|text| {
            text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
        });
        Self { types, traceable }
    }

    /// Does its type information speak of this name?
    fn knows(&self, name: &str) -> bool {
        let name = format!("\0{name}\0");
        self.types.iter().any(|types| contains(types, name.as_bytes()))
    }

    /// Can this hook be used?
    pub fn has(&self, hook: &Hook) -> bool {
        match hook.kind {
            Kind::Function => {
                self.knows(hook.name)
                    && self.traceable.as_ref().is_none_or(|traceable| traceable.contains(hook.name))
            }
            Kind::Tracepoint => self.knows(&format!("btf_trace_{}", hook.name)),
        }
    }

    /// The hooks that cannot be used.
    pub fn missing(&self) -> Vec<&'static Hook> {
        HOOKS.iter().filter(|hook| !self.has(hook)).collect()
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
    fn a_tracepoint_is_known_by_its_type() {
        assert!(!is_missing(&kernel(&["btf_trace_kvm_exit"], None), "kvm_exit"));
        assert!(is_missing(&kernel(&["kvm_exit"], None), "kvm_exit"));
    }
}
