//! Records what a running scheduler decides, as a trace for ui.perfetto.dev (trace-event JSON). Each
//! CPU has a track: the running task with every decision taken there; inside a VM another one with the intervals in which
//! the host had preempted the vCPU.

use crate::bytes::field;
use crate::report::{in_words, Counters, Report};
use crate::server::{self, ASK_TRACE};
use crate::DaemonError;
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapHandle, RingBufferBuilder};
use serde_json::{json, Value};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::{Duration, Instant};
use tandem_bpf::trace as intf;

/// Name of the scheduler's map.
const MAP: &str = "trace_events";
/// The scheduler stops recording by itself this much later, if this process is gone.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The buffer holds sixteen thousand records: room for this long, also on a large machine.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longest recording.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// A recording ends early with so many records: some 80 bytes of memory each.
const MOST_EVENTS: usize = 8_000_000;

/// Processes of the trace.
const TASKS: u32 = 1;
const HOST: u32 = 2;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    at_ns: u64,
    value: u64,
    cpu: u32,
    kind: u32,
    pid: i32,
    comm: String,
}

impl Event {
    /// Reads a record as the scheduler wrote it.
    fn read(bytes: &[u8]) -> Option<Self> {
        let u64_at = |at| field(bytes, at).map(u64::from_ne_bytes);
        let u32_at = |at| field(bytes, at).map(u32::from_ne_bytes);
        let comm: [u8; intf::TASK_NAME_LEN as usize] =
            field(bytes, std::mem::offset_of!(intf::trace_record, comm))?;
        let length = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
        Some(Self {
            at_ns: u64_at(std::mem::offset_of!(intf::trace_record, at_ns))?,
            value: u64_at(std::mem::offset_of!(intf::trace_record, value))?,
            cpu: u32_at(std::mem::offset_of!(intf::trace_record, cpu))?,
            kind: u32_at(std::mem::offset_of!(intf::trace_record, kind))?,
            pid: u32_at(std::mem::offset_of!(intf::trace_record, pid))? as i32,
            comm: String::from_utf8_lossy(&comm[..length]).into_owned(),
        })
    }
}

/// What was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Records.
    pub events: usize,
    /// Records for which there was no room.
    pub dropped: u64,
}

/// How a side's trace is labelled.
pub struct Labels<'a> {
    /// What its CPUs are called.
    pub cpu: &'a str,
    /// What takes CPUs away from it, if anything does.
    pub taken_by: Option<&'a str>,
    /// A task's name, from its number and what the kernel calls it.
    pub task: &'a dyn Fn(i32, &str) -> String,
}

/// As the kernel calls it, with its number.
pub fn plain(pid: i32, comm: &str) -> String {
    format!("{comm} [{pid}]")
}

/// Turns records into trace events.
struct Writer<'a, W: Write> {
    out: W,
    labels: &'a Labels<'a>,
    counters: &'a Counters,
    begun: bool,
    /// Running task of each CPU, and since when.
    running: BTreeMap<u32, (u64, i32, String)>,
    cpus: BTreeSet<u32>,
    recorded: Recorded,
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl<'a, W: Write> Writer<'a, W> {
    fn new(out: W, labels: &'a Labels<'a>, counters: &'a Counters) -> Self {
        Self {
            out,
            labels,
            counters,
            begun: false,
            running: BTreeMap::new(),
            cpus: BTreeSet::new(),
            recorded: Recorded::default(),
        }
    }

    fn line(&mut self, event: &Value) -> io::Result<()> {
        let separator = if std::mem::replace(&mut self.begun, true) { ",\n" } else { "[\n" };
        write!(self.out, "{separator}{event}")
    }

    fn slice(&mut self, process: u32, cpu: u32, name: &str, from_ns: u64, to_ns: u64) -> io::Result<()> {
        let length = us(to_ns.saturating_sub(from_ns));
        self.line(
            &json!({"ph": "X", "name": name, "pid": process, "tid": cpu, "ts": us(from_ns), "dur": length}),
        )
    }

    fn event(&mut self, event: Event) -> io::Result<()> {
        self.recorded.events += 1;
        if self.cpus.insert(event.cpu) {
            let host = self.labels.taken_by.map(|_| HOST);
            for process in std::iter::once(TASKS).chain(host) {
                let name = json!({"name": format!("{} {}", self.labels.cpu, event.cpu)});
                let tid = event.cpu;
                self.line(
                    &json!({"ph": "M", "name": "thread_name", "pid": process, "tid": tid, "args": name}),
                )?;
            }
        }
        match event.kind {
            intf::trace_kind_TRACE_RUNS => {
                self.running.insert(event.cpu, (event.at_ns, event.pid, event.comm));
                Ok(())
            }
            intf::trace_kind_TRACE_STOPS => match self.running.remove(&event.cpu) {
                Some((since, pid, comm)) if pid == event.pid => {
                    self.slice(TASKS, event.cpu, &(self.labels.task)(pid, &comm), since, event.at_ns)
                }
                _ => Ok(()),
            },
            intf::trace_kind_TRACE_PREEMPTED => {
                let from = event.at_ns.saturating_sub(event.value);
                self.slice(HOST, event.cpu, "preempted", from, event.at_ns)
            }
            kind => {
                let name = self
                    .counters
                    .get(kind as usize)
                    .map_or_else(|| "unknown".into(), |(name, _)| in_words(name));
                let mut task = json!({"task": (self.labels.task)(event.pid, &event.comm)});
                if event.value > 0 {
                    task["ns"] = json!(event.value);
                }
                let (tid, ts) = (event.cpu, us(event.at_ns));
                self.line(&json!({"ph": "i", "s": "t", "name": name, "pid": TASKS, "tid": tid, "ts": ts, "args": task}))
            }
        }
    }

    fn end(&mut self) -> io::Result<Recorded> {
        let host = self.labels.taken_by.map(|name| (HOST, name));
        for (process, name) in std::iter::once((TASKS, "who runs, and what is decided")).chain(host) {
            self.line(&json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}))?;
        }
        writeln!(self.out, "\n]")?;
        self.out.flush()?;
        Ok(self.recorded)
    }
}

