//! Runs an experiment: boots, repeats every arm in turn (ABBA), collects the samples, and decides the verdict.

use crate::accel::Accel;
use crate::contention::{self, Delivered};
use crate::experiment::{Background, Experiment, Workload, KERNEL_ARM};
use crate::host_truth::{in_words, vcpu_times, HostTruth, VcpuTime};
use crate::lock::MachineLock;
use crate::progress::Progress;
use crate::session::{last_words, Session};
use crate::sign::Sign;
use crate::speed::Speed;
use crate::{cache, fetch, image, kernels, last_look, noise, rig, windows, LabError};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::time::{Duration, Instant};
use tandem_result::{Better, Evidence, ExperimentResult, RunVerdict};

/// The run is given up after this many rig failures in a row.
const ATTEMPTS: u32 = 3;

/// Which acceleration to use for the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccelChoice {
    /// Hardware if a host with working nested guests really boots with it, else emulation.
    #[default]
    Auto,
    /// Hardware.
    Kvm,
    /// Emulation.
    Tcg,
}

/// Options of a run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Other number of repetitions.
    pub reps: Option<u32>,
    /// Other arms; the first is the baseline.
    pub arms: Option<Vec<String>>,
    /// Acceleration.
    pub accel: AccelChoice,
    /// Print consoles of failed attempts.
    pub verbose: bool,
    /// Boot another kernel than the experiment's: a series such as 6.18. Guests without one of their own get it, too.
    pub kernel: Option<String>,
}

/// Everything measured so far.
#[derive(Default)]
struct Measured {
    /// Repetitions that are done.
    reps: u32,
    /// Per metric and arm, in order.
    samples: BTreeMap<(String, String), Vec<f64>>,
    /// Windows per metric and arm, reduced when all have been measured.
    windows: BTreeMap<(String, String), Vec<Vec<f64>>>,
    delivered: Vec<(String, String, Delivered)>,
    vcpu_times: Vec<VcpuTime>,
    commands: BTreeMap<String, String>,
    scheduler_output: BTreeMap<String, String>,
    facts: Option<tandem_agent::Facts>,
    speed: Speed,
    wait_pct: f64,
    steal_pct: f64,
    /// The busiest that CPU 0 of the host was while clients ran there.
    clients_pct: Option<f64>,
    boot_s: f64,
    boots: u32,
}

/// Runs an experiment to a result. Failures of the software under test are results too.
///
/// # Errors
/// Nothing could be run: missing parts, a broken machine, an interruption.
pub fn run(experiment: &Experiment, options: &RunOptions) -> Result<ExperimentResult, LabError> {
    run_until(experiment, options, |_| true)
}

/// The same, again and again with all samples together, until there are enough of them. A later time that the rig fails is left out.
///
/// # Errors
/// As for [`run()`].
pub fn run_until(
    experiment: &Experiment,
    options: &RunOptions,
    enough: impl Fn(&ExperimentResult) -> bool,
) -> Result<ExperimentResult, LabError> {
    let progress = Progress::new(&experiment.name);
    let mut experiment = experiment.clone();
    experiment.reps = options.reps.unwrap_or(experiment.reps);
    if let Some(arms) = &options.arms {
        experiment = experiment.with_arms(arms.clone())?;
    }
    let _lock = MachineLock::take(|text| progress.step(text))?;
    let parts = fetch::parts()?;
    let images = image::base_images(&parts)?;
    let accel = choose_accel(options.accel, &parts, &images, &progress)?;
    let parts = with_kernels(parts, options.kernel.as_ref(), &experiment)?;

    let mut result = new_result(&experiment, &parts, accel);
    result.attempts = 0;
    let rig = Rig { parts, images, accel, experiment, verbose: options.verbose };
    let mut measured = Measured::default();
    let mut so_far: Option<ExperimentResult> = None;
    loop {
        for boot in 1..=rig.experiment.boots {
            if rig.experiment.boots > 1 {
                progress.step(&format!("boot {boot} of {}", rig.experiment.boots));
            }
            match rig.deliver(&mut result, &progress)? {
                Some(one) => measured.merge(one),
                None if result.verdict == RunVerdict::Failed => return Ok(result),
                None => return Ok(so_far.unwrap_or(result)),
            }
        }
        let mut filled = result.clone();
        fill(&mut filled, &rig.experiment, &measured);
        if filled.verdict != RunVerdict::Ok || enough(&filled) {
            return Ok(filled);
        }
        progress.step("not enough samples: again");
        so_far = Some(filled);
    }
}

