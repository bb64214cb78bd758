//! Evidence about one pair of CPUs.
//!
//! A latency can only be measured while both run at the same time. That they never did is no evidence by itself
//! (vSched takes such a pair for stacked). Two vCPUs share a hardware thread if they exclude each other: neither ever
//! runs while the other does, *and* one begins where the other ends more often than two independent vCPUs would.

use crate::activity::Activity;
use crate::machine::Outcome;

/// Two vCPUs that run at the same time for this long are not on one hardware thread. (Clocks of two hardware threads
/// agree to well under a microsecond; a thread notices a little late that it was preempted.)
const OVERLAP_NS: u64 = 5_000;
/// Upper bounds of the time of a hand-over, a switch between two vCPUs on the host: microseconds on hardware, most of a
/// millisecond where the hypervisor is itself emulated. The evidence is kept for each of them.
const HANDOVERS_NS: [u64; 3] = [20_000, 150_000, 1_000_000];
/// Minimum number of alternations. Two vCPUs that share nothing but alternate as exactly as clocks do still overlap
/// for a moment at every second hand-over. The odds of this many without an overlap are those of [`ODDS`].
const TURNS: usize = 14;
/// Minimum part of a vCPU's preemptions that are hand-overs to the other if both share a hardware thread: if the host
/// has other runnable tasks, one of these may be next.
const HANDOVER_SHARE: f64 = 0.3;
/// Minimum odds in favour of stacking for it to be believed.
const ODDS: f64 = 1e4;

/// All observations of a pair.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Minimum latencies of the latest attempts that measured any, newest last.
    latencies: Vec<f64>,
    overlap_ns: u64,
    /// Natural logarithm of the odds that the two share a hardware thread, for each of [`HANDOVERS_NS`].
    stacked: [f64; HANDOVERS_NS.len()],
    /// Alternations without an overlap.
    turns: usize,
    attempts: u32,
}

/// Number of latest latencies that count.
const VOTES: usize = 5;

impl Evidence {
    /// Adds the outcome of an attempt.
    pub fn add(&mut self, outcome: &Outcome) {
        self.attempts += 1;
        if let Some(latency) = outcome.latency_ns {
            if self.latencies.len() == VOTES {
                self.latencies.remove(0);
            }
            self.latencies.push(latency);
            // Lines are exchanged faster than a host switches only if both run at the same time.
            self.they_met();
        }
        let [a, b] = &outcome.activity;
        let overlap = a.overlap_ns(b);
        self.overlap_ns += overlap;
        if overlap > OVERLAP_NS {
            self.they_met();
            return;
        }
        if outcome.latency_ns.is_none() {
            let (a, b) = a.turns_with(b);
            self.turns += (a.intervals().len() + b.intervals().len()).saturating_sub(1);
            for (odds, width_ns) in self.stacked.iter_mut().zip(HANDOVERS_NS) {
                *odds += exclusion(&a, &b, width_ns);
            }
        }
    }

    fn they_met(&mut self) {
        self.stacked = Default::default();
        self.turns = 0;
    }

    /// The odds of the best explanation, reduced by the number of explanations that were tried.
    fn odds(&self) -> f64 {
        self.stacked.iter().copied().fold(f64::NEG_INFINITY, f64::max) - (HANDOVERS_NS.len() as f64).ln()
    }

    /// A typical one of the latest latencies, ns. The minimum of a batch is never too small, but may be too large.
    pub fn latency_ns(&self) -> Option<f64> {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        // Lower median: disturbances only make latencies longer.
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }

    /// The minimum of the latest latencies, ns: disturbances only make latencies longer.
    pub fn least_latency_ns(&self) -> Option<f64> {
        self.latencies.iter().copied().min_by(f64::total_cmp)
    }

    /// Do both share a hardware thread?
    pub fn is_stacked(&self) -> bool {
        self.latencies.is_empty()
            && self.overlap_ns <= OVERLAP_NS
            && self.turns >= TURNS
            && self.odds() >= ODDS.ln()
    }

    /// Is there enough evidence to decide about the pair?
    pub fn is_decided(&self) -> bool {
        !self.latencies.is_empty() || self.is_stacked()
    }

    /// Attempts so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Time in which both were observed to run, ns.
    pub fn overlap_ns(&self) -> u64 {
        self.overlap_ns
    }

    /// Number of latencies on which it rests.
    pub fn votes(&self) -> usize {
        self.latencies.len()
    }
}

