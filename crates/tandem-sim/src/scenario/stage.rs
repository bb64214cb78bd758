//! Builds the machine of a scenario.

use super::{bad, Competitor, Contention, Kernel, Scenario, Vm, What};
use crate::hardware::Hardware;
use crate::machine::{Change, Machine};
use crate::program::{Barrier, Condition, Device, Items, Lock, Mailbox, Program, Requests, Step};
use crate::queue::{Event, Ns};
use crate::random::{Spread, Stream};
use crate::scx::{Settings, Techniques, NO_BOOSTS};
use crate::setup::{host, GroupSpec, TaskSpec};
use crate::workload::{Intake, Process, Workload};
use crate::SimError;

/// Where the parts of a placed workload are in the machine.
#[derive(Debug, Clone, Default)]
pub struct Installed {
    /// Its name.
    pub name: String,
    /// Its tasks, with the names of their kinds.
    pub tasks: Vec<(String, usize)>,
    /// Its streams.
    pub streams: Vec<(String, usize)>,
    /// Its barriers.
    pub barriers: Vec<(String, usize)>,
}

/// A scenario that is ready to run.
pub struct Stage {
    /// The machine.
    pub machine: Machine,
    /// Its workloads.
    pub workloads: Vec<Installed>,
    /// Length, ns.
    pub end: Ns,
}

impl Scenario {
    /// What the guest scheduler is told of its vCPUs. If each is pinned to one pCPU, the topology of these pCPUs,
    /// as the probe finds it; otherwise the topology that the guest's kernel assumes.
    fn as_probed(&self, layout: Hardware, pins: &[Vec<usize>]) -> Settings {
        let pinned: Option<Vec<usize>> = pins.iter().map(|list| (list.len() == 1).then(|| list[0])).collect();
        let believed =
            |of: fn(&Hardware, usize) -> usize| (0..pins.len()).map(|cpu| of(&layout, cpu)).collect();
        let probed = |of: fn(&Hardware, usize) -> usize, pinned: &[usize]| {
            pinned.iter().map(|pcpu| of(&self.hardware, *pcpu)).collect()
        };
        let (caches, cores, threads) = match &pinned {
            Some(pinned) => {
                (probed(Hardware::cache_of, pinned), probed(Hardware::core_of, pinned), pinned.clone())
            }
            // Cores that its kernel knows of are left to that kernel's idle selection.
            None => (believed(Hardware::cache_of), (0..pins.len()).collect(), (0..pins.len()).collect()),
        };
        let mut settings = Settings { caches, cores, threads, steal_page: true, ..Settings::of(layout) };
        if let Some(pinned) = &pinned {
            let speeds = pinned.iter().map(|pcpu| self.hardware.speed(*pcpu));
            let fastest = speeds.clone().fold(0.0, f64::max);
            settings.speeds = speeds.map(|speed| speed / fastest).collect();
        }
        settings
    }

    fn stage_phases(&self, machine: &mut Machine, vcpus: &[usize], competitors: &[Vec<usize>]) {
        let quota = |group: usize, max: (u64, u64)| Change::Quota {
            group,
            quota_ns: max.0 * 1000,
            period_ns: max.1 * 1000,
        };
        for (index, phase) in self.phases.iter().enumerate() {
            let mut changes: Vec<Change> =
                vcpus.iter().zip(&phase.vcpu_max_us).map(|(group, max)| quota(*group, *max)).collect();
            for (groups, max) in competitors.iter().zip(&phase.competitors) {
                changes.extend(groups.iter().map(|group| quota(*group, *max)));
            }
            let pcpus = self.hardware.cpus();
            for (cpu, pins) in phase.pins.iter().flatten().enumerate() {
                if let Some(task) = machine.worlds.get(1).and_then(|world| world.cpus.get(cpu)?.vcpu) {
                    changes.push(Change::Pins {
                        task,
                        allowed: (0..pcpus).map(|pcpu| pins.contains(&pcpu)).collect(),
                    });
                }
            }
            machine.phases.push(changes);
            machine.at((phase.at_s * 1e9) as Ns, Event::Phase { index });
        }
    }

