//! What can go wrong, each in one sentence with what to do.

use thiserror::Error;

/// Errors of the host side.
#[derive(Debug, Error)]
pub enum HostError {
    /// Not root.
    #[error("watching virtual machines needs root (sudo tandem host)")]
    NotRoot,
    /// KVM is not there.
    #[error("there is no KVM on this machine (/dev/kvm): load kvm_intel or kvm_amd, or add --wait")]
    NoKvm,
    /// A hook without which nothing can be said.
    #[error("this kernel's KVM cannot be observed: {0} is not there or cannot be traced (tandem doctor lists all hooks)")]
    NoHook(&'static str),
    /// The BPF program was refused.
    #[error("the kernel refused to load the observer: {0}")]
    Load(#[source] libbpf_rs::Error),
    /// A map could not be read.
    #[error("cannot read the observer's {what}: {source}")]
    Read {
        /// Which.
        what: &'static str,
        /// Why.
        source: libbpf_rs::Error,
    },
    /// An order names a VM that is not known.
    #[error("no VM of the name {name:?} has run since the scheduler was loaded: tandem host vms lists those that have")]
    NoVm {
        /// The name.
        name: String,
    },
    /// It is not known where a guest keeps its current task.
    #[error("what {vm} runs is not known: {reason}")]
    NotKnown {
        /// Its name.
        vm: String,
        /// Why.
        reason: &'static str,
    },
    /// The memory of a VMM cannot be read.
    #[error("cannot read the memory of process {pid}, the VMM: {source}")]
    Memory {
        /// The process.
        pid: u32,
        /// Why.
        source: std::io::Error,
    },
    /// A setting that is not one.
    #[error("{given:?}: {reason}; expected {expected}")]
    Setting {
        /// What was given.
        given: String,
        /// What is wrong with it.
        reason: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// Of what both daemons share.
    #[error(transparent)]
    Daemon(#[from] tandem_daemon::DaemonError),
}
