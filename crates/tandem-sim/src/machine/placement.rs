//! Wake-up placement and load balance of the fair class: `select_task_rq_fair()` and `load_balance()` as in the
//! kernel, except for the differences that the documentation names.

use super::state::State;
use super::Machine;
use crate::fair::{Arrival, Flavour};
use crate::hardware::Distance;
use crate::queue::Ns;

/// A task that ran within this time is cache-hot, ns (`sysctl_sched_migration_cost`).
const HOT_NS: Ns = 500_000;
/// Most tasks that one load balance moves (`sysctl_sched_nr_migrate`).
const MOST_MOVED: usize = 32;
/// Imbalance that is tolerated: a sixth (`imbalance_pct` 117).
const IMBALANCE_PCT: u64 = 117;
/// Busy CPUs balance less often by this factor (`busy_factor`).
const BUSY_FACTOR: u64 = 16;

impl Machine {
    /// Idle, or with SCHED_IDLE tasks only. A preempted vCPU does not count as idle (`available_idle_cpu()`).
    fn looks_idle(&self, world: usize, cpu: usize) -> bool {
        let w = &self.worlds[world];
        let idle = w.cpus[cpu].wake_list.is_empty() && w.fair.running(cpu) == w.fair.idle_running(cpu);
        if !idle || world == 0 {
            return idle;
        }
        let page = &w.pages[cpu];
        let halted = w.cpus[cpu].vcpu.is_some_and(|vcpu| self.tasks[vcpu].state == State::Sleeping);
        !page.preempted || (halted && !w.halted_looks_preempted)
    }

    /// A CPU's capacity after steal, 0 to 1024. Only kernels with `CONFIG_PARAVIRT_TIME_ACCOUNTING` know of steal
    /// (`update_rq_clock_task()`).
    fn capacity(&self, world: usize, cpu: usize) -> u64 {
        if !self.worlds[world].sees_steal {
            return 1024;
        }
        let stolen = self.worlds[world].cpus[cpu].stolen.value();
        ((1.0 - stolen) * 1024.0).max(1.0) as u64
    }

    fn shares_cache(&self, world: usize, a: usize, b: usize) -> bool {
        self.worlds[world].layout.distance(a, b) <= Distance::Cache
    }

    /// Counts how often the waker changes the task that it wakes (`record_wakee()`).
    pub(super) fn note_wakee(&mut self, world: usize, waker_cpu: usize, task: usize) {
        let Some(waker) = self.worlds[world].cpus[waker_cpu].curr else { return };
        let now = self.now;
        let w = &mut self.tasks[waker];
        if now > w.flips_at + 1_000_000_000 {
            w.wakee_flips /= 2;
            w.flips_at = now;
        }
        if w.last_wakee != task {
            w.last_wakee = task;
            w.wakee_flips += 1;
        }
    }

    /// CPU for a task that wakes up.
    pub(super) fn select_cpu(&mut self, task: usize, waker: Option<usize>, sync: bool) -> usize {
        let world = self.tasks[task].world;
        let prev = self.tasks[task].cpu;
        let allowed = |cpu: usize| self.tasks[task].allowed[cpu];
        let mut target = if allowed(prev) {
            prev
        } else {
            self.tasks[task].allowed.iter().position(|ok| *ok).unwrap_or(prev)
        };
        if let Some(this) = waker.filter(|this| allowed(*this) && !self.wakes_wide(world, *this, task)) {
            target = self.wake_affine(world, this, prev, task, sync);
        }
        self.idle_sibling(world, task, prev, target)
    }

    fn wakes_wide(&self, world: usize, waker_cpu: usize, task: usize) -> bool {
        let Some(waker) = self.worlds[world].cpus[waker_cpu].curr else { return false };
        let layout = &self.worlds[world].layout;
        let factor = (layout.cores * layout.threads) as u64;
        let (a, b) = (self.tasks[waker].wakee_flips, self.tasks[task].wakee_flips);
        a.min(b) >= factor && a.max(b) >= a.min(b) * factor
    }

