//! Makes the host deliver the contention that was asked for, and reports what it delivered.
//!
//! A burst of a competitor preempts a vCPU for a little longer than the burst: two switches, and a late timer. The
//! cost is measured from the host's own accounting (run delay of the vCPU thread per burst while the guest spins). The
//! bursts are shortened by it, until the delay per burst is as asked for.

use crate::experiment::{Contention, Experiment, Phase, Vm};
use crate::link::Link;
use crate::{sys, LabError};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tandem_agent::{Op, RtPhase, RtSpec, RtStat, VcpuStat, SELF};

const LIMIT: Duration = Duration::from_secs(20);
/// Rounds of calibration, and how long each measures.
const ROUNDS: usize = 4;
const MEASURE: Duration = Duration::from_millis(1200);
/// How long the spinners run: longer than any calibration (the kit's own limit is higher).
const SPIN_S: &str = "600";
const SIGTERM: i32 = 15;
/// Tolerated relative error of the delay per burst.
const TOLERANCE: f64 = 0.01;

/// The host's accounting at one moment.
#[derive(Debug, Clone)]
pub struct Truth {
    /// All vCPU threads.
    pub vcpus: Vec<VcpuStat>,
    /// All competitors.
    pub competitors: Vec<RtStat>,
}

/// Contention that was delivered to one vCPU.
#[derive(Debug, Clone, Serialize)]
pub struct Delivered {
    /// Guest.
    pub vm: String,
    /// Its vCPU.
    pub vcpu: usize,
    /// Host CPU.
    pub cpu: usize,
    /// Preempted part of the time that was asked for, percent.
    pub asked_share_pct: f64,
    /// Run delay over run time plus run delay, percent (meaningful while the vCPU was busy).
    pub share_pct: f64,
    /// Mean preemption interval that was asked for, milliseconds.
    pub asked_period_ms: f64,
    /// Mean length of the bursts that were drawn, milliseconds: differs from the one asked for if lengths are random.
    pub drawn_period_ms: f64,
    /// Run delay per burst, milliseconds.
    pub period_ms: f64,
    /// Run delay per preemption interval, milliseconds: bursts without a pause between them are one interval.
    pub preemption_ms: f64,
    /// For how much of the time the vCPU wanted to run, percent (of the time that the bursts and their gaps take, or of
    /// all of it where contention alternates between the CPUs, `swap_ms`).
    pub demand_pct: f64,
}

/// The competitors of a session: which are active, and by how much their bursts are shortened.
#[derive(Debug, Default)]
pub struct Contenders {
    active: BTreeSet<usize>,
    /// By index of the contention in the file, and CPU: the cost of a switch depends on both.
    compensation_ns: BTreeMap<(usize, usize), u64>,
}

impl Contenders {
    /// Makes exactly `wanted` (indices in the file) compete, with their compensation.
    pub fn activate(
        &mut self,
        link: &mut Link,
        experiment: &Experiment,
        wanted: BTreeSet<usize>,
    ) -> Result<(), LabError> {
        let phases = |index: &usize| experiment.contention.get(*index).is_some_and(|c| !c.phases.is_empty());
        // Phases are counted from the beginning of the workload on.
        if self.active == wanted && !wanted.iter().any(phases) {
            return Ok(());
        }
        self.start(link, experiment, wanted, true)
    }

    /// Starts exactly `wanted`, with their phases or without.
    fn start(
        &mut self,
        link: &mut Link,
        experiment: &Experiment,
        wanted: BTreeSet<usize>,
        with_phases: bool,
    ) -> Result<(), LabError> {
        link.ask(SELF, Op::RtStop, LIMIT)?;
        self.active.clear();
        for &index in &wanted {
            let Some(contention) = experiment.contention.get(index) else { continue };
            link.ask(SELF, Op::RtStart(spec_of(contention, experiment.seed, with_phases)), LIMIT)?;
            for &cpu in &contention.cpus {
                let compensation_ns = self.compensation_ns.get(&(index, cpu)).copied().unwrap_or(0);
                link.ask(SELF, Op::RtCompensate { cpu, compensation_ns }, LIMIT)?;
            }
        }
        self.active = wanted;
        Ok(())
    }

