//! Latency histogram of fixed size: any number of samples, percentiles within 0.4 %.

use serde::Serialize;

/// 2^7 buckets per power of two: a bucket is at most 1/128 of its value wide, so its middle is at most 0.4 % off.
const SUB_BITS: u32 = 7;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB_BUCKETS;

/// Counts of nanosecond values in logarithmic buckets.
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    sum_ns: u128,
    max_ns: u64,
}

/// Summary of a histogram. All times are in microseconds, 0 without samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
    pub mean: f64,
}

impl Histogram {
    pub fn new() -> Self {
        Histogram { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0, sum_ns: 0, max_ns: 0 }
    }

    pub fn record(&mut self, value_ns: u64) {
        self.counts[bucket_of(value_ns)] += 1;
        self.total += 1;
        self.sum_ns += u128::from(value_ns);
        self.max_ns = self.max_ns.max(value_ns);
    }

    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Sum of the samples in nanoseconds.
    pub fn sum_ns(&self) -> u128 {
        self.sum_ns
    }

    /// The smallest recorded value that at least `pct` percent of the samples do not exceed, within 0.4 %.
    pub fn percentile_ns(&self, pct: f64) -> u64 {
        let rank = ((pct / 100.0 * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    pub fn summary_us(&self) -> Summary {
        let percentile = |pct| to_us(self.percentile_ns(pct) as f64);
        let mean_ns = if self.total == 0 { 0.0 } else { self.sum_ns as f64 / self.total as f64 };
        Summary {
            p50: percentile(50.0),
            p90: percentile(90.0),
            p95: percentile(95.0),
            p99: percentile(99.0),
            p99_9: percentile(99.9),
            max: to_us(self.max_ns as f64),
            mean: to_us(mean_ns),
        }
    }
}

/// Microseconds, rounded to nanoseconds, so that the JSON stays short.
fn to_us(value_ns: f64) -> f64 {
    value_ns.round() / 1000.0
}

fn bucket_of(value: u64) -> usize {
    if value < SUB_BUCKETS as u64 {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    (shift as usize + 1) * SUB_BUCKETS + (value >> shift) as usize - SUB_BUCKETS
}

fn middle_of(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64;
    }
    let shift = bucket / SUB_BUCKETS - 1;
    let low = ((SUB_BUCKETS + bucket % SUB_BUCKETS) as u64) << shift;
    low + ((1u64 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_is_all_zero() {
        let summary = Histogram::new().summary_us();
        assert_eq!((summary.p99, summary.max, summary.mean), (0.0, 0.0, 0.0));
    }

    #[test]
    fn extremes_have_a_bucket() {
        let mut histogram = Histogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.percentile_ns(1.0), 0);
        assert!(histogram.percentile_ns(100.0) > u64::MAX / 128 * 127);
    }

    proptest! {
        #[test]
        fn percentiles_match_the_sorted_samples(mut samples in prop::collection::vec(0u64..10_000_000_000, 1..300), pct in 0.1f64..100.0) {
            let mut histogram = Histogram::new();
            samples.iter().for_each(|&sample| histogram.record(sample));
            samples.sort_unstable();
            let rank = ((pct / 100.0 * samples.len() as f64).ceil() as usize).clamp(1, samples.len());
            let exact = samples[rank - 1] as f64;
            let found = histogram.percentile_ns(pct) as f64;
            prop_assert!((found - exact).abs() <= exact * 0.004 + 0.5, "{} instead of {}", found, exact);
        }

        #[test]
        fn merging_is_recording_together(a in prop::collection::vec(0u64..1_000_000, 0..50), b in prop::collection::vec(0u64..1_000_000, 0..50)) {
            let (mut first, mut second, mut both) = (Histogram::new(), Histogram::new(), Histogram::new());
            a.iter().for_each(|&v| { first.record(v); both.record(v); });
            b.iter().for_each(|&v| { second.record(v); both.record(v); });
            first.merge(&second);
            prop_assert_eq!(first.summary_us(), both.summary_us());
            prop_assert_eq!(first.count(), both.count());
        }

        #[test]
        fn buckets_are_contiguous_and_ordered(value in 0u64..u64::MAX) {
            let (this, next) = (bucket_of(value), bucket_of(value + 1));
            prop_assert!(next == this || next == this + 1);
            prop_assert!(next < BUCKETS);
            prop_assert_eq!(bucket_of(middle_of(this)), this);
        }
    }
}
