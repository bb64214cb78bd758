//! `build`: many short processes, a few at a time, as in a software build.

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::arguments;
use crate::counted_work::{work, RateArg};
use crate::histogram::Histogram;
use crate::sys;

/// Name of the subcommand that is one of the short processes.
pub const UNIT_SUBCOMMAND: &str = "build-unit";

/// Arguments of `build`.
#[derive(Parser)]
pub struct Args {
    /// Processes at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: u32,
    /// Total number of processes
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Work of each process in microseconds, besides starting
    #[arg(long, default_value = "3000", value_parser = arguments::microseconds)]
    work_us: f64,
    #[command(flatten)]
    rate: RateArg,
}

/// Arguments of one of the short processes.
#[derive(Parser)]
pub struct UnitArgs {
    /// Iterations of work
    iters: u64,
}

pub fn unit(args: &UnitArgs) {
    work(args.iters);
}

pub fn run(args: &Args) -> Result<Value> {
    let iters = args.rate.measured_roughly().iters(args.work_us);
    let program = std::env::current_exe().context("where is this program")?;
    let start = || -> Result<Child> {
        let mut command = Command::new(&program);
        command.args([UNIT_SUBCOMMAND, &iters.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        sys::tie_to_parent(&mut command);
        command.spawn().context("starting a process")
    };
    let began = Instant::now();
    let mut life = Histogram::new();
    let (mut started, mut running) = (0, Vec::new());
    while started < args.count || !running.is_empty() {
        while started < args.count && running.len() < args.jobs as usize {
            running.push((sys::now_ns(), start()?));
            started += 1;
        }
        // Wait for the oldest: with processes of equal length it is nearly always the first to end.
        let (since_ns, mut child) = running.remove(0);
        let status = child.wait().context("waiting for a process")?;
        ensure!(status.success(), "a process of the build failed: {status}");
        life.record(sys::now_ns().saturating_sub(since_ns));
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(json!({
        "workload": "build",
        "jobs": args.jobs,
        "count": args.count,
        "seconds": seconds,
        "processes_per_s": f64::from(args.count) / seconds,
        "life_us": life.summary_us(),
    }))
}
