//! Life cycle: check, load, run, report, unload.

use crate::accounts::Accounts;
use crate::bpf::{intf, GuestSkel, GuestSkelBuilder};
use crate::crowd::Crowd;
use crate::domains::Domains;
use crate::gate::{self, Gate};
use crate::hints::Hints;
use crate::model::{self, GroupFacts, VcpuFacts};
use crate::monitoring::Monitoring;
use crate::observe::what_pays;
use crate::options::{Fault, GuestOptions};
use crate::park::{ParkOrder, ParkReport, Parking};
use crate::prober::Prober;
use crate::server::{Answer, Ask};
use crate::stats::GuestStats;
use crate::topology::TopologyKeeper;
use crate::{beside, speed, sys, GuestError};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};
use scx_utils::{
    scx_ops_attach, scx_ops_load, scx_ops_open, uei_exited, uei_report, ScxExitKind, UserExitInfo,
};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tandem_daemon::budget::Budget;
use tandem_daemon::cpulist::{isolated_cpus, kernel_cpu_list};
use tandem_daemon::preflight;
use tandem_daemon::standstill::{Pulse, Returns};

/// How often the daemon samples the estimates and the scheduler's state; sooner during a trial of the
/// vCPU limit (`crate::crowd`).
const STEP: Duration = Duration::from_millis(400);

/// How often it checks whether to end, while nothing is loaded.
const STAND_BY_STEP: Duration = Duration::from_millis(200);

/// Where the topology is saved.
const TOPOLOGY_FILE: &str = "/run/tandem/topology.json";

/// With -vv the verifier reports its effort for each program.
const VERIFIER_STATISTICS: u32 = 4;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// By request: the scheduler is unloaded.
    Stopped,
    /// The set of CPUs changed in a way that needs a new load.
    Restart,
    /// The scheduler does not help at the moment.
    SteppedBack,
    /// The machine stood still for this long, and the kernel ejected the scheduler when it went on.
    StoodStill(Duration),
}

/// CPUs that come and go without end must not make the daemon reload for ever: this many times in a row,
/// each within a minute of the one before.
const MOST_RESTARTS: u32 = 16;
const CALM: Duration = Duration::from_secs(60);

/// Loads the scheduler and runs until asked to stop, or until the kernel ejects it. Loads it again when
/// the set of CPUs has changed, and, if that is wanted, unloads it while it does not help.
///
/// # Errors
/// An obstacle found before loading, a refusal by the kernel, or the reason of an ejection.
pub fn serve(options: &GuestOptions) -> Result<(), GuestError> {
    // Before the socket of another scheduler is taken over.
    check(options)?;
    // Before anything is loaded: an address in use is no reason to load and unload a scheduler.
    let mut monitoring = Monitoring::start(options.metrics)?;
    let mut gate = options.gate.then(Gate::new);
    let mut restarts = 0;
    let mut returns = Returns::default();
    loop {
        let began = Instant::now();
        let outcome = run(options, &mut gate, &mut returns, &mut monitoring)?;
        if began.elapsed() > CALM {
            restarts = 0;
        }
        match outcome {
            Outcome::Stopped => return Ok(()),
            Outcome::Restart if restarts == MOST_RESTARTS => return Err(GuestError::Restarts(restarts)),
            Outcome::Restart => {
                restarts += 1;
                log::info!("the set of CPUs changed: loading again");
            }
            Outcome::StoodStill(pause) => {
                log::warn!(
                    "the machine stood still for {:.0} s, and the kernel's watchdog ejected the scheduler: loading again",
                    pause.as_secs_f64()
                );
                if let Some(gate) = &mut gate {
                    gate.forget();
                }
            }
            Outcome::SteppedBack => {
                if let Some(gate) = &mut gate {
                    stand_by(gate, &monitoring);
                }
            }
        }
        if sys::termination_requested() {
            return Ok(());
        }
    }
}

