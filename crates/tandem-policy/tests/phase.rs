//! Preemption periods, predictable and not, and their use for proactive migration. Also vCPUs that are
//! left without work.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_policy::{ivh::*, ivh_view, phase::*, rhythm_length, rwc::*, straggler_view, vcpu_phase};

const MS: u64 = 1_000_000;
const TICK: u64 = 4 * MS;

fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 11) as f64 + 1.0) / (1u64 << 53) as f64
}

/// A vCPU that is always busy, sampled by ticks: a tick that falls into a preemption interval comes when that ends.
struct Busy {
    now: u64,
    seen: u64,
    next_tick: u64,
    stolen: u64,
    returns: u32,
}

impl Busy {
    fn new() -> Self {
        Self { now: 0, seen: 0, next_tick: TICK, stolen: 0, returns: 0 }
    }

    fn look(&mut self, phase: &mut vcpu_phase, overdue: bool) {
        phase_busy(phase, self.now, self.now - self.seen, self.stolen, self.returns, overdue);
        (self.seen, self.stolen, self.returns) = (self.now, 0, 0);
    }

    fn run(&mut self, phase: &mut vcpu_phase, on: u64) {
        let end = self.now + on;
        while self.next_tick <= end {
            self.now = self.next_tick;
            self.next_tick += TICK;
            self.look(phase, false);
        }
        self.now = end;
    }

    fn preempted(&mut self, phase: &mut vcpu_phase, off: u64) {
        self.now += off;
        self.stolen += off;
        self.returns += 1;
        if self.next_tick <= self.now {
            self.next_tick = (self.now / TICK + 1) * TICK;
            self.look(phase, true);
        }
    }
}

#[test]
fn an_even_host_is_foreseen_within_a_tenth_of_a_millisecond() {
    for (on, off) in [(8, 8), (16, 16), (5, 11), (30, 9), (32, 32)] {
        let (mut phase, mut vcpu) = (vcpu_phase::default(), Busy::new());
        for _ in 0..6 {
            vcpu.run(&mut phase, on * MS);
            vcpu.preempted(&mut phase, off * MS);
        }
        assert!(phase_even(&phase), "{on}/{off}: {phase:?}");
        // Just scheduled in: it runs for `on`, is preempted for `off`, and so on for a while.
        for period in 0..10u64 {
            let back = vcpu.now + period * (on + off) * MS;
            let f = phase_forecast(&phase, back + MS);
            assert!(f.known && f.active_for_ns.abs_diff((on - 1) * MS) < MS / 10, "{on}/{off}: {f:?}");
            let f = phase_forecast(&phase, back + (on + 1) * MS);
            assert!(f.known && f.active_for_ns == 0, "{on}/{off}: {f:?}");
            assert!(f.preempted_for_ns.abs_diff((off - 1) * MS) < MS / 10, "{on}/{off}: {f:?}");
        }
    }
}

#[test]
fn the_work_of_the_host_itself_does_not_disturb_a_rhythm() {
    let (mut phase, mut vcpu, mut state) = (vcpu_phase::default(), Busy::new(), 5);
    for round in 0..100 {
        // Every third active period is interrupted for a moment.
        if round % 3 == 0 {
            let first = (random(&mut state) * 7e6) as u64;
            vcpu.run(&mut phase, first);
            vcpu.preempted(&mut phase, MS * 6 / 10);
            vcpu.run(&mut phase, 8 * MS - first - MS * 6 / 10);
        } else {
            vcpu.run(&mut phase, 8 * MS);
        }
        vcpu.preempted(&mut phase, 8 * MS);
        if round > 50 {
            assert!(phase_even(&phase), "round {round}: {phase:?}");
        }
    }
}

#[test]
fn an_irregular_host_is_hardly_ever_foreseen() {
    let (mut phase, mut vcpu, mut state) = (vcpu_phase::default(), Busy::new(), 7);
    let mut exponential = |mean: u64| (-(random(&mut state).ln()) * mean as f64) as u64;
    let mut even = 0;
    for _ in 0..5000 {
        vcpu.run(&mut phase, exponential(8 * MS));
        vcpu.preempted(&mut phase, exponential(8 * MS));
        even += u32::from(phase_even(&phase));
    }
    assert!(even < 50, "{even} of 5000");
}

