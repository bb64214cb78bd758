//! The guest's side of the life cycle (`tandem_daemon::life`): what is loaded, what is done at each step, and which orders
//! there are.

use crate::accounts::Accounts;
use crate::bpf::{intf, GuestSkel, GuestSkelBuilder};
use crate::domains::Domains;
use crate::gate::{self, Gate};
use crate::hints::Hints;
use crate::model::{self, GroupFacts, VcpuFacts};
use crate::observe::what_pays;
use crate::options::{Fault, GuestOptions};
use crate::park::{ParkOrder, Parking, ASK_PARK};
use crate::prober::Prober;
use crate::stats::GuestStats;
use crate::topology::TopologyKeeper;
use crate::vcpu_limit::Limiter;
use crate::{beside, metrics, speed, sys, GuestError};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};
use scx_utils::{
    scx_ops_attach, scx_ops_load, scx_ops_open, uei_exited, uei_report, ScxExitKind, UserExitInfo,
};
use serde_json::Value;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tandem_daemon::budget::Budget;
use tandem_daemon::cpulist::{isolated_cpus, kernel_cpu_list};
use tandem_daemon::life::{self, Load, Side, Then};
use tandem_daemon::monitoring::Monitoring;
use tandem_daemon::server::Orders;
use tandem_daemon::{preflight, DaemonError};

/// How often the daemon samples the estimates and the scheduler's state; sooner during a trial of the
/// vCPU limit (`crate::vcpu_limit`).
const STEP: Duration = Duration::from_millis(400);

/// How often it checks whether to end, while nothing is loaded.
const STAND_BY_STEP: Duration = Duration::from_millis(200);

/// Where the topology is saved.
const TOPOLOGY_FILE: &str = "/run/tandem/topology.json";

/// With -vv the verifier reports its effort for each program.
const VERIFIER_STATISTICS: u32 = 4;

/// Loads the scheduler and runs until asked to stop, or until the kernel ejects it. Loads it again when
/// the set of CPUs has changed, and, if that is wanted, unloads it while it does not help.
///
/// # Errors
/// An obstacle found before loading, a refusal by the kernel, or the reason of an ejection.
pub fn serve(options: &GuestOptions) -> Result<(), GuestError> {
    let settings = life::Settings {
        stats_interval: options.stats_interval,
        metrics: options.metrics,
        debug: options.debug,
    };
    life::serve(&mut Guest { options, gate: options.gate.then(Gate::new), parking: None }, &settings)
}

/// The guest's daemon.
struct Guest<'o> {
    options: &'o GuestOptions,
    gate: Option<Gate>,
    /// Of all loads. Nothing before the first one: a daemon that is refused must not put back another one's interrupts.
    parking: Option<Parking>,
}

impl Side for Guest<'_> {
    type Report = GuestStats;
    type Order = ParkOrder;
    type Error = GuestError;
    type Load<'a>
        = Running<'a>
    where
        Self: 'a;

    const ORDERS: Orders<ParkOrder> = &[(ASK_PARK, |args| Ok(ParkOrder::from_args(args)?))];

    fn render(report: &GuestStats) -> String {
        metrics::render(report)
    }

    fn check(&self) -> Result<(), GuestError> {
        let paths = preflight::SystemPaths::default();
        let ignore = self.options.ignore_cgroups;
        Ok(preflight::check(&paths, sys::is_root(), preflight::CgroupSupport::of_kernel, ignore)?)
    }

    fn load<'a>(&'a mut self, storage: &'a mut MaybeUninit<OpenObject>) -> Result<Running<'a>, GuestError> {
        Running::start(self, storage)
    }

    fn stand_by(&mut self, monitoring: &Monitoring<ParkOrder, GuestStats>) {
        let Some(gate) = &mut self.gate else { return };
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

    fn stood_still(&mut self) {
        if let Some(gate) = &mut self.gate {
            gate.forget();
        }
    }
}

struct Running<'a> {
    skel: GuestSkel<'a>,
    link: Option<Link>,
    nr_cpus: usize,
    gate: Option<&'a mut Gate>,
    /// End of the gate's current window.
    next_window: Instant,
    prober: Option<Prober>,
    topology: Option<TopologyKeeper>,
    parking: &'a mut Parking,
    vcpu_limit: Option<Limiter>,
}

impl<'a> Running<'a> {
    fn start(guest: &'a mut Guest<'_>, storage: &'a mut MaybeUninit<OpenObject>) -> Result<Self, GuestError> {
        let Guest { options, gate, parking } = guest;
        let parking = parking.get_or_insert_default();
        let nr_cpus = kernel_cpu_list("possible")?.last().map_or(1, |last| last + 1);
        let online = kernel_cpu_list("online")?;
        let hints = Hints::new(options, &preflight::SystemPaths::default())?;
        let domains = Domains::of_the_kernel(nr_cpus, &online);
        let mut skel = load(options, &hints, &domains, storage, &online).map_err(DaemonError::Load)?;
        domains.install(&mut skel)?;
        let link = scx_ops_attach!(skel, tandem_guest).map_err(DaemonError::Load)?;
        let (mut prober, mut topology) = (None, None);
        if options.probe {
            let budget = Arc::new(Budget::new(options.probe_budget_pct, online.len()));
            let isolated = if options.probe_isolated { Vec::new() } else { isolated_cpus() };
            prober = Some(Prober::new(nr_cpus, isolated.clone(), Arc::clone(&budget)));
            topology = Some(TopologyKeeper::start(nr_cpus, isolated, TOPOLOGY_FILE.into(), budget)?);
        }
        let source = StealSource::of(&skel);
        // The vCPU limit needs an exact account of steal.
        let vcpu_limit =
            (options.vcpu_limit && !options.dedicate && source.is_exact()).then(|| Limiter::new(domains));
        log::info!(
            "tandem guest scheduler loaded on {} of {nr_cpus} possible CPUs, steal from {}",
            online.len(),
            source.in_words()
        );
        if source == StealSource::PageUnused {
            log::warn!("the hypervisor offers a steal time page, but this kernel has not registered it");
        }
        parking.again(&skel);
        Ok(Self {
            skel,
            link: Some(link),
            nr_cpus,
            gate: gate.as_mut(),
            // The time of loading itself is in no window.
            next_window: Instant::now() + gate::WINDOW,
            prober,
            topology,
            parking,
            vcpu_limit,
        })
    }

