//! Life cycle of a side's scheduler: check, load, run, report, unload, and load again where that is right.
//!
//! Nothing outlives the process: a link holds the scheduler, and the kernel drops the link when the process ends, however
//! it ends.

use crate::monitoring::Monitoring;
use crate::report::Report;
use crate::server::{Answer, Ask, Orders, SOCKET};
use crate::standstill::{Pulse, Returns};
use crate::sys::termination_requested;
use crate::DaemonError;
use libbpf_rs::OpenObject;
use scx_utils::UserExitInfo;
use serde_json::Value;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// CPUs that come and go without end must not make the daemon reload for ever: this many times in a row,
/// each within a minute of the one before.
const MOST_RESTARTS: u32 = 16;
const CALM: Duration = Duration::from_secs(60);

/// How often metrics are renewed.
const EXPORT_EVERY: Duration = Duration::from_secs(1);

/// Settings that are the same on either side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings {
    /// Print a line of statistics at this interval.
    pub stats_interval: Option<Duration>,
    /// Serve OpenMetrics over HTTP on this address.
    pub metrics: Option<SocketAddr>,
    /// Print libbpf's messages, too.
    pub debug: bool,
}

/// A side's daemon, over all loads of its scheduler.
pub trait Side {
    /// Its statistics.
    type Report: Report;
    /// Its orders.
    type Order: Send + Sync + 'static;
    /// Its errors.
    type Error: std::error::Error + From<DaemonError>;
    /// A load of its scheduler.
    type Load<'a>: Load<Report = Self::Report, Order = Self::Order, Error = Self::Error>
    where
        Self: 'a;

    /// How its orders are read.
    const ORDERS: Orders<Self::Order>;

    /// Its statistics as OpenMetrics text.
    fn render(report: &Self::Report) -> String;

    /// Can the scheduler be loaded here?
    ///
    /// # Errors
    /// The first obstacle, with its remedy.
    fn check(&self) -> Result<(), Self::Error>;

    /// Loads it.
    ///
    /// # Errors
    /// The kernel refuses, or something is missing.
    fn load<'a>(
        &'a mut self,
        storage: &'a mut MaybeUninit<OpenObject>,
    ) -> Result<Self::Load<'a>, Self::Error>;

    /// A load has failed. Is there another way, which the next one takes?
    fn has_another_way(&mut self) -> bool {
        false
    }

    /// Nothing is loaded, by the side's own wish: returns when it is to be loaded again, or the process to end. Answers requests meanwhile.
    fn stand_by(&mut self, monitoring: &Monitoring<Self::Order, Self::Report>);

    /// The machine has stood still: what was measured before no longer holds.
    fn stood_still(&mut self);
}

/// One load of a scheduler.
pub trait Load {
    /// Its statistics.
    type Report: Report;
    /// Its orders.
    type Order;
    /// Its errors.
    type Error: std::error::Error + From<DaemonError>;

    /// Has the kernel ejected it, or has it ended itself?
    fn exited(&self) -> bool;

    /// Did the watchdog eject it?
    fn stalled(&self) -> bool;

    /// For how long a task may wait until the watchdog ejects the scheduler.
    fn patience(&self) -> Duration;

    /// Totals since it was loaded.
    ///
    /// # Errors
    /// The state cannot be read.
    fn report(&self) -> Result<Self::Report, Self::Error>;

    /// A client is about to be given a report.
    ///
    /// # Errors
    /// The state cannot be read.
    fn asked(&mut self, _now: Instant) -> Result<(), Self::Error> {
        Ok(())
    }

    /// What the daemon does a few times a second.
    ///
    /// # Errors
    /// Those that end the scheduler.
    fn step(&mut self, now: Instant) -> Result<Then, Self::Error>;

    /// Carries out an order.
    ///
    /// # Errors
    /// It is refused; the client is told why.
    fn obey(&mut self, order: Self::Order) -> anyhow::Result<Value>;

    /// Records decisions from now on, or no longer. Returns how many records were lost since the last call.
    fn trace(&mut self, on: bool) -> u64;

