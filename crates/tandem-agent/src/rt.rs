//! Contention with exact on and off times: SCHED_FIFO threads on an absolute time grid.
//!
//! A vCPU on the same CPU cannot run during a burst. Each burst costs it a little more than its
//! length (switching to and fro, a late timer); the lab measures that cost from the host's own
//! accounting and has the bursts shortened by it.

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use tandem_agent::{RtSpec, RtStat};

const PRIORITY: i32 = 40;
/// No burst gets shorter than this, whatever the compensation.
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

    /// Takes `compensation_ns` off each burst on `cpu`.
    pub fn compensate(&self, cpu: usize, compensation_ns: u64) {
        for competitor in self.0.iter().filter(|c| c.cpu == cpu) {
            competitor.shared.compensation_ns.store(compensation_ns, Ordering::Relaxed);
        }
    }

    /// What they have done so far.
    pub fn stats(&self) -> Vec<RtStat> {
        let of = |c: &Competitor| RtStat {
            cpu: c.cpu,
            bursts: c.shared.bursts.load(Ordering::Relaxed),
            joined: c.shared.joined.load(Ordering::Relaxed),
            asked_ns: c.shared.asked_ns.load(Ordering::Relaxed),
            busy_ns: c.shared.busy_ns.load(Ordering::Relaxed),
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
    // Timers fire late by a fairly constant time; sleeping shorter by its running mean keeps the grid.
    let mut lateness_ns = 0u64;
    while !shared.stop.load(Ordering::Relaxed) {
        let (on_ns, off_ns) = lengths.next();
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
        // After a hold-up of the whole machine the grid goes on from now: no catching up in one long burst.
        let now = sys::now_ns();
        if now > begin + on_ns + off_ns {
            begin = now;
        }
    }
}

/// Lengths of bursts and gaps: fixed, or exponential from a seed.
struct Lengths {
    on_ns: u64,
    off_ns: u64,
    state: Option<u64>,
}

impl Lengths {
    fn new(spec: &RtSpec, index: usize) -> Self {
        let state = spec.seed.map(|seed| seed ^ (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { on_ns: spec.on_us * 1000, off_ns: spec.off_us * 1000, state }
    }

    fn next(&mut self) -> (u64, u64) {
        (self.draw(self.on_ns), self.draw(self.off_ns))
    }

    fn draw(&mut self, mean_ns: u64) -> u64 {
        let Some(state) = &mut self.state else { return mean_ns };
        // splitmix64 (Steele, Lea, Flood 2014).
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        // Bounded, so that no single burst looks like a hung machine.
        ((-(1.0 - uniform).ln()).min(8.0) * mean_ns as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_lengths_are_repeatable_and_have_the_asked_mean() {
        let spec =
            RtSpec { cpus: vec![1], on_us: 4000, off_us: 8000, seed: Some(3), swap_ms: 0, stagger_us: 0 };
        let draw = || {
            let mut lengths = Lengths::new(&spec, 0);
            (0..20_000).map(|_| lengths.next()).collect::<Vec<_>>()
        };
        let first = draw();
        assert_eq!(first, draw());
        let mean = first.iter().map(|(on, _)| *on as f64).sum::<f64>() / first.len() as f64;
        assert!((mean / 4e6 - 1.0).abs() < 0.03, "{mean}");
    }
}
