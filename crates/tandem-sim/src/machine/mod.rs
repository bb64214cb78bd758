//! The machine's event loop: what each CPU executes, and how its time is accounted.
//!
//! A physical CPU does one thing at a time: work of the host's kernel, or a host task. If that task is a vCPU, the
//! pCPU does what the vCPU does: work of the guest's kernel, or a guest task. Whenever anything changes, the time
//! so far is accounted ([`Machine::settle`]), states that take no time are passed ([`Machine::prepare`]), and the
//! end of the next state goes into the event queue ([`Machine::arm`]). A vCPU that is not running keeps its state.

mod course;
mod ext;
pub mod limit;
pub mod migration;
mod placement;
mod schedule;
pub mod shootdown;
pub mod state;
mod virt;
mod watch;

use crate::hardware::{Costs, Hardware};
use crate::program::{Barrier, Condition, Device, Items, Lock, Mailbox, Requests};
use crate::queue::{Event, Irq, Ns, Queue};
use crate::SimError;
use state::{Account, Cpu, Done, Kind, Segment, State, Task, Work, World, ACCOUNTS};
use std::collections::BTreeSet;
pub use watch::Watch;

/// Full speed. Speeds are in 1024ths.
const FULL_SPEED: u64 = 1024;
/// Most states without duration that are passed in a row; more mean an endless loop.
const MOST_ROUNDS: u32 = 10_000;

/// A physical CPU.
#[derive(Debug, Clone, Default)]
struct Pcpu {
    /// Time up to which everything is accounted.
    settled_at: Ns,
    /// Speed since then.
    speed: u64,
    /// Generation number of the end of work that is in the event queue.
    turn: u32,
    accounts: [Ns; ACCOUNTS],
}

/// The simulated machine, with all kernels and tasks on it.
pub struct Machine {
    /// Simulated time.
    pub now: Ns,
    /// Hardware.
    pub hardware: Hardware,
    /// Costs of operations.
    pub costs: Costs,
    /// Kernels; number 0 is the host.
    pub worlds: Vec<World>,
    /// All tasks of all kernels.
    pub tasks: Vec<Task>,
    /// Locks.
    pub locks: Vec<Lock>,
    /// Barriers.
    pub barriers: Vec<Barrier>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Queues.
    pub items: Vec<Items>,
    /// Mailboxes.
    pub mailboxes: Vec<Mailbox>,
    /// Streams of requests.
    pub requests: Vec<Requests>,
    /// Devices.
    pub devices: Vec<Device>,
    /// Changes during the run, by phase.
    pub phases: Vec<Vec<Change>>,
    /// Measurements.
    pub record: crate::record::Record,
    /// A device's interrupt goes to the guest's vCPU that runs or ran most recently.
    pub redirects: bool,
    /// What a host may read in guests' memory is kept as it is. Off, a test writes it.
    pub guests_show: bool,
    queue: Queue,
    pcpus: Vec<Pcpu>,
    /// pCPUs whose next end of work has to be computed anew.
    touched: BTreeSet<usize>,
    /// Directed yields between vCPUs.
    pub yields: shootdown::DirectedYields,
    /// Random numbers of the kernels.
    random: crate::random::Stream,
    /// The error that ends the run.
    failure: Option<SimError>,
    /// Measures what the policies cost, if set.
    pub watch: Option<Watch>,
}

/// A change in the host during the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The quota of a host group that has one.
    Quota {
        /// Group.
        group: usize,
        /// Run time per period, ns.
        quota_ns: Ns,
        /// Period, ns.
        period_ns: Ns,
    },
    /// The affinity of a host task.
    Pins {
        /// Task.
        task: usize,
        /// By CPU.
        allowed: Vec<bool>,
    },
}

/// What a pCPU executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaf {
    Idle,
    /// Kernel work of a CPU.
    Kernel {
        world: usize,
        cpu: usize,
    },
    /// A task's program.
    Program {
        task: usize,
    },
}

