//! What can go wrong on the guest side, one line each: what, where, what would be right.

use std::path::PathBuf;

/// Errors of the guest scheduler and its daemon.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
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
    /// A cgroup setting is in use of which this kernel tells a scheduler nothing.
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
    /// A CPU list is not understood.
    #[error("CPU list {text:?} from {origin}: {reason}; expected a form like 0-3,8")]
    CpuList {
        /// The list.
        text: String,
        /// Where it came from.
        origin: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Hints who shall answer soon that cannot be followed.
    #[error("hint who shall answer soon: {0}")]
    Hints(String),
    /// Not the service manager.
    #[error("systemd does not run this machine (/run/systemd/system is missing): --backend cpuset works through its AllowedCPUs")]
    NoSystemd,
    /// The daemon would be among those whom it keeps off vCPUs that it has to probe.
    #[error("this process is in {unit}, which it would limit: start it in a slice of its own, e.g. systemd-run --slice=tandem tandem guest --backend cpuset")]
    OwnUnit {
        /// The unit.
        unit: String,
    },
    /// systemd refused.
    #[error("{asked}: {reason}")]
    Systemd {
        /// The command.
        asked: String,
        /// Its message.
        reason: String,
    },
    /// The file that says how things were is not usable.
    #[error("{path}, which says what AllowedCPUs were before: {reason}", path = path.display())]
    CpusetState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel refused the scheduler.
    #[error("loading the scheduler failed: {0:#}")]
    Load(anyhow::Error),
    /// The scheduler was thrown out, or ended itself, by an error.
    #[error("the kernel returned to its own scheduler: {0:#}")]
    Ejected(anyhow::Error),
    /// A map of the scheduler could not be read.
    #[error("cannot read the scheduler's state: {0}")]
    Map(libbpf_rs::Error),
    /// The statistics server could not start.
    #[error("cannot serve statistics: {0:#}")]
    Stats(anyhow::Error),
    /// Nobody answers on the socket.
    #[error("no guest scheduler is running (nobody answers on /var/run/scx/root/stats): start one with tandem guest")]
    NotRunning,
    /// The running scheduler objects.
    #[error("{0:#}")]
    Refused(anyhow::Error),
    /// It would go on for ever.
    #[error("the kernel asked for a new load {0} times: giving up")]
    Restarts(u32),
    /// The length of a trace is missing or wrong.
    #[error("request to trace: expected ms from 0 to {0}")]
    TraceRequest(u64),
    /// A trace cannot be written.
    #[error("writing the trace: {0}")]
    Trace(std::io::Error),
    /// Neither park nor unpark.
    #[error("request {0:?}: expected park or unpark")]
    ParkRequest(String),
    /// No such vCPU.
    #[error("vCPU {0} is not online: nothing was changed")]
    NoVcpu(usize),
    /// The last one cannot go.
    #[error("vCPU {0} is the last one in use: nothing was changed")]
    LastVcpu(usize),
    /// The metrics cannot be served.
    #[error("cannot serve metrics on {addr}: {reason}; choose another address")]
    Metrics {
        /// The address.
        addr: String,
        /// Why.
        reason: String,
    },
    /// Nothing to report the cost of.
    #[error("no run statistics of a guest scheduler: start one, and write 1 to /proc/sys/kernel/bpf_stats_enabled")]
    NoStatistics,
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
