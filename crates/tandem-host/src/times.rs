//! Histograms of times, as the BPF side keeps them.

use serde::{Serialize, Serializer};
use tandem_bpf::observe::intf;

/// Buckets of a histogram: bucket `i` counts times below `2^i` µs and not below `2^(i-1)` µs; the last one all longer ones.
pub const BUCKETS: usize = intf::NR_TIME_BUCKETS as usize;

/// How long something took, each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// How often.
    pub count: u64,
    /// Sum, ns.
    pub sum_ns: u64,
    /// Each bucket's count.
    pub buckets: [u64; BUCKETS],
}

impl From<&intf::time_histogram> for Times {
    fn from(h: &intf::time_histogram) -> Self {
        Self { count: h.count, sum_ns: h.sum_ns, buckets: h.buckets }
    }
}

impl Times {
    /// What has come since an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut buckets = [0; BUCKETS];
        for (bucket, (now, then)) in buckets.iter_mut().zip(self.buckets.iter().zip(&earlier.buckets)) {
            *bucket = now.saturating_sub(*then);
        }
        Self {
            count: self.count.saturating_sub(earlier.count),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets,
        }
    }

    /// Both together.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let mut sum = *self;
        sum.count += other.count;
        sum.sum_ns = sum.sum_ns.saturating_add(other.sum_ns);
        for (bucket, more) in sum.buckets.iter_mut().zip(&other.buckets) {
            *bucket += more;
        }
        sum
    }

    /// Mean, ns; none: there was none.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_ns as f64 / self.count as f64)
    }

    /// Time that the part `q` (0 to 1) of all times does not exceed, ns, by linear interpolation inside of a bucket; none: there was none.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        let total: u64 = self.buckets.iter().sum();
        if total == 0 {
            return None;
        }
        let rank = q.clamp(0.0, 1.0) * total as f64;
        let mut before = 0.0;
        for (i, count) in self.buckets.iter().enumerate() {
            let count = *count as f64;
            if count > 0.0 && before + count >= rank {
                let (low, high) = bounds_us(i);
                return Some((low + (high - low) * ((rank - before) / count)) * 1000.0);
            }
            before += count;
        }
        None
    }
}

/// Bounds of a bucket, µs.
fn bounds_us(bucket: usize) -> (f64, f64) {
    let high = (1_u64 << bucket) as f64;
    (if bucket == 0 { 0.0 } else { high / 2.0 }, high)
}

/// For people and programs: mean and quantiles in µs, and the buckets by their upper bound in µs.
impl Serialize for Times {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let us = |ns: Option<f64>| ns.map(|ns| (ns / 10.0).round() / 100.0);
        let last = self.buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let buckets: Vec<(u64, u64)> =
            self.buckets[..last].iter().enumerate().map(|(i, count)| (1 << i, *count)).collect();
        let mut map = serializer.serialize_map(Some(6))?;
        map.serialize_entry("count", &self.count)?;
        map.serialize_entry("mean_us", &us(self.mean_ns()))?;
        map.serialize_entry("p50_us", &us(self.quantile_ns(0.5)))?;
        map.serialize_entry("p95_us", &us(self.quantile_ns(0.95)))?;
        map.serialize_entry("p99_us", &us(self.quantile_ns(0.99)))?;
        map.serialize_entry("buckets_us", &buckets)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As the BPF side does it.
    fn of(times_ns: &[u64]) -> Times {
        let mut times = Times::default();
        for ns in times_ns {
            let us = ns / 1000;
            let bucket = (u64::BITS - us.leading_zeros()) as usize;
            times.count += 1;
            times.sum_ns += ns;
            times.buckets[bucket.min(BUCKETS - 1)] += 1;
        }
        times
    }

    #[test]
    fn mean_and_quantiles_are_those_of_the_times() {
        let times = of(&[1_000_000; 99].into_iter().chain([64_000_000]).collect::<Vec<_>>());
        assert_eq!(times.mean_ns(), Some(1_630_000.0));
        let p50 = times.quantile_ns(0.5).unwrap();
        assert!((512_000.0..=1_024_000.0).contains(&p50), "{p50}");
        let max = times.quantile_ns(1.0).unwrap();
        assert!((32_768_000.0..=65_536_000.0).contains(&max), "{max}");
    }

    #[test]
    fn nothing_has_neither_mean_nor_quantile() {
        assert_eq!(Times::default().mean_ns(), None);
        assert_eq!(Times::default().quantile_ns(0.5), None);
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_a_factor_of_two(times_ns in prop::collection::vec(1_000..4_000_000_000_u64, 1..200), q in 0.01..1.0f64) {
            let quantile = of(&times_ns).quantile_ns(q).unwrap();
            let mut sorted = times_ns.clone();
            sorted.sort_unstable();
            let at = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len()) - 1;
            let exact = sorted[at] as f64;
            prop_assert!(quantile <= 2.0 * exact + 1000.0 && 2.0 * quantile + 1000.0 >= exact, "{} for {}", quantile, exact);
        }

        #[test]
        fn what_came_since_is_what_was_added(before in prop::collection::vec(0..1_000_000_000_u64, 0..50), after in prop::collection::vec(0..1_000_000_000_u64, 0..50)) {
            let all: Vec<u64> = before.iter().chain(&after).copied().collect();
            prop_assert_eq!(of(&all).since(&of(&before)), of(&after));
            prop_assert_eq!(of(&before).with(&of(&after)), of(&all));
        }
    }
}
