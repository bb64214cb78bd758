//! An emulated machine in virtual time: for tests, and for measuring how a probe scales.
//!
//! A vCPU has a place on a hardware thread and gets time there by a quota per period, by a clock of its own, or always.
//! Several on one hardware thread alternate. Two that run at the same time pass a cache line at the latency of their
//! distance; some batches are disturbed.

pub mod core;

use crate::activity::Activity;
use crate::machine::{Errand, Machine, Outcome};
use std::collections::VecDeque;

/// Step of the emulation, ns.
const STEP_NS: u64 = 2_000;
/// The host's slice: time for which a vCPU runs before the next one on the same hardware thread, ns.
const TURN_NS: u64 = 3_000_000;
/// Minimum number of passes for a latency.
const BATCH: f64 = 100.0;

/// When a vCPU may run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Supply {
    /// Always.
    Whole,
    /// `quota_ns` of each period, whenever it wants to run (`cpu.max`).
    Quota {
        /// Time per period, ns.
        quota_ns: u64,
        /// Length of a period, ns.
        period_ns: u64,
        /// Start of the first period, ns.
        phase_ns: u64,
    },
    /// For `on_ns`, then not for `off_ns`, whether it wants to run or not. If `irregular`, both vary between half and
    /// one and a half times that.
    Turns {
        /// Time between two preemption intervals, ns.
        on_ns: u64,
        /// Preemption interval, ns.
        off_ns: u64,
        /// Do the lengths vary?
        irregular: bool,
    },
}

/// Place of a hardware thread in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Socket.
    pub socket: usize,
    /// Core in the machine.
    pub core: usize,
    /// Thread of the core.
    pub thread: usize,
}

/// Time of a pass between two threads of a core, two cores of a socket, two sockets, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latencies {
    /// Threads of a core.
    pub core: f64,
    /// Cores of a socket.
    pub socket: f64,
    /// Sockets.
    pub machine: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { core: 11.0, socket: 54.0, machine: 128.0 }
    }
}

struct Vcpu {
    place: Place,
    supply: Supply,
    /// Quota left in this period, or time until `on` changes, ns.
    left_ns: u64,
    period: u64,
    on: bool,
    wants: bool,
    running: bool,
}

struct Running {
    errand: Errand,
    started_ns: u64,
    begins_ns: [u64; 2],
    activity: [Activity; 2],
    passes: f64,
    latency: f64,
}

/// The machine.
pub struct Emulated {
    cpus: Vec<usize>,
    vcpus: Vec<Vcpu>,
    /// The running vCPU of each hardware thread that several share: its index and the rest of its slice.
    turns: Vec<(Place, usize, u64)>,
    latencies: Latencies,
    now_ns: u64,
    under_way: Vec<Running>,
    finished: VecDeque<Outcome>,
    random: u64,
    /// Disturbed part of the measurements.
    pub disturbed: f64,
    /// Maximum number of CPUs that a probe may keep busy at a time; `None`: all.
    pub most_busy: Option<usize>,
    /// Maximum that it did keep busy.
    pub busiest: usize,
}

impl Emulated {
    /// A machine of vCPUs with these numbers, places and supplies.
    pub fn new(
        vcpus: impl IntoIterator<Item = (usize, Place, Supply)>,
        latencies: Latencies,
        seed: u64,
    ) -> Self {
        let mut list: Vec<_> = vcpus.into_iter().collect();
        list.sort_by_key(|(cpu, ..)| *cpu);
        let mut machine = Self {
            cpus: list.iter().map(|(cpu, ..)| *cpu).collect(),
            vcpus: Vec::new(),
            turns: Vec::new(),
            latencies,
            now_ns: 0,
            under_way: Vec::new(),
            finished: VecDeque::new(),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            disturbed: 0.01,
            most_busy: None,
            busiest: 0,
        };
        for (_, place, supply) in list {
            let left_ns = match supply {
                Supply::Whole => 0,
                Supply::Quota { quota_ns, .. } => quota_ns,
                Supply::Turns { on_ns, .. } => (on_ns as f64 * machine.unit()) as u64,
            };
            let vcpu = Vcpu { place, supply, left_ns, period: 0, on: true, wants: false, running: false };
            machine.vcpus.push(vcpu);
        }
        machine
    }

