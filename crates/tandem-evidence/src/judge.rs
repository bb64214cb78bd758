//! Does a claim hold in a result?

use crate::claim::{Claim, Combine, Statistic, Target};
use tandem_result::{Better, ExperimentResult, Metric, Ratio, RunVerdict};

/// Standing of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The target is met.
    Holds,
    /// The target is missed.
    Missed,
    /// There is no target.
    Shown,
    /// Undecided: the run was disturbed, the metric or samples are missing, or the interval contains the bound.
    Open,
}

impl Standing {
    /// The word that the book uses.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Holds => "holds",
            Standing::Missed => "**missed**",
            Standing::Shown => "shown",
            Standing::Open => "open",
        }
    }
}

/// Standing and figure of a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Standing of the claim.
    pub standing: Standing,
    /// The figure, with its interval or range.
    pub figure: String,
}

/// Judges a claim by the result of its experiment. `None`: the experiment was not run yet.
pub fn judge(claim: &Claim, result: Option<&ExperimentResult>) -> Judgement {
    let open = |figure: String| Judgement { standing: Standing::Open, figure };
    let Some(result) = result else { return open("not measured".into()) };
    if result.verdict != RunVerdict::Ok {
        return match result.verdict {
            RunVerdict::Failed => {
                Judgement { standing: Standing::Missed, figure: format!("run failed: {}", result.reason) }
            }
            _ => open(format!("inconclusive: {}", result.reason)),
        };
    }
    let mut metrics = Vec::new();
    for name in claim.metric.all() {
        match metric_of(claim, name, result) {
            Ok(metric) => metrics.push(metric),
            Err(figure) => return open(figure),
        }
    }
    match (claim.combine, metrics.as_slice()) {
        (_, []) => open("no metric is named".into()),
        (_, [only]) => judge_metric(claim, only, baseline_of(claim, result), result.seed),
        (Combine::Each, several) => judge_each(claim, several, baseline_of(claim, result), result.seed),
        (Combine::Mean, several) => match mean_of(claim, several, result) {
            Some(mean) => judge_metric(claim, &mean, baseline_of(claim, result), result.seed),
            None => {
                open("no geometric mean: directions differ, repetitions are missing, or a sample is 0".into())
            }
        },
    }
}

/// Samples of an arm after which a claim stays open if they do not settle it.
const SAMPLES_MOST: usize = 40;

/// Are there enough samples to judge a claim that is judged by the interval of a ratio? If the interval is no wider than half of the margin, whatever
/// it says: who stops as soon as a claim holds finds that too many hold. A claim without a margin gets `SAMPLES_MOST`.
pub fn has_enough(claim: &Claim, result: &ExperimentResult) -> bool {
    let margin = match claim.target {
        Target::NotWorseBy(margin) | Target::NotWorseThanRivalsBy(margin) => margin,
        Target::RatioBelow(_) | Target::RatioAbove(_) => 0.0,
        _ => return true,
    };
    let metrics: Result<Vec<Metric>, _> =
        claim.metric.all().iter().map(|name| metric_of(claim, name, result)).collect();
    // A metric or arm that is not there will not come.
    let Ok(mut metrics) = metrics else { return true };
    if claim.combine == Combine::Mean && metrics.len() > 1 {
        metrics = mean_of(claim, &metrics, result).into_iter().collect();
    }
    if let Target::NotWorseThanRivalsBy(_) = claim.target {
        let baseline = baseline_of(claim, result);
        metrics =
            metrics.iter().filter_map(|m| to_best_rival(m, &claim.arm, baseline, result.seed)).collect();
    }
    metrics.iter().all(|metric| {
        let narrow = metric.ratio.get(&claim.arm).is_some_and(|r| r.ci95[1] - r.ci95[0] <= margin / 2.0);
        narrow || metric.samples_of(&claim.arm).len() >= SAMPLES_MOST
    })
}

fn baseline_of<'a>(claim: &'a Claim, result: &'a ExperimentResult) -> &'a str {
    claim.against.as_deref().unwrap_or(&result.baseline)
}

