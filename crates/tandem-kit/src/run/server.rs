//! Common parts of the server workloads: a free port on the loopback interface and waiting for the server.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::process::Running;
use crate::sys;

/// Start-up limit of a server. It is generous, because emulated machines are slow.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Brings the loopback interface up if necessary, and finds an unused port.
pub fn free_port() -> Result<u16> {
    // Without privilege the interface cannot be changed. If it is down, the next line fails.
    let _ = sys::loopback_up();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on 127.0.0.1")?;
    Ok(listener.local_addr().context("cannot read the port of 127.0.0.1")?.port())
}

/// Waits until the server accepts connections.
pub fn wait_for_port(server: &mut Running, port: u16) -> Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let deadline = Instant::now() + START_TIMEOUT;
    while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
        server.ensure_alive()?;
        if Instant::now() >= deadline {
            bail!("nothing listens on {address} after {} s", START_TIMEOUT.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
