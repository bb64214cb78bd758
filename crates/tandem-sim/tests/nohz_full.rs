//! Both schedulers on CPUs whose tick the kernel stops while one task runs alone. It looks at whether it may do so only
//! when a task begins to run.
#![allow(missing_docs, clippy::unwrap_used)]

use tandem_sim::hardware::{Costs, Hardware};
use tandem_sim::machine::Machine;
use tandem_sim::program::{Mailbox, Program, Step};
use tandem_sim::random::Spread;
use tandem_sim::scx::Settings;
use tandem_sim::setup::{host, KernelSpec, TaskSpec};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const MOST: u64 = 50_000_000;

/// Two CPUs, of which slices end at ticks only, whose tasks the policy of either side schedules.
fn machine(of_the_host: bool, seed: u64) -> Machine {
    let hardware = Hardware { cores: 2, ..Hardware::default() };
    let mut machine = host(hardware.clone(), Costs::default(), &KernelSpec::recent(), seed);
    let settings = Settings { of_the_host, nohz_full: true, slice_timers: false, ..Settings::of(hardware) };
    machine.attach(0, &settings).unwrap_or_else(|error| panic!("{error}"));
    machine
}

fn cpu_bound(cpus: &[usize]) -> TaskSpec {
    TaskSpec { cpus: Some(cpus.to_vec()), ..TaskSpec::new("cpu_bound", Program::cpu_bound(1000.0)) }
}

/// Computes for so long, and ends.
fn short(run_ms: f64, cpus: &[usize]) -> TaskSpec {
    let steps = vec![Step::Run(Spread::constant(run_ms * 1000.0)), Step::Count];
    let program = Program { steps, rounds: Some(1), ..Program::cpu_bound(1000.0) };
    TaskSpec { cpus: Some(cpus.to_vec()), ..TaskSpec::new("short", program) }
}

/// One task stays on CPU 1. A second one comes, computes there while CPU 0 is busy, and goes on on CPU 0 when that is free.
/// Returns the ticks of CPU 1 in the two seconds after that, and the part of them for which the first task ran.
fn after_company(of_the_host: bool, idle: bool, seed: u64) -> (u64, f64) {
    let mut m = machine(of_the_host, seed);
    let stays = m.add_task(0, &TaskSpec { idle, ..cpu_bound(&[1]) }, seed);
    m.add_task(0, &short(40.0 + seed as f64, &[0]), seed);
    m.add_task(0, &TaskSpec { idle, start_ns: 2 * MS, ..short(200.0, &[0, 1]) }, seed);
    m.run(S / 2, MOST).unwrap();
    let (ticks, ran) = (m.worlds[0].cpus[1].ticks, m.tasks[stays].ran_ns);
    m.run(S / 2 + 2 * S, MOST).unwrap();
    (m.worlds[0].cpus[1].ticks - ticks, (m.tasks[stays].ran_ns - ran) as f64 / (2 * S) as f64)
}

#[test]
fn the_tick_stops_when_company_has_gone() {
    for of_the_host in [false, true] {
        for seed in 1..=20 {
            let (ticks, ran) = after_company(of_the_host, false, seed);
            assert!(ticks <= 4, "host {of_the_host}, seed {seed}: {ticks} ticks in two seconds");
            assert!(ran > 0.99, "host {of_the_host}, seed {seed}: it ran for {ran} of the time");
        }
    }
}

/// It has to make room for any other task, which the tick sees to.
#[test]
fn a_best_effort_task_goes_on_when_company_has_gone() {
    for of_the_host in [false, true] {
        for seed in 1..=20 {
            let (ticks, ran) = after_company(of_the_host, true, seed);
            assert!(ticks > 400, "host {of_the_host}, seed {seed}: {ticks} ticks in two seconds");
            assert!(ran > 0.99, "host {of_the_host}, seed {seed}: it ran for {ran} of the time");
        }
    }
}

/// Two light tasks are woken up from the other CPU. Their deadlines are later than that of the one that runs, which goes on,
/// and whose slice has to end.
#[test]
fn the_tick_comes_back_with_company() {
    for of_the_host in [false, true] {
        for seed in 1..=20 {
            let mut m = machine(of_the_host, seed);
            m.mailboxes.push(Mailbox::default());
            m.add_task(0, &cpu_bound(&[1]), seed);
            let light = |name, steps| {
                let program = Program { steps, ..Program::cpu_bound(1000.0) };
                TaskSpec { nice: 10, ..TaskSpec::new(name, program) }
            };
            let every = Step::Sleep(Spread::constant(250_000.0 + 7_000.0 * seed as f64));
            let sender = light("sender", vec![every, Step::Send(0)]);
            m.add_task(0, &TaskSpec { cpus: Some(vec![0]), ..sender }, seed);
            let receiver =
                light("receiver", vec![Step::Receive(0), Step::Run(Spread::constant(4000.0)), Step::Count]);
            let receiver = m.add_task(0, &TaskSpec { cpus: Some(vec![1]), ..receiver }, seed);
            m.run(10 * S, MOST).unwrap();
            let (ran, ideal) = (m.tasks[receiver].ran_ns / (4 * MS), 10_000 / (250 + 7 * seed));
            assert!(
                ran + 1 >= ideal,
                "host {of_the_host}, seed {seed}: {ran} of {ideal} messages were answered"
            );
        }
    }
}
