//! `spin`: CPU-bound threads; counts the work of each per time window.

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde::Serialize;
use serde_json::{json, Value};

use crate::arguments::{self, CpuList, MAX_THREADS};
use crate::counted_work::{between_looks, work};
use crate::{crew, sys};

/// Bounds the report's size; 100 000 windows are 83 minutes at the default 50 ms.
const MAX_WINDOWS: f64 = 100_000.0;

/// Arguments of `spin`.
#[derive(Parser)]
pub struct Args {
    /// Number of threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
    /// Nice values; thread i takes the i-th, round-robin
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Vec<i32>,
    /// How many of the threads (the last ones) run as SCHED_IDLE
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MAX_THREADS))]
    idle: u32,
    /// All threads are SCHED_FIFO, of this priority
    #[arg(long, value_name = "PRIORITY", conflicts_with_all = ["nice", "idle"], value_parser = clap::value_parser!(i32).range(1..=99))]
    fifo: Option<i32>,
    /// For so many seconds only; then they are normal threads
    #[arg(long, value_name = "SECS", requires = "fifo", value_parser = arguments::seconds)]
    fifo_secs: Option<f64>,
    /// All threads are SCHED_DEADLINE: run time and period, microseconds. The kernel takes no pinned ones
    #[arg(long, value_name = "RUN/PERIOD", conflicts_with_all = ["nice", "idle", "fifo", "cpus"], value_parser = deadline)]
    deadline_us: Option<(u64, u64)>,
    /// CPUs to pin to, e.g. 0-1,3; thread i takes the i-th, round-robin
    #[arg(long)]
    cpus: Option<CpuList>,
    /// CPUs to start on, without being pinned to them; thread i starts on the i-th, round-robin
    #[arg(long, conflicts_with = "cpus")]
    from: Option<CpuList>,
    /// Length of a window in milliseconds
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    window_ms: u64,
}

#[derive(Serialize)]
struct ThreadReport {
    work: u64,
    work_per_s: f64,
    nice: i32,
    policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<usize>,
    /// Involuntary context switches.
    preempted: u64,
    /// CPU time as the kernel accounts it, milliseconds.
    cpu_ms: f64,
    windows: Vec<u64>,
}

/// Run time and period of SCHED_DEADLINE, microseconds.
fn deadline(text: &str) -> Result<(u64, u64), String> {
    let both = text.split_once('/').and_then(|(run, period)| Some((run.parse().ok()?, period.parse().ok()?)));
    // The kernel's own limits (sched_deadline_period_min_us, sched_deadline_period_max_us), and a run time that it can account.
    both.filter(|(run, period)| (10..=*period).contains(run) && (100..=4_000_000).contains(period))
        .ok_or_else(|| "expected RUN/PERIOD in us, as in 5000/10000: periods of 100 to 4000000".to_owned())
}

pub fn run(args: &Args) -> Result<Value> {
    ensure!(args.idle <= args.threads, "--idle {} exceeds --threads {}", args.idle, args.threads);
    let window_count = (args.secs * 1000.0 / args.window_ms as f64).ceil();
    ensure!(
        window_count <= MAX_WINDOWS,
        "--secs {} with --window-ms {} makes {window_count} windows; at most {MAX_WINDOWS} are kept",
        args.secs,
        args.window_ms
    );
    let chunk = between_looks();
    let threads = crew::run_together(
        "spin",
        args.threads as usize,
        |index| set_up(args, index),
        |index, start_ns| spin(args, index, start_ns, chunk, window_count as usize),
    )?
    .into_iter()
    .collect::<Result<Vec<ThreadReport>>>()?;
    // Run time between two involuntary context switches: the slice as delivered.
    let (cpu_ms, preempted) =
        threads.iter().fold((0.0, 0), |(ms, count), thread| (ms + thread.cpu_ms, count + thread.preempted));
    let windows: Vec<u64> =
        (0..window_count as usize).map(|at| threads.iter().map(|thread| thread.windows[at]).sum()).collect();
    let work_total: u64 = threads.iter().map(|thread| thread.work).sum();
    Ok(json!({
        "workload": "spin",
        "secs": args.secs,
        "window_ms": args.window_ms,
        "threads": threads,
        "windows": windows,
        "work_total": work_total,
        "work_per_s": threads.iter().map(|thread| thread.work_per_s).sum::<f64>().round(),
        "mean_slice_ms": if preempted > 0 { json!(cpu_ms / preempted as f64) } else { Value::Null },
        "shares": Shares::of(&threads),
    }))
}

