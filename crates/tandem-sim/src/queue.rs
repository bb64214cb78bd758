//! The event queue, ordered by time, then by kind, then by insertion: the same order on every run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Simulated time, nanoseconds since the start.
pub type Ns = u64;

/// A future event. At equal times `rank()` decides: completions come before ticks and samples.
///
/// `turn` is a generation number, for cancelling: an event whose number is no longer its owner's does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A sleep or a timeout of a task ends.
    Timer {
        /// Task.
        task: usize,
        /// Generation number.
        turn: u32,
    },
    /// An external request arrives.
    Arrival {
        /// Stream of requests.
        stream: usize,
    },
    /// A device has completed a request.
    Device {
        /// Device.
        device: usize,
        /// Task that waits for it.
        task: usize,
    },
    /// An interrupt reaches a CPU.
    Interrupt {
        /// Kernel.
        world: usize,
        /// Its CPU.
        cpu: usize,
        /// Its cause.
        irq: Irq,
    },
    /// The current work of a physical CPU is done.
    WorkEnd {
        /// Physical CPU.
        pcpu: usize,
        /// Generation number.
        turn: u32,
    },
    /// Quota is refilled.
    Refill {
        /// Kernel.
        world: usize,
        /// Group.
        group: usize,
    },
    /// The timer tick of a CPU.
    Tick {
        /// Kernel.
        world: usize,
        /// Its CPU.
        cpu: usize,
        /// Generation number.
        turn: u32,
    },
    /// The slice of a CPU's task ends (HRTICK).
    SliceEnd {
        /// CPU of the host.
        cpu: usize,
        /// Generation number.
        turn: u32,
    },
    /// A timer of a BPF scheduler.
    BpfTimer {
        /// Kernel.
        world: usize,
        /// CPU on which it fires.
        cpu: usize,
        /// Timer.
        timer: usize,
        /// Generation number.
        turn: u32,
    },
    /// Counts the cores that work for guests.
    Sample,
    /// A window of a guest's vCPU limit ends.
    VcpuLimit {
        /// Kernel.
        world: usize,
    },
    /// A phase of the scenario begins.
    Phase {
        /// Number of the phase.
        index: usize,
    },
}

/// Cause of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Irq {
    /// Reschedule IPI: check need_resched.
    Reschedule,
    /// Other CPUs have put tasks that they woke into this CPU's wake list.
    WakeList,
    /// A timer of a task has expired.
    Timer {
        /// Task.
        task: usize,
    },
    /// A task waits until this CPU has flushed its TLB.
    Flush {
        /// The task.
        task: usize,
    },
    /// The tick.
    Tick,
    /// The slice of the current task is over.
    SliceEnd,
    /// An external request.
    Arrival {
        /// Stream.
        stream: usize,
        /// Time at which it reached the machine.
        at: Ns,
    },
    /// A device.
    Device {
        /// Device.
        device: usize,
        /// Task that waits for it.
        task: usize,
    },
    /// A timer of a BPF scheduler.
    BpfTimer {
        /// Timer.
        timer: usize,
        /// Generation number.
        turn: u32,
    },
}

impl Event {
    /// Rank at equal times.
    fn rank(&self) -> u8 {
        match self {
            Event::Phase { .. } => 0,
            Event::Timer { .. } => 1,
            Event::Arrival { .. } => 2,
            Event::Device { .. } => 3,
            Event::Interrupt { .. } => 4,
            Event::WorkEnd { .. } => 5,
            Event::Refill { .. } => 6,
            Event::BpfTimer { .. } => 7,
            Event::Tick { .. } => 8,
            Event::Sample => 9,
            Event::SliceEnd { .. } => 10,
            Event::VcpuLimit { .. } => 11,
        }
    }
}

/// Future events.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<(Ns, u8, u64, Event)>>,
    sequence: u64,
    taken: u64,
}

impl Queue {
    /// Adds an event.
    pub fn add(&mut self, at: Ns, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse((at, event.rank(), self.sequence, event)));
    }

    /// Takes the next event.
    pub fn take(&mut self) -> Option<(Ns, Event)> {
        let Reverse((at, _, _, event)) = self.heap.pop()?;
        self.taken += 1;
        Some((at, event))
    }

    /// Number of events taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of queued events, cancelled ones included.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Is the queue empty?
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_then_rank_then_order() {
        let mut queue = Queue::default();
        queue.add(5, Event::Tick { world: 0, cpu: 0, turn: 0 });
        queue.add(5, Event::WorkEnd { pcpu: 1, turn: 0 });
        queue.add(5, Event::WorkEnd { pcpu: 0, turn: 0 });
        queue.add(4, Event::Tick { world: 0, cpu: 1, turn: 0 });
        let order: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(
            order,
            [
                (4, Event::Tick { world: 0, cpu: 1, turn: 0 }),
                (5, Event::WorkEnd { pcpu: 1, turn: 0 }),
                (5, Event::WorkEnd { pcpu: 0, turn: 0 }),
                (5, Event::Tick { world: 0, cpu: 0, turn: 0 }),
            ]
        );
    }
}
