//! Settings of a run, already checked.

use crate::settings::VmSetting;
use std::net::SocketAddr;
use std::time::Duration;

/// Deliberate faults, to test how the scheduler ends. They touch only tasks named `tandem-fault`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// None (the default).
    #[default]
    None,
    /// The scheduler is loaded as on a kernel that no longer has `ops.cpu_release()`.
    NoRelease,
    /// Directed yields are not answered, as by a scheduler without `ops.yield()`.
    NoYield,
    /// The kernel refuses to attach to the places in KVM that can be done without.
    NoHooks,
    /// The kernel's verifier refuses a program that hangs in KVM.
    RefusedHooks,
    /// Programs that hang in KVM may not interrupt pCPUs.
    NoKicks,
}

/// Settings of the host scheduler.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Print a line of statistics at this interval.
    pub stats_interval: Option<Duration>,
    /// Serve OpenMetrics over HTTP on this address.
    pub metrics: Option<SocketAddr>,
    /// Bytes of the debug dump that the kernel writes when it ejects the scheduler; 0: its default.
    pub exit_dump_len: u32,
    /// Schedule only tasks of class SCHED_EXT.
    pub partial: bool,
    /// Load although cgroup weights or quotas are in use that would be ignored.
    pub ignore_cgroups: bool,
    /// End slices when they are due, by timers; without them at the next tick.
    pub slice_timers: bool,
    /// CPU request of a vCPU in microseconds, 500 to 100,000; none: the kernel's own base slice ([`crate::slice::base_us`]).
    pub slice_us: Option<u64>,
    /// Watch the VMs, too: what each gets and waits for.
    pub observe: bool,
    /// Settings of VMs, by their names, also of those that start later.
    pub vms: Vec<(String, VmSetting)>,
    /// Print libbpf's messages too.
    pub debug: bool,
    /// Fault injection.
    pub fault: Fault,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            stats_interval: None,
            metrics: None,
            exit_dump_len: 0,
            partial: false,
            ignore_cgroups: false,
            slice_timers: true,
            slice_us: None,
            observe: true,
            vms: Vec::new(),
            debug: false,
            fault: Fault::None,
        }
    }
}
