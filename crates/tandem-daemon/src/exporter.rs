//! Figures for Prometheus: OpenMetrics text over HTTP.

use crate::report::Report;
use crate::DaemonError;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tiny_http::{Header, Response, Server};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the latest figures until dropped.
pub struct Exporter<T> {
    server: Arc<Server>,
    latest: Arc<Mutex<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Clone + Default + Send + 'static> Exporter<T> {
    /// Listens on `addr`; `render` makes OpenMetrics text of the figures.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn start(addr: SocketAddr, render: fn(&T) -> String) -> Result<Self, DaemonError> {
        let server = Server::http(addr)
            .map_err(|error| DaemonError::Metrics { addr: addr.to_string(), reason: error.to_string() })?;
        let server = Arc::new(server);
        let latest = Arc::new(Mutex::new(T::default()));
        let (serving, shown) = (Arc::clone(&server), Arc::clone(&latest));
        let thread = std::thread::Builder::new()
            .name("tandem-metrics".into())
            .spawn(move || serve(&serving, &shown, render))
            .map_err(DaemonError::Thread)?;
        Ok(Self { server, latest, thread: Some(thread) })
    }

    /// The port that it listens on: the choice may have been left to the kernel.
    pub fn port(&self) -> u16 {
        self.server.server_addr().to_ip().map_or(0, |addr| addr.port())
    }

    /// Replaces the totals by newer ones.
    pub fn update(&self, totals: T) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }
}

impl<T> Drop for Exporter<T> {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // That thread has reported its panic itself.
            let _ = thread.join();
        }
    }
}

fn serve<T: Clone>(server: &Server, latest: &Mutex<T>, render: fn(&T) -> String) {
    for request in server.incoming_requests() {
        let response = if request.url().split('?').next() == Some("/metrics") {
            let stats = latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let response = Response::from_string(render(&stats));
            match Header::from_bytes("Content-Type", CONTENT_TYPE) {
                Ok(header) => response.with_header(header),
                Err(()) => response,
            }
        } else {
            Response::from_string("see /metrics\n").with_status_code(404)
        };
        // The client may be gone.
        let _ = request.respond(response);
    }
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
    use std::io::{Read, Write as _};

    fn exporter() -> Exporter<u64> {
        Exporter::start("127.0.0.1:0".parse().unwrap(), |figure| format!("tandem_figure_total {figure}\n"))
            .unwrap()
    }

    #[test]
    fn the_latest_figures_are_served_over_http() {
        let exporter = exporter();
        exporter.update(3);
        exporter.update(7);
        let get = |path: &str| {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", exporter.port())).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let answer = get("/metrics");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("tandem_figure_total 7"), "{answer}");
        assert!(answer.contains("application/openmetrics-text"), "{answer}");
        assert!(get("/").starts_with("HTTP/1.1 404"));
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
