//! A stopwatch for the policies of a machine: what their decisions cost on the computer that simulates them.

use std::time::{Duration, Instant};

/// Measurements. Times are real times of this computer, not simulated ones. They include the simulator's stand-ins
/// for kernel functions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Watch {
    /// Time in callbacks other than the refresh of group weights.
    pub deciding: Duration,
    /// Number of tasks that were switched in.
    pub decisions: u64,
    /// Time in the refresh of group weights.
    pub refreshing: Duration,
    /// Number of refreshes.
    pub refreshes: u64,
    /// Cost of reading the clock, subtracted from each time.
    reading: Duration,
}

impl Watch {
    /// Measures the cost of reading the clock, and begins.
    pub fn start() -> Self {
        let readings = 10_000;
        let began = Instant::now();
        for _ in 0..readings {
            std::hint::black_box(Instant::now());
        }
        Self { reading: began.elapsed() / readings, ..Self::default() }
    }

    /// A callback that began at `began` has returned.
    pub(super) fn returned(&mut self, began: Instant, refresh: bool) {
        let length = began.elapsed().saturating_sub(self.reading);
        if refresh {
            self.refreshing += length;
            self.refreshes += 1;
        } else {
            self.deciding += length;
        }
    }

    /// Nanoseconds per task that was switched in.
    pub fn ns_per_decision(&self) -> f64 {
        self.deciding.as_nanos() as f64 / self.decisions.max(1) as f64
    }

    /// Microseconds per refresh of group weights.
    pub fn us_per_refresh(&self) -> f64 {
        self.refreshing.as_nanos() as f64 / 1e3 / self.refreshes.max(1) as f64
    }
}
