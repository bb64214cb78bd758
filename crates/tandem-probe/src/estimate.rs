//! Smoothed estimates with their age and confidence.

/// Remaining weight of an old value after one period: half of it after two (vSched, table 1).
const FADE: f64 = std::f64::consts::FRAC_1_SQRT_2;
/// Number of latest samples from which the spread is computed.
const SPREAD_WINDOW: usize = 6;

/// An exponentially weighted mean without a start bias: the first sample counts fully.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Estimate {
    sum: f64,
    weight: f64,
    latest: Vec<f64>,
    updated_ns: Option<u64>,
}

impl Estimate {
    /// Adds a sample taken at `now_ns`. Values that are not finite are ignored.
    pub fn add(&mut self, sample: f64, now_ns: u64) {
        if !sample.is_finite() {
            return;
        }
        self.sum = sample + FADE * self.sum;
        self.weight = 1.0 + FADE * self.weight;
        if self.latest.len() == SPREAD_WINDOW {
            self.latest.remove(0);
        }
        self.latest.push(sample);
        self.updated_ns = Some(now_ns);
    }

    /// The estimate; `None` if nothing was measured.
    pub fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }

    /// Age, ns. If the clock went back, the age is 0, not huge.
    pub fn age_ns(&self, now_ns: u64) -> Option<u64> {
        self.updated_ns.map(|at| now_ns.saturating_sub(at))
    }

    /// Standard deviation of the latest samples; `None` if there are fewer than two.
    pub fn spread(&self) -> Option<f64> {
        let n = self.latest.len() as f64;
        (n >= 2.0).then(|| {
            let mean = self.latest.iter().sum::<f64>() / n;
            (self.latest.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
        })
    }

    /// Confidence, 0 to 1: grows with the number of samples, falls with their spread and with age (`half_ns`: age at
    /// which half of it is left).
    pub fn confidence(&self, now_ns: u64, half_ns: u64) -> f64 {
        let (Some(value), Some(age)) = (self.value(), self.age_ns(now_ns)) else { return 0.0 };
        let samples = 1.0 - 0.5f64.powi(self.latest.len() as i32);
        let steady = 1.0 / (1.0 + self.spread().unwrap_or(0.0) / value.abs().max(1e-9));
        samples * steady * 0.5f64.powf(age as f64 / half_ns.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_of_the_old_is_left_after_two_periods() {
        let mut estimate = Estimate::default();
        for _ in 0..100 {
            estimate.add(1.0, 0);
        }
        estimate.add(0.0, 1);
        estimate.add(0.0, 2);
        assert!((estimate.value().unwrap() - 0.5).abs() < 1e-6);
    }

    #[test]
    fn nothing_measured_is_nothing_known() {
        let mut estimate = Estimate::default();
        estimate.add(f64::NAN, 5);
        assert_eq!((estimate.value(), estimate.age_ns(9)), (None, None));
        assert_eq!(estimate.confidence(9, 1000), 0.0);
        estimate.add(0.3, 5);
        assert_eq!(estimate.value(), Some(0.3), "the first sample counts fully");
        assert!(estimate.confidence(5, 1000) > estimate.confidence(5000, 1000));
        assert_eq!(estimate.age_ns(0), Some(0), "the clock went back");
    }

    proptest! {
        #[test]
        fn stays_within_what_was_measured(samples in prop::collection::vec(0.0f64..1.0, 1..40)) {
            let mut estimate = Estimate::default();
            for (i, sample) in samples.iter().enumerate() {
                estimate.add(*sample, i as u64);
            }
            let (least, most) = samples.iter().fold((1.0f64, 0.0f64), |(a, b), s| (a.min(*s), b.max(*s)));
            let value = estimate.value().unwrap();
            prop_assert!(value >= least - 1e-9 && value <= most + 1e-9);
            prop_assert!((0.0..=1.0).contains(&estimate.confidence(100, 50)));
        }
    }
}
