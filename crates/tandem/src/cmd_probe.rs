//! `tandem probe`: what the vCPUs of this machine really are.

use anyhow::{bail, Context};
use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tandem_probe::kernel::{format_list, parse_list, write_tree, KernelView};
use tandem_probe::machine::Machine as _;
use tandem_probe::neighbours::CONTENDED;
use tandem_probe::report::Report;
use tandem_probe::threads::Threads;
use tandem_probe::{render, share, sys, vtop, wake};

/// The kernel's description of CPUs.
const SYSFS_CPU: &str = "/sys/devices/system/cpu";
/// Upper bound of one sleep of `--watch`. The 100 ms between two checks for an interruption stay below it.
const LONGEST: Duration = Duration::from_secs(60);

/// Part of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Shares, speeds and preemption intervals
    Share,
    /// Which vCPUs share a hardware thread, a core, a cache
    Topology,
}

/// Measure what every vCPU of this machine really is: share, speed, preemption intervals, topology.
///
/// Needs no root; with it the probe disturbs less and is disturbed less. The probe keeps all CPUs busy, as SCHED_IDLE
/// except for moments.
#[derive(Debug, Args)]
pub struct ProbeCmd {
    /// Only this part
    #[arg(long, value_name = "PART")]
    only: Option<Part>,

    /// CPUs to probe, e.g. 0-3,8 (default: all that this process may use)
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,

    /// Time for each part, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(20..=60_000))]
    duration: u64,

    /// Print the report as JSON (schema tandem.probe/1)
    #[arg(long)]
    json: bool,

    /// Draw the heat map of the topology into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write the topology in sysfs' form into an empty directory (for SCX_SYSFS_PREFIX)
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,

    /// Repeat every SEC seconds, until interrupted
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

impl ProbeCmd {
    /// Probes, once or repeatedly.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        if self.only == Some(Part::Share) && (self.svg.is_some() || self.sysfs.is_some()) {
            bail!("--svg and --sysfs show the topology, which --only share leaves out");
        }
        let cpus = self.chosen()?;
        tandem_guest::catch_termination();
        loop {
            let report = self.probe(&cpus)?;
            if self.json {
                println!("{}", serde_json::to_string(&report).context("writing the report")?);
            } else {
                print!("{}", render::text(&report, std::io::stdout().is_terminal()));
            }
            let Some(pause) = self.watch else { return Ok(ExitCode::SUCCESS) };
            let until = Instant::now() + Duration::from_secs(pause);
            while Instant::now() < until {
                if tandem_guest::termination_requested() {
                    return Ok(ExitCode::SUCCESS);
                }
                std::thread::sleep(Duration::from_millis(100).min(LONGEST));
            }
        }
    }

    /// Runs all parts of the probe on all CPUs that this process may use, each part for `length`.
    pub(crate) fn of_everything(length: Duration) -> anyhow::Result<Report> {
        let duration = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let probe =
            Self { only: None, cpus: None, duration, json: false, svg: None, sysfs: None, watch: None };
        probe.probe(&probe.chosen()?)
    }

    fn chosen(&self) -> anyhow::Result<Vec<usize>> {
        let usable = sys::usable_cpus().context("which CPUs may be used")?;
        let Some(list) = &self.cpus else { return Ok(usable) };
        let chosen =
            parse_list(list).with_context(|| format!("--cpus {list:?}: not a list of CPUs such as 0-3,8"))?;
        let missing: Vec<usize> = chosen.iter().copied().filter(|cpu| !usable.contains(cpu)).collect();
        if chosen.is_empty() || !missing.is_empty() {
            bail!("--cpus {list}: this process may use {}", format_list(&usable));
        }
        Ok(chosen)
    }

    fn probe(&self, cpus: &[usize]) -> anyhow::Result<Report> {
        let length = Duration::from_millis(self.duration);
        let samples = match self.only {
            Some(Part::Topology) => Vec::new(),
            _ => share::sample(cpus, length, sys::Policy::BestEffort).context("measuring shares")?,
        };
        // Without contention there are no neighbours to classify.
        let contended = samples.iter().any(|sample| sample.share().is_some_and(|share| share < CONTENDED));
        // If the threads for it cannot be started, the report goes without it.
        let wakes = if contended { wake::sample(cpus, length).unwrap_or_default() } else { Vec::new() };
        let topology = match self.only {
            Some(Part::Share) => None,
            // One CPU has no topology. That is an error only if the topology was asked for by name.
            None if cpus.len() < 2 => None,
            only => {
                let mut threads = Threads::on(cpus).context("measuring the topology")?;
                // The other CPUs may have gone offline since.
                if only.is_none() && threads.cpus().len() < 2 {
                    return Ok(Report::of(
                        &samples,
                        &wakes,
                        None,
                        KernelView::read(SYSFS_CPU.as_ref(), cpus),
                    ));
                }
                Some(vtop::full(&mut threads, length.as_nanos() as u64).context("measuring the topology")?)
            }
        };
        if let Some((topology, _)) = &topology {
            if let Some(file) = &self.svg {
                std::fs::write(file, render::svg(topology))
                    .with_context(|| format!("writing {}", file.display()))?;
            }
            if let Some(dir) = &self.sysfs {
                write_tree(dir, topology).with_context(|| format!("writing below {}", dir.display()))?;
            }
        }
        Ok(Report::of(&samples, &wakes, topology, KernelView::read(SYSFS_CPU.as_ref(), cpus)))
    }
}
