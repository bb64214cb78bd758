//! The guest scheduler in simulated kernels: it does there what it does on real ones.
#![allow(missing_docs)]

use tandem_sim::hardware::{Costs, Hardware};
use tandem_sim::machine::Machine;
use tandem_sim::program::{Program, Step};
use tandem_sim::random::Spread;
use tandem_sim::scenario::Scenario;
use tandem_sim::scx::{Fault, Settings};
use tandem_sim::setup::{host, GroupSpec, KernelSpec, TaskSpec};

const S: u64 = 1_000_000_000;
const MOST: u64 = 50_000_000;

/// A machine without guests. The policy schedules the host's tasks.
fn machine(cpus: usize) -> Machine {
    let hardware = Hardware { cores: cpus, ..Hardware::default() };
    let mut machine = host(hardware.clone(), Costs::default(), &KernelSpec::recent(), 1);
    machine.attach(0, &Settings::of(hardware)).unwrap_or_else(|error| panic!("{error}"));
    machine
}

fn cpu_bound(nice: i32) -> TaskSpec {
    TaskSpec { nice, ..TaskSpec::new("cpu_bound", Program::cpu_bound(1000.0)) }
}

fn share(machine: &Machine, task: usize) -> f64 {
    machine.tasks[task].ran_ns as f64 / machine.now as f64
}

#[test]
fn weights_on_one_cpu() {
    let mut m = machine(1);
    let tasks = [-5, 0, 5].map(|nice| m.add_task(0, &cpu_bound(nice), 1));
    m.run(20 * S, MOST).unwrap();
    for (task, weight) in tasks.into_iter().zip([3121.0, 1024.0, 335.0]) {
        let ideal = weight / 4480.0;
        assert!((share(&m, task) / ideal - 1.0).abs() < 0.03, "{} for {ideal}", share(&m, task));
    }
}

#[test]
fn three_equal_tasks_on_two_cpus() {
    let mut m = machine(2);
    let tasks = [0; 3].map(|nice| m.add_task(0, &cpu_bound(nice), 1));
    m.run(20 * S, MOST).unwrap();
    for task in tasks {
        assert!((share(&m, task) * 1.5 - 1.0).abs() < 0.03, "{}", share(&m, task));
    }
}

#[test]
fn a_group_has_what_its_quota_says() {
    for (quota_us, period_us) in
        [(1_000, 10_000), (2_500, 10_000), (15_000, 10_000), (10_000, 100_000), (30_000, 100_000)]
    {
        let mut m = machine(2);
        let max = Some((quota_us * 1000, period_us * 1000));
        let group = m.add_group(0, 0, &GroupSpec { max, ..GroupSpec::default() });
        let tasks: Vec<usize> =
            (0..4).map(|_| m.add_task(0, &TaskSpec { group, ..cpu_bound(0) }, 1)).collect();
        m.run(10 * S, MOST).unwrap();
        let all: f64 = tasks.iter().map(|task| share(&m, *task)).sum();
        let ideal = quota_us as f64 / period_us as f64;
        assert!((all / ideal - 1.0).abs() < 0.03, "{quota_us} of {period_us} us: {all}");
    }
}

#[test]
fn nobody_waits_for_too_long_behind_a_quota_and_a_weight() {
    // The group may take a tenth of a CPU, and by its weight gets a hundredth of that beside nice -20.
    let mut m = machine(2);
    let max = Some((10_000_000, 100_000_000));
    let group = m.add_group(0, 0, &GroupSpec { max, ..GroupSpec::default() });
    let many: Vec<usize> = (0..200).map(|_| m.add_task(0, &TaskSpec { group, ..cpu_bound(0) }, 1)).collect();
    let others: Vec<usize> =
        [-20, -20, -20, 19, 19, 19].map(|nice| m.add_task(0, &cpu_bound(nice), 1)).to_vec();
    // The run ends with an error if a runnable task waits for 20 s.
    m.run(600 * S, 20 * MOST)
        .unwrap_or_else(|error| panic!("{}", error.to_string().lines().next().unwrap_or("")));
    for task in many.iter().chain(&others) {
        assert!(m.tasks[*task].ran_ns > 0, "task {task} never ran");
    }
}

