//! Common parts of the server workloads: where server and client are, and waiting for the server.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::Parser;

use super::process::Running;
use crate::sys;

/// Start-up limit of a server. It is generous, because emulated machines are slow, and others may compute beside it.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a client waits for its server. A program that has a minute for its work says in time that there is none.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(40);

/// How often it is looked whether a server that serves others still runs.
const STILL_THERE: Duration = Duration::from_secs(1);

/// Arguments of workloads with a server: by default server and client are on this machine.
#[derive(Parser)]
pub struct Sides {
    /// Only serve, on this port of all interfaces, until killed
    #[arg(long, value_name = "PORT", conflicts_with = "to", value_parser = clap::value_parser!(u16).range(1..))]
    serve: Option<u16>,
    /// Only measure a server elsewhere
    #[arg(long, value_name = "ADDR:PORT")]
    to: Option<SocketAddr>,
}

/// Which sides run here, and where the server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Both, at this address of the loopback interface.
    Both(SocketAddr),
    /// Only the server, for others.
    Server(SocketAddr),
    /// Only the client.
    Client(SocketAddr),
}

impl Sides {
    /// Where the server is to listen, or listens.
    pub fn place(&self) -> Result<Place> {
        Ok(match (self.serve, self.to) {
            (Some(port), _) => Place::Server((Ipv4Addr::UNSPECIFIED, port).into()),
            (None, Some(to)) => Place::Client(to),
            (None, None) => Place::Both((Ipv4Addr::LOCALHOST, free_port()?).into()),
        })
    }
}

/// Serves others until this program is killed.
///
/// # Errors
/// The server has ended.
pub fn serve(mut server: Running) -> Result<serde_json::Value> {
    loop {
        server.ensure_alive()?;
        thread::sleep(STILL_THERE);
    }
}

/// Brings the loopback interface up if necessary, and finds an unused port.
fn free_port() -> Result<u16> {
    // Without privilege the interface cannot be changed. If it is down, the next line fails.
    let _ = sys::loopback_up();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on 127.0.0.1")?;
    Ok(listener.local_addr().context("cannot read the port of 127.0.0.1")?.port())
}

/// Waits until the server accepts connections.
pub fn wait_for_port(server: &mut Running, port: u16) -> Result<()> {
    // Without privilege the interface cannot be changed. If it is down, nothing answers.
    let _ = sys::loopback_up();
    wait_for((Ipv4Addr::LOCALHOST, port).into(), START_TIMEOUT, || server.ensure_alive())
}

/// Waits until a server elsewhere accepts connections: both may have been started at the same time.
pub fn wait_for_address(address: SocketAddr) -> Result<()> {
    wait_for(address, CLIENT_TIMEOUT, || Ok(()))
}

fn wait_for(
    address: SocketAddr,
    limit: Duration,
    mut still_starts: impl FnMut() -> Result<()>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
        still_starts()?;
        if Instant::now() >= deadline {
            bail!("nothing listens on {address} after {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(args: &[&str]) -> Place {
        Sides::parse_from(std::iter::once("t").chain(args.iter().copied())).place().unwrap()
    }

    #[test]
    fn a_client_waits_until_the_server_is_there() {
        let _ = sys::loopback_up();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
        let server = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            TcpListener::bind(address).map(|listener| listener.accept())
        });
        wait_for_address(address).unwrap();
        assert!(server.join().unwrap().unwrap().is_ok());
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
        let ended = wait_for(nobody, START_TIMEOUT, || bail!("it has ended"));
        assert_eq!(ended.unwrap_err().to_string(), "it has ended");
    }

    #[test]
    fn server_and_client_may_be_apart() {
        assert_eq!(place(&["--serve", "80"]), Place::Server("0.0.0.0:80".parse().unwrap()));
        assert_eq!(place(&["--to", "10.0.1.2:80"]), Place::Client("10.0.1.2:80".parse().unwrap()));
        assert!(
            matches!(place(&[]), Place::Both(address) if address.ip().is_loopback() && address.port() > 0)
        );
        for wrong in [["--serve", "0"], ["--to", "somewhere"], ["--serve", "x"]] {
            assert!(Sides::try_parse_from(["t"].iter().chain(&wrong)).is_err(), "{wrong:?}");
        }
        assert!(Sides::try_parse_from(["t", "--serve", "80", "--to", "10.0.1.2:80"]).is_err());
    }
}
