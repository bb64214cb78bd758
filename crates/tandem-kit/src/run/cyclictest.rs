//! cyclictest: how late periodic timers wake their threads, from its histogram.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};

use super::{output, process};
use crate::arguments::{self, MAX_THREADS};

/// Arguments of `run cyclictest`.
#[derive(Parser)]
pub struct Args {
    /// Number of threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    secs: u32,
    /// Period of the timers in microseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    interval_us: u32,
    /// SCHED_FIFO priority; 0 stays in the normal class
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=99))]
    prio: u32,
    /// Latencies of at least this, in microseconds, count as the maximum
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    limit_us: u32,
}

pub fn run(args: &Args) -> Result<Value> {
    let program = process::find_program("cyclictest", "rt-tests")?;
    let dir = process::PrivateDir::new()?;
    let mut argv = vec!["-q".to_owned()];
    let flags = [
        ("-t", args.threads),
        ("-D", args.secs),
        ("-i", args.interval_us),
        ("-h", args.limit_us),
        ("-p", args.prio),
    ];
    for (flag, value) in flags.into_iter().filter(|&(flag, value)| flag != "-p" || value > 0) {
        argv.extend([flag.to_owned(), value.to_string()]);
    }
    let output = process::run(&program, &argv, &dir, Duration::from_secs(3 * u64::from(args.secs) + 60))?;
    let latencies = Latencies::parse(&output.stdout)?;
    Ok(json!({
        "workload": "cyclictest",
        "threads": args.threads,
        "secs": args.secs,
        "cycles": latencies.cycles,
        "overflows": latencies.overflows,
        "latency_us": {
            "p50": latencies.percentile(50.0),
            "p90": latencies.percentile(90.0),
            "p95": latencies.percentile(95.0),
            "p99": latencies.percentile(99.0),
            "max": latencies.max_us,
            "mean": output::round3(latencies.mean_us()),
        },
    }))
}

/// The merged histograms of all threads.
#[derive(Debug)]
struct Latencies {
    /// Latency in microseconds and its number of cycles, ascending.
    counts: Vec<(u64, u64)>,
    overflows: u64,
    cycles: u64,
    max_us: u64,
}

impl Latencies {
    fn parse(text: &str) -> Result<Self> {
        let mut counts = Vec::new();
        let (mut overflows, mut max_us) = (0, None);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# Max Latencies:") {
                max_us = numbers(rest).into_iter().max();
            } else if let Some(rest) = line.strip_prefix("# Histogram Overflows:") {
                overflows = numbers(rest).into_iter().fold(0, u64::saturating_add);
            } else if line.starts_with(|c: char| c.is_ascii_digit()) {
                if let [latency_us, threads @ ..] = numbers(line).as_slice() {
                    let count = threads.iter().copied().fold(0, u64::saturating_add);
                    if count > 0 {
                        counts.push((*latency_us, count));
                    }
                }
            }
        }
        let max_us = max_us.context("cyclictest: no \"# Max Latencies:\" line in its output")?;
        let cycles = counts.iter().map(|&(_, count)| count).fold(overflows, u64::saturating_add);
        ensure!(cycles > 0, "cyclictest: its histogram is empty");
        counts.sort_unstable();
        Ok(Latencies { counts, overflows, cycles, max_us })
    }

    fn percentile(&self, pct: f64) -> u64 {
        let rank = (pct / 100.0 * self.cycles as f64).ceil() as u64;
        let mut seen = 0;
        for &(latency_us, count) in &self.counts {
            seen += count;
            if seen >= rank {
                return latency_us;
            }
        }
        self.max_us
    }

    /// Overflows enter with the maximum, so that the mean is not too low.
    fn mean_us(&self) -> f64 {
        let within: f64 =
            self.counts.iter().map(|&(latency_us, count)| latency_us as f64 * count as f64).sum();
        (within + self.overflows as f64 * self.max_us as f64) / self.cycles as f64
    }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = "\
# /dev/cpu_dma_latency set to 0us
# Histogram
000001 000000\t000000
000002 000040\t000050
000003 000008\t000001
# Total: 000000048 000000051
# Min Latencies: 00002 00002
# Avg Latencies: 00002 00002
# Max Latencies: 00003 00120
# Histogram Overflows: 00000 00001
# Histogram Overflow at cycle number:
# Thread 0:
";

    #[test]
    fn the_histogram_of_all_threads() {
        let latencies = Latencies::parse(SAMPLE).unwrap();
        assert_eq!((latencies.cycles, latencies.overflows, latencies.max_us), (100, 1, 120));
        assert_eq!((latencies.percentile(50.0), latencies.percentile(99.0)), (2, 3));
        assert_eq!(latencies.percentile(99.5), 120, "an overflow is reported as the maximum");
        assert!((latencies.mean_us() - (180.0 + 27.0 + 120.0) / 100.0).abs() < 1e-9);
    }

    #[test]
    fn other_output_is_an_error() {
        assert!(Latencies::parse("T: 0 P: 0").unwrap_err().to_string().contains("Max Latencies"));
        assert!(Latencies::parse("# Max Latencies: 1").unwrap_err().to_string().contains("empty"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9# \\n\\ta-zM:]{0,200}") {
            let _ = Latencies::parse(&text);
        }
    }
}