    /// Builds the machine.
    ///
    /// # Errors
    /// A workload that cannot be read, or that names CPUs that its kernel does not have.
    pub fn stage(&self, seed: u64) -> Result<Stage, SimError> {
        let host_spec = self.host.spec()?;
        let mut machine = host(self.hardware.clone(), self.costs.clone(), &host_spec, seed);
        if host_spec.policy {
            let caches = (0..self.hardware.cpus()).map(|cpu| self.hardware.cache_of(cpu)).collect();
            let tick_ns = host_spec.tick_ns;
            let slice_timers = self.host.slice_timers;
            let settings = Settings {
                of_the_host: true,
                // As the daemon sets it (`tandem_host::slice`).
                request_ns: machine.worlds[0].fair.base_slice_ns().max(tandem_policy::REQUEST_NS),
                caches,
                tick_ns,
                slice_timers,
                techniques: Techniques {
                    left_out: if self.host.boosts { 0 } else { NO_BOOSTS },
                    ..Techniques::default()
                },
                ..Settings::of(self.hardware.clone())
            };
            machine.attach(0, &settings)?;
        }
        machine.redirects = self.host.redirects;
        machine.record.from = (self.warmup_s * 1e9) as Ns;
        let all: Vec<usize> = (0..self.hardware.cpus()).collect();
        let mut vcpu_quotas = Vec::new();
        for vm in &self.vms {
            let max = vm.max_us.map(|(quota, period)| (quota * 1000, period * 1000));
            let group =
                machine.add_group(0, 0, &GroupSpec { weight: vm.weight, max, ..GroupSpec::default() });
            let groups = vcpu_groups(&mut machine, vm, group, seed);
            vcpu_quotas.push(groups.clone());
            let pins = vm.pins.clone().unwrap_or_else(|| vec![all.clone(); vm.vcpus]);
            let flat = Hardware { cores: vm.vcpus, ..Hardware::default() };
            let layout = vm.layout.clone().unwrap_or(flat);
            let spec = vm.kernel.spec()?;
            let world = machine.add_guest(&vm.name, &spec, layout.clone(), &pins, &groups);
            if spec.policy {
                let settings = self.as_probed(layout, &pins);
                let Kernel { slice_timers, ivh, bvs, rwc, dedicate, .. } = vm.kernel;
                let left_out = vm.kernel.without.iter().fold(0, |bits, part| bits | *part as u32);
                let techniques = Techniques { ivh, bvs, rwc, dedicate, left_out };
                let threads = settings.threads.clone();
                machine.attach(world, &Settings { slice_timers, techniques, ..settings })?;
                if vm.kernel.vcpu_limit && !dedicate {
                    machine.limit_vcpus(world, &threads);
                }
                if vm.kernel.probes {
                    add_probers(&mut machine, world, seed);
                }
            }
        }
        let mut competitor_quotas = Vec::new();
        for (number, competitor) in self.competitors.iter().enumerate() {
            competitor_quotas.push(compete(&mut machine, competitor, seed ^ (number as u64) << 16));
        }
        self.stage_phases(
            &mut machine,
            vcpu_quotas.first().map_or(&[][..], Vec::as_slice),
            &competitor_quotas,
        );
        for (number, contention) in self.contention.iter().enumerate() {
            for (turn, &cpu) in contention.cpus.iter().enumerate() {
                contend(&mut machine, contention, (turn, cpu), seed ^ (number as u64) << 8);
            }
        }
        if self.metrics.iter().any(|metric| metric.what == What::Cores) {
            machine.record.cores = Some(Vec::new());
            machine.at(0, Event::Sample);
        }
        let mut workloads = Vec::new();
        for placed in &self.workloads {
            let world = 1 + self.vms.iter().position(|vm| vm.name == placed.place).unwrap_or(usize::MAX - 1);
            let world = if placed.place == "host" { 0 } else { world };
            let group = match placed.max_us {
                Some(max) => machine.add_group(world, 0, &limited(seed, 2000 + workloads.len(), max)),
                None => 0,
            };
            workloads.push(install(
                &mut machine,
                (world, group),
                &placed.name,
                &placed.read()?,
                self.confined_to.as_deref(),
                seed,
            )?);
        }
        Ok(Stage { machine, workloads, end: (self.duration_s * 1e9) as Ns })
    }
}

/// A random phase in a period, by seed, ns.
fn any_phase(seed: u64, entity: usize, period_ns: Ns) -> Ns {
    1 + Stream::new(seed, "phase", entity as u64).below(period_ns)
}

/// A group with a quota, whose periods begin at a random phase.
fn limited(seed: u64, entity: usize, (quota_us, period_us): (u64, u64)) -> GroupSpec {
    let period_ns = period_us * 1000;
    GroupSpec {
        max: Some((quota_us * 1000, period_ns)),
        first_refill_ns: Some(any_phase(seed, entity, period_ns)),
        ..GroupSpec::default()
    }
}

