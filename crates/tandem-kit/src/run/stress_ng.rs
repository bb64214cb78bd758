//! stress-ng: one stressor, measured by its own count of operations.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{json, Value};

use super::output::leading_number;
use super::process;
use crate::arguments::{self, MAX_THREADS};

/// Arguments of `run stress-ng`.
#[derive(Parser)]
pub struct Args {
    /// Name of the stressor, e.g. cpu, switch, futex
    #[arg(long, default_value = "cpu", value_parser = stressor)]
    stressor: String,
    /// Number of instances
    #[arg(long, visible_alias = "threads", default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    instances: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    secs: u32,
    /// Memory per instance in KiB, of a stressor that has such an option (stress-ng's --NAME-bytes)
    #[arg(long, value_parser = clap::value_parser!(u32).range(4..=16_777_216))]
    kib: Option<u32>,
}

fn stressor(text: &str) -> Result<String, String> {
    let plain = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if plain {
        return Ok(text.to_owned());
    }
    Err("expected a stressor's name in lower case, as in cpu or matrix-3d".to_owned())
}

pub fn run(args: &Args) -> Result<Value> {
    let program = process::find_program("stress-ng", "stress-ng")?;
    let dir = process::PrivateDir::new()?;
    let report = dir.path().join("report.yaml");
    let mut argv = vec![
        format!("--{}", args.stressor),
        args.instances.to_string(),
        "--timeout".to_owned(),
        format!("{}s", args.secs),
        // The same random numbers in every run: with a different seed each run of mmap does other operations, and their
        // cost differs more than the schedulers do.
        "--no-rand-seed".to_owned(),
        "--metrics-brief".to_owned(),
        "--temp-path".to_owned(),
        dir.path().display().to_string(),
        "--yaml".to_owned(),
        report.display().to_string(),
    ];
    if let Some(kib) = args.kib {
        argv.extend([format!("--{}-bytes", args.stressor), format!("{kib}k")]);
    }
    process::run(&program, &argv, &dir, Duration::from_secs(3 * u64::from(args.secs) + 60))?;
    let text = std::fs::read_to_string(&report).context("stress-ng: it wrote no report")?;
    let metrics = Metrics::parse(&text, &args.stressor)?;
    Ok(json!({
        "workload": "stress-ng",
        "stressor": args.stressor,
        "instances": args.instances,
        "secs": args.secs,
        "ops": metrics.ops,
        "ops_per_s": metrics.ops_per_s,
    }))
}

#[derive(Debug, PartialEq)]
struct Metrics {
    ops: f64,
    ops_per_s: f64,
}

impl Metrics {
    /// Parses the stressor's entry of the report. The report is flat enough to be parsed by lines.
    fn parse(text: &str, stressor: &str) -> Result<Self> {
        let (mut ops, mut ops_per_s, mut inside) = (None, None, false);
        for line in text.lines() {
            let Some((key, value)) = line.trim_start_matches([' ', '-']).split_once(':') else { continue };
            let value = value.trim();
            match key {
                "stressor" => inside = value.trim_matches('"') == stressor,
                "bogo-ops" if inside => ops = leading_number(value),
                "bogo-ops-per-second-real-time" if inside => ops_per_s = leading_number(value),
                _ => {}
            }
        }
        let missing = |what| format!("stress-ng: no {what} of stressor {stressor} in its report");
        Ok(Metrics {
            ops: ops.with_context(|| missing("bogo-ops"))?,
            ops_per_s: ops_per_s.with_context(|| missing("bogo-ops-per-second-real-time"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str =
        "---\nsystem-info:\n      cpus: 2\n\nmetrics:\n    - stressor: vm\n      bogo-ops: 1\n\
        \x20   - stressor: cpu\n      bogo-ops: 4624\n      bogo-ops-per-second-usr-sys-time: 2331.5\n\
        \x20     bogo-ops-per-second-real-time: 4620.758322\n...\n";

    #[test]
    fn the_entry_of_the_stressor() {
        assert_eq!(Metrics::parse(SAMPLE, "cpu").unwrap(), Metrics { ops: 4624.0, ops_per_s: 4620.758322 });
        assert!(Metrics::parse(SAMPLE, "vm").unwrap_err().to_string().contains("real-time of stressor vm"));
        assert!(Metrics::parse("", "cpu").is_err());
    }

    #[test]
    fn names_cannot_smuggle_in_options() {
        assert!(stressor("matrix-3d").is_ok());
        for bad in ["", "-x", "cpu 4", "Cpu", "cpu;x"] {
            assert!(stressor(bad).is_err(), "{bad}");
        }
    }
}
