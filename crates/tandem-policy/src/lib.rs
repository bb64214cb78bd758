//! tandem-policy.
