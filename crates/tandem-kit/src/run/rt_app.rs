//! rt-app: periodic threads; wake-up latency, slack and missed periods from its logs.

use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};

use super::output::round3;
use super::process::{self, PrivateDir};
use crate::arguments::{self, MAX_THREADS};
use crate::histogram::Histogram;

/// Arguments of `run rt-app`.
#[derive(Parser)]
pub struct Args {
    /// Number of periodic threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    secs: u32,
    /// Work of a period in nominal microseconds, see --ns-per-loop
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    run_us: u32,
    /// Period in microseconds
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    period_us: u32,
    /// Nominal length of a work loop in nanoseconds. Fixed, so that every run does the same work; 0 has rt-app
    /// measure it on CPU 0 first, which takes seconds and depends on what else runs there
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    ns_per_loop: u32,
    /// Run one of the workloads that validate the simulator, unchanged, instead of periodic threads
    #[arg(long, conflicts_with_all = ["threads", "secs", "run_us", "period_us", "ns_per_loop"])]
    workload: Option<String>,
}

macro_rules! workloads {
    ($($name:literal),*) => {
        /// Workload files that run in rt-app and in the simulator, unchanged.
        const WORKLOADS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../tandem-sim/validation/", $name, ".json")))),*];
    };
}

workloads!(
    "barrier-beside-preemptions",
    "best-effort",
    "one-cpu-bound-beside-preemptions",
    "cpu-bound",
    "cpu-bound-beside-preemptions",
    "lock",
    "periodic-high",
    "periodic-low",
    "periodic-medium",
    "weights"
);

/// Runs a workload file: loops per second, wake-ups and length of work of its tasks.
fn run_file(name: &str) -> Result<Value> {
    let names = || WORKLOADS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let (_, text) = WORKLOADS
        .iter()
        .find(|(other, _)| *other == name)
        .with_context(|| format!("no workload {name:?}; there are {}", names()))?;
    let program = process::find_program("rt-app", "rt-app")?;
    let dir = PrivateDir::new()?;
    let config: Value = serde_json::from_str(text).with_context(|| format!("workload {name}"))?;
    let secs = config["global"]["duration"].as_f64().unwrap_or(0.0);
    ensure!(secs > 0.0, "workload {name}: no duration");
    let file = dir.write("config.json", *text)?;
    process::run(&program, [file], &dir, Duration::from_secs_f64(3.0 * secs + 60.0))?;
    let mut all = Periods::new();
    let mut tasks = serde_json::Map::new();
    for (task, text) in named_logs(dir.path())? {
        let mut periods = Periods::new();
        periods.read(&text)?;
        all.read(&text)?;
        tasks.insert(task, json!(round3(periods.runs.count() as f64 / secs)));
    }
    ensure!(all.runs.count() > 0, "rt-app: its logs hold no loop");
    Ok(json!({
        "workload": name,
        "loops_per_s": round3(all.runs.count() as f64 / secs),
        "tasks": tasks,
        "wakeup_us": all.wakeups.summary_us(),
        "run_us": all.runs.summary_us(),
    }))
}

pub fn run(args: &Args) -> Result<Value> {
    if let Some(name) = &args.workload {
        return run_file(name);
    }
    let program = process::find_program("rt-app", "rt-app")?;
    let dir = PrivateDir::new()?;
    let config = dir.write("config.json", configuration(args).to_string())?;
    process::run(&program, [config], &dir, Duration::from_secs(3 * u64::from(args.secs) + 60))?;
    let mut periods = Periods::new();
    for text in logs(dir.path())? {
        periods.read(&text)?;
    }
    ensure!(periods.wakeups.count() > 0, "rt-app: its logs hold no period");
    Ok(json!({
        "workload": "rt-app",
        "threads": args.threads,
        "secs": args.secs,
        "periods": periods.wakeups.count(),
        "missed": periods.missed,
        "missed_share": round3(periods.missed as f64 / periods.wakeups.count() as f64),
        "wakeup_us": periods.wakeups.summary_us(),
        "run_us": periods.runs.summary_us(),
    }))
}

fn configuration(args: &Args) -> Value {
    let calibration = if args.ns_per_loop == 0 { json!("CPU0") } else { json!(args.ns_per_loop) };
    json!({
        "tasks": { "periodic": {
            "instance": args.threads,
            "loop": -1,
            "run": args.run_us,
            "timer": { "ref": "unique", "period": args.period_us },
        } },
        "global": {
            "duration": args.secs,
            "calibration": calibration,
            "default_policy": "SCHED_OTHER",
            "pi_enabled": false,
            "lock_pages": false,
            "logdir": ".",
            "log_basename": "periods",
            "gnuplot": false,
        },
    })
}

/// The logs of all threads.
fn logs(dir: &Path) -> Result<Vec<String>> {
    Ok(named_logs(dir)?.into_iter().map(|(_, text)| text).collect())
}

/// The logs of all threads with the threads' names, ordered by name.
fn named_logs(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(dir).context("cannot list rt-app's logs")? {
        let path = entry.context("cannot list rt-app's logs")?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            // rt-app puts its own prefix before the thread's name.
            let name = stem.split_once('-').map_or(stem.clone(), |(_, name)| name.to_owned());
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.push((name, text));
        }
    }
    texts.sort();
    Ok(texts)
}

struct Periods {
    wakeups: Histogram,
    runs: Histogram,
    missed: u64,
}

impl Periods {
    fn new() -> Self {
        Periods { wakeups: Histogram::new(), runs: Histogram::new(), missed: 0 }
    }

    /// Adds one thread's log: a line of column names after `#`, then a line per period, times in microseconds.
    fn read(&mut self, text: &str) -> Result<()> {
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .find(|names| names.contains(&"wu_lat"))
            .context("rt-app: no column wu_lat in its log")?;
        let column = |name: &str| names.iter().position(|&other| other == name);
        let wakeup = column("wu_lat").context("rt-app: no column wu_lat in its log")?;
        let run = column("run").context("rt-app: no column run in its log")?;
        let slack = column("slack").context("rt-app: no column slack in its log")?;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let values: Vec<i64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            // The last line may have been cut when the run ended.
            if values.len() < names.len() {
                continue;
            }
            self.wakeups.record(to_ns(values[wakeup]));
            self.runs.record(to_ns(values[run]));
            self.missed += u64::from(values[slack] < 0);
        }
        Ok(())
    }
}

fn to_ns(time_us: i64) -> u64 {
    u64::try_from(time_us).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = "\
# Policy : SCHED_OTHER priority : 0
#idx     perf      run   period           start             end          rel_st      slack c_duration   c_period     wu_lat
   0   166666     2170     9821      6514978697      6514988518             524       7564       2000      10000         81
   0   166666     2115    10014      6514988527      6514998541           10354      -7793       2000      10000        105
   0   1666
";

    #[test]
    fn a_log_by_its_column_names() {
        let mut periods = Periods::new();
        periods.read(SAMPLE).unwrap();
        assert_eq!((periods.wakeups.count(), periods.missed), (2, 1));
        assert_eq!(periods.wakeups.sum_ns(), 186_000);
        assert_eq!(periods.runs.sum_ns(), 4_285_000);
    }

    #[test]
    fn another_log_is_an_error() {
        assert!(Periods::new().read("#idx perf\n1 2\n").unwrap_err().to_string().contains("wu_lat"));
    }

    proptest! {
        #[test]
        fn any_rows_are_read_or_skipped(rows in "[-0-9 \\na]{0,200}") {
            Periods::new().read(&format!("# run slack wu_lat\n{rows}")).unwrap();
        }
    }
}
