//! The vCPU limit (`policy/guest/vcpu_limit.h`), against hosts for which the answer is known.

use proptest::prelude::*;
use tandem_policy::vcpu_limiting::{self, vcpu_limit_window, SETTLE_NS, TRIAL_NS, WINDOW_NS};
use tandem_policy::{vcpu_limit, vcpu_limit_seen};

const SECOND_NS: u64 = 1_000_000_000;

/// What takes the time of vCPUs.
#[derive(Debug, Clone, Copy)]
enum Host {
    /// The VM has this many pCPUs, whatever its number of vCPUs.
    Pcpus(f64),
    /// Two pCPUs, and each vCPU is bound to one of them: the first choices, this many, are all on the same one.
    Fixed(u32),
    /// Neighbours: each vCPU gets this share of its pCPU, whatever the others do.
    Neighbours(f64),
}

impl Host {
    /// pCPUs that this many busy vCPUs get, and what all vCPUs could get.
    fn gives(self, busy: f64, busy_of_all: f64, few: bool, attempt: u32) -> (f64, f64) {
        match self {
            Self::Pcpus(pcpus) => (busy.min(pcpus), busy_of_all.min(pcpus)),
            Self::Fixed(unlucky) => {
                (busy.min(if few && attempt < unlucky { 1.0 } else { 2.0 }), busy_of_all.min(2.0))
            }
            Self::Neighbours(share) => (busy * share, busy_of_all * share),
        }
    }
}

struct Machine {
    vcpu_limit: vcpu_limit,
    next_ns: u64,
    /// Work done and work that would have been done with all vCPUs, pCPU seconds.
    done: f64,
    possible: f64,
    ran_ns: u64,
    trials_ns: u64,
}

impl Machine {
    fn new() -> Self {
        let vcpu_limit = vcpu_limit::default();
        Self { vcpu_limit, next_ns: WINDOW_NS, done: 0.0, possible: 0.0, ran_ns: 0, trials_ns: 0 }
    }

    fn used(&self, usable: u32) -> u32 {
        if self.vcpu_limit.used == 0 {
            usable
        } else {
            self.vcpu_limit.used
        }
    }

    fn pass(&mut self, host: Host, threads: f64, usable: u32, length_ns: u64) -> vcpu_limit_seen {
        let used = self.used(usable);
        let busy = threads.min(f64::from(used));
        let (got, possible) =
            host.gives(busy, threads.min(f64::from(usable)), used < usable, self.vcpu_limit.attempt);
        let length = length_ns as f64;
        self.done += got * length / 1e9;
        self.possible += possible * length / 1e9;
        self.ran_ns += length_ns;
        vcpu_limit_seen {
            length_ns,
            ran_ns: (busy * length) as u64,
            stolen_ns: ((busy - got) * length) as u64,
            waited_ns: ((threads - busy) * length) as u64,
        }
    }

    /// Runs `threads` that never sleep, on `usable` vCPUs, for `length_ns`. Returns how many vCPUs are
    /// in use at the end.
    fn run(&mut self, host: Host, threads: f64, usable: u32, length_ns: u64) -> u32 {
        let end = self.ran_ns + length_ns;
        while self.ran_ns < end {
            let before = (self.used(usable), self.vcpu_limit.attempt);
            let seen = self.pass(host, threads, usable, self.next_ns);
            self.trials_ns += if self.next_ns == TRIAL_NS { TRIAL_NS } else { 0 };
            self.next_ns = vcpu_limit_window(&mut self.vcpu_limit, &seen, usable);
            if (self.used(usable), self.vcpu_limit.attempt) != before {
                self.pass(host, threads, usable, SETTLE_NS);
            }
        }
        self.used(usable)
    }
}

impl Machine {
    /// As `run`, without the vCPUs that are on trial at the end.
    fn found(&mut self, host: Host, usable: u32, length_ns: u64) -> u32 {
        let used = self.run(host, 32.0, usable, length_ns);
        match self.vcpu_limit.state {
            vcpu_limiting::MORE => self.vcpu_limit.before,
            _ => used,
        }
    }
}

/// Two pCPUs, already found.
fn two_of_eight() -> Machine {
    let mut machine = Machine::new();
    assert_eq!(machine.run(Host::Pcpus(2.0), 32.0, 8, 3 * SECOND_NS), 2);
    machine
}

