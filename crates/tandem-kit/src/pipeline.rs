//! `pipeline`: every item passes all stages, each with a thread of its own. The slowest stage sets the speed.

use anyhow::Result;
use clap::Parser;
use serde_json::{json, Value};

use crate::arguments::{self, MAX_THREADS};
use crate::counted_work::{work, RateArg};
use crate::histogram::Histogram;
use crate::queue::Queue;
use crate::{crew, sys};

/// Arguments of `pipeline`.
#[derive(Parser)]
pub struct Args {
    /// Number of stages, one thread each
    #[arg(long, visible_alias = "threads", default_value_t = arguments::available_cpus().max(2), value_parser = clap::value_parser!(u32).range(2..=MAX_THREADS))]
    stages: u32,
    /// Work of every stage on every item, in microseconds of undisturbed CPU time
    #[arg(long, default_value = "200", value_parser = arguments::microseconds)]
    work_us: f64,
    /// Duration in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
    /// Items that fit between two stages
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    #[command(flatten)]
    rate: RateArg,
}

/// An item, with the time at which the first stage began it.
struct Item {
    begin_ns: u64,
}

pub fn run(args: &Args) -> Result<Value> {
    let rate = args.rate.measured();
    let iters = rate.iters(args.work_us);
    let stages = args.stages as usize;
    // Queue i leads from stage i to stage i + 1.
    let queues: Vec<Queue<Item>> = (1..stages).map(|_| Queue::new(args.depth as usize)).collect();
    let body = |stage: usize, start_ns: u64| {
        let end_ns = start_ns + (args.secs * 1e9) as u64;
        let mut latency = Histogram::new();
        let mut finished_in_time = 0u64;
        if stage == 0 {
            produce(&queues[0], iters, end_ns);
            return (latency, finished_in_time);
        }
        while let Some(item) = queues[stage - 1].pop() {
            work(iters);
            match queues.get(stage) {
                Some(next) => {
                    next.push(item);
                }
                None => {
                    let now_ns = sys::now_ns();
                    latency.record(now_ns - item.begin_ns);
                    finished_in_time += u64::from(now_ns < end_ns);
                }
            }
        }
        if let Some(next) = queues.get(stage) {
            next.close();
        }
        (latency, finished_in_time)
    };
    let seen = crew::run_together("pipeline", stages, |_| Ok(()), body)?;
    let (latency, finished_in_time) = &seen[stages - 1];
    Ok(json!({
        "workload": "pipeline",
        "secs": args.secs,
        "stages": args.stages,
        "asked_work_us": args.work_us,
        "iters_per_us": rate.in_report(),
        "items": finished_in_time,
        "items_per_s": *finished_in_time as f64 / args.secs,
        "latency_us": latency.summary_us(),
    }))
}

/// The first stage makes items until the time is over, then closes the pipeline.
fn produce(next: &Queue<Item>, iters: u64, end_ns: u64) {
    loop {
        let begin_ns = sys::now_ns();
        if begin_ns >= end_ns {
            break;
        }
        work(iters);
        next.push(Item { begin_ns });
    }
    next.close();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_pass_all_stages() {
        let args = Args::parse_from("pipeline --stages 3 --work-us 50 --secs 0.2 --depth 1".split(' '));
        let report = run(&args).unwrap();
        assert!(report["items"].as_u64().unwrap() >= 1, "{report}");
        assert!(report["latency_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
    }
}
