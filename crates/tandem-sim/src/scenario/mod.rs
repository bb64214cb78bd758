//! Scenarios: hardware, a host, guests, what runs in them, for how long. One TOML file each.

mod check;
mod stage;

use crate::catalog;
use crate::fair::Flavour;
use crate::hardware::{Costs, Hardware};
use crate::machine::state::Preemption;
use crate::queue::Ns;
use crate::scx::{Ivh, Part};
use crate::setup::KernelSpec;
use crate::workload::Workload;
use crate::SimError;
use serde::Deserialize;
use std::collections::BTreeMap;

pub use stage::{Installed, Stage};

/// A scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// One line.
    #[serde(default)]
    pub title: String,
    /// Length, simulated seconds.
    pub duration_s: f64,
    /// Warm-up, which is not measured, seconds.
    #[serde(default = "second")]
    pub warmup_s: f64,
    /// Hardware.
    #[serde(default)]
    pub hardware: Hardware,
    /// Costs of operations.
    #[serde(default)]
    pub costs: Costs,
    /// The host's kernel.
    #[serde(default)]
    pub host: Kernel,
    /// Guests.
    #[serde(default, rename = "vm")]
    pub vms: Vec<Vm>,
    /// Real-time competitors on pCPUs, which run before everything else.
    #[serde(default)]
    pub contention: Vec<Contention>,
    /// Competitors on pCPUs in the fair class of the host's scheduler.
    #[serde(default, rename = "competitor")]
    pub competitors: Vec<Competitor>,
    /// Changes during the run.
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
    /// What runs where.
    #[serde(default, rename = "workload")]
    pub workloads: Vec<Placed>,
    /// Arms to compare; the first is the baseline. None: one run as it is.
    #[serde(default, rename = "arm")]
    pub arms: Vec<Arm>,
    /// Metrics.
    #[serde(default, rename = "metric")]
    pub metrics: Vec<MetricSpec>,
    /// vCPUs that all guest tasks without an affinity of their own are confined to.
    #[serde(default)]
    pub confined_to: Option<Vec<usize>>,
    /// A workload that runs with several models, one after the other.
    #[serde(default)]
    pub family: Option<Family>,
}

/// The same scenario with several programs, one after the other.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Name of the workload; `*`: all.
    pub workload: String,
    /// Names of models; none: all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Requests per second of servers, by name; those of other servers follow from `capacity`.
    #[serde(default)]
    pub rates_hz: BTreeMap<String, f64>,
}

/// An arm of the comparison: what it has in place of the scenario's settings.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Kernel of all guests.
    #[serde(default)]
    pub guest: Option<Kernel>,
    /// Kernel of the host.
    #[serde(default)]
    pub host: Option<Kernel>,
    /// Competitors.
    #[serde(default)]
    pub contention: Option<Vec<Contention>>,
    /// `cpu.max` of each vCPU of each guest: quota and period, microseconds.
    #[serde(default)]
    pub each_vcpu_max_us: Option<(u64, u64)>,
    /// vCPUs that all guest tasks without an affinity of their own are confined to.
    #[serde(default)]
    pub cpus: Option<Vec<usize>>,
    /// The only workload that runs.
    #[serde(default)]
    pub workload: Option<String>,
    /// Guests in which no workload runs.
    #[serde(default)]
    pub idle_guests: Vec<String>,
    /// Guests that `guest` applies to; none: all.
    #[serde(default)]
    pub guests: Option<Vec<String>>,
}

/// A metric.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// Its name in the result.
    pub name: String,
    /// Workload that it covers; `*`: all.
    pub workload: String,
    /// What it measures.
    pub what: What,
    /// Name of the stream or of the kind of tasks; none: all of the workload.
    #[serde(default)]
    pub of: Option<String>,
    /// Beginning and end of its time, seconds; none: all after the warm-up.
    #[serde(default)]
    pub between_s: Option<(f64, f64)>,
    /// Of latencies: percentile, 0 to 1; none: the mean.
    #[serde(default)]
    pub percentile: Option<f64>,
}

/// What a metric measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// From a request's arrival to its completion, microseconds.
    Latency,
    /// From a request's arrival to the beginning of its service, microseconds.
    QueueTime,
    /// From a request's arrival until the guest has taken its interrupt, microseconds. It does not depend on where
    /// tasks run.
    DeliveryTime,
    /// From the end of a sleep until the task runs, microseconds.
    Wakeup,
    /// Requests served per second.
    Requests,
    /// Rounds of work per second.
    Rounds,
    /// CPU time per second.
    Cpus,
    /// Mean number of cores that work for guests.
    Cores,
    /// Task migrations per second.
    Migrations,
    /// Context switches of the host to vCPUs of the guest per second.
    Switches,
}

