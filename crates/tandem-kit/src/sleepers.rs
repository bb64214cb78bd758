//! `sleepers`: threads that only sleep.

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{json, Value};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::arguments;

/// Stack of a sleeping thread, which needs hardly any.
const STACK_BYTES: usize = 16 << 10;

/// Arguments of `sleepers`.
#[derive(Parser)]
pub struct Args {
    /// Number of threads
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
}

pub fn run(args: &Args) -> Result<Value> {
    let end = (Mutex::new(false), Condvar::new());
    let started = Instant::now();
    let awake_after = std::thread::scope(|scope| -> Result<Duration> {
        let mut failure = None;
        for index in 0..args.threads {
            let sleeper = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || {
                let mut ended = end.0.lock().unwrap_or_else(PoisonError::into_inner);
                while !*ended {
                    ended = end.1.wait(ended).unwrap_or_else(PoisonError::into_inner);
                }
            });
            if let Err(error) = sleeper {
                failure = Some(anyhow::Error::new(error).context(format!("starting thread {index}")));
                break;
            }
        }
        if failure.is_none() {
            std::thread::sleep(Duration::from_secs_f64(args.secs).saturating_sub(started.elapsed()));
        }
        let waking = Instant::now();
        *end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        end.1.notify_all();
        match failure {
            Some(error) => Err(error),
            None => Ok(waking.elapsed()),
        }
    })
    .context("sleepers")?;
    Ok(json!({
        "workload": "sleepers",
        "threads": args.threads,
        "secs": started.elapsed().as_secs_f64(),
        "notify_ms": awake_after.as_secs_f64() * 1e3,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_end() {
        let report = run(&Args { threads: 50, secs: 0.05 }).unwrap();
        assert_eq!(report["threads"], 50);
        assert!(report["secs"].as_f64().unwrap() >= 0.05);
    }
}
