//! Errors of result files and of sets of samples.

use std::path::PathBuf;

/// A result that could not be read or written, or is not valid.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file in question.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is larger than any result that Tandem writes.
    #[error("{path}: {bytes} bytes; a result file has at most {limit} bytes")]
    TooLarge {
        /// The file in question.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The maximum size, in bytes.
        limit: u64,
    },
    /// The text is not JSON of the expected shape.
    #[error("not a {schema} document: {source}", schema = crate::SCHEMA)]
    Json {
        /// Line, column and expectation, as the JSON reader reports them.
        #[from]
        source: serde_json::Error,
    },
    /// The document names another schema, or none.
    #[error("schema is {found}; this program reads \"{expected}\"", expected = crate::SCHEMA)]
    Schema {
        /// The value found, already quoted, or the word `missing`.
        found: String,
    },
    /// The document is well-formed but contradicts itself.
    #[error("{place}: {problem}")]
    Invalid {
        /// Which field, e.g. `metrics["requests p95"].samples["tandem"][3]`.
        place: String,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// An error inside a file, with the file's name in front.
    #[error("{path}: {source}")]
    InFile {
        /// The file in question.
        path: PathBuf,
        /// The error inside it.
        source: Box<ResultError>,
    },
}

/// Samples from which no ratio with an interval can be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatsError {
    /// One side has too few samples for a 95 % interval of a median to exist.
    #[error("{side} has {have} samples; a 95 % interval needs at least {need}")]
    TooFew {
        /// `baseline` or `arm`.
        side: &'static str,
        /// Number of samples there.
        have: usize,
        /// Number of samples needed.
        need: usize,
    },
    /// A sample is NaN or infinite.
    #[error("{side} holds {value}, which is not a finite number")]
    NotFinite {
        /// `baseline` or `arm`.
        side: &'static str,
        /// The offending sample.
        value: f64,
    },
    /// A sample is outside the domain of a ratio: the baseline must be above 0, the arm not below 0.
    #[error("{side} holds {value}; a ratio needs a baseline above 0 and an arm of at least 0")]
    OutOfDomain {
        /// `baseline` or `arm`.
        side: &'static str,
        /// The offending sample.
        value: f64,
    },
    /// The ratio is beyond what a double can hold.
    #[error("the ratio of the samples is not representable")]
    Overflow,
}
