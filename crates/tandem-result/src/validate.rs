//! Checks whether a document is a valid result. Runs on everything read, and before everything written.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::ResultError;
use crate::schema::{ExperimentResult, Metric, SCHEMA};

impl ExperimentResult {
    /// Reads and checks a document.
    ///
    /// # Errors
    /// Not JSON, another schema, a missing field, or a document that contradicts itself; see [`Self::validate`].
    pub fn from_json(text: &str) -> Result<Self, ResultError> {
        // Check the schema first: "missing field" would be a misleading error for another version's file.
        let document: Value = serde_json::from_str(text)?;
        match document.get("schema") {
            Some(Value::String(schema)) if schema == SCHEMA => {}
            Some(other) => return Err(ResultError::Schema { found: other.to_string() }),
            None => return Err(ResultError::Schema { found: "missing".to_owned() }),
        }
        // Read again from the text, so that an error carries its line and column.
        let result: ExperimentResult = serde_json::from_str(text)?;
        result.validate()?;
        Ok(result)
    }

    /// Checks what the types cannot express: known schema, a name, at least one attempt and no more rig failures than
    /// attempts, unique arms, a baseline among them, unique metrics, samples and ratios only of listed arms, and only
    /// finite numbers.
    ///
    /// # Errors
    /// The first contradiction found, with the field it is in.
    pub fn validate(&self) -> Result<(), ResultError> {
        if self.schema != SCHEMA {
            return Err(ResultError::Schema { found: format!("{:?}", self.schema) });
        }
        if self.experiment.is_empty() {
            return invalid("experiment", "is empty; a result names its experiment");
        }
        if self.rig_failures > self.attempts {
            return invalid(
                "rig_failures",
                format!("{} of {} attempts; cannot exceed attempts", self.rig_failures, self.attempts),
            );
        }
        check_arms(&self.arms, &self.baseline)?;
        let mut names = BTreeSet::new();
        for metric in &self.metrics {
            if metric.name.is_empty() {
                return invalid("metrics", "a metric has an empty name");
            }
            if !names.insert(metric.name.as_str()) {
                return invalid("metrics", format!("{:?} is there twice; names are unique", metric.name));
            }
            check_metric(metric, &self.arms, &self.baseline)?;
        }
        for (name, value) in &self.noise {
            check_finite(&format!("noise[{name:?}]"), *value)?;
        }
        Ok(())
    }
}

fn check_arms(arms: &[String], baseline: &str) -> Result<(), ResultError> {
    let mut seen = BTreeSet::new();
    for arm in arms {
        if arm.is_empty() {
            return invalid("arms", "an arm has an empty name");
        }
        if !seen.insert(arm) {
            return invalid("arms", format!("{arm:?} is there twice; names are unique"));
        }
    }
    if !arms.iter().any(|arm| arm == baseline) {
        return invalid("baseline", format!("{baseline:?} is not one of the arms {arms:?}"));
    }
    Ok(())
}

fn check_metric(metric: &Metric, arms: &[String], baseline: &str) -> Result<(), ResultError> {
    let place = format!("metrics[{:?}]", metric.name);
    for (arm, samples) in &metric.samples {
        let place = format!("{place}.samples[{arm:?}]");
        check_listed(&place, arm, arms)?;
        for (index, &sample) in samples.iter().enumerate() {
            check_finite(&format!("{place}[{index}]"), sample)?;
        }
    }
    for (arm, ratio) in &metric.ratio {
        let place = format!("{place}.ratio[{arm:?}]");
        check_listed(&place, arm, arms)?;
        if arm == baseline {
            return invalid(place, "is the baseline, which has no ratio to itself");
        }
        let [low, high] = ratio.ci95;
        for (part, value) in [("median", ratio.median), ("ci95[0]", low), ("ci95[1]", high)] {
            check_finite(&format!("{place}.{part}"), value)?;
        }
        if low > high {
            return invalid(format!("{place}.ci95"), format!("[{low}, {high}] is not in ascending order"));
        }
    }
    Ok(())
}

fn check_listed(place: &str, arm: &str, arms: &[String]) -> Result<(), ResultError> {
    if arms.iter().any(|listed| listed == arm) {
        return Ok(());
    }
    invalid(place, format!("arm {arm:?} is not one of the arms {arms:?}"))
}

fn check_finite(place: &str, value: f64) -> Result<(), ResultError> {
    if value.is_finite() {
        return Ok(());
    }
    invalid(place, format!("is {value}; only finite numbers are results"))
}

