//! Ratios as a picture: one row per metric and arm, a dot with its interval on a logarithmic axis, a line at 1.

use crate::schema::ExperimentResult;
use crate::stats::Ratio;
use std::fmt::Write;

const ROW: f64 = 18.0;
const LEFT: f64 = 250.0;
const WIDTH: f64 = 420.0;
const TOP: f64 = 34.0;
/// One colour per arm, distinguishable for colour-blind readers (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The ratios of a result as SVG; `None` if it has no ratios.
pub fn ratios_as_svg(result: &ExperimentResult) -> Option<String> {
    let rows: Vec<(&str, usize, &Ratio)> = result
        .metrics
        .iter()
        .flat_map(|metric| {
            let arms = result.arms.iter().filter(|arm| **arm != result.baseline).enumerate();
            arms.filter_map(|(i, arm)| Some((metric.name.as_str(), i, metric.ratio.get(arm)?)))
        })
        .collect();
    let all = || rows.iter().flat_map(|(_, _, r)| [r.median, r.ci95[0], r.ci95[1]]).filter(|x| *x > 0.0);
    let low = all().fold(0.8, f64::min).ln();
    let high = all().fold(1.25, f64::max).ln();
    if rows.is_empty() {
        return None;
    }
    let x = |value: f64| LEFT + (value.max(1e-9).ln().clamp(low, high) - low) / (high - low) * WIDTH;
    let height = TOP + rows.len() as f64 * ROW + 30.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n",
        LEFT + WIDTH + 20.0
    );
    // Writing to a String cannot fail.
    let others = result.arms.iter().filter(|arm| **arm != result.baseline).enumerate();
    let mut at = LEFT;
    for (i, arm) in others {
        let colour = COLOURS[i % COLOURS.len()];
        let _ = writeln!(svg, "<text x=\"{at:.0}\" y=\"16\" fill=\"{colour}\">{}</text>", escaped(arm));
        at += 14.0 + 7.0 * arm.len() as f64;
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{0:.1}\" y1=\"{TOP:.0}\" x2=\"{0:.1}\" y2=\"{1:.0}\" stroke=\"#999\"/>",
        x(1.0),
        height - 24.0
    );
    for tick in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0] {
        if (low..=high).contains(&f64::ln(tick)) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#666\">{tick}</text>",
                x(tick),
                height - 10.0
            );
        }
    }
    let mut last = "";
    for (i, (name, arm, ratio)) in rows.iter().enumerate() {
        let y = TOP + (i as f64 + 0.5) * ROW;
        let colour = COLOURS[arm % COLOURS.len()];
        if *name != last {
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                escaped(name)
            );
            last = name;
        }
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\"/><circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
            x(ratio.ci95[0]),
            x(ratio.ci95[1]),
            x(ratio.median)
        );
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Better, Evidence};

    #[test]
    fn a_picture_only_where_there_is_something_to_see() {
        let mut result = ExperimentResult::new("e", Evidence::Model, "a", &["a", "b<"], 1);
        assert!(ratios_as_svg(&result).is_none());
        for i in 0..10 {
            let metric = result.metric_mut("m & n", "s", Better::Lower);
            metric.push("a", 1.0 + f64::from(i) / 100.0);
            metric.push("b<", 2.0 + f64::from(i) / 100.0);
        }
        result.compute_ratios(true);
        let svg = ratios_as_svg(&result).unwrap();
        assert!(
            svg.contains("m &amp; n")
                && svg.contains("b&lt;")
                && svg.contains("<circle")
                && svg.ends_with("</svg>\n")
        );
    }
}
