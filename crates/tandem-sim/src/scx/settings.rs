//! How a policy is set up, and its tasks: what is chosen before anything calls into it.

use crate::hardware::Hardware;
use crate::queue::Ns;

/// How a policy is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// CPUs.
    pub cpus: usize,
    /// Where its kernel believes them to be.
    pub layout: Hardware,
    /// Last-level cache of each CPU, as the policy is told; numbers mean nothing but equality.
    pub caches: Vec<usize>,
    /// Core of each CPU, likewise.
    pub cores: Vec<usize>,
    /// Hardware thread of each CPU, likewise.
    pub threads: Vec<usize>,
    /// Speed of each CPU's core, likewise: part of the fastest one's.
    pub speeds: Vec<f64>,
    /// The paravirtual page shows steal (guests).
    pub steal_page: bool,
    /// What a task asks for at a time, ns.
    pub request_ns: Ns,
    /// Turns end when they are due, not at ticks.
    pub slice_timers: bool,
    /// What it does beyond fair scheduling.
    pub techniques: Techniques,
    /// A fault to be injected, as `tandem guest --fault` does.
    pub fault: Fault,
}

impl Settings {
    /// Of CPUs that are what their kernel believes: each a core of its own, one cache, nobody above who steals.
    pub fn of(layout: Hardware) -> Self {
        let each: Vec<usize> = (0..layout.cpus()).collect();
        Self {
            cpus: each.len(),
            layout,
            caches: vec![0; each.len()],
            cores: each.clone(),
            speeds: vec![1.0; each.len()],
            threads: each,
            steal_page: false,
            request_ns: 3_000_000,
            slice_timers: true,
            techniques: Techniques::default(),
            fault: Fault::None,
        }
    }
}

/// Techniques of the guest scheduler that can be switched, as it comes by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Techniques {
    /// How a running task leaves a vCPU that is about to be taken.
    pub ivh: Ivh,
    /// Places on wake-up are chosen by what each vCPU gets.
    pub bvs: bool,
    /// Stragglers and spare vCPUs of a stack are left without work.
    pub rwc: bool,
    /// Every thread has a vCPU of its own, while they last.
    pub dedicate: bool,
    /// Parts of placement that are left out, a bit set (`enum part` in `bpf/guest/intf.h`).
    pub left_out: u32,
}

impl Default for Techniques {
    fn default() -> Self {
        Self { ivh: Ivh::Off, bvs: true, rwc: false, dedicate: false, left_out: 0 }
    }
}

/// How a running task leaves a vCPU (`enum harvest_mode` in `native/guest.c`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ivh {
    /// It does not.
    #[default]
    Off = 0,
    /// When it is foreseen, for a vCPU that is there.
    Aware = 1,
    /// After 2 ms, for any that seems idle.
    Unaware = 2,
}

/// A part of a technique that can be left out, to measure what it is worth (`enum part` in `bpf/guest/intf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// What is true of all vCPUs, beside what was measured of one.
    Pool = 1,
    /// How long those waited who woke a vCPU.
    Waits = 2,
    /// Which vCPUs are off their pCPU at this moment, and since when the others are there.
    State = 4,
    /// Going to a vCPU in order to learn its rhythm.
    Learning = 8,
}

/// What the policy does wrong on purpose, to tasks named `tandem-fault`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None = 0,
    /// It loses them.
    Stall = 1,
    /// It reports an error when one is queued.
    Error = 2,
}

/// A task as its policy gets to know it.
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
    /// What it asks for at a time, ns; 0: nothing in particular.
    pub slice_ns: Ns,
    /// Its group.
    pub group: usize,
}
