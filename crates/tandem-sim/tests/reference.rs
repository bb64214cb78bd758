//! The models of the fair class against theory, for any weights, requests and quotas.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_sim::fair::{weight_of_nice, Flavour};
use tandem_sim::hardware::{Costs, Hardware};
use tandem_sim::machine::Machine;
use tandem_sim::program::Program;
use tandem_sim::setup::{host, GroupSpec, KernelSpec, TaskSpec};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const MOST: u64 = 50_000_000;

/// A kernel whose switches, ticks and interrupts cost nothing, as theory assumes.
fn machine(cpus: usize, flavour: Flavour) -> Machine {
    let costs = Costs { switch_ns: 0, tick_ns: 0, irq_ns: 0, ..Costs::default() };
    host(
        Hardware { cores: cpus, ..Hardware::default() },
        costs,
        &KernelSpec { flavour, ..KernelSpec::recent() },
        1,
    )
}

fn cpu_bound(nice: i32, slice_ns: Option<u64>) -> TaskSpec {
    TaskSpec { nice, slice_ns, ..TaskSpec::new("cpu_bound", Program::cpu_bound(1_000_000.0)) }
}

/// Weighted fair shares of `cpus` CPUs, at most one CPU per task: progressive filling.
fn filled(weights: &[f64], cpus: f64) -> Vec<f64> {
    let mut shares = vec![0.0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = cpus;
    loop {
        let sum: f64 = open.iter().map(|i| weights[*i]).sum();
        let full: Vec<usize> = open.iter().copied().filter(|i| left * weights[*i] / sum >= 1.0).collect();
        if full.is_empty() || open.is_empty() {
            for i in open {
                shares[i] = left * weights[i] / sum;
            }
            return shares;
        }
        for i in &full {
            shares[*i] = 1.0;
            left -= 1.0;
        }
        open.retain(|i| !full.contains(i));
        if open.is_empty() {
            return shares;
        }
    }
}

#[test]
fn filling_by_hand() {
    assert_eq!(filled(&[1.0, 1.0, 1.0], 2.0), [2.0 / 3.0; 3]);
    assert_eq!(filled(&[10.0, 1.0, 1.0], 2.0), [1.0, 0.5, 0.5]);
    assert_eq!(filled(&[1.0], 2.0), [1.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Stoica and Abdel-Wahab 1995, theorem 1: the lag of a task never exceeds the largest request (and what the
    /// tick adds).
    #[test]
    fn lag_is_bounded_by_a_request(tasks in prop::collection::vec((-10i32..=10, 1u64..=10), 2..6), length_ms in 500u64..3000) {
        for version in [606, 612, 702] {
            let mut m = machine(1, Flavour::Eevdf { version });
            let list: Vec<usize> = tasks.iter().map(|(nice, ms)| m.add_task(0, &cpu_bound(*nice, Some(ms * MS)), 1)).collect();
            m.run(length_ms * MS, MOST).unwrap();
            let weights: Vec<f64> = tasks.iter().map(|(nice, _)| weight_of_nice(*nice) as f64).collect();
            let sum: f64 = weights.iter().sum();
            let bound = tasks.iter().map(|(_, ms)| ms * MS).max().unwrap_or(0) as f64 + 2.0 * 4.0 * MS as f64;
            for (task, weight) in list.iter().zip(&weights) {
                let ideal = (length_ms * MS) as f64 * weight / sum;
                let lag = ideal - m.tasks[*task].ran_ns as f64;
                prop_assert!(lag.abs() <= bound, "version {version}: lag {lag} ns, bound {bound}");
            }
        }
    }

    #[test]
    fn cfs_shares_within_a_percent(nices in prop::collection::vec(-8i32..=8, 2..6)) {
        let mut m = machine(1, Flavour::Cfs);
        let list: Vec<usize> = nices.iter().map(|nice| m.add_task(0, &cpu_bound(*nice, None), 1)).collect();
        m.run(30 * S, MOST).unwrap();
        let sum: f64 = nices.iter().map(|nice| weight_of_nice(*nice) as f64).sum();
        for (task, nice) in list.iter().zip(&nices) {
            let ideal = weight_of_nice(*nice) as f64 / sum;
            let got = m.tasks[*task].ran_ns as f64 / (30 * S) as f64;
            prop_assert!((got - ideal).abs() < 0.01, "nice {nice}: {got} for {ideal}");
        }
    }

    /// A group runs for no more than the quota of all periods that have begun, and a slice on each CPU.
    #[test]
    fn quotas_are_never_exceeded(quota_ms in 2u64..60, period_ms in 20u64..200, tasks in 1usize..5, cpus in 1usize..4) {
        prop_assume!(quota_ms <= period_ms * cpus as u64);
        for flavour in [Flavour::Cfs, Flavour::Eevdf { version: 702 }] {
            let mut m = machine(cpus, flavour);
            let max = Some((quota_ms * MS, period_ms * MS));
            let group = m.add_group(0, 0, &GroupSpec { max, ..GroupSpec::default() });
            let list: Vec<usize> = (0..tasks).map(|_| m.add_task(0, &TaskSpec { group, ..cpu_bound(0, None) }, 1)).collect();
            m.run(3 * S, MOST).unwrap();
            let ran: u64 = list.iter().map(|task| m.tasks[*task].ran_ns).sum();
            let periods = (3 * S).div_ceil(period_ms * MS);
            // What a group overruns until the next tick is its debt.
            let most = periods * quota_ms * MS + cpus as u64 * 5 * MS;
            prop_assert!(ran <= most, "{flavour:?}: ran {ran} of {most}");
            let wanted = (3 * S) * tasks.min(cpus) as u64;
            let least = (periods.saturating_sub(1) * quota_ms * MS).min(wanted) * 9 / 10;
            prop_assert!(ran >= least, "{flavour:?}: ran {ran}, at least {least}");
        }
    }

    /// With at least as many runnable tasks as CPUs, all CPUs work.
    #[test]
    fn work_is_conserved(cpus in 2usize..5, extra in 0usize..4) {
        for flavour in [Flavour::Cfs, Flavour::Eevdf { version: 702 }] {
            let mut m = machine(cpus, flavour);
            for _ in 0..cpus + extra {
                m.add_task(0, &cpu_bound(0, None), 1);
            }
            m.run(2 * S, MOST).unwrap();
            for cpu in 0..cpus {
                prop_assert!(m.accounts(cpu)[0] < S / 20, "{flavour:?}: CPU {cpu} idle for {} ns", m.accounts(cpu)[0]);
            }
        }
    }
}
