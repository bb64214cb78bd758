//! Boosts for I/O: the host scheduler beneath simulated guests, one of which does I/O and computes.
#![allow(missing_docs, clippy::unwrap_used)]

use std::ffi::CStr;
use tandem_sim::hardware::{Costs, Hardware};
use tandem_sim::machine::state::State;
use tandem_sim::machine::Machine;
use tandem_sim::program::{Barrier, Device, Program, Step};
use tandem_sim::random::{Spread, Stream};
use tandem_sim::scx::{Settings, Techniques};
use tandem_sim::setup::{host, GroupSpec, KernelSpec, TaskSpec};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
const MOST: u64 = 100_000_000;
/// `VM_BOOST`, `VM_FORWARD` and `VM_FAST_WAKEUP` in `bpf/host/intf.h`.
const BOOST: u32 = 16;
const FORWARD: u32 = 32;
const FAST_WAKEUP: u32 = 64;
/// `VM_INTROSPECT` and `VM_CRITICAL` likewise.
const INTROSPECT: u32 = 128;
const CRITICAL: u32 = 256;
/// No technique of that number is known: all are used, also those that are off by default.
const NOTHING: u32 = 1 << 31;
/// `TANDEM_DEBT_MAX_NS`.
const DEBT_MAX_NS: i64 = 100 * MS as i64;

/// A host with two pCPUs; `left_out`: what its VMs do without.
fn machine(left_out: u32) -> Machine {
    machine_of(2, left_out)
}

fn machine_of(pcpus: usize, left_out: u32) -> Machine {
    let hardware = Hardware { cores: pcpus, ..Hardware::default() };
    let mut machine = host(hardware.clone(), Costs::default(), &KernelSpec::recent(), 1);
    let techniques = Techniques { left_out, ..Techniques::default() };
    machine
        .attach(0, &Settings { of_the_host: true, techniques, ..Settings::of(hardware) })
        .unwrap_or_else(|error| panic!("{error}"));
    machine
}

/// A VM with a task that computes on each of two vCPUs, and programs on some of them. Returns its kernel.
fn vm(m: &mut Machine, name: &str, computes: bool, on: &[(usize, Program)]) -> usize {
    vm_of(m, name, 2, computes, on)
}

/// The same with so many vCPUs.
fn vm_of(m: &mut Machine, name: &str, vcpus: usize, computes: bool, on: &[(usize, Program)]) -> usize {
    let group = m.add_group(0, 0, &GroupSpec::default());
    let layout = Hardware { cores: vcpus, ..Hardware::default() };
    let pcpus: Vec<usize> = (0..m.hardware.cpus()).collect();
    let world = m.add_guest(name, &KernelSpec::recent(), layout, &vec![pcpus; vcpus], &vec![group; vcpus]);
    for cpu in 0..if computes { vcpus } else { 0 } {
        let task =
            TaskSpec { cpus: Some(vec![cpu]), ..TaskSpec::new("computes", Program::cpu_bound(1000.0)) };
        m.add_task(world, &task, 1 + cpu as u64);
    }
    for (cpu, program) in on {
        let task = TaskSpec { cpus: Some(vec![*cpu]), ..TaskSpec::new("io", program.clone()) };
        m.add_task(world, &task, 11);
    }
    world
}

/// Asks a device of a VM, which answers after `mean_us`, and then works for `run_us`.
fn io(m: &mut Machine, world: usize, mean_us: f64, run_us: f64) -> Program {
    m.devices.push(Device {
        service: Spread::Exponential { mean: mean_us },
        stream: Stream::new(1, "devices", m.devices.len() as u64),
        parallel: 1,
        busy: 0,
        waiting: Default::default(),
        irq_cpu: 0,
        world,
    });
    let steps = vec![Step::Device(m.devices.len() - 1), Step::Run(Spread::constant(run_us)), Step::Count];
    Program { steps, ..Program::cpu_bound(1.0) }
}

fn counter(m: &mut Machine, name: &CStr) -> u64 {
    m.worlds[0].policy.as_mut().and_then(|policy| policy.counter(name)).unwrap()
}

/// CPU time of a VM's vCPUs, ns.
fn ran(m: &Machine, world: usize) -> f64 {
    m.worlds[world].cpus.iter().filter_map(|cpu| cpu.vcpu).map(|task| m.tasks[task].ran_ns as f64).sum()
}

