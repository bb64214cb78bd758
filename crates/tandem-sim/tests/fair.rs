//! The models of the kernel's fair class: worked examples, invariants, and both levels together.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_sim::fair::{weight_of_nice, Flavour};
use tandem_sim::hardware::{Costs, Hardware};
use tandem_sim::machine::Machine;
use tandem_sim::program::Program;
use tandem_sim::setup::{host, GroupSpec, KernelSpec, TaskSpec};

const S: u64 = 1_000_000_000;
const MOST: u64 = 50_000_000;

fn machine(cpus: usize, flavour: Flavour) -> Machine {
    let hardware = Hardware { cores: cpus, ..Hardware::default() };
    host(hardware, Costs::default(), &KernelSpec { flavour, ..KernelSpec::recent() }, 1)
}

const FLAVOURS: [Flavour; 3] =
    [Flavour::Cfs, Flavour::Eevdf { version: 606 }, Flavour::Eevdf { version: 702 }];

fn cpu_bound(nice: i32) -> TaskSpec {
    TaskSpec { nice, ..TaskSpec::new("cpu_bound", Program::cpu_bound(1000.0)) }
}

fn shares(machine: &Machine, tasks: &[usize]) -> Vec<f64> {
    let ran: Vec<f64> = tasks.iter().map(|t| machine.tasks[*t].ran_ns as f64).collect();
    let sum: f64 = ran.iter().sum();
    ran.iter().map(|ns| ns / sum).collect()
}

#[test]
fn shares_follow_the_weights() {
    for flavour in FLAVOURS {
        let mut m = machine(1, flavour);
        let nices = [-10, 0, 5];
        let tasks: Vec<usize> = nices.iter().map(|nice| m.add_task(0, &cpu_bound(*nice), 1)).collect();
        m.run(20 * S, MOST).unwrap();
        let all: u64 = nices.iter().map(|nice| weight_of_nice(*nice)).sum();
        for (share, nice) in shares(&m, &tasks).iter().zip(nices) {
            let ideal = weight_of_nice(nice) as f64 / all as f64;
            assert!(
                (share / ideal - 1.0).abs() < 0.01 || (share - ideal).abs() < 0.002,
                "{flavour:?} {nice}: {share} {ideal}"
            );
        }
    }
}

#[test]
fn a_lone_group_has_what_its_quota_says() {
    for flavour in FLAVOURS {
        let mut m = machine(2, flavour);
        let group =
            m.add_group(0, 0, &GroupSpec { max: Some((30_000_000, 100_000_000)), ..GroupSpec::default() });
        let tasks: Vec<usize> =
            (0..3).map(|_| m.add_task(0, &TaskSpec { group, ..cpu_bound(0) }, 1)).collect();
        m.run(10 * S, MOST).unwrap();
        let ran: u64 = tasks.iter().map(|t| m.tasks[*t].ran_ns).sum();
        let got = ran as f64 / (10 * S) as f64;
        assert!((got - 0.3).abs() < 0.02, "{flavour:?}: {got}");
    }
}

#[test]
fn groups_share_by_weight_whatever_is_in_them() {
    for flavour in FLAVOURS {
        let mut m = machine(1, flavour);
        let one = m.add_group(0, 0, &GroupSpec { weight: 300, ..GroupSpec::default() });
        let many = m.add_group(0, 0, &GroupSpec::default());
        let first = m.add_task(0, &TaskSpec { group: one, ..cpu_bound(0) }, 1);
        for _ in 0..5 {
            m.add_task(0, &TaskSpec { group: many, ..cpu_bound(0) }, 1);
        }
        m.run(10 * S, MOST).unwrap();
        let share = m.tasks[first].ran_ns as f64 / (10 * S) as f64;
        assert!((share - 0.75).abs() < 0.02, "{flavour:?}: {share}");
    }
}

