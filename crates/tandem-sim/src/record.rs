//! Measurements of a run.

use crate::queue::Ns;
use std::collections::{BTreeMap, VecDeque};

/// Number of context switches that are kept for the report of an error.
const RECENT: usize = 12;

/// Rounds are counted in slots of this length, ns.
const COUNTED_EVERY_NS: Ns = 100_000_000;

/// Latencies of one stream of requests.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    /// When the service ended, and how long that was after the arrival, ns.
    pub total: Vec<(Ns, Ns)>,
    /// When the service began, and how long that was after the arrival, ns.
    pub queue: Vec<(Ns, Ns)>,
    /// When the guest took the interrupt, and how long that was after the arrival, ns.
    pub delivery: Vec<(Ns, Ns)>,
}

/// A context switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// When.
    pub at: Ns,
    /// Kernel.
    pub world: usize,
    /// CPU.
    pub cpu: usize,
    /// Next task; none: idle.
    pub task: Option<usize>,
}

/// Measurements. Latencies and cores before `from` are left out.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Beginning of the measurement.
    pub from: Ns,
    /// Latencies by stream.
    pub latencies: BTreeMap<usize, Latencies>,
    /// Rounds by task, in each tenth of a second since the start.
    pub counts: BTreeMap<usize, Vec<u64>>,
    /// Wake-up latencies by task: when it ran, and how long after its timeout that was, ns.
    pub wakeups: BTreeMap<usize, Vec<(Ns, Ns)>>,
    /// All context switches, if they are recorded.
    pub switches: Option<Vec<Switch>>,
    /// The last context switches.
    pub recent: VecDeque<Switch>,
    /// Number of cores that worked for guests, every millisecond, if it is recorded.
    pub cores: Option<Vec<u32>>,
    steal: BTreeMap<(usize, usize), (Ns, Ns)>,
}

impl Record {
    /// A request was served.
    pub fn served(&mut self, now: Ns, stream: usize, latency: Ns) {
        if now >= self.from {
            self.latencies.entry(stream).or_default().total.push((now, latency));
        }
    }

    /// A task runs `late` ns after its timeout expired.
    pub fn awake(&mut self, now: Ns, task: usize, late: Ns) {
        if now >= self.from {
            self.wakeups.entry(task).or_default().push((now, late));
        }
    }

    /// A request's service begins.
    pub fn queued(&mut self, now: Ns, stream: usize, wait: Ns) {
        if now >= self.from {
            self.latencies.entry(stream).or_default().queue.push((now, wait));
        }
    }

    /// A request's interrupt has been taken.
    pub fn delivered(&mut self, now: Ns, stream: usize, late: Ns) {
        if now >= self.from {
            self.latencies.entry(stream).or_default().delivery.push((now, late));
        }
    }

    /// A task has done another round.
    pub fn counted(&mut self, now: Ns, task: usize) {
        let slots = self.counts.entry(task).or_default();
        let slot = (now / COUNTED_EVERY_NS) as usize;
        if slots.len() <= slot {
            slots.resize(slot + 1, 0);
        }
        slots[slot] += 1;
    }

    /// Rounds of a task between two moments, to a tenth of a second.
    pub fn rounds(&self, task: usize, from: Ns, to: Ns) -> u64 {
        let slot = |at: Ns| (at / COUNTED_EVERY_NS) as usize;
        let slots = self.counts.get(&task).map_or(&[][..], Vec::as_slice);
        slots.iter().skip(slot(from)).take(slot(to) - slot(from)).sum()
    }

    /// A context switch.
    pub fn switched(&mut self, at: Ns, world: usize, cpu: usize, task: Option<usize>) {
        let switch = Switch { at, world, cpu, task };
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(switch);
        if let Some(switches) = &mut self.switches {
            switches.push(switch);
        }
    }

    /// The previous sample of a vCPU's steal: time and value. It is replaced by this one.
    pub fn last_steal(&mut self, world: usize, cpu: usize, now: Ns, steal: Ns) -> (Ns, Ns) {
        self.steal.insert((world, cpu), (now, steal)).unwrap_or((now, steal))
    }
}

/// A percentile of values, 0 to 1; none: there are no values.
pub fn percentile(values: &[Ns], part: f64) -> Option<Ns> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let at = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    sorted.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let values: Vec<Ns> = (1..=100).rev().collect();
        assert_eq!([0.5, 0.95, 1.0].map(|p| percentile(&values, p)), [Some(50), Some(95), Some(100)]);
        assert_eq!(percentile(&[], 0.5), None);
    }
}
