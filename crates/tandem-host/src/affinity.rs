//! Which pCPUs there are for VMs: those that any vCPU's thread may use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_daemon::cpulist::parse_cpu_list;

/// All affinities are read again this often.
const AGAIN: Duration = Duration::from_secs(30);

/// The pCPUs of these threads together.
#[derive(Debug, Default)]
pub(crate) struct Affinity {
    of: BTreeMap<u32, Vec<usize>>,
    read_at: Option<Instant>,
}

impl Affinity {
    /// The threads that run vCPUs now.
    pub(crate) fn update(&mut self, tids: BTreeSet<u32>, now: Instant) {
        if self.read_at.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN) {
            self.read_at = Some(now);
            self.of.clear();
        }
        self.of.retain(|tid, _| tids.contains(tid));
        for tid in tids {
            self.of.entry(tid).or_insert_with(|| allowed(Path::new("/proc"), tid));
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
    fn what_is_not_known_is_all_that_is_online() {
        let mut affinity = Affinity::default();
        assert_eq!(affinity.pcpus(4), 4);
        affinity.update(BTreeSet::from([std::process::id()]), Instant::now());
        assert!((1..=4).contains(&affinity.pcpus(4)));
    }
}
