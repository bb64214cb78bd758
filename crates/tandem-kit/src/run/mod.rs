//! `run`: packaged programs with fixed, sensible defaults, and their output as JSON.

mod cyclictest;
mod guard;
mod hackbench;
mod nginx;
mod output;
mod pbzip2;
mod process;
mod redis;
mod rt_app;
mod server;
mod stress_ng;
mod sysbench;
mod wrk;

use anyhow::Result;
use clap::Subcommand;
use serde_json::Value;

/// The programs that `run` knows.
#[derive(Subcommand)]
pub enum Program {
    /// Groups of tasks that send each other messages; time to finish (package rt-tests)
    Hackbench(hackbench::Args),
    /// Wake-up latency of periodic timers (package rt-tests)
    Cyclictest(cyclictest::Args),
    /// Periodic threads; wake-up latency and slack (package rt-app)
    RtApp(rt_app::Args),
    /// One stressor of stress-ng; operations per second (package stress-ng)
    StressNg(stress_ng::Args),
    /// sysbench, CPU or threads test (package sysbench)
    Sysbench(sysbench::Args),
    /// nginx serving a file to wrk (packages nginx and wrk)
    Nginx(nginx::Args),
    /// redis-server with redis-benchmark (packages redis-server and redis-tools)
    Redis(redis::Args),
    /// Parallel compression; throughput (package pbzip2)
    Pbzip2(pbzip2::Args),
}

/// The subcommand with which the kit starts its second process, see [`watch_over_kit`].
pub const GUARD_SUBCOMMAND: &str = guard::SUBCOMMAND;

/// The kit's second process: waits for the end of the kit and removes what it left behind.
pub fn watch_over_kit() {
    guard::watch(std::io::stdin().lock());
}

pub fn run(program: &Program) -> Result<Value> {
    guard::start()?;
    let report = run_program(program);
    guard::stop();
    report
}

fn run_program(program: &Program) -> Result<Value> {
    match program {
        Program::Hackbench(args) => hackbench::run(args),
        Program::Cyclictest(args) => cyclictest::run(args),
        Program::RtApp(args) => rt_app::run(args),
        Program::StressNg(args) => stress_ng::run(args),
        Program::Sysbench(args) => sysbench::run(args),
        Program::Nginx(args) => nginx::run(args),
        Program::Redis(args) => redis::run(args),
        Program::Pbzip2(args) => pbzip2::run(args),
    }
}
