//! Experiment files: machines, contention, workloads and metrics.

mod check;

use crate::LabError;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use tandem_result::Better;

/// The arm with the kernel's own scheduler.
pub const KERNEL_ARM: &str = "eevdf";
/// Name of the machine under test in mode `single`.
pub const SINGLE: &str = "host";

/// Where the programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In a KVM guest on the host.
    Nested,
    /// On the host itself; no steal.
    Single,
}

/// An experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name, as used on the command line and in results.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// Where the programs run.
    pub mode: Mode,
    /// Seed of every random stream.
    #[serde(default = "one")]
    pub seed: u64,
    /// Repetitions of each arm.
    #[serde(default = "ten")]
    pub reps: u32,
    /// How often the workloads run in each repetition: loading a scheduler takes half a minute in an emulated guest.
    #[serde(default = "once")]
    pub rounds: u32,
    /// How often all machines are booted; every boot runs all repetitions.
    #[serde(default = "once")]
    pub boots: u32,
    /// Schedulers to compare; the first is the baseline.
    pub arms: Vec<String>,
    /// Commands of arms other than `eevdf` and `tandem`.
    #[serde(default)]
    pub commands: BTreeMap<String, Vec<String>>,
    /// Schedulers of other machines that an arm loads after its own, in order.
    #[serde(default)]
    pub also_load: BTreeMap<String, Vec<Also>>,
    /// Host CPUs; default: one more than the cores of this machine.
    pub cpus: Option<usize>,
    /// Possible CPUs of the host, those that are not present included; default: `cpus`, which it needs.
    pub max_cpus: Option<usize>,
    /// Sockets of the host, each with a last-level cache of its own; default: one. Needs `cpus`, a multiple of it.
    pub sockets: Option<usize>,
    /// Name of the guest under test, or `host`: the machine beneath all guests; default: the first guest.
    pub under_test: Option<String>,
    /// Series of the host's kernel, e.g. `6.12`; default: the newest.
    pub kernel: Option<String>,
    /// Guests.
    #[serde(default, rename = "vm")]
    pub vms: Vec<Vm>,
    /// Settings of the host's own scheduler that differ from its kernel's defaults.
    #[serde(default)]
    pub host: HostScheduler,
    /// Competitors.
    #[serde(default)]
    pub contention: Vec<Contention>,
    /// Bandwidth limits of guests or of single vCPUs.
    #[serde(default)]
    pub throttle: Vec<Throttle>,
    /// Programs that run beside the workloads in some machine.
    #[serde(default)]
    pub background: Vec<Background>,
    /// Shell functions for the scripts of all workloads.
    #[serde(default)]
    pub functions: String,
    /// Programs to run and measure.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
    /// Do the figures depend on time? If not, disturbance from outside does not make the run inconclusive.
    #[serde(default = "yes")]
    pub timed: bool,
    /// The workloads load the scheduler themselves: trouble in them is not the rig's, and they are not repeated.
    #[serde(default)]
    pub loads_scheduler: bool,
    /// Also report how exactly the contention was delivered.
    #[serde(default)]
    pub report_contention: bool,
}

/// What an experiment changes in the host's fair class (`/sys/kernel/debug/sched`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostScheduler {
    /// Slices end on time, by a timer (the feature `HRTICK`). `false`: at the tick, as on kernels before 7.1, where it
    /// is not the default.
    pub hrtick: Option<bool>,
    /// `base_slice_ns`, in microseconds.
    pub base_slice_us: Option<u64>,
}

impl HostScheduler {
    fn check(&self) -> Result<(), String> {
        match self.base_slice_us {
            Some(us) if !(100..=100_000).contains(&us) => {
                Err(format!("[host]: base_slice_us {us}: from 100 to 100000 (the kernel's limits)"))
            }
            _ => Ok(()),
        }
    }

