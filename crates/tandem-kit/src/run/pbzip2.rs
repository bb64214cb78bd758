//! pbzip2: parallel compression of the same data in every run.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use serde_json::{json, Value};

use super::output::round3;
use super::process::{self, PrivateDir, Running, Stdout};
use crate::arguments::{self, MAX_THREADS};
use crate::random::Stream;

/// Arguments of `run pbzip2`.
#[derive(Parser)]
pub struct Args {
    /// Number of compressing threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Size of the data in MiB; it is in memory twice
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    mib: u32,
    /// Size of a block in units of 100 kB; a thread works on one at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=9))]
    block: u32,
    /// Time limit in seconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=3600))]
    timeout_secs: u32,
}

pub fn run(args: &Args) -> Result<Value> {
    let program = process::find_program("pbzip2", "pbzip2")?;
    let dir = PrivateDir::new()?;
    let bytes = (args.mib as usize) << 20;
    let input = dir.write("data", compressible(bytes))?;
    let mut command = Command::new(program);
    // -b is the unit of work for a thread, -1 to -9 the block size of the compression itself.
    command.args(["-k", "-c", "-q", &format!("-p{}", args.threads)]);
    command
        .args([format!("-b{}", args.block), format!("-{}", args.block)])
        .arg(&input)
        .current_dir(dir.path());
    let output = Running::start(command, Stdout::Discarded)?
        .finish(Duration::from_secs(u64::from(args.timeout_secs)))?;
    let seconds = output.elapsed.as_secs_f64();
    Ok(json!({
        "workload": "pbzip2",
        "threads": args.threads,
        "mib": args.mib,
        "seconds": round3(seconds),
        "mib_per_s": round3(f64::from(args.mib) / seconds.max(1e-6)),
    }))
}

/// Text-like data: random words from a vocabulary, so that it is compressible, but not trivially.
fn compressible(bytes: usize) -> Vec<u8> {
    const WORDS: u64 = 4096;
    let (words, picks) = (Stream::new(1, 0), Stream::new(1, 1));
    let mut data = Vec::with_capacity(bytes + 16);
    let mut index = 0;
    while data.len() < bytes {
        let letters = words.bits(picks.bits(index) % WORDS);
        let length = 2 + (letters >> 60) as usize % 8;
        data.extend((0..length).map(|i| b'a' + (letters >> (5 * i)) as u8 % 26));
        data.push(b' ');
        index += 1;
    }
    data.truncate(bytes);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_repeatable_and_of_the_size_asked() {
        let data = compressible(10_000);
        assert_eq!(data.len(), 10_000);
        assert_eq!(data, compressible(10_000));
        assert!(data.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b' '));
    }
}