    /// Contention that the active competitors delivered between two moments.
    pub fn delivered(&self, experiment: &Experiment, before: &Truth, after: &Truth) -> Vec<Delivered> {
        let on = |cpu| alone_on(experiment.vms.iter(), cpu);
        // A mean over different phases says nothing.
        let steady = |index: &&usize| experiment.contention.get(**index).is_some_and(|c| c.phases.is_empty());
        self.active
            .iter()
            .filter(steady)
            .flat_map(|&index| delivered(experiment, index, on, before, after))
            .collect()
    }

    /// Adjusts the bursts for every set of competitors that some workload meets, with vCPUs kept busy meanwhile. The
    /// compensation does not change after that.
    pub fn calibrate(&mut self, link: &mut Link, experiment: &Experiment) -> Result<(), LabError> {
        let sets: BTreeSet<_> =
            experiment.workloads.iter().map(|workload| experiment.contention_of(workload)).collect();
        let sets: Vec<_> = sets.into_iter().filter(|set| !set.is_empty()).collect();
        if sets.is_empty() {
            return Ok(());
        }
        let spinners = start_spinners(link, experiment)?;
        for set in sets {
            self.start(link, experiment, set, false)?;
            // Let guests and competitors settle.
            pause(Duration::from_millis(500))?;
            for _ in 0..ROUNDS {
                if self.round(link, experiment)? {
                    break;
                }
            }
        }
        for (vm, handle) in spinners {
            link.ask(&vm, Op::Stop { handle, signal: SIGTERM, timeout_s: 5.0 }, LIMIT)?;
        }
        self.activate(link, experiment, BTreeSet::new())
    }

    /// One round: measures and corrects. True if no correction was needed.
    fn round(&mut self, link: &mut Link, experiment: &Experiment) -> Result<bool, LabError> {
        let before = truth(link)?;
        pause(MEASURE)?;
        let after = truth(link)?;
        let mut settled = true;
        for index in self.active.clone() {
            let on = |cpu| witness(experiment, cpu);
            for delivered in delivered(experiment, index, on, &before, &after) {
                let cost_ms = delivered.period_ms - delivered.drawn_period_ms;
                if (cost_ms / delivered.drawn_period_ms).abs() <= TOLERANCE {
                    continue;
                }
                settled = false;
                let slot = self.compensation_ns.entry((index, delivered.cpu)).or_default();
                *slot = slot.saturating_add_signed((cost_ms * 1e6) as i64);
                let op = Op::RtCompensate { cpu: delivered.cpu, compensation_ns: *slot };
                link.ask(SELF, op, LIMIT)?;
            }
        }
        Ok(settled)
    }
}

fn spec_of(contention: &Contention, seed: u64, with_phases: bool) -> RtSpec {
    RtSpec {
        cpus: contention.cpus.clone(),
        on_us: contention.on_us,
        off_us: contention.off_us,
        seed: contention.seed.map(|own| own ^ seed),
        swap_ms: contention.swap_ms,
        stagger_us: contention.stagger_us,
        phases: if with_phases { contention.phases.iter().map(phase_of).collect() } else { Vec::new() },
    }
}

fn phase_of(phase: &Phase) -> RtPhase {
    RtPhase { for_ms: phase.for_ms, on_us: phase.on_us, off_us: phase.off_us }
}

/// Starts one CPU-bound thread per vCPU in every guest with a witness, until stopped.
fn start_spinners(link: &mut Link, experiment: &Experiment) -> Result<Vec<(String, u64)>, LabError> {
    let mut spinners = Vec::new();
    let contended = || experiment.contention.iter().flat_map(|contention| &contention.cpus);
    let looked_at =
        |vm: &&Vm| contended().any(|&cpu| witness(experiment, cpu).is_some_and(|(n, _)| n == vm.name));
    for vm in experiment.vms.iter().filter(looked_at) {
        let threads = vm.pins.len().to_string();
        let argv = ["tandem-kit", "spin", "--threads", &threads, "--secs", SPIN_S].map(str::to_string);
        let handle = link.ask_for(&vm.name, Op::Spawn { argv: argv.to_vec() }, LIMIT)?;
        spinners.push((vm.name.clone(), handle));
    }
    Ok(spinners)
}

