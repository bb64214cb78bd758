//! Share of a pCPU that each vCPU gets, and the speed of its core (vSched, section 3.1, vcap): a thread on each vCPU,
//! all at the same time, for a moment.
//!
//! The thread counts work in blocks and reads the clock between them. If it wanted to run and did not, either another
//! task of the guest ran (the kernel says how long it waited for these) or the host had preempted the vCPU. The length
//! of an uninterrupted block is the speed of the core: this tells a small share of a fast core from all of a slow one.

use crate::activity::{Activity, Preemptions};
use crate::core::{Core, Here};
use crate::{sys, ProbeError};
use std::io::Error;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// If a block takes this much longer than usual, the thread was not running meanwhile, ns. Interrupts, and the exits
/// that they cost, are shorter; a host's slices are longer (`TANDEM_INACTIVE_MIN_NS` in `policy/guest/vcap.h`).
const AWAY_NS: u64 = 300_000;

/// No core does a block in less time, ns.
const LEAST_BLOCK_NS: u64 = 1_000;

/// For samples of this length the kernel's accounting of steal (steps of 10 ms) is exact to two points.
const LONG_ENOUGH_NS: u64 = 500_000_000;

/// One vCPU in one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its number.
    pub cpu: usize,
    /// Length of the sample, ns.
    pub wall_ns: u64,
    /// Time in which neither the thread nor another task of the guest ran, ns.
    pub away_ns: u64,
    /// Steal by the kernel's accounting; `None` if there is none, or if the sample is too short for its steps.
    pub steal: Option<Steal>,
    /// Time in which the guest ran other tasks, ns.
    pub waited_ns: u64,
    /// The vCPU's preemption intervals.
    pub preemptions: Preemptions,
    /// When it ran, ns since the sample of all CPUs began.
    pub activity: Activity,
    /// Time of one uninterrupted block of work, ns; `None` if there was none.
    pub block_ns: Option<f64>,
}

/// Steal by the kernel's accounting, between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steal {
    /// Steal, ns.
    pub ns: u64,
    /// Time between the two readings, ns: on a vCPU of very small share, reading takes a while.
    pub wall_ns: u64,
}

impl Sample {
    /// Share of a pCPU, 0 to 1: the part in which it ran of the time in which it wanted to run. `None` if that time is
    /// too short.
    pub fn share(&self) -> Option<f64> {
        let part = |missing: u64, of: u64| 1.0 - (missing as f64 / of as f64).clamp(0.0, 1.0);
        if let Some(steal) = self.steal.filter(|steal| steal.wall_ns > 0) {
            // The vCPU wanted to run all the time, for this thread or for other tasks.
            return Some(part(steal.ns, steal.wall_ns));
        }
        // While other tasks of the guest ran, the vCPU ran, too. That time does not count for this thread: it cannot
        // observe preemptions in it.
        let wanted = self.wall_ns.saturating_sub(self.waited_ns);
        (wanted > self.wall_ns / 20).then(|| part(self.away_ns, wanted))
    }

    /// Core speed relative to the fastest of a set, 0 to 1.
    pub fn speed(&self, fastest_block_ns: f64) -> Option<f64> {
        self.block_ns.map(|block| (fastest_block_ns / block).clamp(0.0, 1.0))
    }
}

