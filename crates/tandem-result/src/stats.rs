//! Median, percentile, and the ratio of two arms with a bootstrap interval.

use crate::error::StatsError;
use serde::{Deserialize, Serialize};

/// An arm's median over the baseline's, with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median ratio, arm over baseline; 1 means equal.
    pub median: f64,
    /// Lower and upper end of the 95 % bootstrap interval.
    pub ci95: [f64; 2],
}

/// Minimum number of samples per arm for a 95 % interval. With fewer than six, even the span from the smallest to the
/// largest sample covers the true median less than 95 % of the time (1 - 2 * 0.5^n).
pub const MIN_SAMPLES_FOR_INTERVAL: usize = 6;

/// Resamples per interval. The ends of the interval differ by well under 1 % of its width between seeds.
const RESAMPLES: usize = 4000;

/// The median, or `None` without samples. The mean of the two middle samples when their number is even.
pub fn median(samples: &[f64]) -> Option<f64> {
    percentile(samples, 50.0)
}

/// The `pct`-th percentile (0 to 100, clamped) by linear interpolation between the two nearest samples, or `None`
/// without samples.
pub fn percentile(samples: &[f64], pct: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    percentile_of_sorted(&sorted, pct)
}

/// Median of `arm` over median of `baseline`, or `None` if either is empty or the baseline's is not above 0.
pub fn ratio_of_medians(baseline: &[f64], arm: &[f64]) -> Option<f64> {
    let base = median(baseline).filter(|&base| base > 0.0)?;
    Some(median(arm)? / base).filter(|ratio| ratio.is_finite())
}

/// Ratio of `arm` to `baseline` with its 95 % percentile-bootstrap interval. Deterministic.
///
/// With `paired` and equal lengths, sample *i* of both sides belongs to the same repetition (ABBA order), the ratio
/// is the median of the per-pair ratios, and pairs are resampled together, which removes slow drift of the machine.
/// Otherwise it is the ratio of the medians, and both sides are resampled independently.
///
/// # Errors
/// Fewer than [`MIN_SAMPLES_FOR_INTERVAL`] samples on a side, a sample that is not finite, a baseline sample that
/// is not above 0, or an arm sample below 0.
pub fn ratio_ci95(baseline: &[f64], arm: &[f64], paired: bool, seed: u64) -> Result<Ratio, StatsError> {
    check_domain("baseline", baseline, |value| value > 0.0)?;
    check_domain("arm", arm, |value| value >= 0.0)?;
    let mut random = SplitMix64(seed);
    let mut resampled = Vec::with_capacity(RESAMPLES);
    let centre = if paired && baseline.len() == arm.len() {
        let ratios: Vec<f64> = arm.iter().zip(baseline).map(|(&a, &b)| a / b).collect();
        let mut draw = Vec::with_capacity(ratios.len());
        for _ in 0..RESAMPLES {
            resampled.push(resampled_median(&ratios, &mut draw, &mut random));
        }
        median(&ratios)
    } else {
        let mut draw = Vec::with_capacity(baseline.len().max(arm.len()));
        for _ in 0..RESAMPLES {
            let base = resampled_median(baseline, &mut draw, &mut random);
            let other = resampled_median(arm, &mut draw, &mut random);
            resampled.push(other / base);
        }
        ratio_of_medians(baseline, arm)
    };
    resampled.sort_unstable_by(f64::total_cmp);
    let ends = (percentile_of_sorted(&resampled, 2.5), percentile_of_sorted(&resampled, 97.5));
    match (centre, ends) {
        (Some(median), (Some(low), Some(high)))
            if median.is_finite() && low.is_finite() && high.is_finite() =>
        {
            Ok(Ratio { median, ci95: [low, high] })
        }
        _ => Err(StatsError::Overflow),
    }
}

fn check_domain(side: &'static str, samples: &[f64], allowed: fn(f64) -> bool) -> Result<(), StatsError> {
    if let Some(&value) = samples.iter().find(|value| !value.is_finite()) {
        return Err(StatsError::NotFinite { side, value });
    }
    if let Some(&value) = samples.iter().find(|&&value| !allowed(value)) {
        return Err(StatsError::OutOfDomain { side, value });
    }
    if samples.len() < MIN_SAMPLES_FOR_INTERVAL {
        return Err(StatsError::TooFew { side, have: samples.len(), need: MIN_SAMPLES_FOR_INTERVAL });
    }
    Ok(())
}

fn percentile_of_sorted(sorted: &[f64], pct: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = pct.clamp(0.0, 100.0) / 100.0 * last as f64;
    let below = rank.floor() as usize;
    let above = rank.ceil() as usize;
    let fraction = rank - below as f64;
    // In this form, two equal or two huge neighbours neither lose precision nor overflow.
    Some(sorted[below] * (1.0 - fraction) + sorted[above] * fraction)
}

/// Draws as many samples as there are, with replacement, and returns their median. `draw` is scratch space.
fn resampled_median(samples: &[f64], draw: &mut Vec<f64>, random: &mut SplitMix64) -> f64 {
    draw.clear();
    draw.extend((0..samples.len()).map(|_| samples[random.below(samples.len())]));
    draw.sort_unstable_by(f64::total_cmp);
    percentile_of_sorted(draw, 50.0).unwrap_or(f64::NAN)
}