    /// The shell command that makes these settings; `None` if there are none.
    pub fn command(&self) -> Option<String> {
        let hrtick = self.hrtick.map(hrtick_command);
        let slice = self
            .base_slice_us
            .map(|us| format!("echo {} > /sys/kernel/debug/sched/base_slice_ns", us * 1000));
        let parts: Vec<String> = hrtick.into_iter().chain(slice).collect();
        (!parts.is_empty()).then(|| parts.join(" && "))
    }
}

/// The shell command that makes EEVDF's slices end on time, by a timer (`on`), or at ticks.
pub fn hrtick_command(on: bool) -> String {
    format!("echo {} > /sys/kernel/debug/sched/features", if on { "HRTICK" } else { "NO_HRTICK" })
}

/// A guest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Host CPU of each vCPU; two vCPUs on one CPU are stacked.
    pub pins: Vec<usize>,
    /// Each vCPU may run on every CPU of `pins`: the host places it.
    #[serde(default)]
    pub free: bool,
    /// `cpu.weight` of the guest, against other guests that have one (the host's own tasks have none).
    pub weight: Option<u32>,
    /// Memory in MiB.
    #[serde(default = "memory_mib")]
    pub memory_mib: u32,
    /// Series of its kernel, e.g. `6.18`, if it is another one than the host's.
    pub kernel: Option<String>,
    /// Additional kernel parameters.
    #[serde(default)]
    pub kernel_args: String,
    /// The emulator's other threads run on the host's CPU 0 (libvirt: `emulatorpin`), not on the vCPUs' CPUs.
    #[serde(default)]
    pub emulator_apart: bool,
    /// Where its threads are among the host's cgroups; default: in the root, or, with a weight or limit, in a group of its own.
    pub layout: Option<Layout>,
    /// A network card (virtio, with vhost) on a link to the host: the n-th guest with one is 10.0.n.2, the host 10.0.n.1.
    #[serde(default)]
    pub network: bool,
    /// A vsock device (with vhost): the n-th guest with one has the number 2 + n, the host 2.
    #[serde(default)]
    pub vsock: bool,
    /// A disk (virtio) of so many MiB, in the host's memory; 0: none.
    #[serde(default)]
    pub disk_mib: u32,
    /// KVM's paravirtual features that QEMU's named CPU models lack: unhalt, TLB flush, IPIs, yield.
    #[serde(default)]
    pub paravirtual: bool,
    /// The guest is not told of steal: KVM's steal time page is off.
    #[serde(default)]
    pub no_steal_time: bool,
}

/// How a management system lays out a guest's cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One scope with all threads: `qemu.slice/NAME.scope`.
    Proxmox,
    /// One group per vCPU and one for the emulator: `machine.slice/machine-qemu-N-NAME.scope/libvirt/{vcpuN,emulator}`.
    Libvirt,
}

/// A limit by the host's `cpu.max`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// Guest.
    pub vm: String,
    /// One of its vCPUs; `None`: the whole guest, emulator threads included.
    pub vcpu: Option<usize>,
    /// Run time per period, microseconds.
    pub quota_us: u64,
    /// Period, microseconds.
    #[serde(default = "period_us")]
    pub period_us: u64,
}

/// Real-time competitors on host CPUs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// Needed only by workloads that choose their contention.
    #[serde(default)]
    pub name: String,
    /// Host CPUs.
    pub cpus: Vec<usize>,
    /// Preemption interval of a vCPU there, microseconds.
    pub on_us: u64,
    /// Time between two preemption intervals, microseconds.
    pub off_us: u64,
    /// Irregular: both times are exponential with these means.
    pub seed: Option<u64>,
    /// Only one of the CPUs is contended at a time; the contended CPU changes at this interval.
    #[serde(default)]
    pub swap_ms: u64,
    /// The preemption intervals on each CPU begin this much later than those on the CPU before it, microseconds.
    #[serde(default)]
    pub stagger_us: u64,
    /// Phases with other lengths, one after another from the beginning of each workload on.
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
}

