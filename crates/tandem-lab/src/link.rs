//! The connection to the machines' agents. Requests and replies are matched by number.

use crate::{sys, LabError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tandem_agent::{Facts, Op, Output, Reply, Request};

type Waiting = Arc<Mutex<HashMap<u64, Sender<Result<Value, String>>>>>;

/// How often a waiting caller checks whether the machine is still alive.
const PULSE: Duration = Duration::from_millis(200);

/// The connection.
pub struct Link {
    out: UnixStream,
    waiting: Waiting,
    next_id: u64,
    /// Fails with the reason if no more replies can come.
    alive: Box<dyn Fn() -> Result<(), LabError>>,
}

impl Link {
    /// Takes over a connected socket. `alive` is called while waiting for replies.
    pub fn new(socket: UnixStream, alive: Box<dyn Fn() -> Result<(), LabError>>) -> Result<Self, LabError> {
        let reader = socket.try_clone().map_err(LabError::io("clone", "the line to the machine"))?;
        let waiting = Waiting::default();
        let theirs = Arc::clone(&waiting);
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                let Ok(reply) = serde_json::from_str::<Reply>(&line) else { continue };
                let asker = theirs.lock().unwrap_or_else(PoisonError::into_inner).remove(&reply.id);
                if let Some(asker) = asker {
                    // The asker may have given up.
                    let _ = asker.send(reply.result);
                }
            }
        });
        Ok(Self { out: socket, waiting, next_id: 1, alive })
    }

    /// From now on replies are waited for whatever the machine's console says.
    pub fn ignore_trouble(&mut self) {
        self.alive = Box::new(|| Ok(()));
    }

    /// Sends a request. The reply arrives on the receiver.
    pub fn send(&mut self, target: &str, op: Op) -> Result<Receiver<Result<Value, String>>, LabError> {
        let id = self.next_id;
        self.next_id += 1;
        let (tell, told) = channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, tell);
        let line = serde_json::to_string(&Request { id, target: target.to_string(), op })
            .map_err(|error| LabError::Rig(format!("request cannot be written: {error}")))?;
        writeln!(self.out, "{line}")
            .map_err(|error| LabError::Rig(format!("the line is broken: {error}")))?;
        Ok(told)
    }

    /// Waits for a reply.
    pub fn receive(
        &self,
        target: &str,
        told: &Receiver<Result<Value, String>>,
        limit: Duration,
    ) -> Result<Value, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            match told.recv_timeout(PULSE) {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(message)) => return Err(LabError::Agent { target: target.to_string(), message }),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LabError::Rig("the line is closed".into()))
                }
                Err(RecvTimeoutError::Timeout) => {
                    if sys::termination_requested() {
                        return Err(LabError::Interrupted);
                    }
                    (self.alive)()?;
                    if Instant::now() >= deadline {
                        return Err(LabError::Rig(format!(
                            "{target} did not answer within {} s",
                            limit.as_secs()
                        )));
                    }
                }
            }
        }
    }

    /// Sends a request and waits for the reply.
    pub fn ask(&mut self, target: &str, op: Op, limit: Duration) -> Result<Value, LabError> {
        let told = self.send(target, op)?;
        self.receive(target, &told, limit)
    }

    /// Sends a request whose reply has a known type.
    pub fn ask_for<T: DeserializeOwned>(
        &mut self,
        target: &str,
        op: Op,
        limit: Duration,
    ) -> Result<T, LabError> {
        let value = self.ask(target, op, limit)?;
        serde_json::from_value(value)
            .map_err(|error| LabError::Rig(format!("{target} sent nonsense: {error}")))
    }

    /// Repeats a request until the machine answers.
    pub fn wait_for(&mut self, target: &str, limit: Duration) -> Result<Facts, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            let told = self.send(target, Op::Hello)?;
            match self.receive(target, &told, Duration::from_secs(1)) {
                Ok(value) => {
                    return serde_json::from_value(value)
                        .map_err(|error| LabError::Rig(format!("{target} sent nonsense: {error}")))
                }
                Err(LabError::Rig(_)) if Instant::now() < deadline => (self.alive)()?,
                Err(LabError::Rig(_)) => {
                    return Err(LabError::Rig(format!("{target} did not boot within {} s", limit.as_secs())))
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs a program on a machine and waits for its end.
    pub fn exec(&mut self, target: &str, argv: &[String], timeout: Duration) -> Result<Output, LabError> {
        let op = Op::Exec { argv: argv.to_vec(), timeout_s: timeout.as_secs_f64() };
        self.ask_for(target, op, timeout + Duration::from_secs(30))
    }
}
