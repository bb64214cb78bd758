//! What can go wrong in the lab.

use std::path::PathBuf;

/// Errors of the lab. Each is one line: what, where, what would be right.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An operation on a file failed.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// An experiment file is invalid.
    #[error("{origin}: {message}")]
    Experiment {
        /// File, or name of a built-in experiment.
        origin: String,
        /// What is wrong, with the line where it is known.
        message: String,
    },
    /// No such built-in experiment and no such file.
    #[error("no experiment {name:?}: give the path of a file, or one of: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Built-in experiments.
        known: String,
    },
    /// Downloading or unpacking failed.
    #[error("fetching {what} failed: {reason}")]
    Fetch {
        /// What was wanted.
        what: String,
        /// Why it failed.
        reason: String,
    },
    /// The machine's apt sources name no Debian mirror.
    #[error(
        "no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d: add one (deb URI SUITE main)"
    )]
    NoMirror,
    /// One of our own programs is missing.
    #[error("{path} is missing: build it first (make build), or set TANDEM_BIN_DIR", path = path.display())]
    NoBinary {
        /// Where it was expected.
        path: PathBuf,
    },
    /// The emulated machine failed, not the software on it.
    #[error("rig failure: {0}")]
    Rig(String),
    /// The software under test failed.
    #[error("{0}")]
    UnderTest(String),
    /// An agent refused a request.
    #[error("{target}: {message}")]
    Agent {
        /// Machine.
        target: String,
        /// The agent's message.
        message: String,
    },
    /// Interrupted by the user.
    #[error("interrupted")]
    Interrupted,
    /// A result could not be written.
    #[error(transparent)]
    Result(#[from] tandem_result::ResultError),
}

impl LabError {
    /// Makes an [`LabError::Io`] of an I/O error.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
