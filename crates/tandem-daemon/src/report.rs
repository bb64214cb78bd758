//! What a running scheduler reports: counters, and what there is at the moment.

use scx_stats::prelude::{Meta, StatsMeta};
use serde::{de::DeserializeOwned, Serialize};
use std::io::Write;

/// Counters by number: name, and what it counts.
pub type Counters = [(&'static str, &'static str)];

/// The statistics of a side.
pub trait Report: Meta + Clone + Default + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The side: `guest` or `host`.
    const SIDE: &'static str;
    /// Its counters.
    const COUNTERS: &'static Counters;

    /// Descriptions of the structures that it consists of.
    fn parts() -> Vec<StatsMeta>;

    /// What happened since `earlier`; the rest as it is now.
    fn since(&self, earlier: &Self) -> Self;

    /// With the counters of earlier loads.
    fn after(&self, earlier: &Self) -> Self;

    /// What of it still holds once the scheduler is unloaded: the counters.
    fn unloaded(self) -> Self;

    /// One report for people.
    ///
    /// # Errors
    /// Those of the writer.
    fn format(&self, out: &mut dyn Write) -> std::io::Result<()>;
}

/// A counter's name for people.
pub fn in_words(name: &str) -> String {
    name.replace('_', " ")
}

/// Counters for people, several per line.
///
/// # Errors
/// Those of the writer.
pub fn format_counters(counters: &Counters, values: &[u64], out: &mut dyn Write) -> std::io::Result<()> {
    const PER_LINE: usize = 12;
    for (line, part) in counters.chunks(PER_LINE).zip(values.chunks(PER_LINE)) {
        let words: Vec<String> =
            line.iter().zip(part).map(|((name, _), value)| format!("{} {value}", in_words(name))).collect();
        writeln!(out, "  {}", words.join("  "))?;
    }
    Ok(())
}
