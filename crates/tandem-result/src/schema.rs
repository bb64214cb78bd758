//! The types of `tandem.result/1`, field by field.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stats::{ratio_ci95, Ratio};

/// The schema that this crate reads and writes.
pub const SCHEMA: &str = "tandem.result/1";

/// How a figure was obtained. The levels are never mixed in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// Measured on real kernels in the lab.
    Kernel,
    /// Computed by the simulator.
    Model,
}

/// Whether the run as a whole is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunVerdict {
    /// All phases ran and the machine was quiet enough.
    Ok,
    /// The run was disturbed from outside, or the rig failed: its figures prove nothing.
    Inconclusive,
    /// The software under test failed.
    Failed,
}

/// The direction in which a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better (throughput, work).
    Higher,
    /// Less is better (latency, time).
    Lower,
}

/// One measured quantity with the samples of every arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// What was measured, unique in its result, e.g. `requests p95`.
    pub name: String,
    /// Unit of the samples, e.g. `us` or `1/s`; may be empty for pure numbers.
    pub unit: String,
    /// Direction of improvement.
    pub better: Better,
    /// Samples per arm, in the order in which they were taken; one per repetition.
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Ratio per non-baseline arm; absent where the samples do not allow one.
    #[serde(default)]
    pub ratio: BTreeMap<String, Ratio>,
}

/// A complete `tandem.result/1` document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Name of the experiment.
    pub experiment: String,
    /// How the figures were obtained.
    pub evidence: Evidence,
    /// Facts about the machine: `kernel`, `qemu`, `cpus`, ...
    pub machine: BTreeMap<String, Value>,
    /// Seed of every random stream of the run.
    pub seed: u64,
    /// Number of attempts that were needed, the successful one included.
    pub attempts: u32,
    /// Attempts lost to the rig (not to the software under test).
    pub rig_failures: u32,
    /// Whether the run is valid.
    pub verdict: RunVerdict,
    /// Reason for the verdict; empty if there is nothing to say.
    #[serde(default)]
    pub reason: String,
    /// The arm that ratios refer to; one of `arms`.
    pub baseline: String,
    /// All arms, in display order.
    pub arms: Vec<String>,
    /// The measured quantities, in display order.
    pub metrics: Vec<Metric>,
    /// Disturbance from outside, e.g. `outer_steal_pct`.
    #[serde(default)]
    pub noise: BTreeMap<String, f64>,
    /// Other data (delivered contention, the host's accounting, scheduler statistics).
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl Metric {
    /// A metric without samples.
    pub fn new(name: impl Into<String>, unit: impl Into<String>, better: Better) -> Self {
        Metric {
            name: name.into(),
            unit: unit.into(),
            better,
            samples: BTreeMap::new(),
            ratio: BTreeMap::new(),
        }
    }

    /// Appends one sample of `arm`.
    pub fn push(&mut self, arm: &str, sample: f64) {
        self.samples.entry(arm.to_owned()).or_default().push(sample);
    }

    /// The samples of `arm`; empty if it has none.
    pub fn samples_of(&self, arm: &str) -> &[f64] {
        self.samples.get(arm).map_or(&[], Vec::as_slice)
    }

    /// Fills `ratio` for every arm except `baseline`. An arm whose samples allow no ratio with an interval (too few
    /// samples, or a baseline at zero) gets none, and the table says so.
    ///
    /// `paired`: sample *i* of the baseline and sample *i* of an arm belong to the same repetition.
    pub fn compute_ratios(&mut self, baseline: &str, paired: bool, seed: u64) {
        let base = self.samples_of(baseline).to_vec();
        self.ratio = self
            .samples
            .iter()
            .filter(|(arm, _)| arm.as_str() != baseline)
            .filter_map(|(arm, samples)| Some((arm.clone(), ratio_ci95(&base, samples, paired, seed).ok()?)))
            .collect();
    }
}

impl ExperimentResult {
    /// An empty result with verdict *ok* and one attempt, to be filled in.
    pub fn new(experiment: &str, evidence: Evidence, baseline: &str, arms: &[&str], seed: u64) -> Self {
        ExperimentResult {
            schema: SCHEMA.to_owned(),
            experiment: experiment.to_owned(),
            evidence,
            machine: BTreeMap::new(),
            seed,
            attempts: 1,
            rig_failures: 0,
            verdict: RunVerdict::Ok,
            reason: String::new(),
            baseline: baseline.to_owned(),
            arms: arms.iter().map(|&arm| arm.to_owned()).collect(),
            metrics: Vec::new(),
            noise: BTreeMap::new(),
            details: Value::Null,
        }
    }

    /// Fills the ratios of all metrics; see [`Metric::compute_ratios`].
    pub fn compute_ratios(&mut self, paired: bool) {
        for metric in &mut self.metrics {
            metric.compute_ratios(&self.baseline, paired, self.seed);
        }
    }

    /// The metric called `name`, created with this unit and direction if it does not exist yet.
    pub fn metric_mut(&mut self, name: &str, unit: &str, better: Better) -> &mut Metric {
        let index = self.metrics.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            self.metrics.push(Metric::new(name, unit, better));
            self.metrics.len() - 1
        });
        &mut self.metrics[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_are_the_documented_ones() {
        let mut result = ExperimentResult::new("x", Evidence::Model, "a", &["a", "b"], 7);
        let metric = result.metric_mut("m", "us", Better::Lower);
        for _ in 0..8 {
            metric.push("a", 2.0);
            metric.push("b", 1.0);
        }
        result.compute_ratios(true);
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["schema"], "tandem.result/1");
        assert_eq!(json["evidence"], "model");
        assert_eq!(json["verdict"], "ok");
        assert_eq!(json["metrics"][0]["better"], "lower");
        assert_eq!(json["metrics"][0]["ratio"]["b"]["median"], 0.5);
        assert_eq!(json["metrics"][0]["ratio"]["b"]["ci95"][1], 0.5);
        assert!(json["metrics"][0]["ratio"].get("a").is_none(), "the baseline has no ratio to itself");
        assert!(json.get("details").is_none(), "empty details are left out");
    }

    #[test]
    fn metric_mut_finds_what_it_made() {
        let mut result = ExperimentResult::new("x", Evidence::Model, "a", &["a"], 7);
        result.metric_mut("m", "us", Better::Lower).push("a", 1.0);
        result.metric_mut("m", "us", Better::Lower).push("a", 2.0);
        assert_eq!(result.metrics.len(), 1);
        assert_eq!(result.metrics[0].samples_of("a"), [1.0, 2.0]);
    }

    #[test]
    fn too_few_samples_give_no_ratio() {
        let mut metric = Metric::new("m", "us", Better::Lower);
        metric.push("a", 1.0);
        metric.push("b", 9.0);
        metric.compute_ratios("a", true, 1);
        assert!(metric.ratio.is_empty());
    }
}
