//! `live`: does the guest scheduler know at each moment whether a vCPU is preempted? One thread keeps the vCPU busy and
//! records when it could not run. Another thread, on another vCPU, queries the scheduler's own code repeatedly.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::Parser;
use serde_json::Value;

use crate::{arguments, bpf, sys};

/// Arguments of `live`.
#[derive(Parser)]
pub struct Args {
    /// Duration in seconds
    #[arg(long, default_value = "4", value_parser = arguments::seconds)]
    secs: f64,
}

/// A gap in the time line of the busy thread that is longer than this is a preemption interval of the vCPU, ns
/// (`TANDEM_INACTIVE_MIN_NS` in `policy/guest/vcap.h`).
const PREEMPTED_NS: u64 = 300_000;
/// Pause between two queries.
const PAUSE: Duration = Duration::from_micros(200);

/// The report, as one line of JSON.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
struct LiveReport {
    /// Number of queries.
    samples: usize,
    /// Part of them with a correct answer, 0 to 1.
    agreement: f64,
    /// Part of them at which the vCPU was preempted, 0 to 1.
    preempted: f64,
    /// Part of all queries with the answer "running" while it was preempted, and the other way round.
    missed: f64,
    invented: f64,
    /// Its preemption intervals, ms: median and 10th percentile.
    preemption_ms: [f64; 2],
}

/// Watches the last usable CPU from the first one.
pub fn run(args: &Args) -> Result<Value> {
    let cpus = sys::allowed_cpus()?;
    let (Some(&watcher), Some(&watched)) = (cpus.first(), cpus.last().filter(|_| cpus.len() > 1)) else {
        bail!("it takes two CPUs");
    };
    let program = bpf::program("guest_live").context("is a guest scheduler running?")?;
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || gaps(watched, &stop))
    };
    let answers = sys::pin_to_cpu(watcher)
        .with_context(|| format!("cannot use CPU {watcher}"))
        .and_then(|()| ask(&program, watched as u32, Duration::from_secs_f64(args.secs)));
    stop.store(true, Ordering::Relaxed);
    let gaps = busy.join().ok().flatten().with_context(|| format!("cannot use CPU {watched}"))?;
    Ok(serde_json::to_value(compare(&answers?, &gaps))?)
}

/// Intervals in which the busy thread could not run, ascending. `None` if this thread may not run on the CPU.
fn gaps(cpu: usize, stop: &AtomicBool) -> Option<Vec<(u64, u64)>> {
    sys::pin_to_cpu(cpu).ok()?;
    let mut gaps = Vec::new();
    let mut last = sys::now_ns();
    while !stop.load(Ordering::Relaxed) {
        let now = sys::now_ns();
        if now - last > PREEMPTED_NS {
            gaps.push((last, now));
        }
        last = now;
    }
    Some(gaps)
}

/// One answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer {
    at_ns: u64,
    off: bool,
    /// Steal of the vCPU. The host updates it when the vCPU is scheduled in.
    steal_ns: u64,
}

/// Queries with a `struct live_query` (`bpf/guest/intf.h`): the CPU, whether it is preempted (4 bytes each), its steal
/// (8 bytes).
fn ask(program: &bpf::Program, cpu: u32, length: Duration) -> Result<Vec<Answer>> {
    // Let the busy thread start first.
    std::thread::sleep(Duration::from_millis(100));
    let end_ns = sys::now_ns() + length.as_nanos() as u64;
    let mut answers = Vec::new();
    while sys::now_ns() < end_ns {
        let mut query = [0; 16];
        query[..4].copy_from_slice(&cpu.to_ne_bytes());
        let before = sys::now_ns();
        program.run(&mut query)?;
        let after = sys::now_ns();
        // If the query took too long, the time of the answer is not known.
        if after - before < PREEMPTED_NS {
            let at_ns = before + (after - before) / 2;
            let mut steal = [0; 8];
            steal.copy_from_slice(&query[8..]);
            let off = query[4..8] != [0; 4];
            answers.push(Answer { at_ns, off, steal_ns: u64::from_ne_bytes(steal) });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(answers)
}

/// Gaps that the host's accounting (steal) confirms. On an emulated machine an interrupt may take as long as a
/// preemption interval.
fn preemptions(answers: &[Answer], gaps: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let stolen = |(from, to): (u64, u64)| {
        let after = answers.partition_point(|a| a.at_ns <= to);
        let before = answers.partition_point(|a| a.at_ns < from).saturating_sub(1);
        let steal = |at: usize| answers.get(at).map(|a| a.steal_ns);
        let passed = steal(after).zip(steal(before)).map(|(after, before)| after.saturating_sub(before));
        passed.is_some_and(|ns| ns >= (to - from) / 2)
    };
    gaps.iter().copied().filter(|gap| stolen(*gap)).collect()
}

fn compare(answers: &[Answer], gaps: &[(u64, u64)]) -> LiveReport {
    let gaps = preemptions(answers, gaps);
    let preempted_at = |t: u64| {
        let next = gaps.partition_point(|(_, end)| *end < t);
        gaps.get(next).is_some_and(|(from, _)| *from <= t)
    };
    let count = |test: &dyn Fn(bool, bool) -> bool| {
        answers.iter().filter(|a| test(preempted_at(a.at_ns), a.off)).count()
    };
    let part = |n: usize| if answers.is_empty() { 0.0 } else { n as f64 / answers.len() as f64 };
    let mut lengths: Vec<u64> = gaps.iter().map(|(from, to)| to - from).collect();
    lengths.sort_unstable();
    let length_ms = |at: usize| lengths.get(at).map_or(0.0, |ns| *ns as f64 / 1e6);
    LiveReport {
        samples: answers.len(),
        agreement: part(count(&|preempted, off| preempted == off)),
        preempted: part(count(&|preempted, _| preempted)),
        missed: part(count(&|preempted, off| preempted && !off)),
        invented: part(count(&|preempted, off| !preempted && off)),
        preemption_ms: [length_ms(lengths.len() / 2), length_ms(lengths.len() / 10)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_held_against_the_gaps() {
        let answer = |at_ns, off, steal_ns| Answer { at_ns, off, steal_ns };
        let gaps = [(100, 200), (400, 500), (600, 700)];
        let answers = [
            answer(50, false, 0),
            answer(150, true, 0),
            answer(200, true, 0),
            answer(300, true, 95),
            answer(450, false, 95),
            answer(550, false, 190),
            // No steal confirms the third gap.
            answer(650, false, 190),
            answer(750, false, 190),
        ];
        let report = compare(&answers, &gaps);
        assert_eq!((report.samples, report.agreement, report.preempted), (8, 0.75, 0.375));
        assert_eq!((report.missed, report.invented), (0.125, 0.125));
        assert_eq!(compare(&[], &gaps).agreement, 0.0);
    }
}
