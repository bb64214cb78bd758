//! `tandem doctor`: what on this machine matters to the scheduler, and what to do about it.

use anyhow::Context;
use clap::Args;
use std::process::ExitCode;
use tandem_daemon::finding::{Finding, State};

/// Check what matters to the scheduler: hypervisor, steal, sched_ext, cgroup settings. Changes nothing.
///
/// Exits with 1 if something prevents loading it.
#[derive(Debug, Args)]
pub struct DoctorCmd {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

impl DoctorCmd {
    /// Checks and prints the findings.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let mut findings = tandem_guest::doctor::examine_this_machine();
        findings.extend(tandem_host::doctor::examine(std::path::Path::new("/")));
        if self.json {
            println!("{}", serde_json::to_string(&findings).context("writing the findings")?);
        } else {
            print!("{}", table(&findings));
        }
        let stuck = findings.iter().any(|finding| finding.state == State::Bad);
        Ok(if stuck { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.subject.len()).max().unwrap_or(0);
    let mut out = String::new();
    for finding in findings {
        let mark = match finding.state {
            State::Good => "ok  ",
            State::Note => "note",
            State::Bad => "BAD ",
        };
        out.push_str(&format!("{mark}  {:width$}  {}\n", finding.subject, finding.found));
        if !finding.advice.is_empty() {
            out.push_str(&format!("      {:width$}  -> {}\n", "", finding.advice));
        }
    }
    out
}
