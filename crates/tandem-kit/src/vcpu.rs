//! `vcpu`: a VM of one vCPU that computes, whose thread does something else in between, without a VMM around it.
//!
//! What a scheduler of vCPUs has to tell apart: a thread while it runs a vCPU, and the same thread while it does not.

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{json, Value};
use std::time::{Duration, Instant};

use crate::arguments;
use crate::sys::Vm;

/// Length of a sleep while the thread runs no vCPU: it is switched to hundreds of times per second.
const NAP: Duration = Duration::from_millis(2);

/// Arguments of `vcpu`.
#[derive(Parser)]
pub struct Args {
    /// For how long the vCPU runs at a time, in seconds
    #[arg(long, default_value = "2", value_parser = arguments::seconds)]
    run_secs: f64,
    /// For how long its thread does something else then, in seconds
    #[arg(long, default_value = "2", value_parser = arguments::seconds)]
    rest_secs: f64,
    /// How often
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    times: u32,
}

pub fn run(args: &Args) -> Result<Value> {
    let mut vm = Vm::new().context("making a VM")?;
    let mut runs = 0_u64;
    for _ in 0..args.times {
        let until = Instant::now() + Duration::from_secs_f64(args.run_secs);
        while Instant::now() < until {
            vm.run().context("running the vCPU")?;
            runs += 1;
        }
        let until = Instant::now() + Duration::from_secs_f64(args.rest_secs);
        while Instant::now() < until {
            std::thread::sleep(NAP);
        }
    }
    Ok(json!({ "workload": "vcpu", "runs": runs }))
}
