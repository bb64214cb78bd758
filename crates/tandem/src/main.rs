//! `tandem`: vCPU-aware scheduling for Linux. One binary; also answers to `scx_tandem_guest` and `scx_tandem_host`.

mod cmd_doctor;
mod cmd_evidence;
mod cmd_guest;
mod cmd_host;
mod cmd_lab;
mod cmd_probe;
mod cmd_sim;
mod sim_cost;
mod sim_results;
mod sim_summary;
mod sim_validation;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// vCPU-aware scheduling for Linux: inside virtual machines and beneath them
#[derive(Debug, Parser)]
#[command(name = "tandem", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Guest(cmd_guest::GuestCmd),
    Host(cmd_host::HostCmd),
    Probe(cmd_probe::ProbeCmd),
    Sim(cmd_sim::SimCmd),
    Doctor(cmd_doctor::DoctorCmd),
    Lab(cmd_lab::LabCmd),
    Evidence(cmd_evidence::EvidenceCmd),
}

/// Names under which the scx ecosystem's service units start a scheduler, and their subcommands.
const ALIASES: [(&str, &str); 2] = [("scx_tandem_guest", "guest"), ("scx_tandem_host", "host")];

/// Inserts the subcommand that the name of the executable stands for.
fn with_alias(mut args: Vec<OsString>) -> Vec<OsString> {
    let name = args.first().map(std::path::Path::new).and_then(|path| path.file_name()).map(OsString::from);
    if let Some((_, subcommand)) = ALIASES.iter().find(|(alias, _)| name.as_deref() == Some(alias.as_ref())) {
        args.insert(1, OsString::from(subcommand));
    }
    args
}

/// Exit status after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = Cli::parse_from(with_alias(std::env::args_os().collect()));
    let verbose = match &cli.command {
        Command::Guest(guest) => guest.verbose,
        Command::Host(host) => host.verbose,
        _ => 0,
    };
    start_logging(verbose);
    let result = match cli.command {
        Command::Guest(guest) => guest.run(),
        Command::Host(host) => host.run(),
        Command::Probe(probe) => probe.run(),
        Command::Sim(sim) => sim.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Lab(lab) => lab.run(),
        Command::Evidence(evidence) => evidence.run(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tandem: {error:#}");
        match error.downcast_ref() {
            Some(tandem_lab::LabError::Interrupted) => ExitCode::from(INTERRUPTED),
            _ => ExitCode::FAILURE,
        }
    })
}

fn start_logging(verbose: u8) {
    use simplelog::{ConfigBuilder, LevelFilter, WriteLogger};
    let level = match verbose {
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let config = ConfigBuilder::new()
        .set_time_level(LevelFilter::Off)
        .set_thread_level(LevelFilter::Off)
        .set_target_level(LevelFilter::Off)
        .build();
    // Fails only if a logger is already set, which is then used.
    let _ = WriteLogger::init(level, config, std::io::stderr());
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
    fn the_ecosystem_name_stands_for_the_subcommand() {
        let args = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            with_alias(args(&["/usr/bin/scx_tandem_guest", "-v"])),
            args(&["/usr/bin/scx_tandem_guest", "guest", "-v"])
        );
        assert_eq!(with_alias(args(&["tandem", "guest"])), args(&["tandem", "guest"]));
    }
}
