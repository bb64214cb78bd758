//! Workload files: a superset of rt-app's JSON. A file without `x_` keys runs unchanged in rt-app.
//!
//! | key of a task | meaning |
//! |---|---|
//! | `instance`, `loop`, `phases`, `cpus`, `policy`, `priority`, `delay` | as in rt-app; `loop` -1: until the end |
//! | `run`, `runtime`, `sleep` | microseconds, or a distribution `{"x_dist": "lognormal", "mean": 800, "cv": 0.2}` |
//! | `x_program` | the same in a BPF program of its kernel, in which its migration is disabled |
//! | `timer` | `{"ref": "...", "period": us}` |
//! | `lock`, `unlock`, `barrier` | name of a resource |
//! | `wait`, `sync` | `{"ref": "condition", "mutex": "lock"}`; `signal`, `broad`: name of a condition |
//! | `yield` | yields the CPU (`sched_yield()`) |
//! | `x_shootdown` | unmaps memory: spins until all other busy CPUs of its kernel have flushed their TLBs |
//! | `x_get`, `x_put` | takes an item from a queue, puts one in |
//! | `x_serve` | serves requests of a stream |
//! | `x_dispatch` | dispatches the requests of a stream with `"intake": "dispatched"`, each at its arrival time |
//! | `x_device` | one request to a device |
//! | `x_send`, `x_receive` | messages to a mailbox |
//! | `x_hop` | pins itself to the next CPU, round-robin (kernels without a sched_ext policy) |
//! | `x_count` | one round of work is done (without it, each loop counts) |
//! | `x_wait` | `{"policy": "block" \| "spin" \| "spin_block", "spin_us": 50}` |
//! | `x_ws_kb` | working set, KiB |
//! | `x_slice_us`, `x_group` | request (`sched_setattr` runtime), group by name |
//!
//! A number, or a `#` and any text, may follow the name of an event to make keys unique, as rt-app requires.
//! Differences from rt-app: work is CPU time at full speed, not calibrated loops; `run` and `runtime` are the same
//! on a machine whose speed does not change.

use crate::ordered::Node;
use crate::program::{Program, Step, Waiting};
use crate::random::Spread;
use crate::SimError;
use serde::Deserialize;

/// A workload.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// Kinds of tasks.
    pub tasks: Vec<TaskKind>,
    /// Names of locks, in order of their numbers.
    pub locks: Vec<String>,
    /// Names of conditions.
    pub conditions: Vec<String>,
    /// Names of barriers, with the number of tasks that meet at each.
    pub barriers: Vec<(String, usize)>,
    /// Names of bounded queues, with their capacities.
    pub queues: Vec<(String, usize)>,
    /// Streams of requests.
    pub streams: Vec<(String, StreamSpec)>,
    /// Devices.
    pub devices: Vec<(String, DeviceSpec)>,
    /// Mailboxes.
    pub mailboxes: Vec<String>,
}

/// Identical tasks.
#[derive(Debug, Clone)]
pub struct TaskKind {
    /// Their name.
    pub name: String,
    /// How many.
    pub instances: usize,
    /// What each does.
    pub program: Program,
    /// Nice value.
    pub nice: i32,
    /// SCHED_IDLE.
    pub idle: bool,
    /// SCHED_BATCH.
    pub batch: bool,
    /// CPUs that they may use.
    pub cpus: Option<Vec<usize>>,
    /// Name of their group.
    pub group: Option<String>,
    /// Their request (slice), ns.
    pub slice_ns: Option<u64>,
    /// When they start, ns.
    pub start_ns: u64,
}

/// A stream of requests.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Requests per second.
    pub rate_hz: f64,
    /// Distribution of the inter-arrival times.
    #[serde(default)]
    pub process: Process,
    /// Work per request.
    #[serde(deserialize_with = "number_or_spread")]
    pub service: Spread,
    /// CPUs that its interrupts go to, round-robin; none: all.
    #[serde(default)]
    pub irq_cpus: Option<Vec<usize>>,
    /// How servers get requests.
    #[serde(default)]
    pub intake: Intake,
}

