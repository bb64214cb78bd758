//! Virtual deadlines: shares, bounded credit, no starvation. The queue of the tests is the textbook's:
//! one CPU, the earliest deadline runs, charged with the functions of `policy/eevdf.h`.
#![allow(missing_docs, clippy::unwrap_used)]

use proptest::prelude::*;
use tandem_policy::eevdf::*;
use tandem_policy::UNIT;

const BASE_NS: u64 = 3_000_000;
const TICK_NS: u64 = 4_000_000;

struct Task {
    weight: u64,
    v: u64,
    deadline: u64,
    request: u64,
    service: u64,
    waited_since: u64,
    longest_wait: u64,
}

struct Queue {
    clock: u64,
    now: u64,
    tasks: Vec<Task>,
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// As in the scheduler: the distance of the deadline is bounded.
    Bounded,
    /// v + r / w, without an eligibility test.
    Unbounded,
    RoundRobin,
}

impl Queue {
    fn with(nices: &[i32], order: Order) -> Self {
        let weights: Vec<u64> = nices.iter().map(|nice| u64::from(weight_of_nice(*nice)) << 10).collect();
        let total: u64 = weights.iter().sum();
        let mut queue = Queue { clock: 1 << 40, now: 0, tasks: Vec::new() };
        for &weight in &weights {
            let request = request_ns(BASE_NS, weight, total, weights.len() as u32);
            let v = queue.clock;
            let deadline = v + distance(request, weight, order);
            let (service, waited_since, longest_wait) = (0, 0, 0);
            queue.tasks.push(Task { weight, v, deadline, request, service, waited_since, longest_wait });
        }
        queue
    }

    fn total(&self) -> u64 {
        self.tasks.iter().map(|t| t.weight).sum()
    }

    /// Runs the task with the earliest deadline for its request and `overrun_ns` more.
    fn step(&mut self, order: Order, overrun_ns: u64) -> usize {
        let total = self.total();
        let key = |task: &Task| if order == Order::RoundRobin { task.waited_since } else { task.deadline };
        let pick = (0..self.tasks.len()).min_by_key(|&i| key(&self.tasks[i])).unwrap_or(0);
        let now = self.now;
        let task = &mut self.tasks[pick];
        let ran = task.request + overrun_ns;
        task.longest_wait = task.longest_wait.max(now - task.waited_since);
        task.service += ran;
        task.v += virtual_ns(ran, task.weight);
        task.deadline = task.v + distance(task.request, task.weight, order);
        task.waited_since = now + ran;
        self.now += ran;
        self.clock += virtual_ns(ran, total);
        pick
    }

    fn share(&self, i: usize) -> f64 {
        self.tasks[i].service as f64 / self.now as f64
    }
}

fn distance(request: u64, weight: u64, order: Order) -> u64 {
    match order {
        Order::Unbounded => virtual_ns(request, weight),
        _ => deadline_distance(request, weight, BASE_NS),
    }
}

#[test]
fn the_length_of_a_tick_is_one_that_kernels_have() {
    for hz in [100_u64, 250, 300, 1000] {
        let exact = 1_000_000_000 / hz;
        // Thirty-two jiffies are counted: one more or less is three percent.
        for measured in [exact - exact * 4 / 100, exact, exact + exact * 4 / 100] {
            assert_eq!(tandem_policy::base::tick_length_ns(measured), exact, "HZ={hz}, measured {measured}");
        }
    }
}

#[test]
fn weights_are_the_kernels() {
    assert_eq!(weight_of_nice(0), 1024);
    assert_eq!(weight_of_nice(-20), 88761);
    assert_eq!(weight_of_nice(19), 15);
    for nice in -20..19 {
        let step = f64::from(weight_of_nice(nice)) / f64::from(weight_of_nice(nice + 1));
        assert!((1.15..1.32).contains(&step), "nice {nice}: {step}");
    }
    // Out of range: ordinary, never an access outside of the table.
    for nice in [-21, 20, i32::MIN, i32::MAX - 20] {
        assert_eq!(weight_of_nice(nice), 1024);
    }
}