impl Machine {
    /// Hardware with a host kernel and no tasks.
    pub fn new(hardware: Hardware, costs: Costs, host: World, seed: u64) -> Self {
        let pcpus = (0..hardware.cpus())
            .map(|cpu| Pcpu { speed: speed_of(hardware.speed(cpu)), ..Pcpu::default() })
            .collect();
        Self {
            now: 0,
            hardware,
            costs,
            worlds: vec![host],
            tasks: Vec::new(),
            locks: Vec::new(),
            barriers: Vec::new(),
            conditions: Vec::new(),
            items: Vec::new(),
            mailboxes: Vec::new(),
            requests: Vec::new(),
            devices: Vec::new(),
            phases: Vec::new(),
            record: crate::record::Record::default(),
            redirects: false,
            guests_show: true,
            queue: Queue::default(),
            pcpus,
            touched: BTreeSet::new(),
            random: crate::random::Stream::new(seed, "kernel", 0),
            failure: None,
            yields: shootdown::DirectedYields::default(),
            watch: None,
        }
    }

    /// Runs until `end`.
    ///
    /// # Errors
    /// More events than `most_events`, or a contradiction.
    pub fn run(&mut self, end: Ns, most_events: u64) -> Result<(), SimError> {
        self.run_until(end, most_events)
            .map_err(|cause| SimError::Run { cause: Box::new(cause), before: self.recently() })
    }

    /// The last context switches, as text.
    fn recently(&self) -> String {
        let line = |s: &crate::record::Switch| {
            let who = s.task.map_or("nobody", |task| self.tasks[task].name.as_str());
            format!("\n  {} ns: {} CPU {}: {who}", s.at, self.worlds[s.world].name, s.cpu)
        };
        self.record.recent.iter().map(line).collect()
    }

    fn run_until(&mut self, end: Ns, most_events: u64) -> Result<(), SimError> {
        self.finish_event()?;
        while let Some((at, event)) = self.queue.take() {
            if at > end {
                self.queue.add(at, event);
                break;
            }
            if self.queue.taken() > most_events {
                return Err(SimError::TooManyEvents { at_ns: self.now, events: most_events });
            }
            self.now = at;
            self.handle(event)?;
            self.finish_event()?;
        }
        self.now = end;
        for pcpu in 0..self.pcpus.len() {
            self.settle(pcpu);
        }
        self.check_accounts()
    }

    /// Adds an event to the queue.
    pub(crate) fn at(&mut self, at: Ns, event: Event) {
        self.queue.add(at, event);
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.queue.taken()
    }

    /// Time of a pCPU by account, ns.
    pub fn accounts(&self, pcpu: usize) -> &[Ns; ACCOUNTS] {
        &self.pcpus[pcpu].accounts
    }

