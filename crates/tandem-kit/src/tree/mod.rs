//! `tree`: CPU-bound threads in a tree of cgroups; compares the share of each group with the ideal one.

mod groups;
mod ideal;
mod spec;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use groups::Groups;
use serde::Serialize;
use serde_json::{json, Value};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{arguments, sys};
use spec::GroupSpec;

/// Arguments of `tree`.
#[derive(Parser)]
pub struct Args {
    /// A group as PATH=WEIGHTxTHREADS, e.g. a/b=300x2; weight 1-10000 or "idle"; with a limit @QUOTA/PERIOD in
    /// microseconds
    #[arg(long = "group", value_name = "SPEC", required = true)]
    groups: Vec<GroupSpec>,
    /// Duration of the measurement in seconds, after a warm-up of three seconds
    #[arg(long, default_value = "10", value_parser = arguments::seconds)]
    secs: f64,
    /// Interval between two samples of limited groups, microseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    sample_us: u64,
}

#[derive(Serialize)]
struct GroupReport {
    path: String,
    cpus: f64,
    ideal_cpus: f64,
    error_pct: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_overrun_ms: Option<f64>,
}

/// Minimum run time for a share to be judged, seconds: about a hundred slices.
const JUDGED_FROM_S: f64 = 0.3;

/// Time until all threads run: threads of a light group share little CPU time even while they are started.
const WARM_UP: Duration = Duration::from_secs(3);

/// The CPU-bound threads of one group: a process that ends with this one.
struct Neighbours(Child);

