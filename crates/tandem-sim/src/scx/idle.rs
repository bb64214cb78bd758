//! The kernel's built-in idle CPU selection (`kernel/sched/ext_idle.c`), as far as policies can call it.

use super::kernel::Kernel;
use crate::hardware::Distance;

impl Kernel {
    /// Clears the idle bit of a CPU. Returns whether it was set.
    pub fn test_and_clear_idle(&mut self, cpu: usize) -> bool {
        let was = self.idle.has(cpu);
        self.idle.set(cpu, false);
        was
    }

    fn whole_core_idle(&self, cpu: usize) -> bool {
        self.layout.siblings(cpu).filter(|c| *c < self.cpus.len()).all(|c| self.idle.has(c))
    }

    /// Picks an idle CPU among those allowed, nearest to `near` first if that is given, and clears its idle bit.
    /// `whole_core`: only CPUs whose core is fully idle.
    pub fn pick_idle(
        &mut self,
        allowed: &dyn Fn(usize) -> bool,
        near: Option<usize>,
        whole_core: bool,
    ) -> Option<usize> {
        let fits = |cpu: &usize| allowed(*cpu) && (!whole_core || self.whole_core_idle(*cpu));
        let reach = |cpu: &usize| {
            near.map_or(Distance::Same, |near| {
                if self.layout.distance(near, *cpu) <= Distance::Cache {
                    Distance::Cache
                } else {
                    Distance::Machine
                }
            })
        };
        let found = self.idle.iter().filter(fits).min_by_key(|cpu| (reach(cpu), *cpu))?;
        self.idle.set(found, false);
        Some(found)
    }

    /// `scx_bpf_select_cpu_dfl()`: the CPU and whether it was idle.
    pub fn select_cpu_default(&mut self, task: usize, prev: usize, sync: bool) -> (usize, bool) {
        let here = self.here;
        let prev_allowed = self.may_use(task, prev);
        if sync && self.may_use(task, here) {
            if prev_allowed
                && self.layout.distance(here, prev) <= Distance::Cache
                && self.test_and_clear_idle(prev)
            {
                return (prev, true);
            }
            // The waker is about to sleep, no task waits for its CPU, and some CPU is idle: the task runs here, and
            // no idle CPU is woken.
            if self.cpus[here].local.is_empty() && self.idle.any() {
                return (here, true);
            }
        }
        let mask = self.tasks[task].allowed.clone();
        let allowed = move |cpu: usize| mask.has(cpu);
        if self.layout.threads > 1 {
            if prev_allowed && self.idle.has(prev) && self.whole_core_idle(prev) {
                self.idle.set(prev, false);
                return (prev, true);
            }
            if let Some(cpu) = self.pick_idle(&allowed, Some(prev), true) {
                return (cpu, true);
            }
        }
        if prev_allowed && self.test_and_clear_idle(prev) {
            return (prev, true);
        }
        self.pick_idle(&allowed, Some(prev), false).map_or((prev, false), |cpu| (cpu, true))
    }
}
