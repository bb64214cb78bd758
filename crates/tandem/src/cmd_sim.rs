//! `tandem sim`: two levels of scheduling, simulated.

use crate::cmd_evidence::file_of;
use crate::sim_validation::{self, Comparison};
use crate::{sim_cost, sim_results, sim_summary};
use anyhow::{bail, Context};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use tandem_result::{render, Better, Evidence, ExperimentResult, Style};
use tandem_sim::catalog::MODELS;
use tandem_sim::explore::SCENARIOS;
use tandem_sim::paper::{self, EXPERIMENTS};
use tandem_sim::runner::{self, MOST_EVENTS};
use tandem_sim::scenario::Scenario;

/// Simulate a host and its guests.
#[derive(Debug, Args)]
pub struct SimCmd {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Args)]
pub(crate) struct Effort {
    /// Seeds, from 1 on
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    /// Threads (default: one per CPU); the result does not depend on it
    #[arg(long)]
    threads: Option<usize>,
    /// Write the result (tandem.result/1) to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Effort {
    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a scenario with several seeds and compare its arms
    Run {
        /// File of the scenario
        file: PathBuf,
        #[command(flatten)]
        effort: Effort,
    },
    /// Run an experiment of one of the papers, or all
    Paper {
        /// Its name (see `list`)
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        id: Option<String>,
        /// All, one after the other
        #[arg(long, conflicts_with = "json")]
        all: bool,
        #[command(flatten)]
        effort: Effort,
    },
    /// Run all experiments of the papers and write them up
    Results {
        /// Page to write; the pictures go into `figures` beside it
        page: PathBuf,
        #[command(flatten)]
        effort: Effort,
    },
    /// List the experiments and the models of programs
    List,
    /// Run one arm of a scenario with one seed and write what ran where
    Trace {
        /// File of the scenario, or name of an experiment
        file: String,
        /// Where to write it, for ui.perfetto.dev
        #[arg(long, value_name = "OUT")]
        perfetto: PathBuf,
        /// Arm (default: the first)
        #[arg(long)]
        arm: Option<String>,
        /// Seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Compare with the lab: its result of the experiment `validation`
    Validate {
        /// File of that result (tandem.result/1)
        lab: PathBuf,
        /// Page of `tandem sim results`: its last part is rewritten
        #[arg(long)]
        page: Option<PathBuf>,
        #[command(flatten)]
        effort: Effort,
    },
    /// Measure the simulator's own speed and memory
    Bench,
    /// Search for interleavings of CPUs in which the guest scheduler loses a task or a quota, or miscounts them
    Explore {
        /// Random runs of each scenario with several switches, besides all runs with a single switch
        #[arg(long, default_value_t = 10_000)]
        runs: u64,
        /// Seed of the random runs
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Measure what a decision of the guest scheduler costs on machines of 2 to 255 vCPUs with 10 to 3,000 active
    /// groups, or of the host scheduler on 8 to 256 pCPUs with 3 to 300 VMs
    Cost {
        /// Of the host scheduler
        #[arg(long)]
        host: bool,
        /// Measurements of each size; the minimum counts
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
        repeat: u32,
        /// Only this many vCPUs; of the host: pCPUs
        #[arg(long, alias = "pcpus", value_parser = clap::value_parser!(u16).range(2..=1024))]
        vcpus: Option<u16>,
        /// Only this many groups; of the host: VMs
        #[arg(long, alias = "vms", value_parser = clap::value_parser!(u16).range(1..=10_000))]
        groups: Option<u16>,
        /// Count instructions, too (takes minutes; needs valgrind)
        #[arg(long)]
        instructions: bool,
    },
}

impl SimCmd {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Run { file, effort } => show(&compare(&read(&file)?, &effort)?, &effort)?,
            Action::Results { page, effort } => sim_results::write(&page, &effort)?,
            Action::Paper { id, effort, .. } => {
                let chosen = match &id {
                    Some(id) => vec![find(id)?],
                    None => EXPERIMENTS.iter().collect(),
                };
                for experiment in chosen {
                    show(&compare(&experiment.read()?, &effort)?, &effort)?;
                    println!("  {}: {}", experiment.source, experiment.finding);
                }
            }
            Action::List => list(),
            Action::Trace { file, perfetto, arm, seed } => trace(&file, &perfetto, arm.as_deref(), seed)?,
            Action::Validate { lab, page, effort } => return validate(&lab, page.as_deref(), &effort),
            Action::Bench => bench()?,
            Action::Explore { runs, seed } => return explore(runs, seed),
            Action::Cost { host, repeat, vcpus, groups, instructions } => {
                let side = if host { &sim_cost::HOST } else { &sim_cost::GUEST };
                sim_cost::show(side, repeat, vcpus.map(usize::from), groups.map(usize::from), instructions)?
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn find(id: &str) -> anyhow::Result<&'static paper::Experiment> {
    paper::find(id).with_context(|| format!("no experiment {id:?}: see `tandem sim list`"))
}

/// Runs one of the papers' experiments as `tandem sim paper` does, measures costs, or compares with what the lab has measured and stored, for the
/// evidence book.
pub fn simulate(id: &str, store: &Path) -> anyhow::Result<ExperimentResult> {
    if let Some(side) = sim_cost::find(id) {
        let result = sim_cost::as_result(side)?;
        print!("{}", render(&result, Style::Text));
        return Ok(result);
    }
    let effort = Effort { seeds: 10, threads: None, json: None };
    if let Some(measured) = sim_validation::measured_for(id) {
        let lab = file_of(store, measured);
        return Ok(validated(&lab, &effort)?.1);
    }
    let mut result = compare(&find(id)?.read()?, &effort)?;
    show(&result, &effort)?;
    sim_summary::add_to(&mut result);
    Ok(result)
}

fn read(file: &Path) -> anyhow::Result<Scenario> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(Scenario::parse(&text, &file.display().to_string())?)
}

fn list() {
    println!("experiments");
    for experiment in EXPERIMENTS {
        println!("  {:<16} {}: {}", experiment.id, experiment.source, experiment.finding);
    }
    println!("\nmodels of programs");
    for model in MODELS {
        println!("  {:<16} {:<10} {}", model.name, model.suite, model.source);
    }
}

pub(crate) fn compare(scenario: &Scenario, effort: &Effort) -> anyhow::Result<ExperimentResult> {
    let threads = effort.threads();
    let started = Instant::now();
    let mut result = None;
    let mut events = 0;
    let members = scenario.members();
    for (number, (program, member)) in members.iter().enumerate() {
        let name =
            program.map(|name| format!(" {name} ({} of {})", number + 1, members.len())).unwrap_or_default();
        let progress =
            |done: usize, all: usize| eprint!("\r{}{name}: run {done} of {all}    ", scenario.name);
        let runs = runner::run(member, effort.seeds, threads, &progress)?;
        events += runs.iter().flatten().map(|run| run.events).sum::<u64>();
        add_to(&mut result, member, *program, &runs);
    }
    eprintln!();
    let seconds = started.elapsed().as_secs_f64();
    let Some(mut result) = result else { bail!("{}: nothing was measured", scenario.name) };
    result.compute_ratios(true);
    eprintln!("{events} events in {seconds:.1} s, {:.2} million per second", events as f64 / 1e6 / seconds);
    Ok(result)
}

fn show(result: &ExperimentResult, effort: &Effort) -> anyhow::Result<()> {
    print!("{}{}", render(result, Style::Text), sim_summary::in_words(result));
    if let Some(path) = &effort.json {
        result.save(path).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn add_to(
    result: &mut Option<ExperimentResult>,
    scenario: &Scenario,
    program: Option<&str>,
    runs: &runner::Results,
) {
    let arms = scenario.arms();
    let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
    let result = result
        .get_or_insert_with(|| ExperimentResult::new(&scenario.name, Evidence::Model, names[0], &names, 1));
    for (arm, runs) in names.iter().zip(runs) {
        for run in runs {
            for (metric, figure) in scenario.metrics.iter().zip(&run.figures) {
                let (unit, higher) = metric.what.unit();
                let better = if higher { Better::Higher } else { Better::Lower };
                let name =
                    program.map_or(metric.name.clone(), |program| format!("{program}: {}", metric.name));
                if let Some(figure) = figure {
                    result.metric_mut(&name, unit, better).push(arm, *figure);
                }
            }
        }
    }
}

fn trace(file: &str, out: &Path, arm: Option<&str>, seed: u64) -> anyhow::Result<()> {
    let scenario = match paper::find(file) {
        Some(experiment) => experiment.read()?,
        None => read(Path::new(file))?,
    };
    let (_, member) = scenario.members().swap_remove(0);
    let chosen = match arm {
        Some(name) => {
            let found = member.arms.iter().find(|arm| arm.name == name);
            Some(found.with_context(|| format!("{file} has no arm {name:?}"))?)
        }
        None => member.arms.first(),
    };
    let mut stage = chosen.map_or_else(|| member.clone(), |arm| member.with(arm)).stage(seed)?;
    stage.machine.record.switches = Some(Vec::new());
    stage.machine.run(stage.end, MOST_EVENTS)?;
    let file = std::fs::File::create(out).with_context(|| format!("creating {}", out.display()))?;
    let mut writer = std::io::BufWriter::new(file);
    tandem_sim::trace::write(&stage.machine, &mut writer)
        .and_then(|()| std::io::Write::flush(&mut writer))
        .with_context(|| format!("writing {}", out.display()))
}

/// Compares the ratios of lab and model; fails if they differ too much.
fn validate(lab: &Path, page: Option<&Path>, effort: &Effort) -> anyhow::Result<ExitCode> {
    let code = |agree| if agree { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if let Some(page) = page {
        return sim_results::write_last_part(page, lab, effort).map(code);
    }
    let (comparison, result) = validated(lab, effort)?;
    if let Some(file) = &effort.json {
        result.save(file)?;
    }
    Ok(code(comparison.holds()))
}

/// Shows the model beside what the lab has measured.
fn validated(lab: &Path, effort: &Effort) -> anyhow::Result<(Comparison, ExperimentResult)> {
    let lab = ExperimentResult::load(lab).with_context(|| format!("reading {}", lab.display()))?;
    let comparison = Comparison::with(&lab, effort.seeds, effort.threads())?;
    println!("{}\n{}", comparison.table(), comparison.verdict());
    let result = comparison.as_result(&lab.experiment);
    Ok((comparison, result))
}

/// Two guests on 16 pCPUs under a mixed load, and larger ones.
fn bench() -> anyhow::Result<()> {
    println!(
        "{:>6} {:>6} {:>10} {:>12} {:>14} {:>10}",
        "pCPUs", "vCPUs", "simulated", "wall", "events/s", "memory"
    );
    for vcpus in [16, 32, 64, 127] {
        let mut stage = Scenario::parse(&tandem_sim::runner::mixed_load(vcpus), "bench")?.stage(1)?;
        let started = Instant::now();
        stage.machine.run(stage.end, MOST_EVENTS)?;
        let wall = started.elapsed().as_secs_f64();
        println!(
            "{:>6} {:>6} {:>8.0} s {:>10.2} s {:>11.2} M {:>6} MiB",
            stage.machine.hardware.cpus(),
            2 * vcpus,
            stage.end as f64 / 1e9,
            wall,
            stage.machine.events() as f64 / 1e6 / wall,
            resident_mib()
        );
    }
    Ok(())
}

fn explore(runs: u64, seed: u64) -> anyhow::Result<ExitCode> {
    let mut found = false;
    let all = SCENARIOS.iter().flat_map(|scenario| scenario.sides.iter().map(move |side| (*side, scenario)));
    for (side, scenario) in all {
        let explored = scenario.explore(side, runs, seed).map_err(anyhow::Error::msg)?;
        let name = format!("{}: {}", side.name(), scenario.name);
        match &explored.failure {
            None => println!("{name}: nothing lost in {} runs", explored.runs),
            Some((course, what)) => {
                found = true;
                let switches: String = course
                    .switches
                    .iter()
                    .map(|switch| format!(", {} from point {}", switch.to, switch.point))
                    .collect();
                println!("{name}: {what} (run {}; actor {} first{switches})", explored.runs, course.first);
            }
        }
    }
    Ok(if found { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Highest resident memory of this process so far, MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|text| text.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
