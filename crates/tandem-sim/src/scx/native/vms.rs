//! What KVM tells the host scheduler: its programs on KVM's functions are called as they are on a host. A guest scheduler has none.

use super::image::Image;
use super::{function, Policy};
use std::collections::BTreeMap;

/// Where KVM calls the scheduler's programs all the time.
#[derive(Clone, Copy)]
struct Entries {
    comes: extern "C" fn(u32),
    exits: extern "C" fn(u32),
    handles_exit: extern "C" fn(),
}

impl Entries {
    /// None: the image is that of a guest's scheduler.
    fn find(image: &Image) -> Option<Self> {
        // SAFETY: the types are those in native/host.c.
        unsafe {
            Some(Self {
                comes: function(image, "sim_vcpu_comes").ok()?,
                exits: function(image, "sim_vcpu_exits").ok()?,
                handles_exit: function(image, "sim_handles_exit").ok()?,
            })
        }
    }
}

/// What is known of VMs.
#[derive(Default)]
pub(super) struct Vms {
    /// Found with the first vCPU.
    entries: Option<Entries>,
    /// Number of the vCPU that a task runs.
    vcpus: BTreeMap<usize, u32>,
    /// Process of a task that shares one with others.
    processes: BTreeMap<usize, i32>,
    /// The thread that is in a function of KVM; none: whoever runs on the CPU.
    pub(super) in_kvm: Option<usize>,
    /// vCPUs are where they hold a kernel lock, and no exit is seen.
    hold_locks: bool,
}

impl Vms {
    /// Process of a task that has this number itself.
    pub(super) fn process_of(&self, task: usize, pid: i32) -> i32 {
        self.processes.get(&task).copied().unwrap_or(pid)
    }
}

impl Policy {
    /// A task is a thread of this process from now on. By itself it has one of its own.
    pub fn joins_process(&mut self, task: usize, process: i32) {
        let pointer = self.task(task);
        self.state.vms.processes.insert(task, process);
        // SAFETY: the type is that in native/exports.h, and the pointer is that of a task.
        if let Ok(set) =
            unsafe { function::<extern "C" fn(super::Task, i32)>(&self.image, "sim_set_process") }
        {
            self.with(0, |_| set(pointer, process));
        }
    }

    /// A task enters KVM's run function for a vCPU of a VM, both by their numbers.
    ///
    /// # Errors
    /// There is no room for so many.
    pub fn runs_vcpu(&mut self, task: usize, vm: u32, vcpu: u32) -> Result<(), String> {
        // SAFETY: the type is that in native/host.c.
        let runs = unsafe { function::<extern "C" fn(u32, u32) -> bool>(&self.image, "sim_runs_vcpu") };
        let Ok(runs) = runs else { return Ok(()) };
        self.state.vms.entries = self.state.vms.entries.or_else(|| Entries::find(&self.image));
        if !self.in_kvm(task, || runs(vm, vcpu)) {
            return Err(format!("no room for vCPU {vcpu} of VM {vm}"));
        }
        self.state.vms.vcpus.insert(task, vcpu);
        Ok(())
    }

    /// A task is switched in while it sets up a vCPU of a VM, both by their numbers, and does not run it.
    pub fn sets_up_vcpu(&mut self, task: usize, vm: u32, vcpu: u32) {
        // SAFETY: the type is that in native/host.c.
        let sets_up = unsafe { function::<extern "C" fn(u32, u32)>(&self.image, "sim_sets_up_vcpu") };
        if let Ok(sets_up) = sets_up {
            self.in_kvm(task, || sets_up(vm, vcpu));
        }
    }

    /// KVM destroys a VM.
    pub fn vm_ends(&mut self, vm: u32) {
        // SAFETY: the type is that in native/host.c.
        if let Ok(ends) = unsafe { function::<extern "C" fn(u32)>(&self.image, "sim_vm_ends") } {
            self.with(0, |_| ends(vm));
        }
    }

    /// Whether vCPUs are where they hold a kernel lock from now on. Otherwise each that is to lose its pCPU has just left its guest for an
    /// interrupt, or was halted, and holds none.
    pub fn hold_locks(&mut self, hold: bool) {
        self.state.vms.hold_locks = hold;
    }

    /// VMs with a vCPU that is counted on some pCPU (must be 0 while no task is runnable).
    pub fn left_of_vms(&mut self) -> u64 {
        // SAFETY: the type is that in native/host.c.
        let left = unsafe { function::<extern "C" fn() -> u64>(&self.image, "sim_left_of_vms") };
        left.map_or(0, |left| self.with(0, |_| left()))
    }

