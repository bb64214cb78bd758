//! `gaps`: a thread that reads the clock without pause on one CPU. When it is not running, its time line has a gap.
//! With a real-time policy only interrupts can cause gaps from inside the machine, so the others are preemption
//! intervals of the vCPU.

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{json, Value};

use crate::arguments;
use crate::histogram::Histogram;
use crate::sys;

/// Arguments of `gaps`.
#[derive(Parser)]
pub struct Args {
    /// CPU to watch
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..sys::MAX_CPUS as i64))]
    cpu: u32,
    /// Duration in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
    /// Minimum length of a gap, in microseconds
    #[arg(long, default_value = "200", value_parser = arguments::microseconds)]
    threshold_us: f64,
    /// Also list the first gaps, as [start, length] in microseconds
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    list: u32,
    /// Stay in the normal scheduling class
    #[arg(long)]
    no_fifo: bool,
}

/// Turns successive clock readings into gaps and the active periods between them.
struct TimeLine {
    threshold_ns: u64,
    start_ns: u64,
    last_ns: u64,
    active_since_ns: u64,
    gaps: Histogram,
    active: Histogram,
    listed: Vec<[f64; 2]>,
    list_limit: usize,
}

impl TimeLine {
    fn new(start_ns: u64, threshold_ns: u64, list_limit: usize) -> Self {
        TimeLine {
            threshold_ns,
            start_ns,
            last_ns: start_ns,
            active_since_ns: start_ns,
            gaps: Histogram::new(),
            active: Histogram::new(),
            listed: Vec::new(),
            list_limit,
        }
    }

    fn read(&mut self, now_ns: u64) {
        let gap_ns = now_ns - self.last_ns;
        if gap_ns >= self.threshold_ns {
            // The first active period began before the measurement, so its length is not known.
            if self.gaps.count() > 0 {
                self.active.record(self.last_ns - self.active_since_ns);
            }
            self.gaps.record(gap_ns);
            if self.listed.len() < self.list_limit {
                self.listed.push([(self.last_ns - self.start_ns) as f64 / 1e3, gap_ns as f64 / 1e3]);
            }
            self.active_since_ns = now_ns;
        }
        self.last_ns = now_ns;
    }

    fn inactive_share(&self) -> f64 {
        self.gaps.sum_ns() as f64 / (self.last_ns - self.start_ns).max(1) as f64
    }
}

pub fn run(args: &Args) -> Result<Value> {
    sys::pin_to_cpu(args.cpu as usize).with_context(|| format!("cannot run on CPU {}", args.cpu))?;
    // Not permitted without privilege. The report names the scheduling class of the reader.
    let fifo = !args.no_fifo && sys::set_fifo_policy(1).is_ok();
    let start_ns = sys::now_ns();
    let end_ns = start_ns + (args.secs * 1e9) as u64;
    let mut line = TimeLine::new(start_ns, (args.threshold_us * 1e3) as u64, args.list as usize);
    while line.last_ns < end_ns {
        line.read(sys::now_ns());
    }
    let mut report = json!({
        "workload": "gaps",
        "secs": args.secs,
        "cpu": args.cpu,
        "policy": if fifo { "fifo" } else { "normal" },
        "threshold_us": args.threshold_us,
        "gaps": line.gaps.count(),
        "inactive_share": line.inactive_share(),
        "gap_us": line.gaps.summary_us(),
        "active_us": line.active.summary_us(),
    });
    if args.list > 0 {
        report["list_us"] = json!(line.listed);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_time_line_gives_its_gaps_and_active_periods() {
        let mut line = TimeLine::new(1000, 100, 2);
        let mut now = 1000;
        for _ in 0..3 {
            for _ in 0..10 {
                now += 50;
                line.read(now);
            }
            now += 500;
            line.read(now);
        }
        assert_eq!(line.gaps.count(), 3);
        assert_eq!(line.gaps.sum_ns(), 1500);
        assert_eq!(line.active.count(), 2, "the first active period has no known beginning");
        assert_eq!(line.active.sum_ns(), 1000);
        assert!((line.inactive_share() - 0.5).abs() < 1e-9);
        assert_eq!(line.listed, [[0.5, 0.5], [1.5, 0.5]]);
    }
}
