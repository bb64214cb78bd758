//! Which pCPUs there are for VMs: those that any vCPU's thread may use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_daemon::cpulist::parse_cpu_list;

/// All affinities are read again this often.
const AGAIN: Duration = Duration::from_secs(30);

/// The pCPUs of these threads together. A thread counts until it has ended: one that sleeps for long is seen by nobody meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Affinity {
    of: BTreeMap<u32, Vec<usize>>,
    read_at: Option<Instant>,
}

impl Affinity {
    /// Threads that run vCPUs, as seen by now.
    pub(crate) fn update(&mut self, tids: BTreeSet<u32>, now: Instant) {
        self.update_from(Path::new("/proc"), tids, now);
    }

    fn update_from(&mut self, proc: &Path, tids: BTreeSet<u32>, now: Instant) {
        if self.read_at.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN) {
            self.read_at = Some(now);
            for (tid, cpus) in &mut self.of {
                *cpus = allowed(proc, *tid);
            }
            self.of.retain(|_, cpus| !cpus.is_empty());
        }
        for tid in tids {
            self.of.entry(tid).or_insert_with(|| allowed(proc, tid));
        }
    }

    /// How many; `online` where nothing is known of any vCPU.
    pub(crate) fn pcpus(&self, online: usize) -> usize {
        match self.of.values().flatten().collect::<BTreeSet<_>>().len() {
            0 => online,
            pcpus => pcpus.min(online),
        }
    }
}

/// CPUs that a thread may use; none: it has gone.
fn allowed(proc: &Path, tid: u32) -> Vec<usize> {
    let status = std::fs::read_to_string(proc.join(tid.to_string()).join("status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(|list| parse_cpu_list(list.trim(), "a thread's status").ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_cpus_are_those_of_its_status() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("7")).unwrap();
        std::fs::write(proc.path().join("7/status"), "Name:\tx\nCpus_allowed_list:\t1-2,5\n").unwrap();
        assert_eq!(allowed(proc.path(), 7), [1, 2, 5]);
        assert!(allowed(proc.path(), 8).is_empty());
    }

    #[test]
    fn a_thread_counts_until_it_has_ended() {
        let proc = tempfile::tempdir().unwrap();
        for (tid, cpus) in [("7", "1-2"), ("8", "5")] {
            std::fs::create_dir(proc.path().join(tid)).unwrap();
            std::fs::write(proc.path().join(tid).join("status"), format!("Cpus_allowed_list:\t{cpus}\n"))
                .unwrap();
        }
        let (mut affinity, now) = (Affinity::default(), Instant::now());
        affinity.update_from(proc.path(), BTreeSet::from([7, 8]), now);
        assert_eq!(affinity.pcpus(16), 3);
        // It sleeps, and is not seen.
        affinity.update_from(proc.path(), BTreeSet::from([7]), now + AGAIN);
        assert_eq!(affinity.pcpus(16), 3);
        std::fs::remove_dir_all(proc.path().join("8")).unwrap();
        affinity.update_from(proc.path(), BTreeSet::from([7]), now + 2 * AGAIN);
        assert_eq!(affinity.pcpus(16), 2);
    }

    #[test]
    fn what_is_not_known_is_all_that_is_online() {
        let mut affinity = Affinity::default();
        assert_eq!(affinity.pcpus(4), 4);
        affinity.update(BTreeSet::from([std::process::id()]), Instant::now());
        assert!((1..=4).contains(&affinity.pcpus(4)));
    }
}