#[test]
fn short_preemptions_that_never_meet_a_tick_ask_for_looks_at_other_moments() {
    let (mut phase, mut vcpu) = (vcpu_phase::default(), Busy::new());
    // A period of one tick: each tick falls into the active period.
    vcpu.run(&mut phase, MS);
    for _ in 0..20 {
        vcpu.preempted(&mut phase, 2 * MS);
        vcpu.run(&mut phase, 2 * MS);
    }
    assert!(!phase_even(&phase));
    assert!(phase_wants_scouts(&phase));
}

#[test]
fn a_vcpu_that_was_idle_says_nothing_of_how_long_it_would_have_stayed() {
    let mut phase = vcpu_phase::default();
    // Woken when the host is about to schedule it in, used for 2 ms, idle when it would be preempted.
    for round in 1..50u64 {
        let back = round * 16 * MS;
        phase_woken(&mut phase, back, 3 * MS, 1);
        phase_busy(&mut phase, back + 2 * MS, 2 * MS, 0, 0, false);
        phase_idle(&mut phase);
    }
    assert!(!phase_even(&phase) && phase.on.score == 0, "{phase:?}");
}

#[test]
fn a_rhythm_that_moves_is_given_up_and_learned_anew() {
    let (mut phase, mut vcpu) = (vcpu_phase::default(), Busy::new());
    for (on, off) in [(8, 8), (20, 5), (6, 18)] {
        for _ in 0..16 {
            vcpu.run(&mut phase, on * MS);
            vcpu.preempted(&mut phase, off * MS);
        }
        let f = phase_forecast(&phase, vcpu.now + MS);
        assert!(f.known && f.active_for_ns.abs_diff((on - 1) * MS) < MS / 2, "{on}/{off}: {phase:?}");
    }
}

/// Periods of `period` milliseconds, for half of which the vCPU is preempted. `next` gives how far a schedule-in has
/// shifted from an even host's, and how late it is observed; some are not observed at all. Returns the errors of the
/// predicted ends of active periods, in nanoseconds, except for the first ones.
fn ends_foreseen(period: u64, periods: u64, mut next: impl FnMut() -> (u64, u64)) -> Vec<f64> {
    let (mut phase, mut wrong) = (vcpu_phase::default(), Vec::new());
    let (start, half) = (1_000 * MS, period * MS / 2);
    let mut seen = start;
    for count in 1..periods {
        let (shifted, late) = next();
        let returns = start + count * period * MS + shifted;
        let now = returns + late;
        if count % 5 == 3 {
            // Idle meanwhile, and woken while it was preempted, or not at all.
            phase_idle(&mut phase);
            if count % 2 == 0 {
                phase_woken(&mut phase, now, 3 * MS, 1);
            }
        } else {
            phase_busy(&mut phase, now, now - seen, half, 1, true);
        }
        seen = now;
        let f = phase_forecast(&phase, now + MS);
        if count > 20 && f.known {
            wrong.push((now + MS + f.active_for_ns) as f64 - (returns + half) as f64);
        }
    }
    wrong
}

#[test]
fn ends_are_foreseen_more_exactly_than_returns_are_seen() {
    for period in [8, 16, 32, 64] {
        let mut state = period;
        // Interrupts that are late by up to 0.8 ms, and now and then by two more.
        let wrong = ends_foreseen(period, 400, || {
            let rarely = if random(&mut state) < 0.05 { 2e6 } else { 0.0 };
            (0, (random(&mut state) * 8e5 + rarely) as u64)
        });
        assert!(wrong.len() > 250, "{period}: {} of 380", wrong.len());
        // Of the schedule-ins themselves, and of the lengths between them, half are that near.
        let near = wrong.iter().filter(|wrong| (-2e5..4.5e5).contains(*wrong)).count();
        assert!(near * 10 >= wrong.len() * 9, "{period}: {near} of {}", wrong.len());
    }
}