/// Log odds of "same hardware thread" against "independent", from alternations without an overlap, if a hand-over
/// takes up to `width_ns`.
fn exclusion(a: &Activity, b: &Activity, width_ns: u64) -> f64 {
    if a.intervals().is_empty() || b.intervals().is_empty() {
        return 0.0;
    }
    let span = span_ns(a, b) as f64;
    let turns = a.intervals().len().max(b.intervals().len());
    // Bound the width by the mean distance of intervals: if one always begins soon, that proves nothing.
    let width = (width_ns as f64).min(span / turns as f64 / 4.0);
    let mut odds = 0.0;
    for (one, other) in [(a, b), (b, a)] {
        let (ends, handed) = one.handovers(other, width as u64);
        // Probability that the other begins within a hand-over's time of any moment by chance.
        let begins = other.intervals().len() as f64;
        let chance = (begins * 2.0 * width / span).clamp(1e-4, 0.9);
        let share = HANDOVER_SHARE.max(chance);
        odds += handed as f64 * (share / chance).ln();
        odds += (ends - handed) as f64 * ((1.0 - share) / (1.0 - chance)).ln();
    }
    // Independent vCPUs would have overlapped: each begins while the other runs with the probability of the other's
    // share.
    let share = |x: &Activity| x.total_ns() as f64 / span;
    let met = |one: &Activity, p: f64| -(one.intervals().len() as f64) * (1.0 - p.min(0.95)).ln();
    odds + (met(a, share(b)) + met(b, share(a))) / 2.0
}

fn span_ns(a: &Activity, b: &Activity) -> u64 {
    let all = a.intervals().iter().chain(b.intervals());
    let from = all.clone().map(|(from, _)| *from).min().unwrap_or(0);
    let to = all.map(|(_, to)| *to).max().unwrap_or(0);
    (to - from.min(to)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn outcome(a: &[(u64, u64)], b: &[(u64, u64)], latency_ns: Option<f64>) -> Outcome {
        let of = |list: &[(u64, u64)]| Activity::new(list.iter().copied());
        Outcome { pair: (0, 1), latency_ns, passes: 0, activity: [of(a), of(b)] }
    }

    #[test]
    fn taking_turns_is_stacking() {
        // On hardware, and under an emulated hypervisor: long switches, and interrupts that look like preemptions.
        for switch in [10_000, 400_000] {
            let a: Vec<_> = (0..16)
                .flat_map(|i| {
                    [(i * 8 * MS, i * 8 * MS + 2 * MS), (i * 8 * MS + 2 * MS + 70_000, i * 8 * MS + 4 * MS)]
                })
                .collect();
            let b: Vec<_> = (0..16)
                .map(|i| (i * 8 * MS + 4 * MS + switch, i * 8 * MS + 8 * MS - switch * 3 / 2))
                .collect();
            let mut evidence = Evidence::default();
            for part in [0..3, 3..6, 6..9, 9..12, 12..15] {
                assert!(part.start >= 9 || !evidence.is_stacked(), "too early: {evidence:?}");
                evidence.add(&outcome(&a[2 * part.start..2 * part.end], &b[part], None));
            }
            assert!(evidence.is_stacked(), "{evidence:?}");
        }
    }

    #[test]
    fn turns_of_two_that_meet_for_a_moment_are_not() {
        let a: Vec<_> = (0..16).map(|i| (i * 16 * MS, i * 16 * MS + 8 * MS)).collect();
        let b: Vec<_> =
            (0..16).map(|i| (i * 16 * MS + 8 * MS - (i % 4) * 3_000, (i + 1) * 16 * MS)).collect();
        let mut evidence = Evidence::default();
        for i in 0..4 {
            evidence.add(&outcome(&a[4 * i..4 * i + 4], &b[4 * i..4 * i + 4], None));
        }
        assert!(!evidence.is_stacked(), "{evidence:?}");
    }

    #[test]
    fn never_having_met_is_not() {
        // The partner never ran, or both ran once: nothing is known.
        let mut evidence = Evidence::default();
        evidence.add(&outcome(&[(0, MS)], &[], None));
        evidence.add(&outcome(&[(0, MS)], &[(7 * MS, 8 * MS)], None));
        assert!(!evidence.is_stacked() && !evidence.is_decided());
        // Two stragglers with the same period and unlucky phases, for half a second.
        let a: Vec<_> = (0..25).map(|i| (i * 20 * MS, i * 20 * MS + MS)).collect();
        let b: Vec<_> = (0..25).map(|i| (i * 20 * MS + 9 * MS, i * 20 * MS + 10 * MS)).collect();
        let mut evidence = Evidence::default();
        evidence.add(&outcome(&a, &b, None));
        assert!(!evidence.is_stacked(), "{evidence:?}");
    }

    #[test]
    fn a_single_exchange_outweighs_all_turns() {
        let a: Vec<_> = (0..4).map(|i| (i * 8 * MS, i * 8 * MS + 4 * MS)).collect();
        let b: Vec<_> = (0..4).map(|i| (i * 8 * MS + 4 * MS, i * 8 * MS + 8 * MS)).collect();
        let mut evidence = Evidence::default();
        evidence.add(&outcome(&a, &b, None));
        evidence.add(&outcome(&[(0, MS)], &[(0, MS)], Some(50.0)));
        assert!(!evidence.is_stacked());
        assert_eq!(evidence.latency_ns(), Some(50.0));
    }

    #[test]
    fn the_typical_latency_ignores_a_disturbed_one() {
        let mut evidence = Evidence::default();
        for latency in [50.0, 400.0, 51.0] {
            evidence.add(&outcome(&[], &[], Some(latency)));
        }
        assert_eq!(evidence.latency_ns(), Some(51.0));
    }
}
