//! What the daemons of both sides share: whether a scheduler can be loaded here, what it costs, the
//! budget of the daemon itself, metrics over HTTP, standstills of the machine, and termination signals.

pub mod budget;
pub mod cost;
pub mod cpulist;
mod error;
pub mod exporter;
pub mod finding;
pub mod preflight;
pub mod standstill;
pub mod sys;

pub use error::DaemonError;