/// Can the scheduler be loaded here?
fn check(options: &GuestOptions) -> Result<(), GuestError> {
    let paths = preflight::SystemPaths::default();
    preflight::check(&paths, sys::is_root(), preflight::CgroupSupport::of_kernel, options.ignore_cgroups)?;
    Ok(())
}

/// Unloaded: waits until there is something to gain again, or until asked to stop.
fn stand_by(gate: &mut Gate, monitoring: &Monitoring) {
    gate.forget();
    let mut next = Instant::now();
    while gate.steps_back() && !sys::termination_requested() {
        if Instant::now() >= next {
            next += gate::WINDOW;
            match Accounts::read() {
                Some(accounts) => gate.window(accounts),
                None => gate.blind(),
            }
        }
        monitoring.answer_unloaded(Instant::now() + STAND_BY_STEP);
    }
    gate.forget();
}

/// Loads the scheduler and runs until asked to stop or until the kernel ejects it.
///
/// # Errors
/// An obstacle found before loading, a refusal by the kernel, or the reason of an ejection.
fn run(
    options: &GuestOptions,
    gate: &mut Option<Gate>,
    returns: &mut Returns,
    monitoring: &mut Monitoring,
) -> Result<Outcome, GuestError> {
    check(options)?;
    let level = if options.debug { libbpf_rs::PrintLevel::Debug } else { libbpf_rs::PrintLevel::Warn };
    scx_utils::init_libbpf_logging(Some(level));

    let mut storage = MaybeUninit::uninit();
    let mut running = Running::start(options, &mut storage)?;
    let result = running.supervise(options, gate, monitoring);
    if let Ok(facts) = running.facts() {
        monitoring.unloaded(&running.totals(&facts));
    }
    let now = Instant::now();
    running.pulse.beat(now);
    let stood_still = running.pulse.stood_still(now, running.patience).filter(|_| running.stalled());
    let info = running.stop();
    result?;
    if let Some(pause) = stood_still.filter(|_| info.is_err() && returns.once_more(now)) {
        return Ok(Outcome::StoodStill(pause));
    }
    let info = info?;
    Ok(if info.should_restart() {
        Outcome::Restart
    } else if gate.as_ref().is_some_and(Gate::steps_back) {
        Outcome::SteppedBack
    } else {
        Outcome::Stopped
    })
}

struct Running<'a> {
    skel: GuestSkel<'a>,
    link: Option<Link>,
    nr_cpus: usize,
    prober: Option<Prober>,
    topology: Option<TopologyKeeper>,
    parking: Parking,
    crowd: Option<Crowd>,
    trace_until: Option<Instant>,
    pulse: Pulse,
    /// For how long a task may wait until the kernel's watchdog ejects the scheduler.
    patience: Duration,
}

impl<'a> Running<'a> {
    fn start(options: &GuestOptions, storage: &'a mut MaybeUninit<OpenObject>) -> Result<Self, GuestError> {
        let nr_cpus = kernel_cpu_list("possible")?.last().map_or(1, |last| last + 1);
        let online = kernel_cpu_list("online")?;
        let hints = Hints::new(options, &preflight::SystemPaths::default())?;
        let domains = Domains::of_the_kernel(nr_cpus, &online);
        let mut skel = load(options, &hints, &domains, storage, &online).map_err(GuestError::Load)?;
        domains.install(&mut skel)?;
        let link = scx_ops_attach!(skel, tandem_guest).map_err(GuestError::Load)?;
        let (mut prober, mut topology) = (None, None);
        if options.probe {
            let budget = Arc::new(Budget::new(options.probe_budget_pct, online.len()));
            let isolated = if options.probe_isolated { Vec::new() } else { isolated_cpus() };
            prober = Some(Prober::new(nr_cpus, isolated.clone(), Arc::clone(&budget)));
            topology = Some(TopologyKeeper::start(nr_cpus, isolated, TOPOLOGY_FILE.into(), budget)?);
        }
        let source = StealSource::of(&skel);
        // The vCPU limit needs an exact account of steal.
        let crowd = (options.crowd && !options.dedicate && source.is_exact()).then(|| Crowd::new(domains));
        log::info!(
            "tandem guest scheduler loaded on {} of {nr_cpus} possible CPUs, steal from {}",
            online.len(),
            source.in_words()
        );
        if source == StealSource::PageUnused {
            log::warn!(
                "the hypervisor offers a steal time page, but this kernel does not use it (no-steal-acc?)"
            );
        }
        let patience =
            Duration::from_nanos(skel.maps.rodata_data.as_ref().map_or(0, |rodata| rodata.watchdog_ns));
        Ok(Self {
            skel,
            link: Some(link),
            nr_cpus,
            prober,
            topology,
            parking: Parking::default(),
            crowd,
            trace_until: None,
            pulse: Pulse::new(Instant::now()),
            patience,
        })
    }

