//! Hierarchical weights, quotas and fairness across CPUs, against references that know nothing of the policies.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_policy::balance::*;
use tandem_policy::hweight::*;
use tandem_policy::quota::*;
use tandem_policy::{SCALE_ONE, UNIT};

/// A tree: for each group its parent (an earlier group or the root, 0), its cgroup weight and the nice-0 tasks in it.
#[derive(Debug, Clone)]
struct Tree {
    parent: Vec<usize>,
    weight: Vec<u32>,
    tasks: Vec<u32>,
}

fn trees() -> impl Strategy<Value = Tree> {
    prop::collection::vec((any::<prop::sample::Index>(), 1u32..=10_000, 0u32..5), 1..12).prop_map(|groups| {
        let mut tree = Tree { parent: vec![0], weight: vec![100], tasks: vec![0] };
        for (parent, weight, tasks) in groups {
            tree.parent.push(parent.index(tree.parent.len()));
            tree.weight.push(weight);
            tree.tasks.push(tasks);
        }
        tree
    })
}

impl Tree {
    fn is_active(&self, group: usize) -> bool {
        self.tasks[group] > 0 || (1..self.parent.len()).any(|c| self.parent[c] == group && self.is_active(c))
    }

    fn active_weight(&self, group: usize) -> u64 {
        let children = (1..self.parent.len()).filter(|c| self.parent[*c] == group && self.is_active(*c));
        u64::from(self.tasks[group]) * 1024 + children.map(|c| weight_of_cgroup(self.weight[c])).sum::<u64>()
    }

    /// Share of the machine that one task of a group gets, level by level.
    fn ideal_task_share(&self, group: usize) -> f64 {
        let mut share = 1024.0 / self.active_weight(group) as f64;
        let mut at = group;
        while at != 0 {
            share *= weight_of_cgroup(self.weight[at]) as f64 / self.active_weight(self.parent[at]) as f64;
            at = self.parent[at];
        }
        share
    }

    fn scales(&self) -> Vec<u64> {
        let mut scales = vec![SCALE_ONE];
        for group in 1..self.parent.len() {
            let parent = scales[self.parent[group]];
            scales.push(group_scale(parent, weight_of_cgroup(self.weight[group]), self.active_weight(group)));
        }
        scales
    }
}

#[test]
fn nice_zero_outside_of_all_groups_is_the_unit() {
    assert_eq!(effective_weight(1024, SCALE_ONE), UNIT);
    // A group of ordinary weight with one task weighs as much as that.
    assert_eq!(effective_weight(1024, group_scale(SCALE_ONE, weight_of_cgroup(100), 1024)), UNIT);
    // The nice value of the only task in a group does not matter outside.
    let scale = group_scale(SCALE_ONE, weight_of_cgroup(100), 15);
    assert!(effective_weight(15, scale).abs_diff(UNIT) < UNIT / 1000);
}

