//! What a running scheduler answers over the scx_stats socket: statistics (target `top`, as every scx scheduler has it),
//! requests to record decisions (target `trace`), and the orders of its side.

use crate::report::Report;
use crate::{trace, DaemonError};
use scx_stats::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// A request of a client. `O`: an order of the side.
#[derive(Debug)]
pub enum Ask<O> {
    /// Statistics since the scheduler was loaded.
    Stats,
    /// Record decisions for this long; zero: stop.
    Trace(Duration),
    /// An order.
    Order(O),
}

/// The answer to a request.
#[derive(Debug)]
pub enum Answer<R> {
    /// Statistics.
    Stats(Box<R>),
    /// Records lost since the last order.
    Trace(Result<u64, DaemonError>),
    /// What the side says to the order.
    Order(anyhow::Result<Value>),
}

/// Arguments of a request.
pub type Arguments = BTreeMap<String, String>;

/// Orders of a side: name of the target, and how its arguments are read.
pub type Orders<O> = &'static [(&'static str, fn(&Arguments) -> anyhow::Result<O>)];

/// The socket's server, running in threads of its own.
pub type Server<O, R> = StatsServer<Ask<O>, Answer<R>>;

/// Where sched_ext schedulers answer.
pub(crate) const SOCKET: &str = "/var/run/scx/root/stats";
/// A client waits for this long.
const CLIENT_TIMEOUT_MS: u64 = 10_000;
/// Longest recording that is asked for. A trace asks for a little more than it records.
const LONGEST_TRACE: Duration = trace::LONGEST.saturating_add(trace::GRACE);
/// The request to trace.
pub(crate) const ASK_TRACE: &str = "trace";

const OTHER_QUESTION: &str = "the scheduler answered another question";

/// Sends a request to the running scheduler of side `R`.
///
/// # Errors
/// No such scheduler runs, or it refuses.
pub fn ask<R: Report, T: DeserializeOwned>(target: &str, args: &[(&str, String)]) -> Result<T, DaemonError> {
    ask_at::<R, T>(Path::new(SOCKET), target, args)
}

/// The same on another socket.
pub(crate) fn ask_at<R: Report, T: DeserializeOwned>(
    socket: &Path,
    target: &str,
    args: &[(&str, String)],
) -> Result<T, DaemonError> {
    let mut client = client::<R>(socket)?;
    let target = [("target", target.to_string())];
    let args = target.iter().chain(args).map(|(key, value)| (key.to_string(), value.clone())).collect();
    client.request("stats", args).map_err(|error| DaemonError::Refused(reason(&format!("{error:#}"))))
}

/// What a scheduler said, out of the error of the socket's client: an error number, and the words as a JSON string.
fn reason(text: &str) -> String {
    let quoted = text.find(": \"").map(|at| &text[at + 2..]);
    let words = quoted.and_then(|words| serde_json::from_str(words).ok()).unwrap_or_else(|| text.to_owned());
    // With RUST_BACKTRACE the other side adds where it was.
    words.split("\n\nStack backtrace:").next().unwrap_or_default().to_owned()
}

/// A connection to the running scheduler of side `R`.
fn client<R: Report>(socket: &Path) -> Result<StatsClient, DaemonError> {
    let absent = || DaemonError::NotRunning { side: R::SIDE };
    let mut client =
        StatsClient::new().set_path(socket).connect(Some(CLIENT_TIMEOUT_MS)).map_err(|_| absent())?;
    // Any scx scheduler may answer there.
    let metas: BTreeMap<String, StatsMeta> =
        client.request("stats_meta", Vec::new()).map_err(|_| absent())?;
    if metas.contains_key(&R::meta().name) {
        Ok(client)
    } else {
        Err(absent())
    }
}

/// Is a scheduler of side `R` running?
///
/// # Errors
/// None is.
pub fn running<R: Report>() -> Result<(), DaemonError> {
    client::<R>(Path::new(SOCKET)).map(drop)
}

/// Prints the statistics of the running scheduler of side `R` at an interval until `stop` returns true. Waits for it where nothing
/// answers at all.
///
/// # Errors
/// Another scheduler answers, or the statistics cannot be printed.
pub fn monitor<R: Report>(interval: Duration, stop: impl Fn() -> bool) -> Result<(), DaemonError> {
    if StatsClient::new().connect(None).is_ok() {
        running::<R>()?;
    }
    scx_utils::monitor_stats::<R>(&[], interval, stop, |stats| {
        Ok(stats.format(&mut std::io::stdout().lock())?)
    })
    .map_err(DaemonError::Stats)
}

/// Starts the server.
pub(crate) fn start<O: Send + Sync + 'static, R: Report>(
    orders: Orders<O>,
    socket: &Path,
) -> Result<Server<O, R>, DaemonError> {
    let open: Box<dyn StatsOpener<Ask<O>, Answer<R>>> = Box::new(move |(asks, answers)| {
        asks.send(Ask::Stats)?;
        let mut previous = stats_of(answers.recv()?)?;
        let read: Box<dyn StatsReader<Ask<O>, Answer<R>>> = Box::new(move |_args, (asks, answers)| {
            asks.send(Ask::Stats)?;
            let now = stats_of(answers.recv()?)?;
            let delta = now.since(&previous);
            previous = now;
            delta.to_json()
        });
        Ok(read)
    });
    let trace: Box<dyn StatsReaderSend<Ask<O>, Answer<R>>> = Box::new(|args, (asks, answers)| {
        let length = args.get("ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        let length = length.filter(|length| *length <= LONGEST_TRACE);
        asks.send(Ask::Trace(length.ok_or(DaemonError::TraceRequest(LONGEST_TRACE.as_millis()))?))?;
        match answers.recv()? {
            Answer::Trace(dropped) => Ok(serde_json::to_value(dropped?)?),
            _ => anyhow::bail!(OTHER_QUESTION),
        }
    });
    let mut data = StatsServerData::new()
        .add_meta(R::meta())
        .add_ops("top", StatsOps { open, close: None })
        .add_stats(ASK_TRACE, trace);
    for meta in R::parts() {
        data = data.add_meta(meta);
    }
    for (name, parse) in orders {
        let order: Box<dyn StatsReaderSend<Ask<O>, Answer<R>>> = Box::new(move |args, (asks, answers)| {
            asks.send(Ask::Order(parse(args)?))?;
            match answers.recv()? {
                Answer::Order(result) => result,
                _ => anyhow::bail!(OTHER_QUESTION),
            }
        });
        data = data.add_stats(name, order);
    }
    StatsServer::new(data).set_path(socket).launch().map_err(DaemonError::Stats)
}

fn stats_of<R>(answer: Answer<R>) -> anyhow::Result<R> {
    match answer {
        Answer::Stats(stats) => Ok(*stats),
        _ => anyhow::bail!(OTHER_QUESTION),
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn a_refusal_is_told_in_the_schedulers_words() {
        assert_eq!(reason(r#"Invalid argument (os error 22): "no VM \"a\"""#), "no VM \"a\"");
        assert_eq!(reason("connection reset: by peer"), "connection reset: by peer");
    }
}
