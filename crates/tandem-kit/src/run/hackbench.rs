//! hackbench: groups of senders and receivers, and the time that all messages take.

use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use serde_json::{json, Value};

use super::{output, process};
use crate::arguments::MAX_THREADS;

/// Arguments of `run hackbench`.
#[derive(Parser)]
pub struct Args {
    /// Groups of senders and receivers
    #[arg(long, visible_alias = "threads", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    groups: u32,
    /// Senders per group, and as many receivers
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    fds: u32,
    /// Messages from each sender to each receiver of its group
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    loops: u32,
    /// Sockets instead of pipes
    #[arg(long)]
    sockets: bool,
    /// Processes instead of threads
    #[arg(long)]
    processes: bool,
    /// Time limit in seconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout_secs: u32,
}

pub fn run(args: &Args) -> Result<Value> {
    let program = process::find_program("hackbench", "rt-tests")?;
    let dir = process::PrivateDir::new()?;
    let mut argv = vec![if args.processes { "-P" } else { "-T" }.to_owned()];
    if !args.sockets {
        argv.push("-p".to_owned());
    }
    for (flag, value) in [("-g", args.groups), ("-f", args.fds), ("-l", args.loops)] {
        argv.extend([flag.to_owned(), value.to_string()]);
    }
    let output = process::run(&program, &argv, &dir, Duration::from_secs(u64::from(args.timeout_secs)))?;
    let seconds = output::expect_number_after(&output.stdout, "Time:", "hackbench")?;
    Ok(json!({
        "workload": "hackbench",
        "seconds": seconds,
        "tasks": 2 * args.groups * args.fds,
        "messages_per_s": messages(args) / seconds.max(0.001),
    }))
}

fn messages(args: &Args) -> f64 {
    f64::from(args.groups) * f64::from(args.fds) * f64::from(args.fds) * f64::from(args.loops)
}
