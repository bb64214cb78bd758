//! The same figures for Prometheus: OpenMetrics text over HTTP.

use crate::stats::GuestStats;
use crate::GuestError;
use serde_json::Value;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tiny_http::{Header, Response, Server};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the latest figures until dropped.
pub(crate) struct Exporter {
    server: Arc<Server>,
    latest: Arc<Mutex<GuestStats>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens on `addr`.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(crate) fn start(addr: SocketAddr) -> Result<Self, GuestError> {
        let server = Server::http(addr)
            .map_err(|error| GuestError::Metrics { addr: addr.to_string(), reason: error.to_string() })?;
        let server = Arc::new(server);
        let latest = Arc::new(Mutex::new(GuestStats::default()));
        let (serving, shown) = (Arc::clone(&server), Arc::clone(&latest));
        let thread = std::thread::Builder::new()
            .name("tandem-metrics".into())
            .spawn(move || serve(&serving, &shown))
            .map_err(GuestError::Thread)?;
        Ok(Self { server, latest, thread: Some(thread) })
    }

    /// Where it listens: the port may have been left to the kernel.
    #[cfg(test)]
    fn port(&self) -> u16 {
        self.server.server_addr().to_ip().map_or(0, |addr| addr.port())
    }

    /// Puts newer totals in place.
    pub(crate) fn update(&self, totals: GuestStats) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported by itself.
            let _ = thread.join();
        }
    }
}

fn serve(server: &Server, latest: &Mutex<GuestStats>) {
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
        // The client may have gone.
        let _ = request.respond(response);
    }
}

/// OpenMetrics text. Counters are those of the statistics, with their descriptions, so that nothing has
/// to be kept in step by hand.
pub(crate) fn render(stats: &GuestStats) -> String {
    use scx_stats::prelude::*;
    let mut text = String::new();
    let values = serde_json::to_value(stats).unwrap_or(Value::Null);
    for (name, field) in &GuestStats::meta().fields {
        let Some(value) = values[name].as_u64() else { continue };
        let help = field.attrs.desc.as_deref().unwrap_or("");
        let name = format!("tandem_guest_{name}");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# TYPE {name} counter\n# HELP {name} {help}.\n{name}_total {value}");
    }
    let now = &stats.now;
    for (name, help, value) in [
        ("tasks", "Tasks that wait or run", now.tasks as f64),
        ("cpu_bound_tasks", "Of these, those that balancing counts", now.hogs as f64),
        ("cpu_bound_weight", "Effective weight of those", now.hog_weight),
        ("task_weight", "Their effective weight; 1 is nice 0 outside of all groups", now.weight),
        ("cgroups", "Cgroups with a record of their own", now.groups as f64),
        ("cgroups_shared", "Cgroups that share their parent's record", now.groups_shared as f64),
        ("cgroups_limited", "Cgroups with a quota", now.limits as f64),
    ] {
        let _ = writeln!(
            text,
            "# TYPE tandem_guest_{name} gauge\n# HELP tandem_guest_{name} {help}.\ntandem_guest_{name} {value}"
        );
    }
    for (name, unit, help, of) in [
        ("share", "ratio", "Share of a pCPU that the vCPU gets when it has work", 0),
        ("absence", "seconds", "Mean length of an absence of the vCPU", 1),
    ] {
        let name = format!("tandem_guest_vcpu_{name}_{unit}");
        let _ = writeln!(text, "# TYPE {name} gauge\n# UNIT {name} {unit}\n# HELP {name} {help}.");
        for (cpu, vcpu) in stats.vcpus.iter().filter(|(_, vcpu)| vcpu.age_ms >= 0.0) {
            let value = if of == 0 { vcpu.share } else { vcpu.inactive_mean_us / 1e6 };
            let _ = writeln!(text, "{name}{{cpu=\"{cpu}\"}} {value}");
        }
    }
    text.push_str("# EOF\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::VcpuStats;
    use std::io::{Read, Write};

    fn figures() -> GuestStats {
        let mut stats = GuestStats { pulled: 7, ..Default::default() };
        stats.vcpus.insert(
            0,
            VcpuStats { share: 0.5, inactive_mean_us: 1500.0, age_ms: 10.0, ..Default::default() },
        );
        stats
            .vcpus
            .insert(1, VcpuStats { share: 0.0, inactive_mean_us: 0.0, age_ms: -1.0, ..Default::default() });
        stats
    }

    #[test]
    fn counters_and_vcpus_are_rendered_and_unknown_ones_left_out() {
        let text = render(&figures());
        assert!(text.contains("# TYPE tandem_guest_pulled counter\n"), "{text}");
        assert!(text.contains("\ntandem_guest_pulled_total 7\n"), "{text}");
        assert!(text.contains("tandem_guest_vcpu_share_ratio{cpu=\"0\"} 0.5\n"), "{text}");
        assert!(text.contains("tandem_guest_vcpu_absence_seconds{cpu=\"0\"} 0.0015\n"), "{text}");
        assert!(!text.contains("cpu=\"1\""), "{text}");
        assert!(text.ends_with("# EOF\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let value = line.rsplit(' ').next().unwrap_or("");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn figures_are_served_over_http() {
        let exporter = Exporter::start("127.0.0.1:0".parse().unwrap()).unwrap();
        exporter.update(figures());
        let get = |path: &str| {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", exporter.port())).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let answer = get("/metrics");
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("tandem_guest_pulled_total 7"),
            "{answer}"
        );
        assert!(get("/").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn an_address_in_use_is_refused_with_its_name() {
        let first = Exporter::start("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = format!("127.0.0.1:{}", first.port());
        let error = Exporter::start(addr.parse().unwrap()).err().unwrap();
        assert!(error.to_string().contains(&addr), "{error}");
    }
}
