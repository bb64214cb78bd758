//! The host's side of the life cycle (`tandem_daemon::life`): what is loaded, what is done at each step, and which orders there are.

use crate::affinity::Affinity;
use crate::entitlement::{entitled, Claim};
use crate::exits::{Exits, Hooks};
use crate::figures::VmReport;
use crate::inside::{Found, Insides, Look};
use crate::metrics::Totals;
use crate::observe::kvm_is_there;
use crate::options::{Fault, HostOptions};
use crate::posted::posted_by;
use crate::registry::{self, Vm};
use crate::settings::{VmSetting, VmSettings};
use crate::slice;
use crate::stats::{HostReport, HostStats, Moment, ObserverState, VmStats, COUNTERS};
use crate::vms::Labels;
use crate::watch::Watch;
use crate::HostError;
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};
use scx_utils::{
    scx_ops_attach, scx_ops_load, scx_ops_open, uei_exited, uei_report, ScxExitKind, UserExitInfo,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, MaybeUninit};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tandem_bpf::host::{intf, HostSkel, HostSkelBuilder};
use tandem_daemon::bytes::{u32_at, u64_at};
use tandem_daemon::cpulist::kernel_cpu_list;
use tandem_daemon::life::{self, Load, Side, Then};
use tandem_daemon::monitoring::Monitoring;
use tandem_daemon::server::{self, Arguments, Orders};
use tandem_daemon::{preflight, DaemonError};
use tandem_probe::kernel::{ring, KernelView};

/// How often the daemon looks for new VMs, and whether KVM has come.
const STEP: Duration = Duration::from_millis(500);
/// How often it looks whether the weights of VMs have changed.
const ENTITLE_EVERY: Duration = Duration::from_secs(5);
/// Length of an interval of the observer.
const INTERVAL: Duration = Duration::from_secs(2);
/// The observer is attached while somebody reads what it sees: for so long after the last request, or for half as long again as the last two were
/// apart, up to the second one.
const LINGER: Duration = Duration::from_secs(5);
const LONGEST_LINGER: Duration = Duration::from_secs(90);
/// Requests that are closer together are one reader's, who opens the socket or waits for an interval to end: they say nothing of its habit.
const SAME_READER: Duration = Duration::from_secs(1);
/// How long it looks which vCPUs there are, before its first interval.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long a client waits for an interval of the observer to end, and how often it asks.
const PATIENCE: Duration = Duration::from_secs(8);
const ASK_EVERY: Duration = Duration::from_millis(700);
/// How long an observer that has failed rests.
const WATCH_AGAIN: Duration = Duration::from_secs(60);
/// With -vv the verifier reports its effort for each program.
const VERIFIER_STATISTICS: u32 = 4;
/// The kernel's description of the CPUs.
const SYSFS_CPU: &str = "/sys/devices/system/cpu";
/// Root of the cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Name of the request to set something.
const ASK_SET: &str = "set";
/// And where a guest keeps what it runs.
const ASK_INSIDE: &str = "inside";

/// Loads the scheduler and runs until asked to stop, or until the kernel ejects it. Loads it again when a pCPU comes that was not there, or
/// when KVM appears.
///
/// # Errors
/// An obstacle found before loading, a refusal by the kernel, or the reason of an ejection.
pub fn serve(options: &HostOptions) -> Result<(), HostError> {
    let life = life::Settings {
        stats_interval: options.stats_interval,
        metrics: options.metrics,
        debug: options.debug,
    };
    let mut storage = MaybeUninit::uninit();
    let mut set = BTreeMap::new();
    for (name, setting) in &options.vms {
        let settings: &mut VmSettings = set.entry(name.clone()).or_default();
        *settings = settings.with(*setting);
    }
    let mut host = Host {
        options,
        for_the_watch: options.observe.then_some(&mut storage),
        watch: None,
        watch_again: None,
        set,
        labels: Labels::default(),
        hooks: UseOfHooks::Wanted,
    };
    life::serve(&mut host, &life)
}

