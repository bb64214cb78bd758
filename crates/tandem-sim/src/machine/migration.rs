//! Tasks whose migration is disabled because they are in a BPF program.
//!
//! The kernel pins such a task to its CPU as soon as that CPU schedules while the task is current (`migrate_disable_switch()`), and gives it
//! its CPUs back at the end of the program (`migrate_enable()`). Either is a change of a running task's properties: it is taken from
//! its policy and given back, and [`running()`](crate::scx::Policy::running) is called without a switch. While migration is
//! disabled the task is put into its CPU's local DSQ past `ops.enqueue()`, unless the policy says otherwise
//! (`SCX_OPS_ENQ_MIGRATION_DISABLED`).

use super::Machine;
use crate::scx::kernel::{
    Insertion, DEQ_SAVE, DSQ_LOCAL, ENQ_RESTORE, OPS_ENQ_MIGRATION_DISABLED, SLICE_DEFAULT_NS,
};

/// Migration of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Migration {
    /// It may be migrated.
    #[default]
    Enabled,
    /// It is in a BPF program.
    Disabled,
    /// Likewise, and its CPU has scheduled since: that is its only one.
    Pinned,
}

impl Machine {
    /// A running task begins a BPF program.
    pub(super) fn disable_migration(&mut self, task: usize) {
        self.set_migration(task, Migration::Disabled);
    }

    /// A running task has ended its BPF program, if it was in one.
    pub(super) fn enable_migration(&mut self, task: usize) {
        let was = self.tasks[task].migration;
        if was == Migration::Enabled {
            return;
        }
        if was == Migration::Pinned {
            let allowed = self.tasks[task].allowed.clone();
            self.change_cpus(task, &allowed);
        }
        self.set_migration(task, Migration::Enabled);
    }

    fn set_migration(&mut self, task: usize, migration: Migration) {
        let world = self.tasks[task].world;
        if let Some((number, policy)) = self.number(task).zip(self.worlds[world].policy.as_mut()) {
            policy.set_migration_disabled(number, migration != Migration::Enabled);
            self.tasks[task].migration = migration;
        }
    }

    /// A CPU schedules: its current task is pinned to it if migration of that is disabled.
    pub(super) fn pin_if_disabled(&mut self, task: usize) {
        if self.tasks[task].migration != Migration::Disabled {
            return;
        }
        self.tasks[task].migration = Migration::Pinned;
        let only = self.tasks[task].cpu;
        let cpus: Vec<bool> = (0..self.tasks[task].allowed.len()).map(|cpu| cpu == only).collect();
        self.change_cpus(task, &cpus);
    }

    /// Sets the CPUs of a running task (`do_set_cpus_allowed()`).
    fn change_cpus(&mut self, task: usize, cpus: &[bool]) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        let Some(number) = self.number(task) else { return };
        self.charge(world, cpu);
        self.policy(world, cpu, |policy| {
            policy.stopping(cpu, number, false);
            policy.quiescent(cpu, number, DEQ_SAVE);
            policy.set_queued(number, false);
            policy.kernel_mut().tasks[number].allowed.assign(cpus);
            policy.set_queued(number, true);
            policy.runnable(cpu, number, ENQ_RESTORE);
            policy.running(cpu, number);
        });
    }

    /// Puts a task that its CPU takes off while migration is disabled where the kernel puts it. Returns whether it did.
    pub(super) fn queued_past_policy(&mut self, task: usize) -> bool {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        let Some(number) = self.number(task).filter(|_| self.tasks[task].migration != Migration::Enabled)
        else {
            return false;
        };
        self.policy(world, cpu, |policy| {
            if policy.flags() & OPS_ENQ_MIGRATION_DISABLED != 0 {
                return false;
            }
            policy.set_slice_ns(number, SLICE_DEFAULT_NS);
            policy
                .kernel_mut()
                .insert(number, &Insertion { dsq: DSQ_LOCAL, slice_ns: 0, key: None, flags: 0 });
            true
        })
        .unwrap_or(false)
    }
}
