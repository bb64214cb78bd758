//! Settings of a run, already checked.

use std::time::Duration;

/// Deliberate faults, to test how the scheduler ends. They touch only tasks named `tandem-fault`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// None (the default).
    #[default]
    None,
    /// Such a task never runs: the kernel's watchdog must eject the scheduler.
    Stall,
    /// The scheduler ends itself with an error when such a task is queued.
    Error,
    /// No fault, but the scheduler is loaded as on a kernel that no longer has `ops.cpu_release()`.
    NoRelease,
}

/// A part of a technique that can be left out (`enum part` in `bpf/guest/intf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Pooling: what all vCPUs have in common, beside what was measured of one.
    Pool,
    /// Measured wake-up waits.
    Waits,
    /// Which vCPUs are preempted now, and when the others were scheduled in.
    State,
    /// Migrating to a vCPU in order to learn its preemption period.
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

/// Settings of the guest scheduler.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Print a line of statistics at this interval.
    pub stats_interval: Option<Duration>,
    /// Bytes of the debug dump that the kernel writes when it ejects the scheduler; 0: its default.
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
    /// End slices when they are due, by timers; without them at the next tick.
    pub slice_timers: bool,
    /// CPU request of a normal task in microseconds, 500 to 100,000.
    pub slice_us: u64,
    /// Proactive migration (vSched's ivh): where a preemption is predicted, a running task leaves its
    /// vCPU before it, for a vCPU that runs or will run sooner.
    pub ivh: bool,
    /// Place wake-ups by what each vCPU gets; otherwise as the kernel does.
    pub place_by_cost: bool,
    /// Parts of techniques that are left out, to measure what each is worth.
    pub without: Vec<Part>,
    /// Leave stragglers and spare vCPUs of a stack without work.
    pub ban: bool,
    /// vCPU limit: use no more vCPUs than the host gives pCPUs.
    pub vcpu_limit: bool,
    /// One vCPU per thread, while they last.
    pub dedicate: bool,
    /// Names of latency-sensitive tasks, as the kernel has them, of 1 to 15 bytes; up to 64.
    pub latency_names: Vec<String>,
    /// cgroups whose tasks are latency-sensitive, as paths below the mount point or including it; up to 64.
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
            ivh: false,
            place_by_cost: true,
            without: Vec::new(),
            ban: false,
            vcpu_limit: true,
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
