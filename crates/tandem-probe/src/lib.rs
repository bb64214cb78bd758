//! vProbers: what every vCPU really is, measured from inside of the guest.
//!
//! * [`activity`]: when a vCPU ran and when it did not, from the gaps in a thread's own time line.
//! * [`vtop`]: who shares a hardware thread, a core, a cache, a socket; from how long a cache line
//!   takes from one vCPU to another.
//!
//! Nothing here needs root or a particular kernel. Everything that was not measured is called
//! unknown; nothing is guessed from what was not seen. After vSched (EuroSys'25, section 3), without
//! its fixed thresholds: latencies are told apart by clustering those of the machine at hand.

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
