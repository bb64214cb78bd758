//! Counted CPU work: a chain of dependent integer operations that uses no memory and reads no clock, so that its
//! amount does not depend on scheduling.

use std::hint::black_box;

use crate::{arguments, sys};

const LOOK_EVERY_US: f64 = 20.0;

/// Does `iters` iterations. Each depends on the one before, so neither the compiler nor the CPU can shorten the chain.
pub fn work(iters: u64) {
    black_box(sys::chain(black_box(0x2545_f491_4f6c_dd1d), iters));
}

/// The flag that says how fast this machine works.
#[derive(clap::Args)]
pub struct RateArg {
    /// Iterations of work per microsecond, from `calibrate`; measured at start if not given
    #[arg(long, env = arguments::ITERS_PER_US, value_parser = arguments::iters_per_us)]
    iters_per_us: Option<f64>,
}

impl RateArg {
    /// The rate; if it was not given it is measured now.
    pub fn measured(&self) -> Rate {
        Rate(self.iters_per_us.unwrap_or_else(|| calibrate(30, 1000, 3000)))
    }

    /// The same in a few milliseconds, where the exact amount of work does not matter.
    pub fn measured_roughly(&self) -> Rate {
        Rate(self.iters_per_us.unwrap_or_else(calibrate_roughly))
    }
}

/// Iterations of work per microsecond.
#[derive(Clone, Copy)]
pub struct Rate(f64);

impl Rate {
    /// Iterations per microsecond.
    pub fn iters_per_us(self) -> f64 {
        self.0
    }

    /// Iterations that take this long undisturbed, at least one.
    pub fn iters(self, work_us: f64) -> u64 {
        ((work_us * self.0) as u64).max(1)
    }

    /// As it is reported.
    pub fn in_report(self) -> f64 {
        (self.0 * 1000.0).round() / 1000.0
    }
}

/// Iterations per microsecond of this machine when nothing interrupts it: the maximum over short runs. There are
/// pauses between the runs, so that some of them fall between two preemptions of the vCPU.
pub fn calibrate(runs: u32, run_us: u64, pause_us: u64) -> f64 {
    let mut best = first_guess();
    for _ in 0..runs {
        let iters = ((best * run_us as f64) as u64).max(1);
        best = best.max(measure(iters));
        sys::sleep_until_ns(sys::now_ns() + pause_us * 1000);
    }
    best
}

/// A rough rate, for choosing how often to read the clock; takes about 5 ms.
pub fn calibrate_roughly() -> f64 {
    calibrate(5, 500, 500)
}

/// Iterations between two clock readings: few enough for windows of a few milliseconds, many enough that reading the
/// clock takes no noticeable time. Calibrates roughly.
pub fn between_looks() -> u64 {
    ((calibrate_roughly() * LOOK_EVERY_US) as u64).max(1)
}

/// Doubles the number of iterations until they take 100 us, which any clock resolves.
fn first_guess() -> f64 {
    let mut iters = 1000;
    loop {
        let rate = measure(iters);
        if iters as f64 / rate >= 100.0 {
            return rate;
        }
        iters *= 2;
    }
}

/// Iterations per microsecond of one run.
fn measure(iters: u64) -> f64 {
    let start_ns = sys::now_ns();
    work(iters);
    iters as f64 * 1000.0 / (sys::now_ns() - start_ns).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_that_of_xorshift() {
        let step = |mut state: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^ (state << 17)
        };
        let wanted = (0..1000).fold(1, |state, _| step(state));
        assert_eq!(sys::chain(1, 1000), wanted);
        assert_eq!(sys::chain(7, 0), 7);
        assert_eq!(sys::chain(1, 1), step(1));
    }

    #[test]
    fn work_is_not_optimised_away_and_calibration_is_plausible() {
        let rate = calibrate_roughly();
        // No CPU does three dependent operations in less than a tenth of a nanosecond; no emulator needs 10 us.
        assert!(rate > 0.1 && rate < 10_000.0, "{rate}");
    }
}
