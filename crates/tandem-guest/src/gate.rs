//! Automatic unload (`tandem guest --gate`): the daemon compares what is lost with its scheduler and
//! without, and returns to the kernel's own scheduler while there is nothing to gain.
//!
//! What is lost, per second of work done: time for which tasks had a vCPU, or waited for one, without
//! being served ([`Accounts`]).
//!
//! * No steal for [`QUIET`]: there is nothing to gain. The scheduler is unloaded, and loaded again as
//!   soon as the host takes something.
//! * Otherwise a trial now and then: windows without the scheduler and windows with it, alternating. If
//!   clearly less is lost without it ([`CLEARLY`]), it is unloaded. Each trial doubles the time until
//!   the next.

use crate::accounts::{Accounts, Seen};
use std::time::Duration;

/// Length of a window.
pub(crate) const WINDOW: Duration = Duration::from_secs(2);
/// Windows of each kind in a trial, alternating.
const TRIAL: usize = 3;
/// From loading to the first trial, and the longest pause between two.
const FIRST_TRIAL: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// After this long without steal the scheduler is unloaded.
const QUIET: Duration = Duration::from_secs(60);
/// Steal counts from this part of the work on: less is the host's ordinary bookkeeping.
const STOLEN: f64 = 0.01;
/// The scheduler is unloaded if less than this part of the loss remains without it.
const CLEARLY: f64 = 0.95;
/// A window with less work than this part of its length does not count.
const BUSY: f64 = 0.02;

impl Seen {
    /// Loss per second of work; none: too little work to say.
    fn loss(self) -> Option<f64> {
        (self.worked_ns as f64 >= BUSY * WINDOW.as_nanos() as f64)
            .then(|| self.lost_ns as f64 / self.worked_ns as f64)
    }

    fn something_stolen(self) -> bool {
        self.stolen_ns as f64 > STOLEN * self.worked_ns as f64
    }
}

/// Loaded or unloaded, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Loaded; no trial.
    Working,
    /// A trial; this many of its windows are over.
    Trying(usize),
    /// Unloaded: there is no steal.
    Quiet,
    /// Unloaded: it does not help.
    Useless,
}

/// The state machine. Windows are passed in, so that it can be tested without a clock.
#[derive(Debug)]
pub(crate) struct Gate {
    state: State,
    last: Option<Accounts>,
    quiet: Duration,
    until_trial: Duration,
    pause: Duration,
    with: Vec<f64>,
    without: Vec<f64>,
    /// A trial has ended since `trial_ended` was last called.
    tried: bool,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Working,
            last: None,
            quiet: Duration::ZERO,
            until_trial: FIRST_TRIAL,
            pause: FIRST_TRIAL,
            with: Vec::new(),
            without: Vec::new(),
            tried: false,
        }
    }

    /// Has a trial ended since the last call?
    pub(crate) fn trial_ended(&mut self) -> bool {
        std::mem::take(&mut self.tried)
    }

    /// A window is over. The time between two loads is in no window: call `forget` after loading or unloading.
    pub(crate) fn window(&mut self, now: Accounts) {
        let seen = self.last.as_ref().map(|last| now.since(last));
        self.last = Some(now);
        let Some(seen) = seen else { return };
        self.quiet = if seen.something_stolen() { Duration::ZERO } else { self.quiet + WINDOW };
        match self.state {
            State::Working if self.quiet >= QUIET => self.enter(State::Quiet),
            State::Working | State::Useless => {
                self.until_trial = self.until_trial.saturating_sub(WINDOW);
                if self.until_trial.is_zero() && seen.something_stolen() && seen.loss().is_some() {
                    self.with.clear();
                    self.without.clear();
                    self.enter(State::Trying(0));
                }
            }
            State::Quiet if self.quiet.is_zero() => {
                self.until_trial = self.pause;
                self.enter(State::Working);
            }
            State::Quiet => {}
            State::Trying(done) => self.tried(done, seen.loss()),
        }
    }

    /// The scheduler was loaded or unloaded: the window in which that happened does not count.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// The accounts cannot be read any more: there is no evidence against the scheduler.
    pub(crate) fn blind(&mut self) {
        self.enter(State::Working);
    }

    /// Is the scheduler to be unloaded at the moment?
    pub(crate) fn steps_back(&self) -> bool {
        match self.state {
            State::Working => false,
            State::Trying(done) => done.is_multiple_of(2),
            State::Quiet | State::Useless => true,
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.quiet = Duration::ZERO;
    }

    /// Windows without the scheduler have even numbers, those with it odd ones.
    fn tried(&mut self, done: usize, loss: Option<f64>) {
        let kind = if done.is_multiple_of(2) { &mut self.without } else { &mut self.with };
        kind.extend(loss);
        if done + 1 < 2 * TRIAL {
            self.state = State::Trying(done + 1);
            return;
        }
        let (with, without) = (median(&mut self.with), median(&mut self.without));
        let useless = with.zip(without).is_some_and(|(with, without)| without < with * CLEARLY);
        log::info!(
            "lost per second of work: {} with this scheduler, {} without: {}",
            in_ms(with),
            in_ms(without),
            if useless { "stepping back to the kernel's own" } else { "it stays" }
        );
        self.tried = true;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.until_trial = self.pause;
        self.enter(if useless { State::Useless } else { State::Working });
    }
}