/// An order, for the VM of a name.
pub(crate) struct Order {
    vm: String,
    what: What,
}

enum What {
    Set(VmSetting),
    Inside,
}

impl Order {
    fn set(args: &Arguments) -> anyhow::Result<Self> {
        let setting = args.get("set").map_or("", String::as_str).parse::<VmSetting>()?;
        Ok(Self { vm: Self::vm(args), what: What::Set(setting) })
    }

    fn inside(args: &Arguments) -> anyhow::Result<Self> {
        Ok(Self { vm: Self::vm(args), what: What::Inside })
    }

    fn vm(args: &Arguments) -> String {
        args.get("vm").map_or("", String::as_str).chars().take(256).collect()
    }
}

/// Changes a setting of a VM of the running scheduler. Returns all that are set for it.
///
/// # Errors
/// No host scheduler runs, or it refuses.
pub fn set(vm: &str, setting: &str) -> Result<VmSettings, HostError> {
    // Refused here with the same words.
    setting.parse::<VmSetting>()?;
    Ok(server::ask::<HostReport, _>(ASK_SET, &[("vm", vm.into()), ("set", setting.into())])?)
}

/// Where the guest of a VM of the running scheduler keeps what it runs.
///
/// # Errors
/// No host scheduler runs, or it does not know.
pub fn inside(vm: &str) -> Result<Look, HostError> {
    Ok(server::ask::<HostReport, _>(ASK_INSIDE, &[("vm", vm.into())])?)
}

/// The VMs of the running scheduler. To ask is what attaches the observer: the first answer takes as long as an interval.
///
/// # Errors
/// No host scheduler runs.
pub fn vms() -> Result<BTreeMap<String, VmStats>, HostError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let stats = server::ask::<HostReport, HostReport>("top", &[])?.stats;
        if stats.now.observer != ObserverState::Begins as u64 || Instant::now() >= until {
            return Ok(stats.vms);
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// The host's daemon.
struct Host<'o> {
    options: &'o HostOptions,
    for_the_watch: Option<&'o mut MaybeUninit<OpenObject>>,
    watch: Option<Watch<'o>>,
    /// It has failed, and rests until then.
    watch_again: Option<Instant>,
    /// What was set, by the names of VMs, also of those that are not there.
    set: BTreeMap<String, VmSettings>,
    labels: Labels,
    hooks: UseOfHooks,
}

/// Are the programs that hang in KVM loaded with the scheduler?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UseOfHooks {
    Wanted,
    /// A load with them has just failed.
    Refused,
    /// The scheduler does without, until the daemon ends.
    LeftOut,
}

impl Host<'_> {
    /// Once, as soon as KVM is there, and before the scheduler: loading takes long. A host that cannot be watched is scheduled all the
    /// same.
    fn prepare_to_watch(&mut self) {
        let Some(storage) = self.for_the_watch.take() else { return };
        // Only the metrics tell exits.
        match Watch::load(storage, self.options.metrics.is_some(), false) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => log::warn!("the VMs are not observed: {error}"),
        }
    }

    /// Attaches the observer or detaches it. Returns whether it begins to look now.
    fn watch_if(&mut self, wanted: bool) -> bool {
        let rests = self.watch_rests();
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.watches() != wanted) else { return false };
        if !wanted {
            watch.pause();
            return false;
        }
        if rests {
            return false;
        }
        let resumed = watch.resume();
        self.unless_it_fails(resumed).is_some()
    }

    fn watch_rests(&self) -> bool {
        self.watch_again.is_some_and(|again| Instant::now() < again)
    }

    /// Without the observer scheduling goes on; it is tried again later.
    fn unless_it_fails<T>(&mut self, done: Result<T, HostError>) -> Option<T> {
        done.inspect_err(|error| {
            log::warn!("the VMs are not observed for {} s: {error}", WATCH_AGAIN.as_secs());
            if let Some(watch) = &mut self.watch {
                watch.pause();
            }
            self.watch_again = Some(Instant::now() + WATCH_AGAIN);
        })
        .ok()
    }
}

