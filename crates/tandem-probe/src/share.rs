//! What each vCPU gets of a pCPU, and how fast that is (vSched, section 3.1, vcap): a thread on each,
//! all at the same time, for a moment.
//!
//! The thread counts work in blocks and reads the clock between them. What it did not run although it
//! wanted to is either the guest's own doing (the kernel says how long it waited for other tasks) or
//! the host's. The length of a block that nothing interrupted is the speed of the core: a vCPU with a
//! small share of a fast core is told apart from one with all of a slow one.

use crate::activity::{Absences, Activity};
use crate::{sys, ProbeError};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Multiplications of a block: some ten microseconds, well above what reading the clock costs.
const BLOCK: u32 = 4096;
/// Longer between two blocks than this beyond their usual length: it was away, ns. Interrupts, and the exits that
/// they cost, are shorter; a host's slices are longer (`TANDEM_INACTIVE_MIN_NS` in `policy/vcap.h`).
const AWAY_NS: u64 = 300_000;

/// For a sample of this length the kernel's account of steal is exact to two points.
const LONG_ENOUGH_NS: u64 = 500_000_000;

/// What the kernel says of a thread, from its schedstat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedStat {
    /// Time it ran, ns; without steal where the guest's kernel knows of it.
    pub ran_ns: u64,
    /// Time it waited for other tasks of this kernel, ns.
    pub waited_ns: u64,
}

impl SchedStat {
    /// From the text of `/proc/thread-self/schedstat`: "ran waited slices". None: it is something else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        Some(Self { ran_ns: numbers.next()?.ok()?, waited_ns: numbers.next()?.ok()? })
    }
}

/// The calling thread's schedstat, held open: it is read within the time line that it explains.
struct OwnSchedStat(Option<std::fs::File>);

impl OwnSchedStat {
    fn open() -> Self {
        Self(std::fs::File::open("/proc/thread-self/schedstat").ok())
    }

    fn read(&self) -> Option<SchedStat> {
        let mut text = [0; 96];
        let length = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        SchedStat::parse(std::str::from_utf8(&text[..length]).ok()?)
    }
}

/// One vCPU in one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its number.
    pub cpu: usize,
    /// Length of the sample, ns.
    pub wall_ns: u64,
    /// Time in which the thread was away and no other task of the guest ran, ns.
    pub away_ns: u64,
    /// Steal by the kernel's account, ns; none: it has none, or the sample is too short for its steps.
    pub steal_ns: Option<u64>,
    /// Time in which the guest ran somebody else, ns.
    pub waited_ns: u64,
    /// The vCPU's absences.
    pub absences: Absences,
    /// Time of one block of work that nothing interrupted, ns; none: there was none.
    pub block_ns: Option<f64>,
}

impl Sample {
    /// Share of a pCPU, 0 to 1: of the time in which the vCPU wanted to run, what it got. None: too little to say.
    pub fn share(&self) -> Option<f64> {
        let part = |missing: u64, of: u64| 1.0 - (missing as f64 / of as f64).clamp(0.0, 1.0);
        if let Some(steal_ns) = self.steal_ns.filter(|_| self.wall_ns > 0) {
            // The vCPU wanted to run all the time, be it for this thread or for others.
            return Some(part(steal_ns, self.wall_ns));
        }
        // While other tasks of the guest ran, the vCPU ran, too: that time says nothing about this thread, and
        // the host's part in it is seen by them.
        let wanted = self.wall_ns.saturating_sub(self.waited_ns);
        (wanted > self.wall_ns / 20).then(|| part(self.away_ns, wanted))
    }

    /// Core speed relative to the fastest of a set, 0 to 1.
    pub fn speed(&self, fastest_block_ns: f64) -> Option<f64> {
        self.block_ns.map(|block| (fastest_block_ns / block).clamp(0.0, 1.0))
    }
}

