//! State of the machine: kernels, their CPUs, tasks, and what each CPU executes.

use crate::fair::{EntityId, Fair};
use crate::program::{Program, Waiting};
use crate::queue::{Irq, Ns};
use std::collections::VecDeque;

/// Accounts of the time of a physical CPU. Every nanosecond belongs to exactly one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Account {
    /// Idle.
    Idle,
    /// Exit from an idle state.
    IdleExit,
    /// User-space work of a host task.
    HostUser,
    /// Host kernel work on behalf of tasks.
    HostKernel,
    /// Host interrupts and ticks.
    HostIrq,
    /// Host context switches.
    HostSwitch,
    /// VM exits and entries.
    Exit,
    /// Halt polling for a vCPU.
    HaltPoll,
    /// User-space work of a guest task.
    GuestUser,
    /// Guest kernel work on behalf of tasks.
    GuestKernel,
    /// Guest interrupts and ticks.
    GuestIrq,
    /// Guest context switches.
    GuestSwitch,
    /// Tasks that spin while they wait for others, in the host or a guest.
    Spin,
    /// Cache refill.
    Refill,
    /// Callbacks of sched_ext policies.
    Policy,
}

/// Number of accounts.
pub const ACCOUNTS: usize = Account::Policy as usize + 1;

/// What happens when a piece of kernel work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Nothing.
    Nothing,
    /// The handler of an interrupt takes effect.
    Irq(Irq),
    /// The vCPU that runs here blocks, or the host does halt polling first.
    Halt,
    /// Halt polling is over: the vCPU blocks.
    PollOver,
}

/// Kernel work on one CPU. It precedes the work of tasks there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Account of its time.
    pub account: Account,
    /// Time left at full speed, ns.
    pub left_ns: Ns,
    /// What happens when it is done.
    pub done: Done,
}

impl Work {
    /// Work that only takes time.
    pub fn of(account: Account, ns: Ns) -> Self {
        Self { account, left_ns: ns, done: Done::Nothing }
    }
}

/// A request to reschedule a CPU (`need_resched`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Resched {
    /// None.
    #[default]
    No,
    /// At the next tick, or at the return to user space or to the guest (`TIF_NEED_RESCHED_LAZY`).
    Lazy,
    /// At once (`TIF_NEED_RESCHED`).
    Now,
}

/// A CPU of a kernel.
#[derive(Debug, Clone, Default)]
pub struct Cpu {
    /// Task that runs; none: idle.
    pub curr: Option<usize>,
    /// Pending reschedule request.
    pub resched: Resched,
    /// It has entered the kernel since it last scheduled: a lazy reschedule request may take effect.
    pub entered_kernel: bool,
    /// Kernel work, in order.
    pub work: VecDeque<Work>,
    /// Pending interrupts (of a vCPU that is not running).
    pub irqs: VecDeque<Irq>,
    /// Runnable real-time tasks, in order.
    pub real_time: VecDeque<usize>,
    /// Tasks woken by other CPUs that are not in its run queue yet (TTWU_QUEUE).
    pub wake_list: Vec<usize>,
    /// Run time of the current task that has not been charged yet, ns.
    pub uncharged_ns: Ns,
    /// Generation number of the armed slice timer (HRTICK).
    pub slice_turn: u32,
    /// Generation number of the armed tick.
    pub tick_turn: u32,
    /// Is a tick armed?
    pub ticking: bool,
    /// The kernel has stopped the tick: the task there began with a slice that has no end (`SCX_RQ_CAN_STOP_TICK`).
    pub tick_stopped: bool,
    /// Ticks so far.
    pub ticks: u64,
    /// When it became idle.
    pub idle_since: Ns,
    /// Mean idle time, ns (as the kernel's `avg_idle`).
    pub mean_idle_ns: Ns,
    /// Time of its next load balance, per level.
    pub balance_at: [Ns; 3],
    /// A busy CPU has kicked it to balance on behalf of all idle CPUs (nohz-idle balance).
    pub balances_idle: bool,
    /// Host task of this vCPU (guests).
    pub vcpu: Option<usize>,
    /// Steal as a part of recent time, 0 to 1.
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

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Runs on a CPU.
    Running,
    /// Waits for a CPU.
    Runnable,
    /// Blocked: waits for something else.
    Sleeping,
    /// Has ended.
    Dead,
}

/// What a program is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// Between two steps.
    None,
    /// Works, ns left at full speed.
    Run(Ns),
    /// Spins until it is granted what it waits for; with a limit, it blocks after that many ns more.
    Spin(Option<Ns>),
}

