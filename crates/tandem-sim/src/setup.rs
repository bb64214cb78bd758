//! Builds a machine: kernels, guests, tasks.

use crate::fair::{weight_of_nice, Bandwidth, Fair, Flavour, Rules, IDLE_WEIGHT};
use crate::hardware::{Costs, Hardware};
use crate::machine::migration::Migration;
use crate::machine::state::{Course, Cpu, Kind, Preemption, Segment, State, Task, VcpuPage, World};
use crate::machine::Machine;
use crate::program::Program;
use crate::queue::{Event, Ns};
use crate::random::Stream;

/// A kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelSpec {
    /// Scheduler of its fair class.
    pub flavour: Flavour,
    /// Tick, ns.
    pub tick_ns: Ns,
    /// Slices end on time, by a timer, not at ticks (HRTICK; host only).
    pub hrtick: bool,
    /// Preemption model.
    pub preemption: Preemption,
    /// Its scheduler charges run time without steal (guests).
    pub sees_steal: bool,
    /// Halted vCPUs look preempted to its wake-up placement (guests).
    pub halted_looks_preempted: bool,
    /// It uses KVM's paravirtual TLB flush (guests).
    pub paravirtual: bool,
    /// It tells KVM which preempted vCPU it waits for (`pv-sched-yield`; guests).
    pub pv_yield: bool,
    /// CFS: minimum granularity; EEVDF: base slice, ns; none: by the number of CPUs.
    pub granularity_ns: Option<Ns>,
    /// CFS: wake-up granularity (lead that a waking task needs to preempt), ns; likewise.
    pub wakeup_granularity_ns: Option<Ns>,
    /// A sched_ext scheduler schedules its tasks: the host's or the guest's.
    pub policy: bool,
}

impl KernelSpec {
    /// Linux 7.2 with a tick of 4 ms, full preemption, `CONFIG_PARAVIRT_TIME_ACCOUNTING`, and without HRTICK.
    pub fn recent() -> Self {
        Self {
            flavour: Flavour::Eevdf { version: 702 },
            tick_ns: 4_000_000,
            hrtick: false,
            preemption: Preemption::Full,
            sees_steal: true,
            halted_looks_preempted: false,
            paravirtual: false,
            pv_yield: false,
            granularity_ns: None,
            wakeup_granularity_ns: None,
            policy: false,
        }
    }

    /// Linux 6.1, the kernel of vSched's evaluation.
    pub fn cfs() -> Self {
        Self { flavour: Flavour::Cfs, ..Self::recent() }
    }
}

/// A group of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSpec {
    /// `cpu.weight`; 100 is the weight of a nice-0 task.
    pub weight: u64,
    /// `cpu.idle`.
    pub idle: bool,
    /// `cpu.max`: quota and period, ns.
    pub max: Option<(Ns, Ns)>,
    /// When its first period ends, ns; none: after a full period.
    pub first_refill_ns: Option<Ns>,
}

impl Default for GroupSpec {
    fn default() -> Self {
        Self { weight: 100, idle: false, max: None, first_refill_ns: None }
    }
}

/// A task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSpec {
    /// Its name.
    pub name: String,
    /// What it does.
    pub program: Program,
    /// Nice value.
    pub nice: i32,
    /// SCHED_IDLE.
    pub idle: bool,
    /// SCHED_BATCH.
    pub batch: bool,
    /// SCHED_FIFO, on the first CPU that it may use.
    pub real_time: bool,
    /// CPUs that it may use; none: all.
    pub cpus: Option<Vec<usize>>,
    /// Its group.
    pub group: usize,
    /// Its request (slice), ns; none: the base slice.
    pub slice_ns: Option<Ns>,
    /// When it starts, ns.
    pub start_ns: Ns,
    /// The guest whose VMM it is a thread of.
    pub vmm_of: Option<usize>,
}

impl TaskSpec {
    /// An ordinary task.
    pub fn new(name: &str, program: Program) -> Self {
        Self {
            name: name.into(),
            program,
            nice: 0,
            idle: false,
            batch: false,
            real_time: false,
            cpus: None,
            group: 0,
            slice_ns: None,
            start_ns: 0,
            vmm_of: None,
        }
    }
}

fn world(name: &str, spec: &KernelSpec, layout: Hardware, cpus: usize) -> World {
    World {
        name: name.into(),
        cpus: vec![Cpu { mean_idle_ns: 1_000_000, ..Cpu::default() }; cpus],
        layout,
        fair: Fair::new(
            Rules::new(spec.flavour, cpus, spec.tick_ns)
                .with_granularity(spec.granularity_ns, spec.wakeup_granularity_ns),
            cpus,
        ),
        tick_ns: spec.tick_ns,
        nohz_full: false,
        hrtick: spec.hrtick,
        preemption: spec.preemption,
        halted_looks_preempted: spec.halted_looks_preempted,
        paravirtual: spec.paravirtual,
        pv_yield: spec.pv_yield,
        idle_balance_at: 0,
        sees_steal: spec.sees_steal,
        pages: Vec::new(),
        policy: None,
        policy_tasks: Vec::new(),
        limiter: None,
        watchdog_at: 0,
    }
}