/// Everything that each boot of a run needs.
struct Rig {
    parts: fetch::Parts,
    images: image::Images,
    accel: Accel,
    experiment: Experiment,
    verbose: bool,
}

impl Rig {
    /// Boots and measures until all repetitions are done. A rig failure costs the repetition in which it comes: the next boot goes on
    /// after those that are done. `None` if the rig fails too often, or if the software under test fails; the reason is in the result.
    fn deliver(
        &self,
        result: &mut ExperimentResult,
        progress: &Progress,
    ) -> Result<Option<Measured>, LabError> {
        let mut failures = 0;
        let mut measured = Measured::default();
        loop {
            result.attempts += 1;
            let done = measured.reps;
            match self.attempt(&mut measured, progress) {
                Ok(()) => return Ok(Some(measured)),
                Err(LabError::Rig(reason)) => {
                    failures = if measured.reps > done { 1 } else { failures + 1 };
                    result.rig_failures += 1;
                    progress.step(&format!("rig failure {failures}: {reason}"));
                    if failures == ATTEMPTS {
                        result.verdict = RunVerdict::Inconclusive;
                        result.reason = format!("the rig failed {ATTEMPTS} times in a row, last: {reason}");
                        return Ok(None);
                    }
                }
                Err(LabError::UnderTest(reason)) => {
                    result.verdict = RunVerdict::Failed;
                    result.reason = reason;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt(&self, measured: &mut Measured, progress: &Progress) -> Result<(), LabError> {
        let work = cache::work_dir()?;
        let booting = Instant::now();
        let mut session =
            Session::boot(&self.parts, &self.images, work.path(), &self.experiment, self.accel, progress)?;
        measured.boot_s = booting.elapsed().as_secs_f64();
        let outcome = measure(&mut session, &self.experiment, self.accel, measured, progress);
        let measures = outcome.is_ok();
        let ended = conclude(session, outcome, &self.experiment, self.verbose);
        // A host that does not come to its end may be broken by what was measured there.
        if measures && ended.is_err() {
            *measured = Measured::default();
        }
        ended
    }
}

impl Measured {
    /// Adds the measurements of another boot.
    fn merge(&mut self, other: Self) {
        self.boot_s = other.boot_s;
        self.boots += 1;
        self.add(other);
    }

    /// Adds more of them.
    fn add(&mut self, other: Self) {
        for (key, samples) in other.samples {
            self.samples.entry(key).or_default().extend(samples);
        }
        for (key, windows) in other.windows {
            self.windows.entry(key).or_default().extend(windows);
        }
        self.delivered.extend(other.delivered);
        self.vcpu_times.extend(other.vcpu_times);
        self.scheduler_output.extend(other.scheduler_output);
        self.commands.extend(other.commands);
        self.facts = other.facts.or(self.facts.take());
        self.speed = other.speed;
        self.wait_pct = self.wait_pct.max(other.wait_pct);
        self.clients_pct = self.clients_pct.into_iter().chain(other.clients_pct).reduce(f64::max);
        self.steal_pct = self.steal_pct.max(other.steal_pct);
    }
}

/// A run ends at the first line that shows trouble. The registers and the stack follow it, so wait for them.
const LAST_WORDS: Duration = Duration::from_secs(12);

/// Ends a session and decides whether a failure is the rig's or that of the software under test.
fn conclude(
    mut session: Session,
    outcome: Result<(), LabError>,
    experiment: &Experiment,
    verbose: bool,
) -> Result<(), LabError> {
    let loaded = session.scheduler_loaded;
    if session.machine.trouble().is_some() && !session.machine.ended() {
        std::thread::sleep(LAST_WORDS);
    }
    let mut signs = session.machine.signs();
    if session.machine.ended() {
        signs.push(Sign::Host);
    }
    let trouble = session.machine.trouble();
    match outcome {
        Ok(()) => session.end(),
        Err(LabError::Rig(reason) | LabError::Agent { message: reason, .. }) => {
            let ours = !rig::is_rig_failure(&signs, rig::host_is_innocent(experiment), loaded);
            // Rig failures are common and retried, so their consoles are not shown.
            if verbose || ours {
                if trouble.is_none() && !session.machine.ended() {
                    eprintln!("{}", last_look::look(&mut session));
                }
                eprintln!("--- console of the host\n{}\n---", session.machine.tail());
            }
            let reason = trouble.unwrap_or(reason);
            if ours {
                Err(LabError::UnderTest(format!("with the scheduler loaded: {reason}")))
            } else {
                Err(LabError::Rig(reason))
            }
        }
        Err(error) => Err(error),
    }
}

/// Decides which acceleration is used. The caller holds the machine's lock.
pub(crate) fn choose_accel(
    choice: AccelChoice,
    parts: &fetch::Parts,
    images: &image::Images,
    progress: &Progress,
) -> Result<Accel, LabError> {
    match choice {
        AccelChoice::Kvm => Ok(Accel::Kvm),
        AccelChoice::Tcg => Ok(Accel::Tcg),
        AccelChoice::Auto => try_kvm(parts, images, progress),
    }
}

/// Does a host with a working nested guest boot with hardware virtualisation? It is tried once, and the answer is kept
/// in the cache.
fn try_kvm(parts: &fetch::Parts, images: &image::Images, progress: &Progress) -> Result<Accel, LabError> {
    if File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accel::Tcg);
    }
    let known = cache::dir()?.join(format!("accel-{}", parts.kernel.release));
    match std::fs::read_to_string(&known).as_deref() {
        Ok("kvm") => return Ok(Accel::Kvm),
        Ok("tcg") => return Ok(Accel::Tcg),
        _ => {}
    }
    progress.step("trying hardware virtualisation (once; up to a minute)");
    let probe = "name='probe'\ntitle='p'\nmode='nested'\narms=['eevdf']\n[[vm]]\nname='a'\npins=[1]\n\
                 [[workload]]\nname='w'\nscript='true'\n";
    let works = || -> Result<(), LabError> {
        let experiment = Experiment::parse(probe, "probe")?;
        let work = cache::work_dir()?;
        Session::boot(parts, images, work.path(), &experiment, Accel::Kvm, progress)?.end()
    };
    let accel = match works() {
        Ok(()) => Accel::Kvm,
        Err(LabError::Interrupted) => return Err(LabError::Interrupted),
        Err(_) => Accel::Tcg,
    };
    std::fs::write(&known, accel.name()).map_err(LabError::io("write", &known))?;
    Ok(accel)
}

/// Order of arms in a repetition: forwards, then backwards, so that drift hits all alike.
fn order(arms: &[String], rep: u32) -> Vec<&String> {
    if rep.is_multiple_of(2) {
        arms.iter().collect()
    } else {
        arms.iter().rev().collect()
    }
}

fn measure(
    session: &mut Session,
    experiment: &Experiment,
    accel: Accel,
    measured: &mut Measured,
    progress: &Progress,
) -> Result<(), LabError> {
    let (wait_pct, steal_pct) = (measured.wait_pct, measured.steal_pct);
    let begin = noise::snapshot(session.machine.pid());
    for rep in measured.reps..experiment.reps {
        let mut one =
            Measured { facts: Some(session.facts.clone()), speed: session.speed, ..Measured::default() };
        for arm in order(&experiment.arms, rep) {
            let at = format!("rep {}/{} {arm}", rep + 1, experiment.reps);
            let mut loaded = Vec::new();
            if let Some(command) = experiment.command(arm).filter(|_| arm != KERNEL_ARM) {
                progress.step(&format!("{at}: loading"));
                let command = rig::bearable(command, experiment, accel);
                session.load(None, &command)?;
                loaded.push(command.join(" "));
            }
            for also in experiment.also_load.get(arm).into_iter().flatten() {
                progress.step(&format!("{at}: loading on {}", also.machine));
                let command = rig::bearable_on(also.argv.clone(), &also.machine, experiment, accel);
                session.load(Some(&also.machine), &command)?;
                loaded.push(format!("on {}: {}", also.machine, command.join(" ")));
            }
            if !loaded.is_empty() {
                one.commands.insert(arm.clone(), loaded.join("; "));
            }
            for _ in 0..experiment.rounds {
                for workload in &experiment.workloads {
                    progress.step(&format!("{at}: {}", workload.name));
                    run_workload(session, experiment, workload, arm, &mut one)?;
                }
            }
            // No contention while schedulers are loaded and unloaded: nothing is measured then, and on contended vCPUs
            // it takes many times as long.
            session.contenders.activate(&mut session.machine.link, experiment, BTreeSet::new())?;
            if let Some(output) = session.unload()? {
                one.scheduler_output.insert(arm.clone(), output.stdout + &output.stderr);
            }
        }
        measured.add(one);
        measured.reps = rep + 1;
        let (waited, stolen) = noise::between(&begin, &noise::snapshot(session.machine.pid()));
        (measured.wait_pct, measured.steal_pct) = (wait_pct.max(waited), steal_pct.max(stolen));
    }
    Ok(())
}

fn run_workload(
    session: &mut Session,
    experiment: &Experiment,
    workload: &Workload,
    arm: &str,
    measured: &mut Measured,
) -> Result<(), LabError> {
    let argv = match &workload.script {
        Some(script) => vec!["/bin/sh".into(), "-c".into(), format!("{}{script}", experiment.functions)],
        None => workload.argv.clone(),
    };
    let wanted = experiment.contention_of(workload);
    session.contenders.activate(&mut session.machine.link, experiment, wanted)?;
    let chosen = |b: &&Background| b.workloads.as_ref().is_some_and(|list| list.contains(&workload.name));
    let mut beside = Vec::new();
    for background in experiment.background.iter().filter(chosen) {
        beside.push(session.spawn_beside(background)?);
    }
    let clients = experiment.has_clients(workload);
    let cpu0 = if clients { session.cpu0()? } else { noise::CpuTime::default() };
    let before = contention::truth(&mut session.machine.link)?;
    session.scheduler_loaded |= experiment.loads_scheduler;
    let limit = Duration::from_secs_f64(workload.timeout_s);
    let deadline = Instant::now() + limit;
    let mut also = Vec::new();
    for program in &workload.also {
        also.push((program.machine.as_str(), session.spawn(&program.machine, &program.argv)?));
    }
    let output = session.exec_on(workload.on.as_deref(), &argv, limit)?;
    let mut outputs = vec![(None, output)];
    for (machine, handle) in also {
        outputs.push((Some(machine), session.ended(machine, handle, deadline)?));
    }
    let after = contention::truth(&mut session.machine.link)?;
    if clients {
        let busy_pct = session.cpu0()?.busy_pct_since(cpu0);
        measured.clients_pct = Some(measured.clients_pct.unwrap_or(0.0).max(busy_pct));
    }
    session.still_beside(&beside)?;
    for beside in &beside {
        session.stop(beside)?;
    }
    let delivered = session.contenders.delivered(experiment, &before, &after);
    let times = vcpu_times(arm, &workload.name, &before, &after);
    measured.delivered.extend(delivered.iter().map(|d| (arm.to_string(), workload.name.clone(), d.clone())));
    measured.vcpu_times.extend(times.iter().cloned());
    let bad = |what: String| LabError::UnderTest(format!("{} under {arm}: {what}", workload.name));
    let on = |machine: Option<&str>| machine.map_or_else(String::new, |machine| format!("on {machine}: "));
    if let Some((machine, output)) = outputs.iter().find(|(_, o)| o.status != 0 || o.timed_out) {
        let mut words = on(*machine) + &last_words(Some(output));
        if output.timed_out {
            // Was it starved, or did it wait for something?
            words += &format!(" / {} / {}", session.schedulers_in_words(), in_words(&times));
        }
        return Err(bad(words));
    }
    let told_by = |machine: Option<&str>| -> Result<Value, LabError> {
        let line = outputs
            .iter()
            .find(|(other, _)| *other == machine)
            .and_then(|(_, output)| output.stdout.trim().lines().last())
            .unwrap_or_default();
        serde_json::from_str(line)
            .map_err(|_| bad(format!("{}last line is not JSON: {line:.80}", on(machine))))
    };
    for metric in &workload.metrics {
        let machine = metric.machine.as_deref().or(workload.on.as_deref()).unwrap_or(experiment.target());
        let value = told_by(metric.machine.as_deref())?;
        let found =
            lookup(&value, &metric.path).ok_or_else(|| bad(format!("no {} in its output", metric.path)))?;
        let key = (metric.name.clone(), arm.to_string());
        match (&metric.reduce, found) {
            (None, Value::Number(number)) => {
                let sample =
                    number.as_f64().ok_or_else(|| bad(format!("{} is not a number", metric.path)))?;
                let sample = match metric.against_host {
                    Some(against) => HostTruth::new(machine, &times, &delivered)
                        .error_of(sample, against)
                        .ok_or_else(|| {
                            bad(format!("{}: the host knows nothing of vCPU {}", metric.path, against.vcpu))
                        })?,
                    None => sample,
                };
                let sample = match &metric.per {
                    Some(path) => {
                        let per = lookup(&told_by(None)?, path).and_then(Value::as_f64);
                        let per = per.filter(|per| *per > 0.0);
                        sample / per.ok_or_else(|| bad(format!("no positive {path} in its output")))?
                    }
                    None => sample,
                };
                measured.samples.entry(key).or_default().push(sample);
            }
            (Some(_), Value::Array(windows)) => {
                let windows = windows.iter().filter_map(Value::as_f64).collect();
                measured.windows.entry(key).or_default().push(windows);
            }
            _ => return Err(bad(format!("{} has the wrong kind", metric.path))),
        }
    }
    Ok(())
}

/// Follows a path such as `threads.0.work`.
fn lookup<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => value.get(key),
    })
}

