//! How long a slice is where nobody says so: as long as the kernel's own fair class has it. Its waits are what operators know, and a
//! woken vCPU waits for about as long as the slices of others last.

use std::path::Path;

/// Where the kernel shows its base slice, and lets it be changed: ns, scaled by the CPUs there are.
pub const BASE_SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";

/// `sysctl_sched_base_slice` before it is scaled, us.
const UNSCALED_US: u64 = 700;
/// More CPUs than this do not make it longer (`get_update_sysctl_factor()`).
const CPUS_MOST: usize = 8;
/// What a slice may be, us.
pub const RANGE_US: std::ops::RangeInclusive<u64> = 500..=100_000;

/// The base slice of EEVDF, us: as the kernel says in `file`, else by its rule for so many CPUs (700 us, times 1 + log2 of them). Within
/// 500 to 100,000 us.
pub fn base_us(file: &Path, cpus: usize) -> u64 {
    let told = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let us = told.map_or_else(|| by_rule_us(cpus), |ns| ns / 1000);
    us.clamp(*RANGE_US.start(), *RANGE_US.end())
}

fn by_rule_us(cpus: usize) -> u64 {
    UNSCALED_US * u64::from(1 + cpus.clamp(1, CPUS_MOST).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_the_kernels_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("base_slice_ns");
        let by_rule = [1, 2, 3, 4, 7, 8, 256].map(|cpus| base_us(&file, cpus));
        assert_eq!(by_rule, [700, 1400, 1400, 2100, 2100, 2800, 2800]);
        for (text, us) in [
            ("3000000\n", 3000),
            ("100000", 500),
            ("999999999999", 100_000),
            ("", 1400),
            ("-5", 1400),
            ("x", 1400),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(base_us(&file, 2), us, "{text:?}");
        }
    }
}
