//! Makes the host deliver the contention that was asked for, and reports what it delivered.
//!
//! A burst of a competitor keeps a vCPU away for a little longer than the burst: two switches, and a
//! timer. The cost is measured from the host's own accounting (run delay of the vCPU thread per burst,
//! with the guest spinning) and taken off the bursts, until delay per burst is what was asked for.

use crate::experiment::{Contention, Experiment};
use crate::link::Link;
use crate::LabError;
use serde::Serialize;
use std::time::Duration;
use tandem_agent::{Op, RtSpec, RtStat, VcpuStat, SELF};

const LIMIT: Duration = Duration::from_secs(20);
/// Rounds of calibration, and how long each measures.
const ROUNDS: usize = 4;
const MEASURE: Duration = Duration::from_millis(1200);
/// Good enough: relative error of the delay per burst.
const TOLERANCE: f64 = 0.01;

/// Host accounting at one moment.
#[derive(Debug, Clone)]
pub struct Truth {
    /// All vCPU threads.
    pub vcpus: Vec<VcpuStat>,
    /// All competitors.
    pub competitors: Vec<RtStat>,
}

/// What one contended vCPU got.
#[derive(Debug, Clone, Serialize)]
pub struct Delivered {
    /// Guest.
    pub vm: String,
    /// Its vCPU.
    pub vcpu: usize,
    /// Host CPU.
    pub cpu: usize,
    /// Inactive share that was asked for, percent.
    pub asked_share_pct: f64,
    /// Run delay over run time plus run delay, percent (meaningful while the vCPU was busy).
    pub share_pct: f64,
    /// Mean inactive period that was asked for, milliseconds.
    pub asked_period_ms: f64,
    /// Run delay per burst, milliseconds.
    pub period_ms: f64,
    /// For how much of the time the vCPU wanted to run, percent (of the time that the bursts span).
    pub demand_pct: f64,
}

/// Starts the competitors of an experiment.
pub fn start(link: &mut Link, experiment: &Experiment) -> Result<(), LabError> {
    for contention in &experiment.contention {
        let spec = RtSpec {
            cpus: contention.cpus.clone(),
            on_us: contention.on_us,
            off_us: contention.off_us,
            seed: contention.seed.map(|seed| seed ^ experiment.seed),
            swap_ms: contention.swap_ms,
        };
        link.ask(SELF, Op::RtStart(spec), LIMIT)?;
    }
    Ok(())
}

/// Reads the host's accounting.
pub fn truth(link: &mut Link) -> Result<Truth, LabError> {
    Ok(Truth {
        vcpus: link.ask_for(SELF, Op::VcpuStats, LIMIT)?,
        competitors: link.ask_for(SELF, Op::RtStats, LIMIT)?,
    })
}

/// Adjusts the bursts. Every vCPU on a contended CPU is kept busy meanwhile.
pub fn calibrate(link: &mut Link, experiment: &Experiment) -> Result<(), LabError> {
    if experiment.contention.is_empty() {
        return Ok(());
    }
    let total_s = ROUNDS as f64 * (MEASURE.as_secs_f64() + 0.5) + 2.0;
    let mut spinners = Vec::new();
    for vm in &experiment.vms {
        let argv: Vec<String> =
            ["tandem-kit", "spin", "--threads", &vm.pins.len().to_string(), "--secs", &total_s.to_string()]
                .iter()
                .map(ToString::to_string)
                .collect();
        let handle: u64 = link.ask_for(&vm.name, Op::Spawn { argv }, LIMIT)?;
        spinners.push((vm.name.clone(), handle));
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut compensation_ns = vec![0i64; experiment.cpus.unwrap_or(16).max(16)];
    for _ in 0..ROUNDS {
        let before = truth(link)?;
        std::thread::sleep(MEASURE);
        let after = truth(link)?;
        let mut settled = true;
        for delivered in delivered(experiment, &before, &after) {
            let error_ms = delivered.period_ms - delivered.asked_period_ms;
            if (error_ms / delivered.asked_period_ms).abs() <= TOLERANCE {
                continue;
            }
            settled = false;
            let slot = &mut compensation_ns[delivered.cpu % 16];
            *slot = (*slot + (error_ms * 1e6) as i64).max(0);
            let op = Op::RtCompensate { cpu: delivered.cpu, compensation_ns: *slot as u64 };
            link.ask(SELF, op, LIMIT)?;
        }
        if settled {
            break;
        }
    }
    for (vm, handle) in spinners {
        link.ask(&vm, Op::Stop { handle, signal: 15, timeout_s: 5.0 }, LIMIT)?;
    }
    Ok(())
}

/// What was delivered between two moments, for each vCPU that alone sits on a contended CPU.
pub fn delivered(experiment: &Experiment, before: &Truth, after: &Truth) -> Vec<Delivered> {
    let mut all = Vec::new();
    for contention in &experiment.contention {
        for &cpu in &contention.cpus {
            let here: Vec<_> = experiment
                .vms
                .iter()
                .flat_map(|vm| vm.pins.iter().enumerate().map(move |(vcpu, pin)| (vm, vcpu, *pin)))
                .filter(|(_, _, pin)| *pin == cpu)
                .collect();
            // Several vCPUs on one CPU delay each other: run delay says nothing of the competitor then.
            if let [(vm, vcpu, _)] = here.as_slice() {
                all.extend(delivered_to(contention, &vm.name, *vcpu, cpu, before, after));
            }
        }
    }
    all
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
    let run_ns = v1.run_ns.saturating_sub(v0.run_ns) as f64;
    let delay_ns = v1.run_delay_ns.saturating_sub(v0.run_delay_ns) as f64;
    if bursts == 0 || run_ns + delay_ns == 0.0 {
        return None;
    }
    let (on, off) = (asked.on_us as f64, asked.off_us as f64);
    Some(Delivered {
        vm: vm.to_string(),
        vcpu,
        cpu,
        asked_share_pct: 100.0 * on
            / (on + off)
            / if asked.swap_ms > 0 { asked.cpus.len() as f64 } else { 1.0 },
        share_pct: 100.0 * delay_ns / (run_ns + delay_ns),
        asked_period_ms: on / 1e3,
        period_ms: delay_ns / bursts as f64 / 1e6,
        demand_pct: 100.0 * (run_ns + delay_ns) / (bursts as f64 * (on + off) * 1e3),
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
        let at = |run_ms: u64, delay_ms: u64, bursts| Truth {
            vcpus: vec![VcpuStat {
                vm: "a".into(),
                vcpu: 1,
                tid: 1,
                run_ns: run_ms * 1_000_000,
                run_delay_ns: delay_ms * 1_000_000,
            }],
            competitors: vec![RtStat { cpu: 2, bursts, busy_ns: 0 }],
        };
        let got = delivered(&experiment, &at(0, 0, 0), &at(480, 520, 125));
        assert_eq!(got.len(), 1);
        assert!((got[0].share_pct - 52.0).abs() < 1e-9 && (got[0].period_ms - 4.16).abs() < 1e-9);
        assert!((got[0].asked_share_pct - 50.0).abs() < 1e-9);
    }
}
