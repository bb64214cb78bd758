//! Moves interrupts away from vCPUs that are out of use, and back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tandem_daemon::cpulist::parse_cpu_list;

/// The kernel's directory of interrupts.
const PROC_IRQ: &str = "/proc/irq";
/// The file that says which interrupts were sent elsewhere, for the next daemon after one that was killed. Neither
/// the file nor what it describes survives a reboot.
const NOTE: &str = "/run/tandem/irqs.json";

/// Interrupts that were sent elsewhere, with their affinity by the administrator's own setting.
#[derive(Debug)]
pub(crate) struct Irqs {
    root: PathBuf,
    note: PathBuf,
    before: BTreeMap<u32, Vec<usize>>,
    parked: Vec<usize>,
}

impl Default for Irqs {
    /// First puts back what a killed daemon has sent elsewhere.
    fn default() -> Self {
        Self::at(PROC_IRQ.into(), NOTE.into())
    }
}

impl Irqs {
    fn at(root: PathBuf, note: PathBuf) -> Self {
        let left = std::fs::read_to_string(&note).ok().and_then(|text| serde_json::from_str(&text).ok());
        let mut irqs = Self { root, note, before: left.unwrap_or_default(), parked: Vec::new() };
        let back = irqs.apply();
        if back > 0 {
            log::info!("{back} interrupts are back that an earlier daemon had sent away from parked vCPUs");
        }
        irqs
    }

    /// Moves interrupts away from `cpus` where they may go elsewhere. Returns how many were moved.
    pub(crate) fn away(&mut self, cpus: &[usize]) -> usize {
        self.parked.extend(cpus);
        self.parked.sort_unstable();
        self.parked.dedup();
        for irq in list(&self.root) {
            let path = file(&self.root, irq);
            let Some(allowed) = read(&path) else { continue };
            if allowed.iter().any(|cpu| self.parked.contains(cpu)) {
                self.before.entry(irq).or_insert(allowed);
            }
        }
        // Before anything is moved.
        self.remember();
        self.apply()
    }

    /// `cpus` are in use again. Returns how many interrupts were moved back.
    pub(crate) fn back(&mut self, cpus: &[usize]) -> usize {
        self.parked.retain(|cpu| !cpus.contains(cpu));
        self.apply()
    }

    /// All vCPUs are in use again.
    pub(crate) fn all_back(&mut self) {
        self.parked.clear();
        self.apply();
    }

    /// Writes the affinities that differ. An interrupt that the kernel does not move, or that would have
    /// nowhere to go, stays.
    fn apply(&mut self) -> usize {
        let mut moved = 0;
        for (irq, before) in &self.before {
            let path = file(&self.root, *irq);
            let wanted: Vec<usize> =
                before.iter().copied().filter(|cpu| !self.parked.contains(cpu)).collect();
            if wanted.is_empty() || read(&path).is_none_or(|now| now == wanted) {
                continue;
            }
            let text: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            if std::fs::write(&path, text.join(",")).is_ok() {
                moved += 1;
            }
        }
        let parked = &self.parked;
        self.before.retain(|_, before| before.iter().any(|cpu| parked.contains(cpu)));
        self.remember();
        moved
    }

    /// Notes what is elsewhere now. Without the note, only the recovery after a killed daemon is lost.
    fn remember(&self) {
        if self.before.is_empty() {
            let _ = std::fs::remove_file(&self.note);
            return;
        }
        let noted = serde_json::to_string(&self.before).map_err(std::io::Error::from).and_then(|text| {
            self.note.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&self.note, text)
        });
        if let Err(error) = noted {
            log::debug!("cannot note in {} which interrupts were moved: {error}", self.note.display());
        }
    }
}

fn file(root: &Path, irq: u32) -> PathBuf {
    root.join(irq.to_string()).join("smp_affinity_list")
}

fn list(root: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn read(path: &Path) -> Option<Vec<usize>> {
    parse_cpu_list(&std::fs::read_to_string(path).ok()?, "the kernel").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn irqs(lists: &[(u32, &str)]) -> (tempfile::TempDir, Irqs) {
        let dir = tempfile::tempdir().unwrap();
        for (irq, allowed) in lists {
            std::fs::create_dir(dir.path().join(irq.to_string())).unwrap();
            std::fs::write(file(dir.path(), *irq), allowed).unwrap();
        }
        let irqs = Irqs::at(dir.path().into(), dir.path().join("note/irqs.json"));
        (dir, irqs)
    }

    #[test]
    fn interrupts_go_and_come_back_as_they_were() {
        let (dir, mut irqs) = irqs(&[(1, "0-3"), (2, "0"), (3, "3"), (4, "2-3\n")]);
        let now = |irq| read(&file(dir.path(), irq)).unwrap();
        assert_eq!(irqs.away(&[3]), 2);
        assert_eq!((now(1), now(2), now(4)), (vec![0, 1, 2], vec![0], vec![2]));
        assert_eq!(now(3), [3], "it may go nowhere else");
        assert_eq!(irqs.away(&[2]), 1, "the fourth stays where it is: nothing would be left of its list");
        assert_eq!((now(1), now(4)), (vec![0, 1], vec![2]));
        assert_eq!(irqs.back(&[2, 3]), 2);
        assert_eq!((now(1), now(4)), (vec![0, 1, 2, 3], vec![2, 3]));
        assert!(irqs.before.is_empty());
    }

    #[test]
    fn the_end_brings_all_back() {
        let (dir, mut irqs) = irqs(&[(1, "0-1")]);
        irqs.away(&[0]);
        irqs.all_back();
        assert_eq!(read(&file(dir.path(), 1)).unwrap(), [0, 1]);
    }

    #[test]
    fn whoever_comes_after_a_killed_daemon_puts_them_back() {
        let (dir, mut irqs) = irqs(&[(1, "0-3"), (2, "1-2")]);
        let now = |irq| read(&file(dir.path(), irq)).unwrap();
        irqs.away(&[3]);
        assert_eq!(now(1), [0, 1, 2]);
        std::mem::forget(irqs);
        let note = dir.path().join("note/irqs.json");
        assert!(note.exists());
        let next = Irqs::at(dir.path().into(), note.clone());
        assert_eq!((now(1), now(2)), (vec![0, 1, 2, 3], vec![1, 2]));
        assert!(next.before.is_empty() && !note.exists());
    }

    #[test]
    fn a_spoilt_note_is_no_note() {
        let (dir, _) = irqs(&[(1, "0-3")]);
        let note = dir.path().join("spoilt");
        std::fs::write(&note, "{\"1\": [\"x\"]}").unwrap();
        assert!(Irqs::at(dir.path().into(), note).before.is_empty());
        assert_eq!(read(&file(dir.path(), 1)).unwrap(), [0, 1, 2, 3]);
    }
}
