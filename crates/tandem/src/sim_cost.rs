//! What a decision costs by size, as a table and for the evidence book.

use anyhow::{bail, ensure, Context};
use std::path::Path;
use std::process::Command;
use tandem_result::{Better, Evidence, ExperimentResult};
use tandem_sim::machine::Watch;
use tandem_sim::SimError;

/// Measurements of each size in the evidence book: as many as an interval needs.
const BOOK_REPEATS: u32 = 6;

/// A side whose cost is measured, by number of CPUs and of what is scheduled there.
pub struct Side {
    experiment: &'static str,
    option: Option<&'static str>,
    measure: fn(usize, usize) -> Result<Watch, SimError>,
    cpus: (&'static str, &'static [usize]),
    groups: (&'static str, &'static [usize]),
    /// The number of CPUs that others are compared with.
    compared: usize,
}

/// The guest scheduler, by vCPUs and active groups.
pub const GUEST: Side = Side {
    experiment: "sim-cost",
    option: None,
    measure: tandem_sim::cost::measure,
    cpus: ("vCPUs", &[2, 8, 32, 128, 255]),
    groups: ("groups", &[10, 300, 3000]),
    compared: 8,
};

/// The host scheduler, by pCPUs and VMs.
pub const HOST: Side = Side {
    experiment: "sim-cost-host",
    option: Some("--host"),
    measure: tandem_sim::cost::measure_host,
    cpus: ("pCPUs", &[8, 32, 128, 256]),
    groups: ("VMs", &[3, 30, 300]),
    compared: 8,
};

/// The side that an experiment of the book is about.
pub fn find(experiment: &str) -> Option<&'static Side> {
    [&GUEST, &HOST].into_iter().find(|side| side.experiment == experiment)
}

/// What was measured of a size.
struct Cost {
    cpus: usize,
    groups: usize,
    decisions: u64,
    /// Nanoseconds per decision, one sample for each repetition.
    decision_ns: Vec<f64>,
    /// Microseconds per refresh of weights.
    refresh_us: Vec<f64>,
    /// Instructions of the scheduler per decision.
    instructions: Option<f64>,
}

impl Side {
    /// Costs by size, (CPUs, groups). Sizes are measured in turn: what this computer does meanwhile, or how fast it is, shall not fall on one of them.
    fn measured(
        &self,
        sizes: &[(usize, usize)],
        repeat: u32,
        instructions: bool,
    ) -> anyhow::Result<Vec<Cost>> {
        let new = |&(cpus, groups): &(usize, usize)| Cost {
            cpus,
            groups,
            decisions: 0,
            decision_ns: Vec::new(),
            refresh_us: Vec::new(),
            instructions: None,
        };
        let mut costs: Vec<Cost> = sizes.iter().map(new).collect();
        for _ in 0..repeat {
            for cost in &mut costs {
                let watch = (self.measure)(cost.cpus, cost.groups)?;
                cost.decision_ns.push(watch.ns_per_decision());
                cost.refresh_us.push(watch.us_per_refresh());
                cost.decisions = watch.decisions;
            }
        }
        for cost in costs.iter_mut().filter(|_| instructions) {
            let count = self.instructions(cost.cpus, cost.groups)?;
            cost.instructions = Some(count / cost.decisions.max(1) as f64);
        }
        Ok(costs)
    }

    /// What a size is called in the evidence book.
    fn name(&self, (cpus, groups): (usize, usize)) -> String {
        format!("{cpus} {}, {groups} {}", self.cpus.0, self.groups.0)
    }

    /// Instructions of the scheduler in one measurement, which this program repeats under callgrind.
    fn instructions(&self, cpus: usize, groups: usize) -> anyhow::Result<f64> {
        eprintln!("counting instructions: {}", self.name((cpus, groups)));
        let folder = tempfile::tempdir().context("creating a folder for callgrind")?;
        let file = folder.path().join("callgrind.out");
        let mut command = callgrind();
        command.arg(format!("--callgrind-out-file={}", file.display()));
        command.arg(std::env::current_exe().context("finding this program")?).args(["sim", "cost"]);
        command.args(self.option).args(["--repeat", "1", "--vcpus", &cpus.to_string()]);
        let output = command.args(["--groups", &groups.to_string()]).output();
        let output = output.context("running valgrind")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("valgrind failed: {}", said.lines().last().unwrap_or("it says nothing"));
        }
        of_unknown_objects(&file)
    }
}

/// Callgrind as it is by default, whatever its user has configured.
fn callgrind() -> Command {
    let mut command = Command::new("valgrind");
    command.env_remove("VALGRIND_OPTS").args(["--command-line-only=yes", "--tool=callgrind"]);
    command
}

/// Before anything is measured that would be lost.
fn require_callgrind() -> anyhow::Result<()> {
    let output = callgrind().arg("--version").output();
    let found = output.is_ok_and(|output| output.status.success());
    ensure!(found, "instructions are counted by valgrind, which cannot be run: apt install valgrind");
    Ok(())
}

/// Sum of the instructions that callgrind saw in no file. Those are the scheduler's: the simulator maps its image itself.
fn of_unknown_objects(file: &Path) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let sum = sum_of_unknown(&text).with_context(|| format!("reading {}", file.display()))?;
    ensure!(sum > 0, "{}: no instructions of the scheduler", file.display());
    Ok(sum as f64)
}

