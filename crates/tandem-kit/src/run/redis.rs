//! redis-server without persistence, loaded by redis-benchmark: over the loopback interface, or from another machine.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Map, Value};

use super::output::{leading_number, round3};
use super::process::{self, PrivateDir, Running, Stdout};
use super::server::{self, Place, Sides};

/// Arguments of `run redis`.
#[derive(Parser)]
pub struct Args {
    /// Test of redis-benchmark, e.g. get, set, incr, lpush
    #[arg(long, default_value = "get", value_parser = test_name)]
    test: String,
    /// Number of requests
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    requests: u32,
    /// Connections that are kept busy
    #[arg(long, visible_alias = "threads", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Time limit in seconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout_secs: u32,
    #[command(flatten)]
    sides: Sides,
}

fn test_name(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
        return Ok(text.to_owned());
    }
    Err("expected one test's name in lower case, as in get or lpush".to_owned())
}

pub fn run(args: &Args) -> Result<Value> {
    match args.sides.place()? {
        Place::Both(address) => {
            let dir = PrivateDir::new()?;
            let mut server = start(&dir, address)?;
            let report = load(args, address)?;
            server.ensure_alive()?;
            Ok(report)
        }
        Place::Server(address) => {
            let dir = PrivateDir::new()?;
            server::serve(start(&dir, address)?)
        }
        Place::Client(address) => {
            server::wait_for_address(address)?;
            load(args, address)
        }
    }
}

fn start(dir: &PrivateDir, address: SocketAddr) -> Result<Running> {
    let mut command = Command::new(process::find_program("redis-server", "redis-server")?);
    command.args(["--port", &address.port().to_string(), "--bind", &address.ip().to_string()]);
    command.args([
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--protected-mode",
        "no",
        "--dir",
    ]);
    command.arg(dir.path()).current_dir(dir.path());
    let mut running = Running::start(command, Stdout::Kept)?;
    server::wait_for_port(&mut running, address.port())?;
    Ok(running)
}

fn load(args: &Args, address: SocketAddr) -> Result<Value> {
    let benchmark = process::find_program("redis-benchmark", "redis-tools")?;
    let dir = PrivateDir::new()?;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let (requests, connections) = (args.requests.to_string(), args.connections.to_string());
    let argv = [
        "-h",
        host.as_str(),
        "-p",
        port.as_str(),
        "-t",
        args.test.as_str(),
        "-n",
        requests.as_str(),
        "-c",
        connections.as_str(),
        "--csv",
    ];
    let output = process::run(&benchmark, argv, &dir, Duration::from_secs(u64::from(args.timeout_secs)))?;
    let mut report = parse(&output.stdout)?;
    report.insert("workload".to_owned(), json!("redis"));
    report.insert("test".to_owned(), json!(args.test));
    report.insert("requests".to_owned(), json!(args.requests));
    report.insert("connections".to_owned(), json!(args.connections));
    Ok(Value::Object(report))
}

/// Parses the table of redis-benchmark by the names in its first line. Versions before 6.2 print no such line, only the
/// name of the test and its rate.
fn parse(text: &str) -> Result<Map<String, Value>> {
    let mut lines = text.lines().map(cells).filter(|cells| cells.len() >= 2);
    let first = lines.next().context("redis-benchmark: no table in its output; is the test's name right?")?;
    let (header, values) = match first.iter().position(|name| name == "rps") {
        Some(_) => (first, lines.next().context("redis-benchmark: a table without a row")?),
        None => (vec!["test".to_owned(), "rps".to_owned()], first),
    };
    ensure!(lines.next().is_none(), "redis-benchmark: more than one row; choose a single test");
    let row: HashMap<&str, f64> = header
        .iter()
        .zip(&values)
        .filter_map(|(name, value)| Some((name.as_str(), leading_number(value)?)))
        .collect();
    let rate = row.get("rps").context("redis-benchmark: no rate in its output")?;
    let mut latency_us = Map::new();
    for (name, column) in [("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("max", "max"), ("mean", "avg")] {
        if let Some(latency_ms) = row.get(format!("{column}_latency_ms").as_str()) {
            latency_us.insert(name.to_owned(), json!(round3(latency_ms * 1000.0)));
        }
    }
    Ok(Map::from_iter([
        ("requests_per_s".to_owned(), json!(rate)),
        ("latency_us".to_owned(), Value::Object(latency_us)),
    ]))
}

fn cells(line: &str) -> Vec<String> {
    line.trim().split(',').map(|cell| cell.trim_matches('"').to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = r#""test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms""#;

    #[test]
    fn the_table_with_its_header() {
        let text = format!(
            "{HEADER}\n\"GET\",\"157480.31\",\"0.033\",\"0.008\",\"0.031\",\"0.047\",\"0.079\",\"0.895\"\n"
        );
        let report = parse(&text).unwrap();
        assert_eq!(report["requests_per_s"], 157480.31);
        let expected = json!({"p50": 31.0, "p95": 47.0, "p99": 79.0, "max": 895.0, "mean": 33.0});
        assert_eq!(report["latency_us"], expected);
    }

    #[test]
    fn the_old_table_without_header() {
        let report = parse("\"GET\",\"157480.31\"\n").unwrap();
        assert_eq!((&report["requests_per_s"], &report["latency_us"]), (&json!(157480.31), &json!({})));
    }

    #[test]
    fn other_output_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse(HEADER).unwrap_err().to_string().contains("without a row"));
        assert!(parse("\"A\",\"1\"\n\"B\",\"2\"\n").unwrap_err().to_string().contains("single test"));
        assert!(test_name("get -x").is_err() && test_name("get,set").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[ -~\\n]{0,150}") {
            let _ = parse(&text);
        }
    }
}