    fn facts(&self) -> Result<Vec<VcpuFacts>, GuestError> {
        model::read(&self.skel.maps.cpus, self.nr_cpus, sys::monotonic_ns())
    }

    fn totals(&self, facts: &[VcpuFacts]) -> GuestStats {
        let groups = self.skel.maps.bss_data.as_ref().map_or_else(GroupFacts::default, |bss| GroupFacts {
            groups: u64::from(bss.nr_groups),
            shared: u64::from(bss.nr_groups_shared),
            limits: u64::from(bss.nr_limits),
        });
        GuestStats::totals(facts, groups)
    }

    fn exited(&self) -> bool {
        uei_exited!(&self.skel, uei)
    }

    /// Did the watchdog eject it?
    fn stalled(&self) -> bool {
        let stall = ScxExitKind::ErrorStall as i32;
        self.skel.maps.data_data.as_ref().is_some_and(|data| data.uei.kind == stall)
    }

    fn supervise(
        &mut self,
        options: &GuestOptions,
        gate: &mut Option<Gate>,
        monitoring: &Monitoring,
    ) -> Result<(), GuestError> {
        let mut reported = GuestStats::default();
        let mut next_report = options.stats_interval.map(|interval| Instant::now() + interval);
        let mut next_step = Instant::now();
        // The time of loading itself is in no window.
        let mut next_window = Instant::now() + gate::WINDOW;
        while !sys::termination_requested() && !self.exited() {
            self.pulse.beat(Instant::now());
            // A request for statistics is answered at once; otherwise this is the pause between steps.
            match monitoring.question(next_step.saturating_duration_since(Instant::now())) {
                Some(ask) => {
                    monitoring.answer(match ask {
                        Ask::Stats => {
                            Answer::Stats(Box::new(monitoring.totals(&self.totals(&self.facts()?))))
                        }
                        Ask::Park(order) => Answer::Park(self.park(&order)),
                        Ask::Trace(length) => Answer::Trace(Ok(self.trace(length))),
                    });
                    continue;
                }
                None => std::thread::sleep(next_step.saturating_duration_since(Instant::now())),
            }
            let now = Instant::now();
            next_step = now + STEP;
            // The client that asked for a trace may be gone.
            if self.trace_until.is_some_and(|end| now >= end) {
                self.trace(Duration::ZERO);
            }
            if let Some(domains) = self.topology.as_ref().and_then(TopologyKeeper::news) {
                log::info!("{}", domains.in_words());
                domains.install(&mut self.skel)?;
                if let Some(crowd) = &mut self.crowd {
                    crowd.learn(&self.skel, domains)?;
                }
            }
            if let Some(gate) = gate.as_mut().filter(|_| now >= next_window) {
                next_window = now + gate::WINDOW;
                if let Some(accounts) = Accounts::read() {
                    gate.window(accounts);
                }
                // The last window of a trial is one with the scheduler, which has measured the vCPUs.
                if gate.trial_ended() {
                    let neighbours = beside::neighbours(&self.facts()?);
                    let pays = if gate.steps_back() { "" } else { what_pays(neighbours) };
                    log::info!("{neighbours}{}{pays}", if pays.is_empty() { "" } else { ": " });
                }
                if gate.steps_back() {
                    return Ok(());
                }
            }
            let facts = self.facts()?;
            if let Some(crowd) = &mut self.crowd {
                let probes = self.topology.as_ref().map_or(0, TopologyKeeper::turns);
                next_step = now + crowd.step(&self.skel, &facts, now, probes)?;
            }
            if let Some(prober) = &mut self.prober {
                prober.step(&facts, now);
                let news = prober.news_of_speeds();
                speed::install(&self.skel, &news, prober.cores_are_unlike())?;
            }
            if let Some(topology) = &mut self.topology {
                topology.look(&facts);
            }
            monitoring.update(&self.totals(&facts));
            if let (Some(at), Some(interval)) = (next_report, options.stats_interval) {
                if now >= at {
                    next_report = Some(now + interval);
                    let totals = self.totals(&facts);
                    // A closed standard output must not end the scheduler.
                    let _ = totals.since(&reported).format(&mut std::io::stdout().lock());
                    reported = totals;
                }
            }
        }
        Ok(())
    }

