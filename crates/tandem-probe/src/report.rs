//! The report of a probe, for programs (`tandem.probe/1`) and in words.

use crate::activity::Activity;
use crate::kernel::{format_list, KernelView};
use crate::neighbours::{self, Neighbours, Seen, CONTENDED};
use crate::share::Sample;
use crate::vtop::topology::{Shares, Topology};
use crate::vtop::Effort;
use crate::wake::Wakes;
use serde::Serialize;

/// Name and version of the schema.
pub const SCHEMA: &str = "tandem.probe/1";
/// Cores whose speeds differ by more than this are different kinds of cores.
const SPEEDS_DIFFER: f64 = 0.15;
/// A vCPU with a smaller share than this is a straggler (vSched, section 3.4).
const STRAGGLER: f64 = 0.10;

/// One vCPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VcpuReport {
    /// Its number.
    pub cpu: usize,
    /// Share of a pCPU that it gets when it wants to run, 0 to 1; `None` if other tasks left the probe too little time.
    pub share: Option<f64>,
    /// Speed of its core relative to the fastest core observed, 0 to 1.
    pub speed: Option<f64>,
    /// Share times speed.
    pub capacity: Option<f64>,
    /// Number of preemption intervals observed.
    pub preemptions: usize,
    /// Their mean length, milliseconds.
    pub preemption_ms: f64,
    /// Their 95th percentile, milliseconds.
    pub preemption_p95_ms: f64,
    /// Mean time between two, milliseconds.
    pub active_ms: f64,
    /// Part of the sample in which the guest's other tasks ran on the vCPU, 0 to 1.
    pub busy: f64,
    /// Part of its wake-ups that was served at once, 0 to 1; `None` if it was not woken, or too rarely.
    pub at_once: Option<f64>,
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// vCPUs, ascending.
    pub vcpus: Vec<VcpuReport>,
    /// The measured topology; `None` if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// What preempts the vCPUs; `None` if nothing does, or if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbours: Option<Neighbours>,
    /// The topology as the kernel knows it.
    pub kernel: KernelView,
    /// Time that the topology took, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_ms: Option<f64>,
    /// Findings in words.
    pub findings: Vec<String>,
}

impl Report {
    /// Builds the report from the measurements.
    pub fn of(
        samples: &[Sample],
        wakes: &[Wakes],
        topology: Option<(Topology, Effort)>,
        kernel: KernelView,
    ) -> Self {
        let fastest = samples.iter().filter_map(|s| s.block_ns).fold(f64::INFINITY, f64::min);
        let vcpus: Vec<VcpuReport> = samples.iter().map(|sample| vcpu(sample, wakes, fastest)).collect();
        let (topology, effort) =
            topology.map_or((None, None), |(topology, effort)| (Some(topology), Some(effort)));
        let mut findings = shares_in_words(&vcpus);
        let neighbours = Some(neighbours(samples, &vcpus)).filter(|found| *found != Neighbours::None);
        findings.extend(neighbours.map(|found| found.to_string()));
        if let Some(topology) = &topology {
            findings.extend(topology_in_words(topology, &kernel));
        }
        if effort.is_some_and(|effort| effort.out_of_time) {
            findings.push(
                "the time was over before the topology was complete: what is missing is unknown".into(),
            );
        }
        let topology_ms = effort.map(|effort| effort.elapsed_ns as f64 / 1e6);
        Self { schema: SCHEMA, vcpus, topology, neighbours, kernel, topology_ms, findings }
    }
}

fn neighbours(samples: &[Sample], vcpus: &[VcpuReport]) -> Neighbours {
    let seen = samples.iter().zip(vcpus).map(|(sample, vcpu)| {
        let (preemptions, active) = sample.activity.lengths_ns();
        Seen {
            share: vcpu.share.unwrap_or(1.0),
            preemption_ms: vcpu.preemption_ms,
            active_ms: vcpu.active_ms,
            even: neighbours::even(&preemptions) && neighbours::even(&active),
            at_once: vcpu.at_once,
        }
    });
    let activity: Vec<&Activity> = samples.iter().map(|sample| &sample.activity).collect();
    Neighbours::of(&seen.collect::<Vec<_>>(), neighbours::preempted_at_once(&activity))
}