/// Rounds of the tasks of this name in a VM.
fn rounds(m: &Machine, world: usize, name: &str) -> u64 {
    let tasks = m.tasks.iter().filter(|task| task.world == world && task.name == name);
    tasks.filter_map(|task| task.course()).map(|course| course.rounds).sum()
}

/// Runs, and looks at the books each ten milliseconds. Returns the largest debt of a VM.
fn run(m: &mut Machine, until: u64, world: usize) -> i64 {
    let mut most = 0;
    let mut at = 0;
    while at < until {
        at += 10 * MS;
        m.run(at, MOST).unwrap();
        let policy = m.worlds[0].policy.as_mut().unwrap();
        assert_eq!(policy.sum_of_debts(), 0, "debts are not credits at {at} ns");
        most = most.max(policy.debt_of(world as u32));
    }
    most
}

/// What came of a VM that does I/O on one vCPU and computes on both, beside two that compute.
struct Mixed {
    /// Answers per second.
    answers: f64,
    /// Parts of the CPU time that the VMs got, of a third.
    parts: [f64; 3],
    most_owed_ns: i64,
    owed_after_ns: i64,
    counts: [u64; 3],
}

fn mixed(left_out: u32, beside: bool) -> Mixed {
    let mut m = machine(left_out);
    // Numbers of kernels begin with the host's.
    let program = io(&mut m, 1, 5000.0, 200.0);
    let worlds =
        [vm(&mut m, "io", true, &[(0, program)]), vm(&mut m, "b", beside, &[]), vm(&mut m, "c", beside, &[])];
    let most_owed_ns = run(&mut m, 10 * S, worlds[0]);
    let all: f64 = worlds.iter().map(|world| ran(&m, *world)).sum();
    Mixed {
        answers: rounds(&m, worlds[0], "io") as f64 / 10.0,
        parts: worlds.map(|world| ran(&m, world) / all * 3.0),
        most_owed_ns,
        owed_after_ns: m.worlds[0].policy.as_mut().unwrap().debt_of(worlds[0] as u32),
        counts: [c"boosted", c"paid", c"io_events"].map(|name| counter(&mut m, name)),
    }
}

#[test]
fn a_vm_that_also_computes_answers_at_once_and_pays() {
    let (with, without, alone) =
        (mixed(0, true), mixed(BOOST | FORWARD | FAST_WAKEUP, true), mixed(0, false));
    let answers = [&with, &without, &alone].map(|mixed| mixed.answers);
    // What it waits for beyond what it would wait for alone.
    let wait = |mixed: &Mixed| 1.0 / mixed.answers - 1.0 / alone.answers;
    assert!(wait(&without) > 3.0 * wait(&with), "{answers:?}");
    assert!(with.answers > 0.85 * alone.answers, "{answers:?}");
    for (part, before) in with.parts.iter().zip(without.parts) {
        assert!(
            (part - 1.0).abs() < 0.03 && (before - 1.0).abs() < 0.03,
            "{:?}, {:?}",
            with.parts,
            without.parts
        );
    }
    assert!(with.counts.iter().all(|count| *count > 100), "{:?}", with.counts);
    assert_eq!(without.counts, [0; 3]);
    assert!((MS as i64..=DEBT_MAX_NS).contains(&with.most_owed_ns), "{}", with.most_owed_ns);
    assert!(with.owed_after_ns < DEBT_MAX_NS / 2, "{}", with.owed_after_ns);
}

/// How much longer an answer takes beside two VMs that compute than beside two that do not, ms. Interrupts come to vCPU 0, the program is on `on`.
fn delay_of_answers(left_out: u32, run_us: f64, on: usize) -> f64 {
    let [beside, alone] = [true, false].map(|others| {
        let mut m = machine(left_out);
        let program = io(&mut m, 1, 25_000.0, run_us);
        let worlds = [
            vm(&mut m, "io", true, &[(on, program)]),
            vm(&mut m, "b", others, &[]),
            vm(&mut m, "c", others, &[]),
        ];
        run(&mut m, 20 * S, worlds[0]);
        1e3 * 20.0 / rounds(&m, worlds[0], "io") as f64
    });
    beside - alone
}

