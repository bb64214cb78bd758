//! Several CPUs run callbacks of one policy, one at a time, and change places where a course says so: at any atomic operation
//! of the policy and at any of its calls of the kernel (`native/explore.h`).
//!
//! Each CPU's part is a thread of this process; a baton sees to it that only one of them goes on. What a callback may
//! rely on is kept: a CPU's run queue is locked while the kernel would hold it, and whoever wants it waits.

use super::{Policy, CURRENT};
use crate::queue::Ns;
use crate::scx::kernel::{Effect, Insertion, Place, ENQ_LAST, ENQ_WAKEUP, OPS_ENQ_LAST, WAKE_TTWU};
use crate::scx::Settings;
use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tandem_bpf::native::GUEST;

/// Who begins, and where another one goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Course {
    /// The actor that goes first; without switches the others follow by their numbers.
    pub first: usize,
    /// In rising order of their points.
    pub switches: Vec<Switch>,
}

/// At the n-th point of a run the actor of this number goes on instead of the one that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Which point, counted from 1 on over the whole run.
    pub point: u64,
    /// Who goes on, if that one can.
    pub to: usize,
}

/// Rounds in which everybody has to have had its turn when the actors are done.
const SETTLING_ROUNDS: usize = 400;
/// What passes in each of them, ns.
const SETTLING_STEP_NS: Ns = 500_000;
/// Map of the timer of quotas.
const QUOTA_TIMER: &str = "quota_timer";
/// Most dispatches in a row, as in the kernel.
const MOST_ROUNDS: usize = 8;

/// What an actor does.
pub type Part<'a> = Box<dyn FnOnce(&Actor<'_>) + Send + 'a>;