/// Host groups of a guest's vCPUs: one of its own for a vCPU with a quota, otherwise the guest's.
fn vcpu_groups(machine: &mut Machine, vm: &Vm, group: usize, seed: u64) -> Vec<usize> {
    let own = |(cpu, max): (usize, &(u64, u64))| match *max {
        (0, _) | (_, 0) => group,
        max => machine.add_group(0, group, &limited(seed, cpu, max)),
    };
    let mut groups: Vec<usize> = vm.vcpu_max_us.iter().enumerate().map(own).collect();
    groups.resize(vm.vcpus, group);
    groups
}

fn compete(machine: &mut Machine, competitor: &Competitor, seed: u64) -> Vec<usize> {
    let mut groups = Vec::new();
    for &cpu in &competitor.cpus {
        let group = match competitor.max_us {
            Some(max) => machine.add_group(0, 0, &limited(seed, 1000 + cpu, max)),
            None => 0,
        };
        let spec = TaskSpec {
            nice: competitor.nice,
            cpus: Some(vec![cpu]),
            group,
            ..TaskSpec::new(&format!("competitor/{cpu}"), Program::cpu_bound(1000.0))
        };
        machine.add_task(0, &spec, seed);
        groups.push(group);
    }
    groups
}

/// The daemon's probers: on each vCPU a SCHED_IDLE task that works for a little more than a measurement window,
/// then pauses.
fn add_probers(machine: &mut Machine, world: usize, seed: u64) {
    const PROBE_US: f64 = 14_000.0;
    const PAUSE_US: f64 = 2_000_000.0;
    for cpu in 0..machine.worlds[world].cpus.len() {
        let program = Program {
            steps: vec![Step::Run(Spread::constant(PROBE_US)), Step::Sleep(Spread::constant(PAUSE_US))],
            ..Program::cpu_bound(1.0)
        };
        let spec =
            TaskSpec { idle: true, cpus: Some(vec![cpu]), ..TaskSpec::new(&format!("probe/{cpu}"), program) };
        machine.add_task(world, &spec, seed);
    }
}

/// A real-time competitor. `turn`: index of its pCPU among the contended ones, if they are contended one at a time.
fn contend(machine: &mut Machine, contention: &Contention, (turn, cpu): (usize, usize), seed: u64) {
    let spread =
        |mean| if contention.irregular { Spread::Exponential { mean } } else { Spread::constant(mean) };
    let period_us = contention.on_us + contention.off_us;
    let once = || [Step::Run(spread(contention.on_us)), Step::Sleep(spread(contention.off_us))];
    let times = (contention.swap_ms * 1000.0 / period_us).round().max(1.0);
    let mut steps: Vec<Step> = (0..times as usize).flat_map(|_| once()).collect();
    let rest_us = times * period_us * (contention.cpus.len() - 1) as f64;
    if contention.swap_ms > 0.0 && rest_us > 0.0 {
        steps.push(Step::Sleep(Spread::constant(rest_us)));
    }
    let program = Program { steps, ..Program::cpu_bound(1.0) };
    let mut phase = Stream::new(seed, "phase", cpu as u64);
    let period = if contention.any_phase { period_us } else { 0.0 };
    let turns_us = if contention.swap_ms > 0.0 { turn as f64 * times * period_us } else { 0.0 };
    let start = ((contention.phase_us + turns_us + period * phase.unit()) * 1000.0) as Ns;
    let spec = TaskSpec {
        real_time: true,
        cpus: Some(vec![cpu]),
        start_ns: start,
        ..TaskSpec::new(&format!("contention/{cpu}"), program)
    };
    machine.add_task(0, &spec, seed);
}

