//! Ratios between schedulers in the lab beside those of the model.

use std::fmt::Write as _;
use tandem_result::{Better, Evidence, ExperimentResult};
use tandem_sim::validation::{Scale, CASES, HOST_CASES, TOLERANCE, WAKE_US};

/// Preemption interval in the lab's experiment, microseconds.
const PREEMPTION_US: f64 = 8000.0;
/// The lab's experiment with arms on the host.
const HOST_EXPERIMENT: &str = "host-validation";
/// The control: with this preemption interval in the model the comparison has to fail.
const WRONG_PREEMPTION_US: f64 = 40_000.0;

/// What the name of the comparison has after that of the lab's experiment, in the evidence book.
const OF_THE_MODEL: &str = "-model";
const MODEL: &str = "model";

/// The lab's experiment that an experiment of the book compares the model with.
pub fn measured_for(id: &str) -> Option<&str> {
    id.strip_suffix(OF_THE_MODEL).filter(|measured| *measured == HOST_EXPERIMENT)
}

/// One workload in lab and model.
struct Row {
    name: String,
    lab: f64,
    interval: [f64; 2],
    model: f64,
}

impl Row {
    fn error(&self) -> f64 {
        self.model / self.lab - 1.0
    }

    /// Is the order of the schedulers the same, where the lab tells them apart?
    fn same_order(&self) -> bool {
        let told_apart = self.interval[0] > 1.0 || self.interval[1] < 1.0;
        !told_apart || (self.model > 1.0) == (self.lab > 1.0)
    }
}

/// All workloads in lab and model.
pub struct Comparison {
    rows: Vec<Row>,
    /// Workloads without a figure in lab or model.
    missing: Vec<String>,
}

impl Comparison {
    /// Computes the model's side of every workload that the lab's result has.
    pub fn with(lab: &ExperimentResult, seeds: u64, threads: usize) -> anyhow::Result<Self> {
        Self::at(lab, PREEMPTION_US, seeds, threads)
    }

    /// The same with a wrong parameter.
    pub fn control(lab: &ExperimentResult, seeds: u64, threads: usize) -> anyhow::Result<Self> {
        Self::at(lab, WRONG_PREEMPTION_US, seeds, threads)
    }

    fn at(lab: &ExperimentResult, preemption_us: f64, seeds: u64, threads: usize) -> anyhow::Result<Self> {
        let metric = |name: &str| lab.metrics.iter().find(|metric| metric.name == name);
        // Speed of the lab's machine without contention.
        let alone = |name: &str| tandem_result::median(metric(name)?.samples_of("eevdf"));
        let scale = Scale {
            // CPU-bound threads on both vCPUs, loops of one millisecond: 2000 per second at the model's speed.
            work: alone("cpu-bound: loops").filter(|per_s| *per_s > 0.0).map_or(1.0, |per_s| 2000.0 / per_s),
            wake: alone("alone: wake-up p50").map_or(1.0, |us| (us / WAKE_US).max(1.0)),
        };
        let cases = if lab.experiment == HOST_EXPERIMENT { HOST_CASES } else { CASES };
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        for case in cases {
            let name = case.metric();
            let ratio = metric(&name).and_then(|metric| metric.ratio.get("tandem"));
            let (Some(ratio), Some(model)) = (ratio, case.ratio(scale, preemption_us, seeds, threads)?)
            else {
                missing.push(name);
                continue;
            };
            rows.push(Row { name, lab: ratio.median, interval: ratio.ci95, model });
        }
        Ok(Self { rows, missing })
    }

    /// Mean of the errors, without their signs.
    fn mean_error(&self) -> f64 {
        self.rows.iter().map(|row| row.error().abs()).sum::<f64>() / self.rows.len().max(1) as f64
    }

    fn disagreements(&self) -> usize {
        self.rows.iter().filter(|row| !row.same_order()).count()
    }

    /// Largest error, without its sign.
    fn largest_error(&self) -> f64 {
        self.rows.iter().map(|row| row.error().abs()).fold(0.0, f64::max)
    }