/// Samples all these CPUs at once for `length`.
///
/// # Errors
/// No thread could be started, or none of the CPUs can be used.
pub fn sample(cpus: &[usize], length: Duration, policy: sys::Policy) -> Result<Vec<Sample>, ProbeError> {
    let started = Instant::now();
    // No thread begins before all have been started.
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
    let mut threads = Vec::with_capacity(cpus.len());
    let mut failed = None;
    for &cpu in cpus {
        let gate = Arc::clone(&gate);
        let spawned =
            std::thread::Builder::new().name(format!("vcap/{cpu}")).stack_size(128 * 1024).spawn(move || {
                let pinned = sys::pin_to(cpu);
                // SCHED_IDLE is always permitted. Without the privilege for real time the thread samples as an
                // ordinary one.
                let _ = sys::set_policy(policy);
                drop(gate.read().unwrap_or_else(PoisonError::into_inner));
                let sample = pinned.map(|()| on_core(&mut Here::new(cpu, started), length));
                // If the CPU went offline meanwhile, the measurements are those of another CPU.
                let stayed =
                    if sys::is_on(cpu) { Ok(()) } else { Err(Error::from_raw_os_error(libc::ENODEV)) };
                sample
                    .and_then(|sample| stayed.map(|()| sample))
                    .map_err(|error| ProbeError::Cpu { cpu, error })
            });
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => failed = Some(ProbeError::Thread(error)),
        }
    }
    drop(closed);
    let mut samples = Vec::with_capacity(threads.len());
    for thread in threads {
        match thread.join() {
            Ok(Ok(sample)) => samples.push(sample),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => {}
        }
    }
    match failed {
        Some(error) if samples.is_empty() => Err(error),
        _ => Ok(samples),
    }
}

/// Gaps that the host caused: as many of the longest ones as the steal of that time accounts for. The shorter ones are
/// interrupts and other work of the machine itself, which takes long on an emulated one. Without steal reporting: all.
fn made_by_host(mut gaps: Vec<(u64, u64)>, steal_ns: Option<u64>) -> Vec<(u64, u64)> {
    if let Some(mut left) = steal_ns {
        gaps.sort_unstable_by_key(|(from, to)| std::cmp::Reverse(to - from));
        // The steps of the accounting may cut the last one.
        let accounted_for = |(from, to): &&(u64, u64)| {
            let enough = left > (to - from) / 2;
            left = left.saturating_sub(to - from);
            enough
        };
        let some = gaps.iter().take_while(accounted_for).count();
        gaps.truncate(some);
        gaps.sort_unstable();
    }
    gaps
}

/// Intervals between the gaps.
fn between(begin: u64, end: u64, gaps: &[(u64, u64)]) -> Activity {
    let starts = std::iter::once(begin).chain(gaps.iter().map(|(_, to)| *to));
    let ends = gaps.iter().map(|(from, _)| *from).chain(std::iter::once(end));
    Activity::new(starts.zip(ends))
}

/// A reading that takes less than this was not interrupted by the host, ns.
const QUICK_LOOK_NS: u64 = 2_000_000;
const LOOKS: usize = 6;

/// The kernel's accounting of steal, and the time of the reading. Takes the quickest of several readings.
fn look_at_steal(core: &mut impl Core) -> Option<(u64, u64)> {
    let mut best: Option<(u64, u64, u64)> = None;
    for _ in 0..LOOKS {
        let from = core.now_ns();
        let steal = core.steal_ns()?;
        let to = core.now_ns().max(from);
        if best.is_none_or(|(took, ..)| to - from < took) {
            best = Some((to - from, to, steal));
        }
        if to - from < QUICK_LOOK_NS {
            break;
        }
    }
    best.map(|(_, at, steal)| (at, steal))
}