impl What {
    /// Unit of the metric, and whether higher is better.
    pub fn unit(self) -> (&'static str, bool) {
        match self {
            What::Latency | What::QueueTime | What::DeliveryTime | What::Wakeup => ("us", false),
            What::Requests | What::Rounds => ("1/s", true),
            What::Migrations | What::Switches => ("1/s", false),
            What::Cpus | What::Cores => ("", true),
        }
    }
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kernel {
    /// `eevdf`, `cfs`, or `tandem`: the guest or the host scheduler, in a kernel of this version.
    pub scheduler: String,
    /// Version: 7.2 is 702.
    pub version: u32,
    /// Tick, milliseconds.
    pub tick_ms: f64,
    /// EEVDF slices end on time, by a timer (HRTICK, the default from 7.1 on), not at ticks. Host only.
    pub hrtick: bool,
    /// Preemption model: `full` or `lazy`.
    pub preemption: String,
    /// Run time is charged without steal, and a CPU's capacity follows it (guests): built with
    /// `CONFIG_PARAVIRT_TIME_ACCOUNTING`, as Fedora's and Ubuntu's kernels are, and Debian's are not.
    pub sees_steal: bool,
    /// Halted vCPUs look preempted to wake-up placement (guests).
    pub halted_looks_preempted: bool,
    /// Uses KVM's paravirtual TLB flush (guests).
    pub paravirtual: bool,
    /// Tells KVM which preempted vCPU it waits for (`pv-sched-yield`; guests).
    pub pv_yield: bool,
    /// CFS: `min_granularity_ns`; EEVDF: `base_slice_ns`, microseconds; none: the kernel's default.
    pub granularity_us: Option<f64>,
    /// CFS: `wakeup_granularity_ns`, microseconds; none: the kernel's default.
    pub wakeup_granularity_us: Option<f64>,
    /// `tandem`: its probers keep estimates of idle vCPUs fresh.
    pub probes: bool,
    /// `tandem`: slices end on time, by a timer; without, at ticks (`--no-slice-timers`).
    pub slice_timers: bool,
    /// `tandem`: proactive migration off vCPUs that are about to be preempted: `off`, `aware` (`--ivh`) or
    /// `unaware` (the paper's variant, which only the simulator has).
    pub ivh: Ivh,
    /// `tandem`: wake-up placement by expected completion (without: `--no-bvs`).
    pub bvs: bool,
    /// `tandem`: stragglers and spare vCPUs of a stack are left without work (`--rwc`).
    pub rwc: bool,
    /// `tandem`: one vCPU per thread, while they last (`--dedicate`).
    pub dedicate: bool,
    /// `tandem`: as many vCPUs as the host gives pCPUs (without: `--no-vcpu-limit`).
    pub vcpu_limit: bool,
    /// `tandem` on the host: vCPUs come before their turn for I/O, for a sibling, and when they are woken (without: `boost=off`,
    /// `forward=off`, `fast-wakeup=off` for all VMs).
    pub boosts: bool,
    /// A device's interrupt goes to the guest's vCPU that runs, or that ran most recently, wherever its driver wants it (Anubis's
    /// redirection, which no stock kernel does). Host only.
    pub redirects: bool,
    /// `tandem`: parts of techniques that are left out: `pool`, `waits`, `state`, `learning` (`--without`).
    pub without: Vec<Part>,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            scheduler: "eevdf".into(),
            version: 702,
            tick_ms: 4.0,
            hrtick: false,
            preemption: "full".into(),
            sees_steal: true,
            halted_looks_preempted: false,
            paravirtual: false,
            pv_yield: false,
            granularity_us: None,
            wakeup_granularity_us: None,
            probes: true,
            slice_timers: true,
            ivh: Ivh::Off,
            bvs: true,
            rwc: false,
            dedicate: false,
            vcpu_limit: false,
            boosts: true,
            redirects: false,
            without: Vec::new(),
        }
    }
}