/// How servers get requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intake {
    /// All idle servers wait side by side, and one of them is woken (epoll).
    #[default]
    Any,
    /// One server waits for a request and holds a lock. The others wait for that lock (TailBench's networked
    /// configuration).
    Locked,
    /// No external arrivals: a server that has served a request takes the next one, sleeps until its arrival time
    /// and serves it (TailBench's integrated configuration).
    Own,
    /// No external arrivals: a task of the same program sleeps until the next arrival time and dispatches the
    /// request to the server that has waited longest (a load generator in the guest; `tandem-kit requests`).
    Dispatched,
}

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// Exponential inter-arrival times.
    #[default]
    Poisson,
    /// Equal inter-arrival times.
    Regular,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Service time of a request.
    #[serde(deserialize_with = "number_or_spread")]
    pub service: Spread,
    /// Number of requests that it serves in parallel.
    #[serde(default = "one")]
    pub parallel: usize,
    /// CPU that its interrupts go to.
    #[serde(default)]
    pub irq_cpu: usize,
}

fn one() -> usize {
    1
}

/// Keys that `global` may contain.
const GLOBAL_KEYS: &[&str] = &[
    "duration",
    "default_policy",
    "calibration",
    "ftrace",
    "lock_pages",
    "logdir",
    "log_basename",
    "log_size",
    "gnuplot",
    "x_format",
    "x_warmup_ms",
    "pi_enabled",
];

fn bad(what: impl Into<String>) -> SimError {
    SimError::Scenario(what.into())
}

impl Workload {
    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong, and where: unknown keys are refused by name.
    pub fn parse(text: &str) -> Result<Self, SimError> {
        let root: Node = serde_json::from_str(text).map_err(|error| bad(format!("workload: {error}")))?;
        let members = root.members().ok_or_else(|| bad("workload: expected an object"))?;
        let mut workload = Workload::default();
        for (key, node) in members {
            match key.as_str() {
                "global" => {
                    for (key, _) in node.members().unwrap_or_default() {
                        if !GLOBAL_KEYS.contains(&key.as_str()) {
                            return Err(bad(format!("workload: global: unknown key {key:?}")));
                        }
                    }
                }
                "resources" => workload.resources(node)?,
                "tasks" => {}
                other => {
                    return Err(bad(format!(
                        "workload: unknown key {other:?}; expected global, tasks, resources"
                    )))
                }
            }
        }
        let tasks = root.get("tasks").and_then(Node::members).ok_or_else(|| bad("workload: no tasks"))?;
        for (name, node) in tasks {
            workload.task(name, node).map_err(|error| match error {
                SimError::Scenario(what) => bad(format!("workload: task {name:?}: {what}")),
                other => other,
            })?;
        }
        workload.count_loops();
        workload.count_barriers();
        Ok(workload)
    }

    /// Multiplies all work by a factor.
    pub fn scale_work(&mut self, factor: f64) {
        let steps = self.tasks.iter_mut().flat_map(|kind| &mut kind.program.steps);
        for step in steps {
            if let Step::Run(spread) | Step::Program(spread) = step {
                *spread = spread.scaled(factor);
            }
        }
        for (_, stream) in &mut self.streams {
            stream.service = stream.service.scaled(factor);
        }
    }

    fn resources(&mut self, node: &Node) -> Result<(), SimError> {
        for (kind, list) in node.members().ok_or_else(|| bad("workload: resources: expected an object"))? {
            for (name, node) in
                list.members().ok_or_else(|| bad(format!("workload: {kind}: expected an object")))?
            {
                let at = || format!("workload: {kind}: {name}");
                match kind.as_str() {
                    "x_queues" => {
                        let capacity = node.get("cap").and_then(Node::number).filter(|n| *n >= 1.0);
                        let capacity =
                            capacity.ok_or_else(|| bad(format!("{}: cap is a number from 1 on", at())))?;
                        self.queues.push((name.clone(), capacity as usize));
                    }
                    "x_arrivals" => {
                        let spec: StreamSpec =
                            typed(node).map_err(|error| bad(format!("{}: {error}", at())))?;
                        spec.service.check().map_err(|error| bad(format!("{}: {error}", at())))?;
                        if !(spec.rate_hz > 0.0 && spec.rate_hz <= 1e7) {
                            return Err(bad(format!("{}: rate_hz lies above 0 and up to 1e7", at())));
                        }
                        self.streams.push((name.clone(), spec));
                    }
                    "x_devices" => {
                        let spec: DeviceSpec =
                            typed(node).map_err(|error| bad(format!("{}: {error}", at())))?;
                        spec.service.check().map_err(|error| bad(format!("{}: {error}", at())))?;
                        self.devices.push((name.clone(), spec));
                    }
                    other => return Err(bad(format!("workload: resources: unknown key {other:?}"))),
                }
            }
        }
        Ok(())
    }

