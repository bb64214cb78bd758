//! The vCPU model and placement against a host whose behaviour is known.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_policy::{
    balance::*, place::*, place_view, pull_view, vcap::*, vcpu_model, vcpu_pool, work::*, SCALE, UNIT,
};

const MS: u64 = 1_000_000;

/// A host that preempts the vCPU for `off` of every `on + off`.
struct Host {
    on: u64,
    off: u64,
}

impl Host {
    fn share(&self) -> f64 {
        self.on as f64 / (self.on + self.off) as f64
    }

    /// When a vCPU that is runnable from `t` on is scheduled in.
    fn served_at(&self, t: u64) -> u64 {
        let phase = t % (self.on + self.off);
        if phase < self.off {
            t + self.off - phase
        } else {
            t
        }
    }

    /// Runs for `wall`, sampled by the guest every millisecond; returns the time at the end.
    fn busy(&self, model: &mut vcpu_model, from: u64, wall: u64) -> u64 {
        let mut now = from;
        while now < from + wall {
            let next = self.served_at(now + MS);
            let stolen = next - now - MS;
            vcap_busy(model, next, next - now, stolen, 1);
            now = next;
        }
        now
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// An exponential length with this mean.
fn exponential(state: &mut u64, mean: u64) -> u64 {
    (-(1.0 - (random(state) % (1 << 31)) as f64 / f64::from(1u32 << 31)).ln() * mean as f64) as u64
}

/// Mean estimate over many samples, and the naive ratio of times beside it.
fn estimate(host: &Host, busy_ns: u64, seed: u64) -> (f64, f64) {
    let (mut model, mut state, mut now) = (vcpu_model::default(), seed, 0);
    let (mut sum, mut samples, mut waits, mut demand) = (0.0, 0u32, 0, 0);
    for _ in 0..4000 {
        let idle = 3 * MS + random(&mut state) % (40 * MS);
        now += idle;
        let served = host.served_at(now);
        let before = model.samples;
        vcap_arrive(&mut model, served, idle, served - now);
        waits += served - now;
        demand += served - now + busy_ns;
        now = host.busy(&mut model, served, busy_ns);
        if model.samples != before {
            sum += f64::from(model.share) / f64::from(SCALE);
            samples += 1;
        }
    }
    (sum / f64::from(samples), 1.0 - waits as f64 / demand as f64)
}

#[test]
fn short_runs_and_long_runs_give_the_same_share() {
    for (on, off) in [(3, 7), (5, 5), (8, 2), (4, 16)] {
        let host = Host { on: on * MS, off: off * MS };
        for busy in [MS, 60 * MS] {
            let (measured, _) = estimate(&host, busy, 7);
            let error = (measured - host.share()).abs();
            assert!(error < 0.08, "{on}/{off} ms, busy {busy}: measured {measured:.2}");
        }
    }
}

#[test]
fn the_naive_ratio_of_times_is_biased_by_how_the_vcpu_is_used() {
    let host = Host { on: 3 * MS, off: 7 * MS };
    let (_, naive) = estimate(&host, MS / 10, 7);
    assert!(naive < 0.1, "the control must be wrong: {naive}");
}

#[test]
fn an_undisturbed_vcpu_is_whole_and_a_sudden_loss_is_reported() {
    let mut model = vcpu_model::default();
    let now = Host { on: MS, off: 0 }.busy(&mut model, 0, 100 * MS);
    assert_eq!(model.share, SCALE);
    let mut dropped = false;
    for step in 1..=40 {
        dropped |= vcap_busy(&mut model, now + step * MS, MS, MS * 7 / 10, 1) & 2 != 0;
    }
    assert!(dropped);
    assert!(model.share < SCALE / 2, "{}", model.share);
}

/// A vCPU that was whole is taken for `low` windows, as it runs; in between it is woken for moments, `waits` of sixteen times with a wait.
/// Were the windows taken for a drop?
fn drops_beside_wakeups(low: u64, waits: u64) -> bool {
    let mut model = vcpu_model::default();
    let mut now = Host { on: MS, off: 0 }.busy(&mut model, 0, 1000 * MS);
    let mut dropped = false;
    for _ in 0..low {
        for n in 0..16 {
            now += 20 * MS;
            vcap_arrive(&mut model, now, 20 * MS, if n < waits { 5 * MS } else { 0 });
        }
        let samples = model.samples;
        while model.samples == samples {
            now += MS;
            dropped |= vcap_busy(&mut model, now, MS, MS * 9 / 10, 1) & 2 != 0;
        }
    }
    dropped
}

#[test]
fn wakeups_neither_make_a_drop_nor_hide_one() {
    assert!(!drops_beside_wakeups(1, 12), "one low window, and one low sample of wake-ups");
    assert!(drops_beside_wakeups(2, 0), "two low windows, and wake-ups that did not wait between them");
}

#[test]
fn a_vcpu_with_a_quota_is_there_at_once_while_it_works_little() {
    let mut model = vcpu_model::default();
    let mut now = 0;
    // Kept busy, it gets a third of its pCPU.
    for _ in 0..20 {
        now += 18 * MS;
        vcap_busy(&mut model, now, 18 * MS, 12 * MS, 1);
    }
    let by_share = vcap_wait_ns(&model, now);
    assert!(by_share > 7 * MS, "{by_share}");
    // Woken for a moment now and then, it never waits.
    for _ in 0..40 {
        now += 20 * MS;
        vcap_arrive(&mut model, now, 20 * MS, 0);
    }
    assert!(vcap_wait_ns(&model, now) < MS, "{}", vcap_wait_ns(&model, now));
    // Later that is stale.
    assert_eq!(vcap_wait_ns(&model, now + 4000 * MS), 0, "nothing is known of it any more");
}

#[test]
fn who_wakes_a_vcpu_at_random_waits_as_the_model_says() {
    let host = Host { on: 4 * MS, off: 12 * MS };
    let (mut model, mut state, mut now) = (vcpu_model::default(), 3, 0);
    let (mut sum, mut seen) = (0, 0);
    for _ in 0..4000 {
        let idle = 3 * MS + random(&mut state) % (48 * MS);
        now += idle;
        let served = host.served_at(now);
        vcap_arrive(&mut model, served, idle, served - now);
        now = served;
        sum += vcap_wait_ns(&model, now);
        seen += 1;
    }
    // Three of four wake-ups wait, six milliseconds on average.
    let mean = sum / seen;
    assert!(mean.abs_diff(MS * 45 / 10) < MS / 2, "{mean}");
}

#[test]
fn wake_ups_in_bunches_do_not_make_a_wait_look_short() {
    let host = Host { on: 8 * MS, off: 8 * MS };
    let known = vcpu_model { inactive_mean_ns: 8 * MS, inactive_events: 1, ..Default::default() };
    let (mut model, mut state, mut now) = (known, 5, 0);
    let (mut sum, mut by_count, mut seen) = (0, 0, 0);
    for _ in 0..2000 {
        // Each wake-up at a random moment is followed by seven more, a tenth of a millisecond apart.
        for follower in 0..8 {
            let idle = if follower == 0 { 20 * MS + random(&mut state) % (32 * MS) } else { MS / 10 };
            now += idle;
            let served = host.served_at(now);
            vcap_arrive(&mut model, served, idle, served - now);
            by_count += served - now;
            now = served;
            sum += vcap_wait_ns(&model, now);
            seen += 1;
        }
    }
    // Every second random wake-up waits, four milliseconds on average.
    assert!((sum / seen).abs_diff(2 * MS) < MS * 4 / 10, "{}", sum / seen);
    assert!(by_count / seen < MS, "the control must be wrong: {}", by_count / seen);
}

/// Many vCPUs whose neighbours come and go at random: of every 16 ms each is preempted for `preempted` on average.
fn guest(preempted: &dyn Fn(usize) -> u64, seed: u64) -> (Vec<vcpu_model>, vcpu_pool, u64) {
    let mut pool = vcpu_pool { share: SCALE, ..Default::default() };
    let (mut models, mut state, mut now) = (vec![vcpu_model::default(); 8], seed, 0);
    for _ in 0..400 {
        now += 16 * MS;
        for (cpu, model) in models.iter_mut().enumerate() {
            let stolen = exponential(&mut state, preempted(cpu)).min(16 * MS);
            if vcap_busy(model, now, 16 * MS, stolen, 1) != 0 {
                vcap_pool_share(&mut pool, model);
            }
        }
    }
    (models, pool, now)
}

#[test]
fn vcpus_that_are_alike_are_believed_to_be_alike_and_others_are_not() {
    let range = |shares: &dyn Fn(&vcpu_model) -> u32, models: &[vcpu_model]| {
        let all: Vec<u32> = models.iter().map(shares).collect();
        all.iter().max().unwrap() - all.iter().min().unwrap()
    };
    let (alike, pool, now) = guest(&|_| 4 * MS, 3);
    let believed = range(&|model| vcap_share_believed(model, now, &pool), &alike);
    let control = range(&|model| model.share, &alike);
    assert!(believed * 3 < control, "{believed} {control}");
    // A vCPU that really is weak is estimated to be weak.
    let (unlike, pool, now) = guest(&|cpu| if cpu == 7 { 12 * MS } else { MS / 4 }, 3);
    let weak = vcap_share_believed(&unlike[7], now, &pool);
    let strong = unlike[..7].iter().map(|model| vcap_share_believed(model, now, &pool)).min().unwrap();
    assert!(weak * 3 < strong * 2, "{weak} {strong}");
}

#[test]
fn what_was_measured_long_ago_gives_way_to_what_is_true_of_all() {
    let pool = vcpu_pool { share: 900, wait_ns: MS / 10, variance: 40_000 };
    let model = vcpu_model {
        share: 300,
        steady_share: 300,
        share_dev: 60,
        samples: 8,
        updated_ns: 1,
        woken_ns: 1,
        waits_known: 8 * 256,
        wait_mean_ns: 4 * MS,
        ..Default::default()
    };
    let at = |ms: u64| {
        let now = ms * MS + 1;
        (vcap_share_believed(&model, now, &pool), vcap_wait_believed_ns(&model, now, 4 * MS, &pool))
    };
    let (soon, later) = (at(0), at(2900));
    assert!(soon.0 < 350 && soon.1 > 3 * MS, "{soon:?}");
    assert!(later.0 > soon.0 && later.1 < soon.1, "{later:?}");
    // In the end only the pool is left.
    assert_eq!(at(3100), (900, MS / 10));
}

#[test]
fn who_comes_soon_after_it_slept_meets_what_others_met_then() {
    // A neighbour that comes and goes by itself, and one that only waits for the vCPU to sleep.
    let waits = |soon: &dyn Fn(u64) -> u64| {
        let known = vcpu_model { inactive_mean_ns: 8 * MS, inactive_events: 1, ..Default::default() };
        let (mut model, mut state, mut now) = (known, 11, 0);
        for _ in 0..400 {
            let idle = if random(&mut state).is_multiple_of(2) { MS / 2 } else { 24 * MS };
            let waited = if idle < MS { soon(random(&mut state)) } else { random(&mut state) % 2 * 4 * MS };
            now += idle + waited;
            vcap_arrive(&mut model, now, idle, waited);
        }
        [0, 4, 8, 100].map(|ms| vcap_wait_after_ns(&model, now, ms * MS))
    };
    let by_itself = waits(&|_| 0);
    assert!(by_itself[0] < MS / 10 && by_itself[3] > MS, "{by_itself:?}");
    assert!(by_itself.is_sorted() && by_itself[2] == by_itself[3], "{by_itself:?}");
    let lurking = waits(&|_| 8 * MS);
    assert!(
        lurking[0] > 6 * MS && lurking[2] == lurking[3],
        "who comes soon waits for its turn: {lurking:?}"
    );
    assert!(lurking.is_sorted_by(|a, b| a >= b), "{lurking:?}");
    // Without wake-ups soon after a sleep only the mean is known.
    let model =
        vcpu_model { woken_ns: 1, wait_mean_ns: 3 * MS, inactive_mean_ns: 8 * MS, ..Default::default() };
    assert_eq!(vcap_wait_after_ns(&model, 2, 0), 3 * MS);
}

#[test]
fn irregular_preemptions_are_no_news_as_long_as_they_stay_the_same() {
    const SECONDS: u64 = 60;
    let (mut model, mut state, mut now) = (vcpu_model::default(), 7, 0);
    let mut lasting = |mean: u64| exponential(&mut state, mean);
    let (mut news, mut far_below, mut windows) = (0, 0, 0);
    while now < SECONDS * 1000 * MS {
        for (present, length) in [(true, lasting(8 * MS)), (false, lasting(8 * MS))] {
            let steady = model.steady_share;
            now += length;
            let seen = vcap_busy(&mut model, now, length, if present { 0 } else { length }, 1);
            if seen != 0 && windows > 20 {
                // The new average is one half of the old one and one half of this window.
                far_below += u64::from(model.share + 150 < steady);
                news += u64::from(seen & 2 != 0);
            }
            windows += u64::from(seen != 0);
        }
    }
    assert!(far_below > 2 * SECONDS, "single windows are far below often: {far_below}");
    assert!(news < SECONDS, "{news} times in {SECONDS} s");
    // From now on the host takes nine tenths.
    let changed = now;
    while vcap_busy(&mut model, now, 10 * MS, 9 * MS, 1) & 2 == 0 {
        now += 10 * MS;
        assert!(now - changed < 200 * MS, "not noticed");
    }
}

/// Windows of a vCPU whose neighbour comes and goes at random: preempted for `preempted` of every 16 ms on average.
fn irregular(preempted: u64, seconds: u64, seed: u64, mut each: impl FnMut(&vcpu_model, u64)) {
    let (mut model, mut state, mut now) = (vcpu_model::default(), seed, 0);
    let mut lasting = |mean: u64| exponential(&mut state, mean);
    while now < seconds * 1000 * MS {
        for (stolen, length) in [(false, lasting(16 * MS - preempted)), (true, lasting(preempted))] {
            now += length;
            if vcap_busy(&mut model, now, length, if stolen { length } else { 0 }, 1) != 0
                && model.samples > 20
            {
                each(&model, now);
            }
        }
    }
}

#[test]
fn of_vcpus_that_are_all_alike_one_seldom_looks_clearly_better() {
    let shares = |preempted, seed| {
        let (mut best, mut worst, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        irregular(preempted, 60, seed, |model, now| {
            best.push(vcap_at_best(model, now));
            worst.push(vcap_at_worst(model, now));
            plain.push((model.share.max(model.steady_share), model.share.min(model.steady_share)));
        });
        (best, worst, plain)
    };
    let (own, other, stronger) = (shares(8 * MS, 1), shares(8 * MS, 2), shares(4 * MS, 3));
    let part = |gains: &dyn Fn(usize) -> bool| {
        let all = own.0.len().min(other.0.len()).min(stronger.0.len());
        (0..all).filter(|i| gains(*i)).count() as f64 / all as f64
    };
    let by_chance = part(&|i| push_gains(own.0[i], other.1[i]));
    let control = part(&|i| push_gains(own.2[i].0, other.2[i].1));
    assert!(by_chance < 0.005, "{by_chance}");
    assert!(control > 0.03, "without the doubt: {control}");
    // A vCPU that has three quarters instead of half is found within a second or two, at thirty windows a second.
    let found = part(&|i| push_gains(own.0[i], stronger.1[i]));
    assert!(found > 0.02, "{found}");
}

#[test]
fn a_few_late_wake_ups_are_no_news() {
    let mut model = vcpu_model::default();
    let (mut now, mut sampled) = (0, 0);
    for wake_up in 0..64u64 {
        now += 10 * MS;
        // At first all are served at once, later three of four wait.
        let late = wake_up >= 32 && wake_up % 4 != 0;
        let news = vcap_arrive(&mut model, now, 10 * MS, if late { MS } else { 0 });
        assert_eq!(news & 2, 0);
        sampled += news & 1;
    }
    assert_eq!(sampled, 4);
    assert!(model.share < SCALE / 2, "{}", model.share);
}

#[test]
fn several_preemptions_between_two_looks_are_as_many() {
    let mut model = vcpu_model::default();
    vcap_busy(&mut model, 8 * MS, 8 * MS, 6 * MS, 3);
    assert_eq!((model.preempted_ns, model.inactive_events, model.inactive_mean_ns), (6 * MS, 3, 2 * MS));
    assert_eq!(model.preemptions[preemption_bucket(2 * MS) as usize], 3);
    // Without a count: one interval. Exits of the host: none.
    vcap_busy(&mut model, 16 * MS, 8 * MS, 6 * MS, 0);
    assert_eq!((model.preempted_ns, model.inactive_events), (12 * MS, 4));
    vcap_busy(&mut model, 24 * MS, 8 * MS, 90_000, 5);
    assert_eq!((model.preempted_ns, model.inactive_events), (12 * MS, 4));
}

#[test]
fn what_is_not_known_or_too_old_counts_as_ordinary() {
    let mut model = vcpu_model::default();
    assert_eq!(vcap_effective(&model, 5), SCALE);
    for step in 1..=20 {
        vcap_busy(&mut model, step * MS, MS, MS / 2, 1);
    }
    assert!(vcap_fresh(&model, 21 * MS) && vcap_effective(&model, 21 * MS) < SCALE);
    assert_eq!(vcap_effective(&model, 60_000 * MS), SCALE);
}

fn view(share: u32, idle: bool, queued_ms: u64, preemption_ms: u64) -> place_view {
    place_view {
        queued_work: queued_ms * booked_work(MS),
        inactive_mean_ns: preemption_ms * MS,
        wait_ns: preemption_ms * MS * u64::from(SCALE - share) / u64::from(SCALE),
        share,
        idle,
        ..Default::default()
    }
}

#[test]
fn on_a_slower_core_all_work_takes_longer() {
    let fast = view(SCALE, true, 0, 0);
    let slow = place_view { speed: SCALE / 2, ..fast };
    assert_eq!(place_cost_ns(&slow, 4 * MS), 2 * place_cost_ns(&fast, 4 * MS));
    let of_any_speed = place_view { speed: SCALE, ..fast };
    assert_eq!(place_cost_ns(&of_any_speed, 4 * MS), place_cost_ns(&fast, 4 * MS));
    // All of a slow core and half of a fast one do the same work; the half one is preempted, too.
    let half = view(SCALE / 2, true, 0, 8);
    assert!(place_cost_ns(&slow, 4 * MS) < place_cost_ns(&half, 4 * MS));
    // A wait for the host does not depend on the core.
    let (waits, waits_slow) = (view(SCALE / 2, true, 0, 8), place_view { speed: SCALE / 2, ..half });
    let wait = place_cost_ns(&waits, MS) - 2 * MS;
    assert_eq!(place_cost_ns(&waits_slow, MS), wait + 4 * MS);
}

/// A running vCPU that has a task, or an idle one that is preempted half of the time, for 8 ms each.
#[test]
fn those_who_are_there_already_count_too() {
    let there =
        |of: u64| place_view { queued_work: booked_work(of), nr_tasks: 1, ..view(SCALE, false, 0, 0) };
    let idle = view(SCALE / 2, true, 0, 8);
    // Each of two long tasks would take twice as long, and the time of the other vCPU is lost, too.
    assert!(place_cost_ns(&there(12 * MS), 12 * MS) > place_cost_ns(&idle, 12 * MS));
    let alone_counts = place_view { nr_tasks: 0, ..there(12 * MS) };
    assert!(place_cost_ns(&alone_counts, 12 * MS) < place_cost_ns(&idle, 12 * MS), "the control must differ");
    // Short work is done soonest beside the long task, and hardly delays it.
    assert!(place_cost_ns(&there(32 * MS), MS / 2) < place_cost_ns(&idle, MS / 2));
    assert_eq!(delays_others_ns(4 * MS, 1, MS / 2), MS / 2);
    assert_eq!(delays_others_ns(4 * MS, 3, 12 * MS), 4 * MS, "not for longer than they would run");
    assert_eq!(delays_others_ns(u64::MAX, u32::MAX, u64::MAX), 32 * MS * u64::from(u32::MAX));
    assert_eq!((delays_others_ns(0, 1, MS), delays_others_ns(MS, 0, MS)), (0, 0));
}

#[test]
fn what_is_foreseen_replaces_the_chances() {
    let weak = view(512, true, 0, 8);
    let there = place_view { predicted: true, active_for_ns: 6 * MS, active_mean_ns: 8 * MS, ..weak };
    let away = place_view {
        predicted: true,
        active_for_ns: 0,
        preempted_for_ns: 7 * MS,
        active_mean_ns: 8 * MS,
        ..weak
    };
    // Running for long enough: full speed, no wait. Preempted: the task waits until that is over.
    assert_eq!(place_cost_ns(&there, MS), MS);
    assert_eq!(place_cost_ns(&away, MS), 8 * MS);
    // Without prediction: twice the mean wait of 4 ms, and the work at half of a pCPU.
    assert_eq!(place_cost_ns(&weak, MS), 10 * MS);
    // Work that does not fit is preempted.
    assert_eq!(place_cost_ns(&there, 10 * MS), 20 * MS);
}

#[test]
fn a_short_task_prefers_a_busy_strong_vcpu_to_an_idle_weak_one() {
    let strong_busy = view(1024, false, 1, 0);
    let weak_idle = view(300, true, 0, 7);
    assert!(place_cost_ns(&strong_busy, MS / 2) < place_cost_ns(&weak_idle, MS / 2));
    // Not at any price: behind a long queue the weak one is faster.
    let strong_full = view(1024, false, 20, 0);
    assert!(place_cost_ns(&strong_full, MS / 2) > place_cost_ns(&weak_idle, MS / 2));
}

#[test]
fn long_work_waits_for_more_than_a_turn_of_those_before_it() {
    let (short, long) = (booked_work(MS / 2), booked_work(12 * MS));
    // A task that needs less than a slice waits for one slice of each.
    assert_eq!((delayed_others_ns(short, MS), delayed_others_ns(3 * long, MS)), (MS / 2, 12 * MS));
    // Of equal tasks each gets its part; shorter ones, and much longer ones, take no more than both need.
    assert_eq!(delayed_others_ns(3 * long, 12 * MS), 36 * MS);
    assert_eq!(
        (delayed_others_ns(short, 12 * MS), delayed_others_ns(booked_work(32 * MS), 8 * MS)),
        (MS / 2, 8 * MS)
    );
    // One word holds many tasks: what a task adds it subtracts again.
    let many = 10_000 * booked_work(u64::MAX);
    assert_eq!(delayed_others_ns(many, u64::MAX), 320_000 * MS);
    assert_eq!(many - 9_999 * booked_work(u64::MAX), booked_work(u64::MAX));
    assert!(booked_work(u64::MAX) < 1 << 47);
}

#[test]
fn long_work_goes_to_a_weak_vcpu_before_it_queues_at_a_strong_one() {
    let full = place_view { queued_work: 2 * booked_work(12 * MS), ..view(SCALE, false, 0, 0) };
    let weak = view(512, true, 0, 4);
    assert!(place_cost_ns(&full, 12 * MS) > place_cost_ns(&weak, 12 * MS));
    // Work of half a millisecond is done sooner beside much longer work.
    let one = place_view { queued_work: booked_work(12 * MS), ..full };
    assert!(place_cost_ns(&one, MS / 2) <= place_cost_ns(&weak, MS / 2));
}

#[test]
fn who_is_woken_by_an_interrupt_need_not_wait_for_its_vcpu_this_time() {
    let elsewhere = view(512, true, 0, 8);
    let here = place_view { here: true, ..elsewhere };
    // Half a pCPU, mean wait 4 ms: it counts twice elsewhere, and once, for the next time, here.
    assert_eq!((place_cost_ns(&elsewhere, MS), place_cost_ns(&here, MS)), (10 * MS, 6 * MS));
    // An uncontended vCPU elsewhere is still better: here the next interrupt would be late, too.
    assert!(place_cost_ns(&view(SCALE, true, 0, 0), MS) < place_cost_ns(&here, MS));
    // For a busy vCPU this changes nothing.
    let busy = view(512, false, 1, 8);
    assert_eq!(place_cost_ns(&busy, MS), place_cost_ns(&place_view { here: true, ..busy }, MS));
}

#[test]
fn a_vcpu_that_has_just_come_back_is_better_than_one_that_is_about_to_go() {
    // 8 ms running, 8 ms preempted.
    let after = |ms: u64| place_view { on_cpu_for_ns: ms * MS + 1, ..view(512, false, 0, 8) };
    let costs = [0, 2, 4, 6, 8, 80].map(|ms| place_cost_ns(&after(ms), MS));
    assert!(costs.is_sorted() && costs[0] < costs[2], "{costs:?}");
    // At first as by share, and never more than twice what preemptions cost then.
    assert!(costs[0].abs_diff(2 * MS) < MS / 1000 && costs[5] == 3 * MS, "{costs:?}");
    // An uncontended vCPU loses nothing, and nothing overflows.
    assert_eq!(place_cost_ns(&place_view { share: SCALE, ..after(3) }, MS), MS);
    let most = place_view { share: 0, inactive_mean_ns: 200 * MS, ..after(3) };
    assert!(place_cost_ns(&most, 1 << 45) > 1 << 45);
}

#[test]
fn who_asks_for_short_turns_is_sent_where_it_is_answered_soon() {
    // A vCPU of small share that is scheduled in at once, and an uncontended one that is not.
    let (weak, away) = (view(SCALE / 4, true, 0, 0), view(SCALE, true, 0, 4));
    let away = place_view { wait_ns: 4 * MS, ..away };
    let (ordinary, hinted) = (place_work_ns(8 * MS, 3 * MS, 3 * MS), place_work_ns(8 * MS, MS / 2, 3 * MS));
    assert_eq!((ordinary, hinted), (8 * MS, MS / 2));
    assert!(place_cost_ns(&weak, ordinary) > place_cost_ns(&away, ordinary));
    assert!(place_cost_ns(&weak, hinted) < place_cost_ns(&away, hinted));
}

#[test]
fn equal_vcpus_always_share_waiting_work_and_weak_ones_leave_short_work() {
    let mut pull = pull_view {
        waiting: 1,
        from_share: 1024,
        to_share: 1000,
        source_burst_ns: 0,
        drain_ns: 0,
        source_inactive: false,
        far: false,
    };
    assert!(pull_helps(&pull));
    pull.to_share = 300;
    assert!(!pull_helps(&pull));
    pull.source_inactive = true;
    assert!(pull_helps(&pull));
    pull = pull_view { source_inactive: false, source_burst_ns: 40 * MS, ..pull };
    assert!(pull_helps(&pull));
}

#[test]
fn the_first_samples_of_a_share_weigh_the_same_and_doubt_comes_before_they_differ() {
    let mut model = vcpu_model::default();
    let mut now = 0;
    let mut sample = |model: &mut vcpu_model, share: u64| {
        let window = 500 * MS;
        now += window;
        vcap_busy(model, now, window, window * (100 - share) / 100, 1);
        now
    };
    // Three samples that are high by chance, then five low ones.
    let mut at = sample(&mut model, 90);
    assert!(vcap_at_worst(&model, at) < model.share && vcap_at_best(&model, at) > model.share);
    for share in [90, 90, 30, 30, 30, 30, 30] {
        at = sample(&mut model, share);
    }
    let mean = (3 * 90 + 5 * 30) * SCALE / 100 / 8;
    assert!(model.steady_share.abs_diff(mean) < 40, "{} of {mean}", model.steady_share);
    // Without recent samples it does not count as strong.
    let later = at + 5_000 * MS;
    assert!(vcap_at_worst(&model, later) < SCALE / 2 && vcap_effective(&model, later) == SCALE);
    assert_eq!(vcap_at_worst(&model, at + 60_000 * MS), SCALE);
}

#[test]
fn work_crosses_caches_only_where_that_saves_more_than_it_costs() {
    let pull = |drain_us: u64, far, source_inactive| {
        let share = 1024;
        let drain_ns = place_drain_ns(drain_us * 1000, share);
        pull_helps(&pull_view {
            waiting: 1,
            from_share: share,
            to_share: share,
            source_burst_ns: 0,
            drain_ns,
            source_inactive,
            far,
        })
    };
    assert!(!pull(300, true, false), "a pipeline's stages stay together");
    assert!(pull(32_000, true, false), "who waits for a CPU-bound task does not");
    assert!(pull(300, true, true), "nor for a vCPU that is away");
    assert!(pull(300, false, false), "within a cache whoever is idle takes");
    assert!(move_cost_ns(true) > move_cost_ns(false));
}

#[test]
fn lengths_of_preemptions_are_counted_four_per_doubling() {
    let bucket = |us: u64| preemption_bucket(us * 1000);
    assert_eq!([0, 100, 125, 199, 200, 250, 400].map(bucket), [0, 0, 1, 3, 4, 5, 8]);
    assert_eq!(preemption_bucket(1 << 40), 47);
    let buckets: Vec<u32> = (0..300_000).step_by(11).map(bucket).collect();
    assert!(buckets.windows(2).all(|pair| pair[0] <= pair[1] && pair[1] - pair[0] <= 1));
}

#[test]
fn neighbours_on_a_core_or_a_hardware_thread_count() {
    assert_eq!(share_beside_busy(1024, 0, 0), 1024);
    assert_eq!(share_beside_busy(1024, 1, 1), 320, "stacked siblings share a core, too");
    assert_eq!(share_beside_busy(1024, 0, 1), 640);
    assert!(push_gains(share_beside_busy(1024, 1, 0), 1024));
}

#[test]
fn some_imbalance_may_stay_between_caches() {
    assert_eq!(far_excess(10, 100), 0);
    // Three equal tasks on two LLCs are rotated as on one.
    let excess = far_excess(excess_weight(2 * UNIT, 1024, UNIT, 1024), 2 * UNIT);
    assert!(excess > 0 && !move_improves(UNIT, excess));
    let excess = far_excess(excess_weight(3 * UNIT, 1024, UNIT, 1024), 3 * UNIT);
    assert!(move_improves(UNIT, excess));
}

proptest! {
    #[test]
    fn cost_grows_with_queue_preemption_and_weakness(
        share in 1u32..=1024, queued in 0u64..100, preemption in 0u64..100, work in 1u64..50, idle in any::<bool>()
    ) {
        let base = place_cost_ns(&view(share, idle, queued, preemption), work * MS);
        prop_assert!(base >= work * MS);
        prop_assert!(place_cost_ns(&view(share, idle, queued + 1, preemption), work * MS) > base);
        prop_assert!(place_cost_ns(&view(share, idle, queued, preemption + 1), work * MS) >= base);
        if share > 1 {
            prop_assert!(place_cost_ns(&view(share - 1, idle, queued, preemption), work * MS) >= base);
        }
    }

    #[test]
    fn moving_never_pays_both_ways(a in 1u32..=1024, b in 1u32..=1024) {
        prop_assert!(!(push_gains(a, b) && push_gains(b, a)));
        prop_assert!(!push_gains(a, a));
    }

    #[test]
    fn no_waiting_task_no_pull(from in 0u32..=1024, to in 0u32..=1024, burst in any::<u64>(), inactive in any::<bool>()) {
        let pull = pull_view { waiting: 0, from_share: from, to_share: to, source_burst_ns: burst, drain_ns: u64::MAX, source_inactive: inactive, far: inactive };
        prop_assert!(!pull_helps(&pull));
    }

    #[test]
    fn the_model_survives_any_observation(steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 0..200)) {
        let mut model = vcpu_model::default();
        for (now, elapsed, stolen, busy) in steps {
            if busy {
                vcap_busy(&mut model, now, elapsed % (1 << 40), stolen % (1 << 40), elapsed as u32);
            } else {
                vcap_arrive(&mut model, now, elapsed % (1 << 40), stolen % (1 << 40));
            }
            prop_assert!(model.share <= SCALE);
        }
    }
}
