//! `echo-server` and `echo-client`: requests over UDP or vsock from another machine, each answered after some counted work.
//!
//! The client sends at times drawn in advance from a seeded Poisson process, whether or not earlier requests were answered, and counts
//! latency from the intended time. A request without an answer counts as lost.

use crate::arguments;
use crate::counted_work::{work, RateArg};
use crate::histogram::Histogram;
use crate::random::Stream;
use crate::sys;
use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};
use std::net::{SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request is its number; so is its answer.
const BYTES: usize = std::mem::size_of::<u64>();
/// How often a waiting thread looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(50);
const MAX_REQUESTS: f64 = 10_000_000.0;

/// Arguments of `echo-server`.
#[derive(Parser)]
pub struct ServerArgs {
    /// Port
    #[arg(long, default_value_t = 7000)]
    port: u16,
    /// Over vsock instead of UDP
    #[arg(long)]
    vsock: bool,
    /// Work per request in microseconds of undisturbed CPU time
    #[arg(long, default_value = "0", value_parser = service_us)]
    service_us: f64,
    #[command(flatten)]
    rate: RateArg,
}

/// Arguments of `echo-client`.
#[derive(Parser)]
pub struct ClientArgs {
    /// Address and port of the server; a guest's number on vsock, or 2 for the host
    #[arg(long, value_name = "ADDR:PORT|vsock:CID:PORT")]
    to: To,
    /// Mean requests per second
    #[arg(long, default_value = "40", value_parser = arguments::rate)]
    rate: f64,
    /// Duration of the requests in seconds
    #[arg(long, default_value = "5", value_parser = arguments::seconds)]
    secs: f64,
    /// Time limit for answers after the last request, in seconds
    #[arg(long, default_value = "2", value_parser = arguments::seconds)]
    drain_secs: f64,
    /// Seed of the times
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Where the server is.
#[derive(Debug, Clone, PartialEq)]
enum To {
    Udp(SocketAddr),
    Vsock { cid: u32, port: u32 },
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("vsock:") else {
            return text.parse().map(Self::Udp).map_err(|_| "expected ADDR:PORT or vsock:CID:PORT".into());
        };
        let parts =
            rest.split_once(':').and_then(|(cid, port)| Some((cid.parse().ok()?, port.parse().ok()?)));
        let (cid, port) = parts.ok_or("expected vsock:CID:PORT, two numbers")?;
        Ok(Self::Vsock { cid, port })
    }
}

impl To {
    /// A connected socket with messages. Those of vsock are sent and received as those of UDP are.
    fn connect(&self) -> Result<UdpSocket> {
        match self {
            Self::Udp(addr) => {
                let socket = UdpSocket::bind(("0.0.0.0", 0)).context("opening a UDP socket")?;
                socket.connect(addr).with_context(|| format!("no way to {addr}"))?;
                Ok(socket)
            }
            Self::Vsock { cid, port } => {
                let socket = sys::vsock_connect(*cid, *port);
                Ok(socket.with_context(|| format!("nobody answers on vsock {cid}, port {port}"))?.into())
            }
        }
    }
}

fn service_us(text: &str) -> Result<f64, String> {
    if text == "0" {
        return Ok(0.0);
    }
    arguments::microseconds(text)
}

/// Serves until it is killed.
pub fn serve(args: &ServerArgs) -> Result<Value> {
    let iters = if args.service_us > 0.0 { args.rate.measured().iters(args.service_us) } else { 0 };
    if args.vsock {
        return serve_vsock(args.port, iters);
    }
    let socket = UdpSocket::bind(("0.0.0.0", args.port))
        .with_context(|| format!("listening on UDP port {}", args.port))?;
    let mut bytes = [0; BYTES];
    loop {
        // A client that is gone is reported here on Linux; that is no reason to end.
        let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
        if length == BYTES {
            work(iters);
            let _ = socket.send_to(&bytes, from);
        }
    }
}

/// The same over vsock: one thread per connection.
fn serve_vsock(port: u16, iters: u64) -> Result<Value> {
    let listener =
        sys::vsock_listen(port.into()).with_context(|| format!("listening on vsock port {port}"))?;
    loop {
        let Ok(connection) = sys::accept(&listener) else { continue };
        std::thread::spawn(move || {
            let socket = UdpSocket::from(connection);
            let mut bytes = [0; BYTES];
            while matches!(socket.recv(&mut bytes), Ok(BYTES)) {
                work(iters);
                if socket.send(&bytes).is_err() {
                    break;
                }
            }
        });
    }
}

/// Intended times of the requests, in nanoseconds from the start.
fn schedule(args: &ClientArgs) -> Vec<u64> {
    let gaps = Stream::new(args.seed, 0);
    let mut at_ns = 0.0;
    let mut times = Vec::new();
    loop {
        at_ns += gaps.exponential(times.len() as u64, 1e9 / args.rate);
        if at_ns >= args.secs * 1e9 {
            return times;
        }
        times.push(at_ns as u64);
    }
}

/// Asks, and reports the latency of the answers.
pub fn ask(args: &ClientArgs) -> Result<Value> {
    ensure!(
        args.rate * args.secs <= MAX_REQUESTS,
        "--rate {} for --secs {} is more than {MAX_REQUESTS} requests",
        args.rate,
        args.secs
    );
    let socket = args.to.connect()?;
    socket.set_read_timeout(Some(PATIENCE)).context("setting a time limit")?;
    let times = schedule(args);
    let done = AtomicBool::new(false);
    let start_ns = sys::now_ns() + 1_000_000;
    let (latency, late) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&socket, &times, start_ns, &done));
        let mut late = Histogram::new();
        sys::set_exact_timers();
        for (number, at_ns) in times.iter().enumerate() {
            sys::sleep_until_ns(start_ns + at_ns);
            late.record(sys::now_ns().saturating_sub(start_ns + at_ns));
            // What is not sent is not answered, and so counts as lost.
            let _ = socket.send(&(number as u64).to_ne_bytes());
        }
        let deadline_ns = sys::now_ns() + (args.drain_secs * 1e9) as u64;
        while !receiver.is_finished() && sys::now_ns() < deadline_ns {
            std::thread::sleep(PATIENCE);
        }
        done.store(true, Ordering::Relaxed);
        (receiver.join(), late)
    });
    let latency = latency.map_err(|_| anyhow::anyhow!("the receiving thread ended early"))?;
    let sent = times.len() as u64;
    Ok(json!({
        "workload": "echo",
        "sent": sent,
        "lost": sent - latency.count(),
        "latency_us": latency.summary_us(),
        "sent_late_us": late.summary_us(),
    }))
}

