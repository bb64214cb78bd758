//! tandem-lab.
