//! `requests`: an open-loop request server.
//!
//! A dispatcher hands out requests at times drawn in advance from a seeded Poisson process; workers serve them. Latency
//! counts from the *intended* arrival: a late dispatcher or worker does not make the clock start late (no coordinated
//! omission). The service is counted work, so every arm of an experiment serves the same requests.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{ensure, Result};
use clap::{Parser, ValueEnum};
use serde_json::{json, Value};

use crate::arguments::{self, MAX_THREADS};
use crate::counted_work::{work, RateArg};
use crate::histogram::Histogram;
use crate::queue::{Polled, Queue};
use crate::random::Stream;
use crate::{crew, sys};

/// Bounds memory and run time of an overloaded run.
const MAX_REQUESTS: f64 = 20_000_000.0;

/// Exponential service times are cut off here, in multiples of the mean: one request in 10^8 would be longer.
const MAX_SERVICE_FACTOR: f64 = 18.0;

/// Distribution of the service time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Distribution {
    /// Exponential
    Exp,
    /// The same for every request
    Fixed,
}

/// Arguments of `requests`.
#[derive(Parser)]
pub struct Args {
    /// Number of worker threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Mean arrivals per second, over all workers
    #[arg(long, default_value = "200", value_parser = arguments::rate)]
    rate: f64,
    /// Mean service of a request in microseconds of undisturbed CPU time
    #[arg(long, default_value = "1000", value_parser = arguments::microseconds)]
    service_us: f64,
    /// Distribution of the service
    #[arg(long, value_enum, default_value = "exp")]
    dist: Distribution,
    /// Duration of the arrivals in seconds
    #[arg(long, default_value = "3", value_parser = arguments::seconds)]
    secs: f64,
    /// Seed of arrivals and services
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    work_rate: RateArg,
    /// Time limit after the last arrival to finish the offered requests, in seconds [default: as --secs]
    #[arg(long, value_parser = arguments::seconds)]
    drain_secs: Option<f64>,
    /// Workers poll the queue instead of sleeping until there is a request
    #[arg(long)]
    spin_check: bool,
}

/// One request on its way to a worker.
#[derive(Clone, Copy)]
struct Request {
    intended_ns: u64,
    iters: u64,
}

struct Server {
    queue: Queue<Request>,
    arrivals: Stream,
    services: Stream,
    mean_gap_ns: f64,
    mean_iters: f64,
    distribution: Distribution,
    arrivals_ns: u64,
    drain_ns: u64,
    in_service: AtomicU64,
}

/// Figures of one thread of the server.
struct Seen {
    offered: u64,
    undone: u64,
    dispatch: Histogram,
    latency: Histogram,
    queued: Histogram,
    service: Histogram,
}

impl Seen {
    fn new() -> Self {
        Seen {
            offered: 0,
            undone: 0,
            dispatch: Histogram::new(),
            latency: Histogram::new(),
            queued: Histogram::new(),
            service: Histogram::new(),
        }
    }

    fn merge(mut self, other: &Seen) -> Self {
        self.offered += other.offered;
        self.undone += other.undone;
        self.dispatch.merge(&other.dispatch);
        self.latency.merge(&other.latency);
        self.queued.merge(&other.queued);
        self.service.merge(&other.service);
        self
    }
}

pub fn run(args: &Args) -> Result<Value> {
    ensure!(
        args.rate * args.secs <= MAX_REQUESTS,
        "--rate {} for --secs {} is more than {MAX_REQUESTS} requests",
        args.rate,
        args.secs
    );
    let rate = args.work_rate.measured();
    let server = Server {
        queue: Queue::new(usize::MAX),
        arrivals: Stream::new(args.seed, 0),
        services: Stream::new(args.seed, 1),
        mean_gap_ns: 1e9 / args.rate,
        mean_iters: args.service_us * rate.iters_per_us(),
        distribution: args.dist,
        arrivals_ns: (args.secs * 1e9) as u64,
        drain_ns: (args.drain_secs.unwrap_or(args.secs) * 1e9) as u64,
        in_service: AtomicU64::new(0),
    };
    // Thread 0 dispatches, the others serve.
    let body = |index, start_ns| match (index, args.spin_check) {
        (0, _) => server.dispatch(start_ns),
        (_, false) => server.serve(|| server.queue.pop()),
        (_, true) => server.serve(|| poll(&server.queue)),
    };
    let seen = crew::run_together("requests", args.threads as usize + 1, |_| Ok(()), body)?;
    let all = seen.iter().fold(Seen::new(), Seen::merge);
    let done = all.service.count();
    Ok(json!({
        "workload": "requests",
        "secs": args.secs,
        "threads": args.threads,
        "rate": args.rate,
        "asked_service_us": args.service_us,
        "iters_per_us": rate.in_report(),
        "offered": all.offered,
        "done": done,
        "undone": all.undone,
        "latency_us": all.latency.summary_us(),
        "queue_us": all.queued.summary_us(),
        "service_us": all.service.summary_us(),
        "dispatch_us": all.dispatch.summary_us(),
    }))
}