/// A machine with its host's kernel.
pub fn host(hardware: Hardware, costs: Costs, spec: &KernelSpec, seed: u64) -> Machine {
    let cpus = hardware.cpus();
    let host = world("host", spec, hardware.clone(), cpus);
    Machine::new(hardware, costs, host, seed)
}

impl Machine {
    /// Adds a group to a kernel.
    pub fn add_group(&mut self, world: usize, parent: usize, spec: &GroupSpec) -> usize {
        let bandwidth = spec.max.map(|(quota, period)| Bandwidth::new(quota, period, 0));
        let group = self.worlds[world].fair.add_group(parent, spec.weight * 1024 / 100, spec.idle, bandwidth);
        if let Some((_, period)) = spec.max {
            let first = spec.first_refill_ns.unwrap_or(period);
            self.at(self.now + first, Event::Refill { world, group });
        }
        self.introduce_group(world, group);
        group
    }

    /// Adds a guest, and returns its number. `pins`: pCPUs that each vCPU may use. `groups`: host group of each
    /// vCPU; the last one is that of all further vCPUs. `layout`: CPU topology that its kernel assumes.
    pub fn add_guest(
        &mut self,
        name: &str,
        spec: &KernelSpec,
        layout: Hardware,
        pins: &[Vec<usize>],
        groups: &[usize],
    ) -> usize {
        let number = self.worlds.len();
        let mut guest = world(name, spec, layout, pins.len());
        guest.pages = vec![VcpuPage { preempted: true, ..VcpuPage::default() }; pins.len()];
        self.worlds.push(guest);
        for (cpu, pins) in pins.iter().enumerate() {
            let group = groups.get(cpu).or(groups.last()).copied().unwrap_or(0);
            let task = self.add_task_of(
                0,
                &TaskSpec {
                    cpus: Some(pins.clone()),
                    group,
                    ..TaskSpec::new(&format!("{name}/{cpu}"), Program::cpu_bound(1.0))
                },
                Kind::Vcpu { world: number, cpu },
            );
            self.worlds[number].cpus[cpu].vcpu = Some(task);
            self.tasks[task].state = State::Sleeping;
        }
        number
    }

    /// Adds a task to a kernel. It starts at `start_ns`.
    pub fn add_task(&mut self, world: usize, spec: &TaskSpec, seed: u64) -> usize {
        let course = Course {
            program: spec.program.clone(),
            next: 0,
            rounds: 0,
            segment: Segment::None,
            granted: false,
            locks: None,
            request_at: None,
            to_begin: None,
            started: spec.start_ns,
            random: Stream::new(seed, "task", (world as u64) << 32 | self.tasks.len() as u64),
            cold_ns: 0,
            flushes: 0,
        };
        let task = self.add_task_of(world, spec, Kind::Program(Box::new(course)));
        let turn = self.tasks[task].timer_turn;
        if !spec.real_time {
            self.tasks[task].cpu = self.select_cpu_for_new(task);
        }
        self.at(spec.start_ns, Event::Timer { task, turn });
        task
    }

    fn add_task_of(&mut self, world: usize, spec: &TaskSpec, kind: Kind) -> usize {
        let task = self.tasks.len();
        let cpus = self.worlds[world].cpus.len();
        let allowed: Vec<bool> = match &spec.cpus {
            Some(list) => (0..cpus).map(|cpu| list.contains(&cpu)).collect(),
            None => vec![true; cpus],
        };
        let weight = if spec.idle { IDLE_WEIGHT } else { weight_of_nice(spec.nice) };
        let entity = self.worlds[world].fair.add_task(task, spec.group, weight, spec.idle, spec.slice_ns);
        let cpu = allowed.iter().position(|ok| *ok).unwrap_or(0);
        self.tasks.push(Task {
            name: spec.name.clone(),
            world,
            kind,
            scx: None,
            entity,
            state: State::Sleeping,
            cpu,
            allowed,
            batch: spec.batch,
            idle: spec.idle,
            real_time: spec.real_time,
            migration: Migration::Enabled,
            vmm_of: spec.vmm_of,
            woken: false,
            runnable_since: 0,
            ran_at: 0,
            timer_due: None,
            timer_turn: 0,
            last_wakee: usize::MAX,
            wakee_flips: 0,
            flips_at: 0,
            recent_cpu: cpu,
            ran_ns: 0,
            waited_ns: 0,
            migrations: 0,
            switches: 0,
        });
        self.introduce(task, spec.group, spec.nice);
        task
    }
}
