//! `tandem-kit`: the workloads whose latency and progress Tandem measures.
//!
//! Every subcommand prints one JSON object as the last line of its standard output and exits 0. On any error it prints
//! one line on standard error and exits non-zero. The programs of the kit do counted work: the same flags mean the same
//! work under any scheduler.

mod arguments;
mod barrier;
mod bpf;
mod build;
mod calibrate;
mod counted_work;
mod crew;
mod current_task;
mod echo;
mod gaps;
mod histogram;
mod hop;
mod live;
mod membarrier;
mod pipeline;
mod queue;
mod random;
mod requests;
mod run;
mod siblings;
mod sleepers;
mod slice;
mod spin;
mod storm;
mod sys;
mod tree;
mod vcpu;

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde_json::Value;

/// Workloads that report their own progress and latency as one line of JSON.
#[derive(Parser)]
#[command(name = "tandem-kit", version)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand)]
enum Workload {
    /// CPU-bound threads; counts the work of each over time
    Spin(spin::Args),
    /// Open-loop request server; latency from the intended arrival
    Requests(requests::Args),
    /// Answers requests over UDP, after some work
    EchoServer(echo::ServerArgs),
    /// Requests over UDP; latency from the intended time
    EchoClient(echo::ClientArgs),
    /// Threads that meet at a barrier after every round of work
    Barrier(barrier::Args),
    /// Threads that interrupt each other's CPUs and wait for the answers
    Membarrier(membarrier::Args),
    /// Stages that pass items on through short queues
    Pipeline(pipeline::Args),
    /// Messengers that wake workers; wake-up latency
    Storm(storm::Args),
    /// Many short processes, a few at a time
    Build(build::Args),
    /// Internal: one of these processes
    #[command(name = build::UNIT_SUBCOMMAND, hide = true)]
    BuildUnit(build::UnitArgs),
    /// Thousands of sleeping threads
    Sleepers(sleepers::Args),
    /// CPU-bound threads in a tree of cgroups, compared with the ideal share of each group
    Tree(tree::Args),
    /// Preemption intervals of one CPU, as gaps in a reader's time line
    Gaps(gaps::Args),
    /// A CPU-bound thread that leaves each of two CPUs just before the host preempts it
    Hop(hop::Args),
    /// Does the guest scheduler know at each moment whether a vCPU is preempted?
    Live(live::Args),
    /// Records which task each CPU runs, for a host to compare with
    CurrentTask(current_task::Args),
    /// How often runnable threads of one process share a CPU while another one would be as good
    Siblings(siblings::Args),
    /// Sets the slices of the threads of a cgroup
    Slice(slice::Args),
    /// A VM of one vCPU, whose thread does something else in between (needs KVM)
    Vcpu(vcpu::Args),
    /// Counted work per microsecond on this machine
    Calibrate(calibrate::Args),
    /// Packaged programs, with their output as JSON
    #[command(subcommand)]
    Run(run::Program),
    /// Internal: removes what an ended kit left behind
    #[command(name = run::GUARD_SUBCOMMAND, hide = true)]
    Guard,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report_usage(&error),
    };
    let outcome = match cli.workload {
        Workload::Spin(args) => spin::run(&args),
        Workload::Requests(args) => requests::run(&args),
        Workload::EchoServer(args) => echo::serve(&args),
        Workload::EchoClient(args) => echo::ask(&args),
        Workload::Barrier(args) => barrier::run(&args),
        Workload::Membarrier(args) => membarrier::run(&args),
        Workload::Pipeline(args) => pipeline::run(&args),
        Workload::Storm(args) => storm::run(&args),
        Workload::Build(args) => build::run(&args),
        Workload::BuildUnit(args) => {
            build::unit(&args);
            return ExitCode::SUCCESS;
        }
        Workload::Sleepers(args) => sleepers::run(&args),
        Workload::Tree(args) => tree::run(&args),
        Workload::Gaps(args) => gaps::run(&args),
        Workload::Hop(args) => hop::run(&args),
        Workload::Live(args) => live::run(&args),
        Workload::CurrentTask(args) => current_task::run(&args),
        Workload::Siblings(args) => siblings::run(&args),
        Workload::Slice(args) => slice::run(&args),
        Workload::Vcpu(args) => vcpu::run(&args),
        Workload::Calibrate(args) => calibrate::run(&args),
        Workload::Run(program) => run::run(&program),
        Workload::Guard => {
            run::watch_over_kit();
            return ExitCode::SUCCESS;
        }
    };
    match outcome.and_then(|report| print_report(&report)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tandem-kit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print_report(report: &Value) -> anyhow::Result<()> {
    // Not println!: it panics when the reader has closed the pipe.
    let mut out = std::io::stdout().lock();
    writeln!(out, "{report}")?;
    out.flush()?;
    Ok(())
}

/// Prints help and version as clap does, and usage errors as one line.
fn report_usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprintln!("tandem-kit: which workload? See tandem-kit --help");
        return ExitCode::from(2);
    }
    let text = text.to_string();
    let first: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    eprintln!("tandem-kit: {}", first.join(" ").trim_start_matches("error: "));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bounds_are_enforced() {
        for line in [
            "tandem-kit spin --threads 0 --secs 1",
            "tandem-kit spin --threads 1 --secs nan",
            "tandem-kit spin --threads 1 --secs 1 --nice 20",
            "tandem-kit spin --threads 1 --secs 1 --cpus 3-1",
            "tandem-kit requests --rate -1 --service-us 10",
            "tandem-kit storm --messengers 2000",
            "tandem-kit gaps --secs 1",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
        let good = "tandem-kit spin --threads 2 --secs 0.5 --nice -5,0 --idle 1 --cpus 0-1,3";
        assert!(Cli::try_parse_from(good.split(' ')).is_ok());
    }
}
