//! Interleaves the callbacks of several CPUs in one policy. One CPU executes at a time. A course says at which
//! switch points another CPU goes on: atomic operations of the policy and its calls into the kernel
//! (`native/explore.h`).
//!
//! Each CPU's part is a thread of this process, and a baton lets only one of them go on. The locking that a
//! callback may rely on is kept: a CPU's run queue is locked where the kernel would lock it, and another actor that
//! needs the lock waits.

use super::accounts::{PolicyTimer, QUOTA_TIMER, REFRESH_TIMER};
use super::{Policy, CURRENT};
use crate::queue::Ns;
use crate::scx::kernel::{Effect, Insertion, Place, ENQ_LAST, ENQ_WAKEUP, OPS_ENQ_LAST, WAKE_TTWU};
use crate::scx::Settings;
use std::cell::Cell;
use std::ffi::{c_char, CStr};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tandem_bpf::native::{GUEST, HOST};

/// An interleaving: which actor begins, and at which points another one goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Course {
    /// The actor that begins; without switches the others follow by their numbers.
    pub first: usize,
    /// Switches, in ascending order of their points.
    pub switches: Vec<Switch>,
}

/// At the n-th switch point of a run another actor goes on in place of the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Number of the switch point, counted from 1 over the whole run.
    pub point: u64,
    /// The actor that goes on, if it can run.
    pub to: usize,
}

/// Rounds after the actors are done, within which every task has to have run.
const SETTLING_ROUNDS: usize = 1200;
/// Simulated time of a round, ns.
const SETTLING_STEP_NS: Ns = 500_000;
/// A task that has run for so long counts as CPU-bound, ns.
const CPU_BOUND_NS: Ns = 12_000_000;
/// Most calls of dispatch() in a row, and most picks in a row. The kernel limits the former to 32
/// (`SCX_DSP_MAX_LOOPS`).
const MOST_ROUNDS: usize = 8;

/// What an actor does.
pub type Part<'a> = Box<dyn FnOnce(&Actor<'_>) + Send + 'a>;

struct Turn {
    now: usize,
    alive: Vec<bool>,
    waits_for: Vec<Option<usize>>,
    /// Of each CPU's run queue, and then of each CPU.
    owner: Vec<Option<usize>>,
    points: u64,
    switches: Vec<Switch>,
    next: usize,
    /// Where the switches took place.
    places: Vec<String>,
    failure: Option<String>,
}

impl Turn {
    fn can_run(&self, actor: usize) -> bool {
        self.alive.get(actor).copied().unwrap_or(false)
            && self.waits_for[actor].is_none_or(|cpu| self.owner[cpu].is_none())
    }

    fn other(&self, than: usize) -> Option<usize> {
        (0..self.alive.len()).find(|actor| *actor != than && self.can_run(*actor))
    }
}

/// The part of the simulated kernel's state that belongs to the current actor. It is saved across a switch.
#[derive(Default)]
struct Context {
    here: usize,
    dispatching: Option<usize>,
    buffer: Vec<(usize, Insertion)>,
    moved: usize,
    in_kvm: Option<usize>,
}

struct Due {
    timer: usize,
    turn: u32,
    at: Ns,
    cpu: usize,
}

/// A policy, its CPUs, and the actors.
pub struct Stage {
    policy: *mut Policy,
    turn: Mutex<Turn>,
    changed: Condvar,
    /// CPUs that have a pending reschedule request.
    asked: Mutex<Vec<bool>>,
    timers: Mutex<Vec<Due>>,
    offline: Mutex<Vec<usize>>,
    /// Simulated time that the actors have let pass, ns.
    passed: Mutex<Ns>,
}

// SAFETY: the policy is used by one thread at a time: the one that has the baton.
unsafe impl Sync for Stage {}

thread_local! {
    /// The actor of this thread.
    static ACTOR: Cell<Option<(*const Stage, usize)>> = const { Cell::new(None) };
}

