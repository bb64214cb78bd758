//! tandem-result.