/// Share of each thread in the work, and its deviation from the weights. Only threads that compete for the same CPUs
/// all the time can be compared; the caller has to ensure that.
#[derive(Serialize)]
struct Shares {
    /// Share of each normal thread in the work of all normal threads.
    normal: Vec<f64>,
    /// Largest relative deviation from the share by weight, percent. A step of nice is a factor of 1.25.
    worst_error_pct: f64,
    /// The same for CPU time instead of work: threads with short slices lose work to switches and cold caches.
    worst_cpu_error_pct: f64,
    /// Work per second of the normal threads.
    normal_work_per_s: f64,
    /// Part of all work that SCHED_IDLE threads did, percent.
    idle_pct: f64,
}

impl Shares {
    fn of(threads: &[ThreadReport]) -> Self {
        let sum = |policy: &str| {
            threads
                .iter()
                .filter(|thread| thread.policy == policy)
                .map(|thread| thread.work_per_s)
                .sum::<f64>()
        };
        let (normal, idle) = (sum("normal"), sum("idle"));
        let weight = |thread: &ThreadReport| 1.25f64.powi(-thread.nice);
        let competing = || threads.iter().filter(|thread| thread.policy == "normal");
        let weights: f64 = competing().map(weight).sum();
        let shares: Vec<f64> = competing().map(|thread| thread.work_per_s / normal.max(1.0)).collect();
        let cpu_ms: f64 = competing().map(|thread| thread.cpu_ms).sum();
        let error = |thread: &ThreadReport, share: f64| (share / (weight(thread) / weights) - 1.0).abs();
        let worst = competing().zip(&shares).map(|(t, share)| error(t, *share)).fold(0.0, f64::max);
        let worst_cpu = competing().map(|t| error(t, t.cpu_ms / cpu_ms.max(1e-9))).fold(0.0, f64::max);
        Self {
            normal: shares,
            worst_error_pct: 100.0 * worst,
            worst_cpu_error_pct: 100.0 * worst_cpu,
            normal_work_per_s: normal,
            idle_pct: 100.0 * idle / (normal + idle).max(1.0),
        }
    }
}

fn nice_of(args: &Args, index: usize) -> i32 {
    if args.nice.is_empty() {
        return 0;
    }
    args.nice[index % args.nice.len()]
}

fn is_idle(args: &Args, index: usize) -> bool {
    index >= (args.threads - args.idle) as usize
}

fn policy_of(args: &Args, index: usize) -> &'static str {
    match (args.fifo, args.deadline_us) {
        (Some(_), _) => "fifo",
        (_, Some(_)) => "deadline",
        _ if is_idle(args, index) => "idle",
        _ => "normal",
    }
}

fn cpu_of(args: &Args, index: usize) -> Option<usize> {
    args.cpus.as_ref().map(|CpuList(cpus)| cpus[index % cpus.len()])
}

