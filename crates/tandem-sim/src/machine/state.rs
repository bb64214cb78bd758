//! Everything there is: kernels, their CPUs, tasks, and what each CPU is doing.

use crate::fair::{EntityId, Fair};
use crate::program::{Program, Waiting};
use crate::queue::{Irq, Ns};
use std::collections::VecDeque;

/// What the time of a physical CPU goes to. Every nanosecond belongs to exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Account {
    /// Nothing to do.
    Idle,
    /// Getting out of a sleep state.
    IdleExit,
    /// A host task's own work.
    HostUser,
    /// The host's kernel on behalf of tasks.
    HostKernel,
    /// The host's interrupts and ticks.
    HostIrq,
    /// Host context switches.
    HostSwitch,
    /// Exits and entries.
    Exit,
    /// Polling for a halted vCPU.
    HaltPoll,
    /// A guest task's own work.
    GuestUser,
    /// A guest's kernel on behalf of tasks.
    GuestKernel,
    /// Guests' interrupts and ticks.
    GuestIrq,
    /// Guest context switches.
    GuestSwitch,
    /// Spinning for somebody else, in the host or a guest.
    Spin,
    /// Refilling caches.
    Refill,
    /// BPF schedulers.
    Policy,
}

/// How many accounts there are.
pub const ACCOUNTS: usize = Account::Policy as usize + 1;

/// What happens when a piece of kernel work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Nothing.
    Nothing,
    /// The interrupt's handler.
    Irq(Irq),
    /// The vCPU that runs here sleeps, or the host polls for a while first.
    Halt,
    /// The poll is over: it sleeps.
    PollOver,
}

/// Work of a kernel on one CPU, before anything else happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Where its time goes.
    pub account: Account,
    /// Time left at full speed, ns.
    pub left_ns: Ns,
    /// What comes of it.
    pub done: Done,
}

impl Work {
    /// Work of which nothing comes but that it takes time.
    pub fn of(account: Account, ns: Ns) -> Self {
        Self { account, left_ns: ns, done: Done::Nothing }
    }
}

/// Shall somebody else run?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Resched {
    /// No.
    #[default]
    No,
    /// At the next tick, or when it returns to user space or to the guest.
    Lazy,
    /// Now.
    Now,
}

/// A CPU of a kernel.
#[derive(Debug, Clone, Default)]
pub struct Cpu {
    /// Task that runs; none: idle.
    pub curr: Option<usize>,
    /// Shall somebody else run?
    pub resched: Resched,
    /// It has been in the kernel since it was looked at last: what is lazy may happen now.
    pub entered_kernel: bool,
    /// Kernel work, first things first.
    pub work: VecDeque<Work>,
    /// Interrupts that it has not taken yet (a vCPU that does not run).
    pub irqs: VecDeque<Irq>,
    /// Real-time tasks that want to run, first things first.
    pub real_time: VecDeque<usize>,
    /// Tasks woken for it by others, on their way into its queue.
    pub wake_list: Vec<usize>,
    /// Run time of the current task that the scheduler does not know of yet, ns.
    pub uncharged_ns: Ns,
    /// Number of the slice timer that is armed (HRTICK).
    pub slice_turn: u32,
    /// Number of the tick that is armed.
    pub tick_turn: u32,
    /// Is one armed?
    pub ticking: bool,
    /// Since when it is idle.
    pub idle_since: Ns,
    /// Mean time of being idle, ns.
    pub mean_idle_ns: Ns,
    /// When its load is balanced next, per level.
    pub balance_at: [Ns; 3],
    /// A busy CPU has asked it to balance for all that are idle.
    pub balances_idle: bool,
    /// Host task that is this CPU (guests).
    pub vcpu: Option<usize>,
    /// Part of the time that it was stolen of late, 0 to 1.
    pub stolen: Average,
}

/// An average with a half-life of 32 ms (PELT), of a signal that is constant between updates.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Average {
    value: f64,
    at: Ns,
}

impl Average {
    /// The signal was `signal` since the last update.
    pub fn update(&mut self, now: Ns, signal: f64) {
        let fade = (-((now - self.at) as f64) / 32e6).exp2();
        self.value = self.value * fade + signal * (1.0 - fade);
        self.at = now;
    }

    /// Value at the last update.
    pub fn value(&self) -> f64 {
        self.value
    }
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// On a CPU.
    Running,
    /// Waits for one.
    Runnable,
    /// Waits for something else.
    Sleeping,
    /// Has ended.
    Dead,
}

/// What a running program is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// Between two steps.
    None,
    /// Works, ns left at full speed.
    Run(Ns),
    /// Spins until it is granted what it waits for; or for so many ns more, then it sleeps.
    Spin(Option<Ns>),
}