impl<'o> Side for Host<'o> {
    type Report = HostReport;
    type Order = Order;
    type Error = HostError;
    type Load<'a>
        = Running<'a, 'o>
    where
        Self: 'a;

    const ORDERS: Orders<Order> = &[(ASK_SET, Order::set), (ASK_INSIDE, Order::inside)];

    fn render(report: &HostReport) -> String {
        report.render()
    }

    fn check(&self) -> Result<(), HostError> {
        let paths = preflight::SystemPaths::default();
        let support = preflight::CgroupSupport::of_kernel;
        Ok(preflight::check(&paths, tandem_daemon::sys::is_root(), support, self.options.ignore_cgroups)?)
    }

    fn load<'a>(
        &'a mut self,
        storage: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<Running<'a, 'o>, HostError> {
        Running::start(self, storage)
    }

    fn has_another_way(&mut self) -> bool {
        let refused = self.hooks == UseOfHooks::Refused;
        if refused {
            self.hooks = UseOfHooks::LeftOut;
        }
        refused
    }

    /// It never steps back.
    fn stand_by(&mut self, _: &Monitoring<Order, HostReport>) {}

    fn stood_still(&mut self) {}
}

/// Clients that ask what VMs get.
#[derive(Debug, Default)]
struct Readers {
    asked: Option<Instant>,
    linger: Duration,
}

impl Readers {
    /// One asks. Returns whether nobody has for a while.
    fn ask(&mut self, now: Instant) -> bool {
        let is_new = !self.read_at(now);
        let gap = self.asked.map_or(Duration::MAX, |asked| now.saturating_duration_since(asked));
        if gap >= SAME_READER {
            let habit = gap.saturating_mul(3) / 2;
            self.linger = if gap > LONGEST_LINGER { LINGER } else { habit.clamp(LINGER, LONGEST_LINGER) };
        }
        self.asked = Some(now);
        is_new
    }

    /// May the next request still come?
    fn read_at(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now < asked + self.linger)
    }
}

struct Running<'a, 'o> {
    skel: HostSkel<'a>,
    link: Option<Link>,
    nr_cpus: usize,
    /// pCPUs that were online when it was loaded, and how many are now.
    known: Vec<usize>,
    online: usize,
    host: &'a mut Host<'o>,
    hooks: Hooks,
    exits: Exits,
    next_interval: Instant,
    readers: Readers,
    /// It has seen an interval since it was attached.
    observed_once: bool,
    /// What the observer saw in its last interval, by the process of the VMM, and in all.
    seen: BTreeMap<u32, VmReport>,
    totals: Arc<Totals>,
    affinity: Affinity,
    /// Weight of each VM and pCPUs that it is entitled to, by the number of its record, as of the last interval.
    entitled: BTreeMap<u32, (f64, f64)>,
    /// When weights are looked at again, which limits of debts depend on.
    next_entitled: Instant,
    /// Where guests keep what they run.
    insides: Insides,
    /// Settings that are installed, the limit of the debt, and what was found of the guest, by the number and the generation of a VM's record.
    installed: BTreeMap<(u32, u32), (VmSettings, u64, Option<Found>)>,
}