#[test]
fn cpu_bound_tasks_share_by_weight_and_round_robin_does_not() {
    for nices in [[0, -3, -6], [-10, 0, 10], [-20, 0, 5]] {
        let weights: Vec<f64> = nices.map(|nice| f64::from(weight_of_nice(nice))).to_vec();
        let total: f64 = weights.iter().sum();
        let run = |order| {
            let mut queue = Queue::with(&nices, order);
            for _ in 0..200_000 {
                queue.step(order, 0);
            }
            (0..3).map(|i| (queue.share(i) / (weights[i] / total) - 1.0).abs()).fold(0.0, f64::max)
        };
        assert!(run(Order::Bounded) < 0.01, "{nices:?}: error {}", run(Order::Bounded));
        assert!(run(Order::RoundRobin) > 0.3, "the control must fail: {}", run(Order::RoundRobin));
    }
}

/// One heavy task beside light ones: how far does it run ahead of the waiting tasks (ms at nice 0)?
#[test]
fn a_heavy_task_does_not_run_far_ahead_of_light_ones() {
    let largest_lead_ms = |order| {
        let mut queue = Queue::with(&[-10, 19, 19, 19], order);
        let mut largest = 0;
        for _ in 0..5_000 {
            queue.step(order, 0);
            let least = queue.tasks.iter().map(|task| task.v).min().unwrap_or(0);
            largest = largest.max(queue.tasks[0].v - least);
        }
        largest / 1_000_000
    };
    assert!(largest_lead_ms(Order::Bounded) <= 3, "{}", largest_lead_ms(Order::Bounded));
    assert!(largest_lead_ms(Order::Unbounded) > 20, "the control must be worse");
}

