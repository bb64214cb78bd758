//! What `tandem doctor` finds.

use serde::Serialize;

/// How good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As it should be.
    Good,
    /// Works; could be better, or is worth knowing.
    Note,
    /// Stands in the way.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub subject: &'static str,
    /// How good it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do; empty: nothing.
    pub advice: &'static str,
}
