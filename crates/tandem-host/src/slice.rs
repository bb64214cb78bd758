//! How long a slice is where nobody says so: as long as the kernel's own fair class has it, and 3 ms at the least. Its waits are what operators know,
//! and a woken vCPU waits for about as long as the slices of others last. But the kernel's is shorter the fewer CPUs there are, and a vCPU that is
//! preempted holds up its siblings. (Measured on two pCPUs with barrier programs in two VMs, five boots: with 1.4 ms, the kernel's there, 0.35 and 0.51
//! of EEVDF's rounds, with 3 ms 0.68 and 0.95; in another five 0.36 and 0.47, and 0.87 and 1.08.)

use std::path::Path;
use tandem_bpf::host::intf;

/// Where the kernel shows its base slice, and lets it be changed: ns, scaled by the CPUs there are.
pub const BASE_SLICE: &str = "/sys/kernel/debug/sched/base_slice_ns";

/// Shortest default, us: the base request, 3 ms. EEVDF's base slice with 8 CPUs and more is about as long (2.8 ms).
const LEAST_US: u64 = intf::TANDEM_REQUEST_NS as u64 / 1000;
/// What a slice may be, us.
pub const RANGE_US: std::ops::RangeInclusive<u64> = 500..=100_000;

/// The default, us: as the kernel says in `file`, within 3,000 and 100,000 us.
pub fn base_us(file: &Path) -> u64 {
    let told = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    told.map_or(LEAST_US, |ns| ns / 1000).clamp(LEAST_US, *RANGE_US.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_the_kernels_own_and_3_ms_at_the_least() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("base_slice_ns");
        assert_eq!(base_us(&file), 3000, "the kernel does not say");
        for (text, us) in [
            ("1400000\n", 3000),
            ("11000000", 11_000),
            ("999999999999", 100_000),
            ("", 3000),
            ("-5", 3000),
            ("x", 3000),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(base_us(&file), us, "{text:?}");
        }
    }
}
