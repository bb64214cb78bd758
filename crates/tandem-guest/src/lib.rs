//! The guest side of Tandem: loads the vCPU-aware scheduler (`bpf/guest`) into the kernel, feeds it
//! with probes of idle vCPUs, reports what it does, and gives the machine back to the kernel's own
//! scheduler on any doubt.
//!
//! Nothing outlives the process: the scheduler is held by a link that the kernel drops when the
//! process ends, however it ends.

mod accounts;
mod beside;
mod bpf;
mod budget;
pub mod cost;
pub mod cpuset;
mod crowd;
pub mod doctor;
mod domains;
mod doubt;
mod error;
mod gate;
pub mod hints;
mod irqs;
mod metrics;
mod model;
pub mod observe;
pub mod options;
pub mod park;
pub mod preflight;
mod prober;
pub mod scheduler;
mod server;
mod speed;
mod standstill;
pub mod stats;
mod sys;
mod topology;
pub mod trace;

pub use error::GuestError;
pub use model::parse_cpu_list;
pub use options::{Fault, GuestOptions, Part};
pub use scheduler::serve;
pub use sys::{catch_termination, termination_requested};
