//! Host side: what each virtual machine of a KVM host gets and waits for.
//!
//! The observer is a BPF program of its own (`bpf/host/observe.bpf.c`): it needs no sched_ext and works beside any scheduler.

pub mod doctor;
mod error;
pub mod figures;
pub mod hooks;
pub mod metrics;
pub mod observe;
mod sys;
pub mod table;
pub mod times;
pub mod vms;

pub use error::HostError;
