//! `membarrier`: threads that interrupt all CPUs on which another one of them runs, and wait for the answers. Each does a piece of work in
//! between.
//!
//! In a guest an answer takes as long as the slowest of these vCPUs needs to run again. A kernel that knows KVM's paravirtual yield then asks the
//! host to run one of those that are preempted.

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{json, Value};

use crate::arguments::{self, MAX_THREADS};
use crate::counted_work::{work, RateArg};
use crate::histogram::Histogram;
use crate::{crew, sys};

/// Arguments of `membarrier`.
#[derive(Parser)]
pub struct Args {
    /// Number of threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Work of a thread between two barriers, in microseconds of undisturbed CPU time
    #[arg(long, default_value = "200", value_parser = arguments::microseconds)]
    work_us: f64,
    /// Duration in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
    #[command(flatten)]
    rate: RateArg,
}

pub fn run(args: &Args) -> Result<Value> {
    let rate = args.rate.measured();
    let iters = rate.iters(args.work_us);
    sys::register_membarrier().context("membarrier(2), which needs a kernel with CONFIG_MEMBARRIER")?;
    let body = |_, start_ns| {
        let end_ns = start_ns + (args.secs * 1e9) as u64;
        let mut answers = Histogram::new();
        let mut before_ns = start_ns;
        while before_ns < end_ns {
            work(iters);
            let asked_ns = sys::now_ns();
            sys::membarrier().context("membarrier(2)")?;
            before_ns = sys::now_ns();
            answers.record(before_ns - asked_ns);
        }
        Ok(answers)
    };
    let seen: Result<Vec<Histogram>> =
        crew::run_together("membarrier", args.threads as usize, |_| Ok(()), body)?.into_iter().collect();
    let mut answers = Histogram::new();
    for of_one in seen? {
        answers.merge(&of_one);
    }
    Ok(json!({
        "workload": "membarrier",
        "secs": args.secs,
        "threads": args.threads,
        "asked_work_us": args.work_us,
        "iters_per_us": rate.in_report(),
        "barriers": answers.count(),
        "barriers_per_s": answers.count() as f64 / args.secs,
        "answer_us": answers.summary_us(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_goes_on_until_the_end() {
        let args = Args::parse_from("membarrier --threads 3 --work-us 50 --secs 0.1".split(' '));
        let report = run(&args).unwrap();
        assert!(report["barriers"].as_u64().unwrap() >= 3, "{report}");
        assert!(report["answer_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
    }
}
