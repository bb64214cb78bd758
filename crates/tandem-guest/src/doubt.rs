//! Is the topology still what it was? vCPUs that share a hardware thread get less of it: where a vCPU's
//! share has changed much since the topology was last validated, the host may have moved the vCPU.
//!
//! Shares change with the neighbours, too. A validation that finds no change makes the next one of this
//! kind wait for twice as long.

use crate::model::VcpuFacts;
use std::time::{Duration, Instant};

/// A share has changed much if the smaller of its old and new value is less than this part of the larger one.
const MUCH: f64 = 2.0 / 3.0;
/// Time between two regular validations: at first, and while nothing changes.
const OFTEN: Duration = Duration::from_secs(10);
const RARELY: Duration = Duration::from_secs(300);
/// Rest between a validation and one after a changed share: at first, and while these find no change.
const PATIENCE: Duration = Duration::from_secs(2);
const NO_PATIENCE: Duration = Duration::from_secs(300);
/// Rest before a regular validation, and before one after a changed share: this many times as long as
/// the last one took.
const DUTY: u32 = 100;
const DOUBTED_DUTY: u32 = 20;

/// Compares shares with those at the last validation.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// By vCPU; none: not known then.
    before: Vec<Option<f64>>,
    /// Number of probes that had begun plus those that had ended.
    turns: u64,
}

impl Shares {
    /// Has a share changed much? If so, all current shares become the reference. They also do after a
    /// probe (`turns`: number of probes that have begun plus those that have ended), which keeps all
    /// vCPUs busy, and changes shares by that. A share that was not known has not changed.
    pub(crate) fn changed(&mut self, facts: &[VcpuFacts], turns: u64) -> bool {
        let now: Vec<Option<f64>> = facts
            .iter()
            .map(|fact| (fact.online && fact.age_ms.is_some()).then_some(fact.steady_share))
            .collect();
        let probed = std::mem::replace(&mut self.turns, turns) != turns;
        self.before.resize(now.len(), None);
        let much = |(before, now): (&Option<f64>, &Option<f64>)| match (before, now) {
            (Some(before), Some(now)) => now.min(*before) < MUCH * now.max(*before),
            _ => false,
        };
        let changed = !probed && self.before.iter().zip(&now).any(much);
        for (before, now) in self.before.iter_mut().zip(now) {
            if changed || probed || before.is_none() {
                *before = now;
            }
        }
        changed
    }
}

/// The result of a validation or a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The topology is the same.
    Same,
    /// It is a new one, or the first one.
    New,
    /// Too little was measured.
    Open,
}

/// When the topology is validated.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// The next regular validation.
    due: Instant,
    interval: Duration,
    /// The next one if a share has changed.
    doubt_due: Instant,
    patience: Duration,
}