#[test]
fn a_host_without_a_clock_is_foreseen_from_its_last_return() {
    // A neighbour whose slices are up to two milliseconds longer: a shift remains.
    let (mut state, mut shifted) = (3, 0.0);
    let wrong = ends_foreseen(16, 400, || {
        shifted += random(&mut state) * 2e6;
        (shifted as u64, 0)
    });
    assert!(wrong.len() > 250, "{} of 380", wrong.len());
    let near = wrong.iter().filter(|wrong| wrong.abs() < 1.5e6).count();
    assert!(near * 10 >= wrong.len() * 8, "{near} of {}", wrong.len());
}

#[test]
fn a_task_leaves_only_where_it_gains() {
    let view = |left, away, wait, stay| ivh_view {
        left_ns: left,
        away_ns: away,
        margin_ns: MS / 2,
        wait_ns: wait,
        stay_ns: stay,
        cost_ns: MS / 4,
        queue_ns: 0,
        risk: 0,
        taken: false,
    };
    // Out of phase: the other vCPU is scheduled in when the own one is preempted.
    assert!(ivh_gain_ns(&view(MS / 2, 8 * MS, MS / 2, 8 * MS)) > 6 * MS);
    // The other vCPU is scheduled in no sooner than the own one.
    assert_eq!(ivh_gain_ns(&view(MS / 2, 8 * MS, 8 * MS, 8 * MS)), 0);
    // The other vCPU is preempted at once, too.
    assert_eq!(ivh_gain_ns(&view(MS / 2, 8 * MS, 0, MS / 2)), 0);
    // A preemption interval as short as a migration takes.
    assert_eq!(ivh_gain_ns(&view(MS / 2, MS / 2, 0, 8 * MS)), 0);
}

#[test]
fn moves_that_cost_half_of_every_active_period_are_not_made() {
    let out_of_phase = |period, margin, cost| ivh_view {
        left_ns: period,
        away_ns: period,
        margin_ns: margin,
        wait_ns: margin,
        stay_ns: period,
        cost_ns: cost,
        queue_ns: 0,
        risk: 0,
        taken: false,
    };
    // Staying serves for one of two periods; migrating for both, less margin and cost. Those are not
    // all: migrations are work.
    assert!(ivh_gain_ns(&out_of_phase(10 * MS, 2 * MS, MS)) > 0);
    assert_eq!(ivh_gain_ns(&out_of_phase(6 * MS - 1, 2 * MS, MS)), 0);
    // Work queued at the target is not part of that.
    let queued = ivh_view { queue_ns: MS, ..out_of_phase(10 * MS, 2 * MS, MS) };
    assert!((1..ivh_gain_ns(&out_of_phase(10 * MS, 2 * MS, MS))).contains(&ivh_gain_ns(&queued)));
    assert_eq!(ivh_gain_ns(&out_of_phase(4 * MS, 2 * MS, MS)), 0);
    assert!(ivh_gain_ns(&out_of_phase(4 * MS, MS / 4, MS / 100)) > 0);
    // A target that is never preempted need not be left again.
    let whole = ivh_view { wait_ns: 0, stay_ns: u64::MAX / 2, ..out_of_phase(4 * MS, 2 * MS, MS) };
    assert!(ivh_gain_ns(&whole) > 0);
    assert_eq!(ivh_gain_ns(&ivh_view { taken: true, ..whole }), 0, "it is taken, too, nobody knows when");
}

#[test]
fn moves_that_fail_too_often_are_not_made_until_that_is_forgotten() {
    let view = |risk| ivh_view {
        left_ns: 8 * MS,
        away_ns: 8 * MS,
        margin_ns: MS,
        wait_ns: MS,
        stay_ns: 8 * MS,
        cost_ns: MS,
        queue_ns: 0,
        risk,
        taken: false,
    };
    let mut risk = 0;
    // One failure in twenty is bearable, one in two is not.
    for i in 0..400 {
        risk = ivh_risk(risk, i % 20 == 0);
    }
    assert!(ivh_gain_ns(&view(risk)) > 2 * MS, "{risk}");
    for i in 0..400 {
        risk = ivh_risk(risk, i % 2 == 0);
    }
    assert_eq!(ivh_gain_ns(&view(risk)), 0, "{risk}");
    for _ in 0..500 {
        risk = ivh_forgotten(u64::from(risk)) as u32;
    }
    assert!(ivh_gain_ns(&view(risk)) > 2 * MS, "{risk}");
}