/// A phase of a contention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its length, milliseconds.
    pub for_ms: u64,
    /// Preemption interval of a vCPU there, microseconds; 0: it is not preempted.
    #[serde(default)]
    pub on_us: u64,
    /// Time between two preemption intervals, microseconds.
    #[serde(default)]
    pub off_us: u64,
}

/// A program that runs beside the workloads.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// Guest, or `host`.
    pub machine: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Only during these workloads; default: all the time.
    pub workloads: Option<Vec<String>>,
}

/// A program to run and measure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name, unique.
    pub name: String,
    /// Machine that it runs on; default: the one under test.
    pub on: Option<String>,
    /// Program and arguments; or `script`.
    #[serde(default)]
    pub argv: Vec<String>,
    /// Programs that run at the same time on other machines, and are measured, too.
    #[serde(default)]
    pub also: Vec<Also>,
    /// Text of a shell script.
    pub script: Option<String>,
    /// Names of the contention during it; default: all.
    pub contention: Option<Vec<String>>,
    /// Limit, seconds.
    #[serde(default = "limit_s")]
    pub timeout_s: f64,
    /// Figures that are taken from the last line of its output, a JSON object.
    #[serde(default)]
    pub metrics: Vec<MetricSpec>,
}

/// A program on another machine: beside a workload, where it ends by itself, or the scheduler of an arm.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Also {
    /// Guest, or `host`.
    pub machine: String,
    /// Program and arguments.
    pub argv: Vec<String>,
}

/// One figure of a workload.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// Its name in the result, unique.
    pub name: String,
    /// Its path in the JSON, e.g. `latency_us.p95` or `threads.0.work`.
    pub path: String,
    /// Whose output it is in: a machine of the workload's `also`; default: the workload's own.
    pub machine: Option<String>,
    /// Path in the workload's own output of what it is divided by, e.g. the work that was done meanwhile.
    pub per: Option<String>,
    /// Unit.
    #[serde(default)]
    pub unit: String,
    /// Direction of improvement.
    pub better: Better,
    /// For a list of windows of progress: how to reduce it to one figure.
    pub reduce: Option<Reduce>,
    /// For a number that a program has estimated: the sample is its distance from the host's own accounting.
    pub against_host: Option<AgainstHost>,
}

/// What an estimate is compared with: the host's accounting of the time in which the vCPU wanted to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgainstHost {
    /// vCPU of the guest under test.
    pub vcpu: usize,
    /// What was estimated.
    pub figure: HostFigure,
}

/// A figure of a vCPU that the host knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostFigure {
    /// Part of the time that it wanted to run in which it ran, 0 to 1; the error is in percentage points.
    Share,
    /// Its mean preemption interval, milliseconds; the error is in percent of it. Needs contention on its CPU.
    PreemptionMs,
}

/// Figures of a list of windows. Speed is relative to that of another workload of this experiment
/// (metric `of`, work per second) under the baseline arm in the same repetition.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reduce {
    /// Milliseconds until the mean speed over the next `hold_ms` is at least `speed`.
    TimeTo {
        /// Fraction of the reference.
        speed: f64,
        /// Length of a window.
        window_ms: f64,
        /// Length of the mean.
        hold_ms: f64,
        /// Metric that is the reference.
        of: String,
    },
    /// Longest interval in milliseconds in which every mean over `hold_ms` is below `speed`.
    LongestBelow {
        /// Fraction of the reference.
        speed: f64,
        /// Length of a window.
        window_ms: f64,
        /// Length of the mean.
        hold_ms: f64,
        /// Metric that is the reference.
        of: String,
    },
    /// The longest recovery time of all phases but the first: milliseconds until the mean speed over the next
    /// `hold_ms` is at least `speed` of the mean of the phase's second half. Needs no reference.
    Recovery {
        /// Fraction of the mean of the phase's second half.
        speed: f64,
        /// Length of a window.
        window_ms: f64,
        /// Length of the mean.
        hold_ms: f64,
        /// Length of a phase.
        phase_ms: f64,
    },
}

