//! `storm`: messengers wake workers, in the manner of schbench.
//!
//! Each messenger has its own workers. A worker reports to its messenger and sleeps. The messenger records the time
//! and wakes every worker that has reported. A worker that runs again records the wake-up latency, does its work and
//! reports again.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Mutex;

use anyhow::{ensure, Result};
use clap::Parser;
use serde_json::{json, Value};

use crate::arguments::{self, MAX_THREADS};
use crate::counted_work::{work, RateArg};
use crate::crew::{self, lock};
use crate::histogram::Histogram;
use crate::sys;

/// Arguments of `storm`.
#[derive(Parser)]
pub struct Args {
    /// Number of messengers
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    messengers: u32,
    /// Number of workers of each messenger
    #[arg(long, visible_alias = "threads", default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    workers: u32,
    /// Duration in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
    /// Work after each message, in microseconds of undisturbed CPU time
    #[arg(long, default_value = "100", value_parser = arguments::microseconds)]
    work_us: f64,
    #[command(flatten)]
    rate: RateArg,
}

/// A flag that one thread sleeps on until another sets it.
#[derive(Default)]
struct Bell(AtomicU32);

impl Bell {
    fn ring(&self) {
        self.0.store(1, Ordering::SeqCst);
        sys::futex_wake(&self.0, 1);
    }

    /// Sleeps until rung or stopped, and resets the bell. `false` if stopped: the stopping thread sets `stop` before it
    /// rings every bell, so either this load or the next call sees it.
    fn wait(&self, stop: &AtomicBool) -> bool {
        while self.0.swap(0, Ordering::SeqCst) == 0 {
            if stop.load(Ordering::SeqCst) {
                return false;
            }
            sys::futex_wait(&self.0, 0);
        }
        !stop.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
struct Worker {
    bell: Bell,
    woken_ns: AtomicU64,
}

#[derive(Default)]
struct Messenger {
    bell: Bell,
    reported: Mutex<Vec<usize>>,
}

struct Storm {
    messengers: Vec<Messenger>,
    workers: Vec<Worker>,
    iters: u64,
    stop: AtomicBool,
}

pub fn run(args: &Args) -> Result<Value> {
    let workers = args.messengers as usize * args.workers as usize;
    ensure!(
        workers <= 8 * MAX_THREADS as usize,
        "--messengers {} with --workers {} makes {workers} workers; at most {} are possible",
        args.messengers,
        args.workers,
        8 * MAX_THREADS
    );
    let rate = args.rate.measured();
    let storm = Storm {
        messengers: (0..args.messengers).map(|_| Messenger::default()).collect(),
        workers: (0..workers).map(|_| Worker::default()).collect(),
        iters: rate.iters(args.work_us),
        stop: AtomicBool::new(false),
    };
    let messengers = storm.messengers.len();
    // Threads: one that ends the run, the messengers, the workers.
    let body = |index: usize, start_ns: u64| match index.checked_sub(1) {
        None => storm.end_at(start_ns + (args.secs * 1e9) as u64),
        Some(index) if index < messengers => storm.deliver(index),
        Some(index) => storm.answer(index - messengers),
    };
    let seen = crew::run_together("storm", 1 + messengers + workers, |_| Ok(()), body)?;
    let mut wakeups = Histogram::new();
    seen.iter().flatten().for_each(|one| wakeups.merge(one));
    Ok(json!({
        "workload": "storm",
        "secs": args.secs,
        "messengers": args.messengers,
        "workers": args.workers,
        "asked_work_us": args.work_us,
        "iters_per_us": rate.in_report(),
        "messages": wakeups.count(),
        "messages_per_s": wakeups.count() as f64 / args.secs,
        "wakeup_us": wakeups.summary_us(),
    }))
}

impl Storm {
    fn end_at(&self, end_ns: u64) -> Option<Histogram> {
        sys::sleep_until_ns(end_ns);
        self.stop.store(true, Ordering::SeqCst);
        self.messengers.iter().for_each(|messenger| messenger.bell.ring());
        self.workers.iter().for_each(|worker| worker.bell.ring());
        None
    }

    fn deliver(&self, index: usize) -> Option<Histogram> {
        let messenger = &self.messengers[index];
        while messenger.bell.wait(&self.stop) {
            let reported = std::mem::take(&mut *lock(&messenger.reported));
            for worker in reported {
                let worker = &self.workers[worker];
                worker.woken_ns.store(sys::now_ns(), Ordering::SeqCst);
                worker.bell.ring();
            }
        }
        None
    }

    fn answer(&self, index: usize) -> Option<Histogram> {
        let worker = &self.workers[index];
        let messenger = &self.messengers[index % self.messengers.len()];
        let mut wakeups = Histogram::new();
        loop {
            lock(&messenger.reported).push(index);
            messenger.bell.ring();
            if !worker.bell.wait(&self.stop) {
                return Some(wakeups);
            }
            wakeups.record(sys::now_ns().saturating_sub(worker.woken_ns.load(Ordering::SeqCst)));
            work(self.iters);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_flow_and_the_storm_ends() {
        let args = Args::parse_from("storm --messengers 2 --workers 3 --secs 0.2 --work-us 20".split(' '));
        let report = run(&args).unwrap();
        assert!(report["messages"].as_u64().unwrap() >= 6, "{report}");
        assert!(report["wakeup_us"]["p50"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn too_large_a_storm_is_refused() {
        let args = Args::parse_from("storm --messengers 1024 --workers 1024".split(' '));
        assert!(run(&args).unwrap_err().to_string().contains("at most 8192"));
    }
}
