//! `barrier`: threads that each do a piece of work and then wait for the slowest one, blocking or spinning.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serde_json::{json, Value};

use crate::arguments::{self, MAX_THREADS};
use crate::counted_work::{work, RateArg};
use crate::histogram::Histogram;
use crate::{crew, sys};

/// How threads wait at the barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Sleep in the kernel
    Block,
    /// Spin on the CPU
    Spin,
}

/// Arguments of `barrier`.
#[derive(Parser)]
pub struct Args {
    /// Number of threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Work of every thread in every round, in microseconds of undisturbed CPU time
    #[arg(long, default_value = "500", value_parser = arguments::microseconds)]
    work_us: f64,
    /// Duration in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
    /// How to wait
    #[arg(long, value_enum, default_value = "block")]
    kind: Kind,
    #[command(flatten)]
    rate: RateArg,
}

/// A reusable barrier. The last thread to arrive runs a piece of code before the others continue.
struct Barrier {
    kind: Kind,
    members: u32,
    arrived: AtomicU32,
    /// Number of completed rounds; the futex word that sleepers wait on.
    generation: AtomicU32,
}

impl Barrier {
    fn new(kind: Kind, members: u32) -> Self {
        Barrier { kind, members, arrived: AtomicU32::new(0), generation: AtomicU32::new(0) }
    }

    fn wait(&self, as_last: impl FnOnce()) {
        // Read before arriving: after that the round may end at any time.
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            as_last();
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::Release);
            if self.kind == Kind::Block {
                sys::futex_wake(&self.generation, u32::MAX);
            }
            return;
        }
        while self.generation.load(Ordering::Acquire) == generation {
            match self.kind {
                Kind::Block => sys::futex_wait(&self.generation, generation),
                Kind::Spin => std::hint::spin_loop(),
            }
        }
    }
}

pub fn run(args: &Args) -> Result<Value> {
    let rate = args.rate.measured();
    let iters = rate.iters(args.work_us);
    let barrier = Barrier::new(args.kind, args.threads);
    let over = AtomicBool::new(false);
    let body = |_, start_ns| {
        let end_ns = start_ns + (args.secs * 1e9) as u64;
        let mut rounds = Histogram::new();
        let mut previous_ns = start_ns;
        while !over.load(Ordering::Acquire) {
            work(iters);
            barrier.wait(|| over.store(sys::now_ns() >= end_ns, Ordering::Release));
            let now_ns = sys::now_ns();
            rounds.record(now_ns - previous_ns);
            previous_ns = now_ns;
        }
        (rounds, previous_ns - start_ns)
    };
    let seen = crew::run_together("barrier", args.threads as usize, |_| Ok(()), body)?;
    // Every thread measured the same rounds, so the lengths from the first thread do.
    let (rounds, elapsed_ns) = &seen[0];
    Ok(json!({
        "workload": "barrier",
        "secs": args.secs,
        "threads": args.threads,
        "kind": if args.kind == Kind::Block { "block" } else { "spin" },
        "asked_work_us": args.work_us,
        "iters_per_us": rate.in_report(),
        "rounds": rounds.count(),
        "rounds_per_s": rounds.count() as f64 * 1e9 / (*elapsed_ns).max(1) as f64,
        "round_us": rounds.summary_us(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nobody_passes_before_all_have_arrived() {
        for kind in [Kind::Block, Kind::Spin] {
            let (members, rounds) = (3, 200);
            let barrier = Barrier::new(kind, members);
            let (arrivals, last_calls) = (AtomicU64::new(0), AtomicU64::new(0));
            let in_step = crew::run_together(
                "b",
                members as usize,
                |_| Ok(()),
                |_, _| {
                    (1..=rounds).all(|round| {
                        arrivals.fetch_add(1, Ordering::SeqCst);
                        barrier.wait(|| _ = last_calls.fetch_add(1, Ordering::SeqCst));
                        arrivals.load(Ordering::SeqCst) >= round * u64::from(members)
                    })
                },
            );
            assert_eq!(in_step.unwrap(), [true; 3], "{kind:?}");
            assert_eq!(last_calls.load(Ordering::SeqCst), rounds);
        }
    }

    #[test]
    fn reports_rounds_over_the_whole_time() {
        let args = Args::parse_from("barrier --threads 2 --work-us 200 --secs 0.1 --kind spin".split(' '));
        let report = run(&args).unwrap();
        let number = |what: &str| report[what].as_f64().unwrap();
        assert!(number("rounds") >= 1.0 && report["kind"] == "spin", "{report}");
        let mean_round_us = report["round_us"]["mean"].as_f64().unwrap();
        assert!((mean_round_us * number("rounds_per_s") / 1e6 - 1.0).abs() < 0.01, "{report}");
    }
}
