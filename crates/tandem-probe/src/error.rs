//! What can go wrong.

use thiserror::Error;

/// A probe that failed. Each message is one line: what, where, what would be right.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// Too few CPUs for a topology.
    #[error("{0} CPU to probe; a topology needs at least two")]
    TooFew(usize),
    /// A thread could not be started.
    #[error("starting a probe thread: {0}")]
    Thread(std::io::Error),
    /// A CPU went offline, or the affinity mask excludes it.
    #[error("CPU {cpu} cannot be used: {error}")]
    Cpu {
        /// Its number.
        cpu: usize,
        /// The kernel's error.
        error: std::io::Error,
    },
}
