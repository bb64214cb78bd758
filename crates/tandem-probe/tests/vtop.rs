//! Topologies from emulated machines: exact, in time, and with unmeasured pairs reported as unknown.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_probe::emulated::{Emulated, Latencies, Place, Supply};
use tandem_probe::machine::Machine;
use tandem_probe::vtop::topology::{Shares, Topology};
use tandem_probe::vtop::{full, validate, Verdict};

const MS: u64 = 1_000_000;

fn pairs(from: usize, to: usize) -> Vec<Vec<usize>> {
    (from..to).step_by(2).map(|i| vec![i, i + 1]).collect()
}

fn probe(machine: &mut Emulated, budget_ms: u64) -> (Topology, u64) {
    full(machine, budget_ms * MS)
        .map_or_else(|error| panic!("{error}"), |(topology, effort)| (topology, effort.elapsed_ns))
}

fn is_rcvm(topology: &Topology) -> bool {
    let mut threads: Vec<Vec<usize>> = (0..10).map(|i| vec![i]).collect();
    threads.push(vec![10, 11]);
    topology.groups(Shares::Thread) == threads
        && topology.groups(Shares::Core) == pairs(0, 12)
        && topology.groups(Shares::Cache) == [(0..12).collect::<Vec<_>>()]
}

fn is_hpvm(topology: &Topology) -> bool {
    topology.stacked().count() == 0
        && topology.groups(Shares::Core) == pairs(0, 32)
        && topology.groups(Shares::Cache)
            == (0..4).map(|g| (8 * g..8 * g + 8).collect::<Vec<_>>()).collect::<Vec<_>>()
        && topology.groups(Shares::Socket).len() == 1
}

#[test]
fn a_machine_that_works_keeps_half_of_its_cpus() {
    for seed in 1..=10 {
        let mut all = Emulated::rcvm(seed);
        probe(&mut all, 1000);
        assert!(all.busiest > 6, "seed {seed}: nothing to limit");
        let mut half = Emulated::rcvm(seed);
        half.most_busy = Some(6);
        let (topology, _) = probe(&mut half, 1000);
        assert!(is_rcvm(&topology), "seed {seed}");
        assert_eq!(validate(&mut half, &topology, 500 * MS).0, Verdict::Holds, "seed {seed}");
        assert_eq!(half.busiest, 6, "seed {seed}");
    }
}

#[test]
fn the_originals_smaller_machine() {
    let (mut exact, mut slowest, mut validations) = (0, 0, Vec::new());
    for seed in 1..=50 {
        let mut machine = Emulated::rcvm(seed);
        let (topology, elapsed) = probe(&mut machine, 1000);
        exact += usize::from(is_rcvm(&topology));
        slowest = slowest.max(elapsed);
        let (verdict, effort) = validate(&mut machine, &topology, 500 * MS);
        assert_ne!(verdict, Verdict::Changed, "seed {seed}");
        validations.push(effort.elapsed_ns);
    }
    validations.sort_unstable();
    println!(
        "exact {exact}/50, slowest {} ms, validation median {} worst {} ms",
        slowest / MS,
        validations[25] / MS,
        validations[49] / MS
    );
    assert!(exact >= 50);
    assert!(slowest < 300 * MS && validations[49] < 120 * MS);
}

#[test]
fn the_originals_larger_machine() {
    let (mut exact, mut slowest, mut validations) = (0, 0, Vec::new());
    for seed in 1..=50 {
        let mut machine = Emulated::hpvm(seed);
        let (topology, elapsed) = probe(&mut machine, 1000);
        exact += usize::from(is_hpvm(&topology));
        slowest = slowest.max(elapsed);
        let (verdict, effort) = validate(&mut machine, &topology, 500 * MS);
        assert_ne!(verdict, Verdict::Changed, "seed {seed}");
        validations.push(effort.elapsed_ns);
    }
    validations.sort_unstable();
    println!(
        "exact {exact}/50, slowest {} ms, validation median {} worst {} ms",
        slowest / MS,
        validations[25] / MS,
        validations[49] / MS
    );
    assert!(exact >= 50);
    assert!(slowest < 400 * MS && validations[49] < 80 * MS);
}

#[test]
fn stacking_is_found_and_never_made_up() {
    let (mut found, mut invented) = (0, 0);
    for seed in 1..=100 {
        let turns = |on, off| Supply::Turns { on_ns: on * MS, off_ns: off * MS, irregular: seed % 2 == 0 };
        let vcpus = (0..6).map(|cpu| {
            let supply = if cpu == 5 { turns(1, 19) } else { turns(4, 4) };
            (cpu, Place { socket: 0, core: cpu, thread: 0 }, supply)
        });
        let mut machine = Emulated::new(vcpus, Latencies::default(), seed);
        let (topology, _) = probe(&mut machine, 3000);
        invented += topology.stacked().count();
        machine.stack(1, 2);
        let (topology, _) = probe(&mut machine, 3000);
        found += usize::from(topology.stacked().eq([&vec![1, 2]]));
    }
    println!("found {found}/100, invented {invented}");
    assert!(found >= 99 && invented == 0);
}

