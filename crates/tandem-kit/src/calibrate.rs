//! `calibrate`: measures the work rate, so that all arms of an experiment do the same work.

use anyhow::Result;
use clap::Parser;
use serde_json::{json, Value};

use crate::counted_work;

/// Arguments of `calibrate`.
#[derive(Parser)]
pub struct Args {
    /// Number of short runs; the fastest counts
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Length of a run in microseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    run_us: u64,
    /// Pause between runs in microseconds
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pause_us: u64,
}

pub fn run(args: &Args) -> Result<Value> {
    let iters_per_us = counted_work::calibrate(args.runs, args.run_us, args.pause_us);
    Ok(json!({ "workload": "calibrate", "iters_per_us": round(iters_per_us), "runs": args.runs }))
}

fn round(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}