    /// The paper's 12 vCPUs on one socket: pairs of threads with four kinds of supply, two that get a twentieth, two
    /// on one hardware thread (vSched, section 5; the periods are those of its scripts).
    pub fn rcvm(seed: u64) -> Self {
        const MS: u64 = 1_000_000;
        let kinds = [(6, 18), (2, 6), (12, 18), (4, 6), (1, 20)];
        let mut list = Vec::new();
        let mut phases = Random(seed | 1);
        for (core, (quota, period)) in kinds.into_iter().enumerate() {
            for thread in 0..2 {
                let supply = Supply::Quota {
                    quota_ns: quota * MS,
                    period_ns: period * MS,
                    phase_ns: phases.below(period * MS),
                };
                list.push((2 * core + thread, Place { socket: 0, core, thread }, supply));
            }
        }
        for cpu in [10, 11] {
            let supply =
                Supply::Quota { quota_ns: 4 * MS, period_ns: 6 * MS, phase_ns: phases.below(6 * MS) };
            list.push((cpu, Place { socket: 0, core: 5, thread: 0 }, supply));
        }
        Self::new(list, Latencies::default(), seed)
    }

    /// The paper's 32 vCPUs on four sockets, three of them contended.
    pub fn hpvm(seed: u64) -> Self {
        const MS: u64 = 1_000_000;
        let kinds = [(6, 18), (2, 6), (12, 18), (4, 6)];
        let mut phases = Random(seed | 1);
        let mut list = Vec::new();
        for cpu in 0..32 {
            let (socket, pair) = (cpu / 8, cpu % 8 / 2);
            let (quota, period) = kinds[pair];
            let supply = if socket == 3 {
                Supply::Whole
            } else {
                Supply::Quota {
                    quota_ns: quota * MS,
                    period_ns: period * MS,
                    phase_ns: phases.below(period * MS),
                }
            };
            list.push((cpu, Place { socket, core: socket * 4 + pair, thread: cpu % 2 }, supply));
        }
        Self::new(list, Latencies::default(), seed)
    }

    /// `sockets` of `cores` with `threads` each. Numbered like most firmware does: the first threads of all cores
    /// first.
    pub fn grid(sockets: usize, cores: usize, threads: usize, supply: Supply, seed: u64) -> Self {
        let all = sockets * cores;
        let list = (0..all * threads).map(|cpu| {
            let core = cpu % all;
            (cpu, Place { socket: core / cores, core, thread: cpu / all }, supply)
        });
        Self::new(list, Latencies::default(), seed)
    }

    /// Puts two vCPUs on one hardware thread.
    pub fn stack(&mut self, one: usize, other: usize) {
        if let (Ok(i), Ok(j)) = (self.cpus.binary_search(&one), self.cpus.binary_search(&other)) {
            self.vcpus[j].place = self.vcpus[i].place;
        }
    }

    fn unit(&mut self) -> f64 {
        let mut random = Random(self.random);
        let value = random.unit();
        self.random = random.0;
        value
    }

    fn distance(&mut self, (i, j): (usize, usize)) -> f64 {
        let (a, b) = (self.vcpus[i].place, self.vcpus[j].place);
        let base = if a.core == b.core {
            self.latencies.core
        } else if a.socket == b.socket {
            self.latencies.socket
        } else {
            self.latencies.machine
        };
        // Distances of cores on the mesh differ, but the distance of a pair does not change.
        let pair = Random(((i.min(j) * 4099 + i.max(j)) as u64 * 0x9E37_79B9) | 1).unit();
        let noise = if self.unit() < self.disturbed { 2.5 } else { 1.0 + 0.04 * self.unit() };
        base * (0.88 + 0.24 * pair) * noise
    }

    fn supply(&mut self, index: usize) {
        let now = self.now_ns;
        let (supply, on, left) = (self.vcpus[index].supply, self.vcpus[index].on, self.vcpus[index].left_ns);
        match supply {
            Supply::Whole => self.vcpus[index].on = true,
            Supply::Quota { quota_ns, period_ns, phase_ns } => {
                let period = (now + period_ns - phase_ns % period_ns) / period_ns;
                let vcpu = &mut self.vcpus[index];
                if period != vcpu.period {
                    vcpu.period = period;
                    vcpu.left_ns = quota_ns;
                }
                vcpu.on = vcpu.left_ns >= STEP_NS;
            }
            Supply::Turns { on_ns, off_ns, irregular } => {
                if left >= STEP_NS {
                    self.vcpus[index].left_ns -= STEP_NS;
                    return;
                }
                let next = if on { off_ns } else { on_ns } as f64;
                let factor = if irregular { 0.5 + self.unit() } else { 1.0 };
                let vcpu = &mut self.vcpus[index];
                vcpu.on = !on;
                vcpu.left_ns = (next * factor) as u64;
            }
        }
    }

