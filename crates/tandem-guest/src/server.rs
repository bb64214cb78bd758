//! What a running scheduler answers over the scx_stats socket: statistics (target `top`, as every scx
//! scheduler has it), requests to take vCPUs out of use (target `park`), and requests to record
//! decisions (target `trace`).

use crate::park::{ParkOrder, ParkReport};
use crate::stats::{GuestStats, Moment, VcpuStats};
use crate::GuestError;
use scx_stats::prelude::*;
use serde::Deserialize;
use std::time::Duration;

/// A request of a client.
pub(crate) enum Ask {
    /// Statistics since the scheduler was loaded.
    Stats,
    /// Park vCPUs, or unpark them.
    Park(ParkOrder),
    /// Record decisions for this long; zero: stop.
    Trace(Duration),
}

/// The answer to a request.
pub(crate) enum Answer {
    Stats(Box<GuestStats>),
    Park(Result<ParkReport, GuestError>),
    /// Records lost since the last order.
    Trace(Result<u64, GuestError>),
}

/// A client waits for this long.
const CLIENT_TIMEOUT_MS: u64 = 10_000;

/// Sends a request to a running scheduler.
///
/// # Errors
/// No scheduler runs, or it refuses.
pub(crate) fn ask<T: for<'a> Deserialize<'a>>(
    target: &str,
    args: &[(&str, String)],
) -> Result<T, GuestError> {
    let mut client =
        StatsClient::new().connect(Some(CLIENT_TIMEOUT_MS)).map_err(|_| GuestError::NotRunning)?;
    let target = [("target", target.to_string())];
    let args = target.iter().chain(args).map(|(key, value)| (key.to_string(), value.clone())).collect();
    client.request("stats", args).map_err(GuestError::Refused)
}

/// Names of the requests besides `top`.
pub(crate) const ASK_PARK: &str = "park";
pub(crate) const ASK_TRACE: &str = "trace";
/// Longest recording.
const LONGEST_TRACE_MS: u64 = 3_600_000;

/// The socket's server, running in threads of its own.
pub(crate) type Server = StatsServer<Ask, Answer>;

const OTHER_QUESTION: &str = "the scheduler answered another question";

/// Starts the server.
pub(crate) fn start() -> Result<Server, GuestError> {
    let open: Box<dyn StatsOpener<Ask, Answer>> = Box::new(move |(asks, answers)| {
        asks.send(Ask::Stats)?;
        let mut previous = stats_of(answers.recv()?)?;
        let read: Box<dyn StatsReader<Ask, Answer>> = Box::new(move |_args, (asks, answers)| {
            asks.send(Ask::Stats)?;
            let now = stats_of(answers.recv()?)?;
            let delta = now.since(&previous);
            previous = now;
            delta.to_json()
        });
        Ok(read)
    });
    let park: Box<dyn StatsReaderSend<Ask, Answer>> = Box::new(|args, (asks, answers)| {
        asks.send(Ask::Park(ParkOrder::from_args(args)?))?;
        match answers.recv()? {
            Answer::Park(report) => Ok(serde_json::to_value(report?)?),
            _ => anyhow::bail!(OTHER_QUESTION),
        }
    });
    let trace: Box<dyn StatsReaderSend<Ask, Answer>> = Box::new(|args, (asks, answers)| {
        let ms = args.get("ms").and_then(|ms| ms.parse::<u64>().ok()).filter(|ms| *ms <= LONGEST_TRACE_MS);
        let ms = ms.ok_or(GuestError::TraceRequest(LONGEST_TRACE_MS))?;
        asks.send(Ask::Trace(Duration::from_millis(ms)))?;
        match answers.recv()? {
            Answer::Trace(dropped) => Ok(serde_json::to_value(dropped?)?),
            _ => anyhow::bail!(OTHER_QUESTION),
        }
    });
    let data = StatsServerData::new()
        .add_meta(GuestStats::meta())
        .add_meta(VcpuStats::meta())
        .add_meta(Moment::meta())
        .add_ops("top", StatsOps { open, close: None })
        .add_stats(ASK_PARK, park)
        .add_stats(ASK_TRACE, trace);
    StatsServer::new(data).launch().map_err(GuestError::Stats)
}

fn stats_of(answer: Answer) -> anyhow::Result<GuestStats> {
    match answer {
        Answer::Stats(stats) => Ok(*stats),
        _ => anyhow::bail!(OTHER_QUESTION),
    }
}
