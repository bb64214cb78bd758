//! How fast the cores under the vCPUs are (vSched, section 3.1, vcap): from the time that an
//! uninterrupted block of work takes in the probes of idle vCPUs.
//!
//! Clock frequency and busy SMT siblings make single probes slower. Of each vCPU the fastest of some
//! probes counts, and cores are told apart only if they are clearly of different kinds. A core whose
//! other hardware thread was busy in each of the probes looks slower than it is.

use crate::bpf::{intf, GuestSkel};
use libbpf_rs::ProgramInput;
use std::time::{Duration, Instant};
use tandem_daemon::DaemonError;

/// Number of probes of a vCPU that count.
const PROBES: usize = 5;
/// The slowest core must be slower than the fastest by this factor for them to be told apart, and by
/// this to remain so.
const UNLIKE: f64 = 1.25;
const STILL_UNLIKE: f64 = 1.15;
/// A reported speed must change by this to be reported again.
const MOVED: f64 = 0.08;
/// The speed of a vCPU that was not probed for this long is unknown: the VM may be on another host, the
/// vCPU offline. Idle vCPUs are probed every 20 s at least.
const AGE: Duration = Duration::from_secs(60);

/// Results of the probes.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    /// The last lengths of a block on each vCPU, ns; the oldest first.
    blocks_ns: Vec<Vec<f64>>,
    /// When each was last probed.
    probed_at: Vec<Option<Instant>>,
    /// What was reported to the scheduler, relative to the fastest.
    told: Vec<f64>,
    unlike: bool,
}

impl Speeds {
    /// For `nr_cpus` possible CPUs.
    pub(crate) fn new(nr_cpus: usize) -> Self {
        Self {
            blocks_ns: vec![Vec::new(); nr_cpus],
            probed_at: vec![None; nr_cpus],
            told: vec![1.0; nr_cpus],
            unlike: false,
        }
    }

    /// A probe of this vCPU has measured this length of a block, ns.
    pub(crate) fn probed(&mut self, cpu: usize, block_ns: f64, at: Instant) {
        let Some(blocks) = self.blocks_ns.get_mut(cpu).filter(|_| block_ns.is_finite() && block_ns > 0.0)
        else {
            return;
        };
        if blocks.len() == PROBES {
            blocks.remove(0);
        }
        blocks.push(block_ns);
        self.probed_at[cpu] = Some(at);
    }

    /// Changes to report to the scheduler: vCPUs and their speeds, relative to the fastest. To be called
    /// also where nothing was probed, because old speeds expire.
    pub(crate) fn news(&mut self, at: Instant) -> Vec<(usize, f64)> {
        let now = self.at(at);
        let moved = |(cpu, (now, told)): (usize, (&f64, &f64))| {
            let moved = (now - told).abs() > MOVED || (*now == 1.0 && *told != 1.0);
            moved.then_some((cpu, *now))
        };
        let news: Vec<(usize, f64)> = now.iter().zip(&self.told).enumerate().filter_map(moved).collect();
        for &(cpu, speed) in &news {
            self.told[cpu] = speed;
        }
        news
    }

    /// Is some core clearly slower than another?
    pub(crate) fn unlike(&self) -> bool {
        self.unlike
    }

    /// Speeds as known at that time; vCPUs of unknown speed are as fast as the fastest.
    fn at(&mut self, at: Instant) -> Vec<f64> {
        for (blocks, probed_at) in self.blocks_ns.iter_mut().zip(&self.probed_at) {
            if probed_at.is_some_and(|probed_at| at.saturating_duration_since(probed_at) > AGE) {
                blocks.clear();
            }
        }
        let shortest: Vec<Option<f64>> = self.blocks_ns.iter().map(|blocks| shortest(blocks)).collect();
        let known = || shortest.iter().flatten().copied();
        let fastest = known().fold(f64::INFINITY, f64::min);
        let apart = known().fold(0.0, f64::max) / fastest;
        self.unlike = apart > if self.unlike { STILL_UNLIKE } else { UNLIKE };
        let speed = |block: &Option<f64>| block.filter(|_| self.unlike).map_or(1.0, |block| fastest / block);
        shortest.iter().map(speed).collect()
    }
}

/// The shortest block. None: too few probes.
fn shortest(blocks: &[f64]) -> Option<f64> {
    blocks.iter().copied().min_by(f64::total_cmp).filter(|_| blocks.len() == PROBES)
}