/// A guest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// pCPUs that each vCPU may use; none: all.
    #[serde(default)]
    pub pins: Option<Vec<Vec<usize>>>,
    /// `cpu.weight`.
    #[serde(default = "hundred")]
    pub weight: u64,
    /// `cpu.max`: quota and period, microseconds.
    #[serde(default)]
    pub max_us: Option<(u64, u64)>,
    /// `cpu.max` of each vCPU, in order: quota and period, microseconds; 0, 0: none.
    #[serde(default)]
    pub vcpu_max_us: Vec<(u64, u64)>,
    /// Its kernel.
    #[serde(default)]
    pub kernel: Kernel,
    /// CPU topology that its kernel assumes; none: one socket of single-threaded cores.
    #[serde(default)]
    pub layout: Option<Hardware>,
}

/// A CPU-bound task of the host, in the fair class.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Competitor {
    /// pCPUs, one competitor on each.
    pub cpus: Vec<usize>,
    /// `cpu.max` of each: quota and period, microseconds.
    #[serde(default)]
    pub max_us: Option<(u64, u64)>,
    /// Nice value.
    #[serde(default)]
    pub nice: i32,
}

/// Changes at one time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// When, seconds.
    pub at_s: f64,
    /// Quotas and periods of the first guest's vCPUs, which must have quotas from the start, microseconds.
    #[serde(default)]
    pub vcpu_max_us: Vec<(u64, u64)>,
    /// Quotas and periods of the competitors by their numbers, microseconds; quota 0: they do not run.
    #[serde(default)]
    pub competitors: Vec<(u64, u64)>,
    /// pCPUs of the first guest's vCPUs.
    #[serde(default)]
    pub pins: Option<Vec<Vec<usize>>>,
}

/// A competitor of the real-time class.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// pCPUs, one competitor on each.
    pub cpus: Vec<usize>,
    /// For how long it runs, microseconds.
    pub on_us: f64,
    /// For how long it sleeps, microseconds.
    pub off_us: f64,
    /// Irregular: both are exponential with these means.
    #[serde(default)]
    pub irregular: bool,
    /// When it begins, microseconds.
    #[serde(default)]
    pub phase_us: f64,
    /// It begins at a random phase in its period, different on each pCPU and with each seed.
    #[serde(default)]
    pub any_phase: bool,
    /// Only one of the pCPUs is contended at a time; contention moves on at this interval, milliseconds. 0: all are
    /// contended.
    #[serde(default)]
    pub swap_ms: f64,
}

/// A workload in some kernel.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placed {
    /// Its name.
    pub name: String,
    /// Name of the guest; `host`: in the host.
    #[serde(rename = "in")]
    pub place: String,
    /// Its text, in the form of [`crate::workload`].
    #[serde(default)]
    pub text: Option<String>,
    /// Or the name of a model in [`crate::catalog`].
    #[serde(default)]
    pub model: Option<String>,
    /// Threads of the model.
    #[serde(default = "one")]
    pub threads: u32,
    /// `cpu.max` of its group: quota and period, microseconds; none: it has no group.
    #[serde(default)]
    pub max_us: Option<(u64, u64)>,
    /// Factor by which all work is longer than the workload says.
    #[serde(default = "one_cpu")]
    pub work_scale: f64,
    /// Capacity of the model's guest, in CPUs; the load of servers depends on it.
    #[serde(default = "one_cpu")]
    pub capacity: f64,
    /// Requests per second, if the model is a server, in place of what follows from `capacity`.
    #[serde(default)]
    pub rate_hz: Option<f64>,
    /// CPUs of the guest that the interrupts of its requests go to, round-robin, if the workload does not say; none: all.
    #[serde(default)]
    pub irq_cpus: Option<Vec<usize>>,
}

impl Placed {
    fn read(&self) -> Result<Workload, SimError> {
        let text = match (&self.text, &self.model) {
            (Some(text), None) => text.clone(),
            (None, Some(name)) => {
                let model = catalog::find(name)
                    .ok_or_else(|| bad(format!("workload {}: no model {name:?}", self.name)))?;
                model.workload(self.threads, self.capacity, self.rate_hz)
            }
            _ => return Err(bad(format!("workload {}: either text or model", self.name))),
        };
        let mut workload =
            Workload::parse(&text).map_err(|error| bad(format!("workload {}: {error}", self.name)))?;
        if !(0.001..=1000.0).contains(&self.work_scale) {
            return Err(bad(format!("workload {}: work_scale lies between 0.001 and 1000", self.name)));
        }
        workload.scale_work(self.work_scale);
        for (_, stream) in workload.streams.iter_mut().filter(|(_, stream)| stream.irq_cpus.is_none()) {
            stream.irq_cpus.clone_from(&self.irq_cpus);
        }
        Ok(workload)
    }
}