    fn wake_affine(&self, world: usize, this: usize, prev: usize, task: usize, sync: bool) -> usize {
        if !self.tasks[task].allowed[prev] {
            return this;
        }
        let fair = &self.worlds[world].fair;
        if self.looks_idle(world, this) && self.shares_cache(world, this, prev) {
            return if self.looks_idle(world, prev) { prev } else { this };
        }
        if sync && fair.running(this) == 1 {
            return this;
        }
        if self.looks_idle(world, prev) {
            return prev;
        }
        let own = fair.entity(self.tasks[task].entity).weight;
        let mut here = fair.load(this);
        if sync {
            let current =
                self.worlds[world].cpus[this].curr.map_or(0, |t| fair.load_of(self.tasks[t].entity));
            if current > here {
                return this;
            }
            here -= current;
        }
        let here = (here + own) * 100 * self.capacity(world, prev);
        let there = fair.load(prev) * (100 + (IMBALANCE_PCT - 100) / 2) * self.capacity(world, this);
        if here < there {
            this
        } else {
            prev
        }
    }

    fn idle_sibling(&mut self, world: usize, task: usize, prev: usize, target: usize) -> usize {
        let fits = |m: &Self, cpu: usize| m.tasks[task].allowed[cpu] && m.looks_idle(world, cpu);
        if fits(self, target) {
            return target;
        }
        if prev != target && self.shares_cache(world, prev, target) && fits(self, prev) {
            return prev;
        }
        let recent = self.tasks[task].recent_cpu;
        if recent != prev
            && recent != target
            && self.shares_cache(world, recent, target)
            && fits(self, recent)
        {
            return recent;
        }
        let layout = self.worlds[world].layout.clone();
        let cpus = self.worlds[world].cpus.len();
        let mut single = None;
        for step in 1..=cpus {
            let cpu = (target + step) % cpus;
            if layout.cache_of(cpu) != layout.cache_of(target) || !fits(self, cpu) {
                continue;
            }
            if layout.threads < 2 {
                return cpu;
            }
            // A fully idle core before an idle thread of a busy core.
            if layout.siblings(cpu).filter(|c| *c < cpus).all(|c| self.looks_idle(world, c)) {
                return cpu;
            }
            single = single.or(Some(cpu));
        }
        single.unwrap_or(target)
    }

    /// CPU for a new task: the one with the least load.
    pub(crate) fn select_cpu_for_new(&mut self, task: usize) -> usize {
        let world = self.tasks[task].world;
        let fair = &self.worlds[world].fair;
        let usable = || (0..self.worlds[world].cpus.len()).filter(|cpu| self.tasks[task].allowed[*cpu]);
        let least = usable().map(|cpu| fair.load(cpu)).min().unwrap_or(0);
        // Among equals the kernel takes the CPU that has been idle for the shortest time. The model takes a random one.
        let equals: Vec<usize> = usable().filter(|cpu| fair.load(*cpu) == least).collect();
        match equals.len() {
            0 => 0,
            n => equals[self.random.below(n as u64) as usize],
        }
    }

    /// Waiting tasks that may migrate from one CPU to another; cache-hot ones only if `hot`.
    fn movable(&self, world: usize, from: usize, to: usize, hot: bool) -> Vec<usize> {
        let ready = |task: &usize| {
            let t = &self.tasks[*task];
            t.allowed[to] && t.state == State::Runnable && (hot || self.now >= t.ran_at + HOT_NS)
        };
        self.worlds[world].fair.waiting_tasks(from).into_iter().filter(ready).collect()
    }

    /// Migrates a waiting task. `by`: the CPU that does so.
    pub(super) fn move_task(&mut self, task: usize, to: usize, by: usize) {
        let (world, from) = (self.tasks[task].world, self.tasks[task].cpu);
        self.charge(world, from);
        let entity = self.tasks[task].entity;
        self.worlds[world].fair.dequeue(entity, false);
        self.queue_task_from(task, to, Arrival::Migrated, Some(by));
    }

    /// Newidle balance: a CPU that is about to become idle pulls a task from the busiest CPU, nearest level first.
    pub(super) fn newidle_balance(&mut self, world: usize, cpu: usize) -> bool {
        let mean_idle = self.worlds[world].cpus[cpu].mean_idle_ns;
        for level in [Distance::Core, Distance::Cache, Distance::Machine] {
            // Not worth it for so short an idle time.
            if mean_idle > 0 && mean_idle < HOT_NS / 2 && level > Distance::Core {
                return false;
            }
            let near =
                |other: &usize| *other != cpu && self.worlds[world].layout.distance(cpu, *other) <= level;
            let busiest = (0..self.worlds[world].cpus.len())
                .filter(near)
                .filter(|other| self.worlds[world].fair.running(*other) > 1)
                .max_by_key(|other| (self.worlds[world].fair.load(*other), std::cmp::Reverse(*other)));
            let Some(busiest) = busiest else { continue };
            let candidates = self.movable(world, busiest, cpu, level == Distance::Core);
            if let Some(&task) = candidates.first() {
                self.move_task(task, cpu, cpu);
                return true;
            }
        }
        false
    }

