//! Small cases worked by hand: which task runs in which millisecond.
#![allow(missing_docs)]

use tandem_sim::fair::Flavour;
use tandem_sim::hardware::{Costs, Hardware};
use tandem_sim::machine::Machine;
use tandem_sim::program::Program;
use tandem_sim::setup::{host, KernelSpec, TaskSpec};

const MS: u64 = 1_000_000;

/// One CPU with a tick of a millisecond, on which nothing but work takes time.
fn machine(flavour: Flavour) -> Machine {
    let costs = Costs {
        switch_ns: 0,
        tick_ns: 0,
        irq_ns: 0,
        ipi_ns: 0,
        wake_ns: 0,
        idle_exit_ns: 0,
        block_ns: 0,
        ..Costs::default()
    };
    let spec = KernelSpec { flavour, tick_ns: MS, ..KernelSpec::recent() };
    host(Hardware { cores: 1, ..Hardware::default() }, costs, &spec, 1)
}

fn cpu_bound(name: &str, slice_ms: Option<u64>, start_ms: u64) -> TaskSpec {
    TaskSpec {
        slice_ns: slice_ms.map(|ms| ms * MS),
        start_ns: start_ms * MS,
        ..TaskSpec::new(name, Program::cpu_bound(1_000_000.0))
    }
}

/// The task that runs in the middle of each of the first `ms` milliseconds.
fn course(flavour: Flavour, tasks: &[TaskSpec], ms: u64) -> String {
    let mut m = machine(flavour);
    m.record.switches = Some(Vec::new());
    for task in tasks {
        m.add_task(0, task, 1);
    }
    m.run(ms * MS, 1_000_000).unwrap_or_else(|error| panic!("{error}"));
    let switches = m.record.switches.take().unwrap_or_default();
    (0..ms)
        .map(|at| {
            let last = switches.iter().take_while(|switch| switch.at <= at * MS + MS / 2).last();
            last.and_then(|switch| switch.task).map_or("-", |task| m.tasks[task].name.as_str())
        })
        .collect()
}

/// Stoica and Abdel-Wahab 1995, Fig. 1, as Linux does it: two tasks of the same weight. A requests 2 ms. B arrives
/// after a millisecond, and requests 1 ms. V is the mean of both v.
///
/// 0 ms: A begins with half a request, v 0, deadline 1. 1 ms: A's half is done, v 1, next deadline 3; B arrives, v
/// 1, deadline 1.5 (new, so half a request) or 2: B runs. 2 ms: B has v 2 > V 1.5, so it is not eligible: A runs,
/// and is protected up to its deadline 3. 4 ms: A has v 3, next deadline 5; B is eligible with v 2 < V 2.5,
/// deadline 3: B runs. 5 ms: B has v 3, V 3, deadline 4 < 5: B runs again. 6 ms: B has v 4 > V 3.5: A runs for two
/// milliseconds, and so on.
#[test]
fn two_requests_of_unlike_length() {
    for version in [606, 612] {
        let tasks = [cpu_bound("A", Some(2), 0), cpu_bound("B", Some(1), 1)];
        assert_eq!(course(Flavour::Eevdf { version }, &tasks, 14), "ABAABBAABBAABB", "version {version}");
    }
}

/// CFS with three equal tasks that begin at once. The period is 6 ms, so slices are 2 ms. A task is preempted only
/// after it has had *more* than that, which the next tick sees: it runs for 3 ms.
///
/// New tasks begin a slice late (START_DEBIT), and a slice is 6, 3 and 2 ms long with one, two and three tasks: A
/// begins with v 6, B with 3, C with 2. C runs to 5, B to 6, C to 8; then A (6), B (6), C (8), and so on in rounds.
#[test]
fn three_equal_tasks_under_cfs() {
    let tasks = [cpu_bound("A", None, 0), cpu_bound("B", None, 0), cpu_bound("C", None, 0)];
    assert_eq!(course(Flavour::Cfs, &tasks, 27), "CCCBBBCCCAAABBBCCCAAABBBCCC");
}
