//! Programs for BPF's `syscall` type that somebody else has loaded: found by name, and run.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use libbpf_rs::query::ProgInfoIter;

use crate::sys;

/// A loaded program.
pub struct Program(OwnedFd);

/// Finds one of this name; the kernel keeps the first 15 bytes of one. Without the right to see programs there is none.
pub fn program(name: &str) -> Result<Program> {
    let found = ProgInfoIter::default().filter(|info| info.name.to_str() == Some(name)).last();
    let info = found.with_context(|| format!("no BPF program {name} is loaded, or this is not root"))?;
    let fd =
        libbpf_rs::Program::fd_from_id(info.id).with_context(|| format!("cannot open BPF program {name}"))?;
    Ok(Program(fd))
}

impl Program {
    /// Runs it on `context`, which it may change.
    pub fn run(&self, context: &mut [u8]) -> Result<()> {
        sys::run_bpf_program(&self.0, context).context("cannot run the BPF program")
    }
}
