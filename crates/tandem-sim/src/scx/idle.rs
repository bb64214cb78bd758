//! The kernel's own choice of idle CPUs (`kernel/sched/ext_idle.c`), in so far as policies can ask for it.

use super::kernel::{has_bit, Kernel};
use crate::hardware::Distance;

impl Kernel {
    /// Takes the idle bit of a CPU. Was it set?
    pub fn test_and_clear_idle(&mut self, cpu: usize) -> bool {
        self.cpus.get_mut(cpu).is_some_and(|c| std::mem::take(&mut c.idle))
    }

    fn whole_core_idle(&self, cpu: usize) -> bool {
        self.layout.siblings(cpu).filter(|c| *c < self.cpus.len()).all(|c| self.cpus[c].idle)
    }

    /// An idle CPU among those allowed, whole cores first, nearest to `near` first if that is given. It is taken.
    pub fn pick_idle(
        &mut self,
        allowed: &dyn Fn(usize) -> bool,
        near: Option<usize>,
        whole_core: bool,
    ) -> Option<usize> {
        let fits = |cpu: &usize| {
            self.cpus[*cpu].idle && allowed(*cpu) && (!whole_core || self.whole_core_idle(*cpu))
        };
        let reach = |cpu: &usize| {
            near.map_or(Distance::Same, |near| {
                if self.layout.distance(near, *cpu) <= Distance::Cache {
                    Distance::Cache
                } else {
                    Distance::Machine
                }
            })
        };
        let found = (0..self.cpus.len()).filter(fits).min_by_key(|cpu| (reach(cpu), *cpu))?;
        self.cpus[found].idle = false;
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
            // The waker is about to make room, and somebody else is idle: no need to disturb that.
            if self.cpus[here].local.is_empty() && self.cpus.iter().any(|c| c.idle) {
                return (here, true);
            }
        }
        let mask = self.tasks[task].allowed.clone();
        let allowed = move |cpu: usize| has_bit(&mask, cpu);
        if self.layout.threads > 1 {
            if prev_allowed && self.cpus[prev].idle && self.whole_core_idle(prev) {
                self.cpus[prev].idle = false;
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