impl<'a, 'o> Running<'a, 'o> {
    fn start(host: &'a mut Host<'o>, storage: &'a mut MaybeUninit<OpenObject>) -> Result<Self, HostError> {
        let nr_cpus = kernel_cpu_list("possible")?.last().map_or(1, |last| last + 1);
        let online = kernel_cpu_list("online")?;
        let left_out = host.hooks == UseOfHooks::LeftOut;
        let mut hooks = if left_out { Hooks::unused() } else { Hooks::find() };
        if hooks.kvm {
            host.prepare_to_watch();
        }
        let loaded = load(host.options, &hooks, nr_cpus, &online, storage).inspect_err(|error| {
            if hooks.are_used() {
                host.hooks = UseOfHooks::Refused;
                log::warn!(
                    "the kernel refuses to load, and is asked again without what hangs in KVM: {error:#}"
                );
            }
        });
        let mut skel = loaded.map_err(DaemonError::Load)?;
        let link = scx_ops_attach!(skel, tandem_host).map_err(DaemonError::Load)?;
        hooks.attach(&mut skel, host.options.fault);
        log::info!(
            "tandem host scheduler loaded on {} of {nr_cpus} possible CPUs{}",
            online.len(),
            if hooks.kvm { "" } else { ", and waits for KVM" }
        );
        if left_out {
            log::warn!("vCPUs are scheduled as any other thread");
        }
        if let Some(missing) = hooks.missing_for_quotas() {
            log::warn!(
                "vCPUs out of quota may stop where they hold a kernel lock: {missing} cannot be traced"
            );
        }
        let now = Instant::now();
        let mut running = Self {
            skel,
            link: Some(link),
            nr_cpus,
            online: online.len(),
            known: online,
            host,
            hooks,
            exits: Exits::new(),
            next_interval: now + INTERVAL,
            readers: Readers::default(),
            observed_once: false,
            seen: BTreeMap::new(),
            totals: Arc::default(),
            affinity: Affinity::default(),
            entitled: BTreeMap::new(),
            next_entitled: now,
            insides: Insides::default(),
            installed: BTreeMap::new(),
        };
        // A request may come before the first step.
        running.look_at_vms()?;
        Ok(running)
    }

    fn vms(&self) -> Result<Vec<Vm>, HostError> {
        Ok(registry::read(&self.skel.maps.vms, &self.skel.maps.vm_numbers)?)
    }

    /// What people call a VM. Several in one process are told apart by their numbers.
    fn name_of(&self, vm: &Vm, vms: &[Vm]) -> String {
        let name = self.host.labels.of(vm.pid).name;
        match vms.iter().find(|other| other.pid == vm.pid) {
            Some(first) if first.number != vm.number => format!("{name}/{}", vm.number),
            _ => name,
        }
    }

    /// New VMs get their names, what they are entitled to is computed if that is due, and what was set for them is installed.
    fn greet(&mut self, vms: &[Vm], entitle: bool) -> Result<(), HostError> {
        let there: BTreeSet<u32> = vms.iter().map(|vm| vm.pid).collect();
        // A VM that starts again has its name again, and what was set for that: nobody who has ended keeps it. (The observer's table is the same, so
        // that the name in the metrics is the one to set something for.)
        self.host.labels.keep(&there);
        self.host.labels.add(&there);
        if entitle {
            self.entitle(vms);
        }
        self.installed.retain(|record, _| vms.iter().any(|vm| vm.record() == *record));
        for vm in vms {
            let settings = self.host.set.get(&self.name_of(vm, vms)).copied().unwrap_or_default();
            let (weight, _) = self.entitled.get(&vm.number).copied().unwrap_or((100.0, 0.0));
            let debt_max_ns = registry::debt_max_ns(settings, weight);
            let all = (settings, debt_max_ns, self.insides.found(vm));
            if self.installed.get(&vm.record()) != Some(&all) {
                let (settings, debt_max_ns, found) = all;
                registry::install(&self.skel.maps.settings, *vm, settings, debt_max_ns, found)?;
                self.installed.insert(vm.record(), all);
            }
        }
        Ok(())
    }

    /// Which VMs are there, and what are they entitled to?
    fn look_at_vms(&mut self) -> Result<(), HostError> {
        let vms = self.vms()?;
        self.greet(&vms, true)?;
        Ok(())
    }

    /// Does anybody read what the observer sees? It costs as much as a third of the scheduler.
    fn somebody_reads(&self, now: Instant) -> bool {
        let options = self.host.options;
        options.metrics.is_some() || options.stats_interval.is_some() || self.readers.read_at(now)
    }

