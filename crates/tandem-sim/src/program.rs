//! What tasks do: a list of steps, repeated. The interpreter is in [`crate::machine`].

use crate::random::{Spread, Stream};

/// How a task waits for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Blocks at once.
    Block,
    /// Spins in user space and never sleeps.
    Spin,
    /// Spins for this time, ns, then blocks.
    SpinThenBlock(u64),
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Work, in CPU time at full speed.
    Run(Spread),
    /// The same in a BPF program of its kernel, in which its migration is disabled.
    Program(Spread),
    /// Sleeps.
    Sleep(Spread),
    /// Sleeps until the next multiple of a period since the task's start, ns.
    Timer(u64),
    /// Takes a lock.
    Lock(usize),
    /// Releases a lock.
    Unlock(usize),
    /// Waits until all other tasks of the barrier have arrived.
    Barrier(usize),
    /// Takes an item from a queue; waits while it is empty.
    Get(usize),
    /// Puts an item into a queue; waits while it is full.
    Put(usize),
    /// Takes the next request of a stream and serves it; waits while there is none. The work is the request's.
    Serve(usize),
    /// Dispatches the next request of a stream at its arrival time.
    Dispatch(usize),
    /// Reads from a device or writes to it, and waits for that.
    Device(usize),
    /// Sends a message to a mailbox, and wakes its reader.
    Send(usize),
    /// Waits for a message.
    Receive(usize),
    /// Releases a lock, waits for a signal, takes the lock again.
    Wait {
        /// Condition.
        condition: usize,
        /// Lock.
        lock: usize,
    },
    /// Wakes one waiter of a condition.
    Signal(usize),
    /// Wakes all waiters of a condition.
    Broadcast(usize),
    /// Yields the CPU (`sched_yield()`).
    Yield,
    /// Unmaps memory: waits until all other busy CPUs of its kernel have flushed their TLBs.
    Shootdown,
    /// Pins itself to the next CPU of its kernel, round-robin.
    Hop,
    /// Counts one round of the program's work.
    Count,
}

/// A program.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Its steps.
    pub steps: Vec<Step>,
    /// How often they are repeated; none: until the end.
    pub rounds: Option<u64>,
    /// How it waits for locks, barriers and queues.
    pub waiting: Waiting,
    /// Working set, KiB.
    pub working_set_kib: u32,
}

impl Program {
    /// A CPU-bound program: pieces of `piece_us` microseconds of work, each of which counts as a round.
    pub fn cpu_bound(piece_us: f64) -> Self {
        Self {
            steps: vec![Step::Run(Spread::constant(piece_us)), Step::Count],
            rounds: None,
            waiting: Waiting::Block,
            working_set_kib: 0,
        }
    }

    /// Refuses a program that neither works nor waits: it would loop for ever without taking time.
    ///
    /// # Errors
    /// It has no step that takes time.
    pub fn check(&self) -> Result<(), String> {
        let takes_time = |step: &Step| match step {
            Step::Run(spread) | Step::Program(spread) | Step::Sleep(spread) => {
                spread.check().is_ok() && spread.mean_us() > 0.0
            }
            Step::Timer(period) => *period > 0,
            Step::Serve(_) | Step::Dispatch(_) | Step::Device(_) | Step::Receive(_) | Step::Wait { .. } => {
                true
            }
            _ => false,
        };
        for step in &self.steps {
            if let Step::Run(spread) | Step::Program(spread) | Step::Sleep(spread) = step {
                spread.check()?;
            }
        }
        if self.steps.iter().any(takes_time) {
            Ok(())
        } else {
            Err("a task needs a step that takes time: run, sleep, timer, x_serve, x_dispatch, x_device or x_receive"
                .into())
        }
    }
}

/// A lock. Sleeping waiters are woken in FIFO order.
#[derive(Debug, Clone, Default)]
pub struct Lock {
    /// Owner.
    pub owner: Option<usize>,
    /// Waiters, in order.
    pub waiters: Vec<usize>,
}

/// A barrier.
#[derive(Debug, Clone, Default)]
pub struct Barrier {
    /// Number of tasks that meet at it.
    pub size: usize,
    /// Tasks that have arrived.
    pub waiters: Vec<usize>,
    /// Number of completed rounds.
    pub rounds: u64,
}

/// A condition.
#[derive(Debug, Clone, Default)]
pub struct Condition {
    /// Waiters, each with the lock that it takes after the wake-up.
    pub waiters: Vec<(usize, usize)>,
}

/// A bounded queue of identical items.
#[derive(Debug, Clone, Default)]
pub struct Items {
    /// Most items in it.
    pub capacity: usize,
    /// Items in it.
    pub level: usize,
    /// Tasks that wait for an item.
    pub getters: Vec<usize>,
    /// Tasks that wait for room.
    pub putters: Vec<usize>,
}

/// Messages to one task.
#[derive(Debug, Clone, Default)]
pub struct Mailbox {
    /// Number of messages that wait.
    pub messages: usize,
    /// When each of them was sent.
    pub sent: std::collections::VecDeque<u64>,
    /// Task that waits for a message.
    pub reader: Option<usize>,
}

/// A stream of open-loop requests: arrival times do not depend on how fast requests are served.
#[derive(Debug, Clone)]
pub struct Requests {
    /// Inter-arrival time.
    pub interval: Spread,
    /// Work per request.
    pub service: Spread,
    /// Random numbers of `interval`.
    pub arrivals: Stream,
    /// Random numbers of `service`.
    pub services: Stream,
    /// Arrival times of requests that no server has taken yet.
    pub waiting: std::collections::VecDeque<u64>,
    /// Idle servers, in the order in which they became idle.
    pub idle: Vec<usize>,
    /// CPUs that the interrupts of arrivals go to, round-robin.
    pub irq_cpus: Vec<usize>,
    /// Number of arrivals so far.
    pub arrived: u64,
    /// How servers get requests.
    pub intake: crate::workload::Intake,
    /// Next arrival time, where tasks of the program wait for it themselves.
    pub next_at: u64,
    /// Server that holds the lock, with [`Intake::Locked`](crate::workload::Intake::Locked).
    pub receiver: Option<usize>,
    /// Servers that wait for that lock, in order.
    pub locked_out: std::collections::VecDeque<usize>,
    /// Kernel that it belongs to.
    pub world: usize,
}

/// A device that serves several requests at a time.
#[derive(Debug, Clone)]
pub struct Device {
    /// Time of service.
    pub service: Spread,
    /// Random numbers of `service`.
    pub stream: Stream,
    /// Number of requests that it serves at a time.
    pub parallel: usize,
    /// Number of requests in service.
    pub busy: usize,
    /// Tasks whose requests wait.
    pub waiting: std::collections::VecDeque<usize>,
    /// CPU that its interrupts go to.
    pub irq_cpu: usize,
    /// Kernel that it belongs to.
    pub world: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_never_take_time_are_refused() {
        let program = |steps| Program { steps, ..Program::cpu_bound(1.0) };
        assert!(Program::cpu_bound(100.0).check().is_ok());
        assert!(program(vec![Step::Lock(0), Step::Unlock(0)]).check().is_err());
        assert!(program(vec![Step::Run(Spread::constant(0.0))]).check().is_err());
        assert!(program(vec![Step::Timer(1000)]).check().is_ok());
    }
}