/// The metric called `name` with its ratios against the claim's baseline.
fn metric_of(claim: &Claim, name: &str, result: &ExperimentResult) -> Result<Metric, String> {
    let found = result.metrics.iter().find(|metric| metric.name == name);
    let mut metric = found.cloned().ok_or_else(|| format!("the result has no metric {name:?}"))?;
    for arm in std::iter::once(&claim.arm).chain(&claim.against) {
        if metric.samples_of(arm).is_empty() {
            return Err(format!("the result has no arm {arm:?}"));
        }
    }
    if let Some(over) = &claim.over {
        let whole = result.metrics.iter().find(|metric| metric.name == *over);
        let whole = whole.ok_or_else(|| format!("the result has no metric {over:?}"))?;
        return Ok(part_of(&metric, claim, whole, baseline_of(claim, result), result.seed));
    }
    if let Some(against) = &claim.against {
        metric.compute_ratios(against, true, result.seed);
    }
    Ok(metric)
}

/// A metric under the claim's arm with its ratio to another metric under the baseline. That one's name stands for an arm.
fn part_of(metric: &Metric, claim: &Claim, whole: &Metric, baseline: &str, seed: u64) -> Metric {
    let mut part = Metric::new(metric.name.clone(), metric.unit.clone(), metric.better);
    whole.samples_of(baseline).iter().for_each(|sample| part.push(&whole.name, *sample));
    metric.samples_of(&claim.arm).iter().for_each(|sample| part.push(&claim.arm, *sample));
    part.compute_ratios(&whole.name, true, seed);
    part
}

/// The geometric mean of several metrics in each repetition, each relative to the baseline's median.
fn mean_of(claim: &Claim, metrics: &[Metric], result: &ExperimentResult) -> Option<Metric> {
    let baseline = baseline_of(claim, result);
    let first = metrics.first()?;
    let reps = first.samples_of(baseline).len();
    let mut mean = Metric::new("geometric mean", "", first.better);
    for arm in [baseline, claim.arm.as_str()] {
        let mut logarithms = vec![0.0; reps];
        for metric in metrics {
            let samples = metric.samples_of(arm);
            if metric.better != first.better || samples.len() != reps {
                return None;
            }
            let unit = tandem_result::median(metric.samples_of(baseline)).filter(|unit| *unit > 0.0)?;
            if samples.iter().any(|sample| *sample <= 0.0) {
                return None;
            }
            for (sum, sample) in logarithms.iter_mut().zip(samples) {
                *sum += (sample / unit).ln() / metrics.len() as f64;
            }
        }
        logarithms.into_iter().for_each(|logarithm| mean.push(arm, logarithm.exp()));
    }
    mean.compute_ratios(baseline, true, result.seed);
    Some(mean)
}

/// Holds if it holds for each metric, is missed if it is missed for one. The figure lists the metrics that do not hold.
fn judge_each(claim: &Claim, metrics: &[Metric], baseline: &str, seed: u64) -> Judgement {
    let judged: Vec<(&Metric, Judgement)> =
        metrics.iter().map(|metric| (metric, judge_metric(claim, metric, baseline, seed))).collect();
    let those = |standing: Standing| {
        let of_it = judged.iter().filter(|(_, j)| j.standing == standing);
        of_it.map(|(metric, j)| format!("{}: {}", metric.name, j.figure)).collect::<Vec<_>>()
    };
    let (missed, open, holds) = (those(Standing::Missed), those(Standing::Open), those(Standing::Holds));
    let standing = match (missed.is_empty(), open.is_empty(), holds.is_empty()) {
        (false, _, _) => Standing::Missed,
        (true, false, _) => Standing::Open,
        (true, true, false) => Standing::Holds,
        (true, true, true) => Standing::Shown,
    };
    let mut figure = format!("{} of {} hold", holds.len(), judged.len());
    for (word, list) in [("missed", missed), ("open", open), ("shown", those(Standing::Shown))] {
        if !list.is_empty() {
            figure.push_str(&format!("; {word}: {}", list.join(", ")));
        }
    }
    Judgement { standing, figure }
}

