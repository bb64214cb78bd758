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
/// Longer between two blocks than this beyond their usual length: it was away, ns.
const AWAY_NS: u64 = 50_000;

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
    /// Time in which the host ran somebody else although the vCPU wanted to run, ns.
    pub stolen_ns: u64,
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
        // While other tasks of the guest ran, the vCPU ran, too: that time says nothing about this thread, and
        // the host's part in it is seen by them.
        let wanted = self.wall_ns.saturating_sub(self.waited_ns);
        (wanted > self.wall_ns / 20).then(|| 1.0 - (self.stolen_ns as f64 / wanted as f64).clamp(0.0, 1.0))
    }

    /// Core speed relative to the fastest of a set, 0 to 1.
    pub fn speed(&self, fastest_block_ns: f64) -> Option<f64> {
        self.block_ns.map(|block| (fastest_block_ns / block).clamp(0.0, 1.0))
    }
}

/// Time that the host took: by the kernel's own account (all that was neither running nor waiting), or, where
/// the kernel counts stolen time as run time, by the gaps in the thread's time line in which no other task ran.
pub fn stolen_ns(wall_ns: u64, kernel: Option<SchedStat>, away_ns: u64) -> u64 {
    let by_kernel = kernel.map_or(0, |k| wall_ns.saturating_sub(k.ran_ns.saturating_add(k.waited_ns)));
    by_kernel.max(away_ns).min(wall_ns)
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

fn one(cpu: usize, length: Duration, started: Instant) -> Sample {
    let ns = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let schedstat = OwnSchedStat::open();
    let before = schedstat.read();
    let begin = ns();
    let end = begin.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
    let (mut awake_since, mut last) = (begin, begin);
    let (mut waited_before, mut away_ns) = (before.map_or(0, |k| k.waited_ns), 0);
    let mut activity = Activity::default();
    let mut blocks = Vec::with_capacity(1024);
    let mut usual = u64::MAX;
    let mut state = begin | 1;
    loop {
        state = work(state);
        let now = ns();
        let block = now - last;
        usual = usual.min(block);
        if block > usual.saturating_add(AWAY_NS) {
            let waited = schedstat.read().map_or(0, |k| k.waited_ns);
            // While other tasks of the guest had the vCPU, it ran, for all that this thread can know.
            if waited.saturating_sub(waited_before) < block / 2 {
                activity.add(awake_since, last);
                awake_since = now.saturating_sub(usual);
                away_ns += block - usual;
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
    activity.add(awake_since, last);
    let after = schedstat.read();
    let kernel = before.zip(after).map(|(b, a)| SchedStat {
        ran_ns: a.ran_ns.saturating_sub(b.ran_ns),
        waited_ns: a.waited_ns.saturating_sub(b.waited_ns),
    });
    let wall_ns = last - begin;
    blocks.sort_unstable();
    Sample {
        cpu,
        wall_ns,
        stolen_ns: stolen_ns(wall_ns, kernel, away_ns),
        waited_ns: kernel.map_or(0, |k| k.waited_ns.min(wall_ns)),
        absences: activity.absences(),
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

    #[test]
    fn the_kernels_account_and_the_gaps() {
        let kernel = |ran_ns, waited_ns| Some(SchedStat { ran_ns, waited_ns });
        assert_eq!(stolen_ns(100, kernel(30, 0), 68), 70, "the kernel knows of steal");
        assert_eq!(stolen_ns(100, kernel(100, 0), 70), 70, "it does not: the gaps tell");
        assert_eq!(stolen_ns(100, kernel(60, 40), 0), 0, "the guest's own tasks ran");
        assert_eq!(stolen_ns(100, None, 25), 25);
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
        fn shares_are_shares(wall in 1u64..1_000_000_000, ran in any::<u32>(), waited in any::<u32>(), gaps in any::<u32>()) {
            let kernel = Some(SchedStat { ran_ns: ran.into(), waited_ns: waited.into() });
            let stolen = stolen_ns(wall, kernel, gaps.into());
            prop_assert!(stolen <= wall);
            let sample = Sample { cpu: 0, wall_ns: wall, stolen_ns: stolen, waited_ns: u64::from(waited).min(wall), absences: Absences::default(), block_ns: Some(1.0) };
            prop_assert!(sample.share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }

        #[test]
        fn any_text_is_survived(text in ".{0,60}") {
            let _ = SchedStat::parse(&text);
        }
    }
}
