//! The lab: boots a real Linux host with real KVM guests inside QEMU, contends for the host's CPUs as an experiment
//! file asks, runs the same programs under each scheduler in turn, and reports the result and whether it is valid.

mod accel;
pub mod cache;
pub mod catalog;
mod contention;
mod cpio;
pub mod doctor;
pub mod error;
pub mod experiment;
pub mod fetch;
mod host_truth;
mod image;
pub mod kernels;
mod last_look;
mod link;
pub mod lock;
mod machine;
mod noise;
pub mod progress;
mod rig;
pub mod run;
mod session;
pub mod shell;
mod sign;
mod speed;
mod sys;
mod windows;

pub use error::LabError;
pub use experiment::Experiment;
pub use run::{run, run_until, RunOptions};
pub use sys::{catch_termination, termination_requested};
