//! Interface between a topology probe and a machine: two CPUs pass a cache line to and fro, many such pairs at a time.
//! The real machine uses threads, another one is emulated ([`crate::emulated`]).

use crate::activity::Activity;

/// A measurement of two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errand {
    /// The CPUs, as indices into [`Machine::cpus`].
    pub pair: (usize, usize),
    /// Number of passes of the line after which the measurement ends.
    pub passes: u32,
    /// Time after which it is given up, ns.
    pub limit_ns: u64,
}

/// Result of an errand.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The CPUs of the errand.
    pub pair: (usize, usize),
    /// Minimum time of one pass over batches of passes, ns; `None` if no batch was complete.
    pub latency_ns: Option<f64>,
    /// Number of passes.
    pub passes: u32,
    /// When each of the two ran.
    pub activity: [Activity; 2],
}

/// A machine that runs errands.
pub trait Machine {
    /// Numbers of the CPUs that can be probed.
    fn cpus(&self) -> &[usize];
    /// Time since an arbitrary moment, ns.
    fn now_ns(&self) -> u64;
    /// Starts an errand. Neither CPU may be in another errand.
    fn start(&mut self, errand: Errand);
    /// Waits for one of the errands to end; `None` if there is none.
    fn wait(&mut self) -> Option<Outcome>;
    /// Time of an undisturbed atomic operation on a line in the CPU's own cache, ns.
    fn own_line_ns(&self) -> f64;
    /// Maximum number of CPUs that may be kept busy at a time; at least two.
    fn most_busy(&self) -> usize {
        self.cpus().len().max(2)
    }
}
