//! What the daemons of both sides share: whether a scheduler can be loaded here, its life cycle, its statistics on a socket
//! and over HTTP, traces of what it does, what it costs, the budget of the daemon itself, standstills of the machine, and
//! termination signals.

pub mod budget;
pub mod bytes;
pub mod cost;
pub mod cpulist;
mod error;
pub mod exporter;
pub mod finding;
pub mod life;
pub mod monitoring;
pub mod preflight;
pub mod report;
pub mod server;
pub mod standstill;
pub mod sys;
pub mod trace;

pub use error::DaemonError;