impl Neighbours {
    fn start(threads: u32, secs: f64) -> Result<Self> {
        let program = std::env::current_exe().context("where is this program")?;
        let mut command = Command::new(program);
        command.args(["spin", "--threads", &threads.to_string(), "--secs", &secs.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        sys::tie_to_parent(&mut command);
        Ok(Self(command.spawn().context("starting the threads of a group")?))
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        // An error means that it has already ended, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Samples of a limited group's run time: (ns since the start, ns of CPU time).
type Trace = Vec<(u64, u64)>;

pub fn run(args: &Args) -> Result<Value> {
    ensure!(sys::is_root(), "needs root: it creates cgroups");
    let cpus = arguments::available_cpus() as f64;
    let tree = spec::Tree::of(&args.groups)?;
    let groups = Groups::create(&args.groups)?;
    let mut neighbours = Vec::new();
    for spec in args.groups.iter().filter(|spec| spec.threads > 0) {
        let child = Neighbours::start(spec.threads, args.secs + 60.0)?;
        groups.add_process(spec, child.0.id())?;
        neighbours.push(child);
    }
    std::thread::sleep(WARM_UP);
    let limited: Vec<&GroupSpec> = args.groups.iter().filter(|spec| spec.limit.is_some()).collect();
    let before = groups.usage(&args.groups)?;
    let started = Instant::now();
    let traces = watch(&groups, &limited, args, started)?;
    let after = groups.usage(&args.groups)?;
    let elapsed_us = started.elapsed().as_secs_f64() * 1e6;
    drop(neighbours);
    let ideal = ideal::fill(&tree, cpus);
    let reports: Vec<GroupReport> = args
        .groups
        .iter()
        .enumerate()
        .map(|(i, spec)| {
            let got = (after[i] - before[i]) as f64 / elapsed_us;
            let want = ideal[tree.index[i]];
            let trace = limited.iter().position(|other| other.path == spec.path).map(|at| &traces[at]);
            GroupReport {
                path: spec.path.clone(),
                cpus: got,
                ideal_cpus: want,
                error_pct: if want > 0.0 { 100.0 * (got / want - 1.0).abs() } else { 0.0 },
                longest_overrun_ms: trace
                    .zip(spec.limit)
                    .map(|(trace, (quota_us, period_us))| longest_overrun_ms(trace, quota_us, period_us)),
            }
        })
        .collect();
    // Sampling limited groups takes CPU time from the unlimited ones, not from the limited ones.
    let limits = reports.iter().zip(&args.groups).filter(|(_, spec)| spec.limit.is_some());
    let worst_limit = limits.map(|(report, _)| report.error_pct).fold(0.0, f64::max);
    // A share is known to one slice at best, so it is not judged if only a few slices fall into the measurement.
    let competing = || {
        reports.iter().zip(&args.groups).filter(|(report, spec)| {
            spec.threads > 0 && !spec.idle && report.ideal_cpus * args.secs >= JUDGED_FROM_S
        })
    };
    let worst = competing().map(|(report, _)| report.error_pct).fold(0.0, f64::max);
    let idle: f64 = reports.iter().zip(&args.groups).filter(|(_, s)| s.idle).map(|(r, _)| r.cpus).sum();
    let overrun = reports.iter().filter_map(|r| r.longest_overrun_ms).fold(0.0, f64::max);
    Ok(json!({
        "workload": "tree",
        "cpus": cpus,
        "groups": reports,
        "worst_error_pct": worst,
        "worst_limit_error_pct": worst_limit,
        "longest_overrun_ms": overrun,
        "idle_pct": 100.0 * idle / cpus,
    }))
}

/// Waits for the end, and samples the run time of limited groups meanwhile.
fn watch(groups: &Groups, limited: &[&GroupSpec], args: &Args, started: Instant) -> Result<Vec<Trace>> {
    let mut traces: Vec<Trace> = vec![Vec::new(); limited.len()];
    let length = Duration::from_secs_f64(args.secs);
    if limited.is_empty() {
        std::thread::sleep(length);
        return Ok(traces);
    }
    // The sampling thread must not wait behind the threads that it samples.
    sys::set_fifo_policy(10).context("becoming a real-time thread")?;
    while started.elapsed() < length {
        for (spec, trace) in limited.iter().zip(&mut traces) {
            let usage = groups.usage_us(spec)?;
            trace.push((started.elapsed().as_nanos() as u64, usage * 1000));
        }
        std::thread::sleep(Duration::from_micros(args.sample_us));
    }
    Ok(traces)
}

/// By how much the group exceeded its quota in the worst period, milliseconds. Where periods begin is not known: the
/// phase that fits best is used for all periods. A debt at the start of a period is not an overrun of that period.
fn longest_overrun_ms(trace: &Trace, quota_us: u64, period_us: u64) -> f64 {
    const PHASES: u64 = 20;
    let period_ns = period_us * 1000;
    let used_at = |at: u64| {
        let i = trace.partition_point(|(time, _)| *time < at);
        trace.get(i).or(trace.last()).map_or(0, |(_, used)| *used)
    };
    let end = trace.last().map_or(0, |(time, _)| *time);
    (0..PHASES)
        .map(|phase| {
            let mut at = phase * period_ns / PHASES;
            let mut worst = 0.0f64;
            while at + period_ns <= end {
                let used = used_at(at + period_ns).saturating_sub(used_at(at));
                worst = worst.max((used as f64 - quota_us as f64 * 1e3) / 1e6);
                at += period_ns;
            }
            worst
        })
        .reduce(f64::min)
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overrun_is_found_at_the_phase_of_the_periods() {
        // 10 ms of 40 at the start of each period; the first period begins 13 ms after the trace. Once it is 14 ms.
        let mut trace = Trace::new();
        let mut used = 0;
        for ms in 0..1000u64 {
            let (index, into) = ((ms + 27) / 40, (ms + 27) % 40);
            let quota = if index == 7 { 14 } else { 10 };
            if into < quota {
                used += 1_000_000;
            }
            trace.push(((ms + 1) * 1_000_000, used));
        }
        let found = longest_overrun_ms(&trace, 10_000, 40_000);
        assert!((3.0..=5.0).contains(&found), "{found}");
        assert!(longest_overrun_ms(&trace, 14_000, 40_000) <= 1.0);
    }
}