proptest! {
    #[test]
    fn nobody_starves_and_nobody_leads_by_more_than_the_bound(
        nices in prop::collection::vec(-20i32..=19, 2..8), overrun_ns in 0u64..TICK_NS,
    ) {
        let mut queue = Queue::with(&nices, Order::Bounded);
        let total = queue.total();
        for _ in 0..20_000 {
            queue.step(Order::Bounded, overrun_ns);
            for a in &queue.tasks {
                // policy/eevdf.h: the lead over a waiting task is at most B and one's own slice.
                let bound = BASE_NS + virtual_ns(a.request + overrun_ns, a.weight) + 1;
                for b in &queue.tasks {
                    prop_assert!(a.v.saturating_sub(b.v) <= bound, "lead {} over {bound}", a.v - b.v);
                }
            }
        }
        for task in &queue.tasks {
            // Between two slices the others catch up with the task's own slice, and lead by one bound each.
            let own = virtual_ns(task.request + overrun_ns, task.weight);
            let bound = real_ns(own + 2 * BASE_NS, total) + queue.tasks.len() as u64 * 2 * (BASE_NS + TICK_NS);
            let wait = task.longest_wait.max(queue.now - task.waited_since);
            prop_assert!(wait <= bound, "weight {} waited {wait}, bound {bound}", task.weight);
        }
    }

    #[test]
    fn virtual_and_real_time_are_inverse(ns in 0u64..10_000_000_000, weight in 16u64..(1 << 38)) {
        let back = real_ns(virtual_ns(ns, weight), weight);
        // Division loses less than one virtual nanosecond, the ranges of real_ns() 1 in 60000; both saturate.
        let lost = ns - ns / 1000 - 1;
        let least = if virtual_ns(ns, weight) >> 45 > 0 { 0 } else { lost.saturating_sub((weight >> 20) + 1) };
        prop_assert!(back <= ns && back >= least, "{ns} at {weight}: {back}");
    }

    #[test]
    fn credit_and_debt_among_all_are_limited(lag in any::<i32>(), own in -20i32..=19, other in -20i32..=19) {
        let of = |nice| u64::from(weight_of_nice(nice)) << 10;
        let (weight, others, limit) = (of(own), of(other), lag_limit(BASE_NS));
        let after = lag_on_join(i64::from(lag), weight, others, BASE_NS);
        prop_assert!(after.signum() * i64::from(lag.signum()) >= 0 && after.abs() <= i64::from(lag).abs());
        // What becomes of it when V has moved.
        let within = (i128::from(after) * i128::from(others) / i128::from(weight + others)).abs();
        prop_assert!(within <= i128::from(limit) + 2);
        prop_assert!(after == i64::from(lag) || within >= i128::from(limit) * 999 / 1000, "limited without need");
        // On an empty queue all of it counts.
        prop_assert_eq!(lag_on_join(i64::from(lag), weight, 0, BASE_NS), i64::from(lag).clamp(-limit, limit));
    }

    #[test]
    fn leaving_and_joining_elsewhere_keeps_what_is_owed(lag in -7_000_000i64..7_000_000, nice in -20i32..=19) {
        let (weight, clock) = (u64::from(weight_of_nice(nice)) << 10, 1u64 << 50);
        let v = v_of(clock, lag, weight);
        let kept = lag_of(clock, v, weight, BASE_NS);
        let tolerance = (weight >> 20) as i64 + lag.abs() / 50_000 + 2;
        prop_assert!((kept - lag).abs() <= tolerance, "{lag} became {kept}");
    }

    #[test]
    fn the_clock_stays_near_the_task_that_is_picked(clock in any::<u32>(), v in any::<u32>(), nice in -20i32..=19, tasks in 1u32..100) {
        let (clock, v, weight) = ((1u64 << 40) + u64::from(clock), (1u64 << 40) + u64::from(v), u64::from(weight_of_nice(nice)) << 10);
        let anchored = clock_anchored(clock, v, weight, BASE_NS, tasks, weight);
        let most = v + 2 * BASE_NS + virtual_ns(u64::from(tasks) * lag_limit(BASE_NS) as u64, weight);
        let least = v - BASE_NS;
        prop_assert!((least..=most).contains(&anchored));
        prop_assert!(anchored == clock || clock < least || clock > most, "moved without need");
    }

    #[test]
    fn the_clock_is_left_where_the_mean_is(tasks in prop::collection::vec((1u64..=100, -6i32..=6, 0usize..500), 2..6)) {
        let requests: Vec<u64> = tasks.iter().map(|(ms, ..)| ms * 1_000_000).collect();
        let weights: Vec<u64> = tasks.iter().map(|(_, power, _)| (UNIT as f64 * f64::from(*power).exp2()) as u64).collect();
        let begins: Vec<usize> = tasks.iter().map(|(.., begins)| *begins).collect();
        let longest = requests.iter().copied().max().unwrap();
        let moves = moves_of_an_anchored_mean(&requests, &weights, &begins, |_, weight, tasks, total| (longest, weight, tasks, total));
        prop_assert_eq!(moves, 0);
    }

    #[test]
    fn a_change_of_weight_keeps_what_is_owed(lag in -7_000_000i64..7_000_000, old in -20i32..=19, new in -20i32..=19) {
        let of = |nice| u64::from(weight_of_nice(nice)) << 10;
        let clock = 1u64 << 50;
        let v = v_of(clock, lag, of(old));
        let kept = lag_of(clock, v_reweighted(clock, v, of(old), of(new), BASE_NS), of(new), BASE_NS);
        let tolerance = ((of(old) + of(new)) >> 20) as i64 + lag.abs() / 20_000 + 2;
        prop_assert!((kept - lag).abs() <= tolerance, "{lag} became {kept}");
    }

    #[test]
    fn sleep_forgives_debt_but_makes_no_credit(lag in any::<i32>(), progress in any::<i32>(), nice in -20i32..=19) {
        let weight = u64::from(weight_of_nice(nice)) << 10;
        let after = lag_after_sleep(i64::from(lag), i64::from(progress), weight);
        prop_assert!(after == i64::from(lag) || (lag < 0 && after <= 0 && (after > i64::from(lag)) == (progress > 0)));
    }

    #[test]
    fn requests_shrink_for_the_light_only(nices in prop::collection::vec(-20i32..=19, 1..20), base in 500_000u64..100_000_000) {
        let weights: Vec<u64> = nices.iter().map(|nice| u64::from(weight_of_nice(*nice)) << 10).collect();
        let total: u64 = weights.iter().sum();
        for &weight in &weights {
            let request = request_ns(base, weight, total, weights.len() as u32);
            prop_assert!((500_000..=base).contains(&request));
            if weight >= total / weights.len() as u64 {
                prop_assert_eq!(request, base);
            }
        }
    }

    #[test]
    fn the_watchdog_never_sees_a_starved_best_effort_task(waiting in 1u32..4000) {
        let watchdog = 20_000_000_000u64;
        let mut last = 0;
        let mut served = 0;
        for now in (0..watchdog).step_by(4_000_000) {
            if idle_floor_due(now, last, waiting, watchdog) {
                last = now;
                served += 1;
            }
        }
        prop_assert!(served >= waiting, "{served} slices for {waiting} tasks");
    }
}

