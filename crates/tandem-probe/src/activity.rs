//! When a vCPU ran, as observed by a thread on it: if two clock readings are further apart than the loop takes,
//! something else ran on the pCPU in between.

/// Intervals of time in which a thread ran, ascending, disjoint, in ns on a clock that all CPUs share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Activity {
    intervals: Vec<(u64, u64)>,
}

/// Preemption intervals of a vCPU in an observed time (vSched section 3, vact).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Preemptions {
    /// Their number.
    pub count: usize,
    /// Mean length, ns.
    pub mean_ns: f64,
    /// 95th percentile of their lengths, ns.
    pub p95_ns: f64,
    /// Mean time between two of them, ns.
    pub mean_active_ns: f64,
    /// Part of the observed time in which it ran, 0 to 1.
    pub share: f64,
}

impl Activity {
    /// From intervals in ascending order. Adjacent intervals are merged.
    pub fn new(intervals: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut activity = Self::default();
        for (from, to) in intervals {
            activity.add(from, to);
        }
        activity
    }

    /// Appends an interval. If it begins before the end of the last one, it is cut to that end.
    pub fn add(&mut self, from: u64, to: u64) {
        let from = self.intervals.last().map_or(from, |last| from.max(last.1));
        if to <= from {
            return;
        }
        match self.intervals.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => self.intervals.push((from, to)),
        }
    }

    /// The intervals.
    pub fn intervals(&self) -> &[(u64, u64)] {
        &self.intervals
    }

    /// Time in which it ran, ns.
    pub fn total_ns(&self) -> u64 {
        self.intervals.iter().map(|(from, to)| to - from).sum()
    }

    /// Time in which both ran, ns.
    pub fn overlap_ns(&self, other: &Self) -> u64 {
        let (mut i, mut j, mut sum) = (0, 0, 0);
        while let (Some(a), Some(b)) = (self.intervals.get(i), other.intervals.get(j)) {
            sum += a.1.min(b.1).saturating_sub(a.0.max(b.0));
            if a.1 < b.1 {
                i += 1;
            } else {
                j += 1;
            }
        }
        sum
    }

    /// The alternations of two vCPUs that never run at the same time: intervals of one between which the other did not
    /// run are merged. The gaps between them are due to interrupts or to a third task.
    pub fn turns_with(&self, other: &Self) -> (Self, Self) {
        let joined = |one: &Self, by: &Self| {
            let mut turns: Vec<(u64, u64)> = Vec::new();
            for &(from, to) in &one.intervals {
                match turns.last_mut() {
                    Some(last) if !by.runs_between(last.1, from) => last.1 = to,
                    _ => turns.push((from, to)),
                }
            }
            Self { intervals: turns }
        };
        (joined(self, other), joined(other, self))
    }

    fn runs_between(&self, from: u64, to: u64) -> bool {
        let first = self.intervals.partition_point(|(_, end)| *end <= from);
        self.intervals.get(first).is_some_and(|(begin, _)| *begin < to)
    }

    /// How many intervals ended within the observed time, and at how many of these ends an interval of the other began
    /// within `gap_ns`: the hardware thread was handed over.
    pub fn handovers(&self, other: &Self, gap_ns: u64) -> (usize, usize) {
        let ends = self.intervals.iter().rev().skip(1).map(|(_, end)| *end);
        let taken = |end: u64| {
            let next = other.intervals.partition_point(|(from, _)| *from + gap_ns < end);
            other.intervals.get(next).is_some_and(|(from, _)| *from <= end + gap_ns)
        };
        let all = self.intervals.len().saturating_sub(1);
        (all, ends.filter(|end| taken(*end)).count())
    }

    /// The preemption intervals between the intervals.
    pub fn gaps(&self) -> Self {
        Self::new(self.intervals.windows(2).map(|pair| (pair[0].1, pair[1].0)))
    }

    /// Lengths of the preemption intervals, and of the active periods between two of them, ns. Only uninterrupted
    /// active periods count: the observation has cut the first and the last one.
    pub fn lengths_ns(&self) -> (Vec<u64>, Vec<u64>) {
        let length = |(from, to): &(u64, u64)| to - from;
        let whole = self.intervals.iter().skip(1).rev().skip(1).map(length).collect();
        (self.gaps().intervals.iter().map(length).collect(), whole)
    }

    /// Statistics of the preemption intervals. The time before the first interval and after the last one does not
    /// count.
    pub fn preemptions(&self) -> Preemptions {
        let (mut gaps, whole) = self.lengths_ns();
        gaps.sort_unstable();
        let count = gaps.len();
        let preempted: u64 = gaps.iter().sum();
        let ran = self.total_ns();
        let mean = |sum: u64, n: usize| if n == 0 { 0.0 } else { sum as f64 / n as f64 };
        Preemptions {
            count,
            mean_ns: mean(preempted, count),
            p95_ns: gaps.get((count * 95).div_ceil(100).saturating_sub(1)).map_or(0.0, |gap| *gap as f64),
            mean_active_ns: mean(whole.iter().sum(), whole.len()),
            share: if ran + preempted == 0 { 0.0 } else { ran as f64 / (ran + preempted) as f64 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overlap_and_handovers() {
        let a = Activity::new([(0, 10), (20, 30), (40, 50)]);
        let b = Activity::new([(10, 20), (30, 40)]);
        assert_eq!(a.overlap_ns(&b), 0);
        assert_eq!(a.handovers(&b, 1), (2, 2));
        assert_eq!(b.handovers(&a, 1), (1, 1));
        let c = Activity::new([(5, 25)]);
        assert_eq!(a.overlap_ns(&c), 10);
        assert_eq!(a.handovers(&c, 1), (2, 0));
    }

    #[test]
    fn interrupts_do_not_end_a_turn() {
        let a = Activity::new([(0, 10), (11, 20), (40, 50), (52, 60)]);
        let b = Activity::new([(21, 30), (31, 39), (61, 70)]);
        let (a, b) = a.turns_with(&b);
        assert_eq!((a.intervals(), b.intervals()), (&[(0, 20), (40, 60)][..], &[(21, 39), (61, 70)][..]));
    }

    #[test]
    fn preemptions_of_a_regular_vcpu() {
        let a = Activity::new((0..10).map(|i| (i * 10, i * 10 + 3)));
        let seen = a.preemptions();
        assert_eq!(seen.count, 9);
        assert_eq!(seen.mean_ns, 7.0);
        assert_eq!(seen.p95_ns, 7.0);
        assert_eq!(seen.mean_active_ns, 3.0);
        assert!((seen.share - 30.0 / 93.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn intervals_stay_in_order_whatever_is_added(parts in prop::collection::vec((any::<u32>(), any::<u32>()), 0..50)) {
            let a = Activity::new(parts.into_iter().map(|(x, y)| (u64::from(x), u64::from(y))));
            prop_assert!(a.intervals().iter().all(|(from, to)| from < to));
            prop_assert!(a.intervals().windows(2).all(|pair| pair[0].1 < pair[1].0));
            prop_assert_eq!(a.overlap_ns(&a), a.total_ns());
        }

        #[test]
        fn overlap_is_symmetric_and_bounded(x in prop::collection::vec((1u64..50, 1u64..50), 0..30), y in prop::collection::vec((1u64..50, 1u64..50), 0..30)) {
            let of = |parts: Vec<(u64, u64)>| {
                let mut at = 0;
                Activity::new(parts.into_iter().map(|(gap, run)| { let from = at + gap; at = from + run; (from, at) }).collect::<Vec<_>>())
            };
            let (a, b) = (of(x), of(y));
            prop_assert_eq!(a.overlap_ns(&b), b.overlap_ns(&a));
            prop_assert!(a.overlap_ns(&b) <= a.total_ns().min(b.total_ns()));
        }
    }
}
