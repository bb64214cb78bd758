//! Runs programs to their end, or in the background.

use crate::sys;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tandem_agent::Output;

const OUTPUT_LIMIT: u64 = 4 << 20;
const SEARCH_PATH: &str = "/bin:/usr/bin:/usr/sbin:/sbin";

/// A program in its own process group. Its output goes to files, so that no pipe has to be drained.
pub struct Program {
    child: Child,
    stem: String,
}

impl Program {
    /// Starts the program with these environment variables, too. `number` makes the names of its files unique.
    pub fn start(argv: &[String], env: &BTreeMap<String, String>, number: u64) -> Result<Self, String> {
        let (program, args) = argv.split_first().ok_or("empty command")?;
        let stem = format!("/run/program-{number}");
        let file =
            |kind: &str| File::create(format!("{stem}.{kind}")).map_err(|e| format!("{stem}.{kind}: {e}"));
        let child = Command::new(program)
            .args(args)
            .env("PATH", SEARCH_PATH)
            .env("HOME", "/tmp")
            .envs(env)
            .current_dir("/tmp")
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("err")?)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot run {program}: {error}"))?;
        Ok(Self { child, stem })
    }

    /// Is it still running?
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end, and kills the group at the time limit. The rest of the group is killed in any case.
    pub fn finish(mut self, timeout: Duration) -> Output {
        let leader = self.child.id() as i32;
        let deadline = Instant::now() + timeout;
        let mut pause = Duration::from_millis(2);
        let (status, timed_out) = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break (Some(status), false),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(pause),
                _ => {
                    sys::kill_group(leader, libc::SIGKILL);
                    break (self.child.wait().ok(), true);
                }
            }
            // The agent must not disturb the program for which it waits.
            pause = (pause * 2).min(Duration::from_millis(50));
        };
        sys::kill_group(leader, libc::SIGKILL);
        let read = |kind: &str| read_limited(&format!("{}.{kind}", self.stem));
        let output = Output {
            status: status.map_or(-1, number_of),
            timed_out,
            stdout: read("out"),
            stderr: read("err"),
        };
        for kind in ["out", "err"] {
            let _ = std::fs::remove_file(format!("{}.{kind}", self.stem));
        }
        output
    }

    /// Sends it a signal, and waits like [`Program::finish`].
    pub fn stop(self, signal: i32, timeout: Duration) -> Output {
        sys::kill_group(self.child.id() as i32, signal);
        self.finish(timeout)
    }
}

fn number_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or(1))
}

fn read_limited(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // On an error, the part that could be read is returned.
        let _ = file.take(OUTPUT_LIMIT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
