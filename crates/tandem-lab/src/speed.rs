//! Speed of the machines that a result was measured on, before any contention begins. The lab does not control the
//! outer machine's neighbours. The slower the machine is, the more everything that takes time in the guest (work,
//! wake-ups, migrations) weighs against preemption intervals of a given length. So results of two days can be compared
//! only if these figures are alike.

use crate::link::Link;
use crate::{image, LabError};
use serde::Serialize;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use tandem_agent::Op;

const KIT: &str = "tandem-kit";
/// Short, since every boot does it; one thread that counts loops.
const ARGS: [&str; 5] = ["spin", "--threads", "1", "--secs", "0.5"];
const TIMEOUT: Duration = Duration::from_secs(60);

/// Work of one thread, in millions of loops per second; `None` where it could not be measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Speed {
    /// On the outer machine itself.
    pub outer_mwork_per_s: Option<f64>,
    /// On the machine under test.
    pub tested_mwork_per_s: Option<f64>,
}

/// Environment variable from which tandem-kit takes how many iterations of work are a microsecond (its `--iters-per-us`).
const ITERS_PER_US: &str = "TANDEM_ITERS_PER_US";
const CALIBRATE: [&str; 2] = [KIT, "calibrate"];

/// Programs of a machine that do work of a certain length do as much of it from now on as takes so long there while nothing disturbs it:
/// the same under every scheduler, beside whatever contention there is when they start.
pub fn settle_work(link: &mut Link, machine: &str) -> Result<(), LabError> {
    let argv = CALIBRATE.map(str::to_string);
    let output = link.exec(machine, &argv, TIMEOUT)?;
    let Some(rate) = number_in(&output.stdout, "iters_per_us") else {
        return Err(LabError::Rig(format!("calibrating the work of {machine}: {}", output.stderr.trim())));
    };
    link.ask(machine, Op::SetEnv { name: ITERS_PER_US.into(), value: rate.to_string() }, TIMEOUT)?;
    Ok(())
}

/// Measures both, with `target` as the machine under test. There must be no contention yet.
pub fn measure(link: &mut Link, target: &str) -> Result<Speed, LabError> {
    let argv: Vec<String> = std::iter::once(KIT).chain(ARGS).map(str::to_string).collect();
    let tested = link.exec(target, &argv, TIMEOUT)?;
    let outer = Command::new(image::binary_dir().join(KIT)).args(ARGS).output().ok();
    Ok(Speed {
        outer_mwork_per_s: outer.and_then(|output| mwork_per_s(&String::from_utf8_lossy(&output.stdout))),
        tested_mwork_per_s: mwork_per_s(&tested.stdout),
    })
}

fn mwork_per_s(report: &str) -> Option<f64> {
    number_in(report, "work_per_s").map(|speed| (speed / 1e5).round() / 10.0)
}

fn number_in(report: &str, key: &str) -> Option<f64> {
    serde_json::from_str::<Value>(report.trim()).ok()?.get(key)?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_is_none_says_nothing() {
        assert_eq!(mwork_per_s("{\"work_per_s\": 320596333.0, \"workload\": \"spin\"}\n"), Some(320.6));
        for none in ["", "{}", "[1]", "{\"work_per_s\": \"fast\"}", "{\"work_per_s\": 1"] {
            assert_eq!(mwork_per_s(none), None, "{none}");
        }
    }
}
