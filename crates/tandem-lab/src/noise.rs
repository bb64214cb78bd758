//! Disturbance from outside: how long the outer machine made the emulator's vCPU threads wait, and its steal. And from
//! the lab itself: clients on the host's CPU 0 that have no time to answer measure themselves.

use std::collections::BTreeMap;
use std::fs;

/// Above this part of waiting, the run is inconclusive: something else used the cores.
pub const WAIT_LIMIT_PCT: f64 = 25.0;
/// Above this steal of the outer machine, the run is inconclusive.
pub const STEAL_LIMIT_PCT: f64 = 10.0;

/// With CPU 0 of the host this busy while clients run there, the run is inconclusive.
pub const CLIENTS_LIMIT_PCT: f64 = 70.0;

/// Time of one CPU, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    busy: u64,
    total: u64,
}

impl CpuTime {
    /// From a line of `/proc/stat`, such as `cpu0 10 0 5 100 0 0 0 0 0 0`. `None`: it is no such line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        words.next().filter(|name| name.starts_with("cpu"))?;
        let fields: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let total = fields.iter().try_fold(0u64, |sum, field| sum.checked_add(*field))?;
        // Idle, and waiting for a disk.
        let idle = fields.get(3)?.checked_add(*fields.get(4)?)?;
        Some(Self { busy: total - idle, total })
    }

    /// Percent of the time since `earlier` in which it was busy.
    pub fn busy_pct_since(self, earlier: Self) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        if total == 0 {
            return 0.0;
        }
        100.0 * self.busy.saturating_sub(earlier.busy) as f64 / total as f64
    }
}

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
    fn a_cpu_is_busy_when_it_is_neither_idle_nor_waits_for_a_disk() {
        let at = |line| CpuTime::parse(line).unwrap();
        let (first, second) = (at("cpu0 10 0 10 70 10 0 0 0 0 0"), at("cpu0 50 0 50 80 20 0 0 0 9 9"));
        assert!((second.busy_pct_since(first) - 80.0).abs() < 1e-9);
        assert_eq!(first.busy_pct_since(first), 0.0);
        assert_eq!(first.busy_pct_since(second), 0.0, "a counter that goes back");
        for line in
            ["", "intr 1 2 3 4 5", "cpu0 1 2 3", "cpu0 a b c d e", "cpu0 18446744073709551615 1 1 1 1"]
        {
            assert_eq!(CpuTime::parse(line), None, "{line}");
        }
    }

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