struct Turn {
    now: usize,
    alive: Vec<bool>,
    waits_for: Vec<Option<usize>>,
    owner: Vec<Option<usize>>,
    points: u64,
    switches: Vec<Switch>,
    next: usize,
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

/// What belongs to whoever runs, in the simulated kernel.
#[derive(Default)]
struct Context {
    here: usize,
    dispatching: Option<usize>,
    buffer: Vec<(usize, Insertion)>,
    moved: usize,
}

struct Due {
    timer: usize,
    turn: u32,
    at: Ns,
    cpu: usize,
}

/// A policy, its CPUs, and who is at it.
pub struct Stage {
    policy: *mut Policy,
    turn: Mutex<Turn>,
    changed: Condvar,
    /// CPUs that have been asked to look for work.
    asked: Mutex<Vec<bool>>,
    timers: Mutex<Vec<Due>>,
    /// What time has passed by the actors' doing, ns.
    passed: Mutex<Ns>,
}

// SAFETY: the policy is used by one thread at a time: the one that has the baton.
unsafe impl Sync for Stage {}

thread_local! {
    /// Who runs on this thread.
    static ACTOR: Cell<Option<(*const Stage, usize)>> = const { Cell::new(None) };
}

/// Called by the policy.
pub(super) extern "C" fn sim_switch_point() {
    let Some((stage, me)) = ACTOR.get() else { return };
    // SAFETY: the stage outlives its actors' threads, which set this.
    unsafe { &*stage }.point(me);
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
        // SAFETY: the state of the policy whose callback runs; nobody else runs.
        let kernel = unsafe { &mut (*state).kernel };
        Context {
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
        let kernel = unsafe { &mut (*state).kernel };
        kernel.here = context.here;
        kernel.dispatching = context.dispatching;
        kernel.buffer = context.buffer;
        kernel.moved = context.moved;
    }

    /// Another one goes on; returns when it is this one's turn again.
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

    fn point(&self, me: usize) {
        let mut turn = lock(&self.turn);
        turn.points += 1;
        let Some(switch) = turn.switches.get(turn.next).copied() else { return };
        if turn.points < switch.point {
            return;
        }
        turn.next += 1;
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

/// Somebody who does things on a CPU, while others do.
pub struct Actor<'a> {
    stage: &'a Stage,
    number: usize,
}

impl Actor<'_> {
    /// Calls the policy.
    pub fn with<R>(&self, call: impl FnOnce(&mut Policy) -> R) -> R {
        // SAFETY: who has the baton is alone with the policy; whoever is in the middle of a callback has nothing borrowed but
        // what the policy's own code holds, as on real CPUs.
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

    /// With the lock of a CPU's run queue held.
    fn locked<R>(&self, cpu: usize, call: impl FnOnce() -> R) -> R {
        self.stage.lock_queue(self.number, cpu);
        let result = call();
        self.stage.unlock_queue(cpu);
        result
    }

    /// With the lock of the run queue that a task is on (`task_rq_lock()`), which may change until it is held.
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

    /// Does it wait in a queue?
    fn waits(&self, task: usize) -> bool {
        self.with(|policy| policy.kernel().tasks[task].place != Place::Nowhere)
    }

    /// Time passes, for all.
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

    /// A sleeping task is woken, by somebody on CPU `here`.
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
        self.locked(cpu, || {
            let curr = self.with(|policy| policy.kernel().cpus[cpu].curr);
            if let Some(task) = curr {
                self.with(|policy| policy.tick(cpu, task));
                if self.with(|policy| policy.slice_ns(task)) == 0 {
                    self.stage.ask(cpu);
                }
            }
        });
    }

    /// A CPU chooses who runs next; the one that runs has had its slice.
    pub fn schedule(&self, cpu: usize) {
        self.locked(cpu, || self.choose(cpu, true));
    }

    /// The task that runs on a CPU goes to sleep.
    pub fn sleep(&self, cpu: usize) {
        self.locked(cpu, || {
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

    /// A waiting task is taken off its queue, may use other CPUs from now on, and is queued again (`sched_setaffinity()`).
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

    /// A sleeping or waiting task ends; one that runs is left alone.
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

    /// Timers whose time has come fire.
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

    /// The timer of quotas comes when the policy believes that it does, or later by what has passed while a CPU that was about to
    /// start it stood still: it can only say in how long, not when.
    fn timer_is_armed(&self) -> Result<(), String> {
        let (believed, timer) = self.with(|policy| policy.quota_timer());
        let armed = lock(&self.stage.timers)
            .iter()
            .filter(|due| due.timer == timer)
            .max_by_key(|due| due.turn)
            .map(|due| due.at);
        match armed {
            _ if believed == 0 => Ok(()),
            Some(armed) if armed <= believed + *lock(&self.stage.passed) + 50_000 => Ok(()),
            armed => Err(format!(
                "the timer of quotas is armed for {armed:?} ns, and is believed to be for {believed}"
            )),
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

    /// Whether it has to choose again: the last one was queued instead of going on.
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

    /// Everybody who can have its turn has it, and goes to sleep then. A CPU looks for work only if it has some or was asked to.
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
            for cpu in 0..cpus {
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

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Points that it went through.
    pub points: u64,
    /// What is wrong in the end; none: nothing.
    pub failure: Option<String>,
}

/// A policy with points, for a kernel.
///
/// # Errors
/// As [`Policy::guest`].
pub fn policy(settings: &Settings) -> Result<Policy, String> {
    Policy::load(&GUEST, GUEST.explored, settings, 1_000_000_000)
}

/// Runs the parts of all actors on a course, and lets things settle then. Nothing may be left of tasks in
/// the sums of CPUs and `groups`, and nobody may wait for ever.
pub fn run(
    policy: &mut Policy,
    prepare: impl FnOnce(&Actor<'_>),
    parts: Vec<Part<'_>>,
    course: &Course,
    check: impl FnOnce(&Actor<'_>) -> Result<(), String>,
) -> Ran {
    let cpus = policy.kernel().cpus.len();
    let stage = Stage {
        policy: std::ptr::from_mut(policy),
        turn: Mutex::new(Turn {
            now: course.first,
            alive: vec![true; parts.len()],
            waits_for: vec![None; parts.len()],
            owner: vec![None; cpus],
            points: 0,
            switches: course.switches.clone(),
            next: 0,
            failure: None,
        }),
        changed: Condvar::new(),
        asked: Mutex::new(vec![false; cpus]),
        timers: Mutex::new(Vec::new()),
        passed: Mutex::new(0),
    };
    let alone = Actor { stage: &stage, number: 0 };
    prepare(&alone);
    *lock(&stage.passed) = 0;
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
    let failure = lock(&stage.turn).failure.clone();
    let settled = || alone.timer_is_armed().and_then(|()| alone.settle()).and_then(|()| check(&alone));
    let failure = match (panicked, failure) {
        (0, None) => settled().err(),
        (0, failure) => failure,
        (n, _) => Some(format!("{n} actors panicked")),
    };
    let points = lock(&stage.turn).points;
    Ran { points, failure }
}

impl Policy {
    /// Is anything left of tasks in a CPU's sums?
    pub fn left(&mut self, cpu: usize) -> bool {
        // SAFETY: the type is that in native/guest.c.
        let left = unsafe { super::function::<extern "C" fn(u32) -> u64>(&self.image, "sim_left") };
        left.is_ok_and(|left| self.with(cpu, |_| left(cpu as u32)) != 0)
    }

    /// The same of a group's record.
    pub fn left_of_group(&mut self, group: usize) -> bool {
        // SAFETY: likewise.
        let left = unsafe { super::function::<extern "C" fn(u32) -> u64>(&self.image, "sim_left_of_group") };
        left.is_ok_and(|left| self.with(0, |_| left(group as u32)) != 0)
    }

    /// When the policy believes that its timer of quotas fires (0: it does not), and that timer's number.
    fn quota_timer(&mut self) -> (Ns, usize) {
        // SAFETY: likewise.
        let at = unsafe { super::function::<extern "C" fn() -> u64>(&self.image, "sim_quota_timer_at") };
        let at = at.map_or(0, |at| self.with(0, |_| at()));
        let maps = &self.state.maps;
        let is_it = |timer: &super::Timer| maps[timer.map].shape.name == QUOTA_TIMER;
        (at, self.state.timers.iter().position(is_it).unwrap_or(usize::MAX))
    }

    /// Which group's quota the policy holds a group's tasks to; 0: none.
    pub fn limit_of(&mut self, group: usize) -> u32 {
        // SAFETY: likewise.
        let limit = unsafe { super::function::<extern "C" fn(u32) -> u32>(&self.image, "sim_limit_of") };
        limit.map_or(0, |limit| self.with(0, |_| limit(group as u32)))
    }
}