/// An answer takes longer than a boosted turn, and the vCPU that computes it is not always the one that is interrupted. Nobody sends that
/// one an IPI: its kernel lets the task that computes go on for a while.
#[test]
fn a_boost_lasts_until_the_answer_whoever_gives_it() {
    for run_us in [1000.0, 3000.0] {
        for on in [0, 1] {
            let with = delay_of_answers(0, run_us, on);
            let without = delay_of_answers(BOOST | FORWARD | FAST_WAKEUP, run_us, on);
            assert!(3.0 * with < without, "{run_us} us on vCPU {on}: {with} ms, without boosts {without}");
        }
    }
}

/// An I/O-only VM whose interrupts come to vCPU 0 and whose answers come from the others by turns: nobody is known to give the next one. Its
/// kernel wakes an idle vCPU by a call-function IPI. Returns how much longer an answer takes beside two VMs that compute than alone, ms.
fn delay_of_woken(left_out: u32) -> f64 {
    let [beside, alone] = [true, false].map(|others| {
        let mut m = machine(left_out);
        let program = |m: &mut Machine, cpu| (cpu, io(m, 1, 17_000.0 + 1000.0 * cpu as f64, 200.0));
        let programs = [1, 2, 3].map(|cpu| program(&mut m, cpu));
        let world = vm_of(&mut m, "io", 4, false, &programs);
        for name in ["b", "c"] {
            vm(&mut m, name, others, &[]);
        }
        run(&mut m, 20 * S, world);
        3e3 * 20.0 / rounds(&m, world, "io") as f64
    });
    beside - alone
}

#[test]
fn an_answer_is_boosted_where_its_vcpu_is_woken_by_a_call() {
    let (with, without) = (delay_of_woken(FAST_WAKEUP), delay_of_woken(FAST_WAKEUP | BOOST));
    assert!(3.0 * with < without, "{with} ms, without boosts {without}");
}

/// Interrupts come to vCPU 0, 2,000 per second, and vCPU 2 of four answers. Returns answers over those alone, boosts that were refused, and the
/// part of the CPU time of vCPU 0, of a fourth of its VM's.
fn passed_on(left_out: u32) -> (f64, u64, f64) {
    let [beside, alone] = [true, false].map(|others| {
        let mut m = machine_of(4, left_out);
        let program = io(&mut m, 1, 400.0, 50.0);
        let worlds = [vm_of(&mut m, "io", 4, true, &[(2, program)]), vm_of(&mut m, "b", 4, others, &[])];
        run(&mut m, 5 * S, worlds[0]);
        let first = m.worlds[worlds[0]].cpus[0].vcpu.map_or(0, |task| m.tasks[task].ran_ns) as f64;
        let part = first / ran(&m, worlds[0]) * 4.0;
        (rounds(&m, worlds[0], "io") as f64, counter(&mut m, c"not_lent"), part)
    });
    (beside.0 / alone.0, beside.1, beside.2)
}

/// The one that is interrupted needs only a moment: a whole step for each interrupt would soon be all that its VM may be lent.
#[test]
fn one_that_passes_an_interrupt_on_is_boosted_for_a_moment() {
    let (with, refused, part) = passed_on(0);
    let (without, ..) = passed_on(BOOST | FORWARD | FAST_WAKEUP);
    assert!(with > 0.9 && with > 1.3 * without, "{with} of the answers alone, without boosts {without}");
    assert!(part < 1.3, "vCPU 0 has {part} of its part, {refused} boosts refused");
}

/// Both vCPUs do I/O all the time: nobody pays, and the debt ends at its limit. On one pCPU they could pass the neighbour over by turns.
#[test]
fn a_vm_that_only_pretends_gains_no_more_than_its_limit() {
    for pcpus in [1, 2] {
        let mut m = machine_of(pcpus, 0);
        let programs = [0, 1].map(|cpu| (cpu, io(&mut m, 1, 200.0, 50.0)));
        let worlds = [vm(&mut m, "hostile", true, &programs), vm(&mut m, "b", true, &[])];
        let most = run(&mut m, 20 * S, worlds[0]);
        assert!((MS as i64..=DEBT_MAX_NS).contains(&most), "{pcpus} pCPUs: {most}");
        let all: f64 = worlds.iter().map(|world| ran(&m, *world)).sum();
        let part = ran(&m, worlds[1]) / all * 2.0;
        assert!(part > 0.97, "{pcpus} pCPUs: its neighbour has {part} of its part");
        assert!(counter(&mut m, c"boosted") > 100 && counter(&mut m, c"not_lent") > 0);
    }
}

