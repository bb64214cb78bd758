//! The part of the VM's CPU time that probing and the daemon itself may take together.
//!
//! A token bucket: it fills with time, and is drained by the CPU time that the kernel accounts to this
//! process. A job that begins while there is something in the bucket is booked at once by its expected
//! length, so that many cannot begin at the same moment. It may overdraw the bucket; then nothing begins
//! until that is paid.

use crate::sys;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The bucket fills at this part of the budget, so that overdrafts and savings stay inside of it.
const FILL: f64 = 0.8;
/// The credit of at most this much time is saved.
const SAVED: Duration = Duration::from_secs(1);

/// See the module.
pub struct Budget {
    /// CPU time per time.
    rate: f64,
    account: Mutex<Account>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    at: Instant,
    used: Duration,
    credit_s: f64,
    /// Booked, and not yet used as far as is known.
    expected_s: f64,
    /// When all that was booked has ended.
    expected_until: Instant,
}

impl Budget {
    /// `percent` of the time of `cpus` CPUs.
    pub fn new(percent: f64, cpus: usize) -> Self {
        Self::at(percent, cpus, Instant::now(), sys::cpu_time_of_process())
    }

    fn at(percent: f64, cpus: usize, now: Instant, used: Duration) -> Self {
        let rate = FILL * percent / 100.0 * cpus as f64;
        let credit_s = rate * SAVED.as_secs_f64();
        Self {
            rate,
            account: Mutex::new(Account { at: now, used, credit_s, expected_s: 0.0, expected_until: now }),
        }
    }

    /// May a job begin that takes `cpu_time` and is over after `length`? If so, it is booked.
    pub fn take(&self, cpu_time: Duration, length: Duration) -> bool {
        self.take_at(Instant::now(), sys::cpu_time_of_process(), cpu_time, length)
    }

    fn take_at(&self, now: Instant, used: Duration, cpu_time: Duration, length: Duration) -> bool {
        // A thread that panicked with the lock held has left plain numbers.
        let mut account = self.account.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        account.settle(now, used, self.rate);
        if account.credit_s <= 0.0 {
            return false;
        }
        account.credit_s -= cpu_time.as_secs_f64();
        account.expected_s += cpu_time.as_secs_f64();
        account.expected_until = account.expected_until.max(now + length);
        true
    }
}

impl Account {
    fn settle(&mut self, now: Instant, used: Duration, rate: f64) {
        let fresh_s = used.saturating_sub(self.used).as_secs_f64();
        let expected_s = fresh_s.min(self.expected_s);
        self.expected_s -= expected_s;
        self.credit_s -= fresh_s - expected_s;
        if now >= self.expected_until {
            // The jobs took less.
            self.credit_s += self.expected_s;
            self.expected_s = 0.0;
        }
        self.credit_s += rate * now.saturating_duration_since(self.at).as_secs_f64();
        self.credit_s = self.credit_s.min(rate * SAVED.as_secs_f64());
        self.used = self.used.max(used);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_taken_out_is_not_there_for_the_next() {
        let start = Instant::now();
        let budget = Budget::at(1.0, 2, start, MS);
        assert!(budget.take_at(start, MS, 20 * MS, 20 * MS));
        assert!(!budget.take_at(start, MS, 20 * MS, 20 * MS));
        // 4 ms are owed, 16 come in a second.
        assert!(!budget.take_at(start + 200 * MS, 21 * MS, 20 * MS, 20 * MS));
        assert!(budget.take_at(start + 260 * MS, 21 * MS, 20 * MS, 20 * MS));
    }

    #[test]
    fn what_was_not_used_comes_back_and_what_was_not_announced_is_paid() {
        let start = Instant::now();
        let budget = Budget::at(1.0, 1, start, Duration::ZERO);
        assert!(budget.take_at(start, Duration::ZERO, 100 * MS, 10 * MS));
        assert!(budget.take_at(start + 10 * MS, Duration::ZERO, MS, MS));
        assert!(!budget.take_at(start + 20 * MS, 100 * MS, MS, MS));
    }

    proptest! {
        /// Whatever is asked for, and however long the daemon's own work takes: over ten seconds and
        /// more the process stays inside its budget, except for work that was not booked.
        #[test]
        fn the_budget_holds(lengths_ms in proptest::collection::vec((1u32..40, 1u32..300), 500), cpus in 1usize..64) {
            let start = Instant::now();
            let budget = Budget::at(1.0, cpus, start, Duration::ZERO);
            let (mut now, mut used, mut longest) = (start, Duration::ZERO, Duration::ZERO);
            for (length, pause) in lengths_ms {
                let length = length * MS;
                if budget.take_at(now, used, length, length) {
                    used += length;
                    longest = longest.max(length);
                }
                now += length + pause * MS;
            }
            let time = now - start;
            let allowed = 0.008 * cpus as f64 * (time + SAVED).as_secs_f64() + longest.as_secs_f64();
            prop_assert!(used.as_secs_f64() <= allowed + 1e-6, "{used:?} in {time:?}, allowed {allowed}");
            // And the budget is of use: not less than half of it is taken, if there is enough to do.
            prop_assert!(cpus > 4 || used.as_secs_f64() >= 0.004 * cpus as f64 * time.as_secs_f64());
        }
    }
}