fn set_up(args: &Args, index: usize) -> Result<()> {
    if let Some(cpu) = cpu_of(args, index) {
        sys::pin_to_cpu(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
    }
    if let Some(cpu) = args.from.as_ref().map(|CpuList(cpus)| cpus[index % cpus.len()]) {
        sys::move_to_cpu(cpu).with_context(|| format!("cannot begin on CPU {cpu}"))?;
    }
    // Without --nice, the inherited nice value is kept.
    if !args.nice.is_empty() {
        let nice = nice_of(args, index);
        sys::set_nice(nice).with_context(|| format!("cannot set nice {nice}"))?;
    }
    if is_idle(args, index) {
        sys::set_idle_policy().context("cannot become SCHED_IDLE")?;
    }
    if let Some(priority) = args.fifo {
        sys::set_fifo_policy(priority).context("cannot become SCHED_FIFO")?;
    }
    if let Some((run_us, period_us)) = args.deadline_us {
        sys::set_deadline_policy(run_us * 1000, period_us * 1000).context("cannot become SCHED_DEADLINE")?;
    }
    Ok(())
}

fn spin(args: &Args, index: usize, start_ns: u64, chunk: u64, window_count: usize) -> Result<ThreadReport> {
    let end_ns = start_ns + (args.secs * 1e9) as u64;
    let window_ns = args.window_ms * 1_000_000;
    let mut windows = vec![0; window_count];
    let mut total = 0;
    let mut normal_at_ns = args.fifo_secs.map(|secs| start_ns + (secs * 1e9) as u64);
    let before = sys::thread_usage();
    let mut now_ns = sys::now_ns();
    while now_ns < end_ns {
        work(chunk);
        now_ns = sys::now_ns();
        total += chunk;
        if normal_at_ns.take_if(|at_ns| now_ns >= *at_ns).is_some() {
            sys::set_normal_policy().context("cannot become a normal thread")?;
        }
        // A chunk belongs to the window in which it was finished; one that ends after the last window, to that window.
        let window = ((now_ns - start_ns) / window_ns) as usize;
        windows[window.min(window_count - 1)] += chunk;
    }
    let after = sys::thread_usage();
    let elapsed_s = (now_ns - start_ns).max(1) as f64 / 1e9;
    Ok(ThreadReport {
        work: total,
        work_per_s: (total as f64 / elapsed_s).round(),
        nice: nice_of(args, index),
        policy: policy_of(args, index),
        cpu: cpu_of(args, index),
        preempted: after.preempted - before.preempted,
        cpu_ms: after.cpu_ms - before.cpu_ms,
        windows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_compared_with_weights() {
        let thread = |work_per_s: f64, nice: i32, policy: &'static str| ThreadReport {
            work: 0,
            work_per_s,
            nice,
            policy,
            cpu: None,
            preempted: 0,
            cpu_ms: 0.0,
            windows: vec![],
        };
        let fair =
            Shares::of(&[thread(125.0, 0, "normal"), thread(100.0, 1, "normal"), thread(25.0, 0, "idle")]);
        assert!(
            fair.worst_error_pct < 1e-9 && (fair.idle_pct - 10.0).abs() < 1e-9,
            "{}",
            fair.worst_error_pct
        );
        let equal = Shares::of(&[thread(100.0, 0, "normal"), thread(100.0, 5, "normal")]);
        assert!(equal.worst_error_pct > 50.0);
    }

    fn args(line: &str) -> Args {
        Args::parse_from(std::iter::once("spin").chain(line.split_whitespace()))
    }

    #[test]
    fn reports_work_per_thread_and_window() {
        let report =
            run(&args("--threads 2 --secs 0.1 --window-ms 30 --nice 0,5 --idle 1 --cpus 0")).unwrap();
        let threads = report["threads"].as_array().unwrap();
        assert_eq!(threads.len(), 2);
        assert_eq!(threads[1]["policy"], "idle");
        assert_eq!(threads[1]["nice"], 5);
        assert_eq!(threads[0]["windows"].as_array().unwrap().len(), 4);
        for thread in threads {
            let windows = thread["windows"].as_array().unwrap();
            let sum: u64 = windows.iter().map(|window| window.as_u64().unwrap()).sum();
            assert_eq!(sum, thread["work"].as_u64().unwrap());
        }
        assert!(report["work_per_s"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn impossible_requests_are_one_line() {
        let error = run(&args("--threads 1 --secs 0.1 --idle 2")).unwrap_err();
        assert_eq!(error.to_string(), "--idle 2 exceeds --threads 1");
        let error = run(&args("--threads 1 --secs 0.1 --cpus 1023")).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot run on CPU 1023: "), "{error:#}");
        assert!(run(&args("--threads 1 --secs 3600 --window-ms 1")).is_err());
    }
}
