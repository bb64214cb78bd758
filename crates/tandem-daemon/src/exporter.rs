//! Figures for Prometheus: OpenMetrics text over HTTP.

use crate::report::Report;
use crate::DaemonError;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a client may take, from its connection until it has read the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Clients that are served at a time; further ones are hung up on.
const CLIENTS_MOST: usize = 8;
/// Longest head of a request, bytes.
const HEAD_MOST: usize = 8192;
/// How long nobody is accepted after that has failed: there is no room for another open file, most likely.
const REST: Duration = Duration::from_millis(100);

/// Serves the latest figures until dropped. (Servers among the libraries have no time limits for clients, or bring a runtime of their own.)
pub struct Exporter<T> {
    addr: SocketAddr,
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<T> {
    latest: Mutex<T>,
    render: fn(&T) -> String,
    stops: AtomicBool,
    clients: AtomicUsize,
}

impl<T: Clone + Default + Send + 'static> Exporter<T> {
    /// Listens on `addr`; `render` makes OpenMetrics text of the figures.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn start(addr: SocketAddr, render: fn(&T) -> String) -> Result<Self, DaemonError> {
        let refused =
            |error: io::Error| DaemonError::Metrics { addr: addr.to_string(), reason: error.to_string() };
        let listener = TcpListener::bind(addr).map_err(refused)?;
        let addr = listener.local_addr().map_err(refused)?;
        let shared = Arc::new(Shared {
            latest: Mutex::new(T::default()),
            render,
            stops: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tandem-metrics".into())
            .spawn(move || serve(&listener, &serving))
            .map_err(DaemonError::Thread)?;
        Ok(Self { addr, shared, thread: Some(thread) })
    }

    /// The port that it listens on: the choice may have been left to the kernel.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Replaces the totals by newer ones.
    pub fn update(&self, totals: T) {
        *self.shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }
}

impl<T> Drop for Exporter<T> {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        let mut own = self.addr;
        match own {
            SocketAddr::V4(addr) if addr.ip().is_unspecified() => own.set_ip(Ipv4Addr::LOCALHOST.into()),
            SocketAddr::V6(addr) if addr.ip().is_unspecified() => own.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        // It waits for a client; without one it ends with the process.
        if TcpStream::connect_timeout(&own, PATIENCE).is_ok() {
            if let Some(thread) = self.thread.take() {
                // That thread has reported its panic itself.
                let _ = thread.join();
            }
        }
    }
}

fn serve<T: Clone + Send + 'static>(listener: &TcpListener, shared: &Arc<Shared<T>>) {
    loop {
        let client = listener.accept();
        if shared.stops.load(Ordering::Relaxed) {
            return;
        }
        let stream = match client {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::debug!("a client of the metrics could not be accepted: {error}");
                std::thread::sleep(REST);
                continue;
            }
        };
        if shared.clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MOST {
            shared.clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let serving = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("tandem-metrics".into()).spawn(move || {
            // It may have gone, or may be too slow: that is its own concern.
            let _ = answer(&stream, &serving);
            serving.clients.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            shared.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer<T: Clone>(mut stream: &TcpStream, shared: &Shared<T>) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let head = read_head(stream, until)?;
    let mut words = head.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, target.split('?').next().unwrap_or_default()) {
        ("GET" | "HEAD", "/metrics") => {
            let latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
            ("200 OK", CONTENT_TYPE, (shared.render)(&latest))
        }
        ("GET" | "HEAD", path) if path.starts_with('/') => {
            ("404 Not Found", "text/plain", "see /metrics\n".to_owned())
        }
        _ => ("400 Bad Request", "text/plain", "expected GET /metrics\n".to_owned()),
    };
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if method != "HEAD" {
        text.push_str(&body);
    }
    let mut left = text.as_bytes();
    while !left.is_empty() {
        stream.set_write_timeout(Some(time_left(until)?))?;
        let written = stream.write(left)?;
        left = left.get(written..).unwrap_or_default();
    }
    // Whoever hangs up on what was not read takes the answer back.
    stream.shutdown(Shutdown::Write)?;
    let mut rest = [0; 512];
    loop {
        stream.set_read_timeout(Some(time_left(until)?))?;
        if stream.read(&mut rest)? == 0 {
            return Ok(());
        }
    }
}

/// A request up to its empty line.
fn read_head(mut stream: &TcpStream, until: Instant) -> io::Result<String> {
    let mut head = Vec::new();
    let mut part = [0; 512];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(time_left(until)?))?;
        let length = stream.read(&mut part)?;
        head.extend_from_slice(part.get(..length).unwrap_or_default());
        if length == 0 || head.len() > HEAD_MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    // Zero would mean for ever.
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// The lines before the samples of a metric family, as OpenMetrics text. `unit`: empty if it has none.
pub fn head(text: &mut String, name: &str, kind: &str, unit: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if !unit.is_empty() {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {help}.");
}

/// A metric family that is declared more than once in a text, if any: readers refuse that. For the tests of both sides.
pub fn declared_twice(text: &str) -> Option<&str> {
    let mut names = std::collections::BTreeSet::new();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    families.into_iter().find(|name| !names.insert(*name))
}

/// The counters of a side, as OpenMetrics text.
pub fn counters<R: Report>(text: &mut String, values: &[u64]) {
    for ((name, help), value) in R::COUNTERS.iter().zip(values) {
        let name = format!("tandem_{}_{name}", R::SIDE);
        head(text, &name, "counter", "", help);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}_total {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exporter() -> Exporter<u64> {
        Exporter::start("127.0.0.1:0".parse().unwrap(), |figure| format!("tandem_figure_total {figure}\n"))
            .unwrap()
    }

    #[test]
    fn a_family_is_declared_once() {
        let text = "# TYPE a counter\na_total 1\n# TYPE b gauge\nb 1\n";
        assert_eq!(declared_twice(text), None);
        assert_eq!(declared_twice(&format!("{text}# TYPE a gauge\n")), Some("a"));
    }

    fn connect(exporter: &Exporter<u64>) -> TcpStream {
        TcpStream::connect(("127.0.0.1", exporter.port())).unwrap()
    }

    fn ask(exporter: &Exporter<u64>, request: &str) -> String {
        let mut stream = connect(exporter);
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_latest_figures_are_served_over_http() {
        let exporter = exporter();
        exporter.update(3);
        exporter.update(7);
        let answer = ask(&exporter, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\ntandem_figure_total 7\n"),
            "{answer}"
        );
        assert!(answer.contains("application/openmetrics-text"), "{answer}");
        assert!(answer.contains("Content-Length: 22\r\n"), "{answer}");
        let head = ask(&exporter, "HEAD /metrics?x=1 HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(&exporter, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        for bad in ["POST /metrics HTTP/1.1\r\n\r\n", "\r\n\r\n", "GET\r\n\r\n"] {
            assert!(ask(&exporter, bad).starts_with("HTTP/1.1 400"), "{bad:?}");
        }
        // Two at once: the first is answered, and the answer is not taken back.
        let twice = "GET /metrics HTTP/1.1\r\n\r\n".repeat(2);
        assert!(ask(&exporter, &twice).ends_with("tandem_figure_total 7\n"));
    }

    #[test]
    fn clients_that_say_nothing_or_too_much_are_in_nobodys_way() {
        let exporter = exporter();
        let silent: Vec<TcpStream> = (1..CLIENTS_MOST).map(|_| connect(&exporter)).collect();
        let mut endless = connect(&exporter);
        let many = "x".repeat(HEAD_MOST + 600);
        assert!(endless.write_all(many.as_bytes()).is_ok());
        assert_eq!(endless.read(&mut [0; 16]).unwrap_or(0), 0, "it is hung up on");
        assert!(ask(&exporter, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
        let started = Instant::now();
        drop(exporter);
        assert!(started.elapsed() < PATIENCE, "nobody is waited for");
        drop(silent);
    }

    #[test]
    fn an_address_in_use_is_refused_with_its_name() {
        let first = exporter();
        let addr = format!("127.0.0.1:{}", first.port());
        let render: fn(&u64) -> String = u64::to_string;
        let error = Exporter::start(addr.parse().unwrap(), render).err().unwrap();
        assert!(error.to_string().contains(&addr), "{error}");
    }
}
