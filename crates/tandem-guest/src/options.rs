//! Settings of a run, already checked.

use std::time::Duration;

/// Deliberate faults for tests of the way out. They touch only tasks named `tandem-fault`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// None (the default).
    #[default]
    None,
    /// Such a task is never run: the kernel's watchdog must end the scheduler.
    Stall,
    /// The scheduler ends itself with an error when such a task is queued.
    Error,
    /// None; but the scheduler is loaded as on a kernel that has no `ops.cpu_release()` any more.
    NoRelease,
}

/// A part of a technique that can be left out (`enum part` in `bpf/guest/intf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What is true of all vCPUs, beside what was measured of one.
    Pool,
    /// How long those waited who woke a vCPU.
    Waits,
    /// Which vCPUs are off their pCPU at this moment, and since when the others are there.
    State,
    /// Going to a vCPU in order to learn its rhythm.
    Learning,
}

impl Part {
    pub(crate) fn bit(self) -> u32 {
        match self {
            Part::Pool => crate::bpf::intf::part_PART_POOL,
            Part::Waits => crate::bpf::intf::part_PART_WAITS,
            Part::State => crate::bpf::intf::part_PART_STATE,
            Part::Learning => crate::bpf::intf::part_PART_LEARNING,
        }
    }
}

/// How the guest scheduler shall run.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Print a line of statistics at this interval.
    pub stats_interval: Option<Duration>,
    /// Bytes of the debug dump that the kernel writes when it throws the scheduler out; 0: its default.
    pub exit_dump_len: u32,
    /// Schedule only tasks of class SCHED_EXT.
    pub partial: bool,
    /// Load although cgroup weights or quotas are in use that would be ignored.
    pub ignore_cgroups: bool,
    /// Probe idle vCPUs. Without it only what runs anyway is measured.
    pub probe: bool,
    /// Part of the VM's CPU time, in percent, that the probes and the daemon may take together: more than 0, up to 10.
    pub probe_budget_pct: f64,
    /// Probe vCPUs that the kernel was told to isolate (`isolcpus`, `nohz_full`), too.
    pub probe_isolated: bool,
    /// End turns when they are due, by timers; without them at the next tick.
    pub slice_timers: bool,
    /// CPU request of a normal task in microseconds, 500 to 100,000.
    pub slice_us: u64,
    /// A running task leaves a vCPU that the host is about to take, when that is foreseen, for one that is there
    /// (vSched's ivh).
    pub harvest: bool,
    /// Choose places on wake-up by what each vCPU gets; otherwise as the kernel does.
    pub place_by_cost: bool,
    /// Parts of techniques that are left out, to measure what each is worth.
    pub without: Vec<Part>,
    /// Leave stragglers and spare vCPUs of a stack without work.
    pub ban: bool,
    /// Use no more vCPUs than the host gives pCPUs.
    pub crowd: bool,
    /// Every thread has a vCPU of its own, while they last.
    pub dedicate: bool,
    /// Tasks that shall answer soon: their names, as the kernel has them, of 1 to 15 bytes; up to 64.
    pub latency_names: Vec<String>,
    /// cgroups whose tasks shall answer soon, below the mount point or from it on; up to 64.
    pub latency_groups: Vec<std::path::PathBuf>,
    /// Unload the scheduler while it does not help.
    pub gate: bool,
    /// Print libbpf's messages too.
    pub debug: bool,
    /// Serve OpenMetrics over HTTP on this address.
    pub metrics: Option<std::net::SocketAddr>,
    /// Fault injection.
    pub fault: Fault,
}

impl Default for GuestOptions {
    fn default() -> Self {
        Self {
            stats_interval: None,
            exit_dump_len: 0,
            partial: false,
            ignore_cgroups: false,
            probe: true,
            probe_budget_pct: 1.0,
            probe_isolated: false,
            slice_timers: true,
            slice_us: 3000,
            harvest: false,
            place_by_cost: true,
            without: Vec::new(),
            ban: false,
            crowd: true,
            dedicate: false,
            latency_names: Vec::new(),
            latency_groups: Vec::new(),
            gate: false,
            debug: false,
            metrics: None,
            fault: Fault::None,
        }
    }
}