fn judge_metric(claim: &Claim, metric: &Metric, baseline: &str, seed: u64) -> Judgement {
    let holds_if = |holds: bool| if holds { Standing::Holds } else { Standing::Missed };
    let met = |holds: bool, figure: String| Judgement { standing: holds_if(holds), figure };
    let ratio = metric.ratio.get(&claim.arm);
    let n = metric.samples_of(&claim.arm).len();
    // Without a ratio (too few samples, or a baseline at zero) the claim is open.
    let by_ratio = |standing: &dyn Fn(&Ratio) -> Standing| Judgement {
        standing: ratio.map_or(Standing::Open, standing),
        figure: ratio.map_or("no ratio".into(), |r| format!("{}, n={n}", in_words(r))),
    };
    match claim.target {
        Target::RatioBelow(bound) => by_ratio(&|r| holds_if(r.ci95[1] < bound)),
        Target::RatioAbove(bound) => by_ratio(&|r| holds_if(r.ci95[0] > bound)),
        Target::RatioAtLeast(bound) => by_ratio(&|r| holds_if(r.median >= bound)),
        Target::RatioAtMost(bound) => by_ratio(&|r| holds_if(r.median <= bound)),
        Target::MeanRatioAtLeast(bound) => match mean_ratio(metric, &claim.arm, baseline) {
            Some(ratio) => {
                met(ratio >= bound, format!("ratio of means {ratio:.3}; {}", range(metric, &claim.arm)))
            }
            None => met(false, "no ratio of means".into()),
        },
        Target::NotWorseBy(margin) => by_ratio(&|r| not_worse_by(margin, metric.better, r.ci95)),
        Target::NotWorseThanRivalsBy(margin) => against_the_best(metric, &claim.arm, baseline, margin, seed),
        Target::AtLeast { value, of } => {
            met(statistic(metric, &claim.arm, of).is_some_and(|x| x >= value), range(metric, &claim.arm))
        }
        Target::AtMost { value, of } => {
            met(statistic(metric, &claim.arm, of).is_some_and(|x| x <= value), range(metric, &claim.arm))
        }
        Target::Shown {} => Judgement {
            standing: Standing::Shown,
            figure: match ratio {
                Some(r) => format!("{}; {}", range(metric, &claim.arm), in_words(r)),
                None => range(metric, &claim.arm),
            },
        },
    }
}

fn in_words(ratio: &Ratio) -> String {
    format!("ratio {:.3} [{:.3}, {:.3}]", ratio.median, ratio.ci95[0], ratio.ci95[1])
}

/// Judges by the whole interval: holds if even its worst end is within the margin, is missed if even its best end is
/// not.
fn not_worse_by(margin: f64, better: Better, [low, high]: [f64; 2]) -> Standing {
    let (worst_within, best_within) = match better {
        Better::Higher => (low >= 1.0 - margin, high >= 1.0 - margin),
        Better::Lower => (high <= 1.0 + margin, low <= 1.0 + margin),
    };
    match (worst_within, best_within) {
        (true, _) => Standing::Holds,
        (false, true) => Standing::Open,
        (false, false) => Standing::Missed,
    }
}

/// Judges by the interval of the ratio to the best arm that is neither this one nor the baseline.
fn against_the_best(metric: &Metric, arm: &str, baseline: &str, margin: f64, seed: u64) -> Judgement {
    let open = |figure: &str| Judgement { standing: Standing::Open, figure: figure.into() };
    let Some((name, best, own)) = best_rival(metric, arm, baseline) else { return open("no other arm") };
    let unit = &metric.unit;
    let said = format!("{own:.4} {unit}, {name} {best:.4} {unit}");
    match to_best_rival(metric, arm, baseline, seed).as_ref().and_then(|against| against.ratio.get(arm)) {
        Some(r) => Judgement {
            standing: not_worse_by(margin, metric.better, r.ci95),
            figure: format!("{said}; {}", in_words(r)),
        },
        None => open(&said),
    }
}

/// A metric with its ratios to the best rival, if there is one.
fn to_best_rival(metric: &Metric, arm: &str, baseline: &str, seed: u64) -> Option<Metric> {
    let (name, ..) = best_rival(metric, arm, baseline)?;
    let mut against = metric.clone();
    against.compute_ratios(name, true, seed);
    Some(against)
}

