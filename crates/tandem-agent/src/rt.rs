//! Contention with exact on and off times: SCHED_FIFO threads on an absolute time grid.
//!
//! A vCPU on the same CPU is preempted during a burst. Each burst costs it a little more than its length (two
//! switches, a late timer). The lab measures that cost from the host's own accounting and has the bursts shortened by
//! it.

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use tandem_agent::{RtPhase, RtSpec, RtStat};

const PRIORITY: i32 = 40;
/// Minimum length of a burst, whatever the compensation.
const BURST_MIN_NS: u64 = 50_000;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    compensation_ns: AtomicU64,
    bursts: AtomicU64,
    joined: AtomicU64,
    asked_ns: AtomicU64,
    busy_ns: AtomicU64,
}

struct Competitor {
    cpu: usize,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// All competitors of this host.
#[derive(Default)]
pub struct Competitors(Vec<Competitor>);

impl Competitors {
    /// Starts one per CPU of `spec`.
    pub fn start(&mut self, spec: &RtSpec) -> Result<(), String> {
        if spec.on_us == 0 || spec.off_us == 0 {
            return Err("on and off times must be above 0".into());
        }
        let origin_ns = sys::now_ns() + 10_000_000;
        for (index, &cpu) in spec.cpus.iter().enumerate() {
            let shared = Arc::new(Shared::default());
            let (theirs, spec) = (Arc::clone(&shared), spec.clone());
            let thread = std::thread::Builder::new()
                .name(format!("rt/{cpu}"))
                .spawn(move || {
                    if sys::pin(0, &[cpu]).is_err() || sys::become_fifo(PRIORITY).is_err() {
                        println!("AGENT-WARNING no real-time competitor on CPU {cpu}");
                        return;
                    }
                    compete(&theirs, &spec, index, origin_ns);
                })
                .map_err(|error| format!("cannot start a thread: {error}"))?;
            self.0.push(Competitor { cpu, shared, thread: Some(thread) });
        }
        Ok(())
    }

    /// Shortens each burst on `cpu` by `compensation_ns`.
    pub fn compensate(&self, cpu: usize, compensation_ns: u64) {
        for competitor in self.0.iter().filter(|c| c.cpu == cpu) {
            competitor.shared.compensation_ns.store(compensation_ns, Ordering::Relaxed);
        }
    }

    /// Statistics of all competitors.
    pub fn stats(&self) -> Vec<RtStat> {
        let at_ns = sys::now_ns();
        let of = |c: &Competitor| RtStat {
            cpu: c.cpu,
            bursts: c.shared.bursts.load(Ordering::Relaxed),
            joined: c.shared.joined.load(Ordering::Relaxed),
            asked_ns: c.shared.asked_ns.load(Ordering::Relaxed),
            busy_ns: c.shared.busy_ns.load(Ordering::Relaxed),
            at_ns,
        };
        self.0.iter().map(of).collect()
    }