/// A running program.
#[derive(Debug, Clone)]
pub struct Course {
    /// The program.
    pub program: Program,
    /// Next step.
    pub next: usize,
    /// Rounds done.
    pub rounds: u64,
    /// What it is at.
    pub segment: Segment,
    /// It has been granted what it waited for.
    pub granted: bool,
    /// A lock that it tries to get, once more, as soon as it runs.
    pub locks: Option<usize>,
    /// Arrival of the request that it serves.
    pub request_at: Option<Ns>,
    /// It has one that it has not begun to serve: the stream.
    pub to_begin: Option<usize>,
    /// Start, for timers.
    pub started: Ns,
    /// Random numbers of its own.
    pub random: crate::random::Stream,
    /// Cold cache to be refilled, ns of work.
    pub cold_ns: Ns,
}

/// What a task is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Runs a program.
    Program(Box<Course>),
    /// Is a CPU of a guest.
    Vcpu {
        /// The guest.
        world: usize,
        /// Its CPU.
        cpu: usize,
    },
}

/// A task of some kernel.
#[derive(Debug, Clone)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Its kernel.
    pub world: usize,
    /// What it is.
    pub kind: Kind,
    /// Its number with its kernel's policy, if there is one.
    pub scx: Option<usize>,
    /// Its entity in the fair class.
    pub entity: EntityId,
    /// Where it is.
    pub state: State,
    /// CPU that it runs on or ran on last.
    pub cpu: usize,
    /// CPUs that it may use.
    pub allowed: Vec<bool>,
    /// SCHED_BATCH: does not preempt.
    pub batch: bool,
    /// SCHED_IDLE.
    pub idle: bool,
    /// SCHED_FIFO: before all others, on one CPU.
    pub real_time: bool,
    /// It was woken before it had been switched out: it wakes as soon as it has been.
    pub woken: bool,
    /// Since when it waits for a CPU.
    pub runnable_since: Ns,
    /// When it ran last.
    pub ran_at: Ns,
    /// When the timeout was due that woke it; none: something else did, or it has run since.
    pub timer_due: Option<Ns>,
    /// Number of the timeout that is armed.
    pub timer_turn: u32,
    /// Whom it woke last, and how often that has changed of late.
    pub last_wakee: usize,
    /// See above.
    pub wakee_flips: u64,
    /// When those were last halved.
    pub flips_at: Ns,
    /// CPU that it used before the last one.
    pub recent_cpu: usize,
    /// Run time, ns.
    pub ran_ns: Ns,
    /// Time waited for a CPU, ns.
    pub waited_ns: Ns,
    /// Times that it changed CPUs.
    pub migrations: u64,
    /// Times that it was switched to.
    pub switches: u64,
}

impl Task {
    /// The program that it runs, if it does.
    pub fn course(&self) -> Option<&Course> {
        match &self.kind {
            Kind::Program(course) => Some(course),
            Kind::Vcpu { .. } => None,
        }
    }

    /// The same, to be changed.
    pub fn course_mut(&mut self) -> Option<&mut Course> {
        match &mut self.kind {
            Kind::Program(course) => Some(course),
            Kind::Vcpu { .. } => None,
        }
    }

    /// How it waits.
    pub fn waiting(&self) -> Waiting {
        self.course().map_or(Waiting::Block, |course| course.program.waiting)
    }
}

/// A vCPU as its host and its guest see it.
#[derive(Debug, Clone, Default)]
pub struct VcpuPage {
    /// Time that it waited for a pCPU, ns, as written at its last entry.
    pub steal_ns: Ns,
    /// The host has taken its pCPU, or it sleeps.
    pub preempted: bool,
    /// Since when it waits for a pCPU; none: it does not.
    pub waits_since: Option<Ns>,
    /// How often it got a pCPU.
    pub entries: u64,
    /// How often it was taken off its pCPU.
    pub preemptions: u64,
    /// Current limit of polling before it sleeps, ns.
    pub poll_ns: Ns,
    /// When it fell asleep.
    pub slept_at: Ns,
}

/// How wake-up preemption reaches a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// At once.
    Full,
    /// At the next tick or return to user space; idle CPUs at once.
    Lazy,
}

/// A kernel: the host is number 0.
#[derive(Debug)]
pub struct World {
    /// Its name.
    pub name: String,
    /// Its CPUs.
    pub cpus: Vec<Cpu>,
    /// What it believes of where they are.
    pub layout: crate::hardware::Hardware,
    /// Its fair class.
    pub fair: Fair,
    /// The sched_ext policy that schedules its tasks instead.
    pub policy: Option<Box<crate::scx::Policy>>,
    /// The policy's tasks by their numbers there.
    pub policy_tasks: Vec<usize>,
    /// When the policy's watchdog looks again.
    pub watchdog_at: Ns,
    /// When its idle CPUs may be asked next to take tasks over.
    pub idle_balance_at: Ns,
    /// Tick, ns.
    pub tick_ns: Ns,
    /// Slices end when they are due, not at ticks (HRTICK; the host).
    pub hrtick: bool,
    /// Preemption.
    pub preemption: Preemption,
    /// A halted vCPU looks preempted to wake-up placement.
    pub halted_looks_preempted: bool,
    /// Its scheduler does not charge stolen time (guests).
    pub sees_steal: bool,
    /// Pages of its vCPUs (guests).
    pub pages: Vec<VcpuPage>,
}
