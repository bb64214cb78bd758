//! Reads requests from the port and serves each in a thread of its own.

use crate::process::Program;
use crate::rt::Competitors;
use crate::vm::{Guests, Uplink};
use crate::{machine, sys};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tandem_agent::{Op, Reply, Request, SELF};

struct Agent {
    name: String,
    uplink: Uplink,
    next_handle: AtomicU64,
    programs: Mutex<BTreeMap<u64, Program>>,
    /// Environment variables that programs get beside the usual ones.
    env: Mutex<BTreeMap<String, String>>,
    guests: Mutex<Guests>,
    competitors: Mutex<Competitors>,
}

/// Locks a mutex. A panic in another thread must not end the connection.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until told to power off.
pub fn run() {
    let Some(port) = open_port() else {
        println!("AGENT-FAILED no virtio-serial port");
        return;
    };
    let Ok(reader) = port.try_clone() else { return };
    let name = machine::parameter("tandem.role").unwrap_or_else(|| SELF.to_string());
    if name == SELF {
        // The agent runs on CPU 0: the other CPUs are for the guests.
        if let Err(error) = sys::pin(0, &[0]) {
            println!("AGENT-WARNING pinning to CPU 0: {error}");
        }
    }
    let agent = Arc::new(Agent {
        name,
        uplink: Arc::new(Mutex::new(port)),
        next_handle: AtomicU64::new(1),
        programs: Mutex::default(),
        env: Mutex::default(),
        guests: Mutex::default(),
        competitors: Mutex::default(),
    });
    let mut lines = BufReader::new(reader);
    let mut line = String::new();
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            // The other end is not connected yet.
            Ok(0) => std::thread::sleep(Duration::from_millis(20)),
            Ok(_) => {
                if !agent.accept(line.trim()) {
                    return;
                }
            }
            Err(error) => {
                println!("AGENT-FAILED reading the line: {error}");
                return;
            }
        }
    }
}

fn open_port() -> Option<File> {
    for _ in 0..200 {
        if let Ok(port) = OpenOptions::new().read(true).write(true).open("/dev/vport0p1") {
            return Some(port);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

impl Agent {
    /// Handles one request. False if the machine has to power off.
    fn accept(self: &Arc<Self>, line: &str) -> bool {
        let request: Request = match serde_json::from_str(line) {
            Ok(request) => request,
            Err(error) => {
                println!("AGENT-WARNING not a request: {error}");
                return true;
            }
        };
        if request.target != self.name {
            // Requests to this host's guests are forwarded unchanged; replies come back the same way.
            let last = matches!(request.op, Op::PowerOff);
            if let Err(error) = lock(&self.guests).send(&request.target, line, last) {
                self.reply(request.id, Err(error));
            }
            return true;
        }
        if matches!(request.op, Op::PowerOff) {
            self.reply(request.id, Ok(Value::Null));
            return false;
        }
        let agent = Arc::clone(self);
        std::thread::spawn(move || {
            if agent.name == SELF {
                // Children inherit this thread's affinity, which must not be that of the agent.
                let first = usize::from(matches!(request.op, Op::StartVm(_)));
                let _ = sys::pin(0, &(first..machine::cpus()).collect::<Vec<_>>());
            }
            let result = agent.serve(request.op);
            agent.reply(request.id, result);
        });
        true
    }

    fn reply(&self, id: u64, result: Result<Value, String>) {
        if let Ok(line) = serde_json::to_string(&Reply { id, result }) {
            // Without a connection the reply is lost.
            let _ = writeln!(lock(&self.uplink), "{line}");
        }
    }

    /// Starts a program. Returns its handle, too.
    fn start(&self, argv: &[String]) -> Result<(u64, Program), String> {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let env = lock(&self.env).clone();
        Ok((handle, Program::start(argv, &env, handle)?))
    }

    fn serve(&self, op: Op) -> Result<Value, String> {
        let to_value = |result: Result<Value, serde_json::Error>| result.map_err(|error| error.to_string());
        match op {
            Op::Hello => to_value(serde_json::to_value(machine::facts())),
            Op::Exec { argv, timeout_s } => {
                let program = self.start(&argv)?.1;
                to_value(serde_json::to_value(program.finish(seconds(timeout_s)?)))
            }
            Op::Spawn { argv } => {
                let (handle, program) = self.start(&argv)?;
                lock(&self.programs).insert(handle, program);
                Ok(json!(handle))
            }
            Op::SetEnv { name, value } => {
                lock(&self.env).insert(name, value);
                Ok(Value::Null)
            }
            Op::Running { handle } => {
                let mut programs = lock(&self.programs);
                let program = programs.get_mut(&handle).ok_or_else(|| format!("no program {handle}"))?;
                Ok(json!(program.running()))
            }
            Op::Stop { handle, signal, timeout_s } => {
                let program =
                    lock(&self.programs).remove(&handle).ok_or_else(|| format!("no program {handle}"))?;
                to_value(serde_json::to_value(program.stop(signal, seconds(timeout_s)?)))
            }
            Op::Read { path } => {
                fs::read_to_string(&path).map(|text| json!(text)).map_err(|error| format!("{path}: {error}"))
            }
            Op::Write { path, text } => {
                fs::write(&path, text).map(|()| Value::Null).map_err(|error| format!("{path}: {error}"))
            }
            Op::StartVm(spec) => lock(&self.guests).start(&spec, &self.uplink).map(|()| Value::Null),
            Op::EndVm { name, timeout_s } => {
                lock(&self.guests).end(&name, seconds(timeout_s)?).map(|clean| json!(clean))
            }
            Op::Inspect { name } => lock(&self.guests).inspect(&name).map(|text| json!(text)),
            Op::VcpuStats => to_value(serde_json::to_value(lock(&self.guests).vcpu_stats())),
            Op::CpuMax { name, vcpu, value } => {
                lock(&self.guests).cpu_max(&name, vcpu, &value).map(|()| Value::Null)
            }
            Op::RtStart(spec) => lock(&self.competitors).start(&spec).map(|()| Value::Null),
            Op::RtCompensate { cpu, compensation_ns } => {
                lock(&self.competitors).compensate(cpu, compensation_ns);
                Ok(Value::Null)
            }
            Op::RtStats => to_value(serde_json::to_value(lock(&self.competitors).stats())),
            Op::RtStop => {
                lock(&self.competitors).stop();
                Ok(Value::Null)
            }
            Op::PowerOff => Ok(Value::Null),
        }
    }
}

fn seconds(value: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value).map_err(|error| format!("{value} s: {error}"))
}
