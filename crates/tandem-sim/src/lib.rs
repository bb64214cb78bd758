//! A simulator of two-level scheduling: the host's kernel schedules vCPUs, and each guest's kernel schedules tasks
//! on them. Discrete events, nanoseconds, deterministic.

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
    /// The run exceeds its budget of events.
    #[error("{events} events at {at_ns} ns of simulated time: the budget is used up")]
    TooManyEvents {
        /// Simulated time.
        at_ns: u64,
        /// The budget.
        events: u64,
    },
    /// A rule of the simulator, or of the kernel towards a policy, is violated.
    #[error("contradiction at {at_ns} ns: {what}")]
    Contradiction {
        /// Simulated time.
        at_ns: u64,
        /// The rule and how it is violated.
        what: String,
    },
    /// One of the other errors ended a run.
    #[error("{cause}{before}")]
    Run {
        /// That error.
        cause: Box<SimError>,
        /// The last context switches before it, one per line.
        before: String,
    },
    /// The scenario is invalid.
    #[error("{0}")]
    Scenario(String),
}
