//! Properties of tasks that the kernel changes without telling the policy.

use super::{function, Task};
use crate::scx::Policy;

impl Policy {
    /// `PF_EXITING`: a task ends.
    pub fn set_exiting(&mut self, task: usize) {
        let pointer = self.task(task);
        // SAFETY: the type is that in native/exports.h.
        if let Ok(exiting) = unsafe { function::<extern "C" fn(Task)>(&self.image, "sim_set_exiting") } {
            exiting(pointer);
        }
    }

    /// Sets a task's affinity. It must not be in a DSQ.
    pub fn set_allowed(&mut self, task: usize, allowed: &[bool]) {
        self.state.kernel.tasks[task].allowed.assign(allowed);
        let pointer = self.state.tasks[task].pointer();
        let nr_cpus = allowed.iter().filter(|ok| **ok).count() as i32;
        // SAFETY: the type is that in native/exports.h, and the pointer is that of a task.
        if let Ok(set) =
            unsafe { function::<extern "C" fn(Task, i32)>(&self.image, "sim_set_nr_cpus_allowed") }
        {
            set(pointer, nr_cpus);
        }
    }

    /// `migration_disabled`: a task is in a BPF program, or not any more.
    pub fn set_migration_disabled(&mut self, task: usize, disabled: bool) {
        let pointer = self.task(task);
        // SAFETY: the type is that in native/exports.h.
        if let Ok(set) =
            unsafe { function::<extern "C" fn(Task, bool)>(&self.image, "sim_set_migration_disabled") }
        {
            set(pointer, disabled);
        }
    }
}
