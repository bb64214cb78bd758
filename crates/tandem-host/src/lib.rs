//! Host side: what each virtual machine of a KVM host gets and waits for, and a scheduler that knows who is a vCPU.
//!
//! The observer is a BPF program of its own (`bpf/host/observe.bpf.c`): it needs no sched_ext and works beside any scheduler. The
//! scheduler (`bpf/host/main.bpf.c`) is loaded as that of the guest side is: nothing outlives the process.

mod affinity;
pub mod doctor;
mod entitlement;
mod error;
mod exits;
pub mod figures;
pub mod hooks;
pub mod inside;
mod kicks;
pub mod metrics;
pub mod observe;
pub mod options;
mod posted;
mod registry;
pub mod scheduler;
pub mod settings;
pub mod slice;
pub mod stats;
mod sys;
pub mod table;
pub mod times;
pub mod vms;
pub mod watch;

pub use error::HostError;