#[test]
fn what_a_move_costs_is_learned_and_forgotten() {
    let mut cost = 0;
    for _ in 0..80 {
        cost = ivh_cost_ns(cost, MS);
    }
    assert!(cost.abs_diff(MS) < MS / 20, "{cost}");
    // One in ten that comes a whole period late raises the cost of all by as much as it costs.
    for i in 0..200 {
        cost = ivh_cost_ns(cost, if i % 10 == 0 { 17 * MS } else { MS });
    }
    assert!((2 * MS..3 * MS + MS / 2).contains(&cost), "{cost}");
    // Called two or three times in every active period.
    let later = (0..177).fold(cost, |cost, _| ivh_forgotten(cost));
    assert!(later.abs_diff(cost / 2) < cost / 25, "{later}");
    for _ in 0..80 {
        cost = ivh_cost_ns(cost, MS / 100);
    }
    assert!(cost < MS / 10, "{cost}");
}

#[test]
fn only_who_left_too_late_leaves_earlier() {
    let on = rhythm_length { mean_ns: 8 * MS, dev_ns: 0, score: 8 };
    let mut early = 0;
    for _ in 0..100 {
        early = ivh_caught(early, &on);
    }
    assert_eq!(early, MS);
    assert_eq!(ivh_caught(MS / 2, &rhythm_length { mean_ns: 2 * MS, ..on }), MS / 2);
    for _ in 0..100 {
        early = ivh_left_in_time(early);
    }
    assert_eq!(early, 0);
}

#[test]
fn one_caught_leaving_is_made_good_for_by_sixteen_that_left_in_time() {
    let on = rhythm_length { mean_ns: 8 * MS, dev_ns: 0, score: 8 };
    let once = ivh_caught(0, &on);
    let after = |n: usize| (0..n).fold(once, |early, _| ivh_left_in_time(early));
    assert!(once > 0 && after(15) > 0);
    assert_eq!(after(16), 0);
}

#[test]
fn a_rhythm_is_learned_only_where_the_share_is_no_worse_and_not_again_and_again() {
    assert!(ivh_learns(512, 512, 10_000 * MS));
    assert!(ivh_learns(512, 470, 10_000 * MS), "shares are measured");
    assert!(!ivh_learns(512, 300, 10_000 * MS));
    assert!(ivh_learns(300, 512, 10_000 * MS));
    assert!(!ivh_learns(512, 512, 1_000 * MS));
}

proptest! {
    #[test]
    fn no_gain_is_larger_than_the_preemption_that_is_avoided(
        left in 0u64..50_000_000, away in 0u64..200_000_000, margin in 0u64..10_000_000,
        wait in 0u64..300_000_000, stay in any::<u64>(), cost in 0u64..4_000_000, queue in 0u64..4_000_000,
        risk in 0u32..=1024, taken in any::<bool>(),
    ) {
        let view = ivh_view {
            left_ns: left, away_ns: away, margin_ns: margin, wait_ns: wait, stay_ns: stay, cost_ns: cost, queue_ns: queue, risk, taken,
        };
        prop_assert!(ivh_gain_ns(&view) <= away);
    }

    #[test]
    fn forecasts_never_reach_beyond_a_period(
        looks in prop::collection::vec((1u64..60_000_000, 0u64..60_000_000, 0u32..4, any::<bool>(), any::<bool>()), 1..200),
        ahead in 0u64..400_000_000,
    ) {
        let (mut phase, mut now) = (vcpu_phase::default(), 1_000_000_000u64);
        for (elapsed, stolen, returns, overdue, idle) in looks {
            now += elapsed;
            if idle {
                phase_idle(&mut phase);
                phase_woken(&mut phase, now, stolen, returns);
            } else {
                phase_busy(&mut phase, now, elapsed, stolen, returns, overdue);
            }
            let f = phase_forecast(&phase, now + ahead);
            if f.known {
                prop_assert!((f.active_for_ns == 0) != (f.preempted_for_ns == 0), "{f:?}");
                prop_assert!(f.active_for_ns <= 400_000_000 && f.preempted_for_ns <= 400_000_000, "{f:?}");
            }
        }
    }

    #[test]
    fn whoever_is_the_strongest_is_no_straggler(shares in prop::collection::vec(0u32..=1024, 1..64)) {
        let sum: u64 = shares.iter().map(|share| u64::from(*share)).sum();
        let best = shares.iter().copied().max().unwrap_or(0);
        let view = straggler_view {
            others_sum: sum - u64::from(best),
            others: shares.len() as u32 - 1,
            share: best,
            samples: 10,
            fresh: true,
            banned: false,
            since_ns: u64::MAX,
        };
        prop_assert!(!is_straggler(&view) || best == 0);
    }
}