    /// KVM accepts an interrupt of this vector, on the CPU `here`, for the vCPU that a task runs. `sender`: the task that sends it; none: a
    /// device.
    pub fn interrupts(&mut self, here: usize, task: usize, sender: Option<usize>, vector: u32) {
        let Some(&vcpu) = self.state.vms.vcpus.get(&task) else { return };
        // SAFETY: the type is that in native/host.c.
        let accept = unsafe { function::<extern "C" fn(u32, u32)>(&self.image, "sim_interrupt") };
        let Ok(accept) = accept else { return };
        self.state.vms.in_kvm = sender;
        self.with(here, |_| accept(vcpu, vector));
        self.state.vms.in_kvm = None;
    }

    /// The vCPU that a task runs writes to a device.
    pub fn kicks_device(&mut self, task: usize) {
        // SAFETY: the type is that in native/host.c.
        if let Ok(kick) = unsafe { function::<extern "C" fn()>(&self.image, "sim_kick") } {
            self.in_kvm(task, || kick());
        }
    }

    /// The guest's current task on the vCPU that a task runs, by its address, and the preemption count there.
    pub fn guest_runs(&mut self, task: usize, guest_task: u64, preempt_count: u32) {
        let Some(&vcpu) = self.state.vms.vcpus.get(&task) else { return };
        // SAFETY: the type is that in native/host.c.
        let runs = unsafe { function::<extern "C" fn(u32, u64, u32)>(&self.image, "sim_guest_runs") };
        if let Ok(runs) = runs {
            runs(vcpu, guest_task, preempt_count);
        }
    }

    /// Hardware posts an interrupt for the vCPU that a task runs, and KVM is not told; or the vCPU has taken it.
    pub fn posts(&mut self, task: usize, vector: u32, taken: bool) {
        let Some(&vcpu) = self.state.vms.vcpus.get(&task) else { return };
        // SAFETY: the type is that in native/host.c.
        if let Ok(posts) = unsafe { function::<extern "C" fn(u32, u32, bool)>(&self.image, "sim_posts") } {
            posts(vcpu, vector, taken);
        }
    }

    /// What a VM owes for its boosts, ns; negative: what it is owed.
    pub fn debt_of(&mut self, vm: u32) -> i64 {
        // SAFETY: the type is that in native/host.c.
        let debt = unsafe { function::<extern "C" fn(u32) -> i64>(&self.image, "sim_debt_of") };
        debt.map_or(0, |debt| self.with(0, |_| debt(vm)))
    }

    /// All debts less all credits (must be 0).
    pub fn sum_of_debts(&mut self) -> i64 {
        // SAFETY: the type is that in native/host.c.
        let sum = unsafe { function::<extern "C" fn() -> i64>(&self.image, "sim_sum_of_debts") };
        sum.map_or(0, |sum| self.with(0, |_| sum()))
    }

    /// Who runs if two that do I/O want the same pCPU (`enum boost_conflict`), for all VMs.
    pub fn set_conflict(&mut self, conflict: u32) {
        // SAFETY: the type is that in native/host.c.
        if let Ok(set) = unsafe { function::<extern "C" fn(u32)>(&self.image, "sim_set_conflict") } {
            self.with(0, |_| set(conflict));
        }
    }

    /// The vCPU that a task runs, and KVM's calls for it.
    fn vcpu_of(&self, task: usize) -> Option<(u32, Entries)> {
        let vms = &self.state.vms;
        vms.vcpus.get(&task).copied().zip(vms.entries)
    }

    /// A vCPU's thread that is about to be asked for its pCPU, or to be queued, has left its guest.
    pub(super) fn leaves_guest(&mut self, task: usize) {
        let vcpu = self.vcpu_of(task).filter(|_| !self.state.vms.hold_locks);
        if let Some((vcpu, Entries { exits, .. })) = vcpu {
            self.in_kvm(task, || exits(vcpu));
        }
    }

    /// A vCPU's thread that runs: KVM's preempt notifier was called, and the reason of the last exit is handled.
    pub(super) fn enters_guest(&mut self, task: usize) {
        if let Some((vcpu, Entries { comes, handles_exit, .. })) = self.vcpu_of(task) {
            self.in_kvm(task, || {
                comes(vcpu);
                handles_exit();
            });
        }
    }

    fn in_kvm<R>(&mut self, task: usize, call: impl FnOnce() -> R) -> R {
        let here = self.state.kernel.here;
        self.state.vms.in_kvm = Some(task);
        let result = self.with(here, |_| call());
        self.state.vms.in_kvm = None;
        result
    }
}
