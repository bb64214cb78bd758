//! How a policy and its tasks are configured, before any callback.

use crate::hardware::Hardware;
use crate::queue::Ns;

/// Configuration of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The host scheduler, not the guest's.
    pub of_the_host: bool,
    /// CPUs.
    pub cpus: usize,
    /// CPU topology that its kernel assumes.
    pub layout: Hardware,
    /// Last-level cache of each CPU, as the policy is told; only the equality of numbers has a meaning.
    pub caches: Vec<usize>,
    /// Core of each CPU, likewise.
    pub cores: Vec<usize>,
    /// Hardware thread of each CPU, likewise.
    pub threads: Vec<usize>,
    /// Speed of each CPU's core, as the policy is told, relative to the fastest core.
    pub speeds: Vec<f64>,
    /// Regular distance of the kernel's ticks, ns.
    pub tick_ns: Ns,
    /// The steal time page reports steal (guests).
    pub steal_page: bool,
    /// Base request of a task, ns.
    pub request_ns: Ns,
    /// Slices end on time, by a timer, not at ticks.
    pub slice_timers: bool,
    /// The kernel stops the tick of each CPU while a task without an end of its slice runs there (`nohz_full`).
    pub nohz_full: bool,
    /// Techniques beyond fair scheduling.
    pub techniques: Techniques,
    /// A fault to be injected, as `tandem guest --fault` does.
    pub fault: Fault,
}

impl Settings {
    /// For CPUs that are as their kernel assumes: each is a core of its own, all share one last-level cache, no
    /// host steals time.
    pub fn of(layout: Hardware) -> Self {
        let each: Vec<usize> = (0..layout.cpus()).collect();
        Self {
            of_the_host: false,
            cpus: each.len(),
            layout,
            caches: vec![0; each.len()],
            cores: each.clone(),
            speeds: vec![1.0; each.len()],
            threads: each,
            tick_ns: 4_000_000,
            steal_page: false,
            request_ns: tandem_policy::REQUEST_NS,
            slice_timers: true,
            nohz_full: false,
            techniques: Techniques::default(),
            fault: Fault::None,
        }
    }
}

/// Techniques of the guest scheduler that can be switched on and off. The default is the scheduler's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Techniques {
    /// Proactive migration off a vCPU that is about to be preempted.
    pub ivh: Ivh,
    /// Wake-up placement by expected completion.
    pub bvs: bool,
    /// Stragglers and spare vCPUs of a stack are left without work.
    pub rwc: bool,
    /// One vCPU per thread, while they last.
    pub dedicate: bool,
    /// Parts of placement that are left out, a bit set (`enum part` in `bpf/guest/intf.h`); of the host scheduler, what all
    /// VMs do without (`enum vm_technique` in `bpf/host/intf.h`).
    pub left_out: u32,
}

impl Default for Techniques {
    fn default() -> Self {
        Self { ivh: Ivh::Off, bvs: true, rwc: false, dedicate: false, left_out: 0 }
    }
}

/// What VMs do without if no vCPU comes before its turn: boosts, forwarding, fast wake-ups; and turns that are held, which are off by default
/// (`VM_BOOST`, `VM_FORWARD`, `VM_FAST_WAKEUP` and `VM_CRITICAL` in `bpf/host/intf.h`).
pub const NO_BOOSTS: u32 = 16 | 32 | 64 | 256;

/// Proactive migration of a running task (`enum ivh_mode` in `native/guest.c`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ivh {
    /// None.
    #[default]
    Off = 0,
    /// Before a predicted preemption, to a vCPU that runs.
    Aware = 1,
    /// After 2 ms of running, to any vCPU that seems idle.
    Unaware = 2,
}

/// A part of a technique that can be left out, to measure what it is worth (`enum part` in `bpf/guest/intf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The mean over all vCPUs, beside what was measured of one (pooling).
    Pool = 1,
    /// Measured wake-up waits of idle vCPUs.
    Waits = 2,
    /// Which vCPUs are preempted now, and when the others were scheduled in.
    State = 4,
    /// Migrating to a vCPU in order to learn its preemption period.
    Learning = 8,
}

/// A fault that the policy commits on purpose, for tasks named `tandem-fault`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None = 0,
    /// It loses such tasks.
    Stall = 1,
    /// It reports an error when one is queued.
    Error = 2,
}

/// A new task, as its policy is told of it.
#[derive(Debug, Clone, Copy)]
pub struct NewTask<'a> {
    /// Its name.
    pub name: &'a str,
    /// CPU that it will start from.
    pub cpu: usize,
    /// CPUs that it may use.
    pub allowed: &'a [bool],
    /// Scheduling class, as the kernel numbers them.
    pub policy: u32,
    /// Nice value.
    pub nice: i32,
    /// Its request (slice), ns; 0: the default.
    pub slice_ns: Ns,
    /// Its group.
    pub group: usize,
}