/// Small, well-mixed generator; resampling needs speed and reproducibility, not secrecy.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// An index below `bound` (which is above 0); the bias of the multiply-shift is below 2^-50 for real sample sizes.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn percentile_interpolates_and_clamps() {
        let samples = [10.0, 20.0, 30.0, 40.0, 50.0];
        assert_eq!(percentile(&samples, 25.0), Some(20.0));
        assert_eq!(percentile(&samples, 90.0), Some(46.0));
        assert_eq!(percentile(&samples, -5.0), Some(10.0));
        assert_eq!(percentile(&samples, 500.0), Some(50.0));
    }

    #[test]
    fn pairing_removes_drift_that_an_unpaired_interval_has_to_carry() {
        let baseline: Vec<f64> = (0..12).map(|rep| 100.0 * 1.3_f64.powi(rep)).collect();
        let arm: Vec<f64> = baseline.iter().map(|sample| sample * 0.9).collect();
        let paired = ratio_ci95(&baseline, &arm, true, 1).unwrap();
        let unpaired = ratio_ci95(&baseline, &arm, false, 1).unwrap();
        assert!(paired.ci95[1] < 0.91 && paired.ci95[0] > 0.89, "{paired:?}");
        assert!(unpaired.ci95[0] < 0.9 && unpaired.ci95[1] > 1.0, "{unpaired:?}");
    }

    #[test]
    fn interval_covers_the_truth_about_as_often_as_it_says() {
        let mut random = SplitMix64(42);
        let mut uniform = || (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let trials = 200;
        let covered = (0..trials)
            .filter(|&trial| {
                let baseline: Vec<f64> = (0..10).map(|_| 1.0 + uniform()).collect();
                let arm: Vec<f64> = (0..10).map(|_| 2.0 * (1.0 + uniform())).collect();
                let ratio = ratio_ci95(&baseline, &arm, false, trial).unwrap();
                ratio.ci95[0] <= 2.0 && 2.0 <= ratio.ci95[1]
            })
            .count();
        assert!(covered * 100 >= 90 * trials as usize, "covered {covered} of {trials}");
        assert!(covered < trials as usize, "an interval that always covers is too wide to be one of 95 %");
    }

    #[test]
    fn refuses_samples_that_have_no_ratio() {
        let good = [1.0; 6];
        let zero = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0];
        let nan = [1.0, 1.0, 1.0, 1.0, 1.0, f64::NAN];
        assert!(matches!(ratio_ci95(&good[..5], &good, true, 1), Err(StatsError::TooFew { have: 5, .. })));
        assert!(matches!(ratio_ci95(&zero, &good, true, 1), Err(StatsError::OutOfDomain { .. })));
        assert!(matches!(ratio_ci95(&good, &nan, true, 1), Err(StatsError::NotFinite { side: "arm", .. })));
        assert_eq!(ratio_ci95(&[f64::MIN_POSITIVE; 6], &[f64::MAX; 6], true, 1), Err(StatsError::Overflow));
        assert!(ratio_ci95(&good, &zero, true, 1).is_ok(), "an arm may well be at zero");
    }

    proptest! {
        // Each ratio takes thousands of medians; 40 cases keep an unoptimised test run short.
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn percentile_is_monotonic_and_inside(samples in prop::collection::vec(-1e9f64..1e9, 1..50), a in 0.0f64..100.0, b in 0.0f64..100.0) {
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            let (low, high) = (percentile(&samples, low).unwrap(), percentile(&samples, high).unwrap());
            let slack = 1e-6;
            prop_assert!(low <= high + slack);
            prop_assert!(samples.iter().any(|&s| s <= low + slack) && samples.iter().any(|&s| s >= high - slack));
        }

        #[test]
        fn equal_arms_have_ratio_one_when_paired(samples in prop::collection::vec(0.001f64..1e9, 6..30), seed: u64) {
            let ratio = ratio_ci95(&samples, &samples, true, seed).unwrap();
            prop_assert_eq!(ratio, Ratio { median: 1.0, ci95: [1.0, 1.0] });
        }

        #[test]
        fn interval_is_ordered_deterministic_and_scales(
            baseline in prop::collection::vec(0.1f64..1e4, 6..20), arm in prop::collection::vec(0.1f64..1e4, 6..20),
            paired: bool, seed: u64,
        ) {
            let first = ratio_ci95(&baseline, &arm, paired, seed).unwrap();
            prop_assert_eq!(first, ratio_ci95(&baseline, &arm, paired, seed).unwrap());
            prop_assert!(first.ci95[0] <= first.ci95[1]);
            let doubled: Vec<f64> = arm.iter().map(|sample| sample * 2.0).collect();
            let second = ratio_ci95(&baseline, &doubled, paired, seed).unwrap();
            prop_assert!((second.median - 2.0 * first.median).abs() <= 1e-9 * second.median);
            prop_assert!((second.ci95[1] - 2.0 * first.ci95[1]).abs() <= 1e-9 * second.ci95[1]);
        }
    }
}
