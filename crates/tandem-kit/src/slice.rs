//! `slice`: sets how long the slices of other threads are, as an operator can with a tool that knows sched_setattr(2).

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};
use std::path::PathBuf;

use crate::sys;

/// Arguments of `slice`.
#[derive(Parser)]
pub struct Args {
    /// cgroup whose threads get it (a directory in /sys/fs/cgroup; those of its children do not)
    #[arg(long, value_name = "DIR")]
    group: PathBuf,
    /// Only threads whose names begin so
    #[arg(long, default_value = "")]
    names: String,
    /// Slice in microseconds, 100 to 100000; 0: as long as the scheduler says
    #[arg(long, value_parser = microseconds)]
    us: u64,
}

fn microseconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(us) if us == 0 || (100..=100_000).contains(&us) => Ok(us),
        _ => Err(format!("{text}: expected 0, or 100 to 100000")),
    }
}

/// Sets the slices, and reports of how many threads.
pub fn run(args: &Args) -> Result<Value> {
    let list = args.group.join("cgroup.threads");
    let text = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let mut threads = 0;
    for tid in text.lines().filter_map(|line| line.trim().parse::<u32>().ok()) {
        // One that ends meanwhile needs no slice.
        let Ok(name) = std::fs::read_to_string(format!("/proc/{tid}/comm")) else { continue };
        if name.starts_with(&args.names) {
            let set = sys::set_slice(tid, args.us * 1000);
            threads += usize::from(set.with_context(|| format!("thread {tid} ({})", name.trim()))?);
        }
    }
    ensure!(
        threads > 0,
        "{}: no thread of the fair class whose name begins with {:?}",
        list.display(),
        args.names
    );
    Ok(json!({ "threads": threads, "slice_us": args.us }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_or_clamps_is_refused() {
        for text in ["99", "100001", "-1", "x", "1e3"] {
            assert!(microseconds(text).is_err(), "{text}");
        }
        assert_eq!((microseconds("0"), microseconds("100")), (Ok(0), Ok(100)));
    }

    #[test]
    fn a_group_without_such_a_thread_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let args = |names: &str| Args { group: dir.path().into(), names: names.into(), us: 0 };
        assert!(run(&args("")).is_err(), "there is no such file");
        std::fs::write(dir.path().join("cgroup.threads"), format!("{}\n", std::process::id())).unwrap();
        assert!(run(&args("no such name")).is_err());
        assert_eq!(run(&args("")).unwrap()["threads"], 1);
    }
}