/// Samples one CPU. Must be called by a thread on it.
pub fn on_core(core: &mut impl Core, length: Duration) -> Sample {
    let steal_before = look_at_steal(core);
    let before = core.account();
    let begin = core.now_ns();
    let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let mut last = begin;
    let mut waited_before = before.unwrap_or_default().waited_ns;
    let mut gaps = Vec::new();
    let mut blocks = Vec::with_capacity(1024);
    let mut usual = u64::MAX;
    let mut done: u64 = 0;
    loop {
        core.work();
        // If the clock goes back, it counts as standing still.
        let now = core.now_ns().max(last);
        let block = now - last;
        if block > 0 {
            usual = usual.min(block);
        }
        if block > usual.saturating_add(AWAY_NS) {
            let waited = core.account().unwrap_or_default().waited_ns;
            // While other tasks of the guest ran, the vCPU ran, as far as this thread can know.
            if waited.saturating_sub(waited_before) < block / 2 {
                gaps.push((last, now - usual));
            }
            waited_before = waited;
        } else if blocks.len() < blocks.capacity() {
            blocks.push(block);
        }
        last = now;
        done += 1;
        // End by the clock, or by the work done if the clock does not advance.
        let worked = if usual == u64::MAX { done * LEAST_BLOCK_NS } else { done.saturating_mul(usual) };
        if now - begin >= length_ns || worked / 2 >= length_ns {
            break;
        }
    }
    let after = core.account();
    let waited_ns = before.zip(after).map_or(0, |(b, a)| a.waited_ns.saturating_sub(b.waited_ns));
    let wall_ns = last - begin;
    let steal = steal_before
        .zip(look_at_steal(core))
        .map(|(b, a)| Steal { ns: a.1.saturating_sub(b.1), wall_ns: a.0.saturating_sub(b.0) })
        .filter(|_| wall_ns >= LONG_ENOUGH_NS);
    let gaps = made_by_host(gaps, steal.map(|steal| steal.ns));
    blocks.sort_unstable();
    let activity = between(begin, last, &gaps);
    Sample {
        cpu: core.cpu(),
        wall_ns,
        away_ns: gaps.iter().map(|(from, to)| to - from).sum(),
        steal,
        waited_ns: waited_ns.min(wall_ns),
        preemptions: activity.preemptions(),
        activity,
        // The lower quartile: interrupts only make blocks longer.
        block_ns: blocks.get(blocks.len() / 4).map(|block| *block as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample_of(wall_ns: u64, waited_ns: u64, away_ns: u64, steal_ns: Option<u64>) -> Sample {
        let preemptions = Preemptions::default();
        let steal = steal_ns.map(|ns| Steal { ns, wall_ns });
        Sample {
            cpu: 0,
            wall_ns,
            away_ns,
            steal,
            waited_ns,
            preemptions,
            activity: Activity::default(),
            block_ns: Some(1.0),
        }
    }

    #[test]
    fn the_kernels_account_and_the_gaps() {
        assert_eq!(sample_of(100, 0, 60, Some(70)).share(), Some(0.30000000000000004), "the kernel knows");
        assert_eq!(
            sample_of(100, 0, 70, None).share(),
            Some(0.30000000000000004),
            "it does not: the gaps tell"
        );
        assert_eq!(sample_of(100, 40, 30, None).share(), Some(0.5), "of the time that other tasks left");
        assert_eq!(sample_of(100, 98, 1, None).share(), None, "they left none");
    }

    #[test]
    fn the_longest_gaps_are_the_hosts() {
        let gaps = vec![(0, 10), (20, 21), (30, 40), (50, 52), (60, 70)];
        assert_eq!(made_by_host(gaps.clone(), Some(29)), [(0, 10), (30, 40), (60, 70)]);
        assert_eq!(made_by_host(gaps.clone(), Some(0)), []);
        assert_eq!(made_by_host(gaps.clone(), None), gaps);
        assert_eq!(between(0, 100, &gaps[..2]).intervals(), [(10, 20), (21, 100)]);
    }

    #[test]
    fn the_machine_at_hand_can_be_sampled() {
        let cpus = sys::usable_cpus().unwrap();
        let samples = sample(&cpus, Duration::from_millis(20), sys::Policy::BestEffort).unwrap();
        assert_eq!(samples.len(), cpus.len());
        for sample in samples {
            assert!(sample.wall_ns >= 20_000_000);
            assert!(sample.share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }

    proptest! {
        #[test]
        fn shares_are_shares(wall in 0u64..1_000_000_000, waited in any::<u32>(), away in any::<u32>(), steal in proptest::option::of(any::<u32>())) {
            let sample = sample_of(wall, u64::from(waited).min(wall), away.into(), steal.map(u64::from));
            prop_assert!(sample.share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