#[test]
fn a_partner_that_never_runs_is_unknown() {
    let never = Supply::Turns { on_ns: 1, off_ns: 3_600_000 * MS, irregular: false };
    let vcpus = (0..4).map(|cpu| {
        (cpu, Place { socket: 0, core: cpu, thread: 0 }, if cpu == 3 { never } else { Supply::Whole })
    });
    let mut machine = Emulated::new(vcpus, Latencies::default(), 7);
    let (topology, elapsed) = probe(&mut machine, 200);
    assert_eq!(topology.unknown, [(0, 3), (1, 3), (2, 3)]);
    assert_eq!(topology.stacked().count(), 0);
    assert!(elapsed < 260 * MS, "{elapsed}");
}

#[test]
fn a_partner_that_goes_away_ends_nothing() {
    // It runs for 3 ms, then never again, as if it went offline.
    let gone = Supply::Turns { on_ns: 3 * MS, off_ns: 3_600_000 * MS, irregular: false };
    for seed in 1..=20 {
        let vcpus = (0..6).map(|cpu| {
            (cpu, Place { socket: 0, core: cpu, thread: 0 }, if cpu == 2 { gone } else { Supply::Whole })
        });
        let mut machine = Emulated::new(vcpus, Latencies::default(), seed);
        let (topology, elapsed) = probe(&mut machine, 200);
        assert!(elapsed < 260 * MS, "{elapsed}");
        assert_eq!(topology.stacked().count(), 0);
        assert!(topology.unknown.iter().all(|(a, b)| *a == 2 || *b == 2), "{:?}", topology.unknown);
    }
}

#[test]
fn one_cpu_has_no_topology() {
    let mut machine =
        Emulated::new([(7, Place { socket: 0, core: 0, thread: 0 }, Supply::Whole)], Latencies::default(), 1);
    let error = full(&mut machine, 100 * MS).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains('1'), "{error}");
}

#[test]
fn a_move_is_noticed() {
    let mut machine = Emulated::hpvm(3);
    let (topology, _) = probe(&mut machine, 1000);
    machine.stack(8, 1);
    assert_eq!(validate(&mut machine, &topology, 500 * MS).0, Verdict::Changed);
}

#[test]
fn it_grows_gently() {
    for (sockets, cores, threads) in [(1, 4, 1), (2, 8, 2), (4, 16, 2), (4, 32, 2)] {
        let mut machine = Emulated::grid(sockets, cores, threads, Supply::Whole, 5);
        let cpus = machine.cpus().len();
        let started = std::time::Instant::now();
        let (topology, effort) = full(&mut machine, 2000 * MS).unwrap();
        println!(
            "{cpus} CPUs: {} ms, {} errands, {:?} of computing",
            effort.elapsed_ns / MS,
            effort.errands,
            started.elapsed()
        );
        assert_eq!(topology.groups(Shares::Cache).len(), sockets);
        assert_eq!(topology.groups(Shares::Core).len(), if threads > 1 { sockets * cores } else { 0 });
        assert!(topology.unknown.is_empty() && effort.elapsed_ns < 1000 * MS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_machine_is_recognised(sockets in 1usize..4, cores in 1usize..6, threads in 1usize..3, first in 0usize..3000, stride in 1usize..40, scale in 0.4f64..4.0, seed in 1u64..1000) {
        let latencies = Latencies { core: 11.0 * scale, socket: 54.0 * scale, machine: 128.0 * scale };
        let vcpus = (0..sockets * cores * threads).map(|i| {
            let core = i / threads;
            (first + i * stride, Place { socket: core / cores, core, thread: i % threads }, Supply::Whole)
        });
        let mut machine = Emulated::new(vcpus, latencies, seed);
        machine.disturbed = 0.0;
        prop_assume!(machine.cpus().len() >= 2);
        let cpus = machine.cpus().to_vec();
        let (topology, _) = full(&mut machine, 3000 * MS).unwrap();
        prop_assert!(topology.unknown.is_empty());
        prop_assert_eq!(&topology.cpus, &cpus);
        prop_assert_eq!(topology.stacked().count(), 0);
        prop_assert_eq!(topology.agreement, 1.0);
    }
}