/// Execution of a program.
#[derive(Debug, Clone)]
pub struct Course {
    /// The program.
    pub program: Program,
    /// Next step.
    pub next: usize,
    /// Rounds done.
    pub rounds: u64,
    /// What it is doing.
    pub segment: Segment,
    /// It has been granted what it waited for.
    pub granted: bool,
    /// A lock that it tries to take again as soon as it runs.
    pub locks: Option<usize>,
    /// Arrival time of the request that it serves.
    pub request_at: Option<Ns>,
    /// Stream of a request that it has taken and not begun to serve.
    pub to_begin: Option<usize>,
    /// Start time, the origin of its timers.
    pub started: Ns,
    /// Random numbers of its own.
    pub random: crate::random::Stream,
    /// Cache refill still to do, ns of work.
    pub cold_ns: Ns,
    /// CPUs that have not acknowledged its TLB shootdown yet.
    pub flushes: usize,
}

/// What a task is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Runs a program.
    Program(Box<Course>),
    /// Is a vCPU.
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
    /// Its number in its kernel's sched_ext policy, if there is one.
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
    /// SCHED_FIFO: runs before all others, on one CPU.
    pub real_time: bool,
    /// Its migration.
    pub migration: super::migration::Migration,
    /// The guest whose VMM it is a thread of.
    pub vmm_of: Option<usize>,
    /// It was woken before it was switched out. The wake-up takes place after the switch.
    pub woken: bool,
    /// Since when it waits for a CPU.
    pub runnable_since: Ns,
    /// When it ran last.
    pub ran_at: Ns,
    /// Expiry of the timeout that woke it; none: something else woke it, or it has run since.
    pub timer_due: Option<Ns>,
    /// Generation number of the armed timeout.
    pub timer_turn: u32,
    /// Task that it woke last (`last_wakee`).
    pub last_wakee: usize,
    /// How often `last_wakee` has changed recently.
    pub wakee_flips: u64,
    /// When `wakee_flips` was last halved.
    pub flips_at: Ns,
    /// CPU that it used before `cpu` (`recent_used_cpu`).
    pub recent_cpu: usize,
    /// Run time, ns.
    pub ran_ns: Ns,
    /// Time waited for a CPU, ns.
    pub waited_ns: Ns,
    /// Number of migrations.
    pub migrations: u64,
    /// Number of times that it was switched in.
    pub switches: u64,
}

impl Task {
    /// Execution of its program; none: it is a vCPU.
    pub fn course(&self) -> Option<&Course> {
        match &self.kind {
            Kind::Program(course) => Some(course),
            Kind::Vcpu { .. } => None,
        }
    }

    /// The same, mutable.
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

/// State of a vCPU that host and guest share (the steal time page), and the host's own state of it.
#[derive(Debug, Clone, Default)]
pub struct VcpuPage {
    /// Steal, ns, as written when it was last scheduled in.
    pub steal_ns: Ns,
    /// Preempted by the host, or blocked.
    pub preempted: bool,
    /// Since when it waits for a pCPU; none: it does not.
    pub waits_since: Option<Ns>,
    /// How often it was scheduled in.
    pub entries: u64,
    /// How often the host preempted it.
    pub preemptions: u64,
    /// Current limit of halt polling before it blocks, ns.
    pub poll_ns: Ns,
    /// When it blocked.
    pub slept_at: Ns,
}

/// When a wake-up preemption takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// At once.
    Full,
    /// At the next tick or return to user space; on an idle CPU at once.
    Lazy,
}

/// A kernel. Number 0 is the host's.
#[derive(Debug)]
pub struct World {
    /// Its name.
    pub name: String,
    /// Its CPUs.
    pub cpus: Vec<Cpu>,
    /// CPU topology that it assumes.
    pub layout: crate::hardware::Hardware,
    /// Its fair class.
    pub fair: Fair,
    /// The sched_ext policy that schedules its tasks in place of the fair class.
    pub policy: Option<Box<crate::scx::Policy>>,
    /// Tasks of the policy, by their numbers there.
    pub policy_tasks: Vec<usize>,
    /// The vCPU limit of its daemon (guests).
    pub limiter: Option<super::limit::Limiter>,
    /// Time of the watchdog's next check of the policy.
    pub watchdog_at: Ns,
    /// Time from which on an idle CPU may be kicked again for nohz-idle balance.
    pub idle_balance_at: Ns,
    /// Tick, ns.
    pub tick_ns: Ns,
    /// The tick of each CPU stops while a task without an end of its slice runs there.
    pub nohz_full: bool,
    /// Slices end on time, by a timer, not at ticks (HRTICK; host only).
    pub hrtick: bool,
    /// Preemption model.
    pub preemption: Preemption,
    /// A halted vCPU looks preempted to wake-up placement.
    pub halted_looks_preempted: bool,
    /// Its scheduler charges run time without steal (guests).
    pub sees_steal: bool,
    /// It uses KVM's paravirtual TLB flush (guests).
    pub paravirtual: bool,
    /// It tells KVM whom it waits for (`pv-sched-yield`; guests).
    pub pv_yield: bool,
    /// Steal time pages of its vCPUs (guests).
    pub pages: Vec<VcpuPage>,
}