impl Reduce {
    /// Name of the metric that is the reference, if it has one.
    pub fn of(&self) -> Option<&str> {
        match self {
            Reduce::TimeTo { of, .. } | Reduce::LongestBelow { of, .. } => Some(of),
            Reduce::Recovery { .. } => None,
        }
    }

    fn check(&self) -> Result<(), String> {
        let (Reduce::TimeTo { speed, window_ms, hold_ms, .. }
        | Reduce::LongestBelow { speed, window_ms, hold_ms, .. }
        | Reduce::Recovery { speed, window_ms, hold_ms, .. }) = self;
        if let Reduce::Recovery { phase_ms, .. } = self {
            if !(*phase_ms >= 2.0 * hold_ms && phase_ms.is_finite()) {
                return Err("reduce: needs phase_ms of at least twice hold_ms".into());
            }
        }
        let good = *speed > 0.0 && *window_ms > 0.0 && hold_ms >= window_ms && hold_ms.is_finite();
        if good {
            Ok(())
        } else {
            Err("reduce: needs speed > 0, window_ms > 0 and hold_ms from window_ms on".into())
        }
    }
}

fn one() -> u64 {
    1
}
fn yes() -> bool {
    true
}
fn once() -> u32 {
    1
}
fn ten() -> u32 {
    10
}
fn period_us() -> u64 {
    100_000
}
fn memory_mib() -> u32 {
    512
}
fn limit_s() -> f64 {
    60.0
}

