//! Which vCPUs stay in use, judged by shares that are measured now and then.

use std::collections::BTreeMap;
use std::time::Duration;
use tandem_policy::{rwc, straggler_view, SCALE};

/// A share that was not measured for this long is stale.
const FRESH: Duration = Duration::from_secs(200);
/// Weight of a new sample.
const NEW: f64 = 0.5;

#[derive(Debug)]
struct Vcpu {
    share: f64,
    samples: u32,
    measured: Duration,
    straggler: bool,
    /// When `straggler` last changed; none: never.
    since: Option<Duration>,
}

/// What is known of the vCPUs. Times are relative to any fixed moment.
#[derive(Debug, Default)]
pub(super) struct Judge {
    vcpus: BTreeMap<usize, Vcpu>,
    stacks: Vec<Vec<usize>>,
}

impl Judge {
    /// Groups of vCPUs that share a hardware thread.
    pub(super) fn stacks(&mut self, stacks: Vec<Vec<usize>>) {
        self.stacks = stacks;
    }

    /// Shares of a sample; none: too little to say.
    pub(super) fn seen(&mut self, shares: &[(usize, Option<f64>)], now: Duration) {
        for &(cpu, share) in shares {
            let Some(share) = share.filter(|share| share.is_finite()).map(|share| share.clamp(0.0, 1.0))
            else {
                continue;
            };
            let vcpu = self.vcpus.entry(cpu).or_insert(Vcpu {
                share,
                samples: 0,
                measured: now,
                straggler: false,
                since: None,
            });
            vcpu.share += (share - vcpu.share) * NEW;
            vcpu.samples = vcpu.samples.saturating_add(1);
            vcpu.measured = now;
        }
    }

    /// The vCPUs of `online` that are to have work: never none.
    pub(super) fn in_use(&mut self, online: &[usize], now: Duration) -> Vec<usize> {
        self.vcpus.retain(|cpu, _| online.contains(cpu));
        let fresh = |vcpu: &Vcpu| now.saturating_sub(vcpu.measured) <= FRESH;
        let scaled = |vcpu: &Vcpu| (vcpu.share * f64::from(SCALE)).round() as u32;
        let (sum, known) = self
            .vcpus
            .values()
            .filter(|vcpu| fresh(vcpu))
            .fold((0, 0), |(sum, known), vcpu| (sum + u64::from(scaled(vcpu)), known + 1));
        for vcpu in self.vcpus.values_mut() {
            let share = scaled(vcpu);
            let own = if fresh(vcpu) { (u64::from(share), 1) } else { (0, 0) };
            let straggler = rwc::is_straggler(&straggler_view {
                others_sum: sum - own.0,
                others: known - own.1,
                share,
                samples: vcpu.samples,
                fresh: fresh(vcpu),
                banned: vcpu.straggler,
                since_ns: vcpu.since.map_or(u64::MAX, |since| nanoseconds(now.saturating_sub(since))),
            });
            if straggler != vcpu.straggler {
                vcpu.straggler = straggler;
                vcpu.since = Some(now);
            }
        }
        let is_straggler = |cpu: &usize| self.vcpus.get(cpu).is_some_and(|vcpu| vcpu.straggler);
        let is_spare = |cpu: &usize| {
            self.stacks
                .iter()
                .filter(|stack| stack.contains(cpu))
                .flatten()
                .any(|other| other < cpu && online.contains(other) && !is_straggler(other))
        };
        let chosen: Vec<usize> =
            online.iter().copied().filter(|cpu| !is_straggler(cpu) && !is_spare(cpu)).collect();
        if chosen.is_empty() {
            online.to_vec()
        } else {
            chosen
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [usize; 4] = [0, 1, 2, 3];

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_straggler_leaves_after_some_samples_and_comes_back_when_it_is_none_any_more() {
        let mut judge = Judge::default();
        let weak = [(0, Some(1.0)), (1, Some(0.05)), (2, Some(1.0)), (3, Some(1.0))];
        judge.seen(&weak, at(10));
        assert_eq!(judge.in_use(&ALL, at(10)), ALL, "one sample is chance");
        judge.seen(&weak, at(11));
        judge.seen(&weak, at(12));
        assert_eq!(judge.in_use(&ALL, at(12)), [0, 2, 3]);
        let strong = ALL.map(|cpu| (cpu, Some(1.0)));
        judge.seen(&strong, at(22));
        assert_eq!(judge.in_use(&ALL, at(22)), ALL);
    }

    #[test]
    fn of_a_stack_one_works_and_not_the_straggler() {
        let mut judge = Judge::default();
        judge.stacks(vec![vec![1, 2]]);
        assert_eq!(judge.in_use(&ALL, at(0)), [0, 1, 3]);
        for second in 0..3 {
            judge.seen(&[(0, Some(1.0)), (1, Some(0.02)), (2, Some(1.0)), (3, Some(1.0))], at(second));
        }
        assert_eq!(judge.in_use(&ALL, at(3)), [0, 2, 3]);
        // The working vCPU of the stack is taken offline.
        assert_eq!(judge.in_use(&[0, 1, 3], at(4)), [0, 3]);
    }

    #[test]
    fn what_is_old_is_not_believed() {
        let mut judge = Judge::default();
        for second in 0..3 {
            judge.seen(&[(0, Some(1.0)), (1, Some(0.02))], at(second));
        }
        assert_eq!(judge.in_use(&[0, 1], at(3)), [0]);
        assert_eq!(judge.in_use(&[0, 1], at(300)), [0, 1]);
    }

    proptest! {
        #[test]
        fn somebody_is_always_in_use_and_nobody_who_is_not_online(
            samples in prop::collection::vec(prop::collection::vec((0usize..6, prop::option::of(-1.0..2.0f64)), 0..6), 0..20),
            stacks in prop::collection::vec(prop::collection::vec(0usize..6, 0..6), 0..3),
            online in prop::collection::btree_set(0usize..6, 1..6),
        ) {
            let online: Vec<usize> = online.into_iter().collect();
            let mut judge = Judge::default();
            judge.stacks(stacks);
            for (second, sample) in samples.iter().enumerate() {
                judge.seen(sample, at(second as u64));
                let chosen = judge.in_use(&online, at(second as u64));
                prop_assert!(!chosen.is_empty());
                prop_assert!(chosen.iter().all(|cpu| online.contains(cpu)));
            }
        }
    }
}