/// A switch point. The policy calls it.
pub(super) extern "C" fn sim_switch_point(at: *const c_char, what: *const c_char) {
    let Some((stage, me)) = ACTOR.get() else { return };
    // SAFETY: the stage outlives its actors' threads, which set this.
    unsafe { &*stage }.point(me, at, what);
}

/// The kernel moves a task of another CPU's run queue in dispatch(): it unlocks that of this CPU for as long, and others may queue tasks there.
/// It is `op` that is called meanwhile.
pub(super) fn with_other_queue<R>(cpu: usize, other: usize, op: impl FnOnce() -> R) -> R {
    let Some((stage, me)) = ACTOR.get() else { return op() };
    // SAFETY: as above.
    let stage = unsafe { &*stage };
    let change = |from, to| {
        stage.unlock_queue(from);
        stage.point(me, c"scx_bpf_dsq_move_vtime".as_ptr(), c"no run queue".as_ptr());
        stage.lock_queue(me, to);
    };
    change(cpu, other);
    let result = op();
    change(other, cpu);
    result
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    fn context(&self) -> Context {
        let state = CURRENT.get();
        if state.is_null() {
            return Context::default();
        }
        // SAFETY: the state of the policy whose callback runs; no other thread goes on meanwhile.
        let (kernel, vms) = unsafe { (&mut (*state).kernel, &mut (*state).vms) };
        Context {
            in_kvm: vms.in_kvm.take(),
            here: kernel.here,
            dispatching: kernel.dispatching.take(),
            buffer: std::mem::take(&mut kernel.buffer),
            moved: kernel.moved,
        }
    }

    fn resume(&self, context: Context) {
        let state = CURRENT.get();
        if state.is_null() {
            return;
        }
        // SAFETY: as above.
        let (kernel, vms) = unsafe { (&mut (*state).kernel, &mut (*state).vms) };
        vms.in_kvm = context.in_kvm;
        kernel.here = context.here;
        kernel.dispatching = context.dispatching;
        kernel.buffer = context.buffer;
        kernel.moved = context.moved;
    }

    /// Lets actor `to` go on; returns when `me` has the baton again.
    fn hand_over(&self, mut turn: MutexGuard<'_, Turn>, me: usize, to: usize) {
        let context = self.context();
        turn.now = to;
        self.changed.notify_all();
        while turn.now != me {
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        drop(turn);
        self.resume(context);
    }

    fn point(&self, me: usize, at: *const c_char, what: *const c_char) {
        let mut turn = lock(&self.turn);
        turn.points += 1;
        let Some(switch) = turn.switches.get(turn.next).copied() else { return };
        if turn.points < switch.point {
            return;
        }
        turn.next += 1;
        // SAFETY: both are names in the image of the policy, which outlives its runs.
        let name = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy();
        turn.places.push(format!("{} in {}", name(what), name(at)));
        if switch.to != me && turn.can_run(switch.to) {
            self.hand_over(turn, me, switch.to);
        }
    }

    fn lock_queue(&self, me: usize, cpu: usize) {
        loop {
            let mut turn = lock(&self.turn);
            if turn.owner[cpu].is_none() {
                turn.owner[cpu] = Some(me);
                turn.waits_for[me] = None;
                return;
            }
            turn.waits_for[me] = Some(cpu);
            match turn.other(me) {
                Some(other) => self.hand_over(turn, me, other),
                None => {
                    turn.failure.get_or_insert(format!("actor {me} waits for CPU {cpu} for ever"));
                    turn.owner[cpu] = None;
                }
            }
        }
    }

    fn fail(&self, what: String) {
        lock(&self.turn).failure.get_or_insert(what);
    }

    fn unlock_queue(&self, cpu: usize) {
        lock(&self.turn).owner[cpu] = None;
    }

    fn end(&self, me: usize) {
        let mut turn = lock(&self.turn);
        turn.alive[me] = false;
        if let Some(other) = turn.other(me) {
            turn.now = other;
        }
        drop(turn);
        self.changed.notify_all();
    }

    fn ask(&self, cpu: usize) {
        if let Some(asked) = lock(&self.asked).get_mut(cpu) {
            *asked = true;
        }
    }
}

/// Tells the others when an actor is done, however it ends.
struct Done<'a>(&'a Stage, usize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        ACTOR.set(None);
        self.0.end(self.1);
    }
}

