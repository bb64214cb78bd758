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
