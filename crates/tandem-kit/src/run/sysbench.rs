//! sysbench: its CPU, threads and file tests.

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serde_json::{json, Value};

use super::{output, process};
use crate::arguments::{self, MAX_THREADS};

/// The tests of sysbench that load the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Test {
    /// Prime numbers
    Cpu,
    /// Mutexes and yielding
    Threads,
    /// Random reads of 4 KiB past the page cache, from a file in $TMPDIR
    Fileio,
}

/// Arguments of `run sysbench`.
#[derive(Parser)]
pub struct Args {
    /// Which test
    #[arg(long, value_enum, default_value = "cpu")]
    test: Test,
    /// Number of threads
    #[arg(long, default_value_t = arguments::available_cpus(), value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS))]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    secs: u32,
    /// Largest prime of an event of the CPU test; sets the length of an event
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(3..=10_000_000))]
    max_prime: u32,
    /// Size of the file of the file test, MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    file_mib: u32,
}

pub fn run(args: &Args) -> Result<Value> {
    let program = process::find_program("sysbench", "sysbench")?;
    let dir = process::PrivateDir::new()?;
    let limit = Duration::from_secs(3 * u64::from(args.secs) + 60);
    let (name, of_the_test) = match args.test {
        Test::Cpu => ("cpu", vec![format!("--cpu-max-prime={}", args.max_prime)]),
        // As many locks as threads: fewer would measure the lock, not the scheduler.
        Test::Threads => ("threads", vec![format!("--thread-locks={}", args.threads)]),
        Test::Fileio => {
            let file = ["--file-num=1".to_owned(), format!("--file-total-size={}M", args.file_mib)];
            let prepare = ["fileio".to_owned()].into_iter().chain(file.clone()).chain(["prepare".to_owned()]);
            process::run(&program, prepare, &dir, limit)?;
            let how = ["--file-test-mode=rndrd", "--file-block-size=4096", "--file-extra-flags=direct"];
            ("fileio", file.into_iter().chain(how.map(str::to_owned)).collect())
        }
    };
    // 99 and not 95: sysbench gives one percentile only, and the tail is where schedulers differ.
    let common = [
        format!("--threads={}", args.threads),
        format!("--time={}", args.secs),
        "--events=0".to_owned(),
        "--percentile=99".to_owned(),
    ];
    let argv = [name.to_owned()].into_iter().chain(common).chain(of_the_test).chain(["run".to_owned()]);
    let output = process::run(&program, argv, &dir, limit)?;
    let figures = Figures::parse(&output.stdout)?;
    Ok(json!({
        "workload": "sysbench",
        "test": name,
        "threads": args.threads,
        "events": figures.events,
        "events_per_s": output::round3(figures.events / figures.total_s),
        "latency_us": { "mean": figures.mean_us, "p99": figures.p99_us, "max": figures.max_us },
    }))
}

#[derive(Debug, PartialEq)]
struct Figures {
    events: f64,
    total_s: f64,
    mean_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Figures {
    fn parse(text: &str) -> Result<Self> {
        let number = |label| output::expect_number_after(text, label, "sysbench");
        let us = |label| Ok::<_, anyhow::Error>(output::round3(number(label)? * 1000.0));
        Ok(Figures {
            events: number("total number of events:")?,
            total_s: number("total time:")?.max(0.001),
            mean_us: us("avg:")?,
            p99_us: us("99th percentile:")?,
            max_us: us("max:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
CPU speed:
    events per second:  6802.93

General statistics:
    total time:                          1.0002s
    total number of events:              6813

Latency (ms):
         min:                                    0.28
         avg:                                    0.29
         max:                                    8.31
         99th percentile:                        0.31
         sum:                                 1992.64
";

    #[test]
    fn figures_in_microseconds() {
        let expected =
            Figures { events: 6813.0, total_s: 1.0002, mean_us: 290.0, p99_us: 310.0, max_us: 8310.0 };
        assert_eq!(Figures::parse(SAMPLE).unwrap(), expected);
    }

    #[test]
    fn a_missing_figure_is_named() {
        let error = Figures::parse("total number of events: 1").unwrap_err().to_string();
        assert_eq!(error, "sysbench: no number after \"total time:\" in its output");
    }
}
