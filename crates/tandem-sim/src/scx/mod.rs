//! sched_ext: kernels whose tasks are scheduled by a policy, the very one that runs in the kernel, compiled natively.
//!
//! [`kernel`] is what a policy sees of its kernel and asks it for, [`settings`] how it is set up; [`native`] calls into the policy and answers it;
//! the machine (`machine/ext.rs`) calls it when the kernel would (`kernel/sched/ext.c`).

pub mod dsq;
mod idle;
pub mod kernel;
mod native;
mod settings;

pub use native::explore;
pub use native::Policy;
pub use settings::{Fault, Ivh, NewTask, Part, Settings, Techniques};