fn vcpu(sample: &Sample, wakes: &[Wakes], fastest: f64) -> VcpuReport {
    let (share, speed) = (sample.share(), sample.speed(fastest));
    VcpuReport {
        cpu: sample.cpu,
        share,
        speed,
        capacity: share.zip(speed).map(|(share, speed)| share * speed),
        preemptions: sample.preemptions.count,
        preemption_ms: sample.preemptions.mean_ns / 1e6,
        preemption_p95_ms: sample.preemptions.p95_ns / 1e6,
        active_ms: sample.preemptions.mean_active_ns / 1e6,
        busy: sample.waited_ns as f64 / sample.wall_ns.max(1) as f64,
        at_once: wakes.iter().find(|wake| wake.cpu == sample.cpu).and_then(|wake| wake.at_once),
    }
}

fn named(cpus: &[usize]) -> String {
    format!("vCPU{} {}", if cpus.len() == 1 { "" } else { "s" }, format_list(cpus))
}

fn verb(cpus: &[usize], one: &'static str, many: &'static str) -> &'static str {
    if cpus.len() == 1 {
        one
    } else {
        many
    }
}

fn shares_in_words(vcpus: &[VcpuReport]) -> Vec<String> {
    let mut findings = Vec::new();
    let those = |test: &dyn Fn(&VcpuReport) -> bool| {
        vcpus.iter().filter(|v| test(v)).map(|v| v.cpu).collect::<Vec<_>>()
    };
    let stragglers = those(&|v| v.share.is_some_and(|share| share < STRAGGLER));
    if !stragglers.is_empty() {
        let gets = verb(&stragglers, "gets", "get");
        findings.push(format!(
            "{} {gets} less than a tenth of a pCPU: whoever waits for work there waits long",
            named(&stragglers)
        ));
    }
    for vcpu in vcpus.iter().filter(|v| v.share.is_some_and(|share| (STRAGGLER..CONTENDED).contains(&share)))
    {
        findings.push(format!(
            "vCPU {} gets {:.0} % of a pCPU and is preempted for {:.1} ms at a time",
            vcpu.cpu,
            vcpu.share.unwrap_or(0.0) * 100.0,
            vcpu.preemption_ms
        ));
    }
    let slow = those(&|v| v.speed.is_some_and(|speed| speed < 1.0 - SPEEDS_DIFFER));
    if !slow.is_empty() {
        findings.push(format!(
            "{} {} on slower cores, whatever their share",
            named(&slow),
            verb(&slow, "runs", "run")
        ));
    }
    let busy = those(&|v| v.share.is_none());
    if !busy.is_empty() {
        findings.push(format!(
            "{} had no time left for the probe: {} share is unknown",
            named(&busy),
            verb(&busy, "its", "their")
        ));
    }
    if findings.is_empty() && !vcpus.is_empty() {
        findings.push("every vCPU has a pCPU for itself".into());
    }
    findings
}

