//! `tandem evidence`: measures the claims of the book and renders it.

use crate::cmd_lab::print_result;
use anyhow::{bail, Context};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tandem_evidence::{has_enough, Book};
use tandem_lab::{catalog, RunOptions};
use tandem_result::ExperimentResult;

/// Measure the claims of the evidence book and write docs/EVIDENCE.md
#[derive(Debug, Args)]
pub struct EvidenceCmd {
    /// Measure only this experiment (repeatable)
    #[arg(long, value_name = "EXPERIMENT")]
    only: Vec<String>,
    /// Repeat each experiment until the intervals are half of the margins, or there are 40 samples of each arm
    #[arg(long, conflicts_with = "render")]
    grow: bool,
    /// Measure nothing: write the page from the stored results
    #[arg(long, conflicts_with = "only")]
    render: bool,
    /// Folder of evidence.toml, evidence/ and EVIDENCE.md
    #[arg(long, value_name = "DIR", default_value = "docs")]
    docs: PathBuf,
}

impl EvidenceCmd {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        tandem_lab::catch_termination();
        let book = Book::load(&self.docs.join("evidence.toml"))?;
        let names: Vec<String> = book.experiments().into_iter().map(str::to_string).collect();
        if let Some(unknown) = self.only.iter().find(|name| !names.contains(name)) {
            bail!("no claim rests on an experiment {unknown:?}; known: {}", names.join(", "));
        }
        if let Some((name, command)) =
            self.only.iter().find_map(|name| book.measured_by(name).map(|command| (name, command)))
        {
            bail!("{name:?} is measured by `{command}`, which takes long and stores its result itself");
        }
        let store = self.docs.join("evidence");
        std::fs::create_dir_all(&store).with_context(|| format!("creating {}", store.display()))?;
        for name in names.iter().filter(|name| self.only.is_empty() || self.only.contains(name)) {
            if self.render {
                break;
            }
            if book.measured_by(name).is_some() {
                continue;
            }
            let result = if book.is_simulated(name) {
                crate::cmd_sim::simulate(name, &store)?
            } else {
                let experiment = catalog::find(name)?;
                let enough = |result: &ExperimentResult| {
                    let mut claims = book.claims.iter().filter(|claim| claim.experiment == *name);
                    !self.grow || claims.all(|claim| has_enough(claim, result))
                };
                let result = tandem_lab::run_until(&experiment, &RunOptions::default(), enough)?;
                print_result(&experiment.title, &result);
                result
            };
            result.save(&file_of(&store, name))?;
            // Written after each experiment, so that an interrupted run keeps its results.
            write_page(&self.docs, &book, &load(&store, &names)?)?;
        }
        write_page(&self.docs, &book, &load(&store, &names)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Where an experiment's result is kept.
pub fn file_of(store: &Path, name: &str) -> PathBuf {
    store.join(format!("{name}.json"))
}

fn load(store: &Path, names: &[String]) -> anyhow::Result<BTreeMap<String, ExperimentResult>> {
    let mut results = BTreeMap::new();
    for name in names {
        let path = file_of(store, name);
        if path.exists() {
            results.insert(name.clone(), ExperimentResult::load(&path)?);
        }
    }
    Ok(results)
}

fn write_page(docs: &Path, book: &Book, results: &BTreeMap<String, ExperimentResult>) -> anyhow::Result<()> {
    let path = docs.join("EVIDENCE.md");
    let now = format!("guest {}, host {}", tandem_bpf::GUEST_FINGERPRINT, tandem_bpf::HOST_FINGERPRINT);
    std::fs::write(&path, tandem_evidence::render(book, results, &now))
        .with_context(|| format!("writing {}", path.display()))
}
