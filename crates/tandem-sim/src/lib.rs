//! A simulator of two levels of scheduling: a host's kernel that schedules vCPUs, and in each guest a kernel that
//! schedules tasks on them. Discrete events, nanoseconds, deterministic.

pub mod catalog;
pub mod cost;
pub mod explore;
pub mod fair;
pub mod hardware;
pub mod machine;
pub mod ordered;
pub mod paper;
pub mod program;
pub mod queue;
pub mod random;
pub mod record;
pub mod runner;
pub mod scenario;
pub mod scx;
pub mod setup;
pub mod trace;
pub mod validation;
pub mod workload;

/// What can go wrong in a simulation.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SimError {
    /// It does not come to an end.
    #[error("{events} events at {at_ns} ns of simulated time: the budget is used up")]
    TooManyEvents {
        /// Simulated time.
        at_ns: u64,
        /// Budget.
        events: u64,
    },
    /// A rule of the simulator is broken.
    #[error("contradiction at {at_ns} ns: {what}")]
    Contradiction {
        /// Simulated time.
        at_ns: u64,
        /// Which.
        what: String,
    },
    /// One of these ended a run.
    #[error("{cause}{before}")]
    Run {
        /// Which.
        cause: Box<SimError>,
        /// The last switches before it, a line each.
        before: String,
    },
    /// The scenario cannot be.
    #[error("{0}")]
    Scenario(String),
}