proptest! {
    #[test]
    fn a_bounded_deadline_moves_along_and_no_other_does(
        v in any::<u64>(), weight in 1_000u64..1 << 24, request in 500_000u64..20_000_000, parts in 1u64..50,
    ) {
        let end = v.wrapping_add(virtual_ns(request, weight));
        let mut deadline = v.wrapping_add(deadline_distance(request, weight, BASE_NS));
        let first = deadline;
        for part in 1..=parts {
            let at = v.wrapping_add(virtual_ns(request * part / parts, weight));
            let moved = deadline_moved(deadline, is_bounded(request, weight, BASE_NS), at, end, BASE_NS);
            prop_assert!(moved.wrapping_sub(deadline) < 1 << 62, "it never gets earlier");
            let left = end.wrapping_sub(at);
            let expected = if is_bounded(request, weight, BASE_NS) { at.wrapping_add(left.min(BASE_NS + 1)) } else { first };
            prop_assert_eq!(moved, expected);
            deadline = moved;
        }
        prop_assert_eq!(deadline, end);
    }

    #[test]
    fn an_early_deadline_holds_until_the_task_has_run_past_it(
        v in any::<u64>(), weight in 1u64 << 20..1 << 24, expected in 100_000u64..2_900_000, ran in 0u64..3_000_000,
    ) {
        let end = v.wrapping_add(virtual_ns(BASE_NS, weight));
        let deadline = v.wrapping_add(deadline_distance(expected, weight, BASE_NS));
        let bounded = is_bounded(expected, weight, BASE_NS);
        prop_assert!(!bounded, "a task that asks for less than the bound, at this weight");
        let moved = deadline_moved(deadline, bounded, v.wrapping_add(virtual_ns(ran, weight)), end, BASE_NS);
        prop_assert_eq!(moved, if virtual_ns(ran, weight) <= virtual_ns(expected, weight) { deadline } else { end });
    }
}

proptest! {
    #[test]
    fn a_task_alone_takes_what_it_is_owed_before_v_goes_on(v in any::<u64>(), credit in -(1i64 << 40)..1 << 40, gained in 0u64..1 << 40) {
        let clock = v.wrapping_add(credit as u64);
        let after = clock.wrapping_add(progress_alone(clock, v, gained));
        let left = after.wrapping_sub(v.wrapping_add(gained)) as i64;
        // A credit shrinks to nothing and no further; what it owes to those that sleep it goes on owing.
        prop_assert_eq!(left, if credit > 0 { (credit - gained as i64).max(0) } else { credit });
    }
}

/// Tasks with these requests and weights compute on one CPU. Each begins with that turn, where V is then. Returns how often V, which is their mean,
/// is moved by the anchor. `known`: what the anchor is told, by the picked task's request and weight, and number and weight of all.
fn moves_of_an_anchored_mean(
    requests: &[u64],
    weights: &[u64],
    begins: &[usize],
    known: impl Fn(u64, u64, u32, u64) -> (u64, u64, u32, u64),
) -> usize {
    let begin = 1u64 << 40;
    // Who is there: number and v; and their weight.
    let queued = |all: &[Option<u64>]| -> (Vec<(usize, u64)>, u64) {
        let there: Vec<_> = all.iter().enumerate().filter_map(|(i, v)| v.map(|v| (i, v))).collect();
        let total = there.iter().map(|(i, _)| weights[*i]).sum();
        (there, total)
    };
    let mut v = vec![None; requests.len()];
    let mut moves = 0;
    for turn in 0..2000 {
        let (there, total) = queued(&v);
        let ahead = |(i, v): &(usize, u64)| i128::from(*v as i64 - begin as i64) * i128::from(weights[*i]);
        let mean = begin + (there.iter().map(ahead).sum::<i128>() / i128::from(total.max(1))) as u64;
        for i in 0..v.len() {
            if begins[i] == turn {
                v[i] = Some(mean);
            }
        }
        let (there, total) = queued(&v);
        let deadline = |&&(i, v): &&(usize, u64)| v + deadline_distance(requests[i], weights[i], requests[i]);
        let Some(&(next, picked_v)) = there.iter().min_by_key(deadline) else { continue };
        let (longest, weight, tasks, total) = known(requests[next], weights[next], there.len() as u32, total);
        moves += usize::from(
            clock_anchored(mean, picked_v, weight, longest, tasks, total) != mean && there.len() > 1,
        );
        v[next] = Some(picked_v + virtual_ns(requests[next], weights[next]));
    }
    moves
}