    /// Unloads it. Returns why it ended.
    ///
    /// # Errors
    /// The kernel ejected it.
    fn stop(&mut self) -> Result<UserExitInfo, Self::Error>;
}

/// What comes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The next one, at this time.
    GoOn(Instant),
    /// The scheduler does not help at the moment: unload it.
    StepBack,
    /// It has to be loaded again, for this reason.
    LoadAgain(&'static str),
}

/// How a load ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// By request: the scheduler is unloaded.
    Stopped,
    /// It has to be loaded again, for this reason.
    Restart(&'static str),
    /// The scheduler does not help at the moment.
    SteppedBack,
    /// The machine stood still for this long, and the kernel ejected the scheduler when it went on.
    StoodStill(Duration),
}

/// Loads the scheduler and runs until asked to stop, or until the kernel ejects it. Loads it again when
/// the set of CPUs has changed, and, if that is wanted, unloads it while it does not help.
///
/// # Errors
/// An obstacle found before loading, a refusal by the kernel, or the reason of an ejection.
pub fn serve<S: Side>(side: &mut S, settings: &Settings) -> Result<(), S::Error> {
    // Before the socket of another scheduler is taken over.
    side.check()?;
    // Before anything is loaded: an address in use is no reason to load and unload a scheduler.
    let mut monitoring = Monitoring::start(settings.metrics, S::ORDERS, S::render, Path::new(SOCKET))?;
    let level = if settings.debug { libbpf_rs::PrintLevel::Debug } else { libbpf_rs::PrintLevel::Warn };
    scx_utils::init_libbpf_logging(Some(level));
    go_on(side, settings, &mut monitoring)
}

/// Load after load.
fn go_on<S: Side>(
    side: &mut S,
    settings: &Settings,
    monitoring: &mut Monitoring<S::Order, S::Report>,
) -> Result<(), S::Error> {
    let mut restarts = 0;
    let mut returns = Returns::default();
    loop {
        let began = Instant::now();
        let outcome = match run(side, settings, &mut returns, monitoring) {
            Err(_) if side.has_another_way() => continue,
            outcome => outcome?,
        };
        if began.elapsed() > CALM {
            restarts = 0;
        }
        match outcome {
            Outcome::Stopped => return Ok(()),
            Outcome::Restart(_) if restarts == MOST_RESTARTS => {
                return Err(DaemonError::Restarts(restarts).into())
            }
            Outcome::Restart(reason) => {
                restarts += 1;
                log::info!("{reason}: loading again");
            }
            Outcome::StoodStill(pause) => {
                log::warn!(
                    "the machine stood still for {:.0} s, and the kernel's watchdog ejected the scheduler: loading again",
                    pause.as_secs_f64()
                );
                side.stood_still();
            }
            Outcome::SteppedBack => side.stand_by(monitoring),
        }
        if termination_requested() {
            return Ok(());
        }
    }
}

/// One load.
fn run<S: Side>(
    side: &mut S,
    settings: &Settings,
    returns: &mut Returns,
    monitoring: &mut Monitoring<S::Order, S::Report>,
) -> Result<Outcome, S::Error> {
    side.check()?;
    let mut storage = MaybeUninit::uninit();
    let mut load = side.load(&mut storage)?;
    let mut pulse = Pulse::new(Instant::now());
    let supervised = supervise(&mut load, settings, monitoring, &mut pulse);
    if let Ok(report) = load.report() {
        monitoring.unloaded(&report);
    }
    let now = Instant::now();
    pulse.beat(now);
    let stood_still = pulse.stood_still(now, load.patience()).filter(|_| load.stalled());
    let info = load.stop();
    let wish = supervised?;
    if let Some(pause) = stood_still.filter(|_| info.is_err() && returns.once_more(now)) {
        return Ok(Outcome::StoodStill(pause));
    }
    let info = info?;
    Ok(match wish {
        _ if info.should_restart() => Outcome::Restart("the set of CPUs changed"),
        Some(Then::StepBack) => Outcome::SteppedBack,
        Some(Then::LoadAgain(reason)) => Outcome::Restart(reason),
        Some(Then::GoOn(_)) | None => Outcome::Stopped,
    })
}

