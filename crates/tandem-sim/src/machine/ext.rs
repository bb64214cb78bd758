//! sched_ext as in the kernel (`kernel/sched/ext.c`): when a policy's callbacks are called, and what their calls do.

use super::state::{Account, Kind, Resched, State};
use super::Machine;
use crate::queue::{Event, Ns};
use crate::scx::kernel::{
    Effect, Insertion, DEQ_SLEEP, DSQ_LOCAL, ENQ_HEAD, ENQ_LAST, ENQ_WAKEUP, KICK_IDLE, KICK_PREEMPT,
    OPS_ENQ_LAST, SLICE_DEFAULT_NS, SLICE_INF, WAKE_FORK, WAKE_SYNC, WAKE_TTWU,
};
use crate::scx::{NewTask, Policy, Settings};
use crate::SimError;
use std::time::Instant;

/// Most calls of dispatch() in a row that move tasks of which none can run here (`SCX_DSP_MAX_LOOPS`).
const MOST_ROUNDS: usize = 32;
/// Interval of the watchdog's checks.
const WATCHDOG_EVERY_NS: Ns = 1_000_000_000;

/// Why a task is enqueued to its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// It woke up.
    Wakeup,
    /// Its slice is over.
    Again,
    /// Its slice is over, and no other task is queued for the CPU (`SCX_ENQ_LAST`).
    Last,
    /// It was taken back out of a local DSQ (`scx_bpf_reenqueue_local()`).
    Displaced,
}

/// Process of the VMM of a guest: beyond the numbers of tasks.
fn vmm_of(world: usize) -> i32 {
    1_000_000 + world as i32
}