#[test]
fn a_straggler_is_banned_with_hysteresis_and_only_while_it_is_known() {
    let view = |share, banned| straggler_view {
        others_sum: 3 * 1024,
        others: 3,
        share,
        samples: 10,
        fresh: true,
        banned,
        since_ns: 5_000 * MS,
    };
    assert!(is_straggler(&view(102, false)));
    assert!(!is_straggler(&view(180, false)));
    assert!(is_straggler(&view(180, true)));
    assert!(!is_straggler(&view(220, true)));
    assert!(!is_straggler(&straggler_view { fresh: false, ..view(102, true) }));
    assert!(!is_straggler(&straggler_view { others: 0, others_sum: 0, ..view(102, false) }));
    // A decision holds for a second.
    assert!(!is_straggler(&straggler_view { since_ns: 10 * MS, ..view(102, false) }));
    assert!(is_straggler(&straggler_view { since_ns: 10 * MS, ..view(900, true) }));
    assert!(takes_best_effort(STRAGGLER, false) && !takes_normal(STRAGGLER));
    assert!(!takes_best_effort(STACKED, true) && takes_best_effort(STACKED, false));
    assert!(!takes_best_effort(PARKED, false) && takes_normal(0));
}

#[test]
fn a_straggler_whose_work_nobody_waits_for_may_do_it() {
    const LATER: u64 = 5_000 * MS;
    let after = |part: u32, looks: u32, idle: &dyn Fn(u32) -> bool| {
        (0..looks).fold(part, |part, i| delayed_others(part, idle(i)))
    };
    let banned = |part| holds_others_up(part, true, LATER, 0);
    let in_use = |part| holds_others_up(part, false, LATER, 0);
    // At first others are assumed to wait, and a second is enough to see that they do not.
    let at_first = 256;
    assert!(in_use(at_first));
    let never = after(at_first, 50, &|_| false);
    assert!(!banned(never) && !in_use(never));
    // Threads that meet at a barrier: others are idle for half of the time, and 0.3 s show it.
    let barrier = after(never, 14, &|i| i % 2 == 0);
    assert!(in_use(barrier) && banned(barrier));
    // Another vCPU is idle now and then: the decision stays.
    let seldom = after(never, 500, &|i| i % 6 == 0);
    assert!(banned(seldom) && !in_use(seldom), "{seldom}");
    // So does a recent decision: a ban for a second, a trial for a tenth of one.
    assert!(holds_others_up(0, true, 900 * MS, 0) && !holds_others_up(1024, false, 90 * MS, 0));
    assert!(holds_others_up(1024, false, 110 * MS, 0));
    // Trials that fail become ever rarer, down to one a minute; a trial that lasts starts anew.
    let failed = (0..20).fold(0, |failed, _| trials_failed(failed, 200 * MS));
    assert!(holds_others_up(0, true, 60_000 * MS, failed) && !holds_others_up(0, true, 65_000 * MS, failed));
    assert_eq!(trials_failed(failed, 5_000 * MS), 0);
    assert!(after(1024, 500, &|_| true) <= 1024);
}