    /// An interval of the observer may have ended.
    fn watch(&mut self, vms: &[Vm], now: Instant) {
        let read = self.somebody_reads(now);
        if self.host.watch_if(read) {
            self.next_interval = now + WARM_UP;
        }
        let interval_ends = read && now >= self.next_interval;
        let Host { watch, labels, .. } = &mut *self.host;
        let watching = watch.as_mut().filter(|watch| interval_ends && watch.watches());
        let ended = match watching.map(|watch| watch.interval(labels)) {
            Some(ended) => self.host.unless_it_fails(ended).flatten(),
            None => None,
        };
        if let Some((report, totals)) = ended {
            let parts = report.vms.iter().flat_map(|vm| &vm.parts);
            let tids = parts.filter(|part| part.vcpu.is_some()).filter_map(|part| part.tid).collect();
            self.affinity.update(tids, now);
            self.seen = report.vms.into_iter().map(|vm| (vm.pid, vm)).collect();
            self.totals = totals;
            self.observed_once = true;
        }
        if !self.host.watch.as_ref().is_some_and(Watch::watches) {
            self.seen.clear();
            self.totals = Arc::default();
            self.observed_once = false;
        }
        if interval_ends {
            self.next_interval = now + INTERVAL;
            self.entitle(vms);
        }
    }

    /// What each VM is entitled to, by the weights as they are set now.
    fn entitle(&mut self, vms: &[Vm]) {
        self.host.labels.read_cgroups_again();
        let claims: Vec<Claim> = vms
            .iter()
            .map(|vm| Claim::of(Path::new(CGROUPS), &self.host.labels.of(vm.pid).cgroup, vm.vcpus))
            .collect();
        let weight = |claim: &Claim| claim.path.last().map_or(100.0, |(_, weight)| *weight);
        let pcpus = self.affinity.pcpus(self.online) as f64;
        let parts = claims.iter().map(weight).zip(entitled(&claims, pcpus));
        self.entitled = vms.iter().map(|vm| vm.number).zip(parts).collect();
    }

    fn stats(&self, vms: &[Vm]) -> Result<HostReport, HostError> {
        let mut counters = [0; COUNTERS.len()];
        let mut now = Moment { loaded: 1, vms: vms.len() as u64, ..Moment::default() };
        now.observer = match &self.host.watch {
            None => ObserverState::None,
            Some(_) if self.host.watch_rests() => ObserverState::None,
            Some(_) if self.observed_once => ObserverState::Tells,
            Some(_) => ObserverState::Begins,
        } as u64;
        now.vcpus = vms.iter().map(|vm| u64::from(vm.vcpus)).sum();
        let (mut weight, mut cpu_bound_weight) = (0, 0);
        for cpu in 0..self.nr_cpus {
            let key = (cpu as u32).to_ne_bytes();
            let record = self.skel.maps.cpus.lookup(&key, MapFlags::ANY).map_err(DaemonError::Map)?;
            let record = record.unwrap_or_default();
            for (id, sum) in counters.iter_mut().enumerate() {
                *sum += u64_at(&record, offset_of!(intf::cpu_state, counters) + 8 * id);
            }
            for class in 0..intf::NR_QUEUE_CLASSES as usize {
                now.tasks += u64::from(u32_at(&record, offset_of!(intf::cpu_state, tasks) + 4 * class));
                weight += u64_at(&record, offset_of!(intf::cpu_state, weight) + 8 * class);
            }
            now.cpu_bound_tasks += u64::from(u32_at(&record, offset_of!(intf::cpu_state, cpu_bound_tasks)));
            cpu_bound_weight += u64_at(&record, offset_of!(intf::cpu_state, cpu_bound_weight));
        }
        now.weight = weight as f64 / f64::from(intf::TANDEM_UNIT);
        now.cpu_bound_weight = cpu_bound_weight as f64 / f64::from(intf::TANDEM_UNIT);
        if let Some(bss) = self.skel.maps.bss_data.as_ref() {
            now.groups = u64::from(bss.nr_groups);
            now.groups_shared = u64::from(bss.nr_groups_shared);
            now.limits = u64::from(bss.nr_limits);
            now.others_debt_s = bss.others_debt_ns as f64 / 1e9;
        }
        now.debts_s = vms.iter().map(|vm| vm.debt_ns.max(0)).sum::<i64>() as f64 / 1e9;
        let stats = HostStats::totals(counters, now, self.vm_stats(vms));
        Ok(HostReport { stats, observed: Arc::clone(&self.totals) })
    }