    /// Ends them all.
    pub fn stop(&mut self) {
        for competitor in &self.0 {
            competitor.shared.stop.store(true, Ordering::Relaxed);
        }
        for competitor in &mut self.0 {
            if let Some(thread) = competitor.thread.take() {
                let _ = thread.join();
            }
        }
        self.0.clear();
    }
}

fn compete(shared: &Shared, spec: &RtSpec, index: usize, origin_ns: u64) {
    let mut lengths = Lengths::new(spec, index);
    let mut begin = origin_ns + index as u64 * spec.stagger_us * 1000;
    // Timers fire late by a fairly constant time. Sleeping shorter by its running mean keeps the grid.
    let mut lateness_ns = 0u64;
    while !shared.stop.load(Ordering::Relaxed) {
        let (on_ns, off_ns) = lengths.at(begin - origin_ns);
        if on_ns == 0 {
            // An idle phase is slept through in pieces, so that the thread can be stopped.
            sys::sleep_until_ns(begin + off_ns);
            begin += off_ns;
            continue;
        }
        let turn = if spec.swap_ms == 0 {
            index
        } else {
            (begin - origin_ns) as usize / (spec.swap_ms as usize * 1_000_000) % spec.cpus.len()
        };
        let pauses = sys::now_ns() < begin.saturating_sub(lateness_ns);
        sys::sleep_until_ns(begin.saturating_sub(lateness_ns));
        let woken = sys::now_ns();
        let late = woken.saturating_sub(begin.saturating_sub(lateness_ns));
        lateness_ns = (lateness_ns * 7 + late.min(1_000_000)) / 8;
        if turn == index {
            let burst =
                on_ns.saturating_sub(shared.compensation_ns.load(Ordering::Relaxed)).max(BURST_MIN_NS);
            while sys::now_ns() < begin + burst {
                std::hint::spin_loop();
            }
            shared.bursts.fetch_add(1, Ordering::Relaxed);
            shared.joined.fetch_add(u64::from(!pauses), Ordering::Relaxed);
            shared.asked_ns.fetch_add(on_ns, Ordering::Relaxed);
            shared.busy_ns.fetch_add(sys::now_ns() - woken, Ordering::Relaxed);
        }
        begin += on_ns + off_ns;
        begin += periods_missed_ns(sys::now_ns().saturating_sub(begin), on_ns + off_ns);
    }
}

/// Whole periods to skip. After the whole machine was held up, the grid continues where it would be: there is no long
/// burst that catches up, and competitors that alternate still do so. (If each started a new grid, all bursts would
/// begin at the same time.)
fn periods_missed_ns(late_ns: u64, period_ns: u64) -> u64 {
    late_ns / period_ns.max(1) * period_ns
}

/// Lengths of bursts and gaps: fixed, or exponential from a seed.
struct Lengths {
    on_ns: u64,
    off_ns: u64,
    state: Option<u64>,
    phases: Vec<RtPhase>,
}

/// Length of the pieces in which an idle phase is slept through.
const REST_NS: u64 = 50_000_000;

impl Lengths {
    fn new(spec: &RtSpec, index: usize) -> Self {
        let state = spec.seed.map(|seed| seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { on_ns: spec.on_us * 1000, off_ns: spec.off_us * 1000, state, phases: spec.phases.clone() }
    }

    /// Lengths of a burst that begins `since_ns` after the start, and of the gap after it.
    fn at(&mut self, since_ns: u64) -> (u64, u64) {
        match phase_at(&self.phases, since_ns) {
            None => (self.draw(self.on_ns), self.draw(self.off_ns)),
            Some((phase, left_ns)) if phase.on_us == 0 => (0, left_ns.clamp(1, REST_NS)),
            Some((phase, _)) => (self.draw(phase.on_us * 1000), self.draw(phase.off_us * 1000)),
        }
    }

    fn draw(&mut self, mean_ns: u64) -> u64 {
        let Some(state) = &mut self.state else { return mean_ns };
        // splitmix64 (Steele, Lea, Flood 2014).
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        // Bounded, so that a single burst does not look like a hung machine.
        ((-(1.0 - uniform).ln()).min(8.0) * mean_ns as f64) as u64
    }
}

/// The phase at a time after the start, and the rest of its length; `None` if there are no phases.
fn phase_at(phases: &[RtPhase], since_ns: u64) -> Option<(RtPhase, u64)> {
    let length_ns = |phase: &RtPhase| phase.for_ms.saturating_mul(1_000_000);
    let cycle_ns = phases.iter().map(length_ns).fold(0, u64::saturating_add);
    let mut at = since_ns.checked_rem(cycle_ns)?;
    for phase in phases {
        if at < length_ns(phase) {
            return Some((*phase, length_ns(phase) - at));
        }
        at -= length_ns(phase);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RtSpec {
        RtSpec {
            cpus: vec![1],
            on_us: 4000,
            off_us: 8000,
            seed: Some(3),
            swap_ms: 0,
            stagger_us: 0,
            phases: Vec::new(),
        }
    }

    #[test]
    fn who_takes_turns_still_does_so_after_a_hold_up() {
        let (period, stagger) = (16_000_000, 8_000_000);
        for now in [0, 5_000_000, 16_000_000, 1_234_567_890] {
            let goes_on = |begin: u64| begin + periods_missed_ns(u64::saturating_sub(now, begin), period);
            assert_eq!(goes_on(0).abs_diff(goes_on(stagger)) % period, stagger);
            assert!(now < goes_on(0) + period);
        }
        assert_eq!(periods_missed_ns(5, 0), 0);
    }

    #[test]
    fn phases_follow_one_another_and_begin_again() {
        let rest = RtPhase { for_ms: 100, on_us: 0, off_us: 1000 };
        let busy = RtPhase { for_ms: 200, on_us: 8000, off_us: 2000 };
        let mut lengths = Lengths::new(&RtSpec { seed: None, phases: vec![rest, busy], ..spec() }, 0);
        const MS: u64 = 1_000_000;
        assert_eq!(lengths.at(0), (0, REST_NS));
        assert_eq!(lengths.at(90 * MS), (0, 10 * MS));
        assert_eq!(lengths.at(100 * MS), (8 * MS, 2 * MS));
        assert_eq!(lengths.at(299 * MS), (8 * MS, 2 * MS));
        assert_eq!(lengths.at(300 * MS), (0, REST_NS));
        assert_eq!(phase_at(&[RtPhase { for_ms: 0, ..rest }], 5), None);
    }

    #[test]
    fn seeded_lengths_are_repeatable_and_have_the_asked_mean() {
        let spec = spec();
        let draw = || {
            let mut lengths = Lengths::new(&spec, 0);
            (0..20_000).map(|_| lengths.at(0)).collect::<Vec<_>>()
        };
        let first = draw();
        assert_eq!(first, draw());
        let mean = first.iter().map(|(on, _)| *on as f64).sum::<f64>() / first.len() as f64;
        assert!((mean / 4e6 - 1.0).abs() < 0.03, "{mean}");
    }
}