impl Schedule {
    /// The first validation is due at once, so that a saved topology is confirmed early.
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: now, interval: OFTEN, doubt_due: now, patience: PATIENCE }
    }

    /// When the next validation is due.
    pub(crate) fn due(&self, doubted: bool) -> Instant {
        if doubted {
            self.due.min(self.doubt_due)
        } else {
            self.due
        }
    }

    /// A validation that began at `began` has ended by `now`.
    pub(crate) fn answered(&mut self, answer: Answer, doubted: bool, began: Instant, now: Instant) {
        let regular = began >= self.due;
        match answer {
            Answer::Same => {
                self.patience = if doubted { (self.patience * 2).min(NO_PATIENCE) } else { PATIENCE };
                if regular {
                    self.interval = (self.interval * 2).min(RARELY);
                }
            }
            Answer::New => (self.interval, self.patience) = (OFTEN, PATIENCE),
            Answer::Open => self.interval = OFTEN,
        }
        let took = now.saturating_duration_since(began);
        self.due = now + self.interval.max(took * DUTY);
        self.doubt_due = now + self.patience.max(took * DOUBTED_DUTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(shares: &[f64]) -> Vec<VcpuFacts> {
        let fact = |&share| VcpuFacts {
            online: true,
            steady_share: share,
            age_ms: Some(1.0),
            ..VcpuFacts::default()
        };
        shares.iter().map(fact).collect()
    }

    #[test]
    fn a_share_that_fell_or_rose_much_is_a_doubt_once() {
        let mut shares = Shares::default();
        assert!(!shares.changed(&facts(&[1.0, 0.5]), 0), "nothing was known before");
        assert!(!shares.changed(&facts(&[0.7, 0.5]), 0));
        assert!(shares.changed(&facts(&[0.5, 0.5]), 0), "it fell");
        assert!(!shares.changed(&facts(&[0.5, 0.5]), 0), "and has stayed so since");
        assert!(shares.changed(&facts(&[0.5, 1.0]), 0), "it rose");
    }

    #[test]
    fn small_steps_add_up() {
        let mut shares = Shares::default();
        let steps = [1.0, 0.9, 0.8, 0.7, 0.6];
        let doubts: Vec<bool> = steps.iter().map(|&share| shares.changed(&facts(&[share]), 0)).collect();
        assert_eq!(doubts, [false, false, false, false, true]);
    }

    #[test]
    fn what_a_probe_does_to_shares_is_no_doubt() {
        let mut shares = Shares::default();
        shares.changed(&facts(&[1.0]), 0);
        assert!(!shares.changed(&facts(&[0.5]), 2));
        assert!(!shares.changed(&facts(&[0.5]), 2));
        assert!(shares.changed(&facts(&[1.0]), 2));
    }

    #[test]
    fn what_is_not_known_is_no_doubt() {
        let mut shares = Shares::default();
        let unknown = |share| vec![VcpuFacts { age_ms: None, ..facts(&[share])[0].clone() }];
        assert!(!shares.changed(&unknown(1.0), 0));
        assert!(!shares.changed(&unknown(0.1), 0));
        assert!(!shares.changed(&facts(&[1.0]), 0));
        assert!(!shares.changed(&unknown(0.1), 0), "what was known stays");
        assert!(shares.changed(&facts(&[0.1]), 0));
        assert!(!shares.changed(&[], 0));
    }

    const TOOK: Duration = Duration::from_millis(5);

    /// Validates this many times, each time when it is due. Returns when, since `start`, in seconds.
    fn ask(schedule: &mut Schedule, start: Instant, times: usize, doubted: bool, answer: Answer) -> Vec<u64> {
        (0..times)
            .map(|_| {
                let began = schedule.due(doubted);
                schedule.answered(answer, doubted, began, began + TOOK);
                began.duration_since(start).as_secs()
            })
            .collect()
    }

    #[test]
    fn what_holds_is_asked_about_less_and_less_often() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert_eq!(ask(&mut schedule, start, 5, false, Answer::Same), [0, 20, 60, 140, 300]);
        assert_eq!(ask(&mut schedule, start, 3, false, Answer::Same), [600, 900, 1200]);
    }

    #[test]
    fn a_doubt_is_looked_into_within_seconds_unless_many_were_unfounded() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        ask(&mut schedule, start, 6, false, Answer::Same);
        assert_eq!(ask(&mut schedule, start, 1, true, Answer::New), [602], "two seconds after the last");
        let doubts = ask(&mut schedule, start, 12, true, Answer::Same);
        let rests: Vec<u64> = doubts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(rests.is_sorted() && rests.iter().all(|rest| *rest <= 300), "{rests:?}");
        assert!(*rests.last().unwrap_or(&0) >= 256, "doubts without end are no more than regular: {rests:?}");
    }

    proptest! {
        #[test]
        fn it_rests_for_much_longer_than_it_takes(asked in prop::collection::vec((0..3u8, any::<bool>(), 0..1000u64), 1..60)) {
            let start = Instant::now();
            let mut schedule = Schedule::new(start);
            for (answer, doubted, took_ms) in asked {
                let answer = [Answer::Same, Answer::New, Answer::Open][usize::from(answer)];
                let began = schedule.due(doubted);
                let took = Duration::from_millis(took_ms);
                schedule.answered(answer, doubted, began, began + took);
                let rest = schedule.due(true).duration_since(began + took);
                prop_assert!(rest >= PATIENCE.min(OFTEN) && rest >= took * DOUBTED_DUTY && rest <= RARELY.max(took * DUTY));
            }
        }
    }
}