#[test]
fn no_cpu_is_idle_while_somebody_waits() {
    for flavour in FLAVOURS {
        let mut m = machine(4, flavour);
        for _ in 0..8 {
            m.add_task(0, &cpu_bound(0), 1);
        }
        m.run(5 * S, MOST).unwrap();
        for cpu in 0..4 {
            assert!(m.accounts(cpu)[0] < S / 20, "{flavour:?}: CPU {cpu} idle for {} ns", m.accounts(cpu)[0]);
        }
    }
}

#[test]
fn two_guests_on_one_pcpu_see_each_other_as_steal() {
    let mut m = machine(1, Flavour::Eevdf { version: 702 });
    let layout = Hardware { cores: 1, ..Hardware::default() };
    let guests =
        [0, 1].map(|i| m.add_guest(&format!("g{i}"), &KernelSpec::recent(), layout.clone(), &[vec![0]], &[]));
    let tasks = guests.map(|g| m.add_task(g, &cpu_bound(0), 1));
    m.run(10 * S, MOST).unwrap();
    for (guest, task) in guests.into_iter().zip(tasks) {
        let steal = m.worlds[guest].pages[0].steal_ns as f64 / (10 * S) as f64;
        assert!((steal - 0.5).abs() < 0.05, "steal {steal}");
        let ran = m.tasks[task].ran_ns as f64 / (10 * S) as f64;
        assert!((ran - 0.5).abs() < 0.05, "ran {ran}");
    }
}

#[test]
fn an_idle_guest_costs_nearly_nothing() {
    let mut m = machine(1, Flavour::Eevdf { version: 702 });
    let layout = Hardware { cores: 1, ..Hardware::default() };
    let guest = m.add_guest("g", &KernelSpec::recent(), layout, &[vec![0]], &[]);
    let mut now_and_then = TaskSpec::new("timer", Program::cpu_bound(50.0));
    now_and_then.program.steps.push(tandem_sim::program::Step::Timer(10_000_000));
    m.add_task(guest, &now_and_then, 1);
    let cpu_bound = m.add_task(0, &cpu_bound(0), 1);
    m.run(5 * S, MOST).unwrap();
    assert!(m.tasks[cpu_bound].ran_ns > 5 * S * 97 / 100, "{}", m.tasks[cpu_bound].ran_ns);
    assert!(m.record.counts.len() >= 2);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut m = machine(2, Flavour::Eevdf { version: 702 });
        for i in 0..5 {
            let mut task = TaskSpec::new("t", Program::cpu_bound(300.0 + f64::from(i)));
            task.program.steps.push(tandem_sim::program::Step::Sleep(
                tandem_sim::random::Spread::Exponential { mean: 700.0 },
            ));
            m.add_task(0, &task, 7);
        }
        m.run(3 * S, MOST).unwrap();
        let facts: Vec<(u64, u64, u64)> =
            m.tasks.iter().map(|t| (t.ran_ns, t.waited_ns, t.switches)).collect();
        (facts, m.events())
    };
    assert_eq!(run(), run());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn every_nanosecond_has_its_account(cpus in 1usize..4, tasks in 1usize..8, run_us in 20.0f64..3000.0, sleep_us in 20.0f64..3000.0, seed in 1u64..1000) {
        for flavour in FLAVOURS {
            let mut m = machine(cpus, flavour);
            let layout = Hardware { cores: 2, ..Hardware::default() };
            let guest = m.add_guest("g", &KernelSpec::recent(), layout, &[(0..cpus).collect(), (0..cpus).collect()], &[]);
            for i in 0..tasks {
                let mut task = TaskSpec::new("t", Program::cpu_bound(run_us));
                task.program.steps.push(tandem_sim::program::Step::Sleep(tandem_sim::random::Spread::Exponential { mean: sleep_us }));
                m.add_task(if i % 2 == 0 { 0 } else { guest }, &task, seed);
            }
            // The sums are checked at the end of every run.
            m.run(S / 5, MOST).unwrap();
            for task in &m.tasks {
                prop_assert!(task.ran_ns + task.waited_ns <= S / 5);
            }
        }
    }
}
