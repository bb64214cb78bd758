//! What a running scheduler costs: BPF time by the kernel's own run statistics, and the daemon's memory.

use crate::GuestError;
use libbpf_rs::query::ProgInfoIter;
use serde::Serialize;
use std::collections::BTreeMap;

/// Programs of the guest scheduler begin with this.
const PREFIX: &str = "guest_";
/// A decision is a task that begins to run.
const DECISION: &str = "guest_running";

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

/// Reads the cost of the scheduler that runs on this machine.
///
/// Run times are counted only while `kernel.bpf_stats_enabled` is 1.
///
/// # Errors
/// No scheduler runs, or nothing has been counted.
pub fn read() -> Result<Cost, GuestError> {
    let mut total_ns = 0;
    let mut decisions = 0;
    let mut cost = Cost { rss_mib: daemon_rss_mib(), ..Cost::default() };
    for program in ProgInfoIter::default() {
        let name = program.name.to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) || program.run_cnt == 0 {
            continue;
        }
        total_ns += program.run_time_ns;
        // The kernel keeps the first 15 characters of a name.
        if DECISION.starts_with(&name) {
            decisions = program.run_cnt;
        }
        cost.ns_per_call.insert(name, program.run_time_ns as f64 / program.run_cnt as f64);
    }
    if decisions == 0 {
        return Err(GuestError::NoStatistics);
    }
    cost.ns_per_decision = total_ns as f64 / decisions as f64;
    Ok(cost)
}

/// Resident memory of the process that has loaded the scheduler: the largest other process of our name.
fn daemon_rss_mib() -> f64 {
    let own = std::process::id();
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let mut largest_kib = 0.0f64;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = entry.path();
        let is_other = entry.file_name().to_string_lossy().parse::<u32>().is_ok_and(|pid| pid != own);
        if !is_other || std::fs::read_to_string(path.join("comm")).unwrap_or_default() != name {
            continue;
        }
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
        largest_kib = largest_kib.max(kib.unwrap_or(0.0));
    }
    largest_kib / 1024.0
}