/// Steal of one CPU since the boot as `/proc/stat` has it, ns (in steps of 10 ms). None: no such CPU.
pub fn steal_ns(proc_stat: &str, cpu: usize) -> Option<u64> {
    /// User space is told of time in hundredths of a second.
    const UNIT_NS: u64 = 10_000_000;
    let name = format!("cpu{cpu}");
    let line = proc_stat.lines().find(|line| line.split_ascii_whitespace().next() == Some(&name))?;
    line.split_ascii_whitespace().nth(8)?.parse::<u64>().ok()?.checked_mul(UNIT_NS)
}

/// What the kernel's account can tell of steal.
struct Steal {
    cpu: usize,
    reported: bool,
}

impl Steal {
    fn of(cpu: usize) -> Self {
        let reported = crate::hypervisor::Hypervisor::detect().is_some_and(|h| h.reports_steal());
        Self { cpu, reported }
    }

    fn read_ns(&self) -> Option<u64> {
        let text = self.reported.then(|| std::fs::read_to_string("/proc/stat").ok())??;
        steal_ns(&text, self.cpu)
    }
}

/// Samples all these CPUs at once for a time.
///
/// # Errors
/// No thread could be started, or none of the CPUs can be used.
pub fn sample(cpus: &[usize], length: Duration, policy: sys::Policy) -> Result<Vec<Sample>, ProbeError> {
    let started = Instant::now();
    // Nobody begins before all are there.
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
    let mut threads = Vec::with_capacity(cpus.len());
    let mut failed = None;
    for &cpu in cpus {
        let gate = Arc::clone(&gate);
        let spawned =
            std::thread::Builder::new().name(format!("vcap/{cpu}")).stack_size(128 * 1024).spawn(move || {
                let pinned = sys::pin_to(cpu);
                // Best effort always is allowed; without the right to real time the sample is an ordinary one.
                let _ = sys::set_policy(policy);
                drop(gate.read().unwrap_or_else(PoisonError::into_inner));
                pinned.map(|()| one(cpu, length, started)).map_err(|error| ProbeError::Cpu { cpu, error })
            });
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => failed = Some(ProbeError::Thread(error)),
        }
    }
    drop(closed);
    let mut samples = Vec::with_capacity(threads.len());
    for thread in threads {
        match thread.join() {
            Ok(Ok(sample)) => samples.push(sample),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => {}
        }
    }
    match failed {
        Some(error) if samples.is_empty() => Err(error),
        _ => Ok(samples),
    }
}

/// Of all gaps those that the host has made: as many of the longest as the steal of that time accounts for. Shorter
/// ones are interrupts and what else the machine does by itself, which on an emulated one takes long. Without
/// steal: all.
fn made_by_host(mut gaps: Vec<(u64, u64)>, steal_ns: Option<u64>) -> Vec<(u64, u64)> {
    if let Some(mut left) = steal_ns {
        gaps.sort_unstable_by_key(|(from, to)| std::cmp::Reverse(to - from));
        // The last one may be cut by the steps of the account.
        let accounted_for = |(from, to): &&(u64, u64)| {
            let enough = left > (to - from) / 2;
            left = left.saturating_sub(to - from);
            enough
        };
        let some = gaps.iter().take_while(accounted_for).count();
        gaps.truncate(some);
        gaps.sort_unstable();
    }
    gaps
}

/// What is left between gaps.
fn between(begin: u64, end: u64, gaps: &[(u64, u64)]) -> Activity {
    let starts = std::iter::once(begin).chain(gaps.iter().map(|(_, to)| *to));
    let ends = gaps.iter().map(|(from, _)| *from).chain(std::iter::once(end));
    Activity::new(starts.zip(ends))
}

