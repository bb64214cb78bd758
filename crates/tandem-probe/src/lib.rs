//! vProbers: measure from inside of the guest what every vCPU really is.
//!
//! * [`activity`]: when a vCPU ran and when it did not, from the gaps in a thread's own time line.
//! * [`vtop`]: which vCPUs share a hardware thread, a core, a cache, a socket, from the time that a cache line takes
//!   from one vCPU to another.
//!
//! Nothing here needs root or a particular kernel. Everything that was not measured is reported as unknown; nothing is
//! guessed. Source: vSched (EuroSys'25, section 3), without its fixed thresholds: latencies are classified by
//! clustering those of the machine itself.

pub mod activity;
pub mod core;
pub mod emulated;
pub mod error;
pub mod estimate;
pub mod hypervisor;
pub mod kernel;
pub mod machine;
pub mod neighbours;
pub mod render;
pub mod report;
pub mod share;
pub mod sys;
pub mod threads;
pub mod vtop;
pub mod wake;

pub use error::ProbeError;
