//! Is a vCPU that is woken served at once? A thread on each vCPU sleeps again and again, and measures its wake-up
//! latency.
//!
//! A neighbour that preempts a vCPU whatever the guest does (a real-time program, a quota) preempts it as often at
//! these moments as at others: the part of wake-ups that is served at once is the vCPU's share. A fair host considers
//! who has slept: it either lets the woken vCPU preempt the neighbour, and serves it at once, or lets the neighbour's
//! slice end first, and never does.

use crate::core::{Core, Here};
use crate::{sys, ProbeError};
use std::time::{Duration, Instant};

/// Sleeps are this long, and up to twice as long, so that they do not follow a period of the host by chance.
const SLEEP: Duration = Duration::from_millis(12);
/// The n-th sleep is longer by n times this part of [`SLEEP`], modulo [`SLEEP`]: never in phase with anything for long.
const STEP: f64 = 0.618;
/// Minimum number of wake-ups for the part that is served at once.
const ENOUGH: usize = 20;
/// A wake-up that is later than the quickest by this waited, ns (`TANDEM_INACTIVE_MIN_NS` in `policy/guest/vcap.h`).
const WAITED_NS: u64 = 300_000;

/// Wake-ups of one vCPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wakes {
    /// Its number.
    pub cpu: usize,
    /// Number of wake-ups.
    pub count: usize,
    /// Part of them that was served at once, 0 to 1; `None` if there are too few.
    pub at_once: Option<f64>,
    /// Their mean wait, ns.
    pub wait_ns: f64,
}

impl Wakes {
    /// From the latency of each wake-up, ns. `usual_ns` is the latency on this machine without any wait.
    fn of(cpu: usize, late_ns: &[u64], usual_ns: u64) -> Option<Self> {
        let waits = late_ns.iter().map(|late| late.saturating_sub(usual_ns));
        let count = late_ns.len();
        let part = |sum: f64| sum / count as f64;
        (count > 0).then(|| Self {
            cpu,
            count,
            at_once: (count >= ENOUGH)
                .then(|| part(waits.clone().filter(|wait| *wait < WAITED_NS).count() as f64)),
            wait_ns: part(waits.map(|wait| wait as f64).sum()),
        })
    }
}

/// Wakes all these CPUs repeatedly for `length`. CPUs that cannot be used are left out.
///
/// # Errors
/// No thread could be started.
pub fn sample(cpus: &[usize], length: Duration) -> Result<Vec<Wakes>, ProbeError> {
    let started = Instant::now();
    let mut threads = Vec::with_capacity(cpus.len());
    for (number, &cpu) in cpus.iter().enumerate() {
        // The threads wake up at different moments.
        let first = SLEEP.mul_f64((number as f64 * STEP).fract());
        let thread = std::thread::Builder::new()
            .name(format!("wake/{cpu}"))
            .stack_size(128 * 1024)
            .spawn(move || {
                sys::pin_to(cpu).ok()?;
                // Without the privilege the guest's own tasks delay the thread, too; the kernel's accounting tells by
                // how much.
                let _ = sys::set_policy(sys::Policy::RealTime);
                Some(on_core(&mut Here::new(cpu, started), first, length))
            })
            .map_err(ProbeError::Thread)?;
        threads.push((cpu, thread));
    }
    let late: Vec<(usize, Vec<u64>)> =
        threads.into_iter().filter_map(|(cpu, thread)| Some((cpu, thread.join().ok()??))).collect();
    let usual_ns = late.iter().flat_map(|(_, late)| late).copied().min().unwrap_or(0);
    Ok(late.iter().filter_map(|(cpu, late)| Wakes::of(*cpu, late, usual_ns)).collect())
}

/// Latency of each wake-up, ns, without the time that the thread waited for other tasks of the guest.
///
/// The wake-up times do not depend on when the thread woke up before, or they would hit preemption intervals more
/// rarely than by chance. A wake-up that was due while the thread still waited for an earlier one has waited, too.
fn on_core(core: &mut impl Core, first: Duration, length: Duration) -> Vec<u64> {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let (sleep, begin) = (ns(SLEEP), core.now_ns());
    let end = begin.saturating_add(ns(length));
    let mut more = ns(first) % sleep;
    let mut due = begin + sleep + more;
    let mut late = Vec::new();
    let mut before = core.account().unwrap_or_default().waited_ns;
    while due < end {
        core.sleep_until(due);
        let after = core.now_ns().saturating_sub(due);
        let all = core.account().unwrap_or_default().waited_ns;
        late.push(after.saturating_sub(all.saturating_sub(before)));
        before = all;
        more = (more + (sleep as f64 * STEP) as u64) % sleep;
        due += sleep + more;
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::core::EmulatedCore;

    #[test]
    fn waits_are_counted_beyond_what_is_usual() {
        let late = [50_000, 50_000, 3_050_000, 1_050_000];
        let wakes = Wakes::of(3, &late.repeat(5), 50_000).unwrap();
        assert_eq!((wakes.cpu, wakes.count, wakes.at_once, wakes.wait_ns), (3, 20, Some(0.5), 1_000_000.0));
        assert_eq!(Wakes::of(3, &late, 50_000).unwrap().at_once, None, "too few");
        assert_eq!(Wakes::of(3, &[], 0), None);
    }

    #[test]
    fn a_host_that_does_not_look_serves_as_many_at_once_as_its_share() {
        for (on_ms, off_ms, irregular) in [(8, 8, false), (3, 7, false), (8, 8, true)] {
            let mut core = EmulatedCore::with_turns(7, on_ms * 1_000_000, off_ms * 1_000_000);
            core.irregular = irregular;
            let late = on_core(&mut core, SLEEP / 3, Duration::from_secs(30));
            let wakes = Wakes::of(0, &late, 0).unwrap();
            let share = on_ms as f64 / (on_ms + off_ms) as f64;
            assert!((wakes.at_once.unwrap() - share).abs() < 0.08, "{wakes:?}, share {share}");
        }
    }

    #[test]
    fn the_machine_at_hand_is_woken() {
        let cpus = sys::usable_cpus().unwrap();
        let wakes = sample(&cpus, Duration::from_millis(100)).unwrap();
        assert_eq!(wakes.len(), cpus.len());
        assert!(wakes.iter().all(|wake| (1..=8).contains(&wake.count) && wake.at_once.is_none()));
    }
}
