//! A topology on disk, so that a restarted daemon need not probe again.
//!
//! It is valid only on the same machine: the file names the boot and the CPUs, and when it was confirmed. Its content
//! is not trusted.

use super::classes::Classes;
use super::knowledge::Level;
use super::topology::{Tier, Topology};
use serde::{Deserialize, Serialize};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Name and version of the format.
const SCHEMA: &str = "tandem.topology/1";
/// Maximum number of CPUs in a file: the table of pairs grows with the square.
const MOST_CPUS: usize = 4096;

/// A topology and when it was last confirmed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    schema: String,
    boot_id: String,
    confirmed_ns: u64,
    cpus: Vec<usize>,
    tiers: Vec<Tier>,
    unknown: Vec<(usize, usize)>,
    agreement: f64,
    measured: Vec<(usize, usize, f64)>,
    classes: Classes,
    levels: Vec<Option<Level>>,
}

impl Saved {
    /// `boot_id` is that of the running kernel. `confirmed_ns` is on the clock that starts at boot.
    pub fn new(topology: &Topology, boot_id: &str, confirmed_ns: u64) -> Self {
        let t = topology.clone();
        Self {
            schema: SCHEMA.into(),
            boot_id: boot_id.into(),
            confirmed_ns,
            cpus: t.cpus,
            tiers: t.tiers,
            unknown: t.unknown,
            agreement: t.agreement,
            measured: t.measured,
            classes: t.classes,
            levels: t.levels,
        }
    }

    /// Writes it atomically: a reader sees the old file or the new one.
    ///
    /// # Errors
    /// The folder cannot be created or written.
    pub fn write(&self, file: &Path) -> Result<()> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let partial = file.with_extension("partial");
        std::fs::write(&partial, serde_json::to_vec(self)?)?;
        std::fs::rename(&partial, file)
    }

    /// Reads it.
    ///
    /// # Errors
    /// There is no file, or its content is not sound.
    pub fn read(file: &Path) -> Result<Self> {
        let saved: Self = serde_json::from_slice(&std::fs::read(file)?)?;
        if saved.is_sound() {
            Ok(saved)
        } else {
            Err(Error::new(ErrorKind::InvalidData, "not a topology"))
        }
    }

    /// The topology, if it is of this boot and these CPUs and was confirmed at most `max_age_ns` before `now_ns`.
    pub fn topology(
        self,
        boot_id: &str,
        cpus: &[usize],
        now_ns: u64,
        max_age_ns: u64,
    ) -> Option<(Topology, u64)> {
        let age = now_ns.checked_sub(self.confirmed_ns)?;
        let same = self.boot_id == boot_id && self.cpus == cpus;
        (same && age <= max_age_ns).then_some((
            Topology {
                cpus: self.cpus,
                tiers: self.tiers,
                unknown: self.unknown,
                agreement: self.agreement,
                measured: self.measured,
                classes: self.classes,
                levels: self.levels,
            },
            self.confirmed_ns,
        ))
    }

    fn is_sound(&self) -> bool {
        let n = self.cpus.len();
        self.schema == SCHEMA
            && (2..=MOST_CPUS).contains(&n)
            && self.cpus.windows(2).all(|pair| pair[0] < pair[1])
            && self.levels.len() == n * n
            && self.levels.iter().flatten().all(|level| usize::from(*level) < self.tiers.len())
            && self.tiers.iter().all(|tier| is_partition(&tier.groups, &self.cpus))
    }
}

/// Is every CPU in exactly one of the groups?
fn is_partition(groups: &[Vec<usize>], cpus: &[usize]) -> bool {
    let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
    all.sort_unstable();
    all == cpus && groups.iter().all(|group| !group.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Emulated;
    use crate::vtop;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn topology() -> Topology {
        vtop::full(&mut Emulated::rcvm(3), 2000 * MS).unwrap().0
    }

    #[test]
    fn there_and_back_and_only_where_it_belongs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("below/topology.json");
        let topology = topology();
        let saved = Saved::new(&topology, "this boot", 7 * MS);
        saved.write(&file).unwrap();
        let cpus = topology.cpus.clone();
        let read =
            |boot: &str, cpus: &[usize], now| Saved::read(&file).unwrap().topology(boot, cpus, now, 10 * MS);
        let (again, at) = read("this boot", &cpus, 8 * MS).unwrap();
        assert_eq!((again.levels, at), (topology.levels, 7 * MS));
        assert_eq!(read("another boot", &cpus, 8 * MS), None);
        assert_eq!(read("this boot", &cpus[1..], 8 * MS), None);
        assert_eq!(read("this boot", &cpus, 18 * MS), None, "stale");
        assert_eq!(read("this boot", &cpus, 6 * MS), None, "from the future");
        // A validation works with the topology that was read.
        let again = read("this boot", &cpus, 8 * MS).unwrap().0;
        let mut machine = Emulated::rcvm(4);
        assert_eq!(vtop::validate(&mut machine, &again, 500 * MS).0, vtop::Verdict::Holds);
    }

    #[test]
    fn files_that_lie_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("topology.json");
        let good = serde_json::to_string(&Saved::new(&topology(), "b", 1)).unwrap();
        for (from, to) in [
            ("tandem.topology/1", "tandem.topology/2"),
            ("\"cpus\":[0,", "\"cpus\":[5,"),
            ("\"levels\":[null,", "\"levels\":["),
            ("\"levels\":[null,", "\"levels\":[200,"),
            ("[10,11]", "[10,10]"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            std::fs::write(&file, bad).unwrap();
            assert!(Saved::read(&file).is_err(), "{to}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("t");
            std::fs::write(&file, bytes).unwrap();
            prop_assert!(Saved::read(&file).is_err());
        }
    }
}
