//! nginx serving a file, loaded by wrk: over the loopback interface, or from another machine.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};

use super::process::{self, PrivateDir, Running, Stdout};
use super::server::{self, Place, Sides};
use super::wrk;
use crate::arguments::{self, MAX_THREADS};
use crate::sys;

/// User and group number of `nobody`. As root, nginx would look up its user by name, which fails on a system without a
/// user data base. Started as an ordinary user it looks up nothing.
const NOBODY: u32 = 65534;

/// Arguments of `run nginx`.
#[derive(Parser)]
pub struct Args {
    /// Duration in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    secs: u32,
    /// Connections that wrk keeps busy
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Worker processes of nginx
    #[arg(long, visible_alias = "threads", default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    workers: u32,
    /// Let the kernel spread the connections over the workers (listen ... reuseport). Without it the first worker that
    /// accepts a connection serves all of its requests
    #[arg(long)]
    spread: bool,
    /// Threads of wrk; at most one per connection
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    client_threads: u32,
    /// Size of the file served, in bytes
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=16_777_216))]
    body_bytes: u32,
    #[command(flatten)]
    sides: Sides,
}

pub fn run(args: &Args) -> Result<Value> {
    ensure!(
        args.client_threads <= args.connections,
        "--client-threads {} exceeds --connections {}",
        args.client_threads,
        args.connections
    );
    match args.sides.place()? {
        Place::Both(address) => {
            let dir = PrivateDir::new()?;
            let mut server = start(args, &dir, address)?;
            let report = load(args, address)?;
            server.ensure_alive()?;
            Ok(report)
        }
        Place::Server(address) => {
            let dir = PrivateDir::new()?;
            server::serve(start(args, &dir, address)?)
        }
        Place::Client(address) => {
            server::wait_for_address(address)?;
            load(args, address)
        }
    }
}

fn start(args: &Args, dir: &PrivateDir, address: SocketAddr) -> Result<Running> {
    let nginx = process::find_program("nginx", "nginx")?;
    let config = dir.write("nginx.conf", configuration(args, dir.path(), address))?;
    dir.write("index.html", vec![b'x'; args.body_bytes as usize])?;
    let mut command = Command::new(nginx);
    command.arg("-p").arg(dir.path()).arg("-c").arg(&config).args(["-e", "stderr"]).current_dir(dir.path());
    if sys::is_root() {
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).context("cannot hand the directory to nginx")?;
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut running = Running::start(command, Stdout::Discarded)?;
    server::wait_for_port(&mut running, address.port())?;
    Ok(running)
}

fn load(args: &Args, address: SocketAddr) -> Result<Value> {
    let wrk = process::find_program("wrk", "wrk")?;
    let dir = PrivateDir::new()?;
    let script = dir.write("report.lua", wrk::SCRIPT)?;
    let argv = [
        "-t".to_owned(),
        args.client_threads.to_string(),
        "-c".to_owned(),
        args.connections.to_string(),
        "-d".to_owned(),
        format!("{}s", args.secs),
        "--latency".to_owned(),
        "-s".to_owned(),
        script.display().to_string(),
        format!("http://{address}/index.html"),
    ];
    let output = process::run(&wrk, &argv, &dir, Duration::from_secs(3 * u64::from(args.secs) + 60))?;
    let mut report = wrk::parse(&output.stdout)?;
    report.insert("workload".to_owned(), json!("nginx"));
    report.insert("secs".to_owned(), json!(args.secs));
    report.insert("connections".to_owned(), json!(args.connections));
    report.insert("workers".to_owned(), json!(args.workers));
    report.insert("spread".to_owned(), json!(args.spread));
    Ok(Value::Object(report))
}

/// Configuration of a server that serves one directory and writes nowhere else.
fn configuration(args: &Args, dir: &Path, address: SocketAddr) -> String {
    let dir = dir.display();
    let mut text = format!(
        "daemon off;\nmaster_process on;\nworker_processes {};\nerror_log stderr error;\npid {dir}/nginx.pid;\n\
         events {{ worker_connections {}; }}\nhttp {{\n  access_log off;\n  keepalive_requests 1000000000;\n",
        args.workers,
        // One worker may get all connections; a few more for the listening sockets.
        args.connections + 64,
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {kind}_temp_path {dir}/{kind};");
    }
    let spread = if args.spread { " reuseport" } else { "" };
    let _ = writeln!(text, "  server {{ listen {address}{spread}; root {dir}; }}\n}}");
    text
}
