//! Runs scenarios: every arm with every seed, several at a time. The results do not depend on how many at a time.

use crate::record::{percentile, Latencies};
use crate::scenario::{MetricSpec, Scenario, Stage, What};
use crate::SimError;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// Most events of a run: as many as an hour of a large machine takes; more mean that it does not end.
pub const MOST_EVENTS: u64 = 2_000_000_000;

/// Result of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// Values of the scenario's metrics, in their order. None: nothing was measured.
    pub figures: Vec<Option<f64>>,
    /// Number of events.
    pub events: u64,
}

/// Results by arm and seed.
pub type Results = Vec<Vec<RunResult>>;

/// Runs all arms with `seeds` seeds, from 1 on, on `threads` threads. `progress` is called after each run.
///
/// # Errors
/// A run that fails: the first by arm and seed.
pub fn run(
    scenario: &Scenario,
    seeds: u64,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Results, SimError> {
    let arms = scenario.arms();
    let jobs: Vec<(usize, u64)> =
        (0..arms.len()).flat_map(|arm| (1..=seeds).map(move |seed| (arm, seed))).collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let slots: Vec<Mutex<Option<Result<RunResult, SimError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(arm, seed)) = jobs.get(at) else { break };
                let result = one(&scenario.with(&arms[arm]), seed);
                if let Ok(mut slot) = slots[at].lock() {
                    *slot = Some(result);
                }
                progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
            });
        }
    });
    let mut results = vec![Vec::new(); arms.len()];
    for ((arm, _), slot) in jobs.iter().zip(slots) {
        let result = slot.into_inner().ok().flatten();
        results[*arm].push(result.unwrap_or_else(|| Err(SimError::Scenario("a run was lost".into())))?);
    }
    Ok(results)
}

/// One run.
///
/// # Errors
/// The scenario cannot be staged, or the run fails.
pub fn one(scenario: &Scenario, seed: u64) -> Result<RunResult, SimError> {
    let mut stage = scenario.stage(seed)?;
    stage.machine.run(stage.end, MOST_EVENTS)?;
    Ok(RunResult { figures: figures(scenario, &stage), events: stage.machine.events() })
}

/// The scenario's metrics of a stage that has run.
pub fn figures(scenario: &Scenario, stage: &Stage) -> Vec<Option<f64>> {
    scenario.metrics.iter().map(|metric| figure(stage, metric)).collect()
}

fn figure(stage: &Stage, metric: &MetricSpec) -> Option<f64> {
    let workloads = || stage.workloads.iter().filter(|w| metric.workload == "*" || w.name == metric.workload);
    let wanted = |name: &str| metric.of.as_ref().is_none_or(|of| of == name);
    let record = &stage.machine.record;
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    let (from, to) =
        metric.between_s.map_or((record.from, stage.end), |(from, to)| (ns(from), ns(to).min(stage.end)));
    let seconds = (to - from) as f64 / 1e9;
    let latencies = |of: fn(&Latencies) -> &Vec<(u64, u64)>| {
        let mut all = Vec::new();
        for (_, stream) in workloads().flat_map(|w| &w.streams).filter(|(name, _)| wanted(name)) {
            if let Some(found) = record.latencies.get(stream) {
                all.extend(of(found).iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, ns)| *ns));
            }
        }
        all
    };
    let of_latencies = |all: Vec<u64>| match metric.percentile {
        Some(part) => percentile(&all, part).map(|ns| ns as f64 / 1e3),
        None if all.is_empty() => None,
        None => Some(all.iter().sum::<u64>() as f64 / all.len() as f64 / 1e3),
    };
    let tasks = || workloads().flat_map(|w| &w.tasks).filter(|(name, _)| wanted(name)).map(|(_, task)| *task);
    match metric.what {
        What::Latency => of_latencies(latencies(|l| &l.total)),
        What::QueueTime => of_latencies(latencies(|l| &l.queue)),
        What::DeliveryTime => of_latencies(latencies(|l| &l.delivery)),
        What::Wakeup => {
            let late = tasks().filter_map(|task| record.wakeups.get(&task)).flatten();
            of_latencies(late.filter(|(at, _)| (from..to).contains(at)).map(|(_, ns)| *ns).collect())
        }
        What::Requests => Some(latencies(|l| &l.total).len() as f64 / seconds),
        // Servers have no rounds.
        What::Rounds if workloads().all(|w| !w.streams.is_empty()) => None,
        What::Rounds => Some(tasks().map(|task| record.rounds(task, from, to)).sum::<u64>() as f64 / seconds),
        What::Cores => {
            let cores = record.cores.as_ref().filter(|cores| !cores.is_empty())?;
            Some(cores.iter().map(|n| f64::from(*n)).sum::<f64>() / cores.len() as f64)
        }
        What::Migrations => {
            let all: u64 = tasks().map(|task| stage.machine.tasks[task].migrations).sum();
            Some(all as f64 / (stage.end as f64 / 1e9))
        }
        What::Switches => {
            let machine = &stage.machine;
            let worlds: BTreeSet<usize> = tasks().map(|task| machine.tasks[task].world).collect();
            let cpus = worlds.iter().flat_map(|world| &machine.worlds[*world].cpus);
            let all: u64 = cpus.filter_map(|cpu| cpu.vcpu).map(|task| machine.tasks[task].switches).sum();
            Some(all as f64 / (stage.end as f64 / 1e9))
        }
        What::Cpus => {
            Some(tasks().map(|task| stage.machine.tasks[task].ran_ns).sum::<u64>() as f64 / stage.end as f64)
        }
    }
}

/// A scenario for measuring the simulator: two guests with `vcpus` vCPUs each, on as many pCPUs. One has a server
/// and a barrier program, the other a pipeline and CPU-bound threads.
pub fn mixed_load(vcpus: usize) -> String {
    let model = |guest: &str, name: &str, threads: usize| {
        format!("[[workload]]\nname = \"{guest} {name}\"\nin = \"{guest}\"\nmodel = \"{name}\"\nthreads = {threads}\ncapacity = {}\n", vcpus as f64 / 4.0)
    };
    format!(
        "name = \"bench\"\nduration_s = 10.0\n[hardware]\ncores = {vcpus}\n[[vm]]\nname = \"a\"\nvcpus = {vcpus}\n[[vm]]\nname = \"b\"\nvcpus = {vcpus}\n{}{}{}{}",
        model("a", "masstree", vcpus),
        model("a", "facesim", vcpus / 2),
        model("b", "dedup", vcpus),
        model("b", "sysbench", vcpus / 4),
    )
}
