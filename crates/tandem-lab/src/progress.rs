//! Progress on standard error: one live line on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// A line that shows how far a run is.
pub struct Progress {
    name: String,
    started: Instant,
    live: bool,
}

impl Progress {
    /// Progress of a run that starts now.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_string(), started: Instant::now(), live: std::io::stderr().is_terminal() }
    }

    /// Shows the current step.
    pub fn step(&self, what: &str) {
        let seconds = self.started.elapsed().as_secs();
        let line = format!("[{seconds:4}s] {}: {what}", self.name);
        let mut err = std::io::stderr().lock();
        // Progress that cannot be shown does not end the run.
        let _ = if self.live {
            write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush())
        } else {
            writeln!(err, "{line}")
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.live {
            eprintln!();
        }
    }
}

/// Prints one plain line.
pub fn note(text: &str) {
    eprintln!("{text}");
}