#[test]
fn an_anchor_that_knows_less_would_move_the_mean() {
    let own = |own, weight, tasks, total| (own, weight, tasks, total);
    let moves = moves_of_an_anchored_mean(&[100_000_000, 3_000_000], &[UNIT, UNIT], &[0, 0], own);
    assert!(moves > 100, "by the picked task's request: {moves}");
    let of_all = |longest, _, tasks, total| (longest, total, tasks, total);
    let moves = moves_of_an_anchored_mean(&[BASE_NS; 3], &[UNIT / 64, UNIT / 64, UNIT], &[0, 0, 101], of_all);
    assert!(moves > 0, "by the weight of all");
}

/// Tasks of a queue: v, weight.
fn lags(clock: u64, tasks: &[(u64, u64)]) -> i64 {
    tasks.iter().map(|(v, weight)| lag_of(clock, *v, *weight, BASE_NS)).sum()
}

proptest! {
    #[test]
    fn those_who_stay_are_owed_nothing_in_all(
        mean in any::<u64>(), own in 0i32..=10, lag in -3_000_000i64..3_000_000, nices in prop::collection::vec(0i32..=10, 2..6),
    ) {
        let of = |nice| u64::from(weight_of_nice(nice)) << 10;
        let rest: u64 = nices.iter().map(|nice| of(*nice)).sum();
        let mut tasks: Vec<(u64, u64)> = nices.iter().map(|nice| (mean, of(*nice))).collect();
        // One of them is ahead of the others, which leaves their mean where it is.
        tasks[0].0 = v_of(mean, -1_000_000, tasks[0].1);
        tasks[1].0 = v_of(mean, 1_000_000, tasks[1].1);
        prop_assert!(lags(mean, &tasks).abs() < 1000);
        // One joins: V moves towards it. Now it has this lag among all.
        let weight = of(own);
        let against = lag_on_join(lag_against(lag, weight, rest), weight, rest, BASE_NS);
        let v = v_of(mean, against, weight);
        let with = mean.wrapping_add(clock_shift(-against, rest + weight));
        tasks.push((v, weight));
        prop_assert!(lags(with, &tasks).abs() < 1000, "{}", lags(with, &tasks));
        let within = lag_of(with, v, weight, BASE_NS);
        prop_assert!((within - lag).abs() < 1000, "{within}");
        // It leaves: V is where it was, and the task is owed what it was owed.
        tasks.pop();
        let without = with.wrapping_add(clock_shift(within, rest));
        prop_assert!(lags(without, &tasks).abs() < 1000, "{}", lags(without, &tasks));
        let difference = lag_against(within, weight, rest) - against;
        prop_assert!(difference.abs() <= 1000 * (1 + (weight / rest) as i64), "{difference}");
    }
}

#[test]
fn a_wakeup_preempts_only_an_established_later_deadline() {
    assert!(wakeup_preempts(10, 11, 0, 700_000, 700_000, BASE_NS));
    assert!(!wakeup_preempts(11, 10, 0, 700_000, 700_000, BASE_NS));
    assert!(!wakeup_preempts(10, 11, 0, 699_999, 5_000_000, BASE_NS));
    assert!(wakeup_preempts(10, 11, 1, 0, 8_000_000, BASE_NS), "it has had more than its share");
    assert!(!wakeup_preempts(10, 11, 1, 0, 200_000, BASE_NS), "but may soon sleep again");
    assert!(!wakeup_preempts(11, 10, 1, 0, 8_000_000, BASE_NS));
    // Deadlines wrap.
    assert!(wakeup_preempts(u64::MAX - 1, 5, 0, 1_000_000, 1_000_000, BASE_NS));
}

