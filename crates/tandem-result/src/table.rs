//! The before/after table, for terminals and for markdown documents.

use crate::schema::{Better, Evidence, ExperimentResult, Metric, RunVerdict};
use crate::stats::{median, ratio_of_medians, Ratio};

/// Output format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns for a terminal.
    Text,
    /// A GitHub-flavoured markdown table.
    Markdown,
}

/// Verdict about an arm from a ratio's interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The whole interval is on the good side of 1.
    Better,
    /// The interval contains 1: no difference shown.
    Same,
    /// The whole interval is on the bad side of 1.
    Worse,
}

impl Comparison {
    /// Judges `ratio` of a metric that improves in direction `better`.
    pub fn of(ratio: &Ratio, better: Better) -> Self {
        let [low, high] = ratio.ci95;
        match (better, low > 1.0, high < 1.0) {
            (Better::Higher, true, _) | (Better::Lower, _, true) => Comparison::Better,
            (Better::Higher, _, true) | (Better::Lower, true, _) => Comparison::Worse,
            _ => Comparison::Same,
        }
    }

    /// The word that tables use.
    pub fn word(self) -> &'static str {
        match self {
            Comparison::Better => "better",
            Comparison::Same => "same",
            Comparison::Worse => "worse",
        }
    }
}

/// The whole result: heading, table, and the lines about verdict, noise and attempts. Ends with a newline.
pub fn render(result: &ExperimentResult, style: Style) -> String {
    let level = match result.evidence {
        Evidence::Kernel => "measured on real kernels",
        Evidence::Model => "simulated",
    };
    let title = format!("{} ({level}; baseline {})", plain(&result.experiment), plain(&result.baseline));
    let mut out = match style {
        Style::Text => format!("{title}\n\n"),
        Style::Markdown => format!("### {}\n\n", markdown(&title)),
    };
    out.push_str(&render_metrics(result, style));
    out.push('\n');
    for line in closing_lines(result) {
        match style {
            Style::Text => out.push_str(&format!("  {line}\n")),
            Style::Markdown => out.push_str(&format!("- {}\n", markdown(&line))),
        }
    }
    out
}

/// Only the table: one row per metric and non-baseline arm. Ends with a newline.
pub fn render_metrics(result: &ExperimentResult, style: Style) -> String {
    let others: Vec<&str> =
        result.arms.iter().map(String::as_str).filter(|arm| *arm != result.baseline).collect();
    // With one arm, its name is the column's heading; with several, a column names the arm of each row.
    let single = others.len() == 1;
    let mut header = vec!["metric".to_owned(), plain(&result.baseline)];
    if single {
        header.push(plain(others[0]));
    } else {
        header.extend(["arm".to_owned(), "median".to_owned()]);
    }
    header.extend(["ratio", "95 % interval", "verdict"].map(str::to_owned));

    let mut rows = Vec::new();
    for metric in &result.metrics {
        for (index, arm) in others.iter().enumerate() {
            rows.push(row(metric, &result.baseline, arm, single, index == 0));
        }
        if others.is_empty() {
            let mut only = row(metric, &result.baseline, "", single, true);
            only[2..].iter_mut().for_each(String::clear);
            rows.push(only);
        }
    }
    let left: Vec<bool> =
        header.iter().map(|name| matches!(name.as_str(), "metric" | "arm" | "verdict")).collect();
    match style {
        Style::Text => text_table(&header, &rows, &left),
        Style::Markdown => markdown_table(&header, &rows, &left),
    }
}

fn row(metric: &Metric, baseline: &str, arm: &str, single: bool, first_of_metric: bool) -> Vec<String> {
    let base = metric.samples_of(baseline);
    let samples = metric.samples_of(arm);
    let (name, base_cell) = if first_of_metric {
        let unit = plain(&metric.unit);
        let name = plain(&metric.name);
        let name = if unit.is_empty() { name } else { format!("{name} [{unit}]") };
        (name, number_or_dash(median(base)))
    } else {
        (String::new(), String::new())
    };
    let mut cells = vec![name, base_cell];
    if !single {
        cells.push(plain(arm));
    }
    cells.push(number_or_dash(median(samples)));
    match metric.ratio.get(arm) {
        Some(ratio) => cells.extend([
            format_ratio(ratio.median),
            format!("{} .. {}", format_ratio(ratio.ci95[0]), format_ratio(ratio.ci95[1])),
            Comparison::of(ratio, metric.better).word().to_owned(),
        ]),
        None => {
            let why = if base.is_empty() || samples.is_empty() { "no data" } else { "no interval" };
            let ratio = ratio_of_medians(base, samples).map_or_else(|| "-".to_owned(), format_ratio);
            cells.extend([ratio, "-".to_owned(), why.to_owned()]);
        }
    }
    cells
}

