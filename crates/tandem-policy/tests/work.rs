//! What the same work takes on one vCPU and on another.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_policy::{place::*, place_view, vcap::*, vcpu_model, SCALE};

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Two tasks, one of 0.5 and one of 5 ms, sleep and wake on two vCPUs; on the second their work takes `dear` times as
/// long. `aimed`: the long task is mostly on the first. Returns the models and the time at the end.
fn two_vcpus(dear: f64, aimed: bool, seed: u64) -> ([vcpu_model; 2], u64) {
    let (mut models, mut state, mut now) = ([vcpu_model::default(); 2], seed, 0);
    let mut usual = [500 * US, 5 * MS];
    let work = usual;
    for _ in 0..4000 {
        now += MS;
        let task = (random(&mut state) % 2) as usize;
        let cpu = match (aimed, task) {
            (true, 1) => usize::from(random(&mut state).is_multiple_of(8)),
            _ => (random(&mut state) % 2) as usize,
        };
        // From half to one and a half of what the work is on average.
        let spread = 0.5 + (random(&mut state) % 1024) as f64 / 1024.0;
        let burst = (work[task] as f64 * spread * if cpu == 1 { dear } else { 1.0 }) as u64;
        vcap_worked(&mut models[cpu], now, burst, usual[task]);
        usual[task] = usual[task] * 3 / 4 + burst / 4;
    }
    (models, now)
}

#[test]
fn where_returns_cost_the_same_work_takes_longer() {
    for (aimed, dear) in [(false, 1.0), (false, 2.0), (true, 1.0), (true, 2.0)] {
        // Of many moments the mean: single ones are as uncertain as the work is uneven.
        let (mut sum, seeds) = (0.0, 40);
        for seed in 0..seeds {
            let (models, now) = two_vcpus(dear, aimed, seed);
            let takes = models.map(|model| vcap_takes_ns(&model, now, MS) as f64);
            sum += takes[1] / takes[0] / seeds as f64;
        }
        let least = 1.0 + 0.6 * (dear - 1.0);
        assert!(sum > least - 0.15 && sum < dear + 0.15, "{dear} times as dear, aimed {aimed}: {sum:.2}");
    }
}

#[test]
fn of_two_vcpus_with_equal_shares_the_cheaper_is_taken() {
    let (models, now) = two_vcpus(2.0, false, 3);
    // The dear one comes back sooner; a task that runs for long is yet done first on the other.
    let cost = |cpu: usize, absence: u64, takes: bool| {
        let view = place_view {
            inactive_mean_ns: absence,
            wait_ns: absence / 2,
            share: SCALE / 2,
            idle: true,
            ..Default::default()
        };
        place_cost_ns(&view, if takes { vcap_takes_ns(&models[cpu], now, 8 * MS) } else { 8 * MS })
    };
    assert!(cost(1, 2 * MS, true) > cost(0, 8 * MS, true));
    assert!(cost(1, 2 * MS, false) < cost(0, 8 * MS, false), "the control sees shares and waits only");
}

#[test]
fn what_nobody_tried_of_late_takes_what_it_takes_elsewhere() {
    let mut model = vcpu_model::default();
    assert_eq!(vcap_takes_ns(&model, 5, 3 * MS), 3 * MS);
    for step in 1..=200 {
        vcap_worked(&mut model, step * MS, 2 * MS, MS);
    }
    assert!(vcap_takes_ns(&model, 201 * MS, 3 * MS) > 5 * MS);
    assert_eq!(vcap_takes_ns(&model, 4000 * MS, 3 * MS), 3 * MS);
    // What is learned then begins anew.
    vcap_worked(&mut model, 4000 * MS, MS, MS);
    assert_eq!(vcap_takes_ns(&model, 4001 * MS, 3 * MS), 3 * MS);
}

#[test]
fn one_task_that_ran_unusually_long_changes_little() {
    let mut model = vcpu_model::default();
    for step in 1..=200 {
        vcap_worked(&mut model, step * MS, MS, MS);
    }
    vcap_worked(&mut model, 201 * MS, 1000 * MS, MS);
    let takes = vcap_takes_ns(&model, 202 * MS, MS);
    assert!(takes > MS && takes < MS * 115 / 100, "{takes}");
}

proptest! {
    #[test]
    fn the_factor_is_bounded_whatever_was_seen(
        steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..100), work in 0u64..(1 << 50)
    ) {
        let mut model = vcpu_model::default();
        for (now, burst, usual) in steps {
            vcap_worked(&mut model, now, burst, usual);
            let takes = vcap_takes_ns(&model, now, work);
            prop_assert!(takes <= work * 4 && takes + 1 >= work / 4, "{takes} of {work}");
        }
    }
}
