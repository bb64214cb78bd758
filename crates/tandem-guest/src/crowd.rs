//! As many vCPUs as the host gives pCPUs: measures for the policy (`policy/crowd.h`) what all vCPUs together get, and
//! parks those that it finds to be too many.
//!
//! Which ones: of those that share a hardware thread, one (where a probe has found that). Otherwise there is no telling
//! from inside, and each trial asks for others.

use crate::accounts;
use crate::bpf::{intf, BpfSkel};
use crate::domains::Domains;
use crate::model::VcpuFacts;
use crate::{park, GuestError};
use std::time::{Duration, Instant};
use tandem_policy::{crowd, crowd_seen, crowding};

/// See the module.
pub(crate) struct Crowd {
    domains: Domains,
    found: Found,
    /// Out of use.
    parked: Vec<usize>,
}

/// What is known so far.
struct Found {
    policy: crowd,
    last: Option<(Instant, Sums)>,
    /// Length of the window that has begun, or will after a pause.
    window: Duration,
}

/// Sums over all vCPUs since the boot, nanoseconds.
#[derive(Clone, Copy)]
struct Sums {
    ran_ns: u64,
    stolen_ns: u64,
    waited_ns: u64,
}

impl Default for Found {
    fn default() -> Self {
        Self { policy: crowd::default(), last: None, window: Duration::from_nanos(crowding::WINDOW_NS) }
    }
}

impl Crowd {
    pub(crate) fn new(domains: Domains) -> Self {
        Self { domains, found: Found::default(), parked: Vec::new() }
    }

    /// Another topology was found.
    pub(crate) fn learn(&mut self, domains: Domains) {
        self.domains = domains;
    }

    /// A window is over. Returns the length of the next one.
    pub(crate) fn step(
        &mut self,
        skel: &BpfSkel<'_>,
        facts: &[VcpuFacts],
        now: Instant,
    ) -> Result<Duration, GuestError> {
        let usable: Vec<usize> = facts.iter().filter(|fact| is_usable(fact)).map(|fact| fact.cpu).collect();
        // Of two, a straggler's ban says all there is to say.
        let sums = (usable.len() > 2).then(|| sums(facts)).flatten();
        let Some(sums) = sums else {
            self.start_again(skel)?;
            return Ok(self.found.window);
        };
        let Some((began, before)) = self.found.last.replace((now, sums)) else {
            return Ok(self.found.window);
        };
        let seen = seen(sums, before, now - began);
        let policy = &mut self.found.policy;
        let used = policy.used;
        let next_ns = crowding::crowd_window(policy, &seen, u32::try_from(usable.len()).unwrap_or(u32::MAX));
        self.found.window = Duration::from_nanos(next_ns);
        if policy.used == used {
            return Ok(self.found.window);
        }
        let members = match policy.used as usize {
            0 => usable.clone(),
            used => members(used, &usable, &self.domains, policy.attempt as usize),
        };
        log::debug!(
            "{:.1} vCPUs busy, {:.1} pCPUs got: using {} of {}",
            seen.ran_ns as f64 / seen.length_ns as f64,
            seen.ran_ns.saturating_sub(seen.stolen_ns) as f64 / seen.length_ns as f64,
            members.len(),
            usable.len()
        );
        self.park_only(skel, usable.into_iter().filter(|cpu| !members.contains(cpu)).collect())?;
        // What the change itself takes is in no window.
        self.found.last = None;
        Ok(Duration::from_nanos(crowding::SETTLE_NS))
    }

    /// All are in use again, and nothing is known.
    pub(crate) fn start_again(&mut self, skel: &BpfSkel<'_>) -> Result<(), GuestError> {
        self.found = Found::default();
        self.park_only(skel, Vec::new())
    }

