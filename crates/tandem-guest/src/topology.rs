//! Keeps the scheduler's topology up to date: probes it, validates it, saves it, and discards it when it is too old.
//!
//! A topology that a probe has found is validated by a few measurements now and then (vSched, section
//! 3.3, "validation"), less and less often while it holds, and soon where a vCPU's share has changed
//! much ([`crate::doubt`], which says when). It is saved in a file for the next daemon. A topology that
//! could not be confirmed for too long is replaced by what the kernel says. A probe keeps all vCPUs busy
//! for a moment, so it begins only when the daemon's budget has something left.

use crate::bpf::intf;
use crate::domains::Domains;
use crate::doubt::{Answer, Schedule, Shares};
use crate::model::VcpuFacts;
use crate::GuestError;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tandem_daemon::budget::Budget;
use tandem_daemon::DaemonError;
use tandem_probe::threads::Threads;
use tandem_probe::vtop::saved::Saved;
use tandem_probe::vtop::topology::Topology;
use tandem_probe::vtop::{full, validate, Verdict};

/// Longest full probe, and longest validation.
const FULL: Duration = Duration::from_millis(1000);
const VALIDATION: Duration = Duration::from_millis(150);
/// A topology is used for this long without being confirmed.
const MAX_AGE: Duration = Duration::from_secs(900);
/// For how long a probe is expected to keep each CPU busy.
const EXPECTED: Duration = Duration::from_millis(5);
/// How often the thread checks whether there is something left in the budget.
const STEP: Duration = Duration::from_millis(500);

/// The thread that keeps the topology.
pub(crate) struct TopologyKeeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    news: Receiver<Domains>,
    turns: Arc<AtomicU64>,
    shares: Shares,
    doubt: Arc<AtomicBool>,
    isolated: Vec<usize>,
    avoided: Avoided,
}

/// vCPUs that are not probed now.
type Avoided = Arc<Mutex<Vec<usize>>>;

impl TopologyKeeper {
    /// Starts probing all vCPUs but the `isolated` ones. `file`: where the topology is saved.
    pub(crate) fn start(
        nr_cpus: usize,
        isolated: Vec<usize>,
        file: PathBuf,
        budget: Arc<Budget>,
    ) -> Result<Self, GuestError> {
        let stop = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicU64::new(0));
        let doubt = Arc::new(AtomicBool::new(false));
        let avoided = Avoided::new(Mutex::new(isolated.clone()));
        let (found, news) = channel();
        let keeper = Keeper {
            nr_cpus,
            file,
            boot_id: boot_id(),
            stop: Arc::clone(&stop),
            turns: Arc::clone(&turns),
            doubt: Arc::clone(&doubt),
            found,
            known: None,
            budget,
            avoided: Arc::clone(&avoided),
        };
        let thread = std::thread::Builder::new()
            .name("topology".into())
            .spawn(move || keeper.run())
            .map_err(DaemonError::Thread)?;
        let shares = Shares::default();
        Ok(Self { stop, thread: Some(thread), news, turns, shares, doubt, isolated, avoided })
    }

    /// Takes the current shares of the vCPUs. Where one has changed much, the topology is validated
    /// soon. vCPUs that are out of use are not probed: the host may have given their pCPUs to others.
    pub(crate) fn look(&mut self, facts: &[VcpuFacts]) {
        let empty = |cpu: &usize| facts[*cpu].bans & intf::TANDEM_BAN_EMPTY != 0;
        let avoided = self.isolated.iter().copied().chain((0..facts.len()).filter(empty)).collect();
        *self.avoided.lock().unwrap_or_else(PoisonError::into_inner) = avoided;
        if self.shares.changed(facts, self.turns()) {
            self.doubt.store(true, Ordering::Relaxed);
            if let Some(thread) = &self.thread {
                thread.thread().unpark();
            }
        }
    }

    /// The latest topology found since the last call, if any.
    pub(crate) fn news(&self) -> Option<Domains> {
        self.news.try_iter().last()
    }

    /// Number of probes that have begun plus those that have ended: odd while one keeps all vCPUs busy.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

impl Drop for TopologyKeeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}

struct Known {
    topology: Topology,
    confirmed_ns: u64,
}

struct Keeper {
    nr_cpus: usize,
    file: PathBuf,
    boot_id: String,
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    /// Something says that the topology may have changed.
    doubt: Arc<AtomicBool>,
    found: Sender<Domains>,
    known: Option<Known>,
    budget: Arc<Budget>,
    avoided: Avoided,
}