/// Two that do I/O beside one that computes: what they take from each other must not be at its expense.
#[test]
fn two_vms_that_do_io_take_nothing_from_a_third_one() {
    for conflict in [0, 1, 2] {
        let mut m = machine(0);
        let programs = [1, 2].map(|world| [0, 1].map(|cpu| (cpu, io(&mut m, world, 1000.0, 300.0))));
        let [a, b] = programs.map(|programs| vm(&mut m, "io", true, &programs));
        let c = vm(&mut m, "c", true, &[]);
        m.worlds[0].policy.as_mut().unwrap().set_conflict(conflict);
        run(&mut m, 10 * S, a);
        let part = ran(&m, c) / [a, b, c].iter().map(|world| ran(&m, *world)).sum::<f64>() * 3.0;
        assert!(part > 0.95, "conflict {conflict}: it has {part} of its part");
        assert!(counter(&mut m, c"boosted") > 100);
    }
}

/// Threads that wake each other send IPIs; no device is near. Siblings that wait come forward where that is switched on.
#[test]
fn a_parallel_program_does_no_io() {
    for (left_out, forwards) in [(0, false), (NOTHING, true), (FORWARD, false)] {
        let mut m = machine(left_out);
        m.barriers.push(Barrier { size: 2, ..Barrier::default() });
        let steps = vec![Step::Run(Spread::Exponential { mean: 500.0 }), Step::Barrier(0), Step::Count];
        let program = Program { steps, ..Program::cpu_bound(1.0) };
        let meets = vm(&mut m, "meets", true, &[(0, program.clone()), (1, program)]);
        vm(&mut m, "b", true, &[]);
        assert_eq!(run(&mut m, 5 * S, meets), 0);
        assert!(rounds(&m, meets, "io") > 500);
        assert_eq!([c"io_events", c"boosted"].map(|name| counter(&mut m, name)), [0, 0]);
        assert_eq!(counter(&mut m, c"forwarded") > 0, forwards, "{left_out}");
    }
}

/// Two vCPUs that wake each other all the time, beside one that computes on the same pCPUs. Returns how many came before their turn because they were
/// woken, and the part of the CPU time that the other VM has of what it may have.
fn ping_pong(left_out: u32) -> (u64, f64) {
    let mut m = machine(left_out);
    m.barriers.push(Barrier { size: 2, ..Barrier::default() });
    let turn = |us: f64| vec![Step::Run(Spread::constant(us)), Step::Barrier(0), Step::Count];
    let programs = [10.0, 30.0].map(|us| Program { steps: turn(us), ..Program::cpu_bound(1.0) });
    let [fast, slow] = programs;
    let worlds = [vm(&mut m, "a", false, &[(0, fast), (1, slow)]), vm(&mut m, "b", true, &[])];
    run(&mut m, 5 * S, worlds[0]);
    let part = ran(&m, worlds[1]) / worlds.iter().map(|world| ran(&m, *world)).sum::<f64>() * 2.0;
    (counter(&mut m, c"woken_fast"), part)
}

#[test]
fn vcpus_that_wake_each_other_all_the_time_have_their_budget() {
    let ((with, part), (without, _)) = (ping_pong(FORWARD), ping_pong(FORWARD | FAST_WAKEUP));
    assert!(without == 0 && with > 0, "{with} and {without} came before their turn");
    // 2 ms in each 100 ms: a turn of theirs takes 10 us or more.
    assert!(with <= 5 * 10 * 200, "{with}");
    assert!(part > 0.98, "its neighbour has {part} of its part");
}

/// Bursts of I/O, and after each the task that computes has the vCPU: its turns need not go on any more. Returns how many did, and the answers.
fn bursts(left_out: u32) -> (u64, u64) {
    let mut m = machine(left_out);
    let one = io(&mut m, 1, 300.0, 100.0);
    let mut steps: Vec<Step> = (0..40).flat_map(|_| one.steps.clone()).collect();
    steps.push(Step::Sleep(Spread::constant(20_000.0)));
    let program = Program { steps, ..Program::cpu_bound(1.0) };
    let worlds = [vm(&mut m, "io", true, &[(0, program)]), vm(&mut m, "b", true, &[])];
    run(&mut m, 10 * S, worlds[0]);
    (counter(&mut m, c"extended"), rounds(&m, worlds[0], "io"))
}