    /// Parks these, and takes back all others.
    fn park_only(&mut self, skel: &BpfSkel<'_>, too_many: Vec<usize>) -> Result<(), GuestError> {
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

/// A vCPU that went offline meanwhile needs nothing.
fn set_parked(skel: &BpfSkel<'_>, cpu: usize, park: bool) -> Result<(), GuestError> {
    match park::crowd(skel, cpu, park) {
        Err(GuestError::NoVcpu(_) | GuestError::LastVcpu(_)) => Ok(()),
        other => other,
    }
}

fn is_usable(fact: &VcpuFacts) -> bool {
    fact.online && fact.bans & intf::TANDEM_BAN_PARKED == 0
}

/// Work and steal as the scheduler has seen them, to the nanosecond: the kernel's own accounts are kept in ticks and
/// at the end of a task's turn, too coarse for a short window. None: the kernel does not say how long tasks wait.
fn sums(facts: &[VcpuFacts]) -> Option<Sums> {
    let sum = |of: fn(&VcpuFacts) -> u64| facts.iter().map(of).fold(0, u64::saturating_add);
    accounts::waited_of_all_ns().map(|waited_ns| Sums {
        ran_ns: sum(|fact| fact.wanted_ns),
        stolen_ns: sum(|fact| fact.stolen_ns),
        waited_ns,
    })
}

fn seen(now: Sums, before: Sums, length: Duration) -> crowd_seen {
    crowd_seen {
        length_ns: u64::try_from(length.as_nanos()).unwrap_or(u64::MAX),
        ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
        stolen_ns: now.stolen_ns.saturating_sub(before.stolen_ns),
        waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
    }
}

/// Which ones to use: the first of each stack before others, and with each attempt others.
fn members(used: usize, usable: &[usize], domains: &Domains, attempt: usize) -> Vec<usize> {
    let (first, rest): (Vec<usize>, Vec<usize>) =
        usable.iter().partition(|cpu| domains.first_of_stack(**cpu, usable) == **cpu);
    in_strides(&first, attempt).into_iter().chain(in_strides(&rest, attempt)).take(used).collect()
}

/// All of them, in an order that depends on the attempt: neighbours first, halves of the list first, and so on.
fn in_strides(cpus: &[usize], attempt: usize) -> Vec<usize> {
    let half = cpus.len() / 2;
    let stride = if attempt.is_multiple_of(2) { 1 + attempt / 2 } else { half.saturating_sub(attempt / 2) };
    let stride = 1 + stride.saturating_sub(1) % half.max(1);
    let mut left: Vec<usize> = (0..cpus.len()).collect();
    let mut order = Vec::with_capacity(cpus.len());
    let mut at = 0;
    while !left.is_empty() {
        at %= left.len();
        // `left` keeps the order of the list, so that steps go on from where the last one was.
        order.push(cpus[left.remove(at)]);
        at += stride - 1;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tandem_probe::emulated::Emulated;

    #[test]
    fn attempts_differ() {
        let cpus: Vec<usize> = (0..16).collect();
        let two = |attempt| in_strides(&cpus, attempt)[..2].to_vec();
        assert_eq!((two(0), two(1), two(2), two(3)), (vec![0, 1], vec![0, 8], vec![0, 2], vec![0, 7]));
    }

    #[test]
    fn of_a_stack_one_comes_first() {
        let (topology, _) = tandem_probe::vtop::full(&mut Emulated::rcvm(3), 2_000_000_000).unwrap();
        let domains = Domains::of_topology(12, &topology).unwrap();
        // 10 and 11 are stacked.
        let all: Vec<usize> = (0..12).collect();
        assert_eq!(members(11, &all, &domains, 0), (0..11).collect::<Vec<_>>());
        assert!(members(2, &[9, 11], &domains, 0).contains(&11));
        assert_eq!(members(2, &[9, 10, 11], &domains, 0), [9, 10]);
    }

    proptest! {
        #[test]
        fn each_one_is_there_once(nr in 1usize..40, used in 1usize..40, attempt in 0usize..100) {
            let usable: Vec<usize> = (0..nr).collect();
            let domains = Domains::of_the_kernel(nr, &usable);
            let mut chosen = members(used, &usable, &domains, attempt);
            prop_assert_eq!(chosen.len(), used.min(nr));
            chosen.sort_unstable();
            chosen.dedup();
            prop_assert_eq!(chosen.len(), used.min(nr));
        }
    }
}