fn mean_ratio(metric: &Metric, arm: &str, baseline: &str) -> Option<f64> {
    let mean = |arm: &str| {
        let samples = metric.samples_of(arm);
        (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
    };
    let base = mean(baseline).filter(|base| *base > 0.0)?;
    Some(mean(arm)? / base)
}

/// The best arm that is neither this one nor the baseline, its median, and the median of this arm.
fn best_rival<'a>(metric: &'a Metric, arm: &str, baseline: &str) -> Option<(&'a str, f64, f64)> {
    let own = statistic(metric, arm, Statistic::Median)?;
    let medians = metric
        .samples
        .keys()
        .map(String::as_str)
        .filter(|name| *name != arm && *name != baseline)
        .filter_map(|name| statistic(metric, name, Statistic::Median).map(|median| (name, median)));
    let best = match metric.better {
        Better::Higher => medians.max_by(|a, b| a.1.total_cmp(&b.1)),
        Better::Lower => medians.min_by(|a, b| a.1.total_cmp(&b.1)),
    };
    best.map(|(name, median)| (name, median, own))
}

fn statistic(metric: &Metric, arm: &str, of: Statistic) -> Option<f64> {
    let samples = metric.samples_of(arm);
    match of {
        Statistic::Median => tandem_result::median(samples),
        Statistic::Min => samples.iter().copied().reduce(f64::min),
        Statistic::Max => samples.iter().copied().reduce(f64::max),
    }
}

