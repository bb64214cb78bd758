//! Errors of the guest side. Each message is one line: what went wrong, where, and what would be right.

use std::path::PathBuf;
use tandem_daemon::DaemonError;

/// Errors of the guest scheduler and its daemon.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// An error that the daemons of both sides share.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A latency hint cannot be followed.
    #[error("latency hint: {0}")]
    Hints(String),
    /// systemd does not run this machine.
    #[error("systemd does not run this machine (/run/systemd/system is missing): --backend cpuset works through its AllowedCPUs")]
    NoSystemd,
    /// The daemon would exclude itself from vCPUs that it has to probe.
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
    /// The file with the previous settings is not usable.
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
    #[error("no guest scheduler is running (nothing answers on /var/run/scx/root/stats): start one with tandem guest")]
    NotRunning,
    /// The running scheduler refuses.
    #[error("{0:#}")]
    Refused(anyhow::Error),
    /// Loading would go on for ever.
    #[error("the kernel asked for a new load {0} times: giving up")]
    Restarts(u32),
    /// The scheduler is unloaded at the moment.
    #[error("the guest scheduler is unloaded at the moment by --gate: wait until tandem guest --monitor says that it is")]
    SteppedBack,
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
    /// The last vCPU cannot be parked.
    #[error("vCPU {0} is the last one in use: nothing was changed")]
    LastVcpu(usize),
}
