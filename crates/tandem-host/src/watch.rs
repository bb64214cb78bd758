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
    /// Of the beginning of the interval; nothing while it looks which vCPUs there are.
    earlier: Option<Snapshot>,
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
        let mut watch = Self::load(storage, exits, cost)?;
        watch.resume()?;
        watch.interval(&mut Labels::default())?;
        Ok(watch)
    }

    /// Loads what watches, and does not watch yet.
    ///
    /// # Errors
    /// KVM is not there, the kernel lacks what is needed, or refuses.
    pub fn load(
        storage: &'a mut MaybeUninit<OpenObject>,
        exits: bool,
        cost: bool,
    ) -> Result<Self, HostError> {
        let observer = Observer::load(storage, exits, cost)?;
        Ok(Self { earlier: None, observer })
    }

    /// Does it watch now?
    pub fn watches(&self) -> bool {
        self.observer.hooks() > 0
    }

    /// Watches no longer.
    pub fn pause(&mut self) {
        self.observer.detach();
    }

    /// Begins to watch. Until the first interval begins it looks which vCPUs there are.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resume(&mut self) -> Result<(), HostError> {
        self.observer.attach()?;
        self.earlier = None;
        log::info!("observing by {} hooks", self.observer.hooks());
        Ok(())
    }

    /// An interval ends, and the next one begins: what came in it, and the totals. Nothing if none had begun since it was resumed. VMs that are
    /// not in `labels` get their names there.
    ///
    /// # Errors
    /// The observer's maps cannot be read.
    pub fn interval(&mut self, labels: &mut Labels) -> Result<Option<(Report, Arc<Totals>)>, HostError> {
        let mut later = self.observer.snapshot()?;
        let Some(earlier) = self.earlier.take() else {
            self.earlier = Some(later);
            self.observer.settle();
            return Ok(None);
        };
        later.not_below(&earlier);
        self.earlier = Some(later.clone());
        labels.add(&later.vms());
        let mut report = between(&earlier, &later, |pid| labels.of(pid));
        report.not_observed = self.observer.not_observed();
        let totals = Totals { snapshot: later, labels: labels.clone() };
        Ok(Some((report, Arc::new(totals))))
    }
}