#[test]
fn best_effort_costs_a_normal_task_nothing() {
    let mut m = machine(1);
    let normal = m.add_task(0, &cpu_bound(0), 1);
    for _ in 0..3 {
        m.add_task(0, &TaskSpec { idle: true, ..cpu_bound(0) }, 1);
    }
    m.run(10 * S, MOST).unwrap();
    assert!(share(&m, normal) > 0.97, "{}", share(&m, normal));
}

#[test]
fn affinity_is_respected_and_nobody_is_idle_beside_waiting_work() {
    let mut m = machine(4);
    let pinned = m.add_task(0, &TaskSpec { cpus: Some(vec![2]), ..cpu_bound(0) }, 1);
    for _ in 0..6 {
        m.add_task(0, &cpu_bound(0), 1);
    }
    m.run(5 * S, MOST).unwrap();
    assert_eq!(m.tasks[pinned].cpu, 2);
    for cpu in 0..4 {
        assert!(m.accounts(cpu)[0] < S / 20, "CPU {cpu} idle for {} ns", m.accounts(cpu)[0]);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut m = machine(2);
        for i in 0..6 {
            let mut task = TaskSpec::new("t", Program::cpu_bound(300.0 + f64::from(i)));
            task.program.steps.push(Step::Sleep(Spread::Exponential { mean: 700.0 }));
            m.add_task(0, &task, 7);
        }
        m.run(3 * S, MOST).unwrap();
        let facts: Vec<(u64, u64, u64)> =
            m.tasks.iter().map(|t| (t.ran_ns, t.waited_ns, t.switches)).collect();
        (facts, m.events())
    };
    assert_eq!(run(), run());
}

fn run(scenario: &Scenario, seed: u64) -> f64 {
    let result = tandem_sim::runner::one(scenario, seed).unwrap_or_else(|error| panic!("{error}"));
    result.figures[0].unwrap_or(0.0)
}

/// A guest and what is measured in it.
struct Setup<'a> {
    /// pCPUs, as in a scenario.
    hardware: &'a str,
    /// Its vCPUs, its kernel's settings and its competitors, as in a scenario.
    vm: &'a str,
    /// What runs in it: the text of a workload file.
    load: &'a str,
    /// The metric, as in a scenario.
    figure: &'a str,
}

fn scenario_in(setup: &Setup) -> Scenario {
    let Setup { hardware, vm, load, figure } = setup;
    let text = format!(
        r#"
name = "technique"
duration_s = 6.0
warmup_s = 1.0
[hardware]
{hardware}
[[vm]]
name = "a"
{vm}
[[workload]]
name = "w"
in = "a"
text = '''{load}'''
[[metric]]
name = "figure"
workload = "w"
{figure}
"#
    );
    Scenario::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"))
}

/// Mean of a metric over some seeds.
fn mean_in(setup: &Setup, seeds: u64) -> f64 {
    let scenario = scenario_in(setup);
    (1..=seeds).map(|seed| run(&scenario, seed)).sum::<f64>() / seeds as f64
}