/// Adds a workload's resources and tasks to a group of a kernel.
fn install(
    machine: &mut Machine,
    (world, parent): (usize, usize),
    name: &str,
    workload: &Workload,
    confined_to: Option<&[usize]>,
    seed: u64,
) -> Result<Installed, SimError> {
    let cpus = machine.worlds[world].cpus.len();
    let offset = (
        machine.locks.len(),
        machine.conditions.len(),
        machine.barriers.len(),
        machine.items.len(),
        machine.requests.len(),
        machine.devices.len(),
        machine.mailboxes.len(),
    );
    machine.locks.extend(workload.locks.iter().map(|_| Lock::default()));
    machine.conditions.extend(workload.conditions.iter().map(|_| Condition::default()));
    machine
        .barriers
        .extend(workload.barriers.iter().map(|(_, size)| Barrier { size: *size, ..Barrier::default() }));
    machine.items.extend(
        workload.queues.iter().map(|(_, capacity)| Items { capacity: *capacity, ..Items::default() }),
    );
    machine.mailboxes.extend(workload.mailboxes.iter().map(|_| Mailbox::default()));
    let mut installed = Installed { name: name.to_owned(), ..Installed::default() };
    for (i, (stream, spec)) in workload.streams.iter().enumerate() {
        let number = offset.4 + i;
        let mean = 1e6 / spec.rate_hz;
        let irq_cpus = spec.irq_cpus.clone().unwrap_or_else(|| (0..cpus).collect());
        if irq_cpus.is_empty() || irq_cpus.iter().any(|cpu| *cpu >= cpus) {
            return Err(bad(format!("workload {name}: {stream}: irq_cpus are CPUs below {cpus}")));
        }
        machine.requests.push(Requests {
            interval: match spec.process {
                Process::Poisson => Spread::Exponential { mean },
                Process::Regular => Spread::constant(mean),
            },
            service: spec.service.clone(),
            arrivals: Stream::new(seed, "arrivals", number as u64),
            services: Stream::new(seed, "services", number as u64),
            waiting: Default::default(),
            idle: Vec::new(),
            irq_cpus,
            arrived: 0,
            intake: spec.intake,
            next_at: 0,
            receiver: None,
            locked_out: Default::default(),
            world,
        });
        installed.streams.push((stream.clone(), number));
        if !matches!(spec.intake, Intake::Own | Intake::Dispatched) {
            machine.at(0, Event::Arrival { stream: number });
        }
    }
    for (i, (device, spec)) in workload.devices.iter().enumerate() {
        if spec.irq_cpu >= cpus || spec.parallel == 0 {
            return Err(bad(format!("workload {name}: {device}: irq_cpu below {cpus}, parallel from 1 on")));
        }
        machine.devices.push(Device {
            service: spec.service.clone(),
            stream: Stream::new(seed, "devices", (offset.5 + i) as u64),
            parallel: spec.parallel,
            busy: 0,
            waiting: Default::default(),
            irq_cpu: spec.irq_cpu,
            world,
        });
    }
    installed.barriers =
        workload.barriers.iter().enumerate().map(|(i, (name, _))| (name.clone(), offset.2 + i)).collect();
    let mut groups: Vec<(String, usize)> = Vec::new();
    for kind in &workload.tasks {
        if kind.cpus.as_ref().is_some_and(|list| list.is_empty() || list.iter().any(|cpu| *cpu >= cpus)) {
            return Err(bad(format!("workload {name}: task {:?}: cpus below {cpus}", kind.name)));
        }
        let group = match &kind.group {
            None => parent,
            Some(group) => match groups.iter().find(|(other, _)| other == group) {
                Some((_, number)) => *number,
                None => {
                    let number = machine.add_group(world, parent, &GroupSpec::default());
                    groups.push((group.clone(), number));
                    number
                }
            },
        };
        let mut program = kind.program.clone();
        for step in &mut program.steps {
            shift(step, &offset);
        }
        for _ in 0..kind.instances {
            let spec = TaskSpec {
                name: kind.name.clone(),
                program: program.clone(),
                nice: kind.nice,
                idle: kind.idle,
                batch: kind.batch,
                real_time: false,
                cpus: kind.cpus.clone().or_else(|| confined_to.filter(|_| world != 0).map(<[usize]>::to_vec)),
                group,
                slice_ns: kind.slice_ns,
                start_ns: kind.start_ns,
                vmm_of: None,
            };
            let task = machine.add_task(world, &spec, seed);
            installed.tasks.push((kind.name.clone(), task));
        }
    }
    Ok(installed)
}

/// A workload numbers its resources from 0. In the machine they come after those of other workloads.
fn shift(step: &mut Step, offset: &(usize, usize, usize, usize, usize, usize, usize)) {
    match step {
        Step::Lock(n) | Step::Unlock(n) => *n += offset.0,
        Step::Wait { condition, lock } => {
            *condition += offset.1;
            *lock += offset.0;
        }
        Step::Signal(n) | Step::Broadcast(n) => *n += offset.1,
        Step::Barrier(n) => *n += offset.2,
        Step::Get(n) | Step::Put(n) => *n += offset.3,
        Step::Serve(n) | Step::Dispatch(n) => *n += offset.4,
        Step::Device(n) => *n += offset.5,
        Step::Send(n) | Step::Receive(n) => *n += offset.6,
        Step::Run(_)
        | Step::Program(_)
        | Step::Sleep(_)
        | Step::Timer(_)
        | Step::Yield
        | Step::Shootdown
        | Step::Hop
        | Step::Count => {}
    }
}