/// The parts with the kernels that are wanted.
pub(crate) fn with_kernels(
    mut parts: fetch::Parts,
    wanted: Option<&String>,
    experiment: &Experiment,
) -> Result<fetch::Parts, LabError> {
    if let Some(series) = wanted.or(experiment.kernel.as_ref()) {
        parts.kernel = kernels::fetch(series)?;
    }
    for vm in &experiment.vms {
        if let Some(series) = &vm.kernel {
            parts.guest_kernels.insert(vm.name.clone(), kernels::fetch(series)?);
        }
    }
    Ok(parts)
}

fn new_result(experiment: &Experiment, parts: &fetch::Parts, accel: Accel) -> ExperimentResult {
    let arms: Vec<&str> = experiment.arms.iter().map(String::as_str).collect();
    let mut result =
        ExperimentResult::new(&experiment.name, Evidence::Kernel, arms[0], &arms, experiment.seed);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    for (key, value) in [
        ("kernel", json!(parts.kernel.release)),
        ("qemu", json!(parts.qemu_version)),
        ("accel", json!(accel.name())),
        ("kernel_args", json!(rig::kernel_args(accel))),
        ("slice_timers", json!(experiment.is_of_the_host() || rig::has_slice_timers(experiment.mode, accel))),
        ("cpus", json!(cores)),
        ("date", json!(today())),
        ("programs", json!(programs_of(experiment))),
    ] {
        result.machine.insert(key.into(), value);
    }
    result
}