    fn task(&mut self, name: &str, node: &Node) -> Result<(), SimError> {
        let members = node.members().ok_or_else(|| bad("expected an object"))?;
        let mut kind = TaskKind {
            name: name.to_owned(),
            instances: 1,
            program: Program { steps: Vec::new(), rounds: None, waiting: Waiting::Block, working_set_kib: 0 },
            nice: 0,
            idle: false,
            batch: false,
            cpus: None,
            group: None,
            slice_ns: None,
            start_ns: 0,
        };
        self.events(members, &mut kind)?;
        kind.program.check().map_err(bad)?;
        self.tasks.push(kind);
        Ok(())
    }

    fn events(&mut self, members: &[(String, Node)], kind: &mut TaskKind) -> Result<(), SimError> {
        for (key, node) in members {
            let wrong = |what: &str| bad(format!("{key}: {what}"));
            let number = || node.number().filter(|n| n.is_finite()).ok_or_else(|| wrong("expected a number"));
            let text = || node.text().ok_or_else(|| wrong("expected a name"));
            let step = match event_name(key) {
                "instance" => {
                    kind.instances = number()
                        .ok()
                        .filter(|n| (0.0..=100_000.0).contains(n))
                        .ok_or_else(|| wrong("0 to 100000"))? as usize;
                    continue;
                }
                "loop" => {
                    let n = number()?;
                    kind.program.rounds = (n >= 0.0).then_some(n as u64);
                    continue;
                }
                "phases" => {
                    for (_, phase) in node.members().ok_or_else(|| wrong("expected an object"))? {
                        let members = phase.members().ok_or_else(|| wrong("expected objects"))?;
                        let repeat =
                            phase.get("loop").and_then(Node::number).unwrap_or(1.0).clamp(1.0, 10_000.0)
                                as usize;
                        let inner: Vec<(String, Node)> =
                            members.iter().filter(|(key, _)| key != "loop").cloned().collect();
                        for _ in 0..repeat {
                            self.events(&inner, kind)?;
                        }
                    }
                    continue;
                }
                "cpus" => {
                    kind.cpus = Some(numbers(node).ok_or_else(|| wrong("expected a list of CPUs"))?);
                    continue;
                }
                "policy" => {
                    match text()? {
                        "SCHED_OTHER" => {}
                        "SCHED_IDLE" => kind.idle = true,
                        "SCHED_BATCH" => kind.batch = true,
                        _ => return Err(wrong("SCHED_OTHER, SCHED_IDLE and SCHED_BATCH are modelled")),
                    }
                    continue;
                }
                "priority" => {
                    kind.nice = number()
                        .ok()
                        .filter(|n| (-20.0..=19.0).contains(n))
                        .ok_or_else(|| wrong("a nice value"))? as i32;
                    continue;
                }
                "delay" => {
                    kind.start_ns = (number()?.max(0.0) * 1000.0) as u64;
                    continue;
                }
                "x_ws_kb" => {
                    kind.program.working_set_kib = number()?.clamp(0.0, 1e9) as u32;
                    continue;
                }
                "x_slice_us" => {
                    kind.slice_ns = Some((number()?.clamp(100.0, 100_000.0) * 1000.0) as u64);
                    continue;
                }
                "x_group" => {
                    kind.group = Some(text()?.to_owned());
                    continue;
                }
                "x_wait" => {
                    kind.program.waiting = waiting(node)
                        .ok_or_else(|| wrong("policy block, spin or spin_block with spin_us"))?;
                    continue;
                }
                "run" | "runtime" => Step::Run(spread(node).map_err(|error| wrong(&error))?),
                "x_program" => Step::Program(spread(node).map_err(|error| wrong(&error))?),
                "sleep" => Step::Sleep(spread(node).map_err(|error| wrong(&error))?),
                "timer" => {
                    let period = node.get("period").and_then(Node::number).filter(|us| *us >= 1.0);
                    Step::Timer(
                        (period.ok_or_else(|| wrong("period in microseconds, from 1 on"))? * 1000.0) as u64,
                    )
                }
                "lock" => Step::Lock(index(&mut self.locks, text()?)),
                "unlock" => Step::Unlock(index(&mut self.locks, text()?)),
                "wait" | "sync" => {
                    let name = |key| {
                        node.get(key).and_then(Node::text).ok_or_else(|| wrong("expected ref and mutex"))
                    };
                    let (condition, lock) = (name("ref")?, name("mutex")?);
                    let (condition, lock) =
                        (index(&mut self.conditions, condition), index(&mut self.locks, lock));
                    if event_name(key) == "sync" {
                        kind.program.steps.push(Step::Signal(condition));
                    }
                    Step::Wait { condition, lock }
                }
                "signal" => Step::Signal(index(&mut self.conditions, text()?)),
                "broad" => Step::Broadcast(index(&mut self.conditions, text()?)),
                "barrier" => {
                    let name = text()?;
                    let at = self.barriers.iter().position(|(other, _)| other == name).unwrap_or_else(|| {
                        self.barriers.push((name.to_owned(), 0));
                        self.barriers.len() - 1
                    });
                    Step::Barrier(at)
                }
                "yield" => Step::Yield,
                "x_shootdown" => Step::Shootdown,
                "x_hop" => Step::Hop,
                "x_count" => Step::Count,
                "x_get" => {
                    Step::Get(known(&self.queues, text()?).ok_or_else(|| wrong("no such queue in x_queues"))?)
                }
                "x_put" => {
                    Step::Put(known(&self.queues, text()?).ok_or_else(|| wrong("no such queue in x_queues"))?)
                }
                "x_serve" => Step::Serve(
                    known(&self.streams, text()?).ok_or_else(|| wrong("no such stream in x_arrivals"))?,
                ),
                "x_dispatch" => Step::Dispatch(
                    known(&self.streams, text()?)
                        .filter(|stream| self.streams[*stream].1.intake == Intake::Dispatched)
                        .ok_or_else(|| wrong("no stream of x_arrivals with intake dispatched"))?,
                ),
                "x_device" => Step::Device(
                    known(&self.devices, text()?).ok_or_else(|| wrong("no such device in x_devices"))?,
                ),
                "x_send" => Step::Send(index(&mut self.mailboxes, text()?)),
                "x_receive" => Step::Receive(index(&mut self.mailboxes, text()?)),
                _ => return Err(bad(format!("unknown key {key:?}"))),
            };
            kind.program.steps.push(step);
        }
        Ok(())
    }