    fn choose_runners(&mut self) {
        for index in 0..self.vcpus.len() {
            self.supply(index);
            self.vcpus[index].running = self.vcpus[index].on && self.vcpus[index].wants;
        }
        for index in 0..self.vcpus.len() {
            if !self.vcpus[index].running {
                continue;
            }
            let place = self.vcpus[index].place;
            let rivals: Vec<usize> = (0..self.vcpus.len())
                .filter(|i| self.vcpus[*i].running && self.vcpus[*i].place == place)
                .collect();
            if rivals.len() < 2 {
                continue;
            }
            let at = self.turns.iter().position(|(p, ..)| *p == place).unwrap_or_else(|| {
                self.turns.push((place, rivals[0], TURN_NS));
                self.turns.len() - 1
            });
            let (_, mut whose, mut left) = self.turns[at];
            if !rivals.contains(&whose) || left < STEP_NS {
                whose = rivals.iter().copied().find(|i| *i > whose).unwrap_or(rivals[0]);
                left = TURN_NS;
            }
            self.turns[at] = (place, whose, left - STEP_NS);
            for rival in rivals {
                self.vcpus[rival].running = rival == whose;
            }
        }
        for vcpu in &mut self.vcpus {
            if vcpu.running && matches!(vcpu.supply, Supply::Quota { .. }) {
                vcpu.left_ns -= STEP_NS;
            }
        }
    }

    fn step(&mut self) {
        for running in &self.under_way {
            let (i, j) = running.errand.pair;
            self.vcpus[i].wants = self.now_ns >= running.begins_ns[0];
            self.vcpus[j].wants = self.now_ns >= running.begins_ns[1];
        }
        self.choose_runners();
        let (from, to) = (self.now_ns, self.now_ns + STEP_NS);
        self.now_ns = to;
        for running in &mut self.under_way {
            let (i, j) = running.errand.pair;
            for (side, vcpu) in [i, j].into_iter().enumerate() {
                if self.vcpus[vcpu].running {
                    running.activity[side].add(from, to);
                }
            }
            if self.vcpus[i].running && self.vcpus[j].running {
                running.passes += STEP_NS as f64 / running.latency;
            }
        }
        let over =
            |r: &Running| r.passes >= f64::from(r.errand.passes) || to - r.started_ns >= r.errand.limit_ns;
        let (ended, under_way) = std::mem::take(&mut self.under_way).into_iter().partition(over);
        self.under_way = under_way;
        for running in ended {
            let (i, j) = running.errand.pair;
            self.vcpus[i].wants = false;
            self.vcpus[j].wants = false;
            self.finished.push_back(Outcome {
                pair: running.errand.pair,
                latency_ns: (running.passes >= BATCH).then_some(running.latency),
                passes: running.passes as u32,
                activity: running.activity,
            });
        }
    }
}

impl Machine for Emulated {
    fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn start(&mut self, errand: Errand) {
        let latency = self.distance(errand.pair);
        // The time to wake a sleeping thread, on a vCPU that may have to be woken first.
        let begins_ns = [0, 1].map(|_| self.now_ns + 10_000 + (30_000.0 * self.unit()) as u64);
        let activity = [Activity::default(), Activity::default()];
        self.under_way.push(Running {
            errand,
            started_ns: self.now_ns,
            begins_ns,
            activity,
            passes: 0.0,
            latency,
        });
        self.busiest = self.busiest.max(2 * self.under_way.len());
    }

    fn wait(&mut self) -> Option<Outcome> {
        while self.finished.is_empty() && !self.under_way.is_empty() {
            self.step();
        }
        self.finished.pop_front()
    }

    fn own_line_ns(&self) -> f64 {
        5.0
    }

    fn most_busy(&self) -> usize {
        self.most_busy.unwrap_or(self.cpus.len())
    }
}

/// xorshift64*: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.unit() * limit as f64) as u64
    }
}
