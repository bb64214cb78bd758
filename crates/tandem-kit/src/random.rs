//! Counter-based random numbers: number *i* of a stream depends on seed, stream and *i* alone. So two schedulers get
//! identical arrivals and service times, whatever the interleaving of threads.

/// One independent stream.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// Stream number `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        Stream { key: mix(mix(seed) ^ stream.wrapping_mul(0xd134_2543_de82_ef95)) }
    }

    /// 64 random bits, number `index` of the stream.
    pub fn bits(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Exponentially distributed with the given mean, above 0.
    pub fn exponential(self, index: u64, mean: f64) -> f64 {
        // In (0, 1]: the logarithm of 0 is infinite.
        let uniform = ((self.bits(index) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -mean * uniform.ln()
    }
}

/// The finaliser of SplitMix64.
fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_has_its_mean_and_spread() {
        let stream = Stream::new(1, 0);
        let samples: Vec<f64> = (0..20_000).map(|i| stream.exponential(i, 5.0)).collect();
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / samples.len() as f64;
        assert!((mean - 5.0).abs() < 0.15, "{mean}");
        assert!((variance.sqrt() - 5.0).abs() < 0.3, "{variance}");
        assert!(samples.iter().all(|&s| s >= 0.0));
    }

    #[test]
    fn streams_and_seeds_differ_and_repeat() {
        let first: Vec<u64> = (0..4).map(|i| Stream::new(1, 0).bits(i)).collect();
        assert_eq!(first, (0..4).map(|i| Stream::new(1, 0).bits(i)).collect::<Vec<_>>());
        assert_ne!(first, (0..4).map(|i| Stream::new(1, 1).bits(i)).collect::<Vec<_>>());
        assert_ne!(first, (0..4).map(|i| Stream::new(2, 0).bits(i)).collect::<Vec<_>>());
    }
}
