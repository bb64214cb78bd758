//! The real machine: one thread on each CPU, and a cache line between any two.

use crate::activity::Activity;
use crate::machine::{Errand, Machine, Outcome};
use crate::{sys, ProbeError};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Own passes between two measurements of the latency.
const BATCH: u32 = 50;
/// Polls of the line between two clock readings.
const LOOKS: u32 = 64;
/// If two clock readings are further apart than this, the thread was not running in between, ns. An interrupt takes
/// less.
const AWAY_NS: u64 = 50_000;
/// Time to wait for an errand beyond its limit: its thread may be preempted when the limit passes.
const PATIENCE: Duration = Duration::from_millis(250);

/// The line that is passed to and fro, alone in its pair of cache lines (the prefetcher fetches two).
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU32);

#[derive(Default)]
struct Table {
    line: Line,
    over: Aside,
}

/// Data that must not share the cache line.
#[repr(align(128))]
#[derive(Default)]
struct Aside(AtomicBool);

struct Order {
    number: u64,
    side: usize,
    table: Arc<Table>,
    passes: u32,
    limit_ns: u64,
    /// The other side's order, which is passed on before this one begins. If the main thread sent both, the first
    /// worker could take its CPU before it sends the second.
    partner: Option<(Sender<Order>, Box<Order>)>,
}

struct Report {
    number: u64,
    side: usize,
    latency_ns: Option<f64>,
    passes: u32,
    activity: Activity,
}

struct Worker {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

struct Open {
    pair: (usize, usize),
    table: Arc<Table>,
    reports: [Option<Report>; 2],
    due: Instant,
}

/// Threads on CPUs.
pub struct Threads {
    cpus: Vec<usize>,
    workers: Vec<Worker>,
    reports: Receiver<Report>,
    open: HashMap<u64, Open>,
    next: u64,
    started: Instant,
    own_line_ns: f64,
    most_busy: usize,
}

impl Threads {
    /// Starts a real-time thread on each of these CPUs; CPUs that cannot be used are left out. For a machine that has
    /// nothing else to do: the probe keeps all CPUs busy at a time.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn on(cpus: &[usize]) -> Result<Self, ProbeError> {
        Self::start(cpus, sys::Policy::RealTime, cpus.len())
    }

    /// Likewise, for a machine that has other work: ordinary threads of nice -20 that keep at most half of the CPUs
    /// busy at a time (of two or three CPUs two: a pair is the minimum).
    ///
    /// # Errors
    /// No thread could be started.
    pub fn beside_work(cpus: &[usize]) -> Result<Self, ProbeError> {
        Self::start(cpus, sys::Policy::First, (cpus.len() / 2).max(2))
    }

    fn start(cpus: &[usize], policy: sys::Policy, most_busy: usize) -> Result<Self, ProbeError> {
        let started = Instant::now();
        let (results, reports) = channel();
        let (ready, arrivals) = channel();
        let mut workers = HashMap::new();
        let mut last_error = None;
        for &cpu in cpus {
            let (orders, inbox) = channel::<Order>();
            let (results, ready) = (results.clone(), ready.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("vtop/{cpu}"))
                .stack_size(128 * 1024)
                .spawn(move || {
                    let pinned = sys::pin_to(cpu);
                    let usable = pinned.is_ok();
                    // Without the privilege the probe is slower on a busy guest, but not wrong.
                    let _ = sys::set_policy(policy);
                    let asked_for = ready.send((cpu, pinned)).is_ok();
                    // The receiver of arrivals waits until all senders are dropped.
                    drop(ready);
                    if !asked_for || !usable {
                        return;
                    }
                    while let Ok(mut order) = inbox.recv() {
                        if let Some((partner, order)) = order.partner.take() {
                            // A partner that has ended does not report; the errand ends at its limit.
                            let _ = partner.send(*order);
                        }
                        let mut report = pass(&order, started);
                        if !sys::is_on(cpu) {
                            // If the CPU went offline meanwhile, the measurements are those of another CPU.
                            report = Report {
                                latency_ns: None,
                                passes: 0,
                                activity: Activity::default(),
                                ..report
                            };
                        }
                        if results.send(report).is_err() {
                            return;
                        }
                    }
                });
            match spawned {
                Ok(thread) => {
                    workers.insert(cpu, Worker { orders: Some(orders), thread: Some(thread) });
                }
                Err(error) => last_error = Some(ProbeError::Thread(error)),
            }
        }
        drop(ready);
        let mut usable = Vec::new();
        for (cpu, pinned) in arrivals {
            match pinned {
                Ok(()) => usable.push(cpu),
                Err(error) => last_error = Some(ProbeError::Cpu { cpu, error }),
            }
        }
        usable.sort_unstable();
        if let (true, Some(error)) = (usable.is_empty(), last_error) {
            return Err(error);
        }
        let workers = usable.iter().filter_map(|cpu| workers.remove(cpu)).collect();
        Ok(Self {
            cpus: usable,
            workers,
            reports,
            open: HashMap::new(),
            next: 0,
            started,
            own_line_ns: own_line_ns(),
            most_busy,
        })
    }

