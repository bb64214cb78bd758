//! Figures from progress per time window: how soon, or for how long, a program runs at a given speed.

use crate::experiment::Reduce;

/// Applies `how` to work counted per window, given the reference speed in work per second.
///
/// Speed is a mean over the windows of `hold_ms`. Single windows of an emulated CPU scatter by a tenth, so a single
/// window shows neither that a speed is reached nor that it is lost.
pub fn reduce(windows: &[f64], reference_per_s: f64, how: &Reduce) -> f64 {
    let (speed, window_ms, hold_ms) = match how {
        Reduce::TimeTo { speed, window_ms, hold_ms, .. }
        | Reduce::LongestBelow { speed, window_ms, hold_ms, .. } => (*speed, *window_ms, *hold_ms),
        Reduce::Recovery { speed, window_ms, hold_ms, phase_ms } => {
            return longest_recovery(windows, *speed, *window_ms, *hold_ms, *phase_ms);
        }
    };
    let wanted = speed * reference_per_s * window_ms / 1000.0;
    let held = ((hold_ms / window_ms).round() as usize).max(1);
    let fast: Vec<bool> = windows
        .windows(held)
        .map(|stretch| stretch.iter().sum::<f64>() >= wanted * stretch.len() as f64)
        .collect();
    let count = match how {
        // The first window from which the mean over the next `hold_ms` is high enough; if there is none, all windows.
        Reduce::TimeTo { .. } | Reduce::Recovery { .. } => {
            fast.iter().position(|fast| *fast).unwrap_or(windows.len())
        }
        // All windows of a slow interval count, including those that it shares with a fast one.
        Reduce::LongestBelow { .. } => match longest_run(&fast, false) {
            0 => 0,
            run => run + held - 1,
        },
    };
    count as f64 * window_ms
}

/// The longest time that a phase after the first takes to reach its final speed.
fn longest_recovery(windows: &[f64], speed: f64, window_ms: f64, hold_ms: f64, phase_ms: f64) -> f64 {
    let phase = ((phase_ms / window_ms).round() as usize).max(1);
    let recovery = |windows: &[f64]| {
        let settled = &windows[windows.len() / 2..];
        let per_s = settled.iter().sum::<f64>() / settled.len().max(1) as f64 * 1000.0 / window_ms;
        reduce(windows, per_s, &Reduce::TimeTo { speed, window_ms, hold_ms, of: String::new() })
    };
    windows.chunks_exact(phase).skip(1).map(recovery).fold(0.0, f64::max)
}

fn longest_run(list: &[bool], of: bool) -> usize {
    let (mut longest, mut length) = (0, 0);
    for item in list {
        length = if *item == of { length + 1 } else { 0 };
        longest = longest.max(length);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time_to(hold_ms: f64) -> Reduce {
        Reduce::TimeTo { speed: 0.9, window_ms: 50.0, hold_ms, of: String::new() }
    }

    fn longest_below(hold_ms: f64) -> Reduce {
        Reduce::LongestBelow { speed: 0.6, window_ms: 50.0, hold_ms, of: String::new() }
    }

    // 10 per window of 50 ms.
    const STRONG_PER_S: f64 = 200.0;

    #[test]
    fn a_speed_counts_from_where_it_is_held() {
        assert_eq!(reduce(&[10.0; 20], STRONG_PER_S, &time_to(250.0)), 0.0);
        assert_eq!(reduce(&[3.0; 20], STRONG_PER_S, &time_to(250.0)), 1000.0, "never");
        // One fast window does not reach the speed; scatter around the reference does not lose it.
        assert_eq!(reduce(&[3.0, 10.0, 3.0, 10.0, 10.0, 10.0], STRONG_PER_S, &time_to(100.0)), 150.0);
        assert_eq!(reduce(&[8.0, 11.0, 8.5, 10.5, 8.0], STRONG_PER_S, &time_to(250.0)), 0.0);
        assert_eq!(reduce(&[], STRONG_PER_S, &time_to(250.0)), 0.0);
    }

    #[test]
    fn the_longest_slow_stretch_is_found() {
        assert_eq!(reduce(&[3.0, 3.0, 10.0, 3.0], STRONG_PER_S, &longest_below(50.0)), 100.0);
        assert_eq!(reduce(&[10.0; 9], STRONG_PER_S, &longest_below(100.0)), 0.0);
        assert_eq!(reduce(&[10.0, 1.0, 1.0, 10.0, 10.0], STRONG_PER_S, &longest_below(100.0)), 200.0);
    }

    #[test]
    fn a_phase_is_held_against_its_own_end() {
        let recovery = Reduce::Recovery { speed: 0.9, window_ms: 50.0, hold_ms: 100.0, phase_ms: 400.0 };
        let (first, second) = ([1.0; 8], [1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0]);
        let third = [2.0; 8];
        // The first phase has nothing to recover from. The third is slower, but at its final speed at once.
        assert_eq!(reduce(&[first, second, third].concat(), 0.0, &recovery), 150.0);
        assert_eq!(reduce(&[second, first, third].concat(), 0.0, &recovery), 0.0);
        assert_eq!(reduce(&[], 0.0, &recovery), 0.0);
    }

    proptest! {
        #[test]
        fn figures_stay_within_the_run(
            windows in prop::collection::vec(0.0..1e9f64, 0..50), reference in 0.0..1e10f64, hold in 0.0..5000.0f64,
        ) {
            let length_ms = windows.len() as f64 * 50.0;
            prop_assert!(reduce(&windows, reference, &time_to(hold)) <= length_ms);
            let held_ms = (hold / 50.0).round().max(1.0) * 50.0;
            let below = reduce(&windows, reference, &longest_below(hold));
            prop_assert!(below <= length_ms.max(held_ms));
        }
    }
}
