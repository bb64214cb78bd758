//! The vCPU limit, as many vCPUs as the host gives pCPUs: measures for the policy (`policy/guest/crowd.h`) what all
//! vCPUs together get, and parks the vCPUs that it finds to be too many.
//!
//! Of vCPUs that share a hardware thread, one is used (where a probe has found that). Otherwise one
//! cannot tell from inside which ones to use, and each trial tries others.

use crate::accounts;
use crate::bpf::{intf, GuestSkel};
use crate::domains::Domains;
use crate::model::VcpuFacts;
use crate::{park, GuestError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};
use tandem_policy::{crowd, crowd_seen, crowding};

/// See the module.
pub(crate) struct Crowd {
    domains: Domains,
    found: Found,
    /// vCPUs that could be used at the last step.
    usable: Vec<usize>,
    /// vCPUs that are out of use.
    parked: Vec<usize>,
    /// Count of probes at the last step.
    probes: u64,
}

/// What was found so far.
struct Found {
    policy: crowd,
    last: Option<(Instant, Sums)>,
    /// Length of the current window, or of the one after a pause.
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
        Self { domains, found: Found::default(), usable: Vec::new(), parked: Vec::new(), probes: 0 }
    }

    /// Another topology was found. Failed trials do not count any more: other vCPUs would be chosen now.
    /// A limit that was found to be enough stays.
    pub(crate) fn learn(&mut self, skel: &GuestSkel<'_>, domains: Domains) -> Result<(), GuestError> {
        self.domains = domains;
        match self.found.policy.state {
            crowding::FEW | crowding::MORE => Ok(()),
            _ => self.start_again(skel),
        }
    }

    /// A window is over. Returns the length of the next one. `probes`: number of probes that have begun plus those
    /// that have ended. A probe keeps all vCPUs busy, so a window with a probe does not count.
    pub(crate) fn step(
        &mut self,
        skel: &GuestSkel<'_>,
        facts: &[VcpuFacts],
        now: Instant,
        probes: u64,
    ) -> Result<Duration, GuestError> {
        let usable: Vec<usize> = facts.iter().filter(|fact| is_usable(fact)).map(|fact| fact.cpu).collect();
        // What was found for other vCPUs says nothing about these.
        if usable != self.usable {
            self.start_again(skel)?;
            self.usable.clone_from(&usable);
        }
        // For two vCPUs the ban of a straggler is enough.
        let sums = (usable.len() > 2).then(|| sums(facts)).flatten();
        let Some(sums) = sums else {
            self.start_again(skel)?;
            return Ok(self.found.window);
        };
        let undisturbed = std::mem::replace(&mut self.probes, probes) == probes && probes.is_multiple_of(2);
        let Some((began, before)) = self.found.last.replace((now, sums)).filter(|_| undisturbed) else {
            return Ok(self.found.window);
        };
        let seen = seen(sums, before, now - began);
        let policy = &mut self.found.policy;
        let chosen = (policy.used, policy.attempt);
        let next_ns = crowding::crowd_window(policy, &seen, u32::try_from(usable.len()).unwrap_or(u32::MAX));
        self.found.window = Duration::from_nanos(next_ns);
        if (policy.used, policy.attempt) == chosen {
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
        // The time of the change itself is in no window.
        self.found.last = None;
        Ok(Duration::from_nanos(crowding::SETTLE_NS))
    }

    /// All vCPUs are in use again, and what was found is discarded.
    pub(crate) fn start_again(&mut self, skel: &GuestSkel<'_>) -> Result<(), GuestError> {
        self.found = Found::default();
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

/// A vCPU that went offline meanwhile needs no change.
fn set_parked(skel: &GuestSkel<'_>, cpu: usize, park: bool) -> Result<(), GuestError> {
    match park::crowd(skel, cpu, park) {
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

fn seen(now: Sums, before: Sums, length: Duration) -> crowd_seen {
    crowd_seen {
        length_ns: u64::try_from(length.as_nanos()).unwrap_or(u64::MAX),
        ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
        stolen_ns: now.stolen_ns.saturating_sub(before.stolen_ns),
        waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
    }
}

/// The vCPUs to use: the first of each stack before others, and with each attempt others.
fn members(used: usize, usable: &[usize], domains: &Domains, attempt: usize) -> Vec<usize> {
    let (first, rest): (Vec<usize>, Vec<usize>) =
        usable.iter().partition(|cpu| domains.first_of_stack(**cpu, usable) == **cpu);
    in_some_order(&first, attempt).into_iter().chain(in_some_order(&rest, attempt)).take(used).collect()
}

/// All vCPUs, in an order that depends on the attempt: adjacent ones first, then those half the list
/// apart, then pseudo-random.
fn in_some_order(cpus: &[usize], attempt: usize) -> Vec<usize> {
    let mut order = cpus.to_vec();
    match attempt {
        0 => {}
        1 => {
            let (one, other) = cpus.split_at(cpus.len().div_ceil(2));
            let pairs = one.iter().enumerate().flat_map(|(at, cpu)| [Some(cpu), other.get(at)]);
            order = pairs.flatten().copied().collect();
        }
        _ => order.sort_by_key(|cpu| by_chance(attempt, *cpu)),
    }
    order
}

/// The same number for the same pair, otherwise pseudo-random.
fn by_chance(attempt: usize, cpu: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (attempt, cpu).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tandem_probe::emulated::Emulated;

    #[test]
    fn attempts_differ() {
        let cpus: Vec<usize> = (0..16).collect();
        let two = |attempt| in_some_order(&cpus, attempt)[..2].to_vec();
        assert_eq!((two(0), two(1)), (vec![0, 1], vec![0, 8]));
        // For each of these even splits of the vCPUs over two pCPUs, twenty attempts in a row find one vCPU on each.
        for on_one in [
            |cpu: usize| cpu < 8,
            |cpu: usize| cpu.is_multiple_of(2),
            |cpu: usize| (cpu / 2).is_multiple_of(2),
        ] {
            for first in 0..200 {
                let found = (first..first + 20).any(|attempt| {
                    let two = two(attempt);
                    on_one(two[0]) != on_one(two[1])
                });
                assert!(found, "attempts {first} and on");
            }
        }
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