    fn vm_stats(&self, vms: &[Vm]) -> BTreeMap<String, VmStats> {
        let one = |vm: &Vm| {
            let name = self.name_of(vm, vms);
            let seen = self.seen.get(&vm.pid);
            let of = |figure: fn(&VmReport) -> f64| seen.map_or(0.0, figure);
            // vCPUs that slept all the time were not seen.
            let part = seen.map_or(0.0, |seen| seen.vcpus as f64 / f64::from(vm.vcpus.max(1))).min(1.0);
            let (weight, entitled) = self.entitled.get(&vm.number).copied().unwrap_or((100.0, 0.0));
            let stats = VmStats {
                pid: u64::from(vm.pid),
                vcpus: u64::from(vm.vcpus),
                weight,
                entitled_pct: entitled * 100.0,
                observed: u64::from(seen.is_some()),
                run_pct: of(|vm| vm.run_pct),
                vmm_run_pct: of(|vm| vm.vmm_run_pct),
                ready_pct: of(|vm| vm.ready_pct) * part,
                steal_pct: of(|vm| vm.of_vcpus.steal_pct) * part,
                irq_to_run_mean_us: of(|vm| vm.of_vcpus.interrupt_to_run.mean_ns().unwrap_or(0.0) / 1e3),
                irq_to_run_p99_us: of(|vm| {
                    vm.of_vcpus.interrupt_to_run.quantile_ns(0.99).unwrap_or(0.0) / 1e3
                }),
                debt_ms: vm.debt_ns as f64 / 1e6,
                borrowed_ms: vm.borrowed_ns as f64 / 1e6,
                repaid_ms: vm.repaid_ns as f64 / 1e6,
                settings: self.host.set.get(&name).map(ToString::to_string).unwrap_or_default(),
            };
            (name, stats)
        };
        vms.iter().map(one).collect()
    }
}

impl Load for Running<'_, '_> {
    type Report = HostReport;
    type Order = Order;
    type Error = HostError;

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

    fn report(&self) -> Result<HostReport, HostError> {
        self.stats(&self.vms()?)
    }

    fn asked(&mut self, now: Instant) -> Result<(), HostError> {
        // While an interval ends every two seconds, that is the time for it.
        if self.readers.ask(now) || !self.host.watch.as_ref().is_some_and(Watch::watches) {
            self.look_at_vms()?;
        }
        Ok(())
    }

    fn step(&mut self, now: Instant) -> Result<Then, HostError> {
        let vms = self.vms()?;
        self.insides.step(&vms, now);
        let due = now >= self.next_entitled;
        if due {
            self.next_entitled = now + ENTITLE_EVERY;
            if let Some(bss) = self.skel.maps.bss_data.as_mut() {
                bss.posted_by = posted_by(Path::new("/"));
            }
        }
        self.greet(&vms, due || vms.iter().any(|vm| !self.entitled.contains_key(&vm.number)))?;
        let online = kernel_cpu_list("online").unwrap_or_else(|error| {
            log::warn!("pCPUs that come online are not seen: {error}");
            self.known.clone()
        });
        // Only loading tells what it shares with which others.
        if online.iter().any(|cpu| !self.known.contains(cpu)) {
            return Ok(Then::LoadAgain("a pCPU has come online"));
        }
        self.online = online.len();
        self.watch(&vms, now);
        if self.hooks.kvm {
            let limits = self.skel.maps.bss_data.as_ref().is_some_and(|bss| bss.nr_limits > 0);
            self.exits.step(&mut self.skel, &self.hooks, limits, now);
        }
        if !self.hooks.kvm && kvm_is_there(Path::new("/")) {
            return Ok(Then::LoadAgain("KVM has come"));
        }
        Ok(Then::GoOn(now + STEP))
    }

