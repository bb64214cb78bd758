//! Disturbance from outside: how long the outer machine made the emulator's vCPU threads wait, and its steal.

use std::collections::BTreeMap;
use std::fs;

/// Above this part of waiting, the run is inconclusive: something else used the cores.
pub const WAIT_LIMIT_PCT: f64 = 25.0;
/// Above this steal of the outer machine, the run is inconclusive.
pub const STEAL_LIMIT_PCT: f64 = 10.0;

/// The outer machine's accounting at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    threads: BTreeMap<i32, (u64, u64)>,
    steal: u64,
    total: u64,
}

/// Threads of the emulator that run the host's vCPUs, with their CPU numbers, in order.
pub fn vcpu_threads(pid: u32) -> Vec<(usize, i32)> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let number = name.trim().strip_prefix("CPU ").and_then(|rest| rest.split('/').next()).map(str::parse);
        if let (Some(Ok(cpu)), Ok(tid)) = (number, entry.file_name().to_string_lossy().parse()) {
            threads.push((cpu, tid));
        }
    }
    threads.sort_unstable();
    threads
}

/// Takes a snapshot, without CPU 0 (housekeeping).
pub fn snapshot(pid: u32) -> Snapshot {
    let mut taken = Snapshot::default();
    for (_, tid) in vcpu_threads(pid).into_iter().filter(|(cpu, _)| *cpu > 0) {
        let text = fs::read_to_string(format!("/proc/{tid}/schedstat")).unwrap_or_default();
        let mut fields = text.split_whitespace().filter_map(|field| field.parse().ok());
        if let (Some(run), Some(wait)) = (fields.next(), fields.next()) {
            taken.threads.insert(tid, (run, wait));
        }
    }
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> =
        stat.lines().next().unwrap_or_default().split_whitespace().filter_map(|f| f.parse().ok()).collect();
    taken.steal = fields.get(7).copied().unwrap_or(0);
    taken.total = fields.iter().take(8).sum();
    taken
}

/// Disturbance between two snapshots: percent of its runnable time that the worst thread waited, and percent of steal.
pub fn between(earlier: &Snapshot, later: &Snapshot) -> (f64, f64) {
    let percent = |part: u64, whole: u64| if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    let wait = later
        .threads
        .iter()
        .map(|(tid, (run, wait))| {
            let (run0, wait0) = earlier.threads.get(tid).copied().unwrap_or((0, 0));
            let (run, wait) = (run.saturating_sub(run0), wait.saturating_sub(wait0));
            percent(wait, run + wait)
        })
        .fold(0.0, f64::max);
    (wait, percent(later.steal.saturating_sub(earlier.steal), later.total.saturating_sub(earlier.total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_thread_counts() {
        let at = |a: (u64, u64), b: (u64, u64), steal, total| Snapshot {
            threads: BTreeMap::from([(1, a), (2, b)]),
            steal,
            total,
        };
        let (wait, steal) = between(&at((0, 0), (100, 100), 0, 0), &at((90, 10), (200, 200), 5, 100));
        assert!((wait - 50.0).abs() < 1e-9 && (steal - 5.0).abs() < 1e-9);
    }
}
