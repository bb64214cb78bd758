//! Both schedulers beside tasks whose migration is disabled, as in BPF programs: the kernel changes their CPUs when they are preempted, and
//! queues them without asking.
#![allow(missing_docs, clippy::unwrap_used)]

use tandem_sim::hardware::{Costs, Hardware};
use tandem_sim::machine::Machine;
use tandem_sim::program::{Program, Step};
use tandem_sim::random::Spread;
use tandem_sim::scx::Settings;
use tandem_sim::setup::{host, KernelSpec, TaskSpec};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const MOST: u64 = 50_000_000;
const CPU: usize = 1;

/// Two CPUs, whose tasks the policy of either side schedules.
fn machine(of_the_host: bool, seed: u64) -> Machine {
    let hardware = Hardware { cores: 2, ..Hardware::default() };
    let mut machine = host(hardware.clone(), Costs::default(), &KernelSpec::recent(), seed);
    machine
        .attach(0, &Settings { of_the_host, ..Settings::of(hardware) })
        .unwrap_or_else(|error| panic!("{error}"));
    machine
}

fn add(m: &mut Machine, name: &str, steps: Vec<Step>, seed: u64) -> usize {
    let program = Program { steps, ..Program::cpu_bound(1000.0) };
    m.add_task(0, &TaskSpec { cpus: Some(vec![CPU]), ..TaskSpec::new(name, program) }, seed)
}

fn us(mean: u64) -> Spread {
    Spread::constant(mean as f64)
}

/// A CPU-bound task is in a BPF program for most of the time. The one beside it runs for `run_us` and sleeps for `sleep_us`, again and
/// again. Returns for how long, ms, each of them waits at most for its CPU, once the first 200 ms are over.
fn longest_waits(of_the_host: bool, run_us: u64, sleep_us: u64, seed: u64) -> [u64; 2] {
    let mut m = machine(of_the_host, seed);
    let traced = add(&mut m, "traced", vec![Step::Run(us(50)), Step::Program(us(950)), Step::Count], seed);
    let beside =
        add(&mut m, "beside", vec![Step::Run(us(run_us)), Step::Count, Step::Sleep(us(sleep_us))], seed);
    let mut longest = [0; 2];
    for ms in 0..4000 {
        m.run(S / 5 + ms * MS, MOST).unwrap();
        for (longest, task) in longest.iter_mut().zip([traced, beside]) {
            let t = &m.tasks[task];
            if t.state == tandem_sim::machine::state::State::Runnable {
                *longest = (m.now - t.runnable_since).div_ceil(MS).max(*longest);
            }
        }
    }
    longest
}

/// Whichever of the two it is waits for `most_ms` at most.
fn waits_at_most(most_ms: u64, which: usize, run_us: u64) {
    for of_the_host in [false, true] {
        for seed in 1..=10 {
            let waited = longest_waits(of_the_host, run_us, 20_000 + 700 * seed, seed)[which];
            assert!(waited <= most_ms, "host {of_the_host}, seed {seed}: it waited for {waited} ms");
        }
    }
}

/// It preempts the traced one, whose slice has ended with that. The change of its CPUs must not give it a new one.
#[test]
fn one_that_wakes_up_does_not_wait_for_a_task_whose_cpus_change() {
    waits_at_most(5, 1, 200);
}

/// The traced one is in no queue of the policy while the other one computes, and that is not alone.
#[test]
fn one_that_is_queued_past_the_policy_waits_for_a_slice_only() {
    waits_at_most(10, 0, 60_000);
}