impl Experiment {
    /// Reads and checks the text of an experiment file.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str, origin: &str) -> Result<Self, LabError> {
        let experiment: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
            LabError::Experiment {
                origin: origin.into(),
                message: format!("line {line}: {}", error.message()),
            }
        })?;
        experiment.check().map_err(|message| LabError::Experiment { origin: origin.into(), message })?;
        Ok(experiment)
    }

    /// Machine that the workloads run on.
    pub fn target(&self) -> &str {
        match self.mode {
            Mode::Single => SINGLE,
            Mode::Nested => self
                .under_test
                .as_deref()
                .or_else(|| self.vms.first().map(|vm| vm.name.as_str()))
                .unwrap_or(SINGLE),
        }
    }

    /// The same experiment with other arms.
    ///
    /// # Errors
    /// An arm is unknown.
    pub fn with_arms(mut self, arms: Vec<String>) -> Result<Self, LabError> {
        self.also_load.retain(|arm, _| arms.contains(arm));
        self.arms = arms;
        let origin = self.name.clone();
        self.check().map_err(|message| LabError::Experiment { origin, message })?;
        Ok(self)
    }

    /// Contention during a workload, as indices into the file's list.
    pub fn contention_of(&self, workload: &Workload) -> BTreeSet<usize> {
        let chosen = |c: &Contention| workload.contention.as_ref().is_none_or(|list| list.contains(&c.name));
        self.contention.iter().enumerate().filter(|(_, c)| chosen(c)).map(|(index, _)| index).collect()
    }

    /// Command of an arm's scheduler; none for the kernel's own.
    pub fn command(&self, arm: &str) -> Option<Vec<String>> {
        if let Some(command) = self.commands.get(arm) {
            return Some(command.clone());
        }
        let side = if self.is_of_the_host() { "host" } else { "guest" };
        (arm == "tandem").then(|| ["tandem", side].map(str::to_string).to_vec())
    }

    /// Is it the host beneath guests that is under test?
    pub fn is_of_the_host(&self) -> bool {
        self.mode == Mode::Nested && self.target() == SINGLE
    }

    /// A guest's number on vsock; none: it has no such device.
    pub fn vsock_of(&self, vm: &Vm) -> Option<u32> {
        let before = self.before(vm, |other| other.vsock);
        vm.vsock.then(|| u32::try_from(before + 3).unwrap_or(u32::MAX))
    }

    /// Number of a guest's network; none: it has none.
    pub fn network_of(&self, vm: &Vm) -> Option<u8> {
        let before = self.before(vm, |other| other.network);
        vm.network.then(|| u8::try_from(before + 1).unwrap_or(u8::MAX))
    }

    /// Number of guests before this one that have something.
    fn before(&self, vm: &Vm, has: impl Fn(&Vm) -> bool) -> usize {
        self.vms.iter().take_while(|other| other.name != vm.name).filter(|other| has(other)).count()
    }

    /// Is there a machine of this name?
    fn knows(&self, machine: &str) -> bool {
        machine == SINGLE || self.vms.iter().any(|vm| vm.name == machine)
    }

    /// Do programs on the host measure guests in this workload? They run on its CPU 0.
    pub fn has_clients(&self, workload: &Workload) -> bool {
        let on_host = |machine: &str| machine == SINGLE;
        self.mode == Mode::Nested
            && (on_host(workload.on.as_deref().unwrap_or(self.target()))
                || workload.also.iter().any(|also| on_host(&also.machine)))
    }

    /// Is this program the command of an arm?
    pub fn uses(&self, program: &str) -> bool {
        let is = |argv: &Vec<String>| argv.first().is_some_and(|first| first == program);
        let also = self.also_load.values().flatten().map(|also| &also.argv);
        self.arms.iter().filter_map(|arm| self.commands.get(arm)).chain(also).any(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"
name = "x"
title = "t"
mode = "nested"
arms = ["eevdf", "tandem"]
[[vm]]
name = "a"
pins = [1, 2]
[[contention]]
cpus = [2]
on_us = 7000
off_us = 3000
[[workload]]
name = "spin"
argv = ["tandem-kit", "spin"]
metrics = [{ name = "work", path = "work_per_s", better = "higher" }]
"#;

    #[test]
    fn a_good_file_is_read() {
        let experiment = Experiment::parse(GOOD, "x").unwrap();
        assert_eq!((experiment.target(), experiment.reps), ("a", 10));
        assert_eq!(experiment.command("tandem").unwrap(), ["tandem", "guest"]);
    }

    #[test]
    fn errors_name_file_and_cause() {
        for (from, to, cause) in [
            ("pins = [1, 2]", "pins = [0, 1]", "from 1 on"),
            ("on_us = 7000", "on_us = 70", "below 800"),
            ("arms = [\"eevdf\", \"tandem\"]", "arms = [\"eevdf\", \"mine\"]", "mine"),
            ("mode = \"nested\"", "mode = \"single\"", "has no [[vm]]"),
            ("title = \"t\"", "title = \"t\"\ncpus = 3\nsockets = 2", "multiple"),
            ("title = \"t\"", "title = \"t\"\ncpus = 3\nmax_cpus = 2", "max_cpus"),
            ("title = \"t\"", "title = \"t\"\ncolour = 1", "line 4"),
            ("title = \"t\"", "title = \"t\"\nrounds = 0", "one round"),
            ("title = \"t\"", "title = \"t\"\nfunctions = \"f() { :; }\"", "could use them"),
            ("better = \"higher\"", "better = \"more\"", "line 16"),
            ("argv = [\"tandem-kit\", \"spin\"]", "", "either argv or script"),
            ("name = \"spin\"", "name = \"spin\"\ncontention = [\"weak\"]", "no [[contention]] named"),
            ("cpus = [2]", "cpus = [2, 2]", "two contentions on host CPU 2"),
            ("[[workload]]", "[[throttle]]\nvm = \"a\"\nvcpu = 2\nquota_us = 5000\n[[workload]]", "no guest"),
            ("better = \"higher\"", "better = \"higher\", reduce = { time_to = { speed = 0.9, window_ms = 50, hold_ms = 250, of = \"it\" } }", "no plain metric"),
            ("better = \"higher\"", "better = \"higher\", reduce = { time_to = { speed = 0.9, window_ms = 50, hold_ms = 5, of = \"it\" } }", "hold_ms from window_ms"),
            ("[[workload]]", "[host]\nbase_slice_us = 10\n[[workload]]", "from 100"),
            ("[[workload]]", "[[background]]\nmachine = \"b\"\nargv = [\"x\"]\n[[workload]]", "as machine"),
            ("name = \"spin\"", "name = \"spin\"\non = \"b\"", "no such machine"),
            ("[[vm]]", "[also_load]\nmine = [{ machine = \"a\", argv = [\"x\"] }]\n[[vm]]", "[also_load]"),
            ("name = \"spin\"", "name = \"spin\"\nalso = [{ machine = \"a\", argv = [] }]", "needs argv"),
            ("path = \"work_per_s\"", "path = \"work_per_s\", machine = \"host\"", "none of the workload's also"),
            (
                "path = \"work_per_s\"",
                "path = \"work_per_s\", per = \"x\", against_host = { vcpu = 0, figure = \"share\" }",
                "per goes neither",
            ),
        ] {
            let error = Experiment::parse(&GOOD.replace(from, to), "file.toml").unwrap_err().to_string();
            assert!(error.starts_with("file.toml: ") && error.contains(cause), "{error}");
        }
    }

    #[test]
    fn a_workload_may_choose_its_contention() {
        let text = GOOD.replace("cpus = [2]", "name = \"weak\"\ncpus = [2]") + "contention = []\n";
        let text = text + "[[workload]]\nname = \"again\"\nscript = \"true\"\ncontention = [\"weak\"]\n";
        let text = text + "[[workload]]\nname = \"all\"\nscript = \"true\"\n";
        let experiment = Experiment::parse(&text, "x").unwrap();
        let counts: Vec<_> = experiment.workloads.iter().map(|w| experiment.contention_of(w).len()).collect();
        assert_eq!(counts, [0, 1, 1]);
    }

    #[test]
    fn networks_are_numbered_and_arms_may_load_schedulers_elsewhere() {
        let more = "[[vm]]\nname = \"b\"\npins = [1]\nnetwork = true\n[[vm]]\nname = \"c\"\npins = [1]\nnetwork = true\n\
                    [[also_load.both]]\nmachine = \"b\"\nargv = [\"scx_peer\"]\n[[vm]]";
        let text = GOOD
            .replacen("[[vm]]", more, 1)
            .replace("arms = [\"eevdf\", \"tandem\"]", "arms = [\"eevdf\", \"both\"]");
        let experiment = Experiment::parse(&text, "x").unwrap();
        let networks: Vec<_> = experiment.vms.iter().map(|vm| experiment.network_of(vm)).collect();
        assert_eq!(networks, [Some(1), Some(2), None]);
        let vsock = Experiment::parse(&text.replace("network = true", "vsock = true"), "x").unwrap();
        let numbers: Vec<_> = vsock.vms.iter().map(|vm| vsock.vsock_of(vm)).collect();
        assert_eq!(numbers, [Some(3), Some(4), None]);
        assert!(experiment.uses("scx_peer"));
        assert!(experiment.with_arms(vec!["eevdf".into()]).unwrap().also_load.is_empty());
        let twice = text.replace(
            "argv = [\"scx_peer\"]",
            "argv = [\"x\"]\n[[also_load.both]]\nmachine = \"b\"\nargv = [\"y\"]",
        );
        assert!(Experiment::parse(&twice, "x").unwrap_err().to_string().contains("appears twice"));
    }

    #[test]
    fn other_arms_are_checked_too() {
        let experiment = Experiment::parse(GOOD, "x").unwrap();
        assert!(experiment.clone().with_arms(vec!["tandem".into()]).is_ok());
        assert!(experiment.with_arms(vec!["mine".into()]).unwrap_err().to_string().contains("mine"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _ = Experiment::parse(&text, "x");
        }
    }
}
