//! What tasks do: a list of steps, repeated. The interpreter is in [`crate::machine`].

use crate::random::{Spread, Stream};

/// How a task waits for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Sleeps at once.
    Block,
    /// Spins in user space and never sleeps.
    Spin,
    /// Spins for so long, ns, then sleeps.
    SpinThenBlock(u64),
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Work, in CPU time at full speed.
    Run(Spread),
    /// Sleeps.
    Sleep(Spread),
    /// Sleeps until the next multiple of a period since the task's start, ns.
    Timer(u64),
    /// Takes a lock.
    Lock(usize),
    /// Gives it back.
    Unlock(usize),
    /// Waits until all others of the barrier are there.
    Barrier(usize),
    /// Takes an item from a queue; waits while it is empty.
    Get(usize),
    /// Puts an item into a queue; waits while it is full.
    Put(usize),
    /// Takes the next request of a stream and serves it; waits while there is none. The work is the request's.
    Serve(usize),
    /// Hands out the next request of a stream at its time.
    Dispatch(usize),
    /// Reads from a device or writes to it, and waits for that.
    Device(usize),
    /// Sends a message to a mailbox: whoever reads it is woken.
    Send(usize),
    /// Waits for a message.
    Receive(usize),
    /// Gives a lock back, waits for a signal, takes the lock again.
    Wait {
        /// Condition.
        condition: usize,
        /// Lock.
        lock: usize,
    },
    /// Wakes one who waits for a condition.
    Signal(usize),
    /// Wakes all.
    Broadcast(usize),
    /// Lets others go first.
    Yield,
    /// Confines itself to the next CPU of its kernel, round and round.
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
    /// Nothing but work, in pieces of so many microseconds, each of which counts.
    pub fn hog(piece_us: f64) -> Self {
        Self {
            steps: vec![Step::Run(Spread::constant(piece_us)), Step::Count],
            rounds: None,
            waiting: Waiting::Block,
            working_set_kib: 0,
        }
    }

    /// A program that never waits and never works would never end.
    ///
    /// # Errors
    /// It has no step that takes time.
    pub fn check(&self) -> Result<(), String> {
        let takes_time = |step: &Step| match step {
            Step::Run(spread) | Step::Sleep(spread) => spread.check().is_ok() && spread.mean_us() > 0.0,
            Step::Timer(period) => *period > 0,
            Step::Serve(_) | Step::Dispatch(_) | Step::Device(_) | Step::Receive(_) | Step::Wait { .. } => {
                true
            }
            _ => false,
        };
        for step in &self.steps {
            if let Step::Run(spread) | Step::Sleep(spread) = step {
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

/// A lock: first come, first served among those who sleep.
#[derive(Debug, Clone, Default)]
pub struct Lock {
    /// Who has it.
    pub owner: Option<usize>,
    /// Who waits, in order.
    pub waiters: Vec<usize>,
}

/// A barrier.
#[derive(Debug, Clone, Default)]
pub struct Barrier {
    /// How many meet there.
    pub size: usize,
    /// Who has arrived.
    pub waiters: Vec<usize>,
    /// How often all have met.
    pub rounds: u64,
}

/// A condition.
#[derive(Debug, Clone, Default)]
pub struct Condition {
    /// Who waits for it, and the lock that it needs then.
    pub waiters: Vec<(usize, usize)>,
}

/// A queue of items that are all alike.
#[derive(Debug, Clone, Default)]
pub struct Items {
    /// Most items.
    pub capacity: usize,
    /// Items.
    pub level: usize,
    /// Who waits for one.
    pub getters: Vec<usize>,
    /// Who waits for room.
    pub putters: Vec<usize>,
}

/// Messages to one task.
#[derive(Debug, Clone, Default)]
pub struct Mailbox {
    /// How many wait.
    pub messages: usize,
    /// When each was sent, for the time of waking.
    pub sent: std::collections::VecDeque<u64>,
    /// Who waits for one.
    pub reader: Option<usize>,
}

/// Requests from outside, at times that do not depend on how fast they are served.
#[derive(Debug, Clone)]
pub struct Requests {
    /// Time between two.
    pub interval: Spread,
    /// Work of one.
    pub service: Spread,
    /// Random numbers of the two.
    pub arrivals: Stream,
    /// See above.
    pub services: Stream,
    /// Arrival times of those that nobody serves yet.
    pub waiting: std::collections::VecDeque<u64>,
    /// Servers without a request, in order.
    pub idle: Vec<usize>,
    /// CPUs that the interrupts of arrivals go to, in turns.
    pub irq_cpus: Vec<usize>,
    /// How many have arrived.
    pub arrived: u64,
    /// How servers get at them.
    pub intake: crate::workload::Intake,
    /// When the next one comes, if servers wait for that themselves.
    pub next_at: u64,
    /// Who has the lock, if there is one, and who waits for it, in order.
    pub receiver: Option<usize>,
    /// See above.
    pub locked_out: std::collections::VecDeque<usize>,
    /// Kernel that it belongs to.
    pub world: usize,
}

/// A device that serves so many at a time.
#[derive(Debug, Clone)]
pub struct Device {
    /// Time of service.
    pub service: Spread,
    /// Random numbers of it.
    pub stream: Stream,
    /// How many it serves at a time.
    pub parallel: usize,
    /// How many it serves now.
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
        let program = |steps| Program { steps, ..Program::hog(1.0) };
        assert!(Program::hog(100.0).check().is_ok());
        assert!(program(vec![Step::Lock(0), Step::Unlock(0)]).check().is_err());
        assert!(program(vec![Step::Run(Spread::constant(0.0))]).check().is_err());
        assert!(program(vec![Step::Timer(1000)]).check().is_ok());
    }
}