    /// Orders of the operator come first: the vCPU limit begins anew.
    fn park(&mut self, order: &ParkOrder) -> Result<ParkReport, GuestError> {
        if let Some(crowd) = &mut self.crowd {
            crowd.start_again(&self.skel)?;
        }
        self.parking.order(&self.skel, order)
    }

    /// Lets the scheduler record what it does for `length`. Returns how many records were lost since the last order.
    fn trace(&mut self, length: Duration) -> u64 {
        self.trace_until = (!length.is_zero()).then(|| Instant::now() + length);
        let Some(bss) = self.skel.maps.bss_data.as_mut() else { return 0 };
        bss.tracing = u32::from(self.trace_until.is_some());
        std::mem::take(&mut bss.nr_untraced)
    }

    /// Unloads the scheduler and reports why it ended.
    fn stop(&mut self) -> Result<UserExitInfo, GuestError> {
        // The probers first: they are tasks of this scheduler.
        self.prober = None;
        self.topology = None;
        self.link = None;
        self.parking.end();
        uei_report!(&self.skel, uei).map_err(GuestError::Ejected)
    }
}

/// Where steal comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StealSource {
    /// The page that KVM writes.
    Page,
    /// The kernel's own accounting.
    Kernel,
    /// Nothing reports it; the kernel does not use the page that is offered.
    PageUnused,
    /// Nothing reports it; it is estimated from late ticks.
    Ticks,
}

impl StealSource {
    /// As the scheduler found it when it was loaded.
    fn of(skel: &GuestSkel<'_>) -> Self {
        let (unused, untold) = skel
            .maps
            .bss_data
            .as_ref()
            .map_or((false, false), |bss| (bss.steal_page_unused != 0, bss.steal_untold != 0));
        match (unused, untold) {
            (false, false) if sys::kvm_steal_time() => Self::Page,
            (true, true) => Self::PageUnused,
            (_, false) => Self::Kernel,
            (false, true) => Self::Ticks,
        }
    }

    /// Is it reported?
    fn is_exact(self) -> bool {
        matches!(self, Self::Page | Self::Kernel)
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Page => "the KVM steal time page",
            Self::Kernel => "the kernel's accounting",
            Self::PageUnused | Self::Ticks => "late ticks (the host does not report it)",
        }
    }
}

