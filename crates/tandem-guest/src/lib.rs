//! tandem-guest.
