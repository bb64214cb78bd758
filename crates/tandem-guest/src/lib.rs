//! The guest side of Tandem: loads the vCPU-aware scheduler (`bpf/guest`) into the kernel, feeds it with
//! probes of idle vCPUs, reports what it does, and returns to the kernel's own scheduler on any doubt.
//!
//! Nothing outlives the process: a link holds the scheduler, and the kernel drops the link when the
//! process ends, however it ends.

mod accounts;
mod beside;
pub mod cpuset;
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
mod prober;
pub mod scheduler;
mod speed;
pub mod stats;
mod sys;
mod topology;
mod vcpu_limit;

use tandem_bpf::guest as bpf;

pub use error::GuestError;
pub use options::{Fault, GuestOptions, Part};
pub use scheduler::serve;
pub use tandem_daemon::cpulist::parse_cpu_list;
pub use tandem_daemon::sys::{catch_termination, termination_requested};
