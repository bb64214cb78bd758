//! Monitoring: statistics on the socket and metrics over HTTP, from the start of the daemon to its end.
//! The scheduler is loaded and unloaded meanwhile. Counters continue from where the previous load left
//! them, and requests are answered also while nothing is loaded.

use crate::exporter::Exporter;
use crate::report::Report;
use crate::server::{self, Answer, Ask, Orders, Server};
use crate::DaemonError;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Socket, exporter, and the counters of earlier loads.
pub struct Monitoring<O: Send + Sync + 'static, R: Report> {
    server: Server<O, R>,
    exporter: Option<Exporter<R>>,
    /// Counters of all loads that have ended.
    ended: R,
}

impl<O: Send + Sync + 'static, R: Report> Monitoring<O, R> {
    /// Begins to answer; `metrics`: where to serve metrics, if anywhere, which `render` writes.
    ///
    /// # Errors
    /// The address or the socket cannot be used.
    pub(crate) fn start(
        metrics: Option<SocketAddr>,
        orders: Orders<O>,
        render: fn(&R) -> String,
        socket: &Path,
    ) -> Result<Self, DaemonError> {
        let exporter = metrics.map(|addr| Exporter::start(addr, render)).transpose()?;
        Ok(Self { server: server::start(orders, socket)?, exporter, ended: R::default() })
    }

    /// Totals over all loads, from those of the present one.
    pub(crate) fn totals(&self, of_this_load: &R) -> R {
        of_this_load.after(&self.ended)
    }

    /// Does anybody read metrics?
    pub(crate) fn exports(&self) -> bool {
        self.exporter.is_some()
    }

    /// New totals of the present load, for the metrics.
    pub(crate) fn update(&self, of_this_load: &R) {
        if let Some(exporter) = &self.exporter {
            exporter.update(self.totals(of_this_load));
        }
    }

    /// A load has ended with these totals.
    pub(crate) fn unloaded(&mut self, of_that_load: &R) {
        self.ended = self.totals(of_that_load).unloaded();
        if let Some(exporter) = &self.exporter {
            exporter.update(self.ended.clone());
        }
    }

    /// Waits for a request, at most for `timeout`.
    pub(crate) fn question(&self, timeout: Duration) -> Option<Ask<O>> {
        self.server.channels().1.recv_timeout(timeout).ok()
    }

    /// Answers it. The client may be gone; nothing is lost by that.
    pub(crate) fn answer(&self, answer: Answer<R>) {
        let _ = self.server.channels().0.send(answer);
    }

    /// Answers requests until `until` while nothing is loaded.
    pub fn answer_unloaded(&self, until: Instant) {
        let unloaded = || DaemonError::Unloaded { side: R::SIDE };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.question(left) {
                Some(Ask::Stats) => self.answer(Answer::Stats(Box::new(self.ended.clone()))),
                Some(Ask::Order(_)) => self.answer(Answer::Order(Err(unloaded().into()))),
                Some(Ask::Trace(_)) => self.answer(Answer::Trace(Err(unloaded()))),
                None if left.is_zero() => return,
                // The server's threads are gone, or the time is over: either way there is nothing to
                // answer before `until`.
                None => std::thread::sleep(until.saturating_duration_since(Instant::now())),
            }
        }
    }
}