fn range(metric: &Metric, arm: &str) -> String {
    let get = |of| statistic(metric, arm, of).unwrap_or(f64::NAN);
    let (low, median, high) = (get(Statistic::Min), get(Statistic::Median), get(Statistic::Max));
    let n = metric.samples_of(arm).len();
    format!("{median:.4} {} ({low:.4} to {high:.4}, n={n})", metric.unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Names;
    use tandem_result::Evidence;

    fn claim(target: Target) -> Claim {
        Claim {
            simulated: false,
            text: "t".into(),
            experiment: "x".into(),
            metric: Names::One("p95".into()),
            combine: Combine::Each,
            arm: "b".into(),
            against: None,
            over: None,
            target,
            cause: None,
        }
    }

    fn result(base: f64, arm: f64) -> ExperimentResult {
        let mut result = ExperimentResult::new("x", Evidence::Kernel, "a", &["a", "b"], 1);
        for i in 0..10 {
            let metric = result.metric_mut("p95", "us", Better::Lower);
            metric.push("a", base + f64::from(i) * 0.01);
            metric.push("b", arm + f64::from(i) * 0.01);
        }
        result.compute_ratios(true);
        result
    }

    #[test]
    fn each_target_can_hold_and_can_be_missed() {
        let better = result(10.0, 5.0);
        let worse = result(10.0, 15.0);
        let at_most = Target::AtMost { value: 8.0, of: Statistic::Max };
        let at_least = Target::AtLeast { value: 8.0, of: Statistic::Min };
        for (target, good, bad) in [
            (Target::RatioBelow(1.0), &better, &worse),
            (Target::RatioAbove(1.4), &worse, &better),
            (Target::RatioAtLeast(1.4), &worse, &better),
            (Target::RatioAtMost(1.4), &better, &worse),
            (Target::MeanRatioAtLeast(1.4), &worse, &better),
            (Target::NotWorseBy(0.03), &better, &worse),
            (at_most, &better, &worse),
            (at_least, &worse, &better),
        ] {
            assert_eq!(judge(&claim(target), Some(good)).standing, Standing::Holds, "{target:?}");
            assert_eq!(judge(&claim(target), Some(bad)).standing, Standing::Missed, "{target:?}");
        }
    }

    #[test]
    fn a_metric_may_be_compared_with_another_one_under_the_baseline() {
        let mut result = result(30.0, 12.0);
        for i in 0..10 {
            let alone = result.metric_mut("alone", "us", Better::Lower);
            alone.push("a", 10.0 + f64::from(i) * 0.01);
            alone.push("b", 99.0);
        }
        let of = |arm: &str, margin: f64| {
            let over = Some("alone".to_string());
            judge(&Claim { arm: arm.into(), over, ..claim(Target::NotWorseBy(margin)) }, Some(&result))
        };
        assert_eq!(of("b", 0.25).standing, Standing::Holds);
        assert_eq!(of("b", 0.15).standing, Standing::Missed);
        assert!(of("a", 0.5).figure.starts_with("ratio 2.99"), "{}", of("a", 0.5).figure);
        let unknown = Claim { over: Some("no such".into()), ..claim(Target::NotWorseBy(0.25)) };
        assert_eq!(judge(&unknown, Some(&result)).standing, Standing::Open);
    }

    /// Six repetitions of two metrics; `arm` gives the ratio to the baseline in each.
    fn two_metrics(arm: [[f64; 6]; 2]) -> ExperimentResult {
        let mut result = ExperimentResult::new("x", Evidence::Kernel, "a", &["a", "b", "c"], 1);
        for (name, ratios) in ["p95", "p50"].into_iter().zip(arm) {
            let metric = result.metric_mut(name, "us", Better::Lower);
            for ratio in ratios {
                metric.push("a", 10.0);
                metric.push("b", 10.0 * ratio);
                metric.push("c", 20.0);
            }
        }
        result.compute_ratios(true);
        result
    }

    #[test]
    fn not_worse_is_judged_by_the_bound_of_the_interval() {
        let wide = [0.8, 0.9, 0.95, 1.0, 1.2, 1.4];
        let judged =
            |ratios| judge(&claim(Target::NotWorseBy(0.03)), Some(&two_metrics([ratios, [1.0; 6]]))).standing;
        assert_eq!(judged([0.9, 0.9, 1.0, 1.0, 1.02, 1.02]), Standing::Holds);
        assert_eq!(judged(wide), Standing::Open, "its median is fine, its interval reaches beyond the bound");
        assert_eq!(judged([1.1; 6]), Standing::Missed);
    }

    #[test]
    fn samples_are_enough_when_the_interval_is_half_of_the_margin_or_there_are_many() {
        let enough = |target, result: &ExperimentResult| has_enough(&claim(target), result);
        let narrow = two_metrics([[0.99, 0.99, 0.99, 1.01, 1.01, 1.01], [1.0; 6]]);
        assert!(enough(Target::NotWorseBy(0.05), &narrow));
        assert!(!enough(Target::NotWorseBy(0.02), &narrow), "0.99 to 1.01 is all of the margin");
        assert!(!enough(Target::NotWorseBy(0.0), &narrow) && !enough(Target::RatioBelow(1.0), &narrow));
        assert!(enough(Target::RatioAtMost(0.5), &narrow), "not judged by the interval");
        let wide = |n: usize| {
            let mut result = ExperimentResult::new("x", Evidence::Kernel, "a", &["a", "b"], 1);
            let metric = result.metric_mut("p95", "us", Better::Lower);
            for i in 0..n {
                metric.push("a", 1.0);
                metric.push("b", if i % 2 == 0 { 0.5 } else { 2.0 });
            }
            result.compute_ratios(true);
            result
        };
        assert!(!enough(Target::NotWorseBy(0.05), &wide(1)), "no ratio yet");
        assert!(!enough(Target::NotWorseBy(0.05), &wide(SAMPLES_MOST - 1)));
        assert!(enough(Target::NotWorseBy(0.0), &wide(SAMPLES_MOST)));
    }

    #[test]
    fn samples_of_a_mean_and_against_a_rival_are_enough_by_their_own_interval() {
        // They differ, and their mean does not.
        let opposite =
            two_metrics([[0.8, 0.9, 1.0, 1.1, 1.25, 1.0], [1.25, 1.0 / 0.9, 1.0, 1.0 / 1.1, 0.8, 1.0]]);
        let several = |combine| Claim {
            metric: Names::Several(vec!["p95".into(), "p50".into()]),
            combine,
            ..claim(Target::NotWorseBy(0.05))
        };
        assert!(has_enough(&several(Combine::Mean), &opposite));
        assert!(!has_enough(&several(Combine::Each), &opposite));
        let rival = claim(Target::NotWorseThanRivalsBy(0.05));
        assert!(!has_enough(&rival, &opposite) && has_enough(&rival, &two_metrics([[1.0; 6], [1.0; 6]])));
    }

    #[test]
    fn a_figure_that_the_baseline_has_not_can_be_judged() {
        let mut result = ExperimentResult::new("x", Evidence::Model, "a", &["a", "b"], 1);
        result.metric_mut("p95", "", Better::Higher).push("b", 0.98);
        let at_least = |value| Target::AtLeast { value, of: Statistic::Median };
        assert_eq!(judge(&claim(at_least(0.97)), Some(&result)).standing, Standing::Holds);
        assert_eq!(judge(&claim(at_least(0.99)), Some(&result)).standing, Standing::Missed);
        assert_eq!(judge(&claim(Target::RatioAtLeast(0.5)), Some(&result)).standing, Standing::Open);
    }

    #[test]
    fn several_metrics_each_and_their_mean() {
        let several = |combine, target| Claim {
            metric: Names::Several(vec!["p95".into(), "p50".into()]),
            combine,
            ..claim(target)
        };
        let mixed = two_metrics([[0.5; 6], [1.28; 6]]);
        let each = judge(&several(Combine::Each, Target::NotWorseBy(0.05)), Some(&mixed));
        assert_eq!(each.standing, Standing::Missed);
        assert!(each.figure.starts_with("1 of 2 hold; missed: p50: ratio 1.280"), "{}", each.figure);
        let mean = judge(&several(Combine::Mean, Target::RatioBelow(0.81)), Some(&mixed));
        assert_eq!(
            (mean.standing, mean.figure.as_str()),
            (Standing::Holds, "ratio 0.800 [0.800, 0.800], n=6")
        );
        let against = Claim { against: Some("c".into()), ..several(Combine::Mean, Target::RatioBelow(0.41)) };
        assert_eq!(judge(&against, Some(&mixed)).standing, Standing::Holds);
        let missing = Claim { against: Some("d".into()), ..against };
        assert_eq!(judge(&missing, Some(&mixed)).figure, "the result has no arm \"d\"");
    }

    #[test]
    fn rivals_are_all_but_the_baseline() {
        let mut result = ExperimentResult::new("x", Evidence::Kernel, "a", &["a", "b", "c"], 1);
        let metric = result.metric_mut("p95", "us", Better::Lower);
        for i in 0..10 {
            for (arm, value) in [("a", 1.0), ("b", 10.2), ("c", 10.0), ("d", 11.0)] {
                metric.push(arm, value + f64::from(i) * 0.01);
            }
        }
        let judged = |margin| judge(&claim(Target::NotWorseThanRivalsBy(margin)), Some(&result));
        assert_eq!(judged(0.03).standing, Standing::Holds);
        assert_eq!(judged(0.01).standing, Standing::Missed);
        let figure = judged(0.01).figure;
        assert!(figure.starts_with("10.2450 us, c 10.0450 us; ratio 1.020 ["), "{figure}");
        // Too few to say.
        for metric in &mut result.metrics {
            metric.samples.values_mut().for_each(|samples| samples.truncate(1));
        }
        assert_eq!(judge(&claim(Target::NotWorseThanRivalsBy(0.03)), Some(&result)).standing, Standing::Open);
    }

    #[test]
    fn a_disturbed_run_proves_nothing_and_a_failed_one_counts_against_the_claim() {
        let mut disturbed = result(10.0, 5.0);
        disturbed.verdict = RunVerdict::Inconclusive;
        assert_eq!(judge(&claim(Target::RatioBelow(1.0)), Some(&disturbed)).standing, Standing::Open);
        disturbed.verdict = RunVerdict::Failed;
        assert_eq!(judge(&claim(Target::RatioBelow(1.0)), Some(&disturbed)).standing, Standing::Missed);
        assert_eq!(judge(&claim(Target::RatioBelow(1.0)), None).standing, Standing::Open);
    }
}
