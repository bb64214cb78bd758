//! Shares, speeds and preemption intervals of emulated cores: right with and without the kernel's accounting of steal.
#![allow(missing_docs)]

use proptest::prelude::*;
use std::time::Duration;
use tandem_probe::emulated::core::EmulatedCore;
use tandem_probe::share::{on_core, Sample};

const MS: u64 = 1_000_000;
/// A preemption interval that is no longer than this is taken for an interrupt.
const LONGEST_MISSED_NS: u64 = 300_000;
const SECOND: Duration = Duration::from_secs(1);

fn with(mut core: EmulatedCore, set: impl FnOnce(&mut EmulatedCore)) -> EmulatedCore {
    set(&mut core);
    core
}

fn share(sample: &Sample) -> f64 {
    sample.share().unwrap_or_else(|| panic!("no share in {sample:?}"))
}

#[test]
fn half_the_speed_is_told_apart_from_half_the_share() {
    let mut slow = with(EmulatedCore::new(1), |c| (c.speed, c.interrupt_every_ns) = (0.5, 4 * MS));
    let mut shared = with(EmulatedCore::with_turns(2, 4 * MS, 4 * MS), |c| c.interrupt_every_ns = 4 * MS);
    let (slow, shared) = (on_core(&mut slow, SECOND), on_core(&mut shared, SECOND));
    let fastest = shared.block_ns.unwrap();
    let speeds = [slow.speed(fastest).unwrap(), shared.speed(fastest).unwrap()];
    assert!((speeds[0] - 0.5).abs() < 0.01 && speeds[1] > 0.99, "{speeds:?}");
    assert!(share(&slow) > 0.99, "{}", share(&slow));
    assert!((share(&shared) - 0.5).abs() < 0.01, "{}", share(&shared));
}

#[test]
fn a_clock_that_jumps_ends_nothing_and_hangs_nothing() {
    for (by, least) in [(3_600_000_000_000, 0.0), (-500_000_000, 0.99), (-3_600_000_000_000, 0.99)] {
        let mut core = with(EmulatedCore::new(3), |c| c.jump = Some((1_200_000_000, by)));
        // If the clock goes back by an hour, the sample must not last an hour longer.
        let sample = on_core(&mut core, Duration::from_millis(400));
        assert!(share(&sample) >= least, "{by}: {sample:?}");
        assert!(sample.preemptions.count <= 1, "{by}: {sample:?}");
    }
}

#[test]
fn preemptions_have_the_lengths_that_they_have() {
    for length in [2, 4, 8, 16] {
        for reports_steal in [false, true] {
            let turns = EmulatedCore::with_turns(length, length * MS, length * MS);
            let mut core = with(turns, |c| (c.reports_steal, c.interrupt_every_ns) = (reports_steal, MS));
            let sample = on_core(&mut core, SECOND);
            let error = sample.preemptions.mean_ns / (length * MS) as f64 - 1.0;
            assert!(error.abs() < 0.02, "{length} ms: {sample:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn shares_are_right_within_a_point(share_pct in 10u64..=100, period_ms in 4u64..20, irregular: bool, reports_steal: bool, speed in 0.3f64..2.0, seed in 1u64..10_000) {
        let on_ns = period_ms * MS * share_pct / 100;
        let off_ns = period_ms * MS - on_ns;
        let turns = EmulatedCore::with_turns(seed, on_ns, off_ns);
        let mut core = with(turns, |c| (c.irregular, c.reports_steal, c.speed) = (irregular, reports_steal, speed));
        let before = core.stolen_ns();
        let sample = on_core(&mut core, SECOND);
        let truth = 1.0 - (core.stolen_ns() - before) as f64 / sample.wall_ns as f64;
        // Preemption intervals below the minimum are missed: interrupts are as long.
        let missed = match (reports_steal, irregular) {
            (true, _) => 0.02,
            (false, true) => 0.05,
            // If each interval is below the minimum, all are missed.
            (false, false) if off_ns <= LONGEST_MISSED_NS => 0.02 + off_ns as f64 / (period_ms * MS) as f64,
            (false, false) => 0.02,
        };
        prop_assert!((share(&sample) - truth).abs() < missed, "truth {truth}, {sample:?}");
    }
}
