//! The vCPU limit (`tandem_policy::limit`), at work: measures what all vCPUs together get, and parks those that are too
//! many.

use crate::accounts;
use crate::bpf::{intf, GuestSkel};
use crate::domains::Domains;
use crate::model::VcpuFacts;
use crate::{park, GuestError};
use std::time::{Duration, Instant};
use tandem_policy::limit::{Sums, VcpuLimit, Window};

/// See the module.
pub(crate) struct Limiter {
    domains: Domains,
    limit: VcpuLimit,
    /// vCPUs that are out of use.
    parked: Vec<usize>,
    /// Beginning of its time.
    began: Instant,
}

impl Limiter {
    pub(crate) fn new(domains: Domains) -> Self {
        Self { domains, limit: VcpuLimit::default(), parked: Vec::new(), began: Instant::now() }
    }

    /// Another topology was found. Failed trials do not count any more: other vCPUs would be chosen now.
    /// A limit that was found to be enough stays.
    pub(crate) fn learn(&mut self, skel: &GuestSkel<'_>, domains: Domains) -> Result<(), GuestError> {
        self.domains = domains;
        if self.limit.is_found() {
            return Ok(());
        }
        self.start_again(skel)
    }

    /// A window is over. Returns the length of the next one. `probes`: number of probes that have begun plus those
    /// that have ended.
    pub(crate) fn step(
        &mut self,
        skel: &GuestSkel<'_>,
        facts: &[VcpuFacts],
        now: Instant,
        probes: u64,
    ) -> Result<Duration, GuestError> {
        let usable: Vec<usize> = facts.iter().filter(|fact| is_usable(fact)).map(|fact| fact.cpu).collect();
        let domains = &self.domains;
        let next = self.limit.window_ends(&Window {
            now_ns: u64::try_from((now - self.began).as_nanos()).unwrap_or(u64::MAX),
            usable: &usable,
            // For two vCPUs the ban of a straggler is enough.
            sums: (usable.len() > 2).then(|| sums(facts)).flatten(),
            probes,
            first_of_stack: &|cpu, among| domains.first_of_stack(cpu, among),
        });
        if let Some(choice) = next.choice.filter(|choice| choice.too_many != self.parked) {
            let used = usable.len() - choice.too_many.len();
            log::debug!(
                "{:.1} vCPUs busy, {:.1} pCPUs got: using {used} of {}",
                choice.busy,
                choice.got,
                usable.len()
            );
            self.park_only(skel, choice.too_many)?;
        }
        Ok(Duration::from_nanos(next.window_ns))
    }

    /// All vCPUs are in use again, and what was found is discarded.
    pub(crate) fn start_again(&mut self, skel: &GuestSkel<'_>) -> Result<(), GuestError> {
        self.limit.start_again();
        self.park_only(skel, Vec::new())
    }

    /// Parks these vCPUs, and unparks all others.
    fn park_only(&mut self, skel: &GuestSkel<'_>, too_many: Vec<usize>) -> Result<(), GuestError> {
        for &cpu in self.parked.iter().filter(|cpu| !too_many.contains(cpu)) {
            set_parked(skel, cpu, false)?;
        }
        for &cpu in too_many.iter().filter(|cpu| !self.parked.contains(cpu)) {
            set_parked(skel, cpu, true)?;
        }
        self.parked = too_many;
        Ok(())
    }
}

/// A vCPU that went offline meanwhile cannot be parked.
fn set_parked(skel: &GuestSkel<'_>, cpu: usize, park: bool) -> Result<(), GuestError> {
    match park::by_limit(skel, cpu, park) {
        Err(GuestError::NoVcpu(_) | GuestError::LastVcpu(_)) => Ok(()),
        other => other,
    }
}

fn is_usable(fact: &VcpuFacts) -> bool {
    fact.online && fact.bans & intf::TANDEM_BAN_PARKED == 0
}

/// Work and steal as the scheduler has measured them, to the nanosecond. The kernel's own accounts
/// advance at ticks and at the end of a task's slice, too coarse for a short window. None: the kernel
/// does not say how long tasks wait.
fn sums(facts: &[VcpuFacts]) -> Option<Sums> {
    let sum = |of: fn(&VcpuFacts) -> u64| facts.iter().map(of).fold(0, u64::saturating_add);
    accounts::waited_of_all_ns().map(|waited_ns| Sums {
        ran_ns: sum(|fact| fact.wanted_ns),
        stolen_ns: sum(|fact| fact.stolen_ns),
        waited_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_probe::emulated::Emulated;

    #[test]
    fn a_probed_stack_has_a_first_vcpu() {
        let (topology, _) = tandem_probe::vtop::full(&mut Emulated::rcvm(3), 2_000_000_000).unwrap();
        let domains = Domains::of_topology(12, &topology).unwrap();
        // 10 and 11 are stacked.
        assert_eq!(domains.first_of_stack(11, &[9, 10, 11]), 10);
        assert_eq!(domains.first_of_stack(11, &[9, 11]), 11);
        assert_eq!(domains.first_of_stack(9, &[9, 10, 11]), 9);
    }
}
