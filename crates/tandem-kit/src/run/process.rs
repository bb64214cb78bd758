//! Programs that the kit starts. Neither they nor any process or file that they created outlive the kit: dropping the
//! handle ends and removes them, and the guard does so if the kit ends before that.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::guard;
use crate::crew::lock;
use crate::sys;

/// Directories of servers and tools that PATH may lack (often the case for non-login shells).
const FALLBACK_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Output beyond this is read but not kept. The largest expected output is a cyclictest histogram of a few MiB.
const MAX_OUTPUT_BYTES: usize = 64 << 20;

/// Time that a program gets to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// How often the state of a program is polled once its output has ended.
const POLL: Duration = Duration::from_millis(2);

/// A private directory of this run.
pub struct PrivateDir {
    dir: tempfile::TempDir,
}

impl PrivateDir {
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("tandem-kit-")
            .tempdir()
            .with_context(|| format!("cannot create a directory in {}", std::env::temp_dir().display()))?;
        guard::note_dir(dir.path())?;
        Ok(PrivateDir { dir })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file into the directory and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path().join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// Finds a program in PATH or in the usual directories.
pub fn find_program(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let candidates = path.split(':').chain(FALLBACK_PATH.split(':')).filter(|dir| dir.starts_with('/'));
    let mut found = candidates.map(|dir| Path::new(dir).join(name)).filter(|file| file.is_file());
    found.next().with_context(|| format!("{name} is not installed (Debian package {package})"))
}

/// Output and run time of a finished program.
pub struct Output {
    pub stdout: String,
    pub elapsed: Duration,
}

/// A running program.
pub struct Running {
    name: String,
    child: Child,
    started: Instant,
    stdout: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    ended_streams: Receiver<()>,
    reaped: bool,
}

/// Where a program's standard output goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stdout {
    Kept,
    Discarded,
}

/// Runs a program and waits for its end.
///
/// # Errors
/// It cannot be started, does not end within `timeout`, or ends with a status other than 0.
pub fn run(
    program: &Path,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    dir: &PrivateDir,
    timeout: Duration,
) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir.path());
    Running::start(command, Stdout::Kept)?.finish(timeout)
}

