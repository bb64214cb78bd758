//! tandem-agent.
