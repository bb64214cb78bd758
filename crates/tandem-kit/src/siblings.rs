//! `siblings`: how often threads of one process that are both runnable share a CPU while another one would be as good.
//!
//! A sample reads state and CPU of all threads one after the other, and then once more: if anything has changed meanwhile, it tells nothing
//! and is not counted.

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::arguments::{self, CpuList};

/// Longer than any `/proc/PID/task/TID/stat`.
const STAT_BYTES: usize = 1024;
/// Field of `stat` behind the name: state, and the CPU it is on. See proc_pid_stat(5).
const STATE: usize = 0;
const PROCESSOR: usize = 36;

/// Arguments of `siblings`.
#[derive(Parser)]
pub struct Args {
    /// Processes whose threads are siblings
    #[arg(long, value_name = "PID", required = true, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    processes: Vec<u32>,
    /// Only threads whose names begin so
    #[arg(long, default_value = "")]
    names: String,
    /// CPUs that they may use, e.g. 1-2
    #[arg(long)]
    cpus: CpuList,
    /// Duration in seconds
    #[arg(long, default_value = "10", value_parser = arguments::seconds)]
    secs: f64,
    /// From one sample to the next, in microseconds
    #[arg(long, default_value = "20000", value_parser = arguments::microseconds)]
    every_us: f64,
}

/// A thread in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    runnable: bool,
    cpu: usize,
}

/// A thread, and which process it is of.
struct Thread {
    process: usize,
    stat: File,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Two siblings were runnable.
    pairs: u64,
    /// They shared a CPU while another one was as good.
    stacked: u64,
}

impl Tally {
    /// `threads`: each with its process. A CPU is as good if with one of the two no more would be runnable there than are here.
    fn add(&mut self, threads: &[(usize, Seen)], cpus: &[usize]) {
        let runnable: Vec<_> = threads.iter().filter(|(_, seen)| seen.runnable).collect();
        let mut on: BTreeMap<usize, usize> = cpus.iter().map(|cpu| (*cpu, 0)).collect();
        for (_, seen) in &runnable {
            if let Some(there) = on.get_mut(&seen.cpu) {
                *there += 1;
            }
        }
        for (i, (process, one)) in runnable.iter().enumerate() {
            for (_, other) in runnable[i + 1..].iter().filter(|(of, _)| of == process) {
                self.pairs += 1;
                let here = on.get(&one.cpu).copied().unwrap_or(0);
                let as_good = on.iter().any(|(cpu, there)| *cpu != one.cpu && *there < here);
                self.stacked += u64::from(one.cpu == other.cpu && as_good);
            }
        }
    }
}

/// State and CPU from a thread's `stat`. Its name, in parentheses, may hold anything.
fn parse(stat: &str) -> Option<Seen> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    Some(Seen { runnable: *fields.get(STATE)? == "R", cpu: fields.get(PROCESSOR)?.parse().ok()? })
}

fn threads_of(process: usize, pid: u32, names: &str) -> Result<Vec<Thread>> {
    let tasks = Path::new("/proc").join(pid.to_string()).join("task");
    let mut threads = Vec::new();
    for task in std::fs::read_dir(&tasks).with_context(|| format!("process {pid}"))? {
        let task = task.with_context(|| format!("threads of process {pid}"))?.path();
        // It may have ended.
        let Ok(name) = std::fs::read_to_string(task.join("comm")) else { continue };
        if name.starts_with(names) {
            threads.push(Thread { process, stat: File::open(task.join("stat")).context("a thread's stat")? });
        }
    }
    ensure!(!threads.is_empty(), "process {pid} has no thread whose name begins with {names:?}");
    Ok(threads)
}

fn look(threads: &[Thread]) -> Result<Vec<(usize, Seen)>> {
    let one = |thread: &Thread| {
        let mut bytes = [0; STAT_BYTES];
        let length = thread.stat.read_at(&mut bytes, 0).context("a thread has ended")?;
        let seen =
            parse(&String::from_utf8_lossy(&bytes[..length])).context("a thread's stat makes no sense")?;
        Ok((thread.process, seen))
    };
    threads.iter().map(one).collect()
}

pub fn run(args: &Args) -> Result<Value> {
    let mut threads = Vec::new();
    for (process, pid) in args.processes.iter().enumerate() {
        threads.extend(threads_of(process, *pid, &args.names)?);
    }
    let every = Duration::from_secs_f64(args.every_us / 1e6);
    let until = Instant::now() + Duration::from_secs_f64(args.secs);
    let (mut tally, mut samples, mut unsteady) = (Tally::default(), 0_u64, 0_u64);
    while Instant::now() < until {
        let seen = look(&threads)?;
        if seen == look(&threads)? {
            tally.add(&seen, &args.cpus.0);
            samples += 1;
        } else {
            unsteady += 1;
        }
        std::thread::sleep(every);
    }
    ensure!(tally.pairs > 0, "no two siblings were runnable in any of {samples} samples");
    Ok(json!({
        "workload": "siblings",
        "threads": threads.len(),
        "samples": samples,
        "unsteady": unsteady,
        "pairs": tally.pairs,
        "stacked": tally.stacked,
        "stacked_pct": tally.stacked as f64 * 100.0 / tally.pairs as f64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(process: usize, runnable: bool, cpu: usize) -> (usize, Seen) {
        (process, Seen { runnable, cpu })
    }

    #[test]
    fn the_kernels_own_words_are_understood() {
        let cpu = crate::sys::allowed_cpus().unwrap()[0];
        crate::sys::pin_to_cpu(cpu).unwrap();
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        assert_eq!(parse(&stat), Some(Seen { runnable: true, cpu }));
    }

    #[test]
    fn a_name_may_hold_anything() {
        let rest = "1 ".repeat(PROCESSOR - 1);
        let stat = format!("12 (CPU 0/KVM) S) R {rest}7 0 0\n");
        assert_eq!(parse(&stat), Some(Seen { runnable: true, cpu: 7 }));
        assert_eq!(parse("12 (name) S 1 2"), None);
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn only_siblings_that_would_be_as_well_elsewhere_are_stacked() {
        let tally = |threads: &[(usize, Seen)]| {
            let mut tally = Tally::default();
            tally.add(threads, &[1, 2]);
            (tally.pairs, tally.stacked)
        };
        // CPU 2 is free.
        assert_eq!(tally(&[seen(0, true, 1), seen(0, true, 1)]), (1, 1));
        // Two others are there.
        assert_eq!(tally(&[seen(0, true, 1), seen(0, true, 1), seen(1, true, 2), seen(1, true, 2)]), (2, 0));
        // One other is there: each CPU would have one and two.
        assert_eq!(tally(&[seen(0, true, 1), seen(0, true, 1), seen(1, true, 2)]), (1, 1));
        // Apart, asleep, and of different processes.
        assert_eq!(tally(&[seen(0, true, 1), seen(0, true, 2)]), (1, 0));
        assert_eq!(tally(&[seen(0, true, 1), seen(0, false, 1)]), (0, 0));
        assert_eq!(tally(&[seen(0, true, 1), seen(1, true, 1)]), (0, 0));
    }
}