impl Running {
    /// Starts a program in a process group of its own, in the C locale and without input. Only from the main thread.
    pub fn start(mut command: Command, stdout: Stdout) -> Result<Self> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let out = if stdout == Stdout::Kept { Stdio::piped() } else { Stdio::null() };
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(out).stderr(Stdio::piped());
        sys::tie_to_parent(&mut command);
        sys::adopt_orphans().context("cannot become the reaper of orphans")?;
        let started = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let (sender, ended_streams) = mpsc::channel();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        // From here on `Drop` ends the program, whatever fails.
        let running = Running {
            name,
            child,
            started,
            stdout: Arc::default(),
            stderr: Arc::default(),
            ended_streams,
            reaped: false,
        };
        guard::note_group(running.child.id())?;
        if let Some(stream) = out {
            read_in_background(stream, &running.stdout, sender.clone())?;
        }
        if let Some(stream) = err {
            read_in_background(stream, &running.stderr, sender)?;
        }
        Ok(running)
    }

    /// Waits for the program to end by itself.
    ///
    /// # Errors
    /// It does not end within `timeout`, or its status is not 0. The error contains its last line of output.
    pub fn finish(mut self, timeout: Duration) -> Result<Output> {
        if !self.wait_for_exit(timeout)? {
            bail!("{} did not end within {} s and was stopped", self.name, timeout.as_secs_f64().round());
        }
        let elapsed = self.started.elapsed();
        let status = self.reap()?;
        ensure!(status.success(), "{} failed ({status}){}", self.name, self.last_words());
        Ok(Output { stdout: text_of(&self.stdout), elapsed })
    }

    /// Fails if the program has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if sys::has_exited(self.child.id())? {
            let status = self.reap()?;
            bail!("{} ended early ({status}){}", self.name, self.last_words());
        }
        Ok(())
    }

    fn wait_for_exit(&self, timeout: Duration) -> Result<bool> {
        let deadline = Instant::now() + timeout;
        // Sleeping until the output ends costs the measured machine nothing. Only the end itself is polled.
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.ended_streams.recv_timeout(left) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Ok(sys::has_exited(self.child.id())?),
            }
        }
        while !sys::has_exited(self.child.id())? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(POLL);
        }
        Ok(true)
    }

    /// Kills the rest of the process group, waits until all of it is gone, and returns the exit status.
    fn reap(&mut self) -> Result<ExitStatus> {
        let group = self.child.id();
        sys::kill_group(group);
        // Before the leader is reaped: after that the number may be reused. An error means that the guard has ended,
        // which is fine.
        let _ = guard::forget_group(group);
        let status = self.child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        sys::reap_group(group);
        self.reaped = true;
        // All writers are gone, so the readers are about to reach the end.
        while self.ended_streams.recv_timeout(GRACE).is_ok() {}
        Ok(status)
    }

    /// The last line that is not empty, for an error message.
    fn last_words(&self) -> String {
        let (stderr, stdout) = (text_of(&self.stderr), text_of(&self.stdout));
        let last =
            |text: &str| text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
        last(&stderr).or_else(|| last(&stdout)).map_or_else(String::new, |line| format!(": {line}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        // SIGTERM first, so that a server cleans up. If it does not end, SIGKILL follows.
        sys::terminate_group(self.child.id());
        let _ = self.wait_for_exit(GRACE);
        let _ = self.reap();
    }
}

/// Collects the data of `stream`. Dropping the sender signals its end.
fn read_in_background(
    mut stream: impl Read + Send + 'static,
    into: &Arc<Mutex<Vec<u8>>>,
    ended: Sender<()>,
) -> Result<()> {
    let into = Arc::clone(into);
    let read_all = move || {
        let _ended = ended;
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let mut kept = lock(&into);
            let room = MAX_OUTPUT_BYTES - kept.len();
            kept.extend_from_slice(&buffer[..count.min(room)]);
        }
    };
    thread::Builder::new()
        .name("output".to_owned())
        .spawn(read_all)
        .context("cannot create a reader thread")?;
    Ok(())
}

fn text_of(bytes: &Mutex<Vec<u8>>) -> String {
    String::from_utf8_lossy(&lock(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, timeout: Duration) -> Result<Output> {
        run(Path::new("/bin/sh"), ["-c", script], &PrivateDir::new()?, timeout)
    }

    #[test]
    fn output_and_private_directory() {
        let output = shell("pwd", LONG).unwrap();
        assert!(output.stdout.contains("tandem-kit-"), "{}", output.stdout);
        assert!(!Path::new(output.stdout.trim()).exists(), "the directory is gone after the run");
    }

    #[test]
    fn failures_carry_the_last_words() {
        let error = shell("echo first >&2; echo boom >&2; exit 3", LONG).err().unwrap().to_string();
        assert_eq!(error, "sh failed (exit status: 3): boom");
    }

    #[test]
    fn a_program_that_hangs_is_stopped_with_its_children() {
        let error =
            shell("sleep 1000 & echo $!; wait", Duration::from_millis(100)).err().unwrap().to_string();
        assert!(error.starts_with("sh did not end within"), "{error}");
    }

    #[test]
    fn background_children_do_not_survive_their_leader() {
        let output = shell("sleep 1000 >/dev/null 2>&1 & echo $!", LONG).unwrap();
        let process = format!("/proc/{}", output.stdout.trim());
        assert!(!Path::new(&process).exists(), "the background child still exists");
    }

    #[test]
    fn missing_programs_name_their_package() {
        let error = find_program("no-such-program-here", "no-package").unwrap_err().to_string();
        assert_eq!(error, "no-such-program-here is not installed (Debian package no-package)");
    }
}
