//! The observer, and what it saw in the last interval.

use crate::error::HostError;
use crate::figures::{between, Report, Snapshot};
use crate::metrics::Totals;
use crate::observe::Observer;
use crate::vms::Labels;
use libbpf_rs::OpenObject;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Watches VMs until it is dropped.
pub struct Watch<'a> {
    observer: Observer<'a>,
    earlier: Snapshot,
    labels: Labels,
}

impl<'a> Watch<'a> {
    /// Begins to watch; the first interval begins now. `exits`: count exits, too; `cost`: tell what watching costs.
    ///
    /// # Errors
    /// KVM is not there, the kernel lacks what is needed, or refuses.
    pub fn start(
        storage: &'a mut MaybeUninit<OpenObject>,
        exits: bool,
        cost: bool,
    ) -> Result<Self, HostError> {
        let mut observer = Observer::load(storage, exits, cost)?;
        observer.attach()?;
        log::info!("observing by {} hooks", observer.hooks());
        Ok(Self { earlier: observer.snapshot()?, observer, labels: Labels::default() })
    }

    /// Does it watch now?
    pub fn watches(&self) -> bool {
        self.observer.hooks() > 0
    }

    /// Watches no longer.
    pub fn pause(&mut self) {
        self.observer.detach();
    }

    /// Watches again; the first interval begins now.
    ///
    /// # Errors
    /// The kernel refuses, or the observer's maps cannot be read.
    pub fn resume(&mut self) -> Result<(), HostError> {
        self.observer.attach()?;
        self.earlier = self.observer.snapshot()?;
        Ok(())
    }

    /// An interval ends, and the next one begins: what came in it, and the totals.
    ///
    /// # Errors
    /// The observer's maps cannot be read.
    pub fn interval(&mut self) -> Result<(Report, Arc<Totals>), HostError> {
        let later = self.observer.snapshot()?;
        self.labels.update(&later.vms());
        let mut report = between(&self.earlier, &later, |pid| self.labels.of(pid));
        report.not_observed = self.observer.not_observed();
        let totals = Totals { snapshot: later.clone(), labels: self.labels.clone() };
        self.earlier = later;
        Ok((report, Arc::new(totals)))
    }
}
