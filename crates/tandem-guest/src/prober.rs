//! Keeps estimates of idle vCPUs fresh.
//!
//! Steal is visible only while a vCPU wants to run. One SCHED_IDLE thread per vCPU therefore keeps it busy for a
//! moment when nothing else did: the scheduler measures as it does for any task. A busy vCPU is never probed. A vCPU
//! whose estimate does not change is probed less and less often, and all probes together take no more than their
//! budget. The work of a probe is timed, which gives the speed of the core (`speed`).

use crate::bpf::intf;
use crate::model::VcpuFacts;
use crate::speed::Speeds;
use crate::{sys, GuestError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender, TrySendError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tandem_daemon::budget::Budget;
use tandem_daemon::DaemonError;
use tandem_probe::core::{Core, Here};

/// Longest time that a probe keeps its vCPU busy, whatever the preemption intervals.
const PROBE_MAX: Duration = Duration::from_millis(100);
/// Shortest and longest time between two probes of a vCPU. Uncontended, 14 ms in 1.4 s are 1 %. On a vCPU that is
/// preempted for most of the time a probe is longer, but takes CPU time only while the vCPU runs.
const INTERVAL_MIN: Duration = Duration::from_millis(1400);
const INTERVAL_MAX: Duration = Duration::from_millis(2600);
/// Longest time while no vCPU loses time: the first task that runs on a vCPU finds out that it is contended.
const INTERVAL_QUIET: Duration = Duration::from_secs(20);
/// A vCPU with such a share loses no time.
const QUIET_SHARE: f64 = 0.97;
/// A share that moved by more than this has changed.
const NEWS: f64 = 0.1;

/// Blocks of a probe that are timed.
const BLOCKS: usize = 512;

struct Probe {
    orders: SyncSender<Duration>,
    thread: Option<JoinHandle<()>>,
    due: Instant,
    interval: Duration,
    last_share: f64,
}

/// One thread per vCPU, asleep except while it probes.
pub(crate) struct Prober {
    probes: Vec<Option<Probe>>,
    stop: Arc<AtomicBool>,
    budget: Arc<Budget>,
    found: Sender<Block>,
    blocks: Receiver<Block>,
    speeds: Speeds,
    /// vCPUs that are never probed.
    isolated: Vec<usize>,
}

/// The result of a probe: the vCPU, and how long an uninterrupted block of work took, ns.
type Block = (usize, f64);

impl Prober {
    /// Begins without threads: the first step starts one for each online vCPU but the `isolated` ones.
    pub(crate) fn new(nr_cpus: usize, isolated: Vec<usize>, budget: Arc<Budget>) -> Self {
        let (found, blocks) = channel();
        Self {
            probes: (0..nr_cpus).map(|_| None).collect(),
            stop: Arc::new(AtomicBool::new(false)),
            budget,
            found,
            blocks,
            speeds: Speeds::new(nr_cpus),
            isolated,
        }
    }

    /// A vCPU that comes online gets a thread. One that goes offline loses it: the kernel would let the
    /// thread run anywhere.
    fn follow_hotplug(&mut self, facts: &[VcpuFacts]) {
        for (cpu, (fact, slot)) in facts.iter().zip(self.probes.iter_mut()).enumerate() {
            if !fact.online {
                *slot = None;
            } else if slot.is_none() && !self.isolated.contains(&cpu) {
                match start_probe(cpu, &self.stop, &self.found) {
                    Ok(probe) => *slot = Some(probe),
                    Err(error) => log::debug!("vCPU {cpu} is not probed: {error}"),
                }
            }
        }
    }

    /// Orders a probe of every vCPU whose estimate is due, those that have waited longest first, as far
    /// as the budget goes.
    pub(crate) fn step(&mut self, facts: &[VcpuFacts], now: Instant) {
        self.follow_hotplug(facts);
        let quiet = facts.iter().filter(|fact| fact.online).all(|fact| fact.share > QUIET_SHARE);
        let longest = if quiet { INTERVAL_QUIET } else { INTERVAL_MAX };
        let mut due = Vec::new();
        for (cpu, (fact, slot)) in facts.iter().zip(self.probes.iter_mut()).enumerate() {
            let Some(probe) = slot else { continue };
            if probe.interval > longest {
                probe.interval = longest;
                probe.due = probe.due.min(now + longest);
            }
            let age = fact.age_ms.map_or(Duration::MAX, |age| Duration::from_nanos((age * 1e6) as u64));
            // A vCPU with work of its own is measured by that.
            if fact.online && !is_left_alone(fact) && age >= probe.interval && now >= probe.due {
                due.push((probe.due, cpu));
            }
        }
        due.sort_unstable();
        for (_, cpu) in due {
            let length = probe_length(&facts[cpu]);
            if !self.budget.take(length.mul_f64(facts[cpu].share.clamp(0.0, 1.0)), length) {
                break;
            }
            self.order(cpu, &facts[cpu], length, longest, now);
        }
    }

    /// Changed speeds of cores: vCPUs and speeds relative to the fastest.
    pub(crate) fn news_of_speeds(&mut self) -> Vec<(usize, f64)> {
        let now = Instant::now();
        while let Ok((cpu, block_ns)) = self.blocks.try_recv() {
            self.speeds.probed(cpu, block_ns, now);
        }
        self.speeds.news(now)
    }

    /// Is some core clearly slower than another?
    pub(crate) fn cores_are_unlike(&self) -> bool {
        self.speeds.unlike()
    }

    fn order(&mut self, cpu: usize, fact: &VcpuFacts, length: Duration, longest: Duration, now: Instant) {
        let Some(probe) = &mut self.probes[cpu] else { return };
        let news = (fact.share - probe.last_share).abs() > NEWS;
        probe.interval = if news { INTERVAL_MIN } else { (probe.interval * 5 / 4).min(longest) };
        probe.last_share = fact.share;
        probe.due = now + probe.interval;
        match probe.orders.try_send(length) {
            Ok(()) | Err(TrySendError::Full(_)) => {}
            // The thread ended because its CPU cannot be used: it is not started again.
            Err(TrySendError::Disconnected(_)) => {
                self.probes[cpu] = None;
                self.isolated.push(cpu);
            }
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for probe in self.probes.iter_mut().flatten() {
            let (closed, _) = sync_channel(1);
            // Dropping the sender ends the thread's wait for orders.
            drop(std::mem::replace(&mut probe.orders, closed));
            if let Some(thread) = probe.thread.take() {
                // A prober does nothing that could panic.
                let _ = thread.join();
            }
        }
    }
}

/// Parked vCPUs and spares of a stack are not probed either. A straggler is probed: it may recover.
fn is_left_alone(fact: &VcpuFacts) -> bool {
    fact.bans & (intf::TANDEM_BAN_EMPTY | intf::TANDEM_BAN_STACKED) != 0
}

/// A little more than one measurement window (`vcap_window_ns` in `policy/guest/vcap.h`).
fn probe_length(fact: &VcpuFacts) -> Duration {
    let window_ns = intf::TANDEM_WINDOW_NS as u64 + (2e3 * fact.inactive_mean_us) as u64;
    Duration::from_nanos(window_ns + 2_000_000).min(PROBE_MAX)
}

/// Keeps a core busy for `length`, or until told to stop. Returns how long an uninterrupted block took,
/// ns: the lower quartile, because interrupts and preemptions only add. None: there were too few blocks.
fn work(core: &mut impl Core, length: Duration, stop: impl Fn() -> bool) -> Option<f64> {
    let mut blocks = Vec::with_capacity(BLOCKS);
    let mut last = core.now_ns();
    let end = last + u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    while last < end && !stop() {
        core.work();
        let now = core.now_ns();
        if blocks.len() < BLOCKS {
            blocks.push(now.saturating_sub(last));
        }
        last = now;
    }
    blocks.sort_unstable();
    (blocks.len() >= BLOCKS / 8).then(|| blocks[blocks.len() / 4] as f64)
}

fn start_probe(cpu: usize, stop: &Arc<AtomicBool>, found: &Sender<Block>) -> Result<Probe, GuestError> {
    let (orders, inbox) = sync_channel::<Duration>(1);
    let stop = Arc::clone(stop);
    let found = found.clone();
    let thread = std::thread::Builder::new()
        .name(format!("probe/{cpu}"))
        .stack_size(64 * 1024)
        .spawn(move || {
            if sys::become_prober_on(cpu).is_err() {
                return;
            }
            let mut core = Here::without_accounts(cpu, Instant::now());
            while let Ok(length) = inbox.recv() {
                // The CPU may have been offline for a moment: then the kernel has let this thread run anywhere.
                if tandem_probe::sys::pin_to(cpu).is_err() {
                    continue;
                }
                let blocks = work(&mut core, length, || stop.load(Ordering::Relaxed));
                // The receiver may be gone.
                let _ = blocks.map(|block_ns| found.send((cpu, block_ns)));
            }
        })
        .map_err(DaemonError::Thread)?;
    Ok(Probe { orders, thread: Some(thread), due: Instant::now(), interval: INTERVAL_MIN, last_share: 1.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_probe::emulated::core::EmulatedCore;

    #[test]
    fn a_probe_times_what_nothing_interrupted() {
        let block = |speed: f64, on_ms: u64, off_ms: u64| {
            let mut core = EmulatedCore::with_turns(1, on_ms * 1_000_000, off_ms * 1_000_000);
            core.speed = speed;
            work(&mut core, Duration::from_millis(60), || false).unwrap()
        };
        let whole = block(1.0, 1000, 0);
        assert!((block(0.5, 1000, 0) / whole - 2.0).abs() < 0.01, "half as fast");
        assert!((block(1.0, 3, 9) / whole - 1.0).abs() < 0.01, "as fast, but preempted for most of the time");
        assert_eq!(work(&mut EmulatedCore::new(1), Duration::from_millis(60), || true), None);
    }
}