    /// If no task counts rounds, each loop counts as one.
    fn count_loops(&mut self) {
        let counts = |kind: &TaskKind| kind.program.steps.contains(&Step::Count);
        if self.tasks.iter().any(counts) {
            return;
        }
        for kind in &mut self.tasks {
            if !kind.program.steps.iter().any(|step| matches!(step, Step::Serve(_) | Step::Dispatch(_))) {
                kind.program.steps.push(Step::Count);
            }
        }
    }

    /// All tasks that have a barrier among their steps meet there.
    fn count_barriers(&mut self) {
        for (at, (_, size)) in self.barriers.iter_mut().enumerate() {
            let comes = |kind: &&TaskKind| kind.program.steps.contains(&Step::Barrier(at));
            *size = self.tasks.iter().filter(comes).map(|kind| kind.instances).sum();
        }
    }
}

/// The name of an event without its suffix: `run` for `run#2` and `run2`.
fn event_name(key: &str) -> &str {
    let key = key.split('#').next().unwrap_or(key);
    key.trim_end_matches(|c: char| c.is_ascii_digit())
}

fn number_or_spread<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Spread, D::Error> {
    spread(&Node::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn spread(node: &Node) -> Result<Spread, String> {
    let spread = match node {
        Node::Number(us) => Spread::constant(*us),
        Node::Object(_) => typed(node)?,
        _ => return Err("expected microseconds or a distribution".into()),
    };
    spread.check()?;
    Ok(spread)
}

fn waiting(node: &Node) -> Option<Waiting> {
    match node.get("policy")?.text()? {
        "block" => Some(Waiting::Block),
        "spin" => Some(Waiting::Spin),
        "spin_block" => {
            Some(Waiting::SpinThenBlock((node.get("spin_us")?.number()?.max(0.0) * 1000.0) as u64))
        }
        _ => None,
    }
}

fn numbers(node: &Node) -> Option<Vec<usize>> {
    match node {
        Node::List(list) => {
            list.iter().map(|n| n.number().filter(|n| *n >= 0.0).map(|n| n as usize)).collect()
        }
        Node::Number(n) if *n >= 0.0 => Some(vec![*n as usize]),
        _ => None,
    }
}

fn index(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|other| other == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

fn known<T>(list: &[(String, T)], name: &str) -> Option<usize> {
    list.iter().position(|(other, _)| other == name)
}

/// Deserialises a node.
fn typed<T: serde::de::DeserializeOwned>(node: &Node) -> Result<T, String> {
    serde_json::from_value(value(node)).map_err(|error| error.to_string())
}

fn value(node: &Node) -> serde_json::Value {
    use serde_json::Value;
    match node {
        Node::Null => Value::Null,
        Node::Truth(truth) => Value::Bool(*truth),
        // Whole numbers become integers: serde reads counts and CPU numbers as such.
        Node::Number(n) if n.fract() == 0.0 && n.abs() < 9e15 => Value::from(*n as i64),
        Node::Number(n) => Value::from(*n),
        Node::Text(text) => Value::from(text.clone()),
        Node::List(list) => list.iter().map(value).collect(),
        Node::Object(members) => members.iter().map(|(key, node)| (key.clone(), value(node))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{
        "global": {"duration": 10, "x_warmup_ms": 1000},
        "tasks": {
            "ocean": {"instance": 4, "loop": -1, "x_ws_kb": 2048,
                      "run": {"x_dist": "lognormal", "mean": 800, "cv": 0.15}, "barrier": "b0",
                      "x_wait": {"policy": "spin_block", "spin_us": 50}},
            "locker": {"instance": 2, "loop": -1, "run": 40, "lock": "m", "run#2": 3, "unlock": "m"},
            "server": {"instance": 2, "loop": -1, "x_serve": "web"},
            "batch": {"policy": "SCHED_IDLE", "loop": -1, "run": 1000}
        },
        "resources": {"x_arrivals": {"web": {"rate_hz": 2400, "service": {"x_dist": "exponential", "mean": 300}}}}
    }"#;

    #[test]
    fn a_file_becomes_programs() {
        let workload = Workload::parse(GOOD).unwrap();
        assert_eq!(workload.tasks.len(), 4);
        assert_eq!(workload.barriers, [("b0".to_owned(), 4)]);
        let locker = &workload.tasks[1].program.steps;
        assert_eq!(locker[1], Step::Lock(0));
        assert_eq!(locker[2], Step::Run(Spread::constant(3.0)));
        assert_eq!(locker[3..], [Step::Unlock(0), Step::Count]);
        assert_eq!(workload.tasks[2].program.steps, [Step::Serve(0)]);
        assert!(workload.tasks[3].idle);
        assert_eq!(workload.tasks[0].program.waiting, Waiting::SpinThenBlock(50_000));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, named) in [
            ("\"run\": 40", "\"runn\": 40", "unknown key \"runn\""),
            ("\"x_serve\": \"web\"", "\"x_serve\": \"mail\"", "no such stream"),
            ("\"rate_hz\": 2400", "\"rate_hz\": 0", "rate_hz"),
            ("\"rate_hz\": 2400", "\"rate_khz\": 2", "rate_khz"),
            ("SCHED_IDLE", "SCHED_FIFO", "policy"),
            ("\"cv\": 0.15", "\"cv\": -1", "cv"),
            ("\"global\"", "\"globe\"", "globe"),
            ("\"run\": 1000", "\"run\": 0", "takes time"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let error = Workload::parse(&text).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".{0,200}") {
            let _ = Workload::parse(&text);
        }
    }
}
