//! Comparison of the simulator with the lab: the same workload files in both, and the ratios between schedulers.
//!
//! Tolerances were written down before anything was measured: the mean error of all ratios, and the order of the
//! schedulers wherever the lab's interval tells them apart. A control with a wrong parameter has to fail.

use crate::runner;
use crate::scenario::Scenario;
use crate::SimError;

/// Mean error of the ratios that is tolerated.
pub const TOLERANCE: f64 = 0.15;

/// A workload that runs in both.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name, also in the lab's result.
    pub name: &'static str,
    /// The workload file.
    pub text: &'static str,
    /// Is one vCPU preempted for 8 of each 16 ms?
    pub preemptions: bool,
    /// Measured by wake-up latency; otherwise by loops per second.
    pub by_wakeups: bool,
    /// In a group with a quota of half a machine?
    pub limited: bool,
    /// Beside two SCHED_IDLE threads? (Debian's rt-app does not know this policy: the lab uses `tandem-kit spin`.)
    pub filled: bool,
    /// Number of CPU-bound VMs on the same pCPUs. With any, the schedulers that are compared are the host's.
    pub beside: usize,
}

macro_rules! case {
    ($name:literal, $preemptions:literal, $by_wakeups:literal) => {
        Case {
            name: $name,
            text: include_str!(concat!("../validation/", $name, ".json")),
            preemptions: $preemptions,
            by_wakeups: $by_wakeups,
            limited: false,
            filled: false,
            beside: 0,
        }
    };
}

macro_rules! beside {
    ($file:literal, $beside:literal, $by_wakeups:literal) => {
        Case {
            name: concat!($file, " beside ", $beside),
            beside: $beside,
            ..case!($file, false, $by_wakeups)
        }
    };
}

/// All cases.
pub const CASES: &[Case] = &[
    case!("cpu-bound", false, false),
    case!("weights", false, false),
    case!("one-cpu-bound-beside-preemptions", true, false),
    case!("cpu-bound-beside-preemptions", true, false),
    case!("barrier-beside-preemptions", true, false),
    case!("periodic-low", true, true),
    case!("periodic-medium", true, true),
    case!("periodic-high", true, true),
    Case { filled: true, ..case!("best-effort", true, true) },
    case!("lock", true, false),
    Case { name: "limited", limited: true, ..case!("cpu-bound", false, false) },
];

/// All cases of the host.
pub const HOST_CASES: &[Case] = &[
    beside!("cpu-bound", 1, false),
    beside!("cpu-bound", 2, false),
    beside!("barrier-beside-preemptions", 1, false),
    beside!("barrier-beside-preemptions", 2, false),
    beside!("lock", 1, false),
    beside!("periodic-low", 1, true),
    beside!("periodic-medium", 1, true),
    beside!("periodic-low", 2, true),
];

/// A BPF call on the lab's host, nanoseconds: measured there with `kernel.bpf_stats_enabled`. The emulated processor forgets its
/// translations of addresses at each entry to a guest and at each exit; in a guest a call takes a fifth.
const HOST_BPF_NS: u32 = 13_500;
const GUEST_BPF_NS: u32 = 2500;

impl Case {
    /// Name of the lab's metric.
    pub fn metric(&self) -> String {
        format!("{}: {}", self.name, if self.by_wakeups { "wake-up p95" } else { "loops" })
    }