#[test]
fn the_number_of_its_pcpus_is_found() {
    for pcpus in 1..=6u32 {
        for usable in [12, 16, 32] {
            let mut machine = Machine::new();
            let used = machine.run(Host::Pcpus(f64::from(pcpus)), 32.0, usable, 3 * SECOND_NS);
            assert_eq!(used, pcpus, "{pcpus} pCPUs, {usable} vCPUs");
            // Trials with more vCPUs become ever rarer.
            let settled = machine.trials_ns;
            machine.run(Host::Pcpus(f64::from(pcpus)), 32.0, usable, 600 * SECOND_NS);
            assert!(machine.trials_ns - settled < 2 * SECOND_NS, "{} ns", machine.trials_ns);
            assert!(machine.done > 0.999 * machine.possible);
        }
    }
}

#[test]
fn vcpus_on_the_same_pcpu_are_not_the_last_word() {
    for unlucky in 0..=2 {
        let mut machine = Machine::new();
        assert_eq!(machine.found(Host::Fixed(unlucky), 8, 2 * SECOND_NS), 2, "{unlucky} choices of no use");
    }
    // Trials become ever rarer, but they go on.
    let mut machine = Machine::new();
    assert_eq!(machine.found(Host::Fixed(5), 8, 2 * SECOND_NS), 8);
    assert_eq!(machine.found(Host::Fixed(5), 8, 30 * SECOND_NS), 2);
}

#[test]
fn more_vcpus_on_the_same_pcpu_are_not_the_last_word() {
    for unlucky in 0..=2 {
        let mut machine = Machine::new();
        machine.vcpu_limit = vcpu_limit { state: vcpu_limiting::FEW, used: 1, ..vcpu_limit::default() };
        assert_eq!(machine.found(Host::Fixed(unlucky), 8, SECOND_NS), 2, "{unlucky} choices of no use");
    }
    let mut machine = Machine::new();
    machine.vcpu_limit = vcpu_limit { state: vcpu_limiting::FEW, used: 1, ..vcpu_limit::default() };
    assert_eq!(machine.found(Host::Fixed(5), 8, 2 * SECOND_NS), 1);
    assert_eq!(machine.found(Host::Fixed(5), 8, 15 * SECOND_NS), 2);
}

#[test]
fn after_a_trial_with_more_those_from_before_are_used() {
    let mut machine = Machine::new();
    machine.run(Host::Fixed(1), 32.0, 8, 10 * SECOND_NS);
    assert_eq!((machine.vcpu_limit.used, machine.vcpu_limit.attempt), (2, 1));
    // Whether three are better than two was tried in vain.
    assert!(machine.vcpu_limit.in_vain > 2);
}

#[test]
fn the_last_one_is_tried_like_others() {
    let mut machine = Machine::new();
    assert_eq!(machine.run(Host::Pcpus(2.0), 32.0, 3, 2 * SECOND_NS), 2);
    let tried_ns = machine.trials_ns;
    machine.run(Host::Pcpus(2.0), 32.0, 3, 60 * SECOND_NS);
    assert!(machine.trials_ns - tried_ns < SECOND_NS);
    assert_eq!(machine.run(Host::Pcpus(3.0), 32.0, 3, 60 * SECOND_NS), 3);
}

#[test]
fn work_that_begins_in_the_midst_of_a_window_is_not_taken_for_all() {
    let mut state = vcpu_limit::default();
    let window = |ran: u64, stolen: u64| vcpu_limit_seen {
        length_ns: WINDOW_NS,
        ran_ns: WINDOW_NS * ran / 1000,
        stolen_ns: WINDOW_NS * stolen / 1000,
        waited_ns: WINDOW_NS,
    };
    vcpu_limit_window(&mut state, &window(16_000, 14_000), 16);
    vcpu_limit_window(&mut state, &window(3_200, 2_800), 16);
    assert_eq!(state.used, 2);
}

#[test]
fn threads_that_wait_for_each_other_need_not_fill_the_vcpus() {
    let mut state = vcpu_limit::default();
    let window = |length_ns: u64, ran: u64, stolen: u64| vcpu_limit_seen {
        length_ns,
        ran_ns: length_ns * ran / 1000,
        stolen_ns: length_ns * stolen / 1000,
        waited_ns: length_ns * 20,
    };
    for _ in 0..2 {
        vcpu_limit_window(&mut state, &window(WINDOW_NS, 10_000, 8_010), 16);
    }
    assert_eq!(state.used, 2);
    // Idle for a tenth of the time, and hardly any steal.
    vcpu_limit_window(&mut state, &window(TRIAL_NS, 1_800, 50), 16);
    assert_eq!(state.used, 2);
    // A seventh of the time of three vCPUs is stolen, where the CPU time of three was got before: that
    // is not as much.
    let mut state = vcpu_limit::default();
    for _ in 0..2 {
        vcpu_limit_window(&mut state, &window(WINDOW_NS, 10_000, 6_900), 16);
    }
    assert_eq!(state.used, 3);
    vcpu_limit_window(&mut state, &window(TRIAL_NS, 2_900, 400), 16);
    assert_eq!(state.used, 0);
}

