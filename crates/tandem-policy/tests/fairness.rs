//! Virtual deadlines: shares, bounded credit, no starvation. The queue of the tests is the textbook's:
//! one CPU, the earliest deadline runs, charged with the functions of `policy/eevdf.h`.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_policy::eevdf::*;

const BASE_NS: u64 = 3_000_000;
const TICK_NS: u64 = 4_000_000;

struct Task {
    weight: u32,
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

impl Queue {
    fn with(weights: &[u32]) -> Self {
        let mut queue = Queue { clock: 1 << 40, now: 0, tasks: Vec::new() };
        for &weight in weights {
            let request = request_ns(BASE_NS, weight);
            let v = queue.clock;
            let deadline = v + virtual_ns(request, weight);
            queue.tasks.push(Task {
                weight,
                v,
                deadline,
                request,
                service: 0,
                waited_since: 0,
                longest_wait: 0,
            });
        }
        queue
    }

    /// Runs the earliest deadline for its request, rounded up to the tick.
    fn step(&mut self, by_deadline: bool) {
        let total: u64 = self.tasks.iter().map(|t| u64::from(t.weight)).sum();
        let order = |task: &Task| if by_deadline { task.deadline } else { task.waited_since };
        let pick = (0..self.tasks.len()).min_by_key(|&i| order(&self.tasks[i])).unwrap_or(0);
        let now = self.now;
        let task = &mut self.tasks[pick];
        let ran = task.request.div_ceil(TICK_NS) * TICK_NS;
        task.longest_wait = task.longest_wait.max(now - task.waited_since);
        task.service += ran;
        task.v += virtual_ns(ran, task.weight);
        task.deadline = task.v + virtual_ns(task.request, task.weight);
        task.waited_since = now + ran;
        self.now += ran;
        self.clock += virtual_ns(ran, total as u32);
    }

    fn share(&self, i: usize) -> f64 {
        self.tasks[i].service as f64 / self.now as f64
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
fn three_hogs_share_by_weight_and_round_robin_does_not() {
    let weights: Vec<u32> = [0, -3, -6].map(weight_of_nice).to_vec();
    let total: u32 = weights.iter().sum();
    let run = |by_deadline| {
        let mut queue = Queue::with(&weights);
        for _ in 0..10_000 {
            queue.step(by_deadline);
        }
        (0..3)
            .map(|i| (queue.share(i) / (f64::from(weights[i]) / f64::from(total)) - 1.0).abs())
            .fold(0.0, f64::max)
    };
    assert!(run(true) < 0.01, "error {}", run(true));
    assert!(run(false) > 0.3, "the control must fail: {}", run(false));
}

proptest! {
    #[test]
    fn nobody_starves_and_lag_stays_bounded(nices in prop::collection::vec(-20i32..=19, 2..8)) {
        let weights: Vec<u32> = nices.iter().map(|n| weight_of_nice(*n)).collect();
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        let mut queue = Queue::with(&weights);
        for _ in 0..20_000 {
            queue.step(true);
            for task in &queue.tasks {
                // Nobody falls behind by more than its request and one overrun (a tick) of each other task.
                let lag = queue.clock as i64 - task.v as i64;
                let owed = virtual_ns(task.request, task.weight)
                    + weights.len() as u64 * virtual_ns(TICK_NS, total as u32);
                let owed = owed as i64;
                prop_assert!(lag <= owed, "lag {lag} of weight {} exceeds {owed}", task.weight);
            }
        }
        for task in &queue.tasks {
            // A waiting task is served at the latest when V has passed its deadline.
            let bound = virtual_ns(task.request + TICK_NS, task.weight) / 1024 * total + TICK_NS * 16;
            let wait = task.longest_wait.max(queue.now - task.waited_since);
            prop_assert!(wait <= bound, "weight {} waited {wait}, bound {bound}", task.weight);
        }
    }

    #[test]
    fn credit_and_debt_are_limited(lag in any::<i32>(), nice in -20i32..=19, queue_weight in 1u64..200_000) {
        let weight = weight_of_nice(nice);
        let request = request_ns(BASE_NS, weight);
        let joined = lag_on_join(i64::from(lag), request, weight, queue_weight);
        let limit = lag_limit(request, weight) as i128 * (i128::from(queue_weight) + i128::from(weight)) / i128::from(queue_weight);
        prop_assert!(i128::from(joined).abs() <= limit + 1);
        prop_assert!(joined == 0 || (joined > 0) == (lag > 0));
        prop_assert_eq!(lag_on_join(i64::from(lag), request, weight, 0), 0);
    }

    #[test]
    fn sleep_forgives_debt_but_makes_no_credit(lag in any::<i32>(), progress in any::<i32>()) {
        let after = lag_after_sleep(i64::from(lag), i64::from(progress));
        prop_assert!(after == i64::from(lag) || (lag < 0 && after <= 0 && after > i64::from(lag)));
    }

    #[test]
    fn the_watchdog_never_sees_a_starved_best_effort_task(waiting in 1u32..200) {
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

#[test]
fn a_wakeup_preempts_only_an_established_later_deadline() {
    assert!(wakeup_preempts(10, 11, 700_000));
    assert!(!wakeup_preempts(11, 10, 700_000));
    assert!(!wakeup_preempts(10, 11, 699_999));
    // Deadlines wrap.
    assert!(wakeup_preempts(u64::MAX - 1, 5, 1_000_000));
}