/// Records for `length` what the scheduler of side `R` does, and writes the trace.
///
/// # Errors
/// No such scheduler runs, or writing fails.
pub fn record<R: Report>(
    length: Duration,
    out: impl Write,
    labels: &Labels<'_>,
    stop: impl Fn() -> bool,
) -> Result<Recorded, DaemonError> {
    let map = MapInfoIter::default().find(|map| map.name == MAP);
    let map = map.ok_or(DaemonError::NotRunning { side: R::SIDE })?;
    let map = MapHandle::from_map_id(map.id).map_err(DaemonError::Map)?;
    // Kept until the end: a thread that writes would be in the trace, and in the way.
    let events = RefCell::new(Vec::new());
    let mut builder = RingBufferBuilder::new();
    let take = |bytes: &[u8]| {
        events.borrow_mut().extend(Event::read(bytes));
        0
    };
    builder.add(&map, take).map_err(DaemonError::Map)?;
    let ring = builder.build().map_err(DaemonError::Map)?;
    // Remains of an earlier trace.
    ring.consume().map_err(DaemonError::Map)?;
    events.borrow_mut().clear();
    order::<R>(length + GRACE)?;
    let end = Instant::now() + length;
    while Instant::now() < end && !stop() {
        if events.borrow().len() >= MOST_EVENTS {
            log::warn!("the trace ends early: it has {MOST_EVENTS} records");
            break;
        }
        std::thread::sleep(LOOK_EVERY.min(end.saturating_duration_since(Instant::now())));
        ring.consume().map_err(DaemonError::Map)?;
    }
    let dropped = order::<R>(Duration::ZERO)?;
    ring.consume().map_err(DaemonError::Map)?;
    drop(ring);
    let mut writer = Writer::new(out, labels, R::COUNTERS);
    writer.recorded.dropped = dropped;
    events.take().into_iter().try_for_each(|event| writer.event(event)).map_err(DaemonError::Trace)?;
    writer.end().map_err(DaemonError::Trace)
}

/// Asks the scheduler to record for `length`, or to stop. Returns how many records found no room meanwhile.
fn order<R: Report>(length: Duration) -> Result<u64, DaemonError> {
    server::ask::<R, _>(ASK_TRACE, &[("ms", length.as_millis().to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COUNTERS: &Counters = &[("queued", "tasks put into a queue"), ("pulled", "tasks pulled")];
    const PULLED: u32 = 1;

    fn event(at_ns: u64, kind: u32, pid: i32, value: u64) -> Event {
        Event { at_ns, value, cpu: 1, kind, pid, comm: "worker".into() }
    }

    fn written(events: Vec<Event>) -> Vec<Value> {
        let mut out = Vec::new();
        let labels = Labels { cpu: "vCPU", taken_by: Some("the host"), task: &plain };
        let mut writer = Writer::new(&mut out, &labels, COUNTERS);
        for event in events {
            writer.event(event).unwrap();
        }
        writer.end().unwrap();
        drop(writer);
        serde_json::from_slice::<Vec<Value>>(&out).unwrap()
    }

    #[test]
    fn who_runs_is_a_slice_and_a_decision_a_moment() {
        let trace = written(vec![
            event(1_000_000, intf::trace_kind_TRACE_RUNS, 7, 0),
            event(1_500_000, PULLED, 7, 0),
            event(3_000_000, intf::trace_kind_TRACE_STOPS, 7, 1),
            event(9_000_000, intf::trace_kind_TRACE_PREEMPTED, 0, 4_000_000),
        ]);
        let of = |ph: &str| trace.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
        assert_eq!(of("X").len(), 2);
        assert_eq!((&of("X")[0]["name"], &of("X")[0]["dur"]), (&json!("worker [7]"), &json!(2000.0)));
        assert_eq!((&of("X")[1]["ts"], &of("X")[1]["dur"]), (&json!(5000.0), &json!(4000.0)));
        assert_eq!((&of("i")[0]["name"], &of("i")[0]["ts"]), (&json!("pulled"), &json!(1500.0)));
    }

    #[test]
    fn on_a_host_nothing_takes_cpus_away() {
        let mut out = Vec::new();
        let labels = Labels { cpu: "pCPU", taken_by: None, task: &|pid, _| format!("vm {pid}") };
        let mut writer = Writer::new(&mut out, &labels, COUNTERS);
        writer.event(event(1_000, intf::trace_kind_TRACE_RUNS, 7, 0)).unwrap();
        writer.event(event(2_000, intf::trace_kind_TRACE_STOPS, 7, 1)).unwrap();
        writer.end().unwrap();
        drop(writer);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("pCPU 1") && text.contains("vm 7") && !text.contains("\"pid\":2"), "{text}");
    }

    #[test]
    fn who_began_before_the_trace_is_left_out() {
        let trace = written(vec![event(1, intf::trace_kind_TRACE_STOPS, 7, 1)]);
        assert!(trace.iter().all(|event| event["ph"] == "M"));
    }

    proptest! {
        #[test]
        fn any_record_is_read_or_left(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(event) = Event::read(&bytes) {
                written(vec![event]);
            }
        }
    }
}