    fn check_accounts(&self) -> Result<(), SimError> {
        for (pcpu, p) in self.pcpus.iter().enumerate() {
            let sum: Ns = p.accounts.iter().sum();
            if sum != self.now {
                return Err(SimError::Contradiction {
                    at_ns: self.now,
                    what: format!("pCPU {pcpu} has {sum} ns in its accounts"),
                });
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::WorkEnd { pcpu, turn } => {
                if self.pcpus[pcpu].turn == turn {
                    self.touch(pcpu);
                    self.work_ended(pcpu);
                }
            }
            Event::Interrupt { world, cpu, irq } => self.interrupt(world, cpu, irq),
            Event::Tick { world, cpu, turn } => {
                let c = &mut self.worlds[world].cpus[cpu];
                if c.tick_turn == turn && c.ticking {
                    c.ticking = false;
                    self.interrupt(world, cpu, Irq::Tick);
                }
            }
            Event::SliceEnd { cpu, turn } => {
                if self.worlds[0].cpus[cpu].slice_turn == turn {
                    self.interrupt(0, cpu, Irq::SliceEnd);
                }
            }
            Event::Timer { task, turn } => {
                let t = &self.tasks[task];
                if t.timer_turn == turn && t.state == State::Sleeping {
                    let (world, cpu) = (t.world, t.cpu);
                    self.interrupt(world, cpu, Irq::Timer { task });
                }
            }
            Event::Arrival { stream } => self.arrival(stream),
            Event::Device { device, task } => {
                let d = &self.devices[device];
                let (world, cpu) = (d.world, d.irq_cpu);
                self.interrupt(world, cpu, Irq::Device { device, task });
            }
            Event::Refill { world, group } => self.refill(world, group),
            Event::BpfTimer { world, cpu, timer, turn } => {
                self.interrupt(world, cpu, Irq::BpfTimer { timer, turn })
            }
            Event::Sample => self.sample(),
            Event::VcpuLimit { world } => self.vcpu_limit(world),
            Event::Phase { index } => {
                for change in self.phases[index].clone() {
                    self.change(&change);
                }
            }
        }
        Ok(())
    }

    /// After each event: computes the next end of work of all touched pCPUs.
    fn finish_event(&mut self) -> Result<(), SimError> {
        let mut rounds = 0;
        while let Some(pcpu) = self.touched.pop_first() {
            rounds += 1;
            if rounds > MOST_ROUNDS {
                return Err(SimError::Contradiction {
                    at_ns: self.now,
                    what: "CPUs disturb each other without end".into(),
                });
            }
            self.settle(pcpu);
            self.prepare(pcpu)?;
            self.arm(pcpu);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Accounts a pCPU's time so far, and marks it as changed.
    fn touch(&mut self, pcpu: usize) {
        self.settle(pcpu);
        self.touched.insert(pcpu);
    }

    /// The pCPU on which a CPU of a kernel is running now.
    fn pcpu_of(&self, world: usize, cpu: usize) -> Option<usize> {
        if world == 0 {
            return Some(cpu);
        }
        let vcpu = self.worlds[world].cpus[cpu].vcpu?;
        let task = &self.tasks[vcpu];
        (task.state == State::Running).then_some(task.cpu)
    }

    fn touch_cpu(&mut self, world: usize, cpu: usize) {
        if let Some(pcpu) = self.pcpu_of(world, cpu) {
            self.touch(pcpu);
        }
    }

    fn cpu(&mut self, world: usize, cpu: usize) -> &mut Cpu {
        &mut self.worlds[world].cpus[cpu]
    }

    fn leaf(&self, pcpu: usize) -> Leaf {
        let host = &self.worlds[0].cpus[pcpu];
        if !host.work.is_empty() {
            return Leaf::Kernel { world: 0, cpu: pcpu };
        }
        let Some(task) = host.curr else { return Leaf::Idle };
        match self.tasks[task].kind {
            Kind::Program(_) => Leaf::Program { task },
            Kind::Vcpu { world, cpu } => {
                let guest = &self.worlds[world].cpus[cpu];
                match guest.curr {
                    _ if !guest.work.is_empty() => Leaf::Kernel { world, cpu },
                    Some(task) => Leaf::Program { task },
                    // It is about to halt; that takes no time before its exit.
                    None => Leaf::Kernel { world, cpu },
                }
            }
        }
    }

    /// Accounts the time since this was last done.
    fn settle(&mut self, pcpu: usize) {
        let passed = self.now - self.pcpus[pcpu].settled_at;
        if passed == 0 {
            return;
        }
        self.pcpus[pcpu].settled_at = self.now;
        let speed = self.pcpus[pcpu].speed;
        let done = passed * speed / FULL_SPEED;
        let leaf = self.leaf(pcpu);
        let account = match leaf {
            Leaf::Idle => Account::Idle,
            Leaf::Kernel { world, cpu } => match self.worlds[world].cpus[cpu].work.front_mut() {
                Some(work) => {
                    work.left_ns = work.left_ns.saturating_sub(done);
                    work.account
                }
                None => Account::Exit,
            },
            Leaf::Program { task } => self.settle_program(task, done),
        };
        self.pcpus[pcpu].accounts[account as usize] += passed;
        // Both kernels count it as run time of their current tasks, as far as they can see it.
        if let Some(task) = self.worlds[0].cpus[pcpu].curr {
            self.cpu(0, pcpu).uncharged_ns += passed;
            self.tasks[task].ran_ns += passed;
            let inside = !matches!(leaf, Leaf::Kernel { world: 0, .. });
            if let Kind::Vcpu { world, cpu } = self.tasks[task].kind {
                if let Some(guest_task) = self.worlds[world].cpus[cpu].curr.filter(|_| inside) {
                    self.cpu(world, cpu).uncharged_ns += passed;
                    self.tasks[guest_task].ran_ns += passed;
                }
            }
        }
    }

    fn settle_program(&mut self, task: usize, done: Ns) -> Account {
        let guest = self.tasks[task].world != 0;
        let Some(course) = self.tasks[task].course_mut() else { return Account::Exit };
        if course.cold_ns > 0 {
            course.cold_ns = course.cold_ns.saturating_sub(done);
            return Account::Refill;
        }
        match &mut course.segment {
            Segment::Run(left) => {
                *left = left.saturating_sub(done);
                if guest {
                    Account::GuestUser
                } else {
                    Account::HostUser
                }
            }
            Segment::Spin(left) => {
                if let Some(left) = left {
                    *left = left.saturating_sub(done);
                }
                Account::Spin
            }
            Segment::None => {
                if guest {
                    Account::GuestKernel
                } else {
                    Account::HostKernel
                }
            }
        }
    }

    /// Time until what a pCPU executes is done, at full speed; none: it goes on until another event.
    fn left(&self, pcpu: usize) -> Option<Ns> {
        match self.leaf(pcpu) {
            Leaf::Idle => None,
            Leaf::Kernel { world, cpu } => self.worlds[world].cpus[cpu].work.front().map(|work| work.left_ns),
            Leaf::Program { task } => {
                let course = self.tasks[task].course()?;
                if course.cold_ns > 0 {
                    return Some(course.cold_ns);
                }
                match course.segment {
                    Segment::Run(left) => Some(left),
                    Segment::Spin(left) => left,
                    Segment::None => Some(0),
                }
            }
        }
    }

    fn arm(&mut self, pcpu: usize) {
        self.set_sibling_speed(pcpu);
        let p = &mut self.pcpus[pcpu];
        p.turn = p.turn.wrapping_add(1);
        let (turn, speed) = (p.turn, p.speed);
        if let Some(left) = self.left(pcpu) {
            let takes = (left * FULL_SPEED).div_ceil(speed);
            self.queue.add(self.now + takes, Event::WorkEnd { pcpu, turn });
        }
    }

    /// Hardware threads of a core slow each other down.
    fn set_sibling_speed(&mut self, pcpu: usize) {
        if self.hardware.threads < 2 {
            return;
        }
        for other in self.hardware.siblings(pcpu) {
            let shared = self
                .hardware
                .siblings(other)
                .any(|sibling| sibling != other && self.leaf(sibling) != Leaf::Idle);
            let factor = if shared { self.hardware.smt_speed } else { 1.0 };
            let speed = speed_of(self.hardware.speed(other) * factor);
            if self.pcpus[other].speed != speed {
                self.settle(other);
                self.pcpus[other].speed = speed;
                if other != pcpu {
                    self.touched.insert(other);
                }
            }
        }
    }

    /// What a pCPU executed is done.
    fn work_ended(&mut self, pcpu: usize) {
        match self.leaf(pcpu) {
            Leaf::Idle => {}
            Leaf::Kernel { world, cpu } => {
                if let Some(work) = self.cpu(world, cpu).work.pop_front() {
                    self.work_done(world, cpu, work.done);
                }
            }
            Leaf::Program { task } => self.segment_ended(task),
        }
    }

    fn work_done(&mut self, world: usize, cpu: usize, done: Done) {
        match done {
            Done::Nothing => {}
            Done::Irq(irq) => self.irq(world, cpu, irq),
            Done::Halt => self.halt(cpu),
            Done::PollOver => self.sleep_vcpu(cpu),
        }
    }

    /// Adds kernel work to a CPU, behind the work that it has.
    fn burden(&mut self, world: usize, cpu: usize, account: Account, ns: Ns) {
        if ns > 0 {
            self.touch_cpu(world, cpu);
            let work = &mut self.cpu(world, cpu).work;
            match work.back_mut() {
                Some(last) if last.account == account && last.done == Done::Nothing => last.left_ns += ns,
                _ => work.push_back(Work::of(account, ns)),
            }
        }
    }

    /// Passes all states that take no time, until the pCPU has something to execute or is idle.
    fn prepare(&mut self, pcpu: usize) -> Result<(), SimError> {
        for _ in 0..MOST_ROUNDS {
            if !self.worlds[0].cpus[pcpu].work.is_empty() {
                return Ok(());
            }
            let Some(task) = self.worlds[0].cpus[pcpu].curr else {
                if !self.has_work(0, pcpu) {
                    return Ok(());
                }
                self.schedule(0, pcpu);
                continue;
            };
            if self.is_due(0, pcpu) || self.tasks[task].state != State::Running {
                self.schedule(0, pcpu);
                continue;
            }
            match self.tasks[task].kind {
                Kind::Program(_) => {
                    if self.is_at_something(task) {
                        return Ok(());
                    }
                    self.advance(task);
                }
                Kind::Vcpu { world, cpu } => {
                    if self.prepare_guest(world, cpu) {
                        return Ok(());
                    }
                }
            }
        }
        Err(SimError::Contradiction {
            at_ns: self.now,
            what: format!("pCPU {pcpu} does nothing without end: {:?}", self.worlds[0].cpus[pcpu]),
        })
    }

    /// The same for a running vCPU. Returns whether it has something to execute.
    fn prepare_guest(&mut self, world: usize, cpu: usize) -> bool {
        self.take_interrupts(world, cpu);
        let c = &self.worlds[world].cpus[cpu];
        if !c.work.is_empty() {
            return true;
        }
        let Some(task) = c.curr else {
            if self.has_work(world, cpu) {
                self.schedule(world, cpu);
            } else {
                self.start_halt(world, cpu);
            }
            return false;
        };
        if self.is_due(world, cpu) || self.tasks[task].state != State::Running {
            self.schedule(world, cpu);
            return false;
        }
        if self.is_at_something(task) {
            return true;
        }
        self.advance(task);
        false
    }

    /// Must a CPU reschedule now? A lazy request waits until the CPU has entered the kernel for another reason.
    fn is_due(&self, world: usize, cpu: usize) -> bool {
        let c = &self.worlds[world].cpus[cpu];
        match c.resched {
            state::Resched::No => false,
            state::Resched::Lazy => c.entered_kernel,
            state::Resched::Now => true,
        }
    }

    /// Samples periodically on how many cores a guest's program works.
    pub(crate) fn sample(&mut self) {
        const EVERY_NS: Ns = 1_000_000;
        let works = |pcpu: usize| match self.leaf(pcpu) {
            Leaf::Program { task } => self.tasks[task].world != 0,
            _ => false,
        };
        let first = (0..self.pcpus.len()).step_by(self.hardware.threads);
        let busy = first.filter(|first| self.hardware.siblings(*first).any(works)).count();
        if self.now >= self.record.from {
            if let Some(cores) = &mut self.record.cores {
                cores.push(busy as u32);
            }
        }
        self.queue.add(self.now + EVERY_NS, Event::Sample);
    }

    fn is_at_something(&self, task: usize) -> bool {
        self.tasks[task].course().is_some_and(|course| match course.segment {
            Segment::None => false,
            Segment::Run(_) => true,
            // Granted while it was not running, or just now.
            Segment::Spin(_) => !course.granted,
        })
    }
}

fn speed_of(part: f64) -> u64 {
    ((part * FULL_SPEED as f64).round() as u64).max(1)
}
