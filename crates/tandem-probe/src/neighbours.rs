//! What preempts the vCPUs? Decided from how even the preemption intervals are, whether all vCPUs are preempted at
//! once, and whether wake-ups are served at once as often as the share says.

use crate::activity::Activity;
use serde::Serialize;
use std::fmt;

/// A vCPU with a smaller share than this is contended.
pub const CONTENDED: f64 = 0.95;
/// Lengths whose spread (standard deviation over mean) is below this are even.
const EVEN: f64 = 0.25;
/// If the part of wake-ups that is served at once differs from the share by more than this, or by more than half of
/// what is possible, the host's scheduler considers who has slept.
const LOOKS: f64 = 0.25;
/// Quotas have periods of this length or more, ms (default of `cpu.max` and of libvirt: 100 ms).
const QUOTA_PERIOD_MS: f64 = 20.0;
/// vCPUs are preempted at once if this part of the overlap beyond chance is reached: two vCPUs of small share are
/// preempted at the same time for most of the time anyhow.
const AT_ONCE: f64 = 0.8;

/// Observations of one vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Share of a pCPU, 0 to 1.
    pub share: f64,
    /// Mean preemption interval, ms.
    pub preemption_ms: f64,
    /// Mean time between two preemption intervals, ms.
    pub active_ms: f64,
    /// Are both lengths even?
    pub even: bool,
    /// Part of its wake-ups that was served at once, 0 to 1; `None` if not measured.
    pub at_once: Option<f64>,
}

/// What runs on the pCPUs while the vCPUs are preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Neighbours {
    /// Nothing: no vCPU is contended.
    None,
    /// Other tasks, under a fair scheduler that considers who has slept.
    Fair,
    /// The VM has used up its quota.
    Quota,
    /// A periodic neighbour that runs whatever this guest does, such as a real-time program.
    Regular,
    /// A neighbour that runs at unpredictable times, whatever this guest does.
    Irregular,
}

impl Neighbours {
    /// Decides by the majority of the contended vCPUs. `at_once`: are they preempted at the same time? `None` if not
    /// measured.
    pub fn of(vcpus: &[Seen], at_once: Option<bool>) -> Self {
        let contended: Vec<&Seen> = vcpus.iter().filter(|vcpu| vcpu.share < CONTENDED).collect();
        if contended.is_empty() {
            return Self::None;
        }
        let most = |test: &dyn Fn(&Seen) -> bool| {
            2 * contended.iter().filter(|vcpu| test(vcpu)).count() > contended.len()
        };
        let even = most(&|vcpu| vcpu.even);
        let long = most(&|vcpu| vcpu.preemption_ms + vcpu.active_ms >= QUOTA_PERIOD_MS);
        let all = contended.len() == vcpus.len();
        if even && long && all && at_once == Some(true) {
            return Self::Quota;
        }
        let looks = |vcpu: &Seen| {
            let bounds =
                (vcpu.share - LOOKS.min(vcpu.share / 2.0), vcpu.share + LOOKS.min((1.0 - vcpu.share) / 2.0));
            vcpu.at_once.is_some_and(|at_once| at_once < bounds.0 || at_once > bounds.1)
        };
        match (most(&looks), even) {
            (true, _) => Self::Fair,
            (false, true) => Self::Regular,
            (false, false) => Self::Irregular,
        }
    }
}

impl fmt::Display for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nothing preempts the vCPUs",
            Self::Fair => "the host shares fairly: whether a vCPU that is woken is served at once depends on who has slept",
            Self::Quota => "a quota: all vCPUs are throttled at once, at regular times",
            Self::Regular => "a neighbour preempts the vCPUs at regular times, whatever this guest does, as a real-time program does",
            Self::Irregular => "a neighbour preempts the vCPUs at unpredictable times, whatever this guest does",
        })
    }
}

/// Are these lengths even? No if there are fewer than four.
pub fn even(lengths_ns: &[u64]) -> bool {
    let n = lengths_ns.len() as f64;
    let mean = lengths_ns.iter().map(|ns| *ns as f64).sum::<f64>() / n;
    let variance = lengths_ns.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / n;
    lengths_ns.len() >= 4 && variance.sqrt() < EVEN * mean
}