fn closing_lines(result: &ExperimentResult) -> Vec<String> {
    let reason = plain(&result.reason);
    let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let verdict = match result.verdict {
        RunVerdict::Ok => format!("run ok{because}"),
        RunVerdict::Inconclusive => format!("run INCONCLUSIVE, its figures prove nothing{because}"),
        RunVerdict::Failed => format!("run FAILED{because}"),
    };
    let reps = result.metrics.iter().flat_map(|metric| metric.samples.values().map(Vec::len));
    let (fewest, most) = reps.fold((usize::MAX, 0), |(low, high), n| (low.min(n), high.max(n)));
    let reps = match (fewest, most) {
        (_, 0) => "no samples".to_owned(),
        (low, high) if low == high => format!("{high} samples per arm"),
        (low, high) => format!("{low} to {high} samples per arm"),
    };
    let mut lines = vec![
        verdict,
        format!(
            "{reps}, seed {}, attempts {}, rig failures {}",
            result.seed, result.attempts, result.rig_failures
        ),
    ];
    if !result.noise.is_empty() {
        let noise: Vec<String> = result
            .noise
            .iter()
            .map(|(name, value)| format!("{} {}", plain(name), format_number(*value)))
            .collect();
        lines.push(format!("noise of the machine: {}", noise.join(", ")));
    }
    lines
}

fn text_table(header: &[String], rows: &[Vec<String>], left: &[bool]) -> String {
    let width = |column: usize| {
        rows.iter().chain([&header.to_vec()]).map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).zip(left).map(|((cell, &w), &l)| pad(cell, w, l)).collect();
        format!("  {}", cells.join("  ")).trim_end().to_owned() + "\n"
    };
    let rule: Vec<String> = widths.iter().map(|&w| "-".repeat(w)).collect();
    let mut out = line(header) + &line(&rule);
    rows.iter().for_each(|row| out.push_str(&line(row)));
    out
}

fn markdown_table(header: &[String], rows: &[Vec<String>], left: &[bool]) -> String {
    let line = |row: &[String]| {
        let cells: Vec<String> = row.iter().map(|cell| markdown(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<&str> = left.iter().map(|&l| if l { "---" } else { "---:" }).collect();
    let mut out = line(header) + &format!("| {} |\n", rule.join(" | "));
    rows.iter().for_each(|row| out.push_str(&line(row)));
    out
}

fn pad(cell: &str, width: usize, left: bool) -> String {
    if left {
        format!("{cell:<width$}")
    } else {
        format!("{cell:>width$}")
    }
}

/// Replaces control characters: names come from files, and would break the table or the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn markdown(cell: &str) -> String {
    cell.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;")
}

fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), format_number)
}

fn format_ratio(ratio: f64) -> String {
    match ratio {
        r if r >= 1000.0 => format!("{r:.0}"),
        r if r >= 100.0 => format!("{r:.1}"),
        r if r >= 10.0 => format!("{r:.2}"),
        r => format!("{r:.3}"),
    }
}