    fn facts(&self) -> Result<Vec<VcpuFacts>, GuestError> {
        Ok(model::read(&self.skel.maps.cpus, self.nr_cpus, sys::monotonic_ns())?)
    }

    fn totals(&self, facts: &[VcpuFacts]) -> GuestStats {
        let groups = self.skel.maps.bss_data.as_ref().map_or_else(GroupFacts::default, |bss| GroupFacts {
            groups: u64::from(bss.nr_groups),
            shared: u64::from(bss.nr_groups_shared),
            limits: u64::from(bss.nr_limits),
        });
        GuestStats::totals(facts, groups)
    }

    /// A window of the gate may have ended. Returns whether the scheduler is to be unloaded.
    fn window_of_the_gate(&mut self, now: Instant) -> Result<bool, GuestError> {
        if now < self.next_window {
            return Ok(false);
        }
        let Some(gate) = &mut self.gate else { return Ok(false) };
        self.next_window = now + gate::WINDOW;
        if let Some(accounts) = Accounts::read() {
            gate.window(accounts);
        }
        let (ended, steps_back) = (gate.trial_ended(), gate.steps_back());
        // The last window of a trial is one with the scheduler, which has measured the vCPUs.
        if ended {
            let neighbours = beside::neighbours(&self.facts()?);
            let pays = if steps_back { "" } else { what_pays(neighbours) };
            log::info!("{neighbours}{}{pays}", if pays.is_empty() { "" } else { ": " });
        }
        Ok(steps_back)
    }
}

impl Load for Running<'_> {
    type Report = GuestStats;
    type Order = ParkOrder;
    type Error = GuestError;

    fn exited(&self) -> bool {
        uei_exited!(&self.skel, uei)
    }

    fn stalled(&self) -> bool {
        let stall = ScxExitKind::ErrorStall as i32;
        self.skel.maps.data_data.as_ref().is_some_and(|data| data.uei.kind == stall)
    }

    fn patience(&self) -> Duration {
        Duration::from_nanos(self.skel.maps.rodata_data.as_ref().map_or(0, |rodata| rodata.watchdog_ns))
    }

    fn report(&self) -> Result<GuestStats, GuestError> {
        Ok(self.totals(&self.facts()?))
    }

    fn step(&mut self, now: Instant) -> Result<Then, GuestError> {
        let mut next_step = now + STEP;
        if let Some(domains) = self.topology.as_ref().and_then(TopologyKeeper::news) {
            log::info!("{}", domains.in_words());
            domains.install(&mut self.skel)?;
            if let Some(vcpu_limit) = &mut self.vcpu_limit {
                vcpu_limit.learn(&self.skel, domains)?;
            }
        }
        let steps_back = self.window_of_the_gate(now)?;
        if steps_back {
            return Ok(Then::StepBack);
        }
        let facts = self.facts()?;
        if let Some(vcpu_limit) = &mut self.vcpu_limit {
            let probes = self.topology.as_ref().map_or(0, TopologyKeeper::turns);
            next_step = now + vcpu_limit.step(&self.skel, &facts, now, probes)?;
        }
        if let Some(prober) = &mut self.prober {
            prober.step(&facts, now);
            let news = prober.news_of_speeds();
            speed::install(&self.skel, &news, prober.cores_are_unlike())?;
        }
        if let Some(topology) = &mut self.topology {
            topology.look(&facts);
        }
        Ok(Then::GoOn(next_step))
    }

    /// Orders of the operator come first: the vCPU limit begins anew.
    fn obey(&mut self, order: ParkOrder) -> anyhow::Result<Value> {
        if let Some(vcpu_limit) = &mut self.vcpu_limit {
            vcpu_limit.start_again(&self.skel)?;
        }
        Ok(serde_json::to_value(self.parking.order(&self.skel, &order)?)?)
    }

    fn trace(&mut self, on: bool) -> u64 {
        let Some(bss) = self.skel.maps.bss_data.as_mut() else { return 0 };
        bss.tracing = u32::from(on);
        std::mem::take(&mut bss.nr_untraced)
    }

    fn stop(&mut self) -> Result<UserExitInfo, GuestError> {
        // The probers first: they are tasks of this scheduler.
        self.prober = None;
        self.topology = None;
        self.link = None;
        self.parking.end();
        Ok(uei_report!(&self.skel, uei).map_err(DaemonError::Ejected)?)
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
        rodata.ivh_enabled = options.ivh;
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
    // A CPU that is plugged in later is without ticks as well.
    for cpu in 0..nr_cpus {
        let mut record = vec![0u8; skel.maps.cpus.value_size() as usize];
        let mut put =
            |at: usize, value: bool| record[at..at + 4].copy_from_slice(&u32::from(value).to_ne_bytes());
        put(std::mem::offset_of!(intf::cpu_state, online), online.contains(&cpu));
        put(std::mem::offset_of!(intf::cpu_state, tickless), tickless.contains(&cpu));
        skel.maps.cpus.update(&u32::try_from(cpu)?.to_ne_bytes(), &record, MapFlags::ANY)?;
    }
    Ok(skel)
}
