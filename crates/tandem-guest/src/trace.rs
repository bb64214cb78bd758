//! Records what a running scheduler decides, as a trace for ui.perfetto.dev (trace-event JSON). Each
//! vCPU has two tracks: the running task with every decision taken there, and the intervals in which the
//! host had preempted the vCPU.

use crate::bpf::intf;
use crate::model::field;
use crate::server::{self, ASK_TRACE};
use crate::stats::{in_words, COUNTERS};
use crate::GuestError;
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{MapHandle, RingBufferBuilder};
use serde_json::{json, Value};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Name of the scheduler's map.
const MAP: &str = "trace_events";
/// The scheduler stops recording by itself this much later, if this process is gone.
const GRACE: Duration = Duration::from_secs(1);

/// The buffer holds sixteen thousand records: room for this long, also on a large machine.
const LOOK_EVERY: Duration = Duration::from_millis(100);

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

/// Turns records into trace events.
struct Writer<W: Write> {
    out: W,
    begun: bool,
    /// Running task of each CPU, and since when.
    running: BTreeMap<u32, (u64, i32, String)>,
    cpus: BTreeSet<u32>,
    recorded: Recorded,
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl<W: Write> Writer<W> {
    fn new(out: W) -> Self {
        Self {
            out,
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
            for process in [TASKS, HOST] {
                let name = json!({"name": format!("vCPU {}", event.cpu)});
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
                    self.slice(TASKS, event.cpu, &format!("{comm} [{pid}]"), since, event.at_ns)
                }
                _ => Ok(()),
            },
            intf::trace_kind_TRACE_PREEMPTED => {
                let from = event.at_ns.saturating_sub(event.value);
                self.slice(HOST, event.cpu, "absent", from, event.at_ns)
            }
            kind => {
                let name =
                    COUNTERS.get(kind as usize).map_or_else(|| "unknown".into(), |(name, _)| in_words(name));
                let mut task = json!({"task": format!("{} [{}]", event.comm, event.pid)});
                if event.value > 0 {
                    task["ns"] = json!(event.value);
                }
                let (tid, ts) = (event.cpu, us(event.at_ns));
                self.line(&json!({"ph": "i", "s": "t", "name": name, "pid": TASKS, "tid": tid, "ts": ts, "args": task}))
            }
        }
    }

    fn end(&mut self) -> io::Result<Recorded> {
        for (process, name) in [(TASKS, "who runs, and what is decided"), (HOST, "the host")] {
            self.line(&json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}))?;
        }
        writeln!(self.out, "\n]")?;
        self.out.flush()?;
        Ok(self.recorded)
    }
}

/// Records for `length` and writes the trace.
///
/// # Errors
/// No Tandem scheduler runs, or writing fails.
pub fn record(length: Duration, out: impl Write, stop: impl Fn() -> bool) -> Result<Recorded, GuestError> {
    let map = MapInfoIter::default().find(|map| map.name == MAP);
    let map = MapHandle::from_map_id(map.ok_or(GuestError::NotRunning)?.id).map_err(GuestError::Map)?;
    // Kept until the end: a thread that writes would be in the trace, and in the way.
    let events = RefCell::new(Vec::new());
    let mut builder = RingBufferBuilder::new();
    let take = |bytes: &[u8]| {
        events.borrow_mut().extend(Event::read(bytes));
        0
    };
    builder.add(&map, take).map_err(GuestError::Map)?;
    let ring = builder.build().map_err(GuestError::Map)?;
    // Remains of an earlier trace.
    ring.consume().map_err(GuestError::Map)?;
    events.borrow_mut().clear();
    order(length + GRACE)?;
    let end = Instant::now() + length;
    while Instant::now() < end && !stop() {
        std::thread::sleep(LOOK_EVERY.min(end.saturating_duration_since(Instant::now())));
        ring.consume().map_err(GuestError::Map)?;
    }
    let dropped = order(Duration::ZERO)?;
    ring.consume().map_err(GuestError::Map)?;
    drop(ring);
    let mut writer = Writer::new(out);
    writer.recorded.dropped = dropped;
    events.take().into_iter().try_for_each(|event| writer.event(event)).map_err(GuestError::Trace)?;
    writer.end().map_err(GuestError::Trace)
}

/// Asks the scheduler to record for `length`, or to stop. Returns how many records found no room meanwhile.
fn order(length: Duration) -> Result<u64, GuestError> {
    server::ask(ASK_TRACE, &[("ms", length.as_millis().to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(at_ns: u64, kind: u32, pid: i32, value: u64) -> Event {
        Event { at_ns, value, cpu: 1, kind, pid, comm: "worker".into() }
    }

    fn written(events: Vec<Event>) -> Vec<Value> {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
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
            event(1_500_000, intf::counter_CNT_PULLED, 7, 0),
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
