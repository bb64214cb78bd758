//! The vCPU limit, as many vCPUs as the host gives pCPUs: which vCPUs are to be out of use, by what all of them together
//! get (`policy/guest/vcpu_limit.h`).
//!
//! It reads nothing and has no clock: the guest's daemon calls it at real time, the simulator at simulated time.
//!
//! Of vCPUs that share a hardware thread, one is used (where a probe has found that). Otherwise one cannot tell from
//! inside which ones to use, and each trial tries others.

use crate::{vcpu_limit, vcpu_limit_seen, vcpu_limiting};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Sums over all vCPUs since some moment, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// vCPUs had work, steal included.
    pub ran_ns: u64,
    /// Steal in that time.
    pub stolen_ns: u64,
    /// Tasks waited for a vCPU.
    pub waited_ns: u64,
}

/// What is known when a window ends.
pub struct Window<'a> {
    /// The time, nanoseconds since some moment.
    pub now_ns: u64,
    /// vCPUs that may be used, in ascending order.
    pub usable: &'a [usize],
    /// None: the kernel does not say how long tasks wait.
    pub sums: Option<Sums>,
    /// Number of probes that have begun plus those that have ended. A probe keeps all vCPUs busy, so a window with a
    /// probe does not count.
    pub probes: u64,
    /// The vCPU of lowest number on the same hardware thread as a vCPU, out of that one and those in a list.
    pub first_of_stack: &'a dyn Fn(usize, &[usize]) -> usize,
}

/// vCPUs that are to be out of use from now on; all others are in use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// These.
    pub too_many: Vec<usize>,
    /// vCPUs that were busy, on average.
    pub busy: f64,
    /// pCPUs that they got.
    pub got: f64,
}

/// What follows from a window.
#[derive(Debug, Clone, PartialEq)]
pub struct Next {
    /// None: as before.
    pub choice: Option<Choice>,
    /// Length of the next window, nanoseconds.
    pub window_ns: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct VcpuLimit {
    policy: vcpu_limit,
    /// Beginning of the current window, and the sums then.
    last: Option<(u64, Sums)>,
    /// Length of the current window, or of the one after a pause.
    window_ns: u64,
    /// vCPUs that could be used in the last window.
    usable: Vec<usize>,
    /// Count of probes then.
    probes: u64,
}

impl Default for VcpuLimit {
    fn default() -> Self {
        Self {
            policy: vcpu_limit::default(),
            last: None,
            window_ns: vcpu_limiting::WINDOW_NS,
            usable: Vec::new(),
            probes: 0,
        }
    }
}

impl VcpuLimit {
    /// Was a limit found that is enough?
    pub fn is_found(&self) -> bool {
        matches!(self.policy.state, vcpu_limiting::FEW | vcpu_limiting::MORE)
    }

    /// What was found is forgotten. All vCPUs are to be in use again.
    pub fn start_again(&mut self) {
        let (usable, probes) = (std::mem::take(&mut self.usable), self.probes);
        *self = Self { usable, probes, ..Self::default() };
    }