/// Steps and answers until the load ends. Returns what the side wishes, if it was the side that ended it.
fn supervise<L, O>(
    load: &mut L,
    settings: &Settings,
    monitoring: &Monitoring<O, L::Report>,
    pulse: &mut Pulse,
) -> Result<Option<Then>, L::Error>
where
    L: Load<Order = O>,
    O: Send + Sync + 'static,
{
    let mut reported = L::Report::default();
    let mut next_report = settings.stats_interval.map(|interval| Instant::now() + interval);
    let mut next_step = Instant::now();
    let mut next_export = monitoring.exports().then(Instant::now);
    let mut trace_until: Option<Instant> = None;
    while !termination_requested() && !load.exited() {
        pulse.beat(Instant::now());
        // A request is answered at once; otherwise this is the pause between steps.
        match monitoring.question(next_step.saturating_duration_since(Instant::now())) {
            Some(ask) => {
                monitoring.answer(match ask {
                    Ask::Stats => {
                        load.asked(Instant::now())?;
                        Answer::Stats(Box::new(monitoring.totals(&load.report()?)))
                    }
                    Ask::Order(order) => Answer::Order(load.obey(order)),
                    Ask::Trace(length) => {
                        trace_until = (!length.is_zero()).then(|| Instant::now() + length);
                        Answer::Trace(Ok(load.trace(trace_until.is_some())))
                    }
                });
                // Clients that ask without pause do not keep it from its steps.
                if Instant::now() < next_step {
                    continue;
                }
            }
            None => std::thread::sleep(next_step.saturating_duration_since(Instant::now())),
        }
        let now = Instant::now();
        // The client that asked for a trace may be gone.
        if trace_until.is_some_and(|end| now >= end) {
            trace_until = None;
            load.trace(false);
        }
        let then = load.step(now)?;
        let prints = next_report.is_some_and(|at| now >= at);
        let exports = next_export.is_some_and(|at| now >= at);
        // A report reads the records of all CPUs: on a host it takes longer than all the rest of a step.
        if prints || exports {
            let report = load.report()?;
            if exports {
                next_export = Some(now + EXPORT_EVERY);
                monitoring.update(&report);
            }
            if prints {
                next_report = settings.stats_interval.map(|interval| now + interval);
                // A closed standard output must not end the scheduler.
                let _ = report.since(&reported).format(&mut std::io::stdout().lock());
                reported = report;
            }
        }
        match then {
            Then::GoOn(at) => next_step = at,
            wish => return Ok(Some(wish)),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Counters;
    use crate::server::{ask_at, Arguments};
    use scx_stats::prelude::*;
    use scx_stats_derive::Stats;
    use serde::{Deserialize, Serialize};
    use std::cell::Cell;
    use std::io::Write;
    use std::rc::Rc;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
    #[stat(desc = "a scheduler", _om_prefix = "t_", top)]
    struct Figures {
        #[stat(desc = "loads")]
        loads: u64,
    }

    impl Report for Figures {
        const SIDE: &'static str = "guest";
        const COUNTERS: &'static Counters = &[("loads", "loads")];

        fn parts() -> Vec<StatsMeta> {
            Vec::new()
        }

        fn since(&self, earlier: &Self) -> Self {
            Self { loads: self.loads - earlier.loads }
        }

        fn after(&self, earlier: &Self) -> Self {
            Self { loads: self.loads + earlier.loads }
        }

        fn unloaded(self) -> Self {
            self
        }

        fn format(&self, out: &mut dyn Write) -> std::io::Result<()> {
            writeln!(out, "{}", self.loads)
        }
    }

    /// What its loads do, one after another; after the last one it ends.
    struct Script {
        loads: Vec<Then>,
        stood_by: u32,
        fails: bool,
        /// The first load is refused, and there may be another way.
        refused: bool,
        another_way: bool,
        calls: Rc<Calls>,
    }

    /// How often each was called, over all loads.
    #[derive(Default)]
    struct Calls {
        report: Cell<u32>,
        asked: Cell<u32>,
    }

    struct Once {
        then: Option<Then>,
        /// Steps until the last one.
        steps: u32,
        traced: Vec<bool>,
        fails: bool,
        calls: Rc<Calls>,
    }

    impl Side for Script {
        type Report = Figures;
        type Order = u32;
        type Error = DaemonError;
        type Load<'a> = Once;

        const ORDERS: Orders<u32> = &[("double", |args: &Arguments| Ok(args["n"].parse()?))];

        fn render(report: &Figures) -> String {
            report.loads.to_string()
        }

        fn check(&self) -> Result<(), DaemonError> {
            Ok(())
        }

        fn load<'a>(&'a mut self, _: &'a mut MaybeUninit<OpenObject>) -> Result<Once, DaemonError> {
            if std::mem::take(&mut self.refused) {
                return Err(DaemonError::Load(anyhow::anyhow!("refused")));
            }
            let then = if self.loads.is_empty() { None } else { Some(self.loads.remove(0)) };
            Ok(Once { then, steps: 0, traced: Vec::new(), fails: self.fails, calls: Rc::clone(&self.calls) })
        }

        fn has_another_way(&mut self) -> bool {
            std::mem::take(&mut self.another_way)
        }

        fn stand_by(&mut self, monitoring: &Monitoring<u32, Figures>) {
            self.stood_by += 1;
            monitoring.answer_unloaded(Instant::now() + Duration::from_millis(300));
        }

        fn stood_still(&mut self) {}
    }

    impl Load for Once {
        type Report = Figures;
        type Order = u32;
        type Error = DaemonError;

        /// With nothing more to do it ends itself, as after the kernel's request.
        fn exited(&self) -> bool {
            self.then.is_none()
        }

        fn stalled(&self) -> bool {
            false
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(20)
        }

        fn report(&self) -> Result<Figures, DaemonError> {
            self.calls.report.set(self.calls.report.get() + 1);
            Ok(Figures { loads: 1 })
        }

        fn asked(&mut self, _: Instant) -> Result<(), DaemonError> {
            self.calls.asked.set(self.calls.asked.get() + 1);
            Ok(())
        }

        fn step(&mut self, now: Instant) -> Result<Then, DaemonError> {
            if self.fails {
                return Err(DaemonError::NoStatistics);
            }
            self.steps += 1;
            Ok(match self.then {
                // For a while, so that clients can ask.
                Some(Then::GoOn(_)) if self.steps < 40 => Then::GoOn(now + Duration::from_millis(10)),
                Some(Then::GoOn(_)) | None => Then::StepBack,
                Some(wish) => wish,
            })
        }

        fn obey(&mut self, order: u32) -> anyhow::Result<Value> {
            anyhow::ensure!(order < 100, "{order} is too much");
            Ok(Value::from(2 * order))
        }

        fn trace(&mut self, on: bool) -> u64 {
            self.traced.push(on);
            7
        }

        fn stop(&mut self) -> Result<UserExitInfo, DaemonError> {
            Ok(UserExitInfo::default())
        }
    }

    /// Runs a script; `meanwhile` has the socket.
    fn runs(script: &mut Script, meanwhile: impl FnOnce(&Path) + Send) -> Result<(), DaemonError> {
        runs_with(&Settings::default(), script, meanwhile)
    }

    fn runs_with(
        settings: &Settings,
        script: &mut Script,
        meanwhile: impl FnOnce(&Path) + Send,
    ) -> Result<(), DaemonError> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("stats");
        let mut monitoring = Monitoring::start(settings.metrics, Script::ORDERS, Script::render, &socket)?;
        std::thread::scope(|scope| {
            scope.spawn(|| meanwhile(&socket));
            go_on(script, settings, &mut monitoring)
        })
    }

    fn script(loads: &[Then]) -> Script {
        Script {
            loads: loads.to_vec(),
            stood_by: 0,
            fails: false,
            refused: false,
            another_way: false,
            calls: Rc::default(),
        }
    }

    #[test]
    fn it_loads_again_and_steps_back_as_the_side_wishes() {
        let mut wishes = script(&[Then::LoadAgain("news"), Then::StepBack, Then::LoadAgain("more")]);
        runs(&mut wishes, |_| ()).unwrap();
        assert_eq!((wishes.loads.len(), wishes.stood_by), (0, 1));
    }

    #[test]
    fn it_does_not_load_again_without_end() {
        let mut wishes = script(&[Then::LoadAgain("news"); 30]);
        assert!(matches!(runs(&mut wishes, |_| ()), Err(DaemonError::Restarts(MOST_RESTARTS))));
        assert_eq!(wishes.loads.len(), 30 - 1 - MOST_RESTARTS as usize);
    }

    #[test]
    fn an_error_ends_it() {
        let mut wishes = Script { fails: true, ..script(&[Then::StepBack; 3]) };
        assert!(matches!(runs(&mut wishes, |_| ()), Err(DaemonError::NoStatistics)));
        assert_eq!(wishes.loads.len(), 2);
    }

    #[test]
    fn a_refused_load_is_tried_another_way_if_there_is_one() {
        let refused = || Script { refused: true, ..script(&[Then::StepBack]) };
        assert!(matches!(runs(&mut refused(), |_| ()), Err(DaemonError::Load(_))));
        let mut with_another_way = Script { another_way: true, ..refused() };
        runs(&mut with_another_way, |_| ()).unwrap();
        assert_eq!(with_another_way.stood_by, 1);
    }

    #[test]
    fn clients_are_answered_loaded_and_unloaded() {
        let mut wishes = script(&[Then::GoOn(Instant::now())]);
        runs(&mut wishes, |socket| {
            let ask = |target: &str, args: &[(&str, String)]| ask_at::<Figures, Value>(socket, target, args);
            assert_eq!(ask("double", &[("n", "21".into())]).unwrap(), 42);
            let refused = ask("double", &[("n", "100".into())]).unwrap_err().to_string();
            assert_eq!(refused, "100 is too much");
            assert!(ask("double", &[("n", "x".into())]).is_err());
            assert_eq!(ask("trace", &[("ms", "50".into())]).unwrap(), 7);
            assert!(ask("trace", &[]).unwrap_err().to_string().contains("expected ms"));
            assert_eq!(ask("top", &[]).unwrap()["loads"], 0, "since the connection");
            std::thread::sleep(Duration::from_millis(450));
            let unloaded = ask("double", &[("n", "1".into())]).unwrap_err().to_string();
            assert!(unloaded.contains("unloaded at the moment"), "{unloaded}");
        })
        .unwrap();
        assert_eq!(wishes.stood_by, 1);
    }

    #[test]
    fn a_report_is_made_only_for_who_reads_it() {
        let reports = |settings: &Settings, asks: bool| {
            let mut wishes = script(&[Then::GoOn(Instant::now())]);
            let meanwhile = move |socket: &Path| {
                if asks {
                    ask_at::<Figures, Value>(socket, "top", &[]).unwrap();
                }
            };
            runs_with(settings, &mut wishes, meanwhile).unwrap();
            (wishes.calls.report.get(), wishes.calls.asked.get())
        };
        // Forty steps, and one report at the end of each of two loads.
        assert_eq!(reports(&Settings::default(), false), (2, 0));
        let (made, asked) = reports(&Settings::default(), true);
        assert!(asked > 0 && made == 2 + asked, "{made} {asked}");
        let stats = Settings { stats_interval: Some(Duration::from_millis(50)), ..Settings::default() };
        assert!(reports(&stats, false).0 > 4);
        let metrics = Settings { metrics: Some(([127, 0, 0, 1], 0).into()), ..Settings::default() };
        assert_eq!(reports(&metrics, false), (3, 0), "once a second");
    }

    #[test]
    fn who_does_not_answer_is_not_running() {
        let dir = tempfile::tempdir().unwrap();
        let asked = ask_at::<Figures, Value>(&dir.path().join("stats"), "top", &[]);
        assert!(matches!(asked, Err(DaemonError::NotRunning { side: "guest" })));
    }
}