impl Keeper {
    fn run(mut self) {
        self.recall();
        let mut schedule = Schedule::new(Instant::now());
        let mut wait_until = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let doubted = self.doubt.load(Ordering::Relaxed);
            let due = schedule.due(doubted).max(wait_until);
            if now < due {
                std::thread::park_timeout(due - now);
                continue;
            }
            let expected = EXPECTED * u32::try_from(self.nr_cpus).unwrap_or(u32::MAX);
            if !self.budget.take(expected, FULL) {
                wait_until = now + STEP;
                continue;
            }
            // A change during the probe is a doubt of its own.
            self.doubt.store(false, Ordering::Relaxed);
            self.turns.fetch_add(1, Ordering::Relaxed);
            let answer = self.probe();
            self.turns.fetch_add(1, Ordering::Relaxed);
            self.forget_if_stale();
            if doubted && answer == Answer::Open {
                self.doubt.store(true, Ordering::Relaxed);
            }
            schedule.answered(answer, doubted, now, Instant::now());
        }
    }

    /// Loads what an earlier daemon has saved.
    fn recall(&mut self) {
        let Ok(cpus) = tandem_probe::sys::usable_cpus() else { return };
        let Ok(saved) = Saved::read(&self.file) else { return };
        let age = u64::try_from(MAX_AGE.as_nanos()).unwrap_or(u64::MAX);
        if let Some((topology, confirmed_ns)) =
            saved.topology(&self.boot_id, &cpus, crate::sys::monotonic_ns(), age)
        {
            log::debug!("topology from {}", self.file.display());
            self.tell(&topology);
            self.known = Some(Known { topology, confirmed_ns });
        }
    }

    fn probe(&mut self) -> Answer {
        let Ok(mut cpus) = tandem_probe::sys::usable_cpus() else { return Answer::Open };
        let avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cpus.retain(|cpu| !avoided.contains(cpu));
        if cpus.len() < 2 {
            return Answer::Open;
        }
        let mut threads = match Threads::beside_work(&cpus) {
            Ok(threads) => threads,
            Err(error) => {
                log::debug!("topology: {error}");
                return Answer::Open;
            }
        };
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // vCPUs that are out of use for a while are not asked about, and not forgotten.
        let knows = |known: &&Known| cpus.iter().all(|cpu| known.topology.cpus.contains(cpu));
        if let Some(known) = self.known.as_ref().filter(knows) {
            let (verdict, effort) = validate(&mut threads, &known.topology, ns(VALIDATION));
            log::debug!("topology: {verdict:?} after {} ms", effort.elapsed_ns / 1_000_000);
            match verdict {
                Verdict::Holds => {
                    self.confirm();
                    return Answer::Same;
                }
                Verdict::Open => return Answer::Open,
                Verdict::Changed => {}
            }
        }
        let Ok((topology, effort)) = full(&mut threads, ns(FULL)) else { return Answer::Open };
        log::debug!("topology: probed in {} ms", effort.elapsed_ns / 1_000_000);
        if !self.tell(&topology) {
            return Answer::Open;
        }
        self.known = Some(Known { topology, confirmed_ns: 0 });
        self.confirm();
        Answer::New
    }

    /// Reports the topology to the scheduler, unless too much is unknown. Then the last good topology
    /// stays in force.
    fn tell(&self, topology: &Topology) -> bool {
        let domains = Domains::of_topology(self.nr_cpus, topology);
        // The daemon may be about to end.
        domains.is_some_and(|domains| self.found.send(domains).is_ok())
    }

    fn confirm(&mut self) {
        let Some(known) = &mut self.known else { return };
        known.confirmed_ns = crate::sys::monotonic_ns();
        let saved = Saved::new(&known.topology, &self.boot_id, known.confirmed_ns);
        if let Err(error) = saved.write(&self.file) {
            log::debug!("cannot remember the topology in {}: {error}", self.file.display());
        }
    }

    fn forget_if_stale(&mut self) {
        let now_ns = crate::sys::monotonic_ns();
        let stale =
            |known: &Known| u128::from(now_ns.saturating_sub(known.confirmed_ns)) > MAX_AGE.as_nanos();
        if self.known.as_ref().is_some_and(stale) {
            log::info!("topology: not confirmed for {} s, back to the kernel's", MAX_AGE.as_secs());
            self.known = None;
            let online = tandem_probe::sys::usable_cpus().unwrap_or_default();
            let _ = self.found.send(Domains::of_the_kernel(self.nr_cpus, &online));
        }
    }
}

/// Identifies the boot of the running kernel. Empty where there is no such file; then only what was
/// saved with an empty id is loaded.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}
