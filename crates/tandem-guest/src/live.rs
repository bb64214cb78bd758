//! Is what the scheduler believes of a vCPU at a moment true? A thread keeps the vCPU busy and notes when it could
//! not run; another asks the scheduler's own code again and again, from another vCPU.

use crate::bpf::{intf, BpfSkel};
use crate::{sys, GuestError};
use libbpf_rs::ProgramInput;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A gap in the time line of the busy thread that is longer than this is an absence of the vCPU, ns
/// (`TANDEM_INACTIVE_MIN_NS` in `policy/vcap.h`).
const ABSENT_NS: u64 = intf::TANDEM_INACTIVE_MIN_NS as u64;
/// Pause between two questions.
const PAUSE: Duration = Duration::from_micros(200);

/// What came out, as one line of JSON.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct LiveReport {
    /// Questions asked.
    samples: usize,
    /// Part of them whose answer was true, 0 to 1.
    agreement: f64,
    /// Part of the time in which the vCPU was absent, 0 to 1.
    absent: f64,
    /// Part of the answers that took it for present while it was absent, and the other way round.
    missed: f64,
    invented: f64,
    /// Length of its absences, ms: median and 10th percentile.
    absence_ms: [f64; 2],
}

impl std::fmt::Display for LiveReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
    }
}

/// Watches the last of the online CPUs from the first.
pub(crate) fn check(
    skel: &BpfSkel<'_>,
    online: &[usize],
    length: Duration,
) -> Result<LiveReport, GuestError> {
    let (Some(&watcher), Some(&watched)) = (online.first(), online.last().filter(|_| online.len() > 1))
    else {
        return Err(GuestError::LiveCheck("it takes two CPUs"));
    };
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let stop = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("live".into())
            .spawn(move || gaps(watched, &stop))
            .map_err(GuestError::Thread)?
    };
    let answers = tandem_probe::sys::pin_to(watcher)
        .map_err(|_| GuestError::LiveCheck("the first CPU cannot be used"))
        .and_then(|()| ask(skel, watched, length));
    stop.store(true, Ordering::Relaxed);
    let gaps = busy.join().map_err(|_| GuestError::LiveCheck("the busy thread failed"))?;
    Ok(compare(&answers?, &gaps.ok_or(GuestError::LiveCheck("the last CPU cannot be used"))?))
}

/// When the vCPU could not run, ascending. None: this thread may not run there.
fn gaps(cpu: usize, stop: &AtomicBool) -> Option<Vec<(u64, u64)>> {
    tandem_probe::sys::pin_to(cpu).ok()?;
    let mut gaps = Vec::new();
    let mut last = sys::monotonic_ns();
    while !stop.load(Ordering::Relaxed) {
        let now = sys::monotonic_ns();
        if now - last > ABSENT_NS {
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
    /// Steal of the vCPU; the host writes it when the vCPU comes back.
    steal_ns: u64,
}

fn ask(skel: &BpfSkel<'_>, cpu: usize, length: Duration) -> Result<Vec<Answer>, GuestError> {
    let size = std::mem::size_of::<intf::live_query>();
    let (cpu_at, off_at) =
        (std::mem::offset_of!(intf::live_query, cpu), std::mem::offset_of!(intf::live_query, off));
    let steal_at = std::mem::offset_of!(intf::live_query, steal_ns);
    // The busy thread gets going first.
    std::thread::sleep(Duration::from_millis(100));
    let end = sys::monotonic_ns().saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
    let mut answers = Vec::new();
    while sys::monotonic_ns() < end && !sys::termination_requested() {
        let mut query = vec![0u8; size];
        query[cpu_at..cpu_at + 4].copy_from_slice(&(cpu as u32).to_ne_bytes());
        let before = sys::monotonic_ns();
        let input = ProgramInput { context_in: Some(&mut query), ..ProgramInput::default() };
        skel.progs.guest_live.test_run(input).map_err(GuestError::Map)?;
        let after = sys::monotonic_ns();
        // Whoever was interrupted meanwhile does not know when it was answered.
        if after - before < ABSENT_NS {
            let mut steal = [0; 8];
            steal.copy_from_slice(&query[steal_at..steal_at + 8]);
            let at_ns = before + (after - before) / 2;
            answers.push(Answer { at_ns, off: query[off_at] != 0, steal_ns: u64::from_ne_bytes(steal) });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(answers)
}

/// Gaps that the host's own account explains. (On an emulated machine an interrupt may take as long as an absence.)
fn absences(answers: &[Answer], gaps: &[(u64, u64)]) -> Vec<(u64, u64)> {
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
    let gaps = absences(answers, gaps);
    let absent_at = |t: u64| {
        let next = gaps.partition_point(|(_, end)| *end < t);
        gaps.get(next).is_some_and(|(from, _)| *from <= t)
    };
    let count = |test: &dyn Fn(bool, bool) -> bool| {
        answers.iter().filter(|a| test(absent_at(a.at_ns), a.off)).count()
    };
    let part = |n: usize| if answers.is_empty() { 0.0 } else { n as f64 / answers.len() as f64 };
    let mut lengths: Vec<u64> = gaps.iter().map(|(from, to)| to - from).collect();
    lengths.sort_unstable();
    let length_ms = |at: usize| lengths.get(at).map_or(0.0, |ns| *ns as f64 / 1e6);
    LiveReport {
        samples: answers.len(),
        agreement: part(count(&|absent, off| absent == off)),
        absent: part(count(&|absent, _| absent)),
        missed: part(count(&|absent, off| absent && !off)),
        invented: part(count(&|absent, off| !absent && off)),
        absence_ms: [length_ms(lengths.len() / 2), length_ms(lengths.len() / 10)],
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
            // The host knows nothing of this one.
            answer(650, false, 190),
            answer(750, false, 190),
        ];
        let report = compare(&answers, &gaps);
        assert_eq!((report.samples, report.agreement, report.absent), (8, 0.75, 0.375));
        assert_eq!((report.missed, report.invented), (0.125, 0.125));
        assert_eq!(compare(&[], &gaps).agreement, 0.0);
    }
}
