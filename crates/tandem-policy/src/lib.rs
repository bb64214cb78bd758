//! The decisions of `policy/`, callable from Rust: for tests, and for programs that want to ask the
//! very code that decides in the kernel.
//!
//! Every wrapper is safe: the functions see integers and small structs by value or reference, have
//! no state, allocate nothing and call nobody.

mod ffi;

pub use ffi::{place_view, pull_view, vcpu_model};

/// Fixed point of shares: 1024 is one whole pCPU.
pub const SCALE: u32 = ffi::TANDEM_SCALE;
/// Length of a window of measurement, nanoseconds.
pub const WINDOW_NS: u64 = ffi::TANDEM_WINDOW_NS as u64;

/// Virtual deadlines (`policy/eevdf.h`).
pub mod eevdf {
    pub use crate::ffi::safe::{
        idle_floor_due, lag_after_sleep, lag_limit, lag_on_join, request_ns, virtual_ns, wakeup_preempts,
        weight_of_nice,
    };
}

/// What a vCPU gets (`policy/vcap.h`).
pub mod vcap {
    pub use crate::ffi::safe::{vcap_arrive, vcap_busy, vcap_effective, vcap_fresh};
}

/// Where a task should run (`policy/place.h`).
pub mod place {
    pub use crate::ffi::safe::{place_cost_ns, pull_helps, push_gains};
}
