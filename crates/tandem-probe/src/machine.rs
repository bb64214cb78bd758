//! What a topology probe needs of a machine: to let two CPUs pass a cache line to and fro, many such
//! pairs at a time. The real one is made of threads, another one of numbers ([`crate::emulated`]).

use crate::activity::Activity;

/// What two CPUs shall do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errand {
    /// The CPUs, as indices into [`Machine::cpus`].
    pub pair: (usize, usize),
    /// Passes of the line after which there is enough to judge by.
    pub passes: u32,
    /// Time after which they give up, ns.
    pub limit_ns: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The CPUs of the errand.
    pub pair: (usize, usize),
    /// Least time of one pass, ns, over batches of passes; none: there was not a single batch.
    pub latency_ns: Option<f64>,
    /// Passes made.
    pub passes: u32,
    /// When each of the two ran.
    pub activity: [Activity; 2],
}

/// Something that runs errands.
pub trait Machine {
    /// Numbers of the CPUs that can be probed.
    fn cpus(&self) -> &[usize];
    /// Time since some moment, ns.
    fn now_ns(&self) -> u64;
    /// Starts an errand. Neither CPU may be on another one.
    fn start(&mut self, errand: Errand);
    /// Waits for one of the errands to end; none: there is none under way.
    fn wait(&mut self) -> Option<Outcome>;
    /// Time of an undisturbed atomic operation on a line in the CPU's own cache, ns.
    fn own_line_ns(&self) -> f64;
    /// Most CPUs that may be kept busy at a time; at least two.
    fn most_busy(&self) -> usize {
        self.cpus().len().max(2)
    }
}