fn one() -> u32 {
    1
}
fn one_cpu() -> f64 {
    1.0
}
fn second() -> f64 {
    1.0
}
fn hundred() -> u64 {
    100
}

fn bad(what: impl Into<String>) -> SimError {
    SimError::Scenario(what.into())
}

impl Kernel {
    /// The specification from which the machine is built.
    ///
    /// # Errors
    /// An unknown scheduler or preemption, or a tick out of range.
    pub fn spec(&self) -> Result<KernelSpec, SimError> {
        let flavour = match self.scheduler.as_str() {
            "eevdf" | "tandem" if (606..=799).contains(&self.version) => {
                Flavour::Eevdf { version: self.version }
            }
            "eevdf" | "tandem" => {
                return Err(bad(format!("version {}: expected 606 (6.6) to 799", self.version)))
            }
            "cfs" => Flavour::Cfs,
            other => return Err(bad(format!("scheduler {other:?}: expected eevdf, cfs or tandem"))),
        };
        let preemption = match self.preemption.as_str() {
            "full" => Preemption::Full,
            "lazy" => Preemption::Lazy,
            other => return Err(bad(format!("preemption {other:?}: expected full or lazy"))),
        };
        if !(0.5..=20.0).contains(&self.tick_ms) {
            return Err(bad(format!("tick_ms {}: expected 0.5 to 20", self.tick_ms)));
        }
        let granularity_ns = |us: Option<f64>| match us {
            Some(us) if !(0.0..=100_000.0).contains(&us) => {
                Err(bad(format!("a granularity of {us} us: expected 0 to 100000")))
            }
            us => Ok(us.map(|us| (us * 1e3) as Ns)),
        };
        Ok(KernelSpec {
            flavour,
            granularity_ns: granularity_ns(self.granularity_us)?,
            wakeup_granularity_ns: granularity_ns(self.wakeup_granularity_us)?,
            tick_ns: (self.tick_ms * 1e6) as Ns,
            hrtick: self.hrtick,
            preemption,
            sees_steal: self.sees_steal,
            halted_looks_preempted: self.halted_looks_preempted,
            paravirtual: self.paravirtual,
            pv_yield: self.pv_yield,
            policy: self.scheduler == "tandem",
        })
    }
}