    /// How far the model is from the lab's `experiment`, for the evidence book.
    pub fn as_result(&self, experiment: &str) -> ExperimentResult {
        let name = format!("{experiment}{OF_THE_MODEL}");
        let mut result = ExperimentResult::new(&name, Evidence::Model, MODEL, &[MODEL], 1);
        for (metric, unit, value) in [
            ("distance from the lab, mean", "%", self.mean_error() * 100.0),
            ("distance from the lab, largest", "%", self.largest_error() * 100.0),
            ("programs in another order", "", self.disagreements() as f64),
            ("programs without a figure", "", self.missing.len() as f64),
        ] {
            result.metric_mut(metric, unit, Better::Lower).push(MODEL, value);
        }
        result
    }

    /// Is the model close enough, everywhere?
    pub fn holds(&self) -> bool {
        let complete = !self.rows.is_empty() && self.missing.is_empty();
        complete && self.mean_error() <= TOLERANCE && self.disagreements() == 0
    }

    /// The figures in one sentence.
    pub fn verdict(&self) -> String {
        format!(
            "mean error {:.1} % (tolerated {:.0} %), {} of {} in another order, {} without a figure: {}",
            self.mean_error() * 100.0,
            TOLERANCE * 100.0,
            self.disagreements(),
            self.rows.len(),
            self.missing.len(),
            if self.holds() { "ok" } else { "MISSED" }
        )
    }

    /// A Markdown table.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| workload, ratio of Tandem to EEVDF | lab | model | error | same order |\n|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "| {} | {:.3} [{:.3}, {:.3}] | {:.3} | {:+.1} % | {} |",
                row.name,
                row.lab,
                row.interval[0],
                row.interval[1],
                row.model,
                row.error() * 100.0,
                if row.same_order() { "yes" } else { "**no**" }
            );
        }
        for name in &self.missing {
            let _ = writeln!(text, "| {name} | - | - | - | - |");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lab: f64, interval: [f64; 2], model: f64) -> Row {
        Row { name: "w".into(), lab, interval, model }
    }

    fn of(rows: Vec<Row>) -> Comparison {
        Comparison { rows, missing: Vec::new() }
    }

    #[test]
    fn errors_and_orders_decide() {
        let close = of(vec![row(1.2, [1.1, 1.3], 1.25), row(1.0, [0.9, 1.1], 0.95)]);
        assert!(close.holds(), "{}", close.verdict());
        // The lab tells them apart, and the model says the opposite.
        let turned = of(vec![row(1.05, [1.02, 1.08], 0.98)]);
        assert!(!turned.holds());
        let far = of(vec![row(1.5, [1.4, 1.6], 3.0)]);
        assert!(!far.holds());
        assert!(!of(Vec::new()).holds());
    }

    #[test]
    fn the_book_is_told_how_far_the_model_is() {
        let mut comparison = of(vec![row(1.0, [0.9, 1.1], 1.1), row(1.05, [1.02, 1.08], 0.84)]);
        comparison.missing.push("lock: loops".into());
        let result = comparison.as_result("host-validation");
        assert_eq!(measured_for(&result.experiment), Some("host-validation"));
        let value = |name: &str| {
            let metric = result.metrics.iter().find(|metric| metric.name == name).unwrap();
            metric.samples_of("model")[0]
        };
        assert!((value("distance from the lab, mean") - 15.0).abs() < 1e-6);
        assert!((value("distance from the lab, largest") - 20.0).abs() < 1e-6);
        assert_eq!((value("programs in another order"), value("programs without a figure")), (1.0, 1.0));
        assert_eq!((measured_for("validation-model"), measured_for("fig3")), (None, None));
    }

    #[test]
    fn what_is_missing_is_shown_and_counts() {
        let mut comparison = of(vec![row(1.0, [0.9, 1.1], 1.0)]);
        assert!(comparison.holds());
        comparison.missing.push("lock: loops".into());
        assert!(comparison.table().contains("| lock: loops | - | - | - | - |"));
        assert!(!comparison.holds() && comparison.verdict().contains("1 without a figure"));
    }
}
