//! Keeps estimates of idle vCPUs fresh.
//!
//! Steal is visible only while a vCPU wants to run. One best-effort thread per vCPU therefore makes
//! it busy for a moment when nothing else did: the scheduler measures as it does for any task. A
//! vCPU that works is never probed; one whose estimate does not change is probed less and less, and all
//! together take no more than their budget.

use crate::bpf::intf;
use crate::budget::Budget;
use crate::model::VcpuFacts;
use crate::{sys, GuestError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender, TrySendError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time that a probe keeps its vCPU busy, whatever its absences.
const PROBE_MAX: Duration = Duration::from_millis(100);
/// Shortest and longest time between two probes of a vCPU. Undisturbed, 14 ms in 1.4 s are 1 %; on a
/// vCPU that is absent for most of the time a probe is longer, but runs only while it is not.
const INTERVAL_MIN: Duration = Duration::from_millis(1400);
const INTERVAL_MAX: Duration = Duration::from_millis(2600);
/// Longest time while no vCPU misses anything: who is contended next is found by the first task that runs there.
const INTERVAL_QUIET: Duration = Duration::from_secs(20);
/// A vCPU with such a share misses nothing.
const QUIET_SHARE: f64 = 0.97;
/// A share that moved by more than this is news.
const NEWS: f64 = 0.1;

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
}

impl Prober {
    /// Starts the threads of the online CPUs.
    pub(crate) fn start(nr_cpus: usize, online: &[usize], budget: Arc<Budget>) -> Result<Self, GuestError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut probes: Vec<Option<Probe>> = (0..nr_cpus).map(|_| None).collect();
        for &cpu in online.iter().filter(|cpu| **cpu < nr_cpus) {
            probes[cpu] = Some(start_probe(cpu, &stop)?);
        }
        Ok(Self { probes, stop, budget })
    }

    /// Orders a probe of every vCPU whose estimate is due, those first that have waited longest, as far as the
    /// budget goes.
    pub(crate) fn step(&mut self, facts: &[VcpuFacts], now: Instant) {
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

    fn order(&mut self, cpu: usize, fact: &VcpuFacts, length: Duration, longest: Duration, now: Instant) {
        let Some(probe) = &mut self.probes[cpu] else { return };
        let news = (fact.share - probe.last_share).abs() > NEWS;
        probe.interval = if news { INTERVAL_MIN } else { (probe.interval * 5 / 4).min(longest) };
        probe.last_share = fact.share;
        probe.due = now + probe.interval;
        match probe.orders.try_send(length) {
            Ok(()) | Err(TrySendError::Full(_)) => {}
            // The thread ended because its CPU cannot be used: nothing to probe.
            Err(TrySendError::Disconnected(_)) => self.probes[cpu] = None,
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

/// Parked ones and spares of a stack stay empty, also of probes. A straggler is probed: it may recover.
fn is_left_alone(fact: &VcpuFacts) -> bool {
    fact.bans & (intf::TANDEM_BAN_EMPTY | intf::TANDEM_BAN_STACKED) != 0
}

/// A little more than one window of measurement (`vcap_window_ns` in `policy/vcap.h`).
fn probe_length(fact: &VcpuFacts) -> Duration {
    let window_ns = intf::TANDEM_WINDOW_NS as u64 + (2e3 * fact.inactive_mean_us) as u64;
    Duration::from_nanos(window_ns + 2_000_000).min(PROBE_MAX)
}

fn start_probe(cpu: usize, stop: &Arc<AtomicBool>) -> Result<Probe, GuestError> {
    let (orders, inbox) = sync_channel::<Duration>(1);
    let stop = Arc::clone(stop);
    let thread = std::thread::Builder::new()
        .name(format!("probe/{cpu}"))
        .stack_size(64 * 1024)
        .spawn(move || {
            if sys::become_prober_on(cpu).is_err() {
                return;
            }
            while let Ok(length) = inbox.recv() {
                let end = Instant::now() + length;
                while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                    for _ in 0..256 {
                        std::hint::spin_loop();
                    }
                }
            }
        })
        .map_err(GuestError::Thread)?;
    Ok(Probe { orders, thread: Some(thread), due: Instant::now(), interval: INTERVAL_MIN, last_share: 1.0 })
}