/// Latency of each request that is answered, until all are or it is told to end.
fn receive(socket: &UdpSocket, times: &[u64], start_ns: u64, done: &AtomicBool) -> Histogram {
    let mut latency = Histogram::new();
    let mut answered = vec![false; times.len()];
    let mut bytes = [0; BYTES + 1];
    while latency.count() < times.len() as u64 && !done.load(Ordering::Relaxed) {
        let Ok(length) = socket.recv(&mut bytes) else { continue };
        let now_ns = sys::now_ns();
        let number = bytes[..BYTES].try_into().map(u64::from_ne_bytes).unwrap_or(u64::MAX);
        let Ok(number) = usize::try_from(number) else { continue };
        // Whoever answers twice, or with something else, is not believed.
        if length == BYTES && answered.get(number) == Some(&false) {
            answered[number] = true;
            latency.record(now_ns.saturating_sub(start_ns + times[number]));
        }
    }
    latency
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(line: &str) -> ClientArgs {
        ClientArgs::parse_from(std::iter::once("echo-client").chain(line.split_whitespace()))
    }

    /// Answers what `answer` makes of each request.
    fn server(answer: fn(u64) -> Vec<Vec<u8>>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; BYTES];
            while let Ok((_, from)) = socket.recv_from(&mut bytes) {
                for reply in answer(u64::from_ne_bytes(bytes)) {
                    socket.send_to(&reply, from).unwrap();
                }
            }
        });
        addr
    }

    #[test]
    fn what_is_answered_is_counted_once() {
        let addr = server(|number| vec![number.to_ne_bytes().to_vec(); 2]);
        let report = ask(&client(&format!("--to {addr} --rate 500 --secs 0.2 --drain-secs 5"))).unwrap();
        assert!(report["sent"].as_u64().unwrap() > 50, "{report}");
        assert_eq!(report["lost"], 0);
        assert!(report["latency_us"]["p50"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn no_answer_and_nonsense_are_losses() {
        let addr = server(|number| match number % 3 {
            0 => vec![number.to_ne_bytes().to_vec()],
            1 => vec![u64::MAX.to_ne_bytes().to_vec(), vec![1, 2]],
            _ => Vec::new(),
        });
        let report = ask(&client(&format!("--to {addr} --rate 500 --secs 0.2 --drain-secs 0.2"))).unwrap();
        let (sent, lost) = (report["sent"].as_u64().unwrap(), report["lost"].as_u64().unwrap());
        assert_eq!(lost, sent - sent.div_ceil(3), "{report}");
    }

    #[test]
    fn an_address_is_of_a_network_or_of_a_machine() {
        assert_eq!("vsock:3:7000".parse(), Ok(To::Vsock { cid: 3, port: 7000 }));
        assert_eq!("10.0.1.2:7000".parse(), Ok(To::Udp("10.0.1.2:7000".parse().unwrap())));
        for bad in ["vsock:3", "vsock:a:1", "vsock:3:4:5", "3:7000", "vsock:-1:2", ""] {
            assert!(bad.parse::<To>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn times_depend_on_the_seed_alone() {
        let times = |seed: u32| schedule(&client(&format!("--to 127.0.0.1:1 --secs 1 --seed {seed}")));
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