/// The same for some tasks in a guest on two pCPUs.
fn mean_of(what: &str, of: &str, vm: &str, tasks: &str, seeds: u64) -> f64 {
    let (load, figure) = (format!(r#"{{"tasks": {tasks}}}"#), format!("of = \"{of}\"\nwhat = \"{what}\""));
    mean_in(&Setup { hardware: "cores = 2", vm, load: &load, figure: &figure }, seeds)
}

/// Rounds of work in a guest of two vCPUs, each pinned to a pCPU, beside competitors. `kernel`: settings of its kernel.
fn guest_with(contention: &str, tasks: &str, of: &str, kernel: &str) -> f64 {
    let vm = format!("vcpus = 2\npins = [[0], [1]]\nkernel = {{ {kernel} }}\n{contention}");
    mean_of("rounds", of, &vm, tasks, 4)
}

/// Rounds of a CPU-bound thread in a guest with an uncontended vCPU and one with 30 % of its pCPU.
fn beside_a_weak_vcpu(scheduler: &str) -> f64 {
    let tasks =
        r#"{"cpu_bound": {"loop": -1, "run": 1000}, "other": {"loop": -1, "run": 200, "sleep": 5000}}"#;
    let weak = "[[contention]]\ncpus = [0]\non_us = 7000\noff_us = 3000\n";
    guest_with(weak, tasks, "cpu_bound", &format!(r#"scheduler = "{scheduler}""#))
}

#[test]
fn a_thread_goes_to_the_strong_vcpu() {
    let (eevdf, tandem) = (beside_a_weak_vcpu("eevdf"), beside_a_weak_vcpu("tandem"));
    assert!(
        tandem > 850.0 && tandem > eevdf,
        "tandem {tandem}, EEVDF {eevdf} rounds per second of at most 1000"
    );
}

/// The daemon's probes measure how fast cores are. A policy that is not told takes them for equal, as EEVDF does.
#[test]
fn a_thread_goes_to_the_fast_core() {
    let of = |scheduler: &str, what: &str, tasks: &str| {
        let vm = format!("vcpus = 2\npins = [[0], [1]]\nkernel = {{ scheduler = \"{scheduler}\" }}\n");
        let (load, figure) =
            (format!(r#"{{"tasks": {tasks}}}"#), format!("of = \"cpu_bound\"\nwhat = \"{what}\""));
        mean_in(
            &Setup { hardware: "cores = 2\ncore_speed = [0.5, 1.0]", vm: &vm, load: &load, figure: &figure },
            4,
        )
    };
    let tasks =
        r#"{"cpu_bound": {"loop": -1, "run": 1000}, "other": {"loop": -1, "run": 200, "sleep": 5000}}"#;
    let (eevdf, tandem) = (of("eevdf", "rounds", tasks), of("tandem", "rounds", tasks));
    assert!(
        tandem > 900.0 && tandem > 1.05 * eevdf,
        "tandem {tandem}, EEVDF {eevdf} rounds per second of 1000"
    );
}

/// Two threads that share a lock have more work than the uncontended vCPU can do. Each of them alone would be done
/// there first.
#[test]
fn threads_that_share_a_lock_use_the_vcpu_that_is_preempted_half_of_the_time_too() {
    let tasks =
        r#"{"locker": {"instance": 2, "loop": -1, "run0": 1200, "lock": "m", "run1": 300, "unlock": "m"}}"#;
    let preempted = "[[contention]]\ncpus = [1]\non_us = 8000\noff_us = 8000\n";
    let rounds = |kernel: &str| guest_with(preempted, tasks, "locker", kernel);
    let (control, tandem) = (rounds(r#"scheduler = "eevdf""#), rounds(r#"scheduler = "tandem""#));
    // The uncontended vCPU alone does 667 rounds per second; the other vCPU has half of its pCPU in addition.
    assert!(tandem > 1.15 * 667.0 && tandem > 0.85 * control, "{tandem} rounds per second, EEVDF {control}");
}

const HALF_EACH: &str = "[[contention]]\ncpus = [0]\non_us = 8000\noff_us = 8000\n\
    [[contention]]\ncpus = [1]\non_us = 8000\noff_us = 8000\nphase_us = 8000\n";
const CPU_BOUND: &str = r#"{"cpu_bound": {"loop": -1, "run": 1000}}"#;

#[test]
fn a_thread_leaves_a_vcpu_before_it_is_taken() {
    let of = |kernel: &str| guest_with(HALF_EACH, CPU_BOUND, "cpu_bound", kernel);
    let (control, aware) =
        (of(r#"scheduler = "tandem", ivh = "off""#), of(r#"scheduler = "tandem", ivh = "aware""#));
    assert!(control < 520.0, "without it a thread has half of a pCPU: {control} rounds per second of 1000");
    assert!(aware > 1.6 * control, "{aware} rounds per second, {control} without");
}

#[test]
fn leaving_costs_nothing_where_nothing_can_be_foreseen() {
    let irregular = HALF_EACH.replace("off_us = 8000\n", "off_us = 8000\nirregular = true\n");
    let of = |ivh: &str| {
        guest_with(&irregular, CPU_BOUND, "cpu_bound", &format!(r#"scheduler = "tandem", ivh = "{ivh}""#))
    };
    let (control, aware) = (of("off"), of("aware"));
    assert!(aware > 0.95 * control, "{aware} rounds per second, {control} without");
}

/// p95 of requests, microseconds. A thread of the guest dispatches them. On both pCPUs a CPU-bound thread of
/// another guest competes.
fn requests_beside_a_cpu_bound_vm(kernel: &str) -> f64 {
    let load = r#"{"resources": {"x_arrivals": {"r": {"rate_hz": 100, "service": {"x_dist": "exponential", "mean": 1000},
        "intake": "dispatched"}}},
        "tasks": {"hands out": {"loop": -1, "x_dispatch": "r"}, "server": {"instance": 2, "loop": -1, "x_serve": "r"}}}"#;
    let cpu_bound = r#"{"tasks": {"cpu_bound": {"instance": 2, "loop": -1, "run": 1000000}}}"#;
    let vm = format!(
        "vcpus = 2\npins = [[0], [1]]\nkernel = {{ {kernel} }}\n\n\
         [[vm]]\nname = \"b\"\nvcpus = 2\npins = [[0], [1]]\n\n\
         [[workload]]\nname = \"beside\"\nin = \"b\"\ntext = '''{cpu_bound}'''\n"
    );
    let figure = "what = \"latency\"\npercentile = 0.95";
    mean_in(&Setup { hardware: "cores = 2", vm: &vm, load, figure }, 3)
}

#[test]
fn requests_beside_a_cpu_bound_vm_of_a_fair_host_are_answered_sooner() {
    let (eevdf, off, on) = (
        requests_beside_a_cpu_bound_vm(r#"scheduler = "eevdf""#),
        requests_beside_a_cpu_bound_vm(r#"scheduler = "tandem", bvs = false"#),
        requests_beside_a_cpu_bound_vm(r#"scheduler = "tandem""#),
    );
    assert!(on < 0.85 * eevdf && on < 0.9 * off, "{on} us, {off} without, EEVDF {eevdf}");
}

#[test]
fn a_straggler_is_left_to_best_effort_work() {
    // Two threads that meet at a barrier after each 2 ms of work, and one vCPU that has 4 % of its pCPU.
    let straggler = "[[contention]]\ncpus = [1]\non_us = 24000\noff_us = 1000\n";
    let pair = r#"{"pair": {"instance": 2, "loop": -1, "run": 2000, "barrier": "both"}}"#;
    let of = |rwc: bool| {
        guest_with(straggler, pair, "pair", &format!(r#"scheduler = "tandem", bvs = false, rwc = {rwc}"#))
    };
    let (control, banned) = (of(false), of(true));
    assert!(banned > 1.5 * control, "{banned} rounds per second, {control} without");
}

#[test]
fn a_straggler_that_nobody_waits_for_is_used() {
    // Three independent threads; the straggler has a twelfth of its pCPU.
    let straggler = "[[contention]]\ncpus = [1]\non_us = 22000\noff_us = 2000\n";
    let threads = r#"{"thread": {"instance": 3, "loop": -1, "run": 1000}}"#;
    let of = |rwc: bool| {
        guest_with(straggler, threads, "thread", &format!(r#"scheduler = "tandem", rwc = {rwc}"#))
    };
    let (control, with) = (of(false), of(true));
    assert!(control > 1040.0, "the straggler does some of it: {control} rounds per second");
    assert!(with > 0.98 * control, "{with} rounds per second, {control} without");
}

/// Competitors that take each pCPU for half of the time; on odd pCPUs in antiphase.
fn by_turns(cpus: std::ops::Range<usize>, each_us: usize) -> String {
    let one = |cpu: usize| {
        let phase_us = each_us * (cpu % 2);
        format!(
            "[[contention]]\ncpus = [{cpu}]\non_us = {each_us}\noff_us = {each_us}\nphase_us = {phase_us}\n"
        )
    };
    cpus.map(one).collect()
}

/// Rounds of six threads that meet at a barrier after each 12 ms of work, on two uncontended vCPUs and four that
/// have half of their pCPUs.
fn long_work_on_unlike_vcpus(scheduler: &str) -> f64 {
    let load = r#"{"tasks": {"thread": {"instance": 6, "loop": -1, "run": 12000, "barrier": "all"}}}"#;
    let vm = format!(
        "vcpus = 6\npins = [[0], [1], [2], [3], [4], [5]]\nkernel = {{ scheduler = \"{scheduler}\" }}\n{}",
        by_turns(2..6, 6000)
    );
    mean_in(&Setup { hardware: "cores = 6", vm: &vm, load, figure: "what = \"rounds\"" }, 3)
}

#[test]
fn long_work_does_not_queue_up_at_the_whole_vcpus() {
    let (eevdf, tandem) = (long_work_on_unlike_vcpus("eevdf"), long_work_on_unlike_vcpus("tandem"));
    assert!(tandem > 0.97 * eevdf, "{tandem} rounds per second, EEVDF {eevdf}");
}

/// Migrations per second of three threads that never sleep, on two vCPUs that are preempted alternately.
fn moves_of_cpu_bound_tasks(each_ms: usize) -> f64 {
    let vm = format!(
        "vcpus = 2\npins = [[0], [1]]\nkernel = {{ scheduler = \"tandem\" }}\n{}",
        by_turns(0..2, 1000 * each_ms)
    );
    mean_of("migrations", "cpu_bound", &vm, r#"{"cpu_bound": {"instance": 3, "loop": -1, "run": 1000}}"#, 3)
}

#[test]
fn cpu_bound_tasks_stay_with_a_vcpu_that_is_taken_unless_for_long() {
    let (short, long) = (moves_of_cpu_bound_tasks(8), moves_of_cpu_bound_tasks(200));
    assert!(short < 25.0, "62 preemptions per second, {short} moves");
    assert!(long > 2.0, "five preemptions of 200 ms per second, {long} moves");
}

/// Migrations per second in a guest of four vCPUs on two pCPUs.
fn moves(instances: u32, dedicate: bool) -> f64 {
    let vm = format!(
        r#"vcpus = 4
kernel = {{ scheduler = "tandem", dedicate = {dedicate} }}"#
    );
    let tasks = format!(r#"{{"worker": {{"instance": {instances}, "loop": -1, "run": 900, "sleep": 700}}}}"#);
    mean_of("migrations", "worker", &vm, &tasks, 3)
}

#[test]
fn a_thread_keeps_its_own_vcpu() {
    let (control, own, shared) = (moves(4, false), moves(4, true), moves(7, true));
    assert!(control > 20.0, "without it threads go where it is idle: {control} moves per second");
    assert!(own < 1.0, "{own} moves per second with a vCPU for each");
    assert!(shared > own, "with more threads than vCPUs the others go where there is least: {shared}");
}

fn with_fault(fault: Fault) -> String {
    let hardware = Hardware { cores: 1, ..Hardware::default() };
    let mut m = host(hardware.clone(), Costs::default(), &KernelSpec::recent(), 1);
    m.attach(0, &Settings { fault, ..Settings::of(hardware) }).unwrap_or_else(|error| panic!("{error}"));
    m.add_task(0, &cpu_bound(0), 1);
    m.add_task(0, &TaskSpec { name: "tandem-fault".into(), ..cpu_bound(0) }, 1);
    m.run(60 * S, MOST).map_or_else(|error| error.to_string(), |()| "nothing happened".into())
}

#[test]
fn a_policy_that_loses_a_task_is_thrown_out() {
    let said = with_fault(Fault::Stall);
    assert!(said.contains("the policy lets tandem-fault wait since"), "{said}");
    // The error also says what led to it: which task ran where.
    assert!(said.lines().skip(1).any(|line| line.contains(" ns: host CPU 0: cpu_bound")), "{said}");
    assert_eq!(with_fault(Fault::None), "nothing happened");
}

#[test]
fn a_policy_that_reports_an_error_is_thrown_out() {
    let said = with_fault(Fault::Error);
    assert!(said.contains("fault injected: tandem-fault"), "{said}");
}

/// vCPUs that the limit keeps out of use after some seconds, and rounds of four threads that meet at a barrier, in a guest
/// of four vCPUs that the host places on two pCPUs.
fn four_on_two(limit: bool) -> (usize, f64) {
    let vm = format!("vcpus = 4\nkernel = {{ scheduler = \"tandem\", vcpu_limit = {limit} }}\n");
    let load = r#"{"tasks": {"four": {"instance": 4, "loop": -1, "run": 2000, "barrier": "all"}}}"#;
    let setup = Setup { hardware: "cores = 2", vm: &vm, load, figure: "what = \"rounds\"" };
    let scenario = Scenario { duration_s: 12.0, warmup_s: 6.0, ..scenario_in(&setup) };
    let mut stage = scenario.stage(1).unwrap_or_else(|error| panic!("{error}"));
    stage.machine.run(stage.end, u64::MAX).unwrap_or_else(|error| panic!("{error}"));
    (stage.machine.limited(1), tandem_sim::runner::figures(&scenario, &stage)[0].unwrap_or(0.0))
}

#[test]
fn a_guest_uses_as_many_vcpus_as_it_gets_pcpus() {
    let ((all, control), (limited, rounds)) = (four_on_two(false), four_on_two(true));
    assert_eq!((all, limited), (0, 2), "vCPUs out of use");
    assert!(rounds > 0.95 * control, "{rounds} rounds per second, {control} with all vCPUs");
}