fn in_ms(loss: Option<f64>) -> String {
    loss.map_or("unknown".into(), |loss| format!("{:.1} ms", loss * 1e3))
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::Times;
    use proptest::prelude::*;

    /// A machine whose windows lose different amounts with the scheduler and without.
    struct Machine {
        gate: Gate,
        times: Times,
        loaded: bool,
        loads: u32,
    }

    impl Machine {
        fn new() -> Self {
            Self { gate: Gate::new(), times: Times::default(), loaded: true, loads: 0 }
        }

        /// Runs this many windows of a second of work; `stolen` and the waits are parts of it. Returns
        /// in how many windows it was loaded.
        fn run(&mut self, windows: u32, stolen: f64, waited_with: f64, waited_without: f64) -> u32 {
            let mut loaded = 0;
            for _ in 0..windows {
                let work = 1e9;
                let waited = if self.loaded { waited_with } else { waited_without };
                self.times.ran_ns += (work * (1.0 + stolen)) as u64;
                self.times.stolen_ns += (work * stolen) as u64;
                self.times.waited_ns += (work * waited) as u64;
                loaded += u32::from(self.loaded);
                self.gate.window(Accounts::from_iter([(0, self.times)]));
                let wanted = !self.gate.steps_back();
                if wanted != self.loaded {
                    self.loaded = wanted;
                    self.loads += u32::from(wanted);
                    self.gate.forget();
                    // The window in which that happens.
                    self.gate.window(Accounts::from_iter([(0, self.times)]));
                }
            }
            loaded
        }
    }

    #[test]
    fn where_it_helps_it_stays() {
        let mut machine = Machine::new();
        let loaded = machine.run(2000, 0.2, 0.1, 0.5);
        assert!(loaded > 1950, "{loaded} of 2000 windows");
        assert!(machine.gate.trial_ended() && !machine.gate.trial_ended());
    }

    #[test]
    fn where_it_does_not_help_it_steps_back_and_tries_ever_less() {
        let mut machine = Machine::new();
        let loaded = machine.run(3600, 0.2, 0.5, 0.3);
        assert!(loaded < 60, "{loaded} of 3600 windows");
        assert!((3..=8).contains(&(machine.loads / 3)), "{} loads", machine.loads);
        // The scheduler was useless and helps now: the next trial finds that.
        machine.run(1800, 0.2, 0.1, 0.5);
        assert!(machine.loaded);
    }

    #[test]
    fn without_steal_it_steps_back_and_with_steal_it_is_there_at_once() {
        let mut machine = Machine::new();
        machine.run(40, 0.0, 0.1, 0.1);
        assert!(!machine.loaded);
        let before = machine.loads;
        assert_eq!(machine.run(1000, 0.0, 0.1, 0.1), 0);
        machine.run(2, 0.3, 0.1, 0.5);
        assert!(machine.loaded);
        assert_eq!(machine.loads, before + 1);
    }

    proptest! {
        #[test]
        fn it_never_loads_and_unloads_without_end(losses in prop::collection::vec((0.0..1.0f64, 0.0..1.0f64, 0.0..1.0f64), 1..40)) {
            let mut machine = Machine::new();
            for (stolen, with, without) in losses {
                machine.run(10, stolen, with, without);
            }
            // Three loads per trial, and one whenever steal returns after a minute without.
            prop_assert!(machine.loads <= 4 * 12);
        }
    }
}
