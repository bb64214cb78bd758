//! Counted CPU work: a chain of dependent integer operations that needs no memory and reads no clock, so that its
//! amount does not depend on how it is scheduled.

use std::hint::black_box;

use crate::sys;

const LOOK_EVERY_US: f64 = 20.0;

/// Does `iters` iterations. Each depends on the last, so neither the compiler nor the CPU can shorten the chain.
#[inline(never)]
pub fn work(iters: u64) {
    let mut state = black_box(0x2545_f491_4f6c_dd1d_u64);
    for _ in 0..iters {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

/// How many iterations this machine does in a microsecond when nothing interrupts it: the maximum over short
/// runs, with pauses between them so that some fall into an active period of the vCPU.
pub fn calibrate(runs: u32, run_us: u64, pause_us: u64) -> f64 {
    let mut best = first_guess();
    for _ in 0..runs {
        let iters = ((best * run_us as f64) as u64).max(1);
        best = best.max(measure(iters));
        sys::sleep_until_ns(sys::now_ns() + pause_us * 1000);
    }
    best
}

/// A rate good enough for choosing how often to look at the clock; takes about 5 ms.
pub fn calibrate_roughly() -> f64 {
    calibrate(5, 500, 500)
}

/// Iterations between two looks at the clock: often enough for windows of a few milliseconds, seldom enough that the
/// work and not the clock is what is measured. Calibrates roughly.
pub fn between_looks() -> u64 {
    ((calibrate_roughly() * LOOK_EVERY_US) as u64).max(1)
}

/// Doubles the amount until it takes 100 us, which any clock resolves.
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
    fn work_is_not_optimised_away_and_calibration_is_plausible() {
        let rate = calibrate_roughly();
        // No CPU does three dependent operations in less than a tenth of a nanosecond; no emulator needs 10 us.
        assert!(rate > 0.1 && rate < 10_000.0, "{rate}");
    }
}
