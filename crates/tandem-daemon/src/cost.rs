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
/// Prefix of the observer's programs.
const OBSERVER: &str = "observe_";
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
    /// Mean run time of each program on an event of the kernel or of KVM, nanoseconds, the observer's included.
    pub ns_per_event: BTreeMap<String, f64>,
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
    let (programs, on_events): (Vec<Program>, Vec<Program>) = snapshot()
        .into_iter()
        .map(|(id, mut program)| {
            let before = earlier.get(&id);
            program.runs = program.runs.saturating_sub(before.map_or(0, |before| before.runs));
            program.time_ns = program.time_ns.saturating_sub(before.map_or(0, |before| before.time_ns));
            program
        })
        .filter(|program| program.runs > 0)
        .partition(|program| program.is_callback);
    let mut cost = Cost { rss_mib: daemon_rss_mib(), ..Cost::default() };
    let found = programs.iter().find_map(|program| Some((prefix_of(&program.name)?, program.runs)));
    let (prefix, decisions) = found.ok_or(DaemonError::NoStatistics)?;
    let is_its = |program: &&Program| program.name.starts_with(prefix) || program.name.starts_with(CORE);
    let mut total_ns = 0;
    for program in programs.iter().filter(is_its) {
        total_ns += program.time_ns;
        cost.ns_per_call.insert(program.name.clone(), program.mean_ns());
    }
    cost.ns_per_decision = total_ns as f64 / decisions as f64;
    let on_events = on_events.iter().filter(|program| is_its(program) || program.name.starts_with(OBSERVER));
    cost.ns_per_event = on_events.map(|program| (program.name.clone(), program.mean_ns())).collect();
    Ok(cost)
}

/// A BPF program, and what it has cost.
struct Program {
    name: String,
    runs: u64,
    time_ns: u64,
    /// Of sched_ext; otherwise it hangs on an event.
    is_callback: bool,
}

impl Program {
    fn mean_ns(&self) -> f64 {
        self.time_ns as f64 / self.runs as f64
    }
}

/// Each callback, and each program on an event, by its id.
fn snapshot() -> BTreeMap<u32, Program> {
    ProgInfoIter::default()
        .filter(|program| matches!(program.ty, ProgramType::StructOps | ProgramType::Tracing))
        .map(|program| {
            let one = Program {
                name: program.name.to_string_lossy().into_owned(),
                runs: program.run_cnt,
                time_ns: program.run_time_ns,
                is_callback: program.ty == ProgramType::StructOps,
            };
            (program.id, one)
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