/// The schedulers that an experiment is about, by the fingerprints of their programs: later it can be told whether they are still the same.
fn programs_of(experiment: &Experiment) -> String {
    let guest = format!("guest {}", tandem_bpf::GUEST_FINGERPRINT);
    let host = format!("host {}", tandem_bpf::HOST_FINGERPRINT);
    match (experiment.is_of_the_host(), experiment.also_load.is_empty()) {
        (false, _) => guest,
        (true, true) => host,
        (true, false) => format!("{guest}, {host}"),
    }
}

fn today() -> String {
    let days = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() / 86_400) as i64;
    // Days to civil date (Hinnant 2013).
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{:02}", doy - (153 * mp + 2) / 5 + 1)
}

fn fill(result: &mut ExperimentResult, experiment: &Experiment, measured: &Measured) {
    for spec in experiment.workloads.iter().flat_map(|workload| &workload.metrics) {
        for arm in &experiment.arms {
            let key = (spec.name.clone(), arm.clone());
            let metric = result.metric_mut(&spec.name, &spec.unit, spec.better);
            for sample in measured.samples.get(&key).into_iter().flatten() {
                metric.push(arm, *sample);
            }
            if let Some(how) = &spec.reduce {
                let runs = measured.windows.get(&key).into_iter().flatten();
                let Some(of) = how.of() else {
                    runs.for_each(|windows| metric.push(arm, windows::reduce(windows, 0.0, how)));
                    continue;
                };
                let references = measured.samples.get(&(of.to_string(), experiment.arms[0].clone()));
                for (windows, reference) in runs.zip(references.into_iter().flatten()) {
                    metric.push(arm, windows::reduce(windows, *reference, how));
                }
            }
        }
    }
    if experiment.boots > 1 {
        // The same for all arms: these figures are about the lab.
        for arm in &experiment.arms {
            result.metric_mut("boots with a result", "", Better::Higher).push(arm, f64::from(measured.boots));
            let retries = f64::from(result.rig_failures);
            result.metric_mut("retries in all", "", Better::Lower).push(arm, retries);
        }
    }
    if experiment.report_contention {
        for (arm, _, d) in &measured.delivered {
            let share = (d.share_pct - d.asked_share_pct).abs();
            result.metric_mut("inactive share error", "points", Better::Lower).push(arm, share);
            let period = 100.0 * (d.period_ms / d.asked_period_ms - 1.0).abs();
            result.metric_mut("inactive period error", "%", Better::Lower).push(arm, period);
            result.metric_mut("inactive share", "%", Better::Lower).push(arm, d.share_pct);
            result.metric_mut("inactive period", "ms", Better::Lower).push(arm, d.period_ms);
        }
    }
    result.compute_ratios(true);
    result.noise.insert("outer_wait_pct".into(), round1(measured.wait_pct));
    result.noise.insert("outer_steal_pct".into(), round1(measured.steal_pct));
    let disturbed = measured.wait_pct > noise::WAIT_LIMIT_PCT || measured.steal_pct > noise::STEAL_LIMIT_PCT;
    if experiment.timed && disturbed {
        result.verdict = RunVerdict::Inconclusive;
        result.reason = "something else used the machine".into();
    }
    if let Some(busy_pct) = measured.clients_pct {
        result.noise.insert("cpu0_busy_pct".into(), round1(busy_pct));
        if experiment.timed && busy_pct > noise::CLIENTS_LIMIT_PCT {
            result.verdict = RunVerdict::Inconclusive;
            result.reason = format!("the clients' CPU was busy for {busy_pct:.0} % of the time");
        }
    }
    let delivered: Vec<Value> = summary(&measured.delivered);
    result.details = json!({
        "boot_s": round1(measured.boot_s),
        "guest": measured.facts,
        "speed": measured.speed,
        "contention": delivered,
        "host_truth": host_truth(&measured.vcpu_times),
        "scheduler_command": measured.commands,
        "scheduler_output": measured.scheduler_output,
    });
}

