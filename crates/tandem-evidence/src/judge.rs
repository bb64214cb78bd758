//! Does a claim hold in a result?

use crate::claim::{Claim, Statistic, Target};
use tandem_result::{Better, ExperimentResult, Metric, RunVerdict};

/// Where a claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The target is met.
    Holds,
    /// The target is missed.
    Missed,
    /// There is no target.
    Shown,
    /// The run was disturbed or failed, or lacks the metric: nothing is known.
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
    /// Where it stands.
    pub standing: Standing,
    /// The figure, with its interval or range.
    pub figure: String,
}

/// Judges a claim by the result of its experiment; `None`: not measured yet.
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
    let Some(metric) = result.metrics.iter().find(|metric| metric.name == claim.metric) else {
        return open(format!("the result has no metric {:?}", claim.metric));
    };
    if metric.samples_of(&claim.arm).is_empty() {
        return open(format!("the result has no arm {:?}", claim.arm));
    }
    judge_metric(claim, metric, &result.baseline)
}

fn judge_metric(claim: &Claim, metric: &Metric, baseline: &str) -> Judgement {
    let met = |holds: bool, figure: String| Judgement {
        standing: if holds { Standing::Holds } else { Standing::Missed },
        figure,
    };
    let ratio = metric.ratio.get(&claim.arm);
    let ratio_figure = |prefix: &str| match ratio {
        Some(r) => format!("{prefix}ratio {:.3} [{:.3}, {:.3}]", r.median, r.ci95[0], r.ci95[1]),
        None => format!("{prefix}no ratio"),
    };
    match claim.target {
        Target::RatioBelow(bound) => met(ratio.is_some_and(|r| r.ci95[1] < bound), ratio_figure("")),
        Target::RatioAtLeast(bound) => met(ratio.is_some_and(|r| r.median >= bound), ratio_figure("")),
        Target::RatioAtMost(bound) => met(ratio.is_some_and(|r| r.median <= bound), ratio_figure("")),
        Target::MeanRatioAtLeast(bound) => match mean_ratio(metric, &claim.arm, baseline) {
            Some(ratio) => {
                met(ratio >= bound, format!("ratio of means {ratio:.3}; {}", range(metric, &claim.arm)))
            }
            None => met(false, "no ratio of means".into()),
        },
        Target::NotWorseBy(margin) => met(
            ratio.is_some_and(|r| match metric.better {
                Better::Higher => r.median >= 1.0 - margin,
                Better::Lower => r.median <= 1.0 + margin,
            }),
            ratio_figure(""),
        ),
        Target::NotWorseThanRivalsBy(margin) => match best_rival(metric, &claim.arm, baseline) {
            Some((name, best, own)) => met(
                match metric.better {
                    Better::Higher => own >= best * (1.0 - margin),
                    Better::Lower => own <= best * (1.0 + margin),
                },
                format!("{own:.4} {unit}, {name} {best:.4} {unit}", unit = metric.unit),
            ),
            None => met(false, "no other arm".into()),
        },
        Target::AtLeast { value, of } => {
            met(statistic(metric, &claim.arm, of).is_some_and(|x| x >= value), range(metric, &claim.arm))
        }
        Target::AtMost { value, of } => {
            met(statistic(metric, &claim.arm, of).is_some_and(|x| x <= value), range(metric, &claim.arm))
        }
        Target::Shown {} => Judgement {
            standing: Standing::Shown,
            figure: match ratio {
                Some(_) => ratio_figure(&format!("{}; ", range(metric, &claim.arm))),
                None => range(metric, &claim.arm),
            },
        },
    }
}

fn mean_ratio(metric: &Metric, arm: &str, baseline: &str) -> Option<f64> {
    let mean = |arm: &str| {
        let samples = metric.samples_of(arm);
        (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
    };
    let base = mean(baseline).filter(|base| *base > 0.0)?;
    Some(mean(arm)? / base)
}

/// The best arm that is neither this one nor the baseline, its median, and this one's.
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
    use tandem_result::Evidence;

    fn claim(target: Target) -> Claim {
        Claim {
            simulated: false,
            text: "t".into(),
            experiment: "x".into(),
            metric: "p95".into(),
            arm: "b".into(),
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
    fn rivals_are_all_but_the_baseline() {
        let mut result = ExperimentResult::new("x", Evidence::Kernel, "a", &["a", "b", "c"], 1);
        let metric = result.metric_mut("p95", "us", Better::Lower);
        for (arm, value) in [("a", 1.0), ("b", 10.2), ("c", 10.0)] {
            metric.push(arm, value);
        }
        let judged = |margin| judge(&claim(Target::NotWorseThanRivalsBy(margin)), Some(&result));
        assert_eq!(judged(0.03).standing, Standing::Holds);
        assert_eq!(judged(0.01).standing, Standing::Missed);
        assert_eq!(judged(0.01).figure, "10.2000 us, c 10.0000 us");
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