/// The format is described in the manual of Callgrind ("Callgrind Format Specification").
fn sum_of_unknown(text: &str) -> anyhow::Result<u64> {
    ensure!(
        text.lines().any(|line| line == "events: Ir"),
        "callgrind counted something else than instructions"
    );
    let mut unknown = Vec::new();
    let (mut inside, mut of_call, mut sum) = (false, false, 0);
    for (number, line) in text.lines().enumerate() {
        // A name is written out where it first appears, which may be where its object is called.
        let object = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob="));
        if let Some(object) = object {
            let (id, name) = object.split_once(' ').unwrap_or((object, ""));
            if name == "???" {
                unknown.push(id.to_string());
            }
            if line.starts_with("ob=") {
                inside = unknown.iter().any(|one| one == id);
            }
        } else if line.starts_with("calls=") {
            // The line that follows has the cost of what was called.
            of_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let mut words = line.split_ascii_whitespace();
            if inside && !of_call {
                let cost = words.nth(1).and_then(|cost| cost.parse::<u64>().ok());
                sum += cost.with_context(|| format!("line {}: no cost: {line:?}", number + 1))?;
            }
            of_call = false;
        }
    }
    Ok(sum)
}

fn least(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Prints costs by size. If a size is given, only that one is measured, and nothing is compared.
pub fn show(
    side: &Side,
    repeat: u32,
    cpus: Option<usize>,
    groups: Option<usize>,
    instructions: bool,
) -> anyhow::Result<()> {
    if instructions {
        require_callgrind()?;
    }
    let ratio = format!("/{}", side.compared);
    print!(
        "{:>7} {:>6} {:>11} {:>12} {ratio:>6} {:>12} {ratio:>6}",
        side.groups.0, side.cpus.0, "decisions", "ns/decision", "us/refresh"
    );
    println!("{}", if instructions { format!(" {:>13} {ratio:>6}", "instructions") } else { String::new() });
    let all_groups = side.groups.1.iter().copied().filter(|_| groups.is_none()).chain(groups);
    let all_cpus = || side.cpus.1.iter().copied().filter(|_| cpus.is_none()).chain(cpus);
    let sizes: Vec<_> = all_groups.flat_map(|groups| all_cpus().map(move |cpus| (cpus, groups))).collect();
    for rows in side.measured(&sizes, repeat, instructions)?.chunk_by(|a, b| a.groups == b.groups) {
        let compared = rows.iter().find(|row| row.cpus == side.compared);
        for row in rows {
            let over = |value: f64, other: Option<f64>| {
                other.map_or_else(String::new, |other| format!("{:.2}", value / other))
            };
            let (decision, refresh) = (least(&row.decision_ns), least(&row.refresh_us));
            print!(
                "{:>7} {:>6} {:>11} {decision:>12.0} {:>6} {refresh:>12.1} {:>6}",
                row.groups,
                row.cpus,
                row.decisions,
                over(decision, compared.map(|row| least(&row.decision_ns))),
                over(refresh, compared.map(|row| least(&row.refresh_us)))
            );
            match row.instructions {
                Some(count) => {
                    println!(" {count:>13.0} {:>6}", over(count, compared.and_then(|row| row.instructions)))
                }
                None => println!(),
            }
        }
    }
    Ok(())
}

/// Measures the smallest and the largest sizes, for the evidence book.
pub fn as_result(side: &Side) -> anyhow::Result<ExperimentResult> {
    require_callgrind()?;
    let ends = |all: &[usize], first: usize| [first, all.last().copied().unwrap_or(first)];
    let first = side.groups.1.first().copied().unwrap_or(1);
    let mut sizes = Vec::new();
    for groups in ends(side.groups.1, first) {
        sizes.extend(ends(side.cpus.1, side.compared).map(|cpus| (cpus, groups)));
    }
    let names: Vec<String> = sizes.iter().map(|size| side.name(*size)).collect();
    let arms: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut result = ExperimentResult::new(side.experiment, Evidence::Model, arms[0], &arms, 1);
    let mut smallest = None;
    for (cost, name) in side.measured(&sizes, BOOK_REPEATS, true)?.into_iter().zip(arms) {
        for sample in cost.decision_ns {
            result.metric_mut("time per decision", "ns", Better::Lower).push(name, sample);
        }
        for sample in cost.refresh_us {
            result.metric_mut("time per refresh of weights", "us", Better::Lower).push(name, sample);
        }
        if let Some(count) = cost.instructions {
            // Counted once, as nothing of it is random: too few samples for an interval, so that the ratio is a metric.
            let ratio = count / *smallest.get_or_insert(count);
            result.metric_mut("instructions per decision", "", Better::Lower).push(name, count);
            result.metric_mut("instructions, over the smallest size", "", Better::Lower).push(name, ratio);
        }
    }
    result.compute_ratios(false);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_in_no_file_are_summed_without_those_of_what_they_call() {
        let text = "# callgrind format\nevents: Ir\n\nob=(1) /bin/tandem\nfn=(1) main\n3 100\ncob=(2) ???\ncfn=(2) 0x1\n\
                    calls=5 0\n4 40\n\nob=(2)\nfn=(2)\n0 30\n+1 5\ncob=(1)\ncfn=(3) kfunc\ncalls=1 0\n* 1000\n-2 4\n\n\
                    ob=(1)\nfn=(3)\n1 1000\ntotals: 1139\n";
        assert_eq!(sum_of_unknown(text).ok(), Some(39));
        assert_eq!(sum_of_unknown("events: Ir\nob=(1) /bin/tandem\n1 7\n").ok(), Some(0));
    }

    #[test]
    fn what_callgrind_does_not_write_is_refused() {
        for text in [
            "",
            "events: Ir Dr\nob=(1) ???\n1 7 8\n",
            "events: Ir\nob=(1) ???\n+3\n",
            "events: Ir\nob=(1) ???\n1 x\n",
        ] {
            assert!(sum_of_unknown(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sides_are_found_by_their_experiments() {
        assert_eq!(find("sim-cost-host").map(|side| side.cpus.0), Some("pCPUs"));
        assert!(find("cost").is_none());
    }
}