    fn end(&mut self, number: u64) -> Option<Outcome> {
        let open = self.open.remove(&number)?;
        let mut outcome = Outcome { pair: open.pair, ..Outcome::default() };
        for report in open.reports.into_iter().flatten() {
            outcome.passes += report.passes;
            // Both sides time the same passes; the smaller time was disturbed less.
            outcome.latency_ns = match (outcome.latency_ns, report.latency_ns) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            outcome.activity[report.side] = report.activity;
        }
        Some(outcome)
    }
}

impl Machine for Threads {
    fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    fn now_ns(&self) -> u64 {
        ns_since(self.started)
    }

    fn start(&mut self, errand: Errand) {
        let table = Arc::new(Table::default());
        let number = self.next;
        self.next += 1;
        let order = |side| Order {
            number,
            side,
            table: Arc::clone(&table),
            passes: errand.passes,
            limit_ns: errand.limit_ns,
            partner: None,
        };
        let inbox = |index: usize| self.workers.get(index).and_then(|worker| worker.orders.clone());
        if let (Some(one), Some(other)) = (inbox(errand.pair.0), inbox(errand.pair.1)) {
            let _ = one.send(Order { partner: Some((other, Box::new(order(1)))), ..order(0) });
        }
        let due = Instant::now() + Duration::from_nanos(errand.limit_ns) + PATIENCE;
        self.open.insert(number, Open { pair: errand.pair, table, reports: [None, None], due });
    }

    fn wait(&mut self) -> Option<Outcome> {
        loop {
            let (&number, soonest) = self.open.iter().min_by_key(|(_, open)| open.due)?;
            let left = soonest.due.saturating_duration_since(Instant::now());
            match self.reports.recv_timeout(left) {
                Ok(report) => {
                    let number = report.number;
                    let Some(open) = self.open.get_mut(&number) else { continue };
                    // The partner need not continue alone.
                    open.table.over.0.store(true, Ordering::Relaxed);
                    let side = report.side;
                    open.reports[side] = Some(report);
                    if open.reports.iter().all(Option::is_some) {
                        return self.end(number);
                    }
                }
                // One side has not run at all: only the other side's report exists.
                Err(_) => {
                    if let Some(open) = self.open.get(&number) {
                        open.table.over.0.store(true, Ordering::Relaxed);
                    }
                    return self.end(number);
                }
            }
        }
    }

    fn own_line_ns(&self) -> f64 {
        self.own_line_ns
    }

    fn most_busy(&self) -> usize {
        self.most_busy
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for open in self.open.values() {
            open.table.over.0.store(true, Ordering::Relaxed);
        }
        for worker in &mut self.workers {
            worker.orders = None;
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // The thread does nothing that could panic.
                let _ = thread.join();
            }
        }
    }
}

fn ns_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One side of an errand.
fn pass(order: &Order, started: Instant) -> Report {
    let line = &order.table.line.0;
    let begin = ns_since(started);
    let (mut awake_since, mut last) = (begin, begin);
    let mut activity = Activity::default();
    let mut batch_from: Option<u64> = None;
    let mut passes = 0;
    let mut least = f64::INFINITY;
    let side = order.side as u32;
    loop {
        let mut stamp = false;
        for _ in 0..LOOKS {
            // No PAUSE instruction: hypervisors deschedule a vCPU that executes many of them (PAUSE-loop exits).
            if line.load(Ordering::Acquire) & 1 == side {
                line.fetch_add(1, Ordering::AcqRel);
                passes += 1;
                if passes % BATCH == 0 {
                    stamp = true;
                    break;
                }
            }
        }
        let now = ns_since(started);
        if now - last > AWAY_NS {
            activity.add(awake_since, last);
            awake_since = now;
            batch_from = None;
        }
        last = now;
        if stamp {
            if let Some(from) = batch_from {
                least = least.min((now - from) as f64 / f64::from(2 * BATCH));
            }
            batch_from = Some(now);
        }
        if passes >= order.passes / 2
            || now - begin >= order.limit_ns
            || order.table.over.0.load(Ordering::Relaxed)
        {
            break;
        }
    }
    order.table.over.0.store(true, Ordering::Relaxed);
    activity.add(awake_since, last);
    Report {
        number: order.number,
        side: order.side,
        latency_ns: least.is_finite().then_some(least),
        passes,
        activity,
    }
}

/// Minimum time of an atomic addition to a line that no other CPU uses, ns.
fn own_line_ns() -> f64 {
    const OPERATIONS: u32 = 2000;
    let line = Line::default();
    (0..5)
        .map(|_| {
            let from = Instant::now();
            for _ in 0..OPERATIONS {
                black_box(line.0.fetch_add(1, Ordering::AcqRel));
            }
            from.elapsed().as_nanos() as f64 / f64::from(OPERATIONS)
        })
        .fold(f64::INFINITY, f64::min)
}
