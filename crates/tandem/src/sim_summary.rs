//! Summary of an experiment with many programs: the geometric mean over them, and the worst program.

use tandem_result::{median, Better, ExperimentResult, Metric};

/// Minimum number of programs for a mean.
const LEAST_PROGRAMS: usize = 3;
/// Schedulers that the others are compared with.
const BASES: [&str; 3] = ["alone", "cfs", "eevdf"];

/// One kind of figure of all programs.
struct Family<'a> {
    /// Its name without the program's.
    figure: &'a str,
    better: Better,
    /// Each program and its figures.
    members: Vec<(&'a str, &'a Metric)>,
}

/// Comparison of an arm with a base by one kind of figure.
struct Comparison<'a> {
    figure: &'a str,
    better: Better,
    arm: &'a str,
    base: &'static str,
    /// Geometric mean over the programs, one for each seed.
    means: Vec<f64>,
    /// The program with the worst median over the seeds, and that median.
    worst: (&'a str, f64),
}

fn families(result: &ExperimentResult) -> Vec<Family<'_>> {
    let mut found: Vec<Family> = Vec::new();
    for metric in &result.metrics {
        let Some((program, figure)) = metric.name.rsplit_once(": ") else { continue };
        match found.iter_mut().find(|family| family.figure == figure) {
            Some(family) => family.members.push((program, metric)),
            None => found.push(Family { figure, better: metric.better, members: vec![(program, metric)] }),
        }
    }
    found.retain(|family| family.members.len() >= LEAST_PROGRAMS);
    found
}

impl<'a> Family<'a> {
    /// Compares seed by seed. Programs without a positive figure for each seed of both arms are left out.
    fn compare(&self, arm: &'a str, base: &'static str) -> Option<Comparison<'a>> {
        let ratios: Vec<(&'a str, Vec<f64>)> = self
            .members
            .iter()
            .filter_map(|(program, metric)| {
                let (own, other) = (metric.samples_of(arm), metric.samples_of(base));
                let sound = own.len() == other.len() && own.iter().chain(other).all(|sample| *sample > 0.0);
                let ratios = own.iter().zip(other).map(|(own, other)| own / other).collect();
                sound.then_some((*program, ratios))
            })
            .collect();
        let seeds = ratios.iter().map(|(_, ratios)| ratios.len()).min()?;
        if ratios.len() < LEAST_PROGRAMS || seeds == 0 {
            return None;
        }
        let mean = |seed: usize| {
            (ratios.iter().map(|(_, ratios)| ratios[seed].ln()).sum::<f64>() / ratios.len() as f64).exp()
        };
        let medians = ratios.iter().filter_map(|(program, ratios)| Some((*program, median(ratios)?)));
        let worst = match self.better {
            Better::Higher => medians.min_by(|a, b| a.1.total_cmp(&b.1)),
            Better::Lower => medians.max_by(|a, b| a.1.total_cmp(&b.1)),
        };
        let means = (0..seeds).map(mean).collect();
        Some(Comparison { figure: self.figure, better: self.better, arm, base, means, worst: worst? })
    }
}

fn comparisons(result: &ExperimentResult) -> Vec<Comparison<'_>> {
    let mut found = Vec::new();
    for family in families(result) {
        for base in BASES {
            let arms = result.arms.iter().filter(|arm| *arm != base);
            found.extend(arms.filter_map(|arm| family.compare(arm, base)));
        }
    }
    found
}

/// Adds the summary as metrics of ratios: `p95, mean over cfs` (one for each seed) and `p95, worst over cfs` (one).
pub fn add_to(result: &mut ExperimentResult) {
    let measured = result.clone();
    let baseline = measured.baseline.as_str();
    for Comparison { figure, better, arm, base, means, worst: (_, least) } in comparisons(&measured) {
        // A ratio to another base says nothing about the baseline: it is a metric of its own.
        if base != baseline && arm == baseline {
            continue;
        }
        let mean = result.metric_mut(&format!("{figure}, mean over {base}"), "", better);
        if base == baseline && mean.samples_of(base).is_empty() {
            means.iter().for_each(|_| mean.push(base, 1.0));
        }
        means.iter().for_each(|sample| mean.push(arm, *sample));
        result.metric_mut(&format!("{figure}, worst over {base}"), "", better).push(arm, least);
    }
    result.compute_ratios(true);
}

/// The same in words.
pub fn in_words(result: &ExperimentResult) -> String {
    comparisons(result)
        .into_iter()
        .map(|Comparison { figure, arm, base, means, worst: (program, least), .. }| {
            let (low, high) =
                means.iter().fold((f64::MAX, 0.0_f64), |(low, high), mean| (low.min(*mean), high.max(*mean)));
            let mean = median(&means).unwrap_or(f64::NAN);
            format!(
                "\n{figure}, {arm} over {base}: {mean:.3} on average over the programs ({low:.3} to {high:.3} by seed); \
                 {least:.3} at worst ({program}).\n"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_result::Evidence;

    fn result() -> ExperimentResult {
        let mut result = ExperimentResult::new("x", Evidence::Model, "cfs", &["cfs", "eevdf", "tandem"], 1);
        for (program, ratio) in [("a", 0.5), ("b", 1.0), ("c", 2.0), ("silent", 0.0)] {
            for sample in [100.0, 101.0, 99.0, 100.0, 102.0, 98.0] {
                let metric = result.metric_mut(&format!("{program}: p95"), "us", Better::Lower);
                metric.push("cfs", sample);
                metric.push("eevdf", sample * 2.0);
                metric.push("tandem", sample * ratio);
            }
        }
        result.metric_mut("a: alone", "us", Better::Lower).push("cfs", 1.0);
        result
    }

    #[test]
    fn averages_are_over_programs_and_geometric() {
        let text = in_words(&result());
        for line in [
            "p95, tandem over cfs: 1.000 on average over the programs (1.000 to 1.000 by seed); 2.000 at worst (c).",
            "p95, tandem over eevdf: 0.500 on average over the programs (0.500 to 0.500 by seed); 1.000 at worst (c).",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("alone"), "{text}");
    }

    #[test]
    fn they_are_metrics_of_the_result() {
        let mut result = result();
        add_to(&mut result);
        let of = |name: &str| {
            let metric = result.metrics.iter().find(|metric| metric.name == name);
            metric.map_or(&[][..], |metric| metric.samples_of("tandem"))
        };
        assert_eq!(of("p95, mean over cfs").len(), 6);
        assert!((of("p95, mean over eevdf")[0] - 0.5).abs() < 1e-9);
        assert_eq!(of("p95, worst over cfs").len(), 1);
        let ratio = |name: &str| {
            result
                .metrics
                .iter()
                .find(|metric| metric.name == name)
                .and_then(|metric| metric.ratio.get("tandem"))
        };
        assert!(ratio("p95, mean over cfs").is_some_and(|ratio| (ratio.median - 1.0).abs() < 1e-9));
        assert!(ratio("p95, mean over eevdf").is_none());
    }
}