impl Scenario {
    /// Reads and checks a scenario's text.
    ///
    /// # Errors
    /// What is wrong, with the line.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SimError> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
            bad(format!("{origin}: line {line}: {}", error.message()))
        })?;
        scenario.check().map_err(|error| match error {
            SimError::Scenario(what) => bad(format!("{origin}: {what}")),
            other => other,
        })?;
        Ok(scenario)
    }

    /// The arms; if there are none, the scenario itself.
    pub fn arms(&self) -> Vec<Arm> {
        if self.arms.is_empty() {
            vec![Arm { name: self.name.clone(), ..Arm::default() }]
        } else {
            self.arms.clone()
        }
    }

    /// The scenarios of a family, with the names of their programs; without a family, the scenario itself.
    pub fn members(&self) -> Vec<(Option<&'static str>, Self)> {
        let Some(family) = &self.family else { return vec![(None, self.clone())] };
        let wanted = |name: &str| family.models.is_empty() || family.models.iter().any(|other| other == name);
        let member = |model: &'static catalog::Model| {
            let mut scenario = self.clone();
            let meant = |placed: &&mut Placed| family.workload == "*" || placed.name == family.workload;
            for placed in scenario.workloads.iter_mut().filter(meant) {
                placed.model = Some(model.name.to_owned());
                placed.rate_hz = family.rates_hz.get(model.name).copied();
            }
            (Some(model.name), scenario)
        };
        catalog::MODELS.iter().filter(|model| wanted(model.name)).map(member).collect()
    }

    /// The same with irregular competition. Competitors under a quota become real-time competitors that run for as
    /// long and as often on average, but at times that cannot be foreseen (both durations are exponential). Single
    /// vCPUs have no quota then.
    pub fn irregular(mut self) -> Self {
        for vm in &mut self.vms {
            vm.vcpu_max_us.clear();
        }
        for competitor in std::mem::take(&mut self.competitors) {
            let Some((quota_us, period_us)) = competitor.max_us else {
                self.competitors.push(competitor);
                continue;
            };
            self.contention.push(Contention {
                cpus: competitor.cpus,
                on_us: quota_us as f64,
                off_us: period_us.saturating_sub(quota_us) as f64,
                irregular: true,
                phase_us: 0.0,
                any_phase: true,
                swap_ms: 0.0,
            });
        }
        self.name.push_str("-irregular");
        self.title.push_str("; competition at moments that nobody can foresee");
        self
    }

    /// The same with another number of threads of the family's program.
    pub fn with_threads(mut self, name: &str, threads: u32) -> Self {
        let of_family = self.family.as_ref().map_or("*", |family| &family.workload).to_owned();
        for placed in self.workloads.iter_mut().filter(|placed| of_family == "*" || placed.name == of_family)
        {
            placed.threads = threads;
            // A card with a queue for each thread.
            placed.irq_cpus = placed.irq_cpus.as_ref().map(|_| (0..threads as usize).collect());
        }
        self.name = name.to_owned();
        self.title = format!("{}; {threads} threads instead", self.title);
        self
    }

    /// The same with so many guests, the first ones, each with as many vCPUs as there are pCPUs and as many threads of each workload.
    pub fn overcommitted(mut self, vcpus: usize, guests: usize) -> Self {
        self.hardware.cores = vcpus;
        self.vms.truncate(guests);
        for vm in &mut self.vms {
            vm.vcpus = vcpus;
        }
        let vms = &self.vms;
        self.workloads.retain(|placed| vms.iter().any(|vm| vm.name == placed.place));
        for placed in &mut self.workloads {
            placed.threads = vcpus as u32;
        }
        self.title = format!("{}; {vcpus} pCPUs and vCPUs each, {guests} guests", self.title);
        self
    }

    /// The scenario with the settings of an arm.
    pub fn with(&self, arm: &Arm) -> Self {
        let mut scenario = self.clone();
        if let Some(kernel) = &arm.host {
            scenario.host = kernel.clone();
        }
        if let Some(kernel) = &arm.guest {
            let meant = |vm: &&mut Vm| arm.guests.as_ref().is_none_or(|names| names.contains(&vm.name));
            for vm in scenario.vms.iter_mut().filter(meant) {
                vm.kernel = kernel.clone();
            }
        }
        if let Some(contention) = &arm.contention {
            scenario.contention.clone_from(contention);
        }
        if let Some(max) = arm.each_vcpu_max_us {
            for vm in &mut scenario.vms {
                vm.vcpu_max_us = vec![max; vm.vcpus];
            }
        }
        scenario.confined_to.clone_from(&arm.cpus);
        if let Some(name) = &arm.workload {
            scenario.workloads.retain(|placed| placed.name == *name);
        }
        scenario.workloads.retain(|placed| !arm.idle_guests.contains(&placed.place));
        scenario
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "two"
duration_s = 2.0
warmup_s = 0.5
[hardware]
cores = 2
[[vm]]
name = "a"
vcpus = 2
pins = [[0], [1]]
[[contention]]
cpus = [1]
on_us = 7000
off_us = 3000
[[workload]]
name = "web"
in = "a"
text = '''{"tasks": {"server": {"instance": 2, "loop": -1, "x_serve": "web"}},
  "resources": {"x_arrivals": {"web": {"rate_hz": 100, "service": 2000}}}}'''
"#;

    #[test]
    fn a_scenario_runs() {
        // A stream's service is a distribution; a plain number is one, too.
        let text =
            GOOD.replace("\"service\": 2000", "\"service\": {\"x_dist\": \"constant\", \"mean\": 2000}");
        let mut stage = Scenario::parse(&text, "test").unwrap().stage(1).unwrap();
        stage.machine.run(stage.end, 10_000_000).unwrap();
        let latencies = &stage.machine.record.latencies[&0];
        assert!((100..200).contains(&latencies.total.len()), "{}", latencies.total.len());
        assert!(latencies.total.iter().all(|(_, ns)| *ns >= 2_000_000));
        let stolen = stage.machine.worlds[1].pages[1].steal_ns as f64;
        assert!(stolen > 0.0 && stolen < 1.5e9);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, named) in [
            ("cores = 2", "cores = 0", "CPUs"),
            ("vcpus = 2", "vcpus = 3", "pins"),
            ("cpus = [1]", "cpus = [2]", "numbered"),
            ("in = \"a\"", "in = \"b\"", "no vm"),
            ("on_us", "on_ms", "line 13"),
            ("duration_s = 2.0", "duration_s = 0.2", "warmup_s"),
            ("vcpus = 2", "vcpus = 2\nkernel = { hrtick = true }", "hrtick"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let error = Scenario::parse(&text, "x.toml").map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(named) && error.starts_with("x.toml"), "{error}");
        }
    }
}