/// Sleeps, and fails if there was an interruption.
fn pause(time: Duration) -> Result<(), LabError> {
    std::thread::sleep(time);
    if sys::termination_requested() {
        Err(LabError::Interrupted)
    } else {
        Ok(())
    }
}

/// Reads the host's accounting.
pub fn truth(link: &mut Link) -> Result<Truth, LabError> {
    Ok(Truth {
        vcpus: link.ask_for(SELF, Op::VcpuStats, LIMIT)?,
        competitors: link.ask_for(SELF, Op::RtStats, LIMIT)?,
    })
}

/// The only vCPU of `vms` on a host CPU, if there is only one. Several on one CPU delay each other: their run delay
/// says nothing about the competitor.
fn alone_on<'a>(vms: impl Iterator<Item = &'a Vm>, cpu: usize) -> Option<(&'a str, usize)> {
    let mut here = vms
        .flat_map(|vm| vm.pins.iter().enumerate().map(move |(vcpu, pin)| (vm.name.as_str(), vcpu, *pin)))
        .filter(|(_, _, pin)| *pin == cpu);
    let (vm, vcpu, _) = here.next()?;
    here.next().is_none().then_some((vm, vcpu))
}

/// The vCPU that shows the cost of a burst on a host CPU during calibration, when only guests with a witness have work:
/// one of the guest under test if possible.
fn witness(experiment: &Experiment, cpu: usize) -> Option<(&str, usize)> {
    let under_test = |vm: &&Vm| vm.name == experiment.target();
    alone_on(experiment.vms.iter().filter(under_test), cpu).or_else(|| alone_on(experiment.vms.iter(), cpu))
}

/// What one contention delivered to the vCPU that `on` names for each of its CPUs.
fn delivered<'a>(
    experiment: &'a Experiment,
    index: usize,
    on: impl Fn(usize) -> Option<(&'a str, usize)>,
    before: &Truth,
    after: &Truth,
) -> Vec<Delivered> {
    let Some(contention) = experiment.contention.get(index) else { return Vec::new() };
    let to =
        |cpu: usize| on(cpu).and_then(|(vm, vcpu)| delivered_to(contention, vm, vcpu, cpu, before, after));
    contention.cpus.iter().filter_map(|&cpu| to(cpu)).collect()
}

