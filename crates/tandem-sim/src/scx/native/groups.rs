//! Groups of a policy: callbacks about cgroups.

use super::{function, Op, Policy, Task};
use std::ffi::c_void;
use std::ptr;

impl Policy {
    /// Adds a group, and returns its number. The first one is the root.
    ///
    /// # Errors
    /// The policy refuses it.
    pub fn add_group(
        &mut self,
        parent: Option<usize>,
        weight: u64,
        idle: bool,
        max_us: Option<(u64, u64)>,
    ) -> Result<usize, String> {
        // SAFETY: the types are those in native/exports.h.
        let (set_up, init) = unsafe {
            (
                function::<extern "C" fn(*mut c_void, u64, *const c_void, bool)>(
                    &self.image,
                    "sim_cgroup_set_up",
                )?,
                function::<extern "C" fn(*mut c_void, u32, u64, u64) -> i32>(&self.image, "sim_init_cgroup")?,
            )
        };
        let group = self.state.cgroups.len();
        let mut memory = vec![0u64; self.cgroup_size.div_ceil(8)].into_boxed_slice();
        let pointer: *mut c_void = memory.as_mut_ptr().cast();
        let parent = match parent {
            Some(parent) => self.state.cgroups[parent].as_ptr().cast(),
            None => ptr::null(),
        };
        set_up(pointer, group as u64 + 1, parent, idle);
        self.state.cgroups.push(memory);
        let (quota, period) = max_us.unwrap_or((u64::MAX, 100_000));
        let error = self.with(0, |_| init(pointer, weight as u32, period, quota));
        if error != 0 {
            return Err(format!("the policy refuses group {group}: error {error}"));
        }
        Ok(group)
    }

    /// `cpu.max` of a group changes: quota and period, microseconds; none: no limit.
    pub fn set_bandwidth(&mut self, here: usize, group: usize, max_us: Option<(u64, u64)>) {
        let address = self.ops[Op::SetBandwidth as usize];
        let pointer: *mut c_void = self.state.cgroups[group].as_mut_ptr().cast();
        let (quota, period) = max_us.unwrap_or((u64::MAX, 100_000));
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of the operation, and the pointer is that of a group.
        let call =
            unsafe { std::mem::transmute::<usize, extern "C" fn(*mut c_void, u64, u64, u64)>(address) };
        self.with(here, |_| call(pointer, period, quota, 0));
    }

    /// `cpu.weight` of a group changes.
    pub fn set_weight(&mut self, here: usize, group: usize, weight: u32) {
        let address = self.ops[Op::SetWeight as usize];
        let pointer: *mut c_void = self.state.cgroups[group].as_mut_ptr().cast();
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of the operation, and the pointer is that of a group.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(*mut c_void, u32)>(address) };
        self.with(here, |_| call(pointer, weight));
    }

    /// `ops.cgroup_move()`: a task changes its group. It must be dequeued.
    pub fn move_to_group(&mut self, here: usize, task: usize, from: usize, to: usize) {
        let address = self.ops[Op::CgroupMove as usize];
        let (task, state) = (self.task(task), &mut self.state);
        let [from, to] = [from, to].map(|group| -> *mut c_void { state.cgroups[group].as_mut_ptr().cast() });
        if address == 0 {
            return;
        }
        // SAFETY: that is the type of the operation, and the pointers are those of a task and of groups.
        let call =
            unsafe { std::mem::transmute::<usize, extern "C" fn(Task, *mut c_void, *mut c_void)>(address) };
        self.with(here, |_| call(task, from, to));
    }
}