    fn obey(&mut self, order: Order) -> anyhow::Result<Value> {
        let vms = self.vms()?;
        self.greet(&vms, false)?;
        let Some(vm) = vms.iter().find(|vm| self.name_of(vm, &vms) == order.vm) else {
            return Err(HostError::NoVm { name: order.vm }.into());
        };
        let setting = match order.what {
            What::Set(setting) => setting,
            What::Inside => {
                let reason = if vm.pages().next().is_none() {
                    "its guest does not read its steal time"
                } else {
                    "the place is not found yet, or its memory cannot be read"
                };
                let found = self.insides.found(vm).ok_or(HostError::NotKnown { vm: order.vm, reason })?;
                return Ok(serde_json::to_value(Look::new(vm.pid, vm.pages(), found))?);
            }
        };
        let settings = self.host.set.get(&order.vm).copied().unwrap_or_default().with(setting);
        self.host.set.insert(order.vm, settings);
        self.greet(&vms, false)?;
        Ok(serde_json::to_value(settings)?)
    }

    fn trace(&mut self, on: bool) -> u64 {
        let Some(bss) = self.skel.maps.bss_data.as_mut() else { return 0 };
        bss.tracing = u32::from(on);
        std::mem::take(&mut bss.nr_untraced)
    }

    fn stop(&mut self) -> Result<UserExitInfo, HostError> {
        self.link = None;
        Ok(uei_report!(&self.skel, uei).map_err(DaemonError::Ejected)?)
    }
}

