//! Classifies latencies by the gaps between this machine's own latencies.

use serde::{Deserialize, Serialize};

/// Two latencies further apart than this factor belong to different classes.
const GAP: f64 = 1.55;
/// A sibling on the same core passes a line within the time of this many atomic operations on its own cache.
const SIBLING_OPERATIONS: f64 = 7.0;
/// Maximum number of levels: no machine has more. The widest gaps are kept.
const MOST: usize = 4;

/// Upper limits of the classes, ascending; the last is unlimited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    /// Limits between adjacent classes, ns.
    limits: Vec<f64>,
    /// Is the nearest class so near that it can only be threads of one core?
    nearest_is_smt: bool,
    /// Number of latencies in each class.
    members: Vec<usize>,
}

impl Classes {
    /// Clusters latencies (ns, in any order). `own_line_ns`: an atomic operation on a line in the CPU's own cache.
    pub fn of(latencies: &[f64], own_line_ns: f64) -> Self {
        let mut sorted: Vec<f64> = latencies.iter().copied().filter(|l| l.is_finite() && *l > 0.0).collect();
        sorted.sort_by(f64::total_cmp);
        let mut gaps: Vec<(f64, f64)> = sorted
            .windows(2)
            .map(|pair| (pair[1] / pair[0], (pair[0] * pair[1]).sqrt()))
            .filter(|(ratio, _)| *ratio > GAP)
            .collect();
        gaps.sort_by(|a, b| b.0.total_cmp(&a.0));
        gaps.truncate(MOST - 1);
        let mut limits: Vec<f64> = gaps.into_iter().map(|(_, at)| at).collect();
        limits.sort_by(f64::total_cmp);
        let nearest_is_smt =
            sorted.first().is_some_and(|nearest| *nearest <= own_line_ns * SIBLING_OPERATIONS);
        let mut classes = Self { members: vec![0; limits.len() + 1], limits, nearest_is_smt };
        for latency in sorted {
            let class = classes.class(latency);
            classes.members[class] += 1;
        }
        classes
    }

    /// Class of a latency, 0: nearest.
    pub fn class(&self, latency_ns: f64) -> usize {
        self.limits.partition_point(|limit| *limit < latency_ns)
    }

    /// Number of classes.
    pub fn count(&self) -> usize {
        self.limits.len() + 1
    }

    /// Is class 0 that of threads of one core?
    pub fn nearest_is_smt(&self) -> bool {
        self.nearest_is_smt
    }

    /// Is this class so small that it may consist of disturbed measurements? A property of the hardware shows in more
    /// than one pair, and on a large machine in more than a few.
    pub fn is_doubtful(&self, class: usize, cpus: usize) -> bool {
        self.members.get(class).is_none_or(|members| *members <= 1 || members * 8 < cpus)
    }

    /// Distance of a latency from the nearest limit, as a factor; infinite if there is only one class.
    pub fn margin(&self, latency_ns: f64) -> f64 {
        let distance = |limit: &f64| (latency_ns / limit).max(limit / latency_ns);
        self.limits.iter().map(distance).fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_levels_on_any_machine() {
        for scale in [0.5, 1.0, 3.0] {
            let latencies: Vec<f64> =
                [6.0, 6.5, 7.0, 48.0, 50.0, 57.0, 63.0, 110.0, 118.0, 125.0].map(|l| l * scale).into();
            let classes = Classes::of(&latencies, 5.0 * scale);
            assert_eq!(classes.count(), 3);
            assert_eq!(
                latencies.iter().map(|l| classes.class(*l)).collect::<Vec<_>>(),
                [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
            );
            assert!(classes.nearest_is_smt());
        }
    }

    #[test]
    fn one_level_is_not_taken_for_siblings() {
        let classes = Classes::of(&[48.0, 52.0, 60.0], 5.0);
        assert_eq!((classes.count(), classes.nearest_is_smt()), (1, false));
        assert!(Classes::of(&[11.0], 5.0).nearest_is_smt());
        assert_eq!(Classes::of(&[], 5.0).count(), 1);
    }

    proptest! {
        #[test]
        fn classes_ascend_with_latency(latencies in prop::collection::vec(1.0f64..2000.0, 0..60), own in 1.0f64..20.0) {
            let classes = Classes::of(&latencies, own);
            prop_assert!(classes.count() <= MOST);
            let mut sorted = latencies.clone();
            sorted.sort_by(f64::total_cmp);
            prop_assert!(sorted.windows(2).all(|pair| classes.class(pair[0]) <= classes.class(pair[1])));
        }
    }
}