/// An actor. It executes on CPUs while other actors do.
pub struct Actor<'a> {
    stage: &'a Stage,
    number: usize,
}

impl Actor<'_> {
    /// Calls the policy.
    pub fn with<R>(&self, call: impl FnOnce(&mut Policy) -> R) -> R {
        // SAFETY: only the holder of the baton uses the policy. An actor in the middle of a callback has nothing
        // borrowed but what the policy's own code holds, as on real CPUs.
        let policy = unsafe { &mut *self.stage.policy };
        let result = call(policy);
        for effect in policy.take_effects() {
            match effect {
                Effect::Kick { cpu, .. } | Effect::Local { cpu, .. } => self.stage.ask(cpu),
                Effect::Timer { timer, turn, at, cpu } => {
                    lock(&self.stage.timers).push(Due { timer, turn, at, cpu });
                }
                Effect::Again { task } => {
                    let cpu = policy.kernel().tasks[task].cpu;
                    policy.enqueue(cpu, task, 0);
                    policy.insert_direct(task);
                    self.stage.ask(cpu);
                }
            }
        }
        result
    }

    /// What has to hold here; otherwise the run has failed.
    pub fn require(&self, holds: bool, what: &str) {
        if !holds {
            self.stage.fail(what.into());
        }
    }

    /// With the lock of a CPU's run queue held.
    fn locked<R>(&self, cpu: usize, call: impl FnOnce() -> R) -> R {
        self.stage.lock_queue(self.number, cpu);
        let result = call();
        self.stage.unlock_queue(cpu);
        result
    }

    /// On a CPU itself, with the lock of its run queue held. While that is unlocked in dispatch(), the CPU is still there.
    fn executes<R>(&self, cpu: usize, call: impl FnOnce() -> R) -> R {
        let cpus = self.with(|policy| policy.kernel().cpus.len());
        self.locked(cpus + cpu, || self.locked(cpu, call))
    }

    /// With the lock of a task's run queue held (`task_rq_lock()`). The task may change run queues until the lock
    /// is held.
    fn with_queue_of<R>(&self, task: usize, call: impl FnOnce() -> R) -> R {
        loop {
            let cpu = self.with(|policy| policy.kernel().tasks[task].cpu);
            self.stage.lock_queue(self.number, cpu);
            if self.with(|policy| policy.kernel().tasks[task].cpu) == cpu {
                let result = call();
                self.stage.unlock_queue(cpu);
                return result;
            }
            self.stage.unlock_queue(cpu);
        }
    }

    /// Does a task wait in a DSQ?
    fn waits(&self, task: usize) -> bool {
        self.with(|policy| policy.kernel().tasks[task].place != Place::Nowhere)
    }

    /// Lets simulated time pass, for all CPUs.
    pub fn pass(&self, ns: Ns) {
        *lock(&self.stage.passed) += ns;
        self.with(|policy| {
            policy.kernel_mut().now += ns;
            for cpu in 0..policy.kernel().cpus.len() {
                if let Some(task) = policy.kernel().cpus[cpu].curr {
                    policy.add_run_time(task, ns);
                    let left = policy.slice_ns(task).saturating_sub(ns);
                    policy.set_slice_ns(task, left);
                }
            }
        });
    }

    /// Wakes a sleeping task, from CPU `here`.
    pub fn wake(&self, here: usize, task: usize) {
        let prev = self.with(|policy| policy.kernel().tasks[task].cpu);
        let cpu = self.with(|policy| policy.select_cpu(here, task, prev, WAKE_TTWU));
        self.locked(cpu, || {
            self.with(|policy| {
                policy.kernel_mut().tasks[task].cpu = cpu;
                policy.set_queued(task, true);
                policy.runnable(here, task, ENQ_WAKEUP);
            });
            self.enqueue(here, task, ENQ_WAKEUP);
        });
        self.stage.ask(cpu);
    }

    fn enqueue(&self, here: usize, task: usize, flags: u64) {
        if !self.with(|policy| policy.insert_direct(task)) {
            self.with(|policy| policy.enqueue(here, task, flags));
            self.with(|policy| policy.insert_direct(task));
        }
    }

    /// The tick of a CPU.
    pub fn tick(&self, cpu: usize) {
        self.executes(cpu, || {
            let curr = self.with(|policy| policy.kernel().cpus[cpu].curr);
            if let Some(task) = curr {
                self.with(|policy| policy.tick(cpu, task));
                if self.with(|policy| policy.slice_ns(task)) == 0 {
                    self.stage.ask(cpu);
                }
            }
        });
    }

    /// A CPU picks its next task; the slice of its current task is over.
    pub fn schedule(&self, cpu: usize) {
        self.executes(cpu, || self.choose(cpu, true));
    }

    /// The current task of a CPU goes to sleep.
    pub fn sleep(&self, cpu: usize) {
        self.executes(cpu, || {
            let Some(task) = self.with(|policy| policy.kernel().cpus[cpu].curr) else { return };
            self.with(|policy| policy.stopping(cpu, task, false));
            self.with(|policy| {
                policy.kernel_mut().tasks[task].running = false;
                policy.quiescent(cpu, task, 1);
                policy.set_queued(task, false);
                policy.kernel_mut().cpus[cpu].curr = None;
            });
            self.choose(cpu, false);
        });
    }

    /// The current task of a CPU yields to a waiting one (`yield_to()`), with both run queues locked, and gives way if that is promised to be next.
    pub fn yield_to(&self, cpu: usize, task: usize) {
        let promised = loop {
            let there = self.with(|policy| policy.kernel().tasks[task].cpu);
            let (first, second) = (cpu.min(there), cpu.max(there));
            self.stage.lock_queue(self.number, first);
            if second != first {
                self.stage.lock_queue(self.number, second);
            }
            let answer = self.with(|policy| {
                let kernel = policy.kernel();
                if kernel.tasks[task].cpu != there {
                    return None;
                }
                let waits = kernel.tasks[task].place != Place::Nowhere && !kernel.tasks[task].running;
                match kernel.cpus[cpu].curr.filter(|curr| waits && *curr != task) {
                    Some(curr) => Some(policy.yields_to(cpu, curr, task)),
                    None => Some(false),
                }
            });
            self.stage.unlock_queue(first);
            self.stage.unlock_queue(second);
            if let Some(promised) = answer {
                break promised;
            }
        };
        if promised {
            self.schedule(cpu);
        }
    }

    /// Dequeues a waiting task, changes its affinity, and enqueues it again (`sched_setaffinity()`).
    pub fn set_allowed(&self, here: usize, task: usize, allowed: &[bool]) {
        self.with_queue_of(task, || {
            if !self.waits(task) {
                return;
            }
            self.with(|policy| {
                policy.kernel_mut().withdraw(task);
                policy.quiescent(here, task, 0);
            });
            self.with(|policy| {
                policy.set_allowed(task, allowed);
                if !allowed[policy.kernel().tasks[task].cpu] {
                    let to = allowed.iter().position(|ok| *ok).unwrap_or(0);
                    policy.kernel_mut().tasks[task].cpu = to;
                }
                policy.runnable(here, task, 0);
            });
            self.enqueue(here, task, 0);
            let cpu = self.with(|policy| policy.kernel().tasks[task].cpu);
            self.stage.ask(cpu);
        });
    }

    /// Moves a sleeping or waiting task to another group (`sched_move_task()`); a running task is left alone.
    pub fn move_to_group(&self, here: usize, task: usize, from: usize, to: usize) {
        self.with_queue_of(task, || {
            if self.with(|policy| policy.kernel().tasks[task].running) {
                return;
            }
            let waited = self.waits(task);
            if waited {
                self.with(|policy| {
                    policy.kernel_mut().withdraw(task);
                    policy.quiescent(here, task, 0);
                });
            }
            self.with(|policy| policy.move_to_group(here, task, from, to));
            if waited {
                self.with(|policy| policy.runnable(here, task, 0));
                self.enqueue(here, task, 0);
                let cpu = self.with(|policy| policy.kernel().tasks[task].cpu);
                self.stage.ask(cpu);
            }
        });
    }

    /// Ends a sleeping or waiting task; a running task is left alone.
    pub fn end(&self, here: usize, task: usize) {
        self.with_queue_of(task, || {
            if self.with(|policy| policy.kernel().tasks[task].running) {
                return;
            }
            if self.waits(task) {
                self.with(|policy| {
                    policy.kernel_mut().withdraw(task);
                    policy.quiescent(here, task, 1);
                });
            }
            self.with(|policy| policy.disable(here, task));
        });
    }

    /// A CPU goes offline (`sched_cpu_deactivate()` and on): it schedules no more, and its task is migrated. The stopper
    /// threads of all other CPUs make these dispatch.
    pub fn offline(&self, here: usize, cpu: usize) {
        self.with(|policy| policy.set_online(here, cpu, false));
        self.executes(cpu, || {
            lock(&self.stage.offline).push(cpu);
            let Some(task) = self.with(|policy| policy.kernel().cpus[cpu].curr) else { return };
            self.with(|policy| {
                policy.stopping(cpu, task, true);
                policy.kernel_mut().tasks[task].running = false;
                policy.kernel_mut().cpus[cpu].curr = None;
                policy.kernel_mut().tasks[task].cpu = here;
            });
            self.enqueue(here, task, 0);
        });
        let cpus = self.with(|policy| policy.kernel().cpus.len());
        for other in (0..cpus).filter(|other| *other != cpu) {
            self.stage.ask(other);
        }
    }

    /// Fires all timers that are due. Returns whether there were any.
    pub fn fire_due(&self) -> bool {
        let now = self.with(|policy| policy.kernel().now);
        let due: Vec<Due> = {
            let mut timers = lock(&self.stage.timers);
            let all = std::mem::take(&mut *timers);
            let (due, later) = all.into_iter().partition(|timer| timer.at <= now);
            *timers = later;
            due
        };
        for timer in &due {
            self.with(|policy| policy.fire(timer.cpu, timer.timer, timer.turn));
        }
        !due.is_empty()
    }

    /// Checks that a timer is armed for the time that the policy expects. It may be later by the time that
    /// passed while a CPU that was about to start it stood still, because it is started with a relative time.
    fn timer_is_armed(&self, of: &PolicyTimer) -> Result<(), String> {
        let (believed, timer) = self.with(|policy| policy.timer(of));
        let armed = lock(&self.stage.timers)
            .iter()
            .filter(|due| due.timer == timer)
            .max_by_key(|due| due.turn)
            .map(|due| due.at);
        match armed {
            _ if believed == 0 => Ok(()),
            Some(armed) if armed <= believed + *lock(&self.stage.passed) + 50_000 => Ok(()),
            armed => {
                Err(format!("{} is armed for {armed:?} ns, and is believed to be for {believed}", of.map))
            }
        }
    }

    /// Checks that the scales of groups that are active are refreshed at some time, whoever asks.
    fn refresh_comes(&self) -> Result<(), String> {
        if self.with(|policy| policy.refresh_must_come() && policy.timer(&REFRESH_TIMER).0 == 0) {
            return Err("groups are active, and their scales are not refreshed any more".into());
        }
        Ok(())
    }

    /// Ticks on all CPUs once their tasks have run for as long as makes a task CPU-bound. Whatever counts as CPU-bound
    /// then must do so both on a CPU and in its group.
    fn counts_agree(&self) -> Result<(), String> {
        self.pass(CPU_BOUND_NS);
        let (cpus, tasks) = self.with(|policy| (policy.kernel().cpus.len(), policy.kernel().tasks.len()));
        for cpu in (0..cpus).filter(|cpu| !lock(&self.stage.offline).contains(cpu)) {
            self.tick(cpu);
        }
        match (0..tasks).find(|task| self.with(|policy| policy.half_counted(*task))) {
            Some(task) => Err(format!("task {task} counts as CPU-bound on a CPU, and not in its group")),
            None => Ok(()),
        }
    }

    fn choose(&self, cpu: usize, over: bool) {
        for _ in 0..MOST_ROUNDS {
            if let Some(asked) = lock(&self.stage.asked).get_mut(cpu) {
                *asked = false;
            }
            if !self.choose_once(cpu, over) {
                return;
            }
        }
    }

    /// Picks once. Returns whether the CPU has to pick again: the previous task was enqueued and none was found.
    fn choose_once(&self, cpu: usize, over: bool) -> bool {
        let prev = self.with(|policy| policy.kernel().cpus[cpu].curr);
        if let Some(prev) = prev.filter(|_| over) {
            self.with(|policy| policy.set_slice_ns(prev, 0));
        }
        let goes_on = || prev.is_some_and(|prev| self.with(|policy| policy.slice_ns(prev)) > 0);
        for _ in 0..MOST_ROUNDS {
            if self.with(|policy| !policy.kernel().cpus[cpu].local.is_empty()) {
                break;
            }
            self.with(|policy| policy.kernel_mut().moved = 0);
            self.with(|policy| policy.dispatch(cpu, prev));
            if goes_on() {
                return false;
            }
            if self.with(|policy| policy.kernel().moved) == 0 {
                break;
            }
        }
        let next = self.with(|policy| {
            let next = policy.kernel().cpus[cpu].local.first();
            if let Some(next) = next {
                policy.kernel_mut().withdraw(next);
                policy.kernel_mut().tasks[next].cpu = cpu;
                if policy.slice_ns(next) == 0 {
                    policy.set_slice_ns(next, 20_000_000);
                }
            }
            next
        });
        if let Some(prev) = prev {
            self.with(|policy| policy.stopping(cpu, prev, true));
            self.with(|policy| {
                policy.kernel_mut().tasks[prev].running = false;
                policy.kernel_mut().cpus[cpu].curr = None;
            });
            let last = next.is_none() && self.with(|policy| policy.flags()) & OPS_ENQ_LAST != 0;
            self.enqueue(cpu, prev, if last { ENQ_LAST } else { 0 });
        }
        self.with(|policy| policy.kernel_mut().cpus[cpu].curr = next);
        if prev.is_none() || next.is_none() {
            self.with(|policy| policy.update_idle(cpu, next.is_none()));
        }
        if let Some(next) = next {
            self.with(|policy| {
                policy.kernel_mut().tasks[next].running = true;
                policy.running(cpu, next);
            });
        }
        prev.is_some() && next.is_none()
    }

    /// Every task that can run runs, and goes to sleep then. A CPU reschedules only if it has a task or a pending
    /// reschedule request.
    fn settle(&self) -> Result<(), String> {
        let cpus = self.with(|policy| policy.kernel().cpus.len());
        for _ in 0..SETTLING_ROUNDS {
            self.fire_due();
            let nobody = self.with(|policy| {
                let kernel = policy.kernel();
                kernel.tasks.iter().all(|task| task.place == Place::Nowhere && !task.running)
            });
            if nobody {
                break;
            }
            let online = |cpu: &usize| !lock(&self.stage.offline).contains(cpu);
            for cpu in (0..cpus).filter(online) {
                let (busy, has) = self.with(|policy| {
                    let c = &policy.kernel().cpus[cpu];
                    (c.curr.is_some(), !c.local.is_empty())
                });
                if busy {
                    self.sleep(cpu);
                } else if has || lock(&self.stage.asked)[cpu] {
                    self.schedule(cpu);
                }
            }
            self.pass(SETTLING_STEP_NS);
        }
        self.with(|policy| {
            let waits = |task: &usize| policy.kernel().tasks[*task].place != Place::Nowhere;
            let lost: Vec<usize> = (0..policy.kernel().tasks.len()).filter(waits).collect();
            match (lost.as_slice(), policy.kernel().error.clone()) {
                (_, Some(error)) => Err(format!("the kernel would throw the policy out: {error}")),
                ([], None) => Ok(()),
                (lost, None) => Err(format!("tasks {lost:?} wait for ever")),
            }
        })
    }
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Number of switch points that it passed.
    pub points: u64,
    /// Before which operation each switch took place.
    pub places: Vec<String>,
    /// For each counter that was asked for: did it move while the actors were at it?
    pub moved: Vec<bool>,
    /// What failed; none: nothing.
    pub failure: Option<String>,
}