/// Are these vCPUs, observed over the same time, preempted at the same time? `None` if there are fewer than two, or if
/// one is never preempted.
pub fn preempted_at_once(of: &[&Activity]) -> Option<bool> {
    let preempted: Vec<(Activity, f64)> =
        of.iter().map(|activity| (activity.gaps(), activity.preemptions().share)).collect();
    let ((first, share), others) = preempted.split_first().filter(|(_, others)| !others.is_empty())?;
    if first.total_ns() == 0 || others.iter().any(|(other, _)| other.total_ns() == 0) {
        return None;
    }
    let common = |(other, other_share): &(Activity, f64)| {
        let by_chance = 1.0 - share.min(*other_share);
        let part = first.overlap_ns(other) as f64 / first.total_ns().min(other.total_ns()) as f64;
        part - by_chance >= AT_ONCE * (1.0 - by_chance)
    };
    Some(others.iter().all(common))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(share: f64, even: bool, at_once: f64) -> Seen {
        Seen { share, preemption_ms: 8.0, active_ms: 8.0, even, at_once: Some(at_once) }
    }

    #[test]
    fn who_is_beside() {
        let whole = seen(1.0, false, 1.0);
        assert_eq!(Neighbours::of(&[whole, whole], None), Neighbours::None);
        assert_eq!(Neighbours::of(&[whole, seen(0.5, true, 0.5)], Some(false)), Neighbours::Regular);
        assert_eq!(Neighbours::of(&[whole, seen(0.5, false, 0.45)], None), Neighbours::Irregular);
        let (never, always) = (seen(0.5, true, 0.05), seen(0.5, false, 0.98));
        assert_eq!(Neighbours::of(&[never, never], Some(false)), Neighbours::Fair, "the slice ends first");
        assert_eq!(Neighbours::of(&[always, always], None), Neighbours::Fair, "who has slept preempts");
        let seldom_away = seen(0.82, false, 1.0);
        assert_eq!(
            Neighbours::of(&[seldom_away, seldom_away], None),
            Neighbours::Fair,
            "and so beside a few bursts"
        );
        let seldom_there = seen(0.2, false, 0.02);
        assert_eq!(Neighbours::of(&[seldom_there, seldom_there], None), Neighbours::Fair);
    }

    #[test]
    fn a_quota_takes_all_at_once() {
        let limited = Seen { preemption_ms: 75.0, active_ms: 25.0, ..seen(0.25, true, 0.25) };
        assert_eq!(Neighbours::of(&[limited, limited], Some(true)), Neighbours::Quota);
        assert_eq!(Neighbours::of(&[limited, limited], Some(false)), Neighbours::Regular);
        let beside_a_whole = [limited, seen(1.0, false, 1.0)];
        assert_eq!(Neighbours::of(&beside_a_whole, Some(true)), Neighbours::Regular);
    }

    #[test]
    fn preemptions_at_once() {
        let a = Activity::new([(0, 10), (20, 30), (40, 50)]);
        let b = Activity::new([(0, 11), (21, 31), (41, 50)]);
        let c = Activity::new([(10, 20), (30, 40)]);
        assert_eq!(preempted_at_once(&[&a, &b]), Some(true));
        assert_eq!(preempted_at_once(&[&a, &c]), Some(false));
        assert_eq!(preempted_at_once(&[&a]), None);
        assert_eq!(preempted_at_once(&[&a, &Activity::new([(0, 50)])]), None);
        // Each is preempted for nine tenths of the time, alternately: the overlap is eight ninths of that.
        let seldom = |from: u64| Activity::new((0..20).map(move |i| (100 * i + from, 100 * i + from + 10)));
        assert_eq!(preempted_at_once(&[&seldom(0), &seldom(50)]), Some(false));
        assert_eq!(preempted_at_once(&[&seldom(0), &seldom(0)]), Some(true));
    }

    #[test]
    fn even_lengths() {
        assert!(even(&[100, 101, 99, 100]));
        assert!(!even(&[100, 10, 300, 50]));
        assert!(!even(&[100, 100, 100]), "too few");
        assert!(!even(&[]));
    }

    proptest! {
        #[test]
        fn anything_has_an_answer(
            vcpus in prop::collection::vec((0.0..=1.0f64, any::<bool>(), 0.0..=1.0f64), 0..9),
            at_once in any::<Option<bool>>(),
        ) {
            let vcpus: Vec<Seen> = vcpus.into_iter().map(|(share, even, once)| seen(share, even, once)).collect();
            let whole = vcpus.iter().all(|vcpu| vcpu.share >= CONTENDED);
            prop_assert_eq!(Neighbours::of(&vcpus, at_once) == Neighbours::None, whole);
        }
    }
}