fn round1(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Contention per arm, workload and vCPU: as asked for, and the median of the delivered one.
fn summary(delivered: &[(String, String, Delivered)]) -> Vec<Value> {
    let mut groups: BTreeMap<(String, String, String, usize), Vec<&Delivered>> = BTreeMap::new();
    for (arm, workload, d) in delivered {
        groups.entry((arm.clone(), workload.clone(), d.vm.clone(), d.vcpu)).or_default().push(d);
    }
    let median = |list: &[&Delivered], of: fn(&Delivered) -> f64| {
        tandem_result::median(&list.iter().map(|d| of(d)).collect::<Vec<_>>()).map(round1)
    };
    groups
        .into_iter()
        .map(|((arm, workload, vm, vcpu), list)| {
            json!({
                "arm": arm, "workload": workload, "vm": vm, "vcpu": vcpu,
                "asked_share_pct": list[0].asked_share_pct, "share_pct": median(&list, |d| d.share_pct),
                "asked_period_ms": list[0].asked_period_ms, "period_ms": median(&list, |d| d.period_ms),
                "demand_pct": median(&list, |d| d.demand_pct),
            })
        })
        .collect()
}

/// Medians of the host's accounting per arm, workload and vCPU.
fn host_truth(times: &[VcpuTime]) -> Vec<Value> {
    let mut groups: BTreeMap<_, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for t in times {
        let (run, delay) = groups.entry((&t.arm, &t.workload, &t.vm, t.vcpu)).or_default();
        run.push(t.run_ms);
        delay.push(t.run_delay_ms);
    }
    let median = |list: &[f64]| tandem_result::median(list).map(round1);
    groups
        .into_iter()
        .map(|((arm, workload, vm, vcpu), (run, delay))| {
            json!({
                "arm": arm, "workload": workload, "vm": vm, "vcpu": vcpu,
                "run_ms": median(&run), "run_delay_ms": median(&delay),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_alternate_and_paths_are_followed() {
        let arms = ["a".to_string(), "b".to_string()];
        assert_eq!((order(&arms, 0)[0], order(&arms, 1)[0]), (&arms[0], &arms[1]));
        let value = json!({"threads": [{"work": 5}]});
        assert_eq!(lookup(&value, "threads.0.work"), Some(&json!(5)));
        assert_eq!(lookup(&value, "threads.1.work"), None);
    }

    #[test]
    fn repetitions_add_up_and_boots_are_counted_apart() {
        let one = |value| {
            let samples = BTreeMap::from([(("metric".to_string(), "arm".to_string()), vec![value])]);
            Measured { samples, wait_pct: value, ..Measured::default() }
        };
        let mut boot = Measured::default();
        boot.add(one(2.0));
        boot.add(one(1.0));
        let mut all = Measured::default();
        all.merge(boot);
        let samples: Vec<f64> = all.samples.into_values().flatten().collect();
        assert_eq!((samples, all.wait_pct, all.boots), (vec![2.0, 1.0], 2.0, 1));
    }
}
