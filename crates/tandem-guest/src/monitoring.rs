//! Monitoring: statistics on the socket and metrics over HTTP, from the start of the daemon to its end.
//! The scheduler is loaded and unloaded meanwhile. Counters continue from where the previous load left
//! them, and requests are answered also while nothing is loaded.

use crate::metrics;
use crate::server::{self, Answer, Ask, Server};
use crate::stats::{GuestStats, Moment};
use crate::GuestError;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tandem_daemon::exporter::Exporter;

/// Socket, exporter, and the counters of earlier loads.
pub(crate) struct Monitoring {
    server: Server,
    exporter: Option<Exporter<GuestStats>>,
    /// Counters of all loads that have ended.
    ended: GuestStats,
}

impl Monitoring {
    /// Begins to answer; `metrics`: where to serve metrics, if anywhere.
    ///
    /// # Errors
    /// The address or the socket cannot be used.
    pub(crate) fn start(metrics: Option<SocketAddr>) -> Result<Self, GuestError> {
        let exporter = metrics.map(|addr| Exporter::start(addr, metrics::render)).transpose()?;
        Ok(Self { server: server::start()?, exporter, ended: GuestStats::default() })
    }

    /// Totals over all loads, from those of the present one.
    pub(crate) fn totals(&self, of_this_load: &GuestStats) -> GuestStats {
        of_this_load.after(&self.ended)
    }

    /// New totals of the present load, for the metrics.
    pub(crate) fn update(&self, of_this_load: &GuestStats) {
        if let Some(exporter) = &self.exporter {
            exporter.update(self.totals(of_this_load));
        }
    }

    /// A load has ended with these totals.
    pub(crate) fn unloaded(&mut self, of_that_load: &GuestStats) {
        let totals = self.totals(of_that_load);
        self.ended = GuestStats { now: Moment::default(), vcpus: BTreeMap::new(), ..totals };
        if let Some(exporter) = &self.exporter {
            exporter.update(self.ended.clone());
        }
    }

    /// Waits for a request, at most for `timeout`.
    pub(crate) fn question(&self, timeout: Duration) -> Option<Ask> {
        self.server.channels().1.recv_timeout(timeout).ok()
    }

    /// Answers it. The client may be gone; nothing is lost by that.
    pub(crate) fn answer(&self, answer: Answer) {
        let _ = self.server.channels().0.send(answer);
    }

    /// Answers requests until `until` while nothing is loaded.
    pub(crate) fn answer_unloaded(&self, until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.question(left) {
                Some(Ask::Stats) => self.answer(Answer::Stats(Box::new(self.ended.clone()))),
                Some(Ask::Park(_)) => self.answer(Answer::Park(Err(GuestError::SteppedBack))),
                Some(Ask::Trace(_)) => self.answer(Answer::Trace(Err(GuestError::SteppedBack))),
                None if left.is_zero() => return,
                // The server's threads are gone, or the time is over: either way there is nothing to
                // answer before `until`.
                None => std::thread::sleep(until.saturating_duration_since(Instant::now())),
            }
        }
    }
}
