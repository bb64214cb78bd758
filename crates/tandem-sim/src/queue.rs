//! The event queue: by time, then by kind, then by order of arrival. The same events in the same order on every run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Simulated time, nanoseconds since the start.
pub type Ns = u64;

/// Something that will happen. At equal times the order of the variants decides: what ends comes before what looks.
///
/// Numbers that are called `turn` cancel: an event whose number is no longer that of its owner does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A sleep or a timeout of a task ends.
    Timer {
        /// Task.
        task: usize,
        /// See above.
        turn: u32,
    },
    /// A request arrives from outside.
    Arrival {
        /// Stream of requests.
        stream: usize,
    },
    /// A device has done what it was asked for.
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
        /// What it is about.
        irq: Irq,
    },
    /// The work at hand of a physical CPU is done.
    WorkEnd {
        /// Physical CPU.
        pcpu: usize,
        /// See above.
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
        /// See above.
        turn: u32,
    },
    /// The slice of a CPU's task ends (HRTICK).
    SliceEnd {
        /// CPU of the host.
        cpu: usize,
        /// See above.
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
        /// See above.
        turn: u32,
    },
    /// The cores that work for guests are counted.
    Sample,
    /// What the experiment file says happens now.
    Phase {
        /// Which.
        index: usize,
    },
}

/// What an interrupt is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Irq {
    /// Look at need_resched.
    Reschedule,
    /// Tasks were woken for this CPU; they wait in its list.
    WakeList,
    /// A timer of a task has ended.
    Timer {
        /// Task.
        task: usize,
    },
    /// The tick.
    Tick,
    /// The slice of the current task is over.
    SliceEnd,
    /// A request from outside.
    Arrival {
        /// Stream.
        stream: usize,
        /// When it reached the machine.
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
        /// Which of its starts.
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
        }
    }
}

/// Events to come.
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

    /// Takes the next one.
    pub fn take(&mut self) -> Option<(Ns, Event)> {
        let Reverse((at, _, _, event)) = self.heap.pop()?;
        self.taken += 1;
        Some((at, event))
    }

    /// How many were taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many wait, cancelled ones included.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Is nothing to come?
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
