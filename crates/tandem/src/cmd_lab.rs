//! `tandem lab`: experiments on real kernels.

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use tandem_lab::lock::MachineLock;
use tandem_lab::run::AccelChoice;
use tandem_lab::{cache, catalog, fetch, RunOptions};
use tandem_result::{render, ExperimentResult, RunVerdict, Style};

/// Exit status of a run that proves nothing.
const INCONCLUSIVE: u8 = 2;

/// Boot a KVM host with guests in QEMU and run experiments there
#[derive(Debug, Args)]
pub struct LabCmd {
    #[command(subcommand)]
    command: LabSub,
}

#[derive(Debug, Subcommand)]
enum LabSub {
    /// List the built-in experiments
    List,
    /// Run an experiment and print its result (exit status 0: ok, 1: failed, 2: inconclusive)
    Run(RunArgs),
    /// Boot an experiment's machines and run what is typed in the machine under test
    Shell {
        /// Built-in name, or path of an experiment file
        experiment: String,
        /// Acceleration of the host
        #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
        accel: AccelArg,
    },
    /// Say what the lab finds on this machine (exit status 1: it cannot work here)
    Doctor,
    /// Download what the lab needs, and stop
    Fetch,
    /// List the kernels that can be booted besides the newest (for run --kernel)
    Kernels,
    /// Remove the lab's downloads and images
    Clean,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Built-in name, or path of an experiment file
    experiment: String,
    /// Write the result (tandem.result/1) to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Repetitions of each arm, instead of the experiment's own
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: Option<u32>,
    /// Compare these schedulers instead of the experiment's own; the first is the baseline
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    arms: Option<Vec<String>>,
    /// Acceleration of the host
    #[arg(long, value_enum, default_value_t = AccelArg::Auto)]
    accel: AccelArg,
    /// Boot another kernel, by series, e.g. 6.18: on the host, and in guests that have none of their own (see lab
    /// kernels)
    #[arg(long, value_name = "SERIES")]
    kernel: Option<String>,
    /// Print the consoles of failed attempts
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AccelArg {
    Auto,
    Kvm,
    Tcg,
}

impl From<AccelArg> for AccelChoice {
    fn from(arg: AccelArg) -> Self {
        match arg {
            AccelArg::Auto => AccelChoice::Auto,
            AccelArg::Kvm => AccelChoice::Kvm,
            AccelArg::Tcg => AccelChoice::Tcg,
        }
    }
}

impl LabCmd {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        tandem_lab::catch_termination();
        match self.command {
            LabSub::List => {
                for experiment in catalog::all()? {
                    println!("{:<18} {}", experiment.name, experiment.title);
                }
            }
            LabSub::Run(args) => return args.run(),
            LabSub::Shell { experiment, accel } => {
                tandem_lab::shell::shell(&catalog::find(&experiment)?, accel.into())?;
            }
            LabSub::Doctor => return Ok(doctor()),
            LabSub::Fetch => {
                let _lock = MachineLock::take(|text| eprintln!("lab: {text}"))?;
                let parts = fetch::parts()?;
                println!("kernel {}, QEMU {}", parts.kernel.release, parts.qemu_version);
            }
            LabSub::Kernels => {
                let _lock = MachineLock::take(|text| eprintln!("lab: {text}"))?;
                for kernel in tandem_lab::kernels::list()? {
                    println!("{:<6} {}", kernel.series(), kernel.release);
                }
            }
            LabSub::Clean => {
                let _lock = MachineLock::take(|text| eprintln!("lab: {text}"))?;
                println!("cleaned {}", cache::clean()?.display());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl RunArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        let experiment = catalog::find(&self.experiment)?;
        let options = RunOptions {
            reps: self.reps,
            arms: self.arms,
            accel: self.accel.into(),
            verbose: self.verbose,
            kernel: self.kernel,
        };
        let result = tandem_lab::run(&experiment, &options)?;
        print_result(&experiment.title, &result);
        if let Some(path) = &self.json {
            result.save(path).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(status_of(&result))
    }
}

/// Prints a result for people.
pub fn print_result(title: &str, result: &ExperimentResult) {
    println!("\n{title}\n");
    println!("{}", render(result, Style::Text));
    for d in result.details["contention"].as_array().into_iter().flatten() {
        println!(
            "contention of {}'s vCPU {} during {} ({}): asked {} % for {} ms, delivered {} % for {} ms (it wanted to run {} % of the time)",
            d["vm"].as_str().unwrap_or("?"),
            d["vcpu"],
            d["workload"].as_str().unwrap_or("?"),
            d["arm"].as_str().unwrap_or("?"),
            d["asked_share_pct"],
            d["asked_period_ms"],
            d["share_pct"],
            d["period_ms"],
            d["demand_pct"]
        );
    }
}

/// Exit status of a run.
pub fn status_of(result: &ExperimentResult) -> ExitCode {
    match result.verdict {
        RunVerdict::Ok => ExitCode::SUCCESS,
        RunVerdict::Inconclusive => ExitCode::from(INCONCLUSIVE),
        RunVerdict::Failed => ExitCode::FAILURE,
    }
}

fn doctor() -> ExitCode {
    let findings = tandem_lab::doctor::examine();
    for finding in &findings {
        println!("{:<4} {:<10} {}", if finding.good { "ok" } else { "BAD" }, finding.what, finding.text);
    }
    if findings.iter().all(|finding| finding.good) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
