//! What the daemons of both sides share: whether a scheduler can be loaded here, what it costs, how much the daemon may take
//! itself, metrics over HTTP, and how it is told that the machine stood still or that it shall end.

pub mod budget;
pub mod cost;
pub mod cpulist;
mod error;
pub mod exporter;
pub mod preflight;
pub mod standstill;
pub mod sys;

pub use error::DaemonError;