#[test]
fn beside_neighbours_all_stay_in_use() {
    for share in [0.2, 0.5, 0.65] {
        let mut machine = Machine::new();
        machine.run(Host::Neighbours(share), 16.0, 8, 30 * SECOND_NS);
        assert!(machine.done > 0.98 * machine.possible, "{} of {}", machine.done, machine.possible);
        machine.run(Host::Neighbours(share), 16.0, 8, 600 * SECOND_NS);
        assert!(machine.done > 0.997 * machine.possible, "{} of {}", machine.done, machine.possible);
    }
}

#[test]
fn more_pcpus_are_found() {
    let mut machine = Machine::new();
    assert_eq!(machine.run(Host::Pcpus(2.0), 32.0, 16, 3 * SECOND_NS), 2);
    assert_eq!(machine.run(Host::Pcpus(16.0), 32.0, 16, 6 * SECOND_NS), 16);
    assert_eq!(machine.run(Host::Pcpus(2.0), 32.0, 16, 6 * SECOND_NS), 2);
}

#[test]
fn neighbours_that_come_later_end_it() {
    let mut machine = two_of_eight();
    machine.run(Host::Neighbours(0.5), 32.0, 8, 2 * SECOND_NS);
    let (done, possible) = (machine.done, machine.possible);
    machine.run(Host::Neighbours(0.5), 32.0, 8, 60 * SECOND_NS);
    assert!(machine.done - done > 0.97 * (machine.possible - possible));
}

#[test]
fn without_steal_or_with_hardly_any_work_nothing_is_tried() {
    let mut machine = Machine::new();
    machine.run(Host::Pcpus(8.0), 32.0, 8, 60 * SECOND_NS);
    machine.run(Host::Neighbours(0.5), 1.0, 8, 60 * SECOND_NS);
    assert_eq!(machine.trials_ns, 0);
}

#[test]
fn with_nothing_to_do_for_long_all_are_in_use_again() {
    let mut machine = two_of_eight();
    assert_eq!(machine.run(Host::Pcpus(2.0), 0.1, 8, 20 * SECOND_NS), 2);
    assert_eq!(machine.run(Host::Pcpus(2.0), 0.1, 8, 20 * SECOND_NS), 8);
}

#[test]
fn what_runs_now_and_then_does_not_keep_vcpus_empty() {
    let mut machine = two_of_eight();
    for _ in 0..12 {
        machine.run(Host::Pcpus(2.0), 0.4, 8, 4 * SECOND_NS);
        machine.run(Host::Pcpus(2.0), 1.5, 8, SECOND_NS);
    }
    assert_eq!(machine.run(Host::Pcpus(2.0), 0.4, 8, SECOND_NS), 8);
}

#[test]
fn with_much_to_do_half_of_the_time_they_stay_empty() {
    let mut machine = two_of_eight();
    for _ in 0..100 {
        machine.run(Host::Pcpus(2.0), 0.1, 8, 2 * SECOND_NS);
        assert_eq!(machine.run(Host::Pcpus(2.0), 2.0, 8, 3 * SECOND_NS), 2);
    }
}

proptest! {
    /// Whatever is observed: never no vCPU, never more than there are, and the next window is one of the two.
    #[test]
    fn whatever_is_seen_some_are_in_use(
        windows in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), 0u32..1000), 1..60),
    ) {
        let mut state = vcpu_limit::default();
        for (length_ns, ran_ns, stolen_ns, waited_ns, usable) in windows {
            let next = vcpu_limit_window(&mut state, &vcpu_limit_seen { length_ns, ran_ns, stolen_ns, waited_ns }, usable);
            prop_assert!(state.used <= usable);
            prop_assert!(next == WINDOW_NS || next == TRIAL_NS);
        }
    }

    /// On hosts of either kind a VM loses next to nothing by trials, and not more than a twentieth by
    /// using as many vCPUs as fill whole pCPUs.
    #[test]
    fn little_is_lost(pcpus in 1.0..12.0f64, share in 0.05..0.95f64, usable in 1u32..32, threads in 0.5..64.0f64) {
        for host in [Host::Pcpus(pcpus), Host::Neighbours(share)] {
            let mut machine = Machine::new();
            machine.run(host, threads, usable, 300 * SECOND_NS);
            prop_assert!(machine.done > 0.94 * machine.possible, "{host:?}: {} of {}", machine.done, machine.possible);
        }
    }
}