fn delivered_to(
    asked: &Contention,
    vm: &str,
    vcpu: usize,
    cpu: usize,
    before: &Truth,
    after: &Truth,
) -> Option<Delivered> {
    let thread = |truth: &Truth| truth.vcpus.iter().find(|v| v.vm == vm && v.vcpu == vcpu).cloned();
    let competitor = |truth: &Truth| truth.competitors.iter().find(|c| c.cpu == cpu).cloned();
    let (v0, v1) = (thread(before)?, thread(after)?);
    let (c0, c1) = (competitor(before)?, competitor(after)?);
    let bursts = c1.bursts.saturating_sub(c0.bursts);
    let preemptions = bursts.saturating_sub(c1.joined.saturating_sub(c0.joined)).max(1);
    let run_ns = v1.run_ns.saturating_sub(v0.run_ns) as f64;
    let delay_ns = v1.run_delay_ns.saturating_sub(v0.run_delay_ns) as f64;
    if bursts == 0 || run_ns + delay_ns == 0.0 {
        return None;
    }
    let (on, off) = (asked.on_us as f64, asked.off_us as f64);
    // Where contention alternates between CPUs, what was asked of one competitor depends on how much of this time it
    // was active: its bursts say.
    let span_us = match asked.swap_ms {
        0 => bursts as f64 * (on + off),
        _ => c1.at_ns.saturating_sub(c0.at_ns).max(1) as f64 / 1e3,
    };
    Some(Delivered {
        vm: vm.to_string(),
        vcpu,
        cpu,
        asked_share_pct: 100.0 * bursts as f64 * on / span_us,
        share_pct: 100.0 * delay_ns / (run_ns + delay_ns),
        asked_period_ms: on / 1e3,
        drawn_period_ms: c1.asked_ns.saturating_sub(c0.asked_ns) as f64 / bursts as f64 / 1e6,
        period_ms: delay_ns / bursts as f64 / 1e6,
        preemption_ms: delay_ns / preemptions as f64 / 1e6,
        demand_pct: 100.0 * (run_ns + delay_ns) / (span_us * 1e3),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_is_read_from_the_hosts_accounting() {
        let experiment = Experiment::parse(
            "name='x'\ntitle='t'\nmode='nested'\narms=['eevdf']\n[[vm]]\nname='a'\npins=[1,2]\n\
             [[contention]]\ncpus=[2]\non_us=4000\noff_us=4000\n[[workload]]\nname='w'\nscript='true'\n",
            "x",
        )
        .unwrap();
        let at = |run_ms: u64, delay_ms: u64, bursts: u64| Truth {
            vcpus: vec![VcpuStat {
                vm: "a".into(),
                vcpu: 1,
                tid: 1,
                run_ns: run_ms * 1_000_000,
                run_delay_ns: delay_ms * 1_000_000,
            }],
            competitors: vec![RtStat {
                cpu: 2,
                bursts,
                joined: bursts / 5,
                asked_ns: bursts * 4_000_000,
                busy_ns: 0,
                at_ns: (run_ms + delay_ms) * 1_000_000,
            }],
        };
        let got =
            delivered(&experiment, 0, |cpu| witness(&experiment, cpu), &at(0, 0, 0), &at(480, 520, 125));
        assert_eq!(got.len(), 1);
        assert!((got[0].share_pct - 52.0).abs() < 1e-9 && (got[0].period_ms - 4.16).abs() < 1e-9);
        assert!((got[0].preemption_ms - 5.2).abs() < 1e-9);
        assert!((got[0].asked_share_pct - 50.0).abs() < 1e-9 && (got[0].drawn_period_ms - 4.0).abs() < 1e-9);
    }

    #[test]
    fn of_cpus_contended_by_turns_each_is_judged_by_its_turns() {
        let experiment = Experiment::parse(
            "name='x'\ntitle='t'\nmode='nested'\narms=['eevdf']\n[[vm]]\nname='a'\npins=[1,2]\n\
             [[contention]]\ncpus=[1,2]\non_us=4000\noff_us=4000\nswap_ms=500\n[[workload]]\nname='w'\nscript='true'\n",
            "x",
        )
        .unwrap();
        // CPU 1 was contended for 1.5 of two seconds; the vCPUs were busy all the time.
        let at = |time_ms: u64, bursts: [u64; 2]| Truth {
            vcpus: [0, 1]
                .map(|vcpu| {
                    let delay_ms = bursts[vcpu] * 4;
                    let run_ns = (time_ms - delay_ms) * 1_000_000;
                    VcpuStat { vm: "a".into(), vcpu, tid: 1, run_ns, run_delay_ns: delay_ms * 1_000_000 }
                })
                .to_vec(),
            competitors: [0, 1]
                .map(|index| RtStat {
                    cpu: index + 1,
                    bursts: bursts[index],
                    joined: 0,
                    asked_ns: bursts[index] * 4_000_000,
                    busy_ns: 0,
                    at_ns: time_ms * 1_000_000,
                })
                .to_vec(),
        };
        let got =
            delivered(&experiment, 0, |cpu| witness(&experiment, cpu), &at(0, [0, 0]), &at(2000, [187, 62]));
        let near = |value: f64, right: f64| (value - right).abs() < 0.5;
        assert!(near(got[0].demand_pct, 100.0) && near(got[1].demand_pct, 100.0));
        assert!(near(got[0].asked_share_pct, 37.5) && near(got[1].asked_share_pct, 12.5));
        assert!(near(got[0].share_pct, 37.5) && near(got[1].share_pct, 12.5));
    }

    #[test]
    fn vcpus_that_share_a_cpu_are_no_witnesses_unless_one_guest_rests() {
        let experiment = Experiment::parse(
            "name='x'\ntitle='t'\nmode='nested'\narms=['eevdf']\n[[vm]]\nname='a'\npins=[1,2,2]\n\
             [[vm]]\nname='b'\npins=[1]\n[[workload]]\nname='w'\nscript='true'\n",
            "x",
        )
        .unwrap();
        assert_eq!(alone_on(experiment.vms.iter(), 1), None);
        assert_eq!(witness(&experiment, 1), Some(("a", 0)));
        // Stacked vCPUs of one guest.
        assert_eq!(witness(&experiment, 2), None);
    }
}
