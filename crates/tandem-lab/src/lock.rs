//! One lab at a time: two of them starve each other, and both fail.

use crate::{sys, LabError};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a waiting lab tries the lock again and checks for an interruption.
const PAUSE: Duration = Duration::from_millis(300);

/// The lock. It is held until the value is dropped.
#[derive(Debug)]
pub struct MachineLock(#[allow(dead_code, reason = "closing the file releases the lock")] File);

impl MachineLock {
    /// Takes the lock. If another lab holds it, says so once through `tell` and waits.
    ///
    /// # Errors
    /// The lock file cannot be used, or the wait was interrupted.
    pub fn take(tell: impl Fn(&str)) -> Result<Self, LabError> {
        Self::take_at(&path(), tell)
    }

    fn take_at(path: &Path, tell: impl Fn(&str)) -> Result<Self, LabError> {
        // Another user's file in a sticky folder can be opened, but not with O_CREAT.
        let file = File::open(path).or_else(|_| File::create(path)).map_err(LabError::io("open", path))?;
        let mut told = false;
        while !sys::try_lock(&file).map_err(LabError::io("lock", path))? {
            if !told {
                tell("waiting for another lab on this machine");
                told = true;
            }
            if sys::termination_requested() {
                return Err(LabError::Interrupted);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(Self(file))
    }
}

fn path() -> PathBuf {
    let usual = Path::new("/run/lock");
    let dir = if usual.is_dir() { usual.to_path_buf() } else { std::env::temp_dir() };
    dir.join("tandem-lab.lock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_second_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = MachineLock::take_at(&path, |_| panic!("nobody has it")).unwrap();
        let first = Cell::new(Some(first));
        let told = Cell::new(0);
        MachineLock::take_at(&path, |_| {
            told.set(told.get() + 1);
            first.set(None);
        })
        .unwrap();
        assert_eq!(told.get(), 1);
    }
}