#[test]
fn a_task_that_is_owed_a_request_waits_behind_nobody_who_is_ahead() {
    assert!(owed_preempts(BASE_NS as i64, 1, BASE_NS));
    assert!(!owed_preempts(BASE_NS as i64 - 1, 1, BASE_NS), "it is not owed a whole one");
    assert!(!owed_preempts(BASE_NS as i64, 0, BASE_NS), "the other one has had its share, no more");
    assert!(!owed_preempts(-1, 1, BASE_NS));
}

#[test]
fn a_debt_is_paid_as_v_advances_and_grows_as_it_goes_back() {
    let left = |lag, progress| lag_after_sleep(lag, progress, UNIT);
    assert_eq!((left(-3_000, 1_000), left(-3_000, 5_000), left(-3_000, -1_000)), (-2_000, 0, -4_000));
    assert_eq!((left(3_000, 1_000), left(3_000, -1_000)), (3_000, 3_000), "a credit stays");
}

#[test]
fn a_prompt_task_comes_first_unless_it_is_ahead_or_light() {
    let first = |clock, v, weight| prompt_preempts(clock, v, 700_000, weight, BASE_NS, UNIT);
    assert!(first(10, 10, UNIT) && first(10, 9, UNIT) && !first(10, 11, UNIT));
    assert!(
        first(10, 10, UNIT / 4) && !first(10, 10, UNIT / 5),
        "0.7 ms of a fifth of the weight are 3.5 ms"
    );
    // Virtual time wraps.
    assert!(first(5, u64::MAX - 1, UNIT) && !first(u64::MAX - 1, 5, UNIT));
}

#[test]
fn who_usually_sleeps_soon_asks_for_little() {
    assert_eq!(wake_request_ns(3_000_000, 20_000), 100_000);
    assert_eq!(wake_request_ns(3_000_000, 400_000), 800_000);
    assert_eq!(wake_request_ns(3_000_000, 32_000_000), 3_000_000);
    assert_eq!(wake_request_ns(50_000, 0), 50_000, "never more than the base");
}

/// What becomes of V when a task of some lag joins or leaves.
#[derive(Clone, Copy, PartialEq)]
enum V {
    Moves,
    StandsStill,
    /// And credit is doubled on joining, as it would have to be if V moved towards who joins, but not away from who leaves.
    Inflated,
}

impl V {
    /// `lag`: as leave() returned it, without what has been paid since.
    fn join(self, clock: &mut u64, lag: i64, weight: u64, rest: u64) -> u64 {
        if self != V::Moves {
            let limit = lag_limit(BASE_NS);
            let lag = if self == V::Inflated && lag > 0 { 2 * lag } else { lag };
            return v_of(*clock, lag.clamp(-limit, limit), weight);
        }
        let lag = if rest > 0 { lag_on_join(lag, weight, rest, BASE_NS) } else { 0 };
        let v = v_of(*clock, lag, weight);
        *clock = clock.wrapping_add(clock_shift(-lag, rest + weight));
        v
    }

    /// Returns the lag, against those who stay if V moves.
    fn leave(self, clock: &mut u64, v: u64, weight: u64, rest: u64) -> i64 {
        let lag = lag_of(*clock, v, weight, BASE_NS);
        if self != V::Moves {
            return lag;
        }
        *clock = clock.wrapping_add(clock_shift(lag, rest));
        lag_against(lag, weight, rest)
    }
}