fn poll(queue: &Queue<Request>) -> Option<Request> {
    loop {
        match queue.try_pop() {
            Polled::Item(request) => return Some(request),
            Polled::Closed => return None,
            Polled::Empty => std::hint::spin_loop(),
        }
    }
}

impl Server {
    /// Offers the requests of the schedule, then waits until they are done or the time to drain is over.
    fn dispatch(&self, start_ns: u64) -> Seen {
        sys::set_exact_timers();
        let mut seen = Seen::new();
        let mut at_ns = 0.0;
        loop {
            at_ns += self.arrivals.exponential(seen.offered, self.mean_gap_ns);
            if at_ns >= self.arrivals_ns as f64 {
                break;
            }
            let intended_ns = start_ns + at_ns as u64;
            sys::sleep_until_ns(intended_ns);
            seen.dispatch.record(sys::now_ns().saturating_sub(intended_ns));
            self.in_service.fetch_add(1, Ordering::SeqCst);
            self.queue.push(Request { intended_ns, iters: self.iters_of(seen.offered) });
            seen.offered += 1;
        }
        let deadline_ns = start_ns + self.arrivals_ns + self.drain_ns;
        while self.in_service.load(Ordering::SeqCst) > 0 && sys::now_ns() < deadline_ns {
            sys::sleep_until_ns((sys::now_ns() + 5_000_000).min(deadline_ns));
        }
        // Requests that still wait count with the age that they have reached. Without them the tail would look shorter.
        let now_ns = sys::now_ns();
        for request in self.queue.close_and_drain() {
            seen.undone += 1;
            seen.latency.record(now_ns - request.intended_ns);
            seen.queued.record(now_ns - request.intended_ns);
        }
        seen
    }

    fn iters_of(&self, index: u64) -> u64 {
        let iters = match self.distribution {
            Distribution::Fixed => self.mean_iters,
            Distribution::Exp => {
                self.services.exponential(index, self.mean_iters).min(MAX_SERVICE_FACTOR * self.mean_iters)
            }
        };
        iters as u64
    }

    fn serve(&self, next: impl Fn() -> Option<Request>) -> Seen {
        let mut seen = Seen::new();
        while let Some(request) = next() {
            let begin_ns = sys::now_ns();
            work(request.iters);
            let end_ns = sys::now_ns();
            self.in_service.fetch_sub(1, Ordering::SeqCst);
            seen.latency.record(end_ns.saturating_sub(request.intended_ns));
            seen.queued.record(begin_ns.saturating_sub(request.intended_ns));
            seen.service.record(end_ns - begin_ns);
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(line: &str) -> Value {
        run(&Args::parse_from(std::iter::once("requests").chain(line.split_whitespace()))).unwrap()
    }

    #[test]
    fn everything_offered_is_done_and_accounted() {
        let report = report("--threads 2 --rate 400 --service-us 50 --secs 0.5 --seed 3 --drain-secs 20");
        let (offered, done) = (report["offered"].as_u64().unwrap(), report["done"].as_u64().unwrap());
        assert_eq!(offered, done);
        assert_eq!(report["undone"], 0);
        assert!((120..=280).contains(&offered), "Poisson with mean 200: {offered}");
        let mean = |what: &str| report[what]["mean"].as_f64().unwrap();
        assert!((mean("latency_us") - mean("queue_us") - mean("service_us")).abs() < 1.0, "{report}");
        for order in ["p50", "p90", "p95", "p99", "p99_9", "max"].windows(2) {
            assert!(report["latency_us"][order[0]].as_f64() <= report["latency_us"][order[1]].as_f64());
        }
    }

    #[test]
    fn same_seed_same_arrivals_other_seed_others() {
        let offered = |seed: u32| {
            let line =
                format!("--threads 1 --rate 3000 --service-us 1 --secs 0.1 --iters-per-us 1 --seed {seed}");
            report(&line)["offered"].as_u64().unwrap()
        };
        assert_eq!(offered(1), offered(1));
        assert_ne!((offered(1), offered(2)), (offered(3), offered(4)));
    }

    #[test]
    fn overload_is_counted_instead_of_hidden() {
        let report = report(
            "--threads 1 --rate 500 --service-us 20000 --iters-per-us 1000 --dist fixed --secs 0.2 --drain-secs 0.05 --spin-check",
        );
        assert!(report["undone"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(
            report["offered"].as_u64().unwrap(),
            report["done"].as_u64().unwrap() + report["undone"].as_u64().unwrap()
        );
        assert!(report["latency_us"]["p50"].as_f64().unwrap() > 50_000.0, "{report}");
    }
}
