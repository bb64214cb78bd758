//! `current-task`: records which task each CPU runs, in a page of which it tells the physical address; and asks for that from outside.
//!
//! A test of what a host reads in the memory of its guest has the guest's own record by this.

use crate::sys;
use anyhow::{ensure, Context, Result};
use clap::Parser;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use serde_json::{json, Value};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tandem_bpf::current::CurrentSkelBuilder;

const PAGE: u64 = 4096;
/// Bits of an entry in `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
/// Digits of an address, and a newline.
const ANSWER_MOST: u64 = 32;
const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `current-task`.
#[derive(Parser)]
pub struct Args {
    /// Answer with the page's physical address on this TCP port, until killed
    #[arg(long, default_value_t = 7001, conflicts_with = "ask")]
    port: u16,
    /// Ask another machine for it instead
    #[arg(long, value_name = "ADDR:PORT")]
    ask: Option<SocketAddr>,
}

/// Records and answers, or asks.
pub fn run(args: &Args) -> Result<Value> {
    args.ask.map_or_else(|| serve(args.port), ask)
}

fn ask(address: SocketAddr) -> Result<Value> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).context("nobody records there")?;
    stream.set_read_timeout(Some(PATIENCE)).context("setting a time limit")?;
    let mut answer = String::new();
    (&stream).take(ANSWER_MOST).read_to_string(&mut answer).context("no answer")?;
    let gpa: u64 = answer.trim().parse().context("the answer is no address")?;
    Ok(json!({ "gpa": gpa }))
}

fn serve(port: u16) -> Result<Value> {
    let mut storage = MaybeUninit::uninit();
    let open = CurrentSkelBuilder::default().open(&mut storage).context("opening the BPF program")?;
    let mut skel = open.load().context("the kernel refuses to load the BPF program")?;
    skel.attach().context("attaching it to sched_switch")?;
    let page = sys::map_page(skel.maps.current.as_fd()).context("mapping the record")?;
    let physical = physical_address(page)?;
    let listener = TcpListener::bind(("0.0.0.0", port)).context("listening")?;
    for stream in listener.incoming() {
        // Whoever hangs up has no answer.
        let _ = stream.and_then(|mut stream| writeln!(stream, "{physical}"));
    }
    Ok(Value::Null)
}

/// Of a page of this process.
fn physical_address(page: u64) -> Result<u64> {
    let mut entry = [0; 8];
    let pagemap = File::open("/proc/self/pagemap").context("opening the page map")?;
    pagemap.read_exact_at(&mut entry, page / PAGE * 8).context("reading the page map")?;
    let entry = u64::from_ne_bytes(entry);
    ensure!(entry & PRESENT != 0 && entry & FRAME != 0, "only root may know where a page is");
    Ok((entry & FRAME) * PAGE)
}