fn invalid<T>(place: impl Into<String>, problem: impl Into<String>) -> Result<T, ResultError> {
    Err(ResultError::Invalid { place: place.into(), problem: problem.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Better, Evidence};
    use crate::stats::Ratio;
    use proptest::prelude::*;

    fn sample_result() -> ExperimentResult {
        let mut result =
            ExperimentResult::new("guest-weak", Evidence::Kernel, "eevdf", &["eevdf", "tandem"], 1);
        let metric = result.metric_mut("p95", "us", Better::Lower);
        for rep in 0..10 {
            metric.push("eevdf", 900.0 + f64::from(rep));
            metric.push("tandem", 300.0 + f64::from(rep));
        }
        result.compute_ratios(true);
        result
    }

    fn problem_after(change: impl FnOnce(&mut ExperimentResult)) -> String {
        let mut result = sample_result();
        change(&mut result);
        result.validate().unwrap_err().to_string()
    }

    #[test]
    fn a_good_result_passes_and_each_contradiction_is_named() {
        sample_result().validate().unwrap();
        let unlisted = problem_after(|r| r.metrics[0].push("lavd", 1.0));
        assert_eq!(
            unlisted,
            r#"metrics["p95"].samples["lavd"]: arm "lavd" is not one of the arms ["eevdf", "tandem"]"#
        );
        assert!(problem_after(|r| r.metrics[0].push("tandem", f64::NAN)).contains(r#""tandem"][10]: is NaN"#));
        assert!(problem_after(|r| r.baseline = "cfs".into()).starts_with("baseline:"));
        assert!(problem_after(|r| r.arms.push("eevdf".into())).contains("twice"));
        assert!(problem_after(|r| r.rig_failures = 2).starts_with("rig_failures:"));
        assert!(problem_after(|r| r.schema = "tandem.result/2".into()).contains("tandem.result/2"));
        assert!(problem_after(|r| r.experiment.clear()).starts_with("experiment:"));
        assert!(problem_after(|r| r.metrics.push(r.metrics[0].clone())).contains("twice"));
        assert!(problem_after(|r| _ = r.noise.insert("steal".into(), f64::INFINITY)).starts_with("noise"));
        let ratio = Ratio { median: 1.0, ci95: [2.0, 1.0] };
        assert!(
            problem_after(|r| _ = r.metrics[0].ratio.insert("tandem".into(), ratio)).contains("ascending")
        );
        let ratio = Ratio { median: 1.0, ci95: [1.0, 1.0] };
        assert!(problem_after(|r| _ = r.metrics[0].ratio.insert("eevdf".into(), ratio)).contains("itself"));
    }

    #[test]
    fn errors_of_reading_are_one_clear_line() {
        let schema = ExperimentResult::from_json(r#"{"schema":"other/1"}"#).unwrap_err().to_string();
        assert_eq!(schema, r#"schema is "other/1"; this program reads "tandem.result/1""#);
        let none = ExperimentResult::from_json("{}").unwrap_err().to_string();
        assert!(none.starts_with("schema is missing"), "{none}");
        let missing = ExperimentResult::from_json(r#"{"schema":"tandem.result/1"}"#).unwrap_err().to_string();
        assert!(missing.contains("missing field `experiment`") && missing.contains("line 1"), "{missing}");
        let text = serde_json::to_string(&sample_result()).unwrap().replace("900.0", "1e999");
        assert!(ExperimentResult::from_json(&text).is_err(), "a number beyond a double is no result");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn any_bytes_are_read_or_refused(text in ".{0,200}") {
            prop_assert!(ExperimentResult::from_json(&text).is_err());
        }

        #[test]
        fn what_is_written_is_read_back(
            seed: u64, samples in prop::collection::vec((0.001f64..1e12, 0.0f64..1e12), 0..20), reason in ".{0,40}",
        ) {
            let mut result = ExperimentResult::new("round trip", Evidence::Model, "a", &["a", "b"], seed);
            result.reason = reason;
            let metric = result.metric_mut("m", "", Better::Higher);
            for (a, b) in samples {
                metric.push("a", a);
                metric.push("b", b);
            }
            result.compute_ratios(true);
            let text = serde_json::to_string(&result).unwrap();
            prop_assert_eq!(ExperimentResult::from_json(&text).unwrap(), result);
        }
    }
}