impl Machine {
    /// Loads the scheduler of its side for a kernel. The kernel's groups must exist already; its tasks are added later.
    ///
    /// # Errors
    /// The policy cannot be loaded.
    pub fn attach(&mut self, world: usize, settings: &Settings) -> Result<(), SimError> {
        let fail = |what: String| SimError::Scenario(format!("{}: {what}", self.worlds[world].name));
        let policy = if settings.of_the_host { Policy::host } else { Policy::guest };
        let policy = policy(settings, self.now).map_err(fail)?;
        self.worlds[world].policy = Some(Box::new(policy));
        self.worlds[world].nohz_full = settings.nohz_full;
        self.after_policy(world, 0);
        for group in 0..self.worlds[world].fair.groups() {
            self.introduce_group(world, group);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Tells a kernel's policy of a new group.
    pub(crate) fn introduce_group(&mut self, world: usize, number: usize) {
        let group = self.worlds[world].fair.group(number);
        let weight = (group.shares * 100 / 1024).clamp(1, 10_000);
        let max_us = group.bandwidth.as_ref().map(|b| (b.quota_ns / 1000, b.period_ns / 1000));
        let (parent, idle) = (group.parent, group.idle);
        let added = self.policy(world, 0, |policy| policy.add_group(parent, weight, idle, max_us));
        if let Some(Err(error)) = added {
            self.fail(error);
        }
    }

    /// Tells a kernel's policy of a new task.
    pub(crate) fn introduce(&mut self, task: usize, group: usize, nice: i32) {
        const SCHED_OTHER: u32 = 0;
        const SCHED_BATCH: u32 = 3;
        const SCHED_IDLE: u32 = 5;
        let world = self.tasks[task].world;
        let Some(mut policy) = self.worlds[world].policy.take() else { return };
        let t = &self.tasks[task];
        let class = match (t.idle, t.batch) {
            (true, _) => SCHED_IDLE,
            (_, true) => SCHED_BATCH,
            _ => SCHED_OTHER,
        };
        let entity = self.worlds[world].fair.entity(t.entity);
        let slice_ns = if entity.custom_slice { entity.slice_ns } else { 0 };
        let (name, cpu, allowed) = (t.name.clone(), t.cpu, t.allowed.clone());
        let new = NewTask { name: &name, cpu, allowed: &allowed, policy: class, nice, slice_ns, group };
        match policy.add_task(&new) {
            Ok(number) => {
                self.tasks[task].scx = Some(number);
                self.worlds[world].policy_tasks.push(task);
                if let Kind::Vcpu { world, .. } = self.tasks[task].kind {
                    policy.joins_process(number, vmm_of(world));
                    if let Err(error) = policy.runs_vcpu(number, world as u32, task as u32) {
                        self.fail(error);
                    }
                } else if let Some(world) = self.tasks[task].vmm_of {
                    policy.joins_process(number, vmm_of(world));
                }
            }
            Err(error) => self.fail(error),
        }
        self.worlds[world].policy = Some(policy);
    }

    /// Number of a task in its policy; none: no policy schedules it.
    pub fn number(&self, task: usize) -> Option<usize> {
        self.tasks[task].scx.filter(|_| !self.tasks[task].real_time)
    }

    /// Number of a CPU's current task in its policy, if a policy schedules it.
    fn current_number(&self, world: usize, cpu: usize) -> Option<usize> {
        self.worlds[world].cpus[cpu].curr.and_then(|task| self.number(task))
    }

    pub(super) fn fail(&mut self, what: String) {
        let at_ns = self.now;
        self.failure.get_or_insert(SimError::Contradiction { at_ns, what });
    }

    /// Calls a policy. Its effects are carried out after it has returned. Its BPF time is added to the CPU's work.
    pub(super) fn policy<R>(
        &mut self,
        world: usize,
        cpu: usize,
        call: impl FnOnce(&mut Policy) -> R,
    ) -> Option<R> {
        let mut policy = self.worlds[world].policy.take()?;
        policy.kernel_mut().now = self.now;
        let began = self.watch.map(|_| Instant::now());
        let result = call(&mut policy);
        if let (Some(watch), Some(began)) = (&mut self.watch, began) {
            watch.returned(began, policy.take_refreshed());
        }
        self.worlds[world].policy = Some(policy);
        let ns = self.costs.bpf_ns;
        self.burden(world, cpu, Account::Policy, ns);
        self.after_policy(world, cpu);
        Some(result)
    }

    fn after_policy(&mut self, world: usize, here: usize) {
        let Some(policy) = self.worlds[world].policy.as_mut() else { return };
        let effects = policy.take_effects();
        if let Some(error) = policy.take_error() {
            let name = self.worlds[world].name.clone();
            self.fail(format!("{name}: the kernel throws the policy out: {error}"));
            return;
        }
        for effect in effects {
            self.effect(world, here, effect);
        }
    }

    fn effect(&mut self, world: usize, here: usize, effect: Effect) {
        match effect {
            Effect::Kick { cpu, flags } => {
                let curr = self.worlds[world].cpus[cpu].curr;
                if flags & KICK_IDLE != 0 {
                    if curr.is_none() {
                        self.resched_from(world, cpu, Some(here), true);
                    }
                    return;
                }
                if flags & KICK_PREEMPT != 0 {
                    self.end_slice(world, cpu);
                }
                self.resched_now(world, cpu, here);
            }
            Effect::Timer { timer, turn, at, cpu } => {
                self.at(at, Event::BpfTimer { world, cpu, timer, turn })
            }
            Effect::Local { cpu, preempt } => {
                if self.worlds[world].cpus[cpu].curr.is_none() {
                    self.resched_from(world, cpu, Some(here), true);
                } else if preempt {
                    self.end_slice(world, cpu);
                    self.resched_now(world, cpu, here);
                }
            }
            Effect::Again { task } => {
                let task = self.worlds[world].policy_tasks[task];
                let cpu = self.tasks[task].cpu;
                self.offer(task, cpu, Offer::Displaced, Some(here));
            }
        }
    }

    fn resched_now(&mut self, world: usize, cpu: usize, here: usize) {
        self.cpu(world, cpu).resched = Resched::Now;
        self.resched_from(world, cpu, Some(here), true);
    }

    /// Ends the slice of a CPU's current task.
    fn end_slice(&mut self, world: usize, cpu: usize) {
        let number = self.current_number(world, cpu);
        if let (Some(number), Some(policy)) = (number, self.worlds[world].policy.as_mut()) {
            policy.set_slice_ns(number, 0);
        }
    }

    /// CPU for a task that wakes up, as the policy chooses it.
    pub(super) fn ask_for_cpu(&mut self, task: usize, waker: Option<usize>, sync: bool) -> usize {
        let (world, prev) = (self.tasks[task].world, self.tasks[task].cpu);
        let mut usable =
            self.tasks[task].allowed.iter().enumerate().filter(|(_, ok)| **ok).map(|(cpu, _)| cpu);
        if let (Some(only), None) = (usable.next(), usable.next()) {
            return only;
        }
        let Some(number) = self.number(task) else { return prev };
        let fresh = self.tasks[task].switches == 0;
        let flags = (if fresh { WAKE_FORK } else { WAKE_TTWU }) | if sync { WAKE_SYNC } else { 0 };
        let here = waker.unwrap_or(prev);
        self.policy(world, here, |policy| policy.select_cpu(here, number, prev, flags)).unwrap_or(prev)
    }

    /// Enqueues a task to its policy. `from`: the CPU that does so.
    pub(super) fn offer(&mut self, task: usize, cpu: usize, how: Offer, from: Option<usize>) {
        let world = self.tasks[task].world;
        let Some(number) = self.number(task) else { return };
        let here = from.unwrap_or(cpu);
        let flags = match how {
            Offer::Wakeup => ENQ_WAKEUP,
            Offer::Last => ENQ_LAST,
            Offer::Again | Offer::Displaced => 0,
        };
        self.policy(world, here, |policy| {
            if how == Offer::Wakeup {
                policy.kernel_mut().tasks[number].cpu = cpu;
                policy.set_queued(number, true);
                policy.runnable(here, number, flags);
            }
            if !policy.insert_direct(number) {
                policy.enqueue(here, number, flags);
                policy.insert_direct(number);
            }
        });
        if how == Offer::Wakeup && self.worlds[world].cpus[cpu].curr.is_none() {
            self.resched_from(world, cpu, from, true);
        }
    }

    /// A task will not come back from its next sleep.
    pub(super) fn ends(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        if let Some(number) = self.number(task) {
            self.policy(world, cpu, |policy| policy.set_exiting(number));
        }
    }

    /// Dequeues a task of a policy that goes to sleep.
    pub(super) fn withdraw(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        let Some(number) = self.number(task) else { return };
        let runs = self.worlds[world].cpus[cpu].curr == Some(task);
        self.policy(world, cpu, |policy| {
            if runs {
                policy.stopping(cpu, number, false);
            }
            policy.quiescent(cpu, number, DEQ_SLEEP);
            policy.kernel_mut().withdraw(number);
            policy.set_queued(number, false);
        });
    }

    /// Takes run time of a CPU's current task off its slice. The tick sees that a slice is over.
    pub(super) fn charge_slice(&mut self, world: usize, cpu: usize, ns: Ns) {
        let number = self.current_number(world, cpu);
        if let (Some(number), Some(policy)) = (number, self.worlds[world].policy.as_mut()) {
            policy.add_run_time(number, ns);
            let slice_ns = policy.slice_ns(number);
            if slice_ns != SLICE_INF {
                policy.set_slice_ns(number, slice_ns.saturating_sub(ns));
            }
        }
    }

    /// A task has begun to run: can its CPU do without a tick? (`set_next_task_scx()`, which is not called for one that goes on.)
    fn refresh_tick(&mut self, world: usize, cpu: usize, number: usize) {
        let Some(policy) = self.worlds[world].policy.as_mut() else { return };
        let stops = policy.slice_ns(number) == SLICE_INF;
        if self.worlds[world].nohz_full && stops != self.worlds[world].cpus[cpu].tick_stopped {
            self.cpu(world, cpu).tick_stopped = stops;
            self.stop_tick(world, cpu);
            self.start_tick(world, cpu);
        }
    }

    /// The tick of a CPU of a kernel with a policy.
    pub(super) fn tick_policy(&mut self, world: usize, cpu: usize) {
        self.watchdog(world);
        let Some(number) = self.current_number(world, cpu) else {
            return;
        };
        // A CPU without a tick has one a second, which another CPU takes for it (`sched_tick_remote()`).
        let stopped = self.worlds[world].cpus[cpu].tick_stopped;
        let here = if stopped { usize::from(cpu == 0) % self.worlds[world].cpus.len() } else { cpu };
        if world == 0 && here == cpu {
            self.shows_inside(cpu);
        }
        let left = self.policy(world, here, |policy| {
            policy.tick(here, number);
            policy.slice_ns(number)
        });
        if left == Some(0) {
            self.cpu(world, cpu).resched = Resched::Now;
        }
    }

    /// A timer of a policy fires.
    pub(super) fn fire(&mut self, world: usize, cpu: usize, timer: usize, turn: u32) {
        self.policy(world, cpu, |policy| policy.fire(cpu, timer, turn));
    }

    /// The task on a CPU yields.
    pub(super) fn yield_to_policy(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        if let Some(number) = self.number(task) {
            self.policy(world, cpu, |policy| policy.yields(cpu, number));
        }
    }

    /// A vCPU yields to another one: does the policy promise to run that one next?
    pub(super) fn ask_to_yield(&mut self, cpu: usize, from: usize, to: usize) -> bool {
        self.policy(0, cpu, |policy| policy.yields_to(cpu, from, to)).unwrap_or(false)
    }

    /// The watchdog: a task that a policy leaves runnable for longer than the kernel tolerates ends the run.
    fn watchdog(&mut self, world: usize) {
        let now = self.now;
        if now < self.worlds[world].watchdog_at {
            return;
        }
        self.worlds[world].watchdog_at = now + WATCHDOG_EVERY_NS;
        let Some(limit) = self.worlds[world].policy.as_ref().map(|policy| policy.timeout_ns()) else {
            return;
        };
        let waits = |task: &usize| {
            let t = &self.tasks[*task];
            t.state == State::Runnable && now - t.runnable_since > limit
        };
        if let Some(&task) = self.worlds[world].policy_tasks.iter().find(|task| waits(task)) {
            let (name, since) = (self.tasks[task].name.clone(), self.tasks[task].runnable_since);
            self.fail(format!("the policy lets {name} wait since {since} ns"));
        }
    }

    /// Has a CPU a task to run, or a reason to look for one?
    pub(super) fn has_work(&self, world: usize, cpu: usize) -> bool {
        let w = &self.worlds[world];
        if !w.cpus[cpu].real_time.is_empty() {
            return true;
        }
        match &w.policy {
            Some(policy) => w.cpus[cpu].resched != Resched::No || !policy.kernel().cpus[cpu].local.is_empty(),
            None => w.fair.running(cpu) > 0,
        }
    }

    /// Number of tasks that run or wait on a CPU (`nr_running`): wherever the scheduler has queued them, they are on its run queue.
    pub(super) fn runnable_on(&self, world: usize, cpu: usize) -> usize {
        let w = &self.worlds[world];
        match &w.policy {
            Some(_) => {
                let runnable =
                    |task: &&usize| matches!(self.tasks[**task].state, State::Running | State::Runnable);
                w.policy_tasks.iter().filter(|&&task| self.tasks[task].cpu == cpu).filter(runnable).count()
            }
            None => w.fair.running(cpu),
        }
    }

    /// Picks the next task of a CPU of a kernel with a policy (`pick_task_scx()`), if no higher class has one.
    /// None: idle.
    fn pick_for_policy(&mut self, world: usize, cpu: usize, prev: Option<usize>) -> Option<usize> {
        let numbers = prev.and_then(|task| self.number(task));
        let goes_on = numbers.filter(|_| prev.is_some_and(|task| self.tasks[task].state == State::Running));
        let mut kept = None;
        if world == 0 {
            self.shows_inside(cpu);
        }
        let next = self.policy(world, cpu, |policy| {
            let has_slice = |policy: &mut Policy| goes_on.is_some_and(|number| policy.slice_ns(number) > 0);
            if has_slice(policy) {
                kept = goes_on;
                return None;
            }
            for _ in 0..MOST_ROUNDS {
                if !policy.kernel().cpus[cpu].local.is_empty() {
                    break;
                }
                policy.kernel_mut().moved = 0;
                policy.dispatch(cpu, numbers);
                if has_slice(policy) {
                    kept = goes_on;
                    return None;
                }
                if policy.kernel().moved == 0 {
                    break;
                }
            }
            let first = policy.kernel().cpus[cpu].local.first();
            match first {
                Some(number) => {
                    policy.kernel_mut().withdraw(number);
                    policy.kernel_mut().tasks[number].cpu = cpu;
                }
                None if policy.flags() & OPS_ENQ_LAST == 0 => kept = goes_on,
                None => {}
            }
            for number in first.into_iter().chain(kept) {
                if policy.slice_ns(number) == 0 {
                    policy.set_slice_ns(number, SLICE_DEFAULT_NS);
                }
            }
            first
        });
        if kept.is_some() {
            return prev;
        }
        next.flatten().map(|number| self.worlds[world].policy_tasks[number])
    }

    /// Picks the next task of a CPU of a kernel with a policy, and switches to it.
    pub(super) fn schedule_by_policy(&mut self, world: usize, cpu: usize) {
        self.charge(world, cpu);
        let prev = self.worlds[world].cpus[cpu].curr;
        self.cpu(world, cpu).resched = Resched::No;
        self.cpu(world, cpu).entered_kernel = false;
        if let Some(prev) = prev.filter(|prev| self.tasks[*prev].state == State::Running) {
            self.pin_if_disabled(prev);
        }
        let urgent = self.worlds[world].cpus[cpu].real_time.front().copied();
        let next = urgent.or_else(|| self.pick_for_policy(world, cpu, prev));
        if next == prev {
            if next.is_none() {
                // Still idle, and available again to idle selection (`pick_task_idle()`).
                self.policy(world, cpu, |policy| policy.kernel_mut().idle.set(cpu, true));
            }
            return;
        }
        if let Some(prev) = prev {
            self.put_back(world, cpu, prev, next.is_none());
        }
        if urgent.is_some() {
            self.policy(world, cpu, |policy| policy.cpu_release(cpu));
        }
        if let Some(next) = next {
            self.migrate(next, cpu);
        }
        self.switch(world, cpu, prev, next);
        let number = next.and_then(|task| self.number(task));
        self.policy(world, cpu, |policy| {
            policy.kernel_mut().cpus[cpu].curr = number;
            if prev.is_none() || next.is_none() {
                policy.update_idle(cpu, next.is_none());
            }
            if let Some(number) = number {
                policy.kernel_mut().tasks[number].running = true;
                policy.running(cpu, number);
            }
        });
        if let Some(number) = number {
            self.refresh_tick(world, cpu, number);
        }
        if let Some(watch) = self.watch.as_mut().filter(|_| number.is_some()) {
            watch.decisions += 1;
        }
        self.wake_if_woken(prev, cpu);
    }

    /// `put_prev_task_scx()`.
    fn put_back(&mut self, world: usize, cpu: usize, prev: usize, to_idle: bool) {
        let goes_on = self.tasks[prev].state == State::Running;
        let Some(number) = self.number(prev) else {
            self.leaves(prev);
            return;
        };
        let left = self.policy(world, cpu, |policy| {
            if goes_on {
                policy.stopping(cpu, number, true);
            }
            policy.kernel_mut().tasks[number].running = false;
            policy.slice_ns(number)
        });
        self.leaves(prev);
        if !goes_on {
            return;
        }
        if left.unwrap_or(0) > 0 {
            // A higher class preempted it.
            let again = Insertion { dsq: DSQ_LOCAL, slice_ns: 0, key: None, flags: ENQ_HEAD };
            self.policy(world, cpu, |policy| policy.kernel_mut().insert(number, &again));
        } else if !self.queued_past_policy(prev) {
            self.offer(prev, cpu, if to_idle { Offer::Last } else { Offer::Again }, Some(cpu));
        }
    }
}
