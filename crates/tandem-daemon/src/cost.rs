//! What a running scheduler costs: BPF time by the kernel's own run statistics, and the daemon's memory.

use crate::server::SOCKET;
use crate::{sys, DaemonError};
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::ProgramType;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A decision is a task that begins to run: the callback whose name has this ending. What precedes the
/// ending is the prefix of all callbacks of that scheduler.
const DECISION: &str = "_running";
/// Prefix of our callbacks that are the same on either side.
const CORE: &str = "core_";
/// The kernel keeps this many characters of a program's name.
const KEPT: usize = 15;

/// Cost of a running scheduler.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cost {
    /// Resident memory of the daemon, MiB.
    pub rss_mib: f64,
    /// BPF run time of all callbacks over the number of tasks that began to run, nanoseconds.
    pub ns_per_decision: f64,
    /// Mean run time of each callback, nanoseconds.
    pub ns_per_call: BTreeMap<String, f64>,
}

/// Reads the cost of the sched_ext scheduler that runs on this machine, whichever it is. The kernel does
/// not count what its timers do.
///
/// Run times are counted only while `kernel.bpf_stats_enabled` is 1. The figures are those of the time
/// `over` from now; zero: since the scheduler was loaded.
///
/// # Errors
/// No scheduler runs, or nothing has been counted.
pub fn read(over: Duration) -> Result<Cost, DaemonError> {
    let earlier = if over.is_zero() { BTreeMap::new() } else { snapshot() };
    std::thread::sleep(over);
    let programs: Vec<(String, u64, u64)> = snapshot()
        .into_iter()
        .map(|(id, (name, count, time_ns))| {
            let (count_before, time_before) = earlier.get(&id).map_or((0, 0), |(_, c, t)| (*c, *t));
            (name, count.saturating_sub(count_before), time_ns.saturating_sub(time_before))
        })
        .filter(|(_, count, _)| *count > 0)
        .collect();
    let mut cost = Cost { rss_mib: daemon_rss_mib(), ..Cost::default() };
    let found = programs.iter().find_map(|(name, count, _)| Some((prefix_of(name)?, *count)));
    let (prefix, decisions) = found.ok_or(DaemonError::NoStatistics)?;
    let mut total_ns = 0;
    for (name, count, time_ns) in
        programs.iter().filter(|(name, ..)| name.starts_with(prefix) || name.starts_with(CORE))
    {
        total_ns += time_ns;
        cost.ns_per_call.insert(name.clone(), *time_ns as f64 / *count as f64);
    }
    cost.ns_per_decision = total_ns as f64 / decisions as f64;
    Ok(cost)
}

/// Name, runs and run time of each callback, by program id.
fn snapshot() -> BTreeMap<u32, (String, u64, u64)> {
    ProgInfoIter::default()
        .filter(|program| program.ty == ProgramType::StructOps)
        .map(|program| {
            let name = program.name.to_string_lossy().into_owned();
            (program.id, (name, program.run_cnt, program.run_time_ns))
        })
        .collect()
}

/// The prefix of a scheduler's callbacks, if this callback is the one that marks a decision.
fn prefix_of(name: &str) -> Option<&str> {
    let whole = name.strip_suffix(DECISION);
    // Names may be cut off within the ending.
    let cut = || {
        let at = name.rfind('_').filter(|_| name.len() == KEPT)?;
        (DECISION.starts_with(&name[at..]) && name.len() - at > 2).then(|| &name[..at])
    };
    whole.or_else(cut).filter(|prefix| !prefix.is_empty())
}

/// Resident memory of the scheduler's daemon: the process that answers on the socket for statistics. 0: none does.
fn daemon_rss_mib() -> f64 {
    let Some(pid) = UnixStream::connect(SOCKET).ok().and_then(|stream| sys::peer_pid(&stream)) else {
        return 0.0;
    };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::prefix_of;

    #[test]
    fn schedulers_are_known_by_the_callback_that_marks_a_decision() {
        assert_eq!(prefix_of("guest_running"), Some("guest"));
        assert_eq!(prefix_of("bpfland_running"), Some("bpfland"));
        assert_eq!(prefix_of("scx_simple_runn"), Some("scx_simple"));
        assert_eq!(prefix_of("guest_enqueue"), None);
        assert_eq!(prefix_of("_running"), None);
        assert_eq!(prefix_of("a_r"), None);
    }
}