fn load<'a>(
    options: &HostOptions,
    hooks: &Hooks,
    nr_cpus: usize,
    online: &[usize],
    storage: &'a mut MaybeUninit<OpenObject>,
) -> anyhow::Result<HostSkel<'a>> {
    let builder = HostSkelBuilder::default();
    let verbose = options.debug.then(|| libbpf_rs::libbpf_sys::bpf_object_open_opts {
        sz: std::mem::size_of::<libbpf_rs::libbpf_sys::bpf_object_open_opts>() as _,
        kernel_log_level: VERIFIER_STATISTICS,
        ..Default::default()
    });
    let mut open = scx_ops_open!(builder, storage, tandem_host, verbose)?;
    let cpu_ids = u32::try_from(nr_cpus)?;
    if let Some(rodata) = open.maps.rodata_data.as_mut() {
        rodata.nr_cpu_ids = cpu_ids;
        rodata.cgroups_enabled = !options.ignore_cgroups;
        rodata.slice_timers_enabled = options.slice_timers;
        let slice_us = options.slice_us.unwrap_or_else(|| slice::base_us(slice::BASE_SLICE.as_ref()));
        rodata.base_request_ns = slice_us * 1000;
        log::info!("slices of {:.1} ms", slice_us as f64 / 1000.0);
        rodata.watchdog_ns = u64::from(open.struct_ops.tandem_host().timeout_ms) * 1_000_000;
    }
    open.maps.cpus.set_max_entries(cpu_ids)?;
    open.maps.group_load.set_max_entries(cpu_ids.min(intf::MAX_LOAD_CELLS) * intf::MAX_GROUPS)?;
    open.maps.domains.set_max_entries(cpu_ids)?;
    open.maps.slice_timers.set_max_entries(cpu_ids)?;
    open.maps.posted_timers.set_max_entries(cpu_ids)?;
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if hooks.has(&name) {
            program.set_autoload(true);
            program.set_autoattach(false);
        }
        if name == "host_vcpu_comes" && options.fault == Fault::RefusedHooks && hooks.has(&name) {
            program.set_attach_target(0, Some("tandem_no_such_function".into()))?;
        }
    }
    let views = KernelView::read(SYSFS_CPU.as_ref(), online).caches;
    let near = ring(nr_cpus, &views);
    let ops = open.struct_ops.tandem_host_mut();
    ops.exit_dump_len = options.exit_dump_len;
    // Wake-ups on idle CPUs are completed there; across caches the kernel would complete those on busy CPUs there as well.
    if views.len() <= 1 {
        ops.flags |= *scx_utils::compat::SCX_OPS_ALLOW_QUEUED_WAKEUP;
    }
    if options.partial {
        ops.flags |= *scx_utils::compat::SCX_OPS_SWITCH_PARTIAL;
    }
    if options.fault == Fault::NoYield {
        ops.r#yield = std::ptr::null_mut();
    }
    if options.fault == Fault::NoRelease
        || !scx_utils::compat::struct_has_field("sched_ext_ops", "cpu_release")?
    {
        open.struct_ops.tandem_host_mut().cpu_release = std::ptr::null_mut();
        open.progs.core_sched_switch.set_autoload(true);
    }
    let mut skel = scx_ops_load!(open, tandem_host, uei)?;
    for cpu in 0..cpu_ids {
        let llc = views.iter().position(|cpus| cpus.contains(&(cpu as usize))).unwrap_or(0);
        let mut record = vec![0u8; skel.maps.domains.value_size() as usize];
        let mut put = |at: usize, value: u32| record[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        put(offset_of!(intf::cpu_domain, llc), u32::try_from(llc)?);
        // Cores are left to the kernel's own idle selection.
        put(offset_of!(intf::cpu_domain, core_next), cpu);
        put(offset_of!(intf::cpu_domain, stack_next), cpu);
        put(offset_of!(intf::cpu_domain, llc_next), near[cpu as usize] as u32);
        skel.maps.domains.update(&cpu.to_ne_bytes(), &record, MapFlags::ANY)?;
    }
    if let Some(data) = skel.maps.data_data.as_mut() {
        data.nr_llcs = u32::try_from(views.len().max(1))?;
    }
    let tickless = kernel_cpu_list("nohz_full").unwrap_or_default();
    // A CPU that is plugged in later is without ticks as well.
    for cpu in 0..nr_cpus {
        let mut record = vec![0u8; skel.maps.cpus.value_size() as usize];
        let mut put =
            |at: usize, value: bool| record[at..at + 4].copy_from_slice(&u32::from(value).to_ne_bytes());
        put(offset_of!(intf::cpu_state, online), online.contains(&cpu));
        put(offset_of!(intf::cpu_state, tickless), tickless.contains(&cpu));
        skel.maps.cpus.update(&u32::try_from(cpu)?.to_ne_bytes(), &record, MapFlags::ANY)?;
    }
    Ok(skel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_observer_stays_for_who_asks_again() {
        let (mut readers, start) = (Readers::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(!readers.read_at(at(0)));
        assert!(readers.ask(at(0)));
        assert!(readers.read_at(at(4)) && !readers.read_at(at(5)));
        // Every ten seconds: the second request is new, too, the third is not. Each comes twice, once for the connection.
        let again = |seconds: u64| at(seconds) + Duration::from_millis(5);
        assert!(readers.ask(at(10)) && !readers.ask(again(10)) && readers.read_at(at(24)));
        assert!(
            !readers.ask(at(20))
                && !readers.ask(again(20))
                && readers.read_at(at(34))
                && !readers.read_at(at(35))
        );
        // Every 80 seconds.
        assert!(
            readers.ask(at(1000))
                && readers.ask(at(1080))
                && !readers.ask(at(1160))
                && readers.read_at(at(1249))
        );
        // The next day.
        assert!(readers.ask(at(90_000)) && readers.read_at(at(90_004)) && !readers.read_at(at(90_005)));
    }
}