/// Whose scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `bpf/guest`.
    Guest,
    /// `bpf/host`.
    Host,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Guest, Self::Host];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Host => "host",
        }
    }
}

/// Loads a policy that is compiled with switch points.
///
/// # Errors
/// As [`Policy::guest`].
pub fn policy(side: Side, settings: &Settings) -> Result<Policy, String> {
    let side = match side {
        Side::Guest => &GUEST,
        Side::Host => &HOST,
    };
    Policy::load(side, side.explored, settings, 1_000_000_000)
}

/// Runs the parts of all actors with a course. Then both timers must be armed, each CPU-bound task must count in
/// its group, every task must have run and gone to sleep, and `check` must find nothing wrong.
pub fn run(
    policy: &mut Policy,
    prepare: impl FnOnce(&Actor<'_>),
    parts: Vec<Part<'_>>,
    course: &Course,
    counters: &[&CStr],
    check: impl FnOnce(&Actor<'_>) -> Result<(), String>,
) -> Ran {
    let cpus = policy.kernel().cpus.len();
    let stage = Stage {
        policy: std::ptr::from_mut(policy),
        turn: Mutex::new(Turn {
            now: course.first,
            alive: vec![true; parts.len()],
            waits_for: vec![None; parts.len()],
            owner: vec![None; 2 * cpus],
            points: 0,
            switches: course.switches.clone(),
            next: 0,
            places: Vec::new(),
            failure: None,
        }),
        changed: Condvar::new(),
        asked: Mutex::new(vec![false; cpus]),
        timers: Mutex::new(Vec::new()),
        offline: Mutex::new(Vec::new()),
        passed: Mutex::new(0),
    };
    let alone = Actor { stage: &stage, number: 0 };
    prepare(&alone);
    *lock(&stage.passed) = 0;
    let read =
        || -> Vec<_> { alone.with(|policy| counters.iter().map(|name| policy.counter(name)).collect()) };
    let before = read();
    let panicked = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .into_iter()
            .enumerate()
            .map(|(number, part)| {
                let stage = &stage;
                scope.spawn(move || {
                    let _done = Done(stage, number);
                    let mut turn = lock(&stage.turn);
                    while turn.now != number {
                        turn = stage.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
                    }
                    drop(turn);
                    ACTOR.set(Some((std::ptr::from_ref(stage), number)));
                    part(&Actor { stage, number });
                })
            })
            .collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).filter(Result::is_err).count()
    });
    let moved = before.iter().zip(read()).map(|(before, after)| *before != after).collect();
    let failure = lock(&stage.turn).failure.clone();
    let settled = || {
        alone.timer_is_armed(&QUOTA_TIMER)?;
        alone.timer_is_armed(&REFRESH_TIMER)?;
        alone.refresh_comes()?;
        alone.counts_agree()?;
        alone.settle()?;
        check(&alone)
    };
    let failure = match (panicked, failure) {
        (0, None) => settled().err(),
        (0, failure) => failure,
        (n, _) => Some(format!("{n} actors panicked")),
    };
    let turn = lock(&stage.turn);
    Ran { points: turn.points, places: turn.places.clone(), moved, failure }
}