/// A task that runs for 2 ms and sleeps for 8 ms, on one CPU with some that compute. Returns how long it waits on average, ns.
fn wait_beside_some_that_compute(rule: V, others: u64) -> u64 {
    const STEP_NS: u64 = 1_000_000;
    let turns = 1000;
    let rest = others * UNIT;
    let mut clock = 1u64 << 40;
    let mut busy = vec![clock; others as usize];
    let (mut lag, mut waited) = (0, 0);
    for _ in 0..turns {
        let left = clock;
        for _ in 0..8 {
            *busy.iter_mut().min().unwrap() += STEP_NS;
            clock += virtual_ns(STEP_NS, rest);
        }
        lag = lag_after_sleep(lag, clock.wrapping_sub(left) as i64, UNIT);
        let v = rule.join(&mut clock, lag, UNIT, rest);
        while let Some(first) = busy.iter_mut().min().filter(|first| **first + BASE_NS < v + 700_000) {
            clock = clock_anchored(clock, *first, UNIT, BASE_NS, others as u32 + 1, rest + UNIT);
            *first += STEP_NS;
            waited += STEP_NS;
            clock += virtual_ns(STEP_NS, rest + UNIT);
        }
        clock += virtual_ns(2 * STEP_NS, rest + UNIT);
        lag = rule.leave(&mut clock, v + 2 * STEP_NS, UNIT, rest);
    }
    waited / turns
}

#[test]
fn a_debt_that_is_paid_asleep_is_not_paid_again_by_waiting() {
    // Beside a single one, V's standing still is made up for by progress_alone().
    for others in 2..5 {
        let wait = |rule| wait_beside_some_that_compute(rule, others);
        let (moves, stands_still) = (wait(V::Moves), wait(V::StandsStill));
        assert!(moves < 200_000, "beside {others}: {moves}");
        assert!(stands_still > 1_500_000, "control, beside {others}: {stands_still}");
    }
}

/// Short sleepers on one CPU. Each wakes up again as soon as two others have run. Returns the longest
/// wait of any of them.
fn longest_wait_among_sleepers(bursts_us: &[u64], rule: V) -> u64 {
    struct Sleeper {
        v: u64,
        deadline: u64,
        lag: i64,
        burst: u64,
        /// Since when it waits, or for how many slices of other tasks it sleeps.
        waits: Result<u64, u32>,
    }
    let weight = UNIT;
    let (mut clock, mut now, mut longest) = (1u64 << 40, 0u64, 0u64);
    let mut all: Vec<Sleeper> = bursts_us
        .iter()
        .enumerate()
        // One of them starts with a debt, the others with a credit.
        .map(|(i, us)| Sleeper {
            v: 0,
            deadline: 0,
            lag: if i == 0 { -6_000_000 } else { 1_000_000 },
            burst: us * 1000,
            waits: Err(0),
        })
        .collect();
    for _ in 0..20_000 {
        let mut queued = all.iter().filter(|s| s.waits.is_ok()).count() as u64;
        for s in all.iter_mut().filter(|s| s.waits == Err(0)) {
            s.v = rule.join(&mut clock, s.lag, weight, queued * weight);
            queued += 1;
            s.deadline = s.v + deadline_distance(wake_request_ns(BASE_NS, s.burst), weight, BASE_NS);
            s.waits = Ok(now);
        }
        let Some(next) = all.iter_mut().filter(|s| s.waits.is_ok()).min_by_key(|s| s.deadline) else { break };
        longest = longest.max(now - next.waits.unwrap_or(now));
        clock = clock_anchored(clock, next.v, weight, BASE_NS, queued as u32, queued * weight);
        now += next.burst;
        next.v += virtual_ns(next.burst, weight);
        clock += virtual_ns(next.burst, queued * weight);
        next.lag = rule.leave(&mut clock, next.v, weight, (queued - 1) * weight);
        next.waits = Err(3);
        for s in &mut all {
            s.waits = s.waits.map_err(|turns| turns.saturating_sub(1));
        }
    }
    longest
}

proptest! {
    #[test]
    fn who_sleeps_often_does_not_make_others_wait(bursts in prop::collection::vec(20u64..400, 4..7)) {
        let longest = longest_wait_among_sleepers(&bursts, V::Moves);
        // Its debt, paid off while the others run.
        prop_assert!(longest < 20_000_000, "{longest}");
    }
}

#[test]
fn with_inflated_credit_they_would() {
    let bursts = [100, 100, 100, 100, 100];
    let longest = |rule| longest_wait_among_sleepers(&bursts, rule);
    let (inflated, stands_still, moves) = (longest(V::Inflated), longest(V::StandsStill), longest(V::Moves));
    assert!(inflated > 2 * stands_still, "control: {inflated} against {stands_still}");
    assert!(moves <= stands_still, "{moves} against {stands_still}");
}