    /// The scenario. The lab's kernel, Debian's, is built without `CONFIG_PARAVIRT_TIME_ACCOUNTING`. `preemption_us`:
    /// length of preemption intervals, 8000 as in the lab.
    ///
    /// # Errors
    /// Only if a workload file of this crate is wrong.
    pub fn scenario(&self, scale: Scale, preemption_us: f64) -> Result<Scenario, SimError> {
        let contention = if self.preemptions {
            format!("[[contention]]\ncpus = [1]\non_us = {preemption_us:.1}\noff_us = 8000.0\n")
        } else {
            String::new()
        };
        let (what, percentile) =
            if self.by_wakeups { ("wakeup", "percentile = 0.95\n") } else { ("rounds", "") };
        let filler = if self.filled {
            "[[workload]]\nname = \"filler\"\nin = \"a\"\n\
             text = '''{\"tasks\": {\"filler\": {\"instance\": 2, \"loop\": -1, \"policy\": \"SCHED_IDLE\", \"run\": 1000}}}'''\n\n"
        } else {
            ""
        };
        let neighbours: String = (1..=self.beside)
            .map(|n| {
                format!(
                    "[[vm]]\nname = \"n{n}\"\nvcpus = 2\npins = [[0], [1]]\n\n\
                     [[workload]]\nname = \"n{n}\"\nin = \"n{n}\"\n\
                     text = '''{{\"tasks\": {{\"cpu_bound\": {{\"instance\": 2, \"loop\": -1, \"run\": 1000}}}}}}'''\n\n"
                )
            })
            .collect();
        let arms = if self.beside == 0 {
            "[[arm]]\nname = \"eevdf\"\nguest = { scheduler = \"eevdf\", sees_steal = false }\n\n\
             [[arm]]\nname = \"tandem\"\nguest = { scheduler = \"tandem\", slice_timers = false }\n\n"
        } else {
            "[[arm]]\nname = \"eevdf\"\nhost = { scheduler = \"eevdf\", hrtick = true }\n\n\
             [[arm]]\nname = \"tandem\"\nhost = { scheduler = \"tandem\" }\n\n"
        };
        let text = format!(
            "name = \"{name}\"\nduration_s = 9.0\n\n[hardware]\ncores = 2\n\n{costs}\n\
             [[vm]]\nname = \"a\"\nvcpus = 2\npins = [[0], [1]]\n\n{neighbours}{contention}\n\
             [[workload]]\nname = \"w\"\nin = \"a\"\n{limit}work_scale = {work_scale:.4}\ntext = '''{text}'''\n\n{filler}\
             {arms}[[metric]]\nname = \"m\"\nworkload = \"w\"\nwhat = \"{what}\"\n{percentile}",
            name = self.name,
            text = self.text,
            costs = scale.costs(if self.beside == 0 { GUEST_BPF_NS } else { HOST_BPF_NS }),
            work_scale = scale.work,
            limit = if self.limited { "max_us = [100000, 100000]\n" } else { "" },
        );
        Scenario::parse(&text, self.name)
    }

    /// Ratio of the scheduler over EEVDF, by medians over seeds. None: one of them measured nothing.
    ///
    /// # Errors
    /// A run fails.
    pub fn ratio(
        &self,
        scale: Scale,
        preemption_us: f64,
        seeds: u64,
        threads: usize,
    ) -> Result<Option<f64>, SimError> {
        let scenario = self.scenario(scale, preemption_us)?;
        let results = runner::run(&scenario, seeds, threads, &|_, _| {})?;
        let median = |arm: usize| {
            let figures: Vec<f64> =
                results.get(arm)?.iter().filter_map(|run| run.figures.first().copied().flatten()).collect();
            tandem_result::median(&figures)
        };
        Ok(median(0).zip(median(1)).filter(|(base, _)| *base > 0.0).map(|(base, arm)| arm / base))
    }
}

/// How slow the lab is: measured there under EEVDF without contention, never from the runs that are compared.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Factor by which work takes longer than the workload files say, including what rt-app does between two pieces
    /// of it.
    pub work: f64,
    /// Factor by which an idle vCPU takes longer to wake up than with the costs below.
    pub wake: f64,
}

/// Median wake-up latency of a periodic thread on an idle vCPU with a `wake` of 1, microseconds.
pub const WAKE_US: f64 = 85.0;

impl Scale {
    /// Costs of operations in a guest of an emulated host. Everything that involves the hypervisor is expensive.
    fn costs(self, bpf_ns: u32) -> String {
        let ns = |cost: f64| (cost * self.wake).round();
        format!(
            "[costs]\nswitch_ns = 25000\ntick_ns = 20000\nexit_ns = {}\nipi_ns = {}\nvirtual_ipi_ns = {}\nirq_ns = {}\n\
             wake_ns = {}\nblock_ns = 10000\nbpf_ns = {bpf_ns}\n",
            ns(30_000.0),
            ns(10_000.0),
            ns(60_000.0),
            ns(15_000.0),
            ns(15_000.0)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale { work: 1.5, wake: 1.0 };

    #[test]
    fn all_cases_can_be_staged() {
        for case in CASES.iter().chain(HOST_CASES) {
            let scenario =
                case.scenario(SCALE, 8000.0).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            for arm in &scenario.arms {
                scenario
                    .with(arm)
                    .stage(1)
                    .map(|_| ())
                    .unwrap_or_else(|error| panic!("{}: {error}", case.name));
            }
        }
    }

    #[test]
    fn a_wrong_parameter_is_noticed() {
        let case = CASES.iter().find(|case| case.name == "barrier-beside-preemptions").unwrap();
        let (right, wrong) = (
            case.ratio(SCALE, 8000.0, 3, 1).unwrap().unwrap(),
            case.ratio(SCALE, 40_000.0, 3, 1).unwrap().unwrap(),
        );
        assert!((wrong / right - 1.0).abs() > TOLERANCE, "{right} {wrong}");
    }
}
