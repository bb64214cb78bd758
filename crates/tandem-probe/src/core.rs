//! A CPU on which a thread counts work. The real one is here, an emulated one in [`crate::emulated::core`].

use crate::hypervisor::Hypervisor;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Multiplications of a block: some ten microseconds, much longer than reading the clock takes.
const BLOCK: u32 = 4096;

/// Operations and observations of a thread on a CPU.
pub trait Core {
    /// Its number.
    fn cpu(&self) -> usize;
    /// Time since an arbitrary moment, ns.
    fn now_ns(&mut self) -> u64;
    /// Sleeps until this time, ns.
    fn sleep_until(&mut self, due_ns: u64);
    /// Does one block of work. All blocks are the same.
    fn work(&mut self);
    /// The guest kernel's accounting of the thread; `None` if there is none.
    fn account(&mut self) -> Option<SchedStat>;
    /// Steal of this CPU since boot as the guest's kernel knows it, ns; `None` if it does not.
    fn steal_ns(&mut self) -> Option<u64>;
}

/// The kernel's accounting of a thread, from its schedstat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// Time it ran, ns; without steal if the guest's kernel knows it.
    pub ran_ns: u64,
    /// Time it waited for other tasks of this kernel, ns.
    pub waited_ns: u64,
}

impl SchedStat {
    /// Parses `/proc/thread-self/schedstat`: "ran waited slices". `None` if the text is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        Some(Self { ran_ns: numbers.next()?.ok()?, waited_ns: numbers.next()?.ok()? })
    }
}

/// The unit of times in `/proc/stat`, ns: hundredths of a second (`USER_HZ`).
pub const PROC_STAT_UNIT_NS: u64 = 10_000_000;

/// Steal of one CPU since boot from `/proc/stat`, ns (in steps of 10 ms). `None` if there is no such CPU.
pub fn steal_ns(proc_stat: &str, cpu: usize) -> Option<u64> {
    let name = format!("cpu{cpu}");
    let line = proc_stat.lines().find(|line| line.split_ascii_whitespace().next() == Some(&name))?;
    line.split_ascii_whitespace().nth(8)?.parse::<u64>().ok()?.checked_mul(PROC_STAT_UNIT_NS)
}

/// The CPU that the calling thread is pinned to.
pub struct Here {
    cpu: usize,
    started: Instant,
    /// Kept open: it is read within the time line that it explains.
    schedstat: Option<std::fs::File>,
    reports_steal: bool,
    state: u64,
}

impl Here {
    /// The calling thread must be pinned to `cpu`; times count from `started`.
    pub fn new(cpu: usize, started: Instant) -> Self {
        Self {
            cpu,
            started,
            schedstat: std::fs::File::open("/proc/thread-self/schedstat").ok(),
            reports_steal: Hypervisor::detect().is_some_and(|it| it.reports_steal()),
            state: 1,
        }
    }

    /// For work only: opens no file, and has no accounting of the kernel.
    pub fn without_accounts(cpu: usize, started: Instant) -> Self {
        Self { cpu, started, schedstat: None, reports_steal: false, state: 1 }
    }
}

impl Core for Here {
    fn cpu(&self) -> usize {
        self.cpu
    }

    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep_until(&mut self, due_ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(due_ns.saturating_sub(self.now_ns())));
    }

    /// A chain of multiplications: no memory, no clock, nothing that a hypervisor could trap.
    fn work(&mut self) {
        let mut state = self.state;
        for _ in 0..BLOCK {
            state = black_box(state)
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
        }
        self.state = black_box(state);
    }

    fn account(&mut self) -> Option<SchedStat> {
        let mut text = [0; 96];
        let length = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        SchedStat::parse(std::str::from_utf8(&text[..length]).ok()?)
    }

    fn steal_ns(&mut self) -> Option<u64> {
        let text = self.reports_steal.then(|| std::fs::read_to_string("/proc/stat").ok())??;
        steal_ns(&text, self.cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steal_in_proc_stat() {
        let text = "cpu  9 0 0 0 0 0 0 99 0 0\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu10 0 0 0 0 0 0 0 5 0 0\n";
        assert_eq!(steal_ns(text, 1), Some(80_000_000));
        assert_eq!(steal_ns(text, 10), Some(50_000_000));
        assert_eq!(steal_ns(text, 2), None);
        assert_eq!(steal_ns("cpu0 1 2", 0), None);
    }

    #[test]
    fn what_schedstat_says() {
        assert_eq!(SchedStat::parse("12 34 5\n"), Some(SchedStat { ran_ns: 12, waited_ns: 34 }));
        assert_eq!(SchedStat::parse("12"), None);
        assert_eq!(SchedStat::parse("a b c"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".{0,60}") {
            let _ = SchedStat::parse(&text);
            let _ = steal_ns(&text, 0);
        }
    }
}