proptest! {
    /// What light tasks take is followed from both sides, and a CPU keeps a quarter of its capacity whatever they take.
    #[test]
    fn light_tasks_leave_the_rest(capacity in 1u32..=1024, old in 0u32..=65_536, pct in 0u64..=100) {
        let share = (0..100).fold(old, |share, _| light_share(share, pct * 320_000, 32_000_000));
        prop_assert!((i64::from(share) - pct as i64 * 65_536 / 100).abs() <= 8, "{}", share);
        let left = left_by_light(capacity, share);
        let exact = (f64::from(capacity) - 10.24 * pct as f64).max(f64::from(capacity) / 4.0);
        prop_assert!((f64::from(left) - exact).abs() <= 1.5 && left > 0, "{} instead of {}", left, exact);
        prop_assert_eq!(light_share(share, 5, 0), share);
    }

    /// A CPU-bound task pays no more than there is to pay and than it has run, and owes no more than the limit for it.
    #[test]
    fn payments_are_bounded(unpaid in -100_000_000i64..200_000_000, owed in -200_000_000i64..200_000_000, service in 0u64..1 << 40) {
        let paid = paid_ns(unpaid, owed, service);
        prop_assert!(paid >= 0 && paid <= unpaid.max(0) && paid as u64 <= service);
        prop_assert!(paid == 0 || owed - paid >= -24_000_000);
        prop_assert!(paid > 0 || unpaid <= 0 || service == 0 || owed <= -24_000_000);
    }

    /// What is passed down to children by their weight is no more than there is, and all but the own tasks' part of it.
    #[test]
    fn what_is_passed_down_is_the_part_by_weight(unpaid in 0i64..24_000_000, own in 0u64..1 << 30, child in 1u64..1 << 30) {
        let part = passed_down(unpaid, own, child) as f64 / 1024.0 * child as f64;
        let exact = unpaid as f64 * child as f64 / (own + child) as f64;
        prop_assert!(part <= exact + 1.0 && part >= exact - child as f64 / 1024.0 - 1.0);
        prop_assert_eq!(passed_down(unpaid, own, 0), 0);
    }

    #[test]
    fn flattened_weights_are_the_shares_of_the_tree(tree in trees()) {
        let scales = tree.scales();
        let weights: Vec<u64> = scales.iter().map(|scale| effective_weight(1024, *scale)).collect();
        let total: u64 = weights.iter().zip(&tree.tasks).map(|(w, n)| w * u64::from(*n)).sum();
        for group in (0..tree.tasks.len()).filter(|group| tree.tasks[*group] > 0) {
            let ideal = tree.ideal_task_share(group);
            let got = weights[group] as f64 / total as f64;
            // Shares below a hundred thousandth meet the minimum weight.
            if ideal > 1e-5 {
                // Half a step of the lightest weights, and what the divisions lose.
                let precision = 0.01 + 0.5 / weights.iter().copied().min().unwrap_or(1) as f64;
                prop_assert!((got / ideal - 1.0).abs() < precision, "group {group}: {got} for {ideal}");
            } else {
                prop_assert!(got < 1e-3);
            }
        }
    }

    #[test]
    fn weights_stay_in_range_whatever_comes_in(own in any::<u32>(), scale in any::<u64>(), weight in any::<u64>(), active in any::<u64>()) {
        prop_assert!((16..=1 << 38).contains(&effective_weight(own, scale)));
        prop_assert!(group_scale(scale, weight, active) >= 1);
    }

    #[test]
    fn who_cannot_be_throttled_owes_a_period_and_one_charge_at_most(
        quota in 1_000_000u64..100_000_000, charges in prop::collection::vec(1u64..4_000_000, 1..400),
    ) {
        let mut pool = quota as i64;
        for charge in charges {
            if may_charge_unstoppable(pool, quota) {
                pool -= charge as i64;
            }
        }
        prop_assert!(pool > -(quota as i64) - 4_000_000);
        prop_assert!(!may_charge_unstoppable(-(quota as i64), quota) && may_charge_unstoppable(1 - quota as i64, quota));
    }

    /// Charges, refills and debts: what is used never exceeds what is granted by more than one overrun.
    #[test]
    fn quota_is_conserved_to_the_nanosecond(
        quota in 1_000_000u64..200_000_000, period in 1_000_000u64..1_000_000_000, burst in 0u64..50_000_000,
        runs in prop::collection::vec((0u64..20_000_000, 0u64..5_000_000), 1..300),
    ) {
        let burst = burst.min(quota);
        let (mut pool, mut start, mut now) = (quota as i64, 0u64, 0u64);
        let (mut used, mut granted) = (0i128, i128::from(quota));
        let mut lost = 0i128;
        for (pause, overrun) in runs {
            now += pause;
            let passed = periods_passed(now, start, period);
            start += passed * period;
            prop_assert!(now < start + period && now >= start);
            let refilled = pool_refilled(pool, quota, burst, passed, 0);
            granted += i128::from(quota) * i128::from(passed);
            lost += i128::from(pool) + i128::from(quota) * i128::from(passed) - i128::from(refilled);
            pool = refilled;
            prop_assert!(pool <= (quota + burst) as i64);
            let run = quota_run_ns(pool, 2);
            prop_assert!((run == 0) == (pool <= 0));
            prop_assert!(run <= (pool.max(0) as u64).max(100_000));
            if run > 0 {
                let ran = run + overrun;
                now += ran;
                used += i128::from(ran);
                pool -= ran as i64;
            }
            prop_assert_eq!(used + lost + i128::from(pool), granted);
            prop_assert!(lost >= 0 && used <= granted - lost + 5_000_000 + 100_000);
        }
    }

    /// A machine stands still while two CPUs run tasks of a group: it does not matter whether refill or
    /// charge comes first.
    #[test]
    fn a_run_that_is_charged_late_costs_no_more(
        pool in -1_000_000_000i64..100_000_000,
        (quota, period) in (1_000_000u64..200_000_000, 10_000_000u64..1_000_000_000),
        burst in 0u64..100_000_000,
        (periods, part) in (2u64..1000, 0u64..=1000),
    ) {
        let pool = pool.min((quota + burst) as i64);
        let may_be = uncharged_ns(2, periods, period);
        let ran = (may_be / 1000 * part) as i64;
        let in_time = pool_refilled(pool - ran, quota, burst, periods, 0);
        let late = pool_refilled(pool, quota, burst, periods, may_be) - ran;
        // The next boundary brings a pool that is above the limit back to it.
        prop_assert_eq!(pool_refilled(in_time, quota, burst, 1, 0), pool_refilled(late, quota, burst, 1, 0));
        prop_assert_eq!(uncharged_ns(2, 1, period), 0);
        prop_assert_eq!(pool_refilled(pool, quota, burst, periods, 0), pool_refilled(pool, quota, burst, periods, uncharged_ns(0, periods, period)));
    }

    #[test]
    fn a_lifted_or_broken_period_refills_nothing(now in any::<u64>(), start in any::<u64>()) {
        prop_assert_eq!(periods_passed(now, start, 0), 0);
    }

    #[test]
    fn moves_lead_towards_balance(heavy in 1u64..1 << 40, light in 0u64..1 << 40, a in 100u32..1024, b in 100u32..1024, part in 0u64..=1024) {
        let excess = excess_weight(heavy, a, light, b);
        let (before_heavy, before_light) = (load_of(heavy, a), load_of(light, b));
        if before_heavy <= before_light {
            prop_assert_eq!(excess, 0);
        } else {
            let diff = (before_heavy - before_light) as i128;
            let weight = (excess * part / 1024).min(heavy);
            let after = load_of(light + weight, b) as i128 - load_of(heavy - weight, a) as i128;
            // On the weaker CPU the migrated weight counts for more; never for more than the difference and a bit.
            prop_assert!(after <= diff + 4096, "{after} after {diff}");
            if a == b && move_improves(weight, excess) && weight > 0 {
                prop_assert!(after.abs() < diff, "{after} after {diff}");
            }
        }
    }
}

/// Half of a quota of 10 ms may be owed, on two CPUs, to the nanosecond; the shortest run comes on top.
#[test]
fn a_loan_ends_where_the_debt_may_grow_no_more() {
    let loan = |pool| quota_loan_ns(pool, 10_000_000, 2, 2);
    assert_eq!(
        [loan(0), loan(-1_000_000), loan(-4_999_999), loan(-5_000_000)],
        [2_500_000, 2_000_000, 100_000, 0]
    );
    assert_eq!(quota_loan_ns(0, 10_000_000, 0, 2), 0);
    assert_eq!(quota_loan_ns(-1, 2, 2, 0), 0);
    assert_eq!(quota_loan_ns(i64::MIN / 2, u64::MAX / 4, 1, 0), 0);
}
