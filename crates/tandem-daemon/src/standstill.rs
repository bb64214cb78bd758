//! A machine that stood still: paused, saved and restored, migrated, or suspended together with its host.
//!
//! Its clock jumps. On the next tick the kernel finds that its watchdog has not checked the scheduler
//! for longer than the time limit, and ejects a scheduler that did nothing wrong. The daemon has seen
//! the jump, too, because it wakes up several times a second. Then the scheduler is loaded again, but
//! not for ever: it may itself be what makes the machine stand still again and again.

use std::time::{Duration, Instant};

/// Pauses of the daemon from this length on are remembered.
const NOTED: Duration = Duration::from_secs(5);
/// The kernel ejects a scheduler this soon after the jump.
const SOON: Duration = Duration::from_secs(30);
/// It is loaded again at most this many times within [`WITHIN`].
const MOST: usize = 3;
const WITHIN: Duration = Duration::from_secs(600);

/// When the daemon last woke up, and its last long pause.
#[derive(Debug)]
pub struct Pulse {
    looked: Instant,
    pause: Option<(Instant, Duration)>,
}

impl Pulse {
    /// The daemon starts.
    pub fn new(now: Instant) -> Self {
        Self { looked: now, pause: None }
    }

    /// The daemon wakes up.
    pub fn beat(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.looked);
        self.looked = now;
        if since >= NOTED {
            self.pause = Some((now, since));
        }
    }

    /// For how long the machine recently stood still, if that was long enough to deceive a watchdog with
    /// this time limit.
    pub fn stood_still(&self, now: Instant, patience: Duration) -> Option<Duration> {
        let (at, pause) = self.pause?;
        // The watchdog may have been about to check when the machine stopped.
        (now.saturating_duration_since(at) <= SOON && pause >= patience / 2).then_some(pause)
    }
}

/// When the scheduler was loaded again because of a standstill.
#[derive(Debug, Default)]
pub struct Returns(Vec<Instant>);

impl Returns {
    /// May it be loaded once more?
    pub fn once_more(&mut self, now: Instant) -> bool {
        self.0.retain(|at| now.saturating_duration_since(*at) < WITHIN);
        if self.0.len() >= MOST {
            return false;
        }
        self.0.push(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_long_pause_of_late_excuses() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut pulse = Pulse::new(start);
        pulse.beat(at(1));
        assert_eq!(pulse.stood_still(at(1), PATIENCE), None, "it looked all the time");
        pulse.beat(at(46));
        pulse.beat(at(47));
        assert_eq!(pulse.stood_still(at(48), PATIENCE), Some(Duration::from_secs(45)));
        assert_eq!(pulse.stood_still(at(90), PATIENCE), None, "that was long ago");
        pulse.beat(at(53));
        assert_eq!(pulse.stood_still(at(53), PATIENCE), None, "six seconds deceive nobody");
    }

    #[test]
    fn it_does_not_come_back_for_ever() {
        let start = Instant::now();
        let mut returns = Returns::default();
        let allowed = (0..10u32).filter(|i| returns.once_more(start + PATIENCE * *i)).count();
        assert_eq!(allowed, MOST);
        assert!(returns.once_more(start + 2 * WITHIN), "once in a while it may");
    }
}
