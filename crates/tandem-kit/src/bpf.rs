//! BPF programs of type `syscall` that another process has loaded: finds them by name and runs them.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use libbpf_rs::query::ProgInfoIter;

use crate::sys;

/// A loaded program.
pub struct Program(OwnedFd);

/// Finds a loaded program by name. The kernel keeps only the first 15 bytes of a name. Without the privilege to list
/// programs none is found.
pub fn program(name: &str) -> Result<Program> {
    let found = ProgInfoIter::default().filter(|info| info.name.to_str() == Some(name)).last();
    let info = found.with_context(|| format!("no BPF program {name} is loaded, or this is not root"))?;
    let fd =
        libbpf_rs::Program::fd_from_id(info.id).with_context(|| format!("cannot open BPF program {name}"))?;
    Ok(Program(fd))
}

impl Program {
    /// Runs the program on `context`, which it may change.
    pub fn run(&self, context: &mut [u8]) -> Result<()> {
        sys::run_bpf_program(&self.0, context).context("cannot run the BPF program")
    }
}
