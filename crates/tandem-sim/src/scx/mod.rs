//! sched_ext: kernels whose tasks a policy schedules, the same one that runs in the real kernel, compiled natively.
//!
//! [`kernel`] is the kernel as a policy sees and calls it, [`settings`] is its configuration. [`native`] calls into
//! the policy, and has the functions that a policy may call. The machine (`machine/ext.rs`) calls the policy when
//! the kernel would (`kernel/sched/ext.c`).

pub mod dsq;
mod idle;
pub mod kernel;
mod native;
mod settings;

pub use native::explore;
pub use native::Policy;
pub use settings::{Fault, Ivh, NewTask, Part, Settings, Techniques, NO_BOOSTS};