/// Four significant digits. From 100 000 on there is a suffix, so that columns stay narrow.
fn format_number(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e15 => return format!("{value:.3e}"),
        v if v >= 1e12 => (value / 1e12, "T"),
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 1000.0 || v == 0.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        v if v >= 1.0 => 3,
        v if v >= 0.001 => 4,
        _ => return format!("{scaled:.2e}"),
    };
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn two_arms() -> ExperimentResult {
        let mut result =
            ExperimentResult::new("guest-weak", Evidence::Kernel, "eevdf", &["eevdf", "tandem"], 1);
        for (name, unit, better, arm) in [
            ("requests p95", "us", Better::Lower, 0.5),
            ("spin work", "1/s", Better::Higher, 1.5),
            ("hackbench", "s", Better::Lower, 1.5),
            ("nginx", "1/s", Better::Higher, 1.0),
        ] {
            let metric = result.metric_mut(name, unit, better);
            for rep in 0..10 {
                let base = 1000.0 + f64::from(rep);
                metric.push("eevdf", base);
                metric.push("tandem", base * arm);
            }
        }
        result.compute_ratios(true);
        result
    }

    #[test]
    fn text_table_is_aligned_and_judges_by_direction() {
        let text = render_metrics(&two_arms(), Style::Text);
        let expected = "  metric             eevdf  tandem  ratio   95 % interval  verdict
  -----------------  -----  ------  -----  --------------  -------
  requests p95 [us]   1004   502.2  0.500  0.500 .. 0.500  better
  spin work [1/s]     1004    1507  1.500  1.500 .. 1.500  better
  hackbench [s]       1004    1507  1.500  1.500 .. 1.500  worse
  nginx [1/s]         1004    1004  1.000  1.000 .. 1.000  same
";
        assert_eq!(text, expected);
    }

    #[test]
    fn markdown_escapes_what_would_break_the_table() {
        let mut result = two_arms();
        result.metrics[0].name = "a|b\n<c>".to_owned();
        let table = render_metrics(&result, Style::Markdown);
        assert!(table.contains("| a\\|b &lt;c> [us] | 1004 |"), "{table}");
        assert_eq!(table.lines().count(), 2 + 4);
        assert!(table.lines().nth(1).unwrap().contains("---:"));
    }

    #[test]
    fn several_arms_have_a_row_each_and_missing_data_is_said() {
        let mut result = two_arms();
        result.arms.push("lavd".to_owned());
        result.metrics[0].push("lavd", 9.0);
        let table = render_metrics(&result, Style::Text);
        assert_eq!(table.lines().count(), 2 + 8);
        assert!(table.contains("no data") && table.contains("no interval"), "{table}");
    }

    #[test]
    fn the_baseline_alone_is_still_shown() {
        let mut result = two_arms();
        result.arms.truncate(1);
        assert!(render_metrics(&result, Style::Text).contains("1004"));
    }

    #[test]
    fn a_disturbed_run_says_so() {
        let mut result = two_arms();
        result.verdict = RunVerdict::Inconclusive;
        result.reason = "outer wait 31 %".to_owned();
        result.noise.insert("outer_wait_pct".to_owned(), 31.0);
        let text = render(&result, Style::Text);
        assert!(text.contains("INCONCLUSIVE") && text.contains("outer wait 31 %"), "{text}");
        assert!(text.contains("10 samples per arm") && text.contains("outer_wait_pct 31.00"), "{text}");
    }

    #[test]
    fn numbers_keep_four_digits() {
        let cases: [(f64, &str); 9] = [
            (0.0, "0"),
            (0.01234, "0.0123"),
            (1.23456, "1.235"),
            (99.5, "99.50"),
            (12345.6, "12346"),
            (123456.0, "123.5k"),
            (1.5e9, "1.500G"),
            (0.00001, "1.00e-5"),
            (-3.0, "-3.000"),
        ];
        for (value, text) in cases {
            assert_eq!(format_number(value), text);
        }
    }

    proptest! {
        #[test]
        fn comparison_flips_with_direction(low in 0.01f64..3.0, width in 0.0f64..2.0) {
            let ratio = Ratio { median: low, ci95: [low, low + width] };
            let flipped = match Comparison::of(&ratio, Better::Higher) {
                Comparison::Better => Comparison::Worse,
                Comparison::Same => Comparison::Same,
                Comparison::Worse => Comparison::Better,
            };
            prop_assert_eq!(Comparison::of(&ratio, Better::Lower), flipped);
        }

        #[test]
        fn every_row_has_every_column(names in prop::collection::vec("[ -~\\n\\t|]{1,20}", 1..5), style in prop::bool::ANY) {
            let mut result = two_arms();
            result.metrics = names.iter().map(|name| Metric::new(name.clone(), "u", Better::Lower)).collect();
            let style = if style { Style::Text } else { Style::Markdown };
            let table = render_metrics(&result, style);
            prop_assert_eq!(table.lines().count(), 2 + names.len());
        }
    }
}