    /// A window is over.
    pub fn window_ends(&mut self, window: &Window<'_>) -> Next {
        let usable = window.usable;
        let mut next = Next { choice: None, window_ns: self.window_ns };
        // What was found for other vCPUs says nothing about these. For two vCPUs the ban of a straggler is enough.
        let sums = window.sums.filter(|_| usable.len() > 2);
        if usable != self.usable || sums.is_none() {
            self.start_again();
            self.usable = usable.to_vec();
            next = Next { choice: Some(Choice::default()), window_ns: self.window_ns };
        }
        let Some(sums) = sums else { return next };
        let undisturbed = std::mem::replace(&mut self.probes, window.probes) == window.probes
            && window.probes.is_multiple_of(2);
        let Some((began_ns, before)) = self.last.replace((window.now_ns, sums)).filter(|_| undisturbed)
        else {
            return next;
        };
        let seen = vcpu_limit_seen {
            length_ns: window.now_ns.saturating_sub(began_ns),
            ran_ns: sums.ran_ns.saturating_sub(before.ran_ns),
            stolen_ns: sums.stolen_ns.saturating_sub(before.stolen_ns),
            waited_ns: sums.waited_ns.saturating_sub(before.waited_ns),
        };
        let chosen = (self.policy.used, self.policy.attempt);
        let number = u32::try_from(usable.len()).unwrap_or(u32::MAX);
        self.window_ns = vcpu_limiting::vcpu_limit_window(&mut self.policy, &seen, number);
        if (self.policy.used, self.policy.attempt) == chosen {
            return Next { choice: None, window_ns: self.window_ns };
        }
        let members = match self.policy.used as usize {
            0 => usable.to_vec(),
            used => members(used, usable, window.first_of_stack, self.policy.attempt as usize),
        };
        // The time of the change itself is in no window.
        self.last = None;
        let per_window = |ns: u64| ns as f64 / seen.length_ns.max(1) as f64;
        Next {
            choice: Some(Choice {
                too_many: usable.iter().copied().filter(|cpu| !members.contains(cpu)).collect(),
                busy: per_window(seen.ran_ns),
                got: per_window(seen.ran_ns.saturating_sub(seen.stolen_ns)),
            }),
            window_ns: vcpu_limiting::SETTLE_NS,
        }
    }
}

/// The vCPUs to use: the first of each stack before others, and with each attempt others.
fn members(
    used: usize,
    usable: &[usize],
    first_of_stack: &dyn Fn(usize, &[usize]) -> usize,
    attempt: usize,
) -> Vec<usize> {
    let (first, rest): (Vec<usize>, Vec<usize>) =
        usable.iter().partition(|cpu| first_of_stack(**cpu, usable) == **cpu);
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

    const MS: u64 = 1_000_000;

    fn alone(cpu: usize, _: &[usize]) -> usize {
        cpu
    }

    /// vCPUs in pairs: 2n and 2n + 1 share a hardware thread.
    fn in_pairs(cpu: usize, among: &[usize]) -> usize {
        let other = cpu ^ 1;
        if among.contains(&other) {
            cpu.min(other)
        } else {
            cpu
        }
    }

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
        let all: Vec<usize> = (0..6).collect();
        assert_eq!(members(3, &all, &in_pairs, 0), [0, 2, 4]);
        assert_eq!(members(4, &all, &in_pairs, 0), [0, 2, 4, 1]);
        assert!(members(2, &[1, 5], &in_pairs, 0).contains(&5));
    }

    /// Four vCPUs that are busy all the time and get two pCPUs, whichever of them are in use.
    fn busy(limit: &mut VcpuLimit, windows: usize) -> Vec<usize> {
        let (mut now_ns, mut sums, mut parked) = (0, Sums::default(), Vec::new());
        for _ in 0..windows {
            let window =
                Window { now_ns, usable: &[0, 1, 2, 3], sums: Some(sums), probes: 0, first_of_stack: &alone };
            let next = limit.window_ends(&window);
            parked = next.choice.map_or(parked, |choice| choice.too_many);
            let used = 4 - parked.len() as u64;
            now_ns += next.window_ns;
            sums.ran_ns += used * next.window_ns;
            sums.stolen_ns += used.saturating_sub(2) * next.window_ns;
        }
        parked
    }

    #[test]
    fn as_many_as_pcpus_are_used() {
        let mut limit = VcpuLimit::default();
        assert_eq!(busy(&mut limit, 20).len(), 2);
        assert!(limit.is_found());
        limit.start_again();
        assert!(!limit.is_found());
    }

    #[test]
    fn windows_with_a_probe_and_other_vcpus_do_not_count() {
        let mut limit = VcpuLimit::default();
        let ask = |limit: &mut VcpuLimit, at: u64, usable: &[usize], probes: u64| {
            // Busy on all, and half of it stolen.
            let sums = Sums { ran_ns: at * 4, stolen_ns: at * 2, waited_ns: 0 };
            let window = Window { now_ns: at, usable, sums: Some(sums), probes, first_of_stack: &alone };
            limit.window_ends(&window).choice
        };
        let none_is_chosen = |choice: Option<Choice>| choice.is_none_or(|choice| choice.too_many.is_empty());
        for step in 1..20 {
            assert!(
                none_is_chosen(ask(&mut limit, step * 400 * MS, &[0, 1, 2, 3], step)),
                "a probe each time"
            );
        }
        for step in 20..40 {
            let usable: &[usize] = if step % 2 == 0 { &[0, 1, 2, 3] } else { &[0, 1, 2] };
            assert!(none_is_chosen(ask(&mut limit, step * 400 * MS, usable, 40)), "other vCPUs each time");
        }
        // Control: the same windows, undisturbed.
        let chosen =
            (40..60).any(|step| !none_is_chosen(ask(&mut limit, step * 400 * MS, &[0, 1, 2, 3], 40)));
        assert!(chosen);
    }

    proptest! {
        #[test]
        fn each_one_is_there_once(nr in 1usize..40, used in 1usize..40, attempt in 0usize..100) {
            let usable: Vec<usize> = (0..nr).collect();
            let mut chosen = members(used, &usable, &alone, attempt);
            prop_assert_eq!(chosen.len(), used.min(nr));
            chosen.sort_unstable();
            chosen.dedup();
            prop_assert_eq!(chosen.len(), used.min(nr));
        }
    }
}