fn topology_in_words(topology: &Topology, kernel: &KernelView) -> Vec<String> {
    let mut findings: Vec<String> = topology
        .stacked()
        .map(|group| {
            format!("{} share one hardware thread: only one of them can run at a time", named(group))
        })
        .collect();
    let apart =
        |groups: &[Vec<usize>], a: usize, b: usize| !groups.iter().any(|g| g.contains(&a) && g.contains(&b));
    let cores = topology.groups(Shares::Core);
    let believed = |groups: &[Vec<usize>]| groups.iter().filter(|g| g.len() > 1).cloned().collect::<Vec<_>>();
    let hidden: Vec<&Vec<usize>> = cores
        .iter()
        .filter(|g| {
            g.len() > 1 && !kernel.cores.is_empty() && g.windows(2).any(|p| apart(&kernel.cores, p[0], p[1]))
        })
        .collect();
    if !hidden.is_empty() {
        let list = hidden.iter().map(|g| format_list(g)).collect::<Vec<_>>().join(" and ");
        findings.push(format!("CPUs {list} share a core; the kernel takes them for cores of their own"));
    }
    let invented = believed(&kernel.cores)
        .into_iter()
        .filter(|g| g.windows(2).any(|p| topology.relation(p[0], p[1]).is_some_and(|r| r > Shares::Core)))
        .collect::<Vec<_>>();
    if !invented.is_empty() {
        let list = invented.iter().map(|g| format_list(g)).collect::<Vec<_>>().join(" and ");
        findings.push(format!("the kernel takes CPUs {list} for threads of a core; they are not"));
    }
    let caches = topology.groups(Shares::Cache);
    // CPUs that never ran at the same time may still share a cache.
    let known_apart =
        |a: &Vec<usize>, b: &Vec<usize>| topology.relation(a[0], b[0]).is_some_and(|r| r > Shares::Cache);
    let all_apart = caches.iter().enumerate().all(|(i, a)| caches[..i].iter().all(|b| known_apart(a, b)));
    if caches.len() > 1 && all_apart && kernel.caches.len() <= 1 {
        let list = caches.iter().map(|g| format_list(g)).collect::<Vec<_>>().join(" | ");
        findings.push(format!("the CPUs lie on {} caches ({list}); the kernel knows of one", caches.len()));
    }
    if !topology.unknown.is_empty() {
        let pairs = topology.unknown.len();
        let pairs = if pairs == 1 { "one pair".to_owned() } else { format!("{pairs} pairs") };
        findings.push(format!("{pairs} never ran at the same time: what they share is unknown"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulated;
    use crate::vtop;

    /// One second of a vCPU that runs for `on_ms` of every `on_ms + off_ms`, from `from_ms` on.
    fn turns(cpu: usize, from_ms: u64, on_ms: u64, off_ms: u64) -> Sample {
        let period = on_ms + off_ms;
        let activity = Activity::new((0..1000 / period).map(|i| {
            let begin = (from_ms + i * period) * 1_000_000;
            (begin, begin + on_ms * 1_000_000)
        }));
        let wall_ns = activity.intervals().last().map_or(0, |(_, end)| *end) - from_ms * 1_000_000;
        let away_ns = wall_ns - activity.total_ns();
        let preemptions = activity.preemptions();
        Sample {
            cpu,
            wall_ns,
            away_ns,
            steal: None,
            waited_ns: 0,
            preemptions,
            activity,
            block_ns: Some(1e4),
        }
    }

    #[test]
    fn neighbours_in_words() {
        let wakes =
            |at_once| [0, 1].map(|cpu| Wakes { cpu, count: 50, at_once: Some(at_once), wait_ns: 0.0 });
        let of = |samples: &[Sample], at_once| {
            let report = Report::of(samples, &wakes(at_once), None, KernelView::default());
            (report.neighbours, report.findings.join("; "))
        };
        let in_turn = [turns(0, 0, 8, 8), turns(1, 8, 8, 8)];
        let (found, words) = of(&in_turn, 0.5);
        assert_eq!(found, Some(Neighbours::Regular));
        assert!(words.contains("at regular times, whatever this guest does"), "{words}");
        assert_eq!(of(&in_turn, 0.0).0, Some(Neighbours::Fair));
        let limited = [turns(0, 0, 25, 75), turns(1, 0, 25, 75)];
        assert_eq!(of(&limited, 0.25).0, Some(Neighbours::Quota));
        assert_eq!(of(&[turns(0, 0, 999, 1)], 1.0).0, None);
        let report = Report::of(&in_turn, &wakes(0.5), None, KernelView::default());
        assert_eq!(report.vcpus[1].at_once, Some(0.5));
    }

    #[test]
    fn the_originals_machine_in_words() {
        let mut machine = Emulated::rcvm(4);
        let (topology, effort) = vtop::full(&mut machine, 2_000_000_000).unwrap();
        let kernel = KernelView { cores: (0..12).map(|cpu| vec![cpu]).collect(), ..KernelView::default() };
        let report = Report::of(&[], &[], Some((topology, effort)), kernel);
        assert!(report.findings.contains(
            &"vCPUs 10-11 share one hardware thread: only one of them can run at a time".to_owned()
        ));
        assert!(report.findings.iter().any(|f| f.starts_with("CPUs 0-1 and 2-3")), "{:?}", report.findings);
    }
}