fn load<'a>(
    options: &GuestOptions,
    hints: &Hints,
    domains: &Domains,
    storage: &'a mut MaybeUninit<OpenObject>,
    online: &[usize],
) -> anyhow::Result<GuestSkel<'a>> {
    let nr_cpus = domains.nr_cpus();
    let builder = GuestSkelBuilder::default();
    let verbose = options.debug.then(|| libbpf_rs::libbpf_sys::bpf_object_open_opts {
        sz: std::mem::size_of::<libbpf_rs::libbpf_sys::bpf_object_open_opts>() as _,
        kernel_log_level: VERIFIER_STATISTICS,
        ..Default::default()
    });
    let reports_steal = sys::kvm_steal_time();
    let mut open = scx_ops_open!(builder, storage, tandem_guest, verbose)?;
    if let Some(rodata) = open.maps.rodata_data.as_mut() {
        rodata.nr_cpu_ids = u32::try_from(nr_cpus)?;
        rodata.kvm_steal_page = reports_steal;
        rodata.steal_may_be_guessed = sys::may_be_stolen_from();
        rodata.cgroups_enabled = !options.ignore_cgroups;
        rodata.slice_timers_enabled = options.slice_timers;
        rodata.base_request_ns = options.slice_us * 1000;
        rodata.ivh_enabled = options.harvest;
        rodata.bvs_enabled = options.place_by_cost;
        rodata.parts_left_out = options.without.iter().fold(0, |bits, part| bits | part.bit());
        rodata.rwc_enabled = options.ban;
        rodata.dedicate_enabled = options.dedicate;
        rodata.hints_enabled = !hints.is_empty();
        rodata.fault = match options.fault {
            Fault::None | Fault::NoRelease => intf::fault_FAULT_NONE,
            Fault::Stall => intf::fault_FAULT_STALL,
            Fault::Error => intf::fault_FAULT_ERROR,
        };
        rodata.watchdog_ns = u64::from(open.struct_ops.tandem_guest().timeout_ms) * 1_000_000;
    }
    open.maps.cpus.set_max_entries(u32::try_from(nr_cpus)?)?;
    let cells = u32::try_from(nr_cpus)?.min(intf::MAX_LOAD_CELLS);
    open.maps.group_load.set_max_entries(cells * intf::MAX_GROUPS)?;
    open.maps.domains.set_max_entries(u32::try_from(nr_cpus)?)?;
    open.maps.slice_timers.set_max_entries(u32::try_from(nr_cpus)?)?;
    open.maps.ivh_timers.set_max_entries(u32::try_from(nr_cpus)?)?;
    let ops = open.struct_ops.tandem_guest_mut();
    ops.exit_dump_len = options.exit_dump_len;
    // Wake-ups on idle CPUs are completed there, not by the waking CPU (older kernels have no such flag:
    // 0). Not where the host may have preempted the idle vCPU: until it is scheduled in no vCPU could
    // pull the task. Nor across caches, where the kernel would leave wake-ups on busy CPUs to be
    // completed there as well, by interrupting them.
    if !reports_steal && domains.caches() == 1 {
        ops.flags |= *scx_utils::compat::SCX_OPS_ALLOW_QUEUED_WAKEUP;
    }
    if options.partial {
        ops.flags |= *scx_utils::compat::SCX_OPS_SWITCH_PARTIAL;
    }
    if options.fault == Fault::NoRelease
        || !scx_utils::compat::struct_has_field("sched_ext_ops", "cpu_release")?
    {
        open.struct_ops.tandem_guest_mut().cpu_release = std::ptr::null_mut();
        open.progs.core_sched_switch.set_autoload(true);
    }
    let skel = scx_ops_load!(open, tandem_guest, uei)?;
    let there = 1u32.to_ne_bytes();
    for key in hints.names() {
        skel.maps.hinted_names.update(key, &there, MapFlags::ANY)?;
    }
    for id in hints.groups() {
        skel.maps.hinted_groups.update(&id.to_ne_bytes(), &there, MapFlags::ANY)?;
    }
    let tickless = kernel_cpu_list("nohz_full").unwrap_or_default();
    for &cpu in online.iter().filter(|cpu| **cpu < nr_cpus) {
        let mut record = vec![0u8; skel.maps.cpus.value_size() as usize];
        let mut put =
            |at: usize, value: bool| record[at..at + 4].copy_from_slice(&u32::from(value).to_ne_bytes());
        put(std::mem::offset_of!(intf::cpu_state, online), true);
        put(std::mem::offset_of!(intf::cpu_state, tickless), tickless.contains(&cpu));
        skel.maps.cpus.update(&u32::try_from(cpu)?.to_ne_bytes(), &record, MapFlags::ANY)?;
    }
    Ok(skel)
}