    /// Periodic load balance, at a tick. Busy CPUs do it less often.
    pub(super) fn periodic_balance(&mut self, world: usize, cpu: usize) {
        let now = self.now;
        for (i, level) in [Distance::Core, Distance::Cache, Distance::Machine].into_iter().enumerate() {
            if now < self.worlds[world].cpus[cpu].balance_at[i] {
                continue;
            }
            let layout = &self.worlds[world].layout;
            let span = match level {
                Distance::Core => layout.threads,
                Distance::Cache => layout.threads * layout.cores,
                _ => self.worlds[world].cpus.len(),
            };
            if span < 2 {
                continue;
            }
            let busy = self.worlds[world].cpus[cpu].curr.is_some();
            let interval = span as Ns * 1_000_000 * if busy { BUSY_FACTOR } else { 1 };
            // CPUs balance at different times.
            let jitter = self.random.below(interval / 4 + 1);
            self.cpu(world, cpu).balance_at[i] = now + interval + jitter;
            self.balance(world, cpu, level, cpu);
        }
    }

    /// A busy CPU with waiting tasks kicks an idle CPU, whose tick is stopped, to balance on behalf of all idle
    /// CPUs (`nohz_balancer_kick()`). In a guest that costs both of them an exit.
    pub(super) fn ask_idle_to_balance(&mut self, world: usize, cpu: usize) {
        let w = &self.worlds[world];
        if self.now < w.idle_balance_at || w.fair.running(cpu) < 2 {
            return;
        }
        let idle = |c: &usize| w.cpus[*c].curr.is_none() && w.cpus[*c].wake_list.is_empty();
        let Some(balancer) = (0..w.cpus.len()).find(idle) else { return };
        let interval = w.cpus.len() as Ns * 1_000_000;
        self.worlds[world].idle_balance_at = self.now + interval;
        self.cpu(world, balancer).balances_idle = true;
        self.resched_from(world, balancer, Some(cpu), true);
    }

    /// Nohz-idle balance by the kicked CPU, on behalf of all idle CPUs.
    pub(super) fn balance_idle(&mut self, world: usize, cpu: usize) {
        let cpus = self.worlds[world].cpus.len();
        // The CPU itself comes last: after a pull it is no longer idle.
        for other in (cpu + 1..cpus).chain(0..=cpu) {
            if self.worlds[world].cpus[other].curr.is_some() {
                continue;
            }
            for level in [Distance::Core, Distance::Cache, Distance::Machine] {
                self.balance(world, other, level, cpu);
            }
        }
    }

    /// Load balance of `cpu` at one level. `by`: the CPU that does so.
    fn balance(&mut self, world: usize, cpu: usize, level: Distance, by: usize) {
        let w = &self.worlds[world];
        let near = |other: &usize| w.layout.distance(cpu, *other) <= level;
        let cpus: Vec<usize> = (0..w.cpus.len()).filter(near).collect();
        // Load over capacity; 1024 is a nice-0 task on a CPU of full capacity.
        let relative = |c: usize| w.fair.load(c) * 1024 / self.capacity(world, c);
        let busiest = cpus
            .iter()
            .copied()
            .filter(|c| *c != cpu && w.fair.running(*c) > 1)
            .max_by_key(|c| (relative(*c), std::cmp::Reverse(*c)));
        let Some(busiest) = busiest else { return };
        let (there, here) = (relative(busiest), relative(cpu));
        let few = w.fair.running(busiest) > w.fair.running(cpu) + 1;
        let overloaded = there * 100 > here * IMBALANCE_PCT;
        let old = w.fair.rules().flavour == Flavour::Cfs;
        if !overloaded || (!few && !old && w.fair.running(cpu) > 0) {
            return;
        }
        let mut imbalance = (there - here) / 2;
        for task in self.movable(world, busiest, cpu, level == Distance::Core).into_iter().take(MOST_MOVED) {
            let load = self.worlds[world].fair.load_of(self.tasks[task].entity);
            if load / 2 > imbalance || self.worlds[world].fair.running(busiest) < 2 {
                continue;
            }
            self.move_task(task, cpu, by);
            imbalance = imbalance.saturating_sub(load);
        }
    }
}
