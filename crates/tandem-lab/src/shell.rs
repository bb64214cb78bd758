//! A line-by-line shell in the machines of an experiment, for interactive use.

use crate::experiment::Experiment;
use crate::lock::MachineLock;
use crate::progress::Progress;
use crate::run::{choose_accel, with_kernels, AccelChoice};
use crate::session::Session;
use crate::{cache, fetch, image, sys, LabError};
use std::io::{BufRead, Write};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long a typed command may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);

/// Boots an experiment's machines with its contention and runs the typed commands, until end of input. A line
/// that begins with `@NAME` runs on that machine instead of the one under test.
///
/// # Errors
/// The machines cannot be booted, or fail later.
pub fn shell(experiment: &Experiment, accel: AccelChoice) -> Result<(), LabError> {
    let progress = Progress::new(&experiment.name);
    let _lock = MachineLock::take(|text| progress.step(text))?;
    let parts = fetch::parts()?;
    let images = image::base_images(&parts)?;
    let accel = choose_accel(accel, &parts, &images, &progress)?;
    let parts = with_kernels(parts, None, experiment)?;
    let work = cache::work_dir()?;
    let mut session = Session::boot(&parts, &images, work.path(), experiment, accel, &progress)?;
    let first = experiment.workloads.first().map(|w| experiment.contention_of(w)).unwrap_or_default();
    session.contenders.activate(&mut session.machine.link, experiment, first)?;
    drop(progress);
    let lines = typed_lines();
    loop {
        print!("{}# ", experiment.target());
        // A prompt that cannot be shown does not end the shell.
        let _ = std::io::stdout().flush();
        let Some(line) = next_line(&lines)? else { break };
        let (machine, command) = addressed(&line, experiment.target());
        if command.is_empty() {
            continue;
        }
        let argv = ["/bin/sh", "-c", command].map(str::to_string);
        match session.machine.link.exec(machine, &argv, COMMAND_LIMIT) {
            Ok(output) => print!("{}{}", output.stdout, output.stderr),
            // A mistyped name, or a program that does not exist.
            Err(LabError::Agent { target, message }) => eprintln!("{target}: {message}"),
            Err(error) => return Err(error),
        }
    }
    session.end()
}

/// Reads in a separate thread: a read cannot be interrupted, waiting on a channel can.
fn typed_lines() -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    told
}

fn next_line(lines: &Receiver<String>) -> Result<Option<String>, LabError> {
    loop {
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => return Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if sys::termination_requested() => {
                return Err(LabError::Interrupted)
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Machine and command of a typed line.
fn addressed<'a>(line: &'a str, default: &'a str) -> (&'a str, &'a str) {
    let line = line.trim();
    match line.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace).map_or((rest, ""), |(m, c)| (m, c.trim())),
        None => (default, line),
    }
}

#[cfg(test)]
mod tests {
    use super::addressed;

    #[test]
    fn a_line_may_name_its_machine() {
        assert_eq!(addressed(" nproc ", "a"), ("a", "nproc"));
        assert_eq!(addressed("@host  cat /proc/stat", "a"), ("host", "cat /proc/stat"));
        assert_eq!(addressed("@b", "a"), ("b", ""));
    }
}
