//! Counter-based random numbers: the n-th number of a stream depends only on the seed, the stream and n. Two
//! schedulers meet the same arrivals and the same service times, whatever they do in between.

use serde::Deserialize;

/// A stream of random numbers. Each entity and purpose has its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    key: u64,
    count: u64,
}

fn mix(mut x: u64) -> u64 {
    // splitmix64 (Steele, Lea and Flood, 2014).
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Stream {
    /// `purpose` and `entity` distinguish the streams of one seed.
    pub fn new(seed: u64, purpose: &str, entity: u64) -> Self {
        let name = purpose.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        });
        Self { key: mix(mix(seed) ^ mix(name) ^ mix(entity.wrapping_mul(0xD134_2543_DE82_EF95))), count: 0 }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.count += 1;
        mix(self.key ^ mix(self.count))
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of 2^-64 times n does not matter here.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Normal, mean 0, variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// A distribution of durations, in microseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "x_dist", rename_all = "lowercase", deny_unknown_fields)]
pub enum Spread {
    /// Always the same.
    Constant {
        /// Value.
        mean: f64,
    },
    /// Exponential.
    Exponential {
        /// Mean.
        mean: f64,
    },
    /// Uniform.
    Uniform {
        /// Least.
        min: f64,
        /// Most.
        max: f64,
    },
    /// Log-normal.
    Lognormal {
        /// Mean.
        mean: f64,
        /// Standard deviation over mean.
        cv: f64,
    },
    /// Two values.
    Bimodal {
        /// Usual value.
        mean: f64,
        /// The other.
        other: f64,
        /// Part of the draws that are the other, 0 to 1.
        part: f64,
    },
}

impl Spread {
    /// Always the same number of microseconds.
    pub fn constant(us: f64) -> Self {
        Spread::Constant { mean: us }
    }

    /// The same, longer by a factor.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        match *self {
            Spread::Constant { mean } => Spread::Constant { mean: mean * factor },
            Spread::Exponential { mean } => Spread::Exponential { mean: mean * factor },
            Spread::Uniform { min, max } => Spread::Uniform { min: min * factor, max: max * factor },
            Spread::Lognormal { mean, cv } => Spread::Lognormal { mean: mean * factor, cv },
            Spread::Bimodal { mean, other, part } => {
                Spread::Bimodal { mean: mean * factor, other: other * factor, part }
            }
        }
    }

    /// Draws a duration, ns. Never more than an hour.
    pub fn draw_ns(&self, stream: &mut Stream) -> u64 {
        let us = match self {
            Spread::Constant { mean } => *mean,
            Spread::Exponential { mean } => -mean * (1.0 - stream.unit()).ln(),
            Spread::Uniform { min, max } => min + (max - min) * stream.unit(),
            Spread::Lognormal { mean, cv } => {
                let variance = (1.0 + cv * cv).ln();
                (mean.ln() - variance / 2.0 + variance.sqrt() * stream.normal()).exp()
            }
            Spread::Bimodal { mean, other, part } => {
                if stream.unit() < *part {
                    *other
                } else {
                    *mean
                }
            }
        };
        (us.clamp(0.0, 3.6e9) * 1000.0).round() as u64
    }

    /// Mean, microseconds.
    pub fn mean_us(&self) -> f64 {
        match self {
            Spread::Constant { mean } | Spread::Exponential { mean } | Spread::Lognormal { mean, .. } => {
                *mean
            }
            Spread::Uniform { min, max } => (min + max) / 2.0,
            Spread::Bimodal { mean, other, part } => mean * (1.0 - part) + other * part,
        }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// A parameter out of range.
    pub fn check(&self) -> Result<(), String> {
        let positive = |x: f64| x.is_finite() && (0.0..=3.6e9).contains(&x);
        let good = match self {
            Spread::Constant { mean } | Spread::Exponential { mean } => positive(*mean),
            Spread::Uniform { min, max } => positive(*min) && positive(*max) && min <= max,
            Spread::Lognormal { mean, cv } => positive(*mean) && *mean > 0.0 && (0.0..=20.0).contains(cv),
            Spread::Bimodal { mean, other, part } => {
                positive(*mean) && positive(*other) && (0.0..=1.0).contains(part)
            }
        };
        if good {
            Ok(())
        } else {
            Err(format!(
                "{self:?}: durations are microseconds from 0 to 3.6e9, cv from 0 to 20, part from 0 to 1"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn streams_do_not_depend_on_each_other() {
        let mut a = Stream::new(1, "arrivals", 0);
        let first = a.next_u64();
        let mut other = Stream::new(1, "arrivals", 1);
        other.next_u64();
        assert_eq!(Stream::new(1, "arrivals", 0).next_u64(), first);
        assert_ne!(Stream::new(1, "arrivals", 1).next_u64(), first);
        assert_ne!(Stream::new(2, "arrivals", 0).next_u64(), first);
        assert_ne!(Stream::new(1, "service", 0).next_u64(), first);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn means_are_kept(mean in 1.0f64..10_000.0, cv in 0.05f64..1.5, seed in any::<u64>()) {
            for spread in [Spread::Exponential { mean }, Spread::Lognormal { mean, cv }, Spread::Uniform { min: 0.0, max: 2.0 * mean }] {
                let mut stream = Stream::new(seed, "test", 0);
                let n = 20_000;
                let sum: u64 = (0..n).map(|_| spread.draw_ns(&mut stream)).sum();
                let found = sum as f64 / f64::from(n) / 1000.0;
                prop_assert!((found / mean - 1.0).abs() < 0.08, "{spread:?}: {found}");
            }
        }

        #[test]
        fn below_is_below(n in 1u64..1_000_000, seed in any::<u64>()) {
            let mut stream = Stream::new(seed, "test", 1);
            for _ in 0..100 {
                prop_assert!(stream.below(n) < n);
            }
        }
    }
}
