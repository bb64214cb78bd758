//! The guard: a second process of the kit that outlives it by a moment and removes what it left behind.
//!
//! `PR_SET_PDEATHSIG` reaches only the program that the kit started, not that program's own children, and a kit that
//! is killed runs no cleanup code. The guard reads from a pipe what it has to remove. The pipe is closed when the kit
//! ends, however it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::crew::lock;
use crate::sys;

/// The hidden subcommand that runs [`watch`].
pub const SUBCOMMAND: &str = "guard";

/// The guard of this process, if one was started. Programs can run without it, as in the unit tests.
static GUARD: Mutex<Option<Child>> = Mutex::new(None);

/// Messages to the guard, one JSON line each.
#[derive(Debug, Serialize, Deserialize)]
enum Notice {
    /// A process group to end.
    Group(u32),
    /// A process group that has ended; its number may be reused.
    GroupGone(u32),
    /// A directory to remove.
    Dir(PathBuf),
}

/// Starts the guard.
pub fn start() -> Result<()> {
    // Without /proc, use the name with which the kit was called.
    let own = std::env::current_exe().ok().or_else(|| std::env::args_os().next().map(PathBuf::from));
    let mut command = Command::new(own.context("cannot find my own executable")?);
    // A separate process group, so that a signal to the kit's group does not reach the guard.
    command.arg(SUBCOMMAND).process_group(0).stdin(Stdio::piped());
    *lock(&GUARD) = Some(command.spawn().context("cannot start the guard process")?);
    Ok(())
}

/// Ends the guard and waits for it.
pub fn stop() {
    if let Some(mut guard) = lock(&GUARD).take() {
        drop(guard.stdin.take());
        // An error means that the guard has already ended, which is fine.
        let _ = guard.wait();
    }
}

/// Has the guard end this process group after the kit.
pub fn note_group(group: u32) -> Result<()> {
    tell(&Notice::Group(group))
}

/// Tells the guard that the group has ended.
pub fn forget_group(group: u32) -> Result<()> {
    tell(&Notice::GroupGone(group))
}

/// Has the guard remove this directory after the kit.
pub fn note_dir(dir: &Path) -> Result<()> {
    tell(&Notice::Dir(dir.to_owned()))
}

fn tell(notice: &Notice) -> Result<()> {
    if let Some(pipe) = lock(&GUARD).as_mut().and_then(|guard| guard.stdin.as_mut()) {
        let line = serde_json::to_string(notice)? + "\n";
        pipe.write_all(line.as_bytes()).context("the guard process is gone")?;
    }
    Ok(())
}

/// The guard process: collects notices until their end, then ends the groups and removes the directories.
pub fn watch(notices: impl Read) {
    let (mut groups, mut dirs) = (Vec::new(), Vec::new());
    for line in BufReader::new(notices).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Notice::Group(group)) => groups.push(group),
            Ok(Notice::GroupGone(group)) => groups.retain(|&other| other != group),
            Ok(Notice::Dir(dir)) => dirs.push(dir),
            // A line that was cut off when the kit ended.
            Err(_) => {}
        }
    }
    groups.into_iter().for_each(sys::kill_group);
    dirs.iter().for_each(|dir| remove(dir));
}

/// Retries for a while: a process that is being killed may still create a file.
fn remove(dir: &Path) {
    for _ in 0..50 {
        if std::fs::remove_dir_all(dir).is_ok() || !dir.exists() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(notices: &[Notice]) -> String {
        notices.iter().map(|notice| serde_json::to_string(notice).unwrap() + "\n").collect()
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").process_group(0).spawn().unwrap()
    }

    #[test]
    fn what_is_left_at_the_end_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (left, kept) = (dir.path().join("left"), dir.path().join("kept"));
        std::fs::create_dir_all(left.join("inner")).unwrap();
        std::fs::create_dir_all(&kept).unwrap();
        let (mut ended, mut spared) = (sleeper(), sleeper());
        let notices = [
            Notice::Group(ended.id()),
            Notice::Group(spared.id()),
            Notice::GroupGone(spared.id()),
            Notice::Dir(left.clone()),
        ];
        watch((lines(&notices) + "{\"Gro").as_bytes());
        assert!(!ended.wait().unwrap().success());
        assert!(spared.try_wait().unwrap().is_none(), "a group that was taken back is left alone");
        spared.kill().unwrap();
        spared.wait().unwrap();
        assert!(!left.exists() && kept.exists());
    }
}
