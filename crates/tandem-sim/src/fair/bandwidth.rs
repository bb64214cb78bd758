//! `cpu.max`: a pool per group that is refilled each period, and handed out to CPUs in slices of 5 ms.

/// What a CPU takes at a time, ns (`sched_cfs_bandwidth_slice_us`).
const SLICE_NS: i64 = 5_000_000;

/// A group's quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bandwidth {
    /// Run time per period, ns.
    pub quota_ns: u64,
    /// Period, ns.
    pub period_ns: u64,
    /// Unused quota that may accumulate beyond the quota (burst), ns.
    pub burst_ns: u64,
    pool_ns: i64,
}

impl Bandwidth {
    /// A full pool.
    pub fn new(quota_ns: u64, period_ns: u64, burst_ns: u64) -> Self {
        Self { quota_ns, period_ns, burst_ns, pool_ns: quota_ns as i64 }
    }

    /// Changes the limit from the next period on; what is in the pool beyond it is lost.
    pub fn set(&mut self, quota_ns: u64, period_ns: u64) {
        self.quota_ns = quota_ns;
        self.period_ns = period_ns;
        self.pool_ns = self.pool_ns.min((quota_ns + self.burst_ns) as i64);
    }

    /// Refills a CPU's local quota `left_ns` up to a slice. Returns whether the group may run there.
    pub(super) fn give(&mut self, left_ns: &mut i64) -> bool {
        let wanted = (SLICE_NS - *left_ns).max(0);
        let given = wanted.min(self.pool_ns.max(0));
        self.pool_ns -= given;
        *left_ns += given;
        *left_ns > 0
    }

    /// Begins a new period.
    pub(super) fn refill(&mut self) {
        let most = (self.quota_ns + self.burst_ns) as i64;
        self.pool_ns = (self.pool_ns + self.quota_ns as i64).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_time_is_made(quota in 1u64..50_000_000, wants in prop::collection::vec(0i64..20_000_000, 1..40)) {
            let mut bandwidth = Bandwidth::new(quota, 100_000_000, 0);
            let mut given = 0;
            for debt in wants {
                let mut left = -debt;
                let before = left;
                let runs = bandwidth.give(&mut left);
                prop_assert_eq!(runs, left > 0);
                given += left - before;
            }
            prop_assert!(given <= quota as i64);
        }
    }
}