#[test]
fn io_is_over_when_the_guest_runs_another_task() {
    let (with, without) = (bursts(0), bursts(FORWARD | CRITICAL | INTROSPECT));
    assert!(with.0 * 10 < without.0 * 9, "{with:?}, without {without:?}");
    assert!(with.1 as f64 > 0.98 * without.1 as f64, "{with:?}, without {without:?}");
}

/// The guests of two VMs that compute: what the first one's preemption count is each half a millisecond. Returns how many turns were held, and the part of the CPU
/// time that the second one has.
fn held(left_out: u32, count: fn(u64) -> u32) -> (u64, f64) {
    let mut m = machine(left_out);
    let worlds = [vm(&mut m, "a", true, &[]), vm(&mut m, "b", true, &[])];
    m.guests_show = false;
    for step in 0..20_000u64 {
        for at in 0..2 {
            let task = m.worlds[worlds[0]].cpus[at].vcpu.unwrap();
            let number = m.number(task).unwrap();
            let policy = m.worlds[0].policy.as_mut().unwrap();
            policy.guest_runs(number, 0xffff_8880_0000_4000, 0x8000_0000 | count(step + 7 * at as u64));
        }
        m.run((step + 1) * MS / 2, MOST).unwrap();
    }
    let part = ran(&m, worlds[1]) / worlds.iter().map(|world| ran(&m, *world)).sum::<f64>() * 2.0;
    (counter(&mut m, c"held"), part)
}

#[test]
fn a_turn_does_not_end_in_a_critical_section() {
    // A fifth of the time.
    let short = |step: u64| u32::from(step.is_multiple_of(5));
    let ((with, part), (without, _)) = (held(FORWARD, short), held(0, short));
    assert!(with > 100 && without == 0, "{with} held, without {without}");
    assert!((part - 1.0).abs() < 0.03, "its neighbour has {part} of its part");
    // A guest that polls while it is idle.
    assert_eq!(held(FORWARD, |_| 1).0, 0);
    // A word that can be no count.
    assert_eq!(held(FORWARD, |_| 0x0100_0001).0, 0);
}

/// Hardware posts an interrupt for a vCPU that waits, and KVM is not told. Returns how often the pCPUs have found one, and boosts.
fn posted(vector: u32) -> [u64; 2] {
    let mut m = machine(0);
    let worlds = [vm(&mut m, "a", true, &[]), vm(&mut m, "b", true, &[])];
    for step in 0..500 {
        let vcpus: Vec<usize> = m.worlds[worlds[0]].cpus.iter().filter_map(|cpu| cpu.vcpu).collect();
        for task in vcpus {
            let number = m.number(task).unwrap();
            // Whoever runs has taken it.
            let runs = m.tasks[task].state == State::Running;
            m.worlds[0].policy.as_mut().unwrap().posts(number, vector, runs || step % 10 != 0);
        }
        m.run((step + 1) * MS, MOST).unwrap();
    }
    [c"posted", c"boosted"].map(|name| counter(&mut m, name))
}

#[test]
fn an_interrupt_that_hardware_posts_is_found_while_its_vcpu_waits() {
    let [found, boosted] = posted(0x31);
    assert!(found >= 20 && boosted >= 10, "{found} found, {boosted} boosts");
    // The vCPU's own timer, an IPI of Linux, an exception.
    for vector in [0xec, 0xfd, 14] {
        assert_eq!(posted(vector), [0, 0], "{vector:#x}");
    }
}

#[test]
fn a_vm_leaves_its_debt_to_nobody() {
    let mut m = machine(0);
    let program = io(&mut m, 1, 2000.0, 200.0);
    let worlds = [vm(&mut m, "io", true, &[(0, program)]), vm(&mut m, "b", true, &[])];
    run(&mut m, 2 * S, worlds[0]);
    let policy = m.worlds[0].policy.as_mut().unwrap();
    policy.vm_ends(worlds[0] as u32);
    assert_eq!(
        (policy.sum_of_debts(), policy.debt_of(worlds[0] as u32)),
        (0, -policy.debt_of(worlds[1] as u32))
    );
}