fn one(cpu: usize, length: Duration, started: Instant) -> Sample {
    let ns = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let schedstat = OwnSchedStat::open();
    let steal = Steal::of(cpu);
    let steal_before = steal.read_ns();
    let before = schedstat.read();
    let begin = ns();
    let end = begin.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
    let mut last = begin;
    let mut waited_before = before.unwrap_or_default().waited_ns;
    let mut gaps = Vec::new();
    let mut blocks = Vec::with_capacity(1024);
    let mut usual = u64::MAX;
    let mut state = begin | 1;
    loop {
        state = work(state);
        let now = ns();
        let block = now - last;
        usual = usual.min(block);
        if block > usual.saturating_add(AWAY_NS) {
            let waited = schedstat.read().unwrap_or_default().waited_ns;
            // While other tasks of the guest had the vCPU, it ran, for all that this thread can know.
            if waited.saturating_sub(waited_before) < block / 2 {
                gaps.push((last, now - usual));
            }
            waited_before = waited;
        } else if blocks.len() < blocks.capacity() {
            blocks.push(block);
        }
        last = now;
        if now >= end {
            break;
        }
    }
    black_box(state);
    let after = schedstat.read();
    let waited_ns = before.zip(after).map_or(0, |(b, a)| a.waited_ns.saturating_sub(b.waited_ns));
    let wall_ns = last - begin;
    let steal_ns = steal_before
        .zip(steal.read_ns())
        .map(|(b, a)| a.saturating_sub(b))
        .filter(|_| wall_ns >= LONG_ENOUGH_NS);
    let gaps = made_by_host(gaps, steal_ns);
    blocks.sort_unstable();
    Sample {
        cpu,
        wall_ns,
        away_ns: gaps.iter().map(|(from, to)| to - from).sum(),
        steal_ns,
        waited_ns: waited_ns.min(wall_ns),
        absences: between(begin, last, &gaps).absences(),
        // The lower quartile: interrupts only add.
        block_ns: blocks.get(blocks.len() / 4).map(|block| *block as f64),
    }
}

/// A chain of multiplications: no memory, no clock, nothing that a hypervisor could trap.
fn work(mut state: u64) -> u64 {
    for _ in 0..BLOCK {
        state =
            black_box(state).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample_of(wall_ns: u64, waited_ns: u64, away_ns: u64, steal_ns: Option<u64>) -> Sample {
        let absences = Absences::default();
        Sample { cpu: 0, wall_ns, away_ns, steal_ns, waited_ns, absences, block_ns: Some(1.0) }
    }

    #[test]
    fn the_kernels_account_and_the_gaps() {
        assert_eq!(sample_of(100, 0, 60, Some(70)).share(), Some(0.30000000000000004), "the kernel knows");
        assert_eq!(
            sample_of(100, 0, 70, None).share(),
            Some(0.30000000000000004),
            "it does not: the gaps tell"
        );
        assert_eq!(sample_of(100, 40, 30, None).share(), Some(0.5), "of the time that other tasks left");
        assert_eq!(sample_of(100, 98, 1, None).share(), None, "they left none");
    }

    #[test]
    fn the_longest_gaps_are_the_hosts() {
        let gaps = vec![(0, 10), (20, 21), (30, 40), (50, 52), (60, 70)];
        assert_eq!(made_by_host(gaps.clone(), Some(29)), [(0, 10), (30, 40), (60, 70)]);
        assert_eq!(made_by_host(gaps.clone(), Some(0)), []);
        assert_eq!(made_by_host(gaps.clone(), None), gaps);
        assert_eq!(between(0, 100, &gaps[..2]).intervals(), [(10, 20), (21, 100)]);
    }

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

    #[test]
    fn the_machine_at_hand_can_be_sampled() {
        let cpus = sys::usable_cpus().unwrap();
        let samples = sample(&cpus, Duration::from_millis(20), sys::Policy::BestEffort).unwrap();
        assert_eq!(samples.len(), cpus.len());
        for sample in samples {
            assert!(sample.wall_ns >= 20_000_000);
            assert!(sample.share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }

    proptest! {
        #[test]
        fn shares_are_shares(wall in 0u64..1_000_000_000, waited in any::<u32>(), away in any::<u32>(), steal in proptest::option::of(any::<u32>())) {
            let sample = sample_of(wall, u64::from(waited).min(wall), away.into(), steal.map(u64::from));
            prop_assert!(sample.share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }

        #[test]
        fn any_text_is_survived(text in ".{0,60}") {
            let _ = SchedStat::parse(&text);
            let _ = steal_ns(&text, 0);
        }
    }
}