/// Reports speeds to the scheduler.
pub(crate) fn install(
    skel: &GuestSkel<'_>,
    speeds: &[(usize, f64)],
    unlike: bool,
) -> Result<(), DaemonError> {
    for &(cpu, speed) in speeds {
        let mut order = vec![0u8; std::mem::size_of::<intf::speed_order>()];
        let mut set = |at: usize, value: u32| order[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        set(std::mem::offset_of!(intf::speed_order, cpu), u32::try_from(cpu).unwrap_or(u32::MAX));
        let scaled = (speed.clamp(0.0, 1.0) * f64::from(intf::TANDEM_SCALE)).round() as u32;
        set(std::mem::offset_of!(intf::speed_order, speed), scaled.max(1));
        set(std::mem::offset_of!(intf::speed_order, unlike), u32::from(unlike));
        let input = ProgramInput { context_in: Some(&mut order), ..ProgramInput::default() };
        skel.progs.guest_speed.test_run(input).map_err(DaemonError::Map)?;
        log::info!("vCPU {cpu}: its core has {:.0} % of the fastest one's speed", speed * 100.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Probes a vCPU and returns the changes.
    fn probe(speeds: &mut Speeds, cpu: usize, block_ns: f64, at: Instant) -> Vec<(usize, f64)> {
        speeds.probed(cpu, block_ns, at);
        speeds.news(at)
    }

    fn after(probes: &[(usize, f64)]) -> Vec<f64> {
        let mut speeds = Speeds::new(3);
        for &(cpu, block) in probes {
            probe(&mut speeds, cpu, block, Instant::now());
        }
        speeds.told
    }

    fn times(n: usize, probes: &[(usize, f64)]) -> Vec<(usize, f64)> {
        probes.iter().copied().cycle().take(n * probes.len()).collect()
    }

    #[test]
    fn slow_cores_are_told_apart_after_some_probes() {
        assert_eq!(after(&times(4, &[(0, 10_000.0), (1, 20_000.0)])), [1.0, 1.0, 1.0], "too few");
        assert_eq!(after(&times(5, &[(0, 10_000.0), (1, 20_000.0)])), [1.0, 0.5, 1.0]);
    }

    #[test]
    fn what_differs_little_or_once_is_noise() {
        assert_eq!(after(&times(5, &[(0, 10_000.0), (1, 11_500.0), (2, 9_900.0)])), [1.0, 1.0, 1.0]);
        let mut once = times(5, &[(0, 10_000.0), (1, 10_000.0)]);
        once.extend([(1, 90_000.0), (1, 90_000.0)]);
        assert_eq!(after(&once), [1.0, 1.0, 1.0]);
        // A hardware thread beside it that is busy most of the time.
        let mut beside = times(5, &[(0, 10_000.0), (1, 10_000.0)]);
        beside.extend([(1, 18_000.0); 4]);
        assert_eq!(after(&beside), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn it_is_told_once_and_taken_back() {
        let mut speeds = Speeds::new(2);
        let mut news = Vec::new();
        for (cpu, block) in times(8, &[(0, 10_000.0), (1, 20_000.0)]) {
            news.extend(probe(&mut speeds, cpu, block, Instant::now()));
        }
        assert_eq!(news, [(1, 0.5)]);
        news.clear();
        for _ in 0..PROBES {
            news.extend(probe(&mut speeds, 1, 10_100.0, Instant::now()));
        }
        assert_eq!(news, [(1, 1.0)], "moved to a fast core");
    }

    #[test]
    fn what_lies_near_the_bound_is_told_once() {
        let mut speeds = Speeds::new(2);
        let mut told = 0;
        for round in 0..40 {
            let slow = if (round / PROBES).is_multiple_of(2) { 12_800.0 } else { 12_200.0 };
            told += probe(&mut speeds, 0, 10_000.0, Instant::now()).len();
            told += probe(&mut speeds, 1, slow, Instant::now()).len();
        }
        assert_eq!(told, 1, "{:?}", speeds.told);
    }

    #[test]
    fn what_was_not_probed_for_long_is_not_known() {
        let (mut speeds, start) = (Speeds::new(2), Instant::now());
        for (cpu, block) in times(5, &[(0, 10_000.0), (1, 20_000.0)]) {
            probe(&mut speeds, cpu, block, start);
        }
        assert!(speeds.unlike() && speeds.news(start + AGE).is_empty());
        // The VM has moved to another host, where all its vCPUs are busy and none is probed.
        let later = start + AGE + Duration::from_secs(1);
        assert_eq!(speeds.news(later), [(1, 1.0)]);
        assert!(!speeds.unlike());
        // The second vCPU is half as fast there; the first one is still busy, so there is nothing to
        // compare it with.
        for _ in 0..PROBES {
            probe(&mut speeds, 1, 20_000.0, later);
        }
        assert_eq!((speeds.told.as_slice(), speeds.unlike()), (&[1.0, 1.0][..], false));
    }

    proptest! {
        #[test]
        fn speeds_are_parts_and_one_is_the_fastest(probes in prop::collection::vec((0..4usize, prop::num::f64::ANY), 0..60)) {
            let told = after(&probes);
            prop_assert!(told.iter().all(|speed| (0.0..=1.0).contains(speed)), "{told:?}");
            prop_assert!(told.contains(&1.0));
        }
    }
}
