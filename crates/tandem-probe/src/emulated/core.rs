//! An emulated core: its speed, its preemption pattern, its interrupts, and a clock that may jump.

use super::Random;
use crate::core::{Core, SchedStat};

/// Time of a block of work on a core of speed 1, ns.
const BLOCK_NS: f64 = 12_000.0;

/// The core.
#[derive(Debug, Clone)]
pub struct EmulatedCore {
    /// Work per time; 1 is the usual speed.
    pub speed: f64,
    /// Time between two preemption intervals, ns.
    pub on_ns: u64,
    /// Preemption interval, ns. 0: it is never preempted.
    pub off_ns: u64,
    /// Both are exponentially distributed with these means.
    pub irregular: bool,
    /// Does the guest's kernel know the steal?
    pub reports_steal: bool,
    /// Interval between two interrupts of 20 us, ns. 0: none.
    pub interrupt_every_ns: u64,
    /// A time, and the number of ns by which the clock jumps then (back if negative).
    pub jump: Option<(u64, i64)>,
    time_ns: u64,
    left_ns: u64,
    next_interrupt_ns: u64,
    stolen_ns: u64,
    random: u64,
}

impl EmulatedCore {
    /// A core that always runs, at speed 1.
    pub fn new(seed: u64) -> Self {
        Self {
            speed: 1.0,
            on_ns: 1_000_000_000,
            off_ns: 0,
            irregular: false,
            reports_steal: false,
            interrupt_every_ns: 0,
            jump: None,
            time_ns: 1_000_000_000,
            left_ns: 0,
            next_interrupt_ns: 0,
            stolen_ns: 0,
            random: seed | 1,
        }
    }

    /// A core at speed 1 that is preempted periodically.
    pub fn with_turns(seed: u64, on_ns: u64, off_ns: u64) -> Self {
        Self { on_ns, off_ns, left_ns: on_ns, ..Self::new(seed) }
    }

    /// True steal so far, ns.
    pub fn stolen_ns(&self) -> u64 {
        self.stolen_ns
    }

    fn length(&mut self, mean_ns: u64) -> u64 {
        if !self.irregular {
            return mean_ns;
        }
        let mut random = Random(self.random);
        let unit = random.unit();
        self.random = random.0;
        (-(1.0 - unit).ln() * mean_ns as f64) as u64
    }

    /// Lets the core run for this long.
    fn run(&mut self, mut ns: u64) {
        while ns > 0 {
            if self.off_ns > 0 && self.left_ns == 0 {
                let away = self.length(self.off_ns);
                self.time_ns += away;
                self.stolen_ns += away;
                self.left_ns = self.length(self.on_ns).max(1);
            }
            let step = if self.off_ns > 0 { ns.min(self.left_ns) } else { ns };
            self.time_ns += step;
            self.left_ns -= step.min(self.left_ns);
            ns -= step;
        }
    }
}

impl Core for EmulatedCore {
    fn cpu(&self) -> usize {
        0
    }

    fn now_ns(&mut self) -> u64 {
        match self.jump {
            Some((at, by)) if self.time_ns >= at => self.time_ns.saturating_add_signed(by),
            _ => self.time_ns,
        }
    }

    /// The preemption pattern continues meanwhile, so the core may be preempted at that time.
    fn sleep_until(&mut self, due_ns: u64) {
        while self.time_ns < due_ns {
            if self.off_ns > 0 && self.left_ns == 0 {
                self.time_ns += self.length(self.off_ns);
                self.stolen_ns += self.time_ns.saturating_sub(due_ns);
                self.left_ns = self.length(self.on_ns).max(1);
            }
            let left = if self.off_ns > 0 { self.left_ns } else { u64::MAX };
            let step = left.min(due_ns.saturating_sub(self.time_ns));
            self.time_ns += step;
            self.left_ns -= step.min(self.left_ns);
        }
    }

    fn work(&mut self) {
        self.run((BLOCK_NS / self.speed) as u64);
        if self.interrupt_every_ns > 0 && self.time_ns >= self.next_interrupt_ns {
            self.next_interrupt_ns = self.time_ns + self.interrupt_every_ns;
            self.run(20_000);
        }
    }

    fn account(&mut self) -> Option<SchedStat> {
        Some(SchedStat { ran_ns: self.time_ns - self.stolen_ns, waited_ns: 0 })
    }

    fn steal_ns(&mut self) -> Option<u64> {
        self.reports_steal.then_some(self.stolen_ns / 10_000_000 * 10_000_000)
    }
}
