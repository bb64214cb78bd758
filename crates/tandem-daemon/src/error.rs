//! Errors of any daemon. Each message is one line: what went wrong, where, and what would be right.

use std::path::PathBuf;

/// Errors that the daemons of both sides share.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Loading BPF needs privileges.
    #[error("not allowed to load a scheduler: run as root (needs CAP_BPF, CAP_SYS_ADMIN and CAP_PERFMON)")]
    NotRoot,
    /// The running kernel has no sched_ext.
    #[error("this kernel has no sched_ext (/sys/kernel/sched_ext is missing): boot a kernel with CONFIG_SCHED_CLASS_EXT=y (6.12 or later)")]
    NoSchedExt,
    /// The running kernel does not describe its types.
    #[error("this kernel has no type information (/sys/kernel/btf/vmlinux is missing): boot a kernel with CONFIG_DEBUG_INFO_BTF=y")]
    NoBtf,
    /// BPF programs may not read kernel memory.
    #[error("this kernel is locked down (/sys/kernel/security/lockdown says confidentiality), which keeps BPF programs from reading what a scheduler has to: boot with lockdown=integrity or without")]
    LockedDown,
    /// Only one sched_ext scheduler can be loaded.
    #[error("another sched_ext scheduler is loaded ({name}): stop it first")]
    SchedulerPresent {
        /// Its name, as the kernel reports it.
        name: String,
    },
    /// A cgroup setting is in use that this kernel does not report to schedulers.
    #[error("{path} is set to \"{value}\", but this kernel does not report that to sched_ext schedulers: reset it to \"{neutral}\", use a newer kernel or pass --ignore-cgroups", path = path.display())]
    CgroupKnob {
        /// The file that holds the setting.
        path: PathBuf,
        /// What it holds.
        value: String,
        /// What it would have to hold.
        neutral: &'static str,
    },
    /// A file of the kernel could not be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A CPU list is malformed.
    #[error("CPU list {text:?} from {origin}: {reason}; expected a form like 0-3,8")]
    CpuList {
        /// The list.
        text: String,
        /// Where it came from.
        origin: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The metrics cannot be served.
    #[error("cannot serve metrics on {addr}: {reason}; choose another address")]
    Metrics {
        /// The address.
        addr: String,
        /// Why.
        reason: String,
    },
    /// There are no run statistics.
    #[error("no run statistics of a sched_ext scheduler: start one, and write 1 to /proc/sys/kernel/bpf_stats_enabled")]
    NoStatistics,
    /// The kernel refused the scheduler.
    #[error("loading the scheduler failed: {0:#}")]
    Load(anyhow::Error),
    /// The kernel ejected the scheduler, or the scheduler ended itself with an error.
    #[error("the kernel returned to its own scheduler: {0:#}")]
    Ejected(anyhow::Error),
    /// A map of the scheduler could not be read.
    #[error("cannot read the scheduler's state: {0}")]
    Map(libbpf_rs::Error),
    /// The statistics server could not start.
    #[error("cannot serve statistics: {0:#}")]
    Stats(anyhow::Error),
    /// Nothing answers on the socket.
    #[error("no {side} scheduler is running (none answers on /var/run/scx/root/stats): start one with tandem {side}")]
    NotRunning {
        /// `guest` or `host`.
        side: &'static str,
    },
    /// The running scheduler refuses.
    #[error("{0}")]
    Refused(String),
    /// Loading would go on for ever.
    #[error("the scheduler had to be loaded again {0} times in a row: giving up")]
    Restarts(u32),
    /// The scheduler is unloaded at the moment.
    #[error("the {side} scheduler is unloaded at the moment: wait until tandem {side} --monitor says that it is loaded")]
    Unloaded {
        /// `guest` or `host`.
        side: &'static str,
    },
    /// The length of a trace is missing or wrong.
    #[error("request to trace: expected ms from 0 to {0}")]
    TraceRequest(u128),
    /// A trace cannot be written.
    #[error("writing the trace: {0}")]
    Trace(std::io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
