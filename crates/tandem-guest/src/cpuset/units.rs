//! systemd's `AllowedCPUs` of the units that hold services, users and machines: set while the daemon
//! runs, and restored, also after a crash.

use crate::GuestError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tandem_daemon::cpulist::parse_cpu_list;
use tandem_probe::kernel::format_list;

/// Units below the root that hold what runs on a machine. The daemon must be in none of them.
pub(crate) const UNITS: [&str; 3] = ["system.slice", "user.slice", "machine.slice"];

/// Reads and sets `AllowedCPUs`.
pub(super) trait Keeper {
    /// The list as the unit has it; empty: all.
    fn allowed(&self, unit: &str) -> Result<String, GuestError>;
    /// Sets it until the next boot.
    fn allow(&self, unit: &str, list: &str) -> Result<(), GuestError>;
}

/// systemd, through its own tool.
#[derive(Debug)]
pub(super) struct Systemctl;

impl Systemctl {
    fn run(arguments: &[&str]) -> Result<String, GuestError> {
        let asked = || format!("systemctl {}", arguments.join(" "));
        let failed = |reason: String| GuestError::Systemd { asked: asked(), reason };
        let output =
            Command::new("systemctl").args(arguments).output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    }
}

impl Keeper for Systemctl {
    fn allowed(&self, unit: &str) -> Result<String, GuestError> {
        Self::run(&["show", "--property=AllowedCPUs", "--value", unit])
    }

    fn allow(&self, unit: &str, list: &str) -> Result<(), GuestError> {
        Self::run(&["set-property", "--runtime", unit, &format!("AllowedCPUs={list}")]).map(drop)
    }
}

/// The previous settings of the units.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Before(BTreeMap<String, String>);

/// Limits that are in force.
pub(super) struct Limits<K: Keeper> {
    keeper: K,
    file: PathBuf,
    before: Before,
}

impl<K: Keeper> Limits<K> {
    /// Restores what an earlier daemon has left, and begins without limits.
    pub(super) fn recover(keeper: K, file: &Path) -> Result<Self, GuestError> {
        let mut limits = Self { keeper, file: file.to_path_buf(), before: Before::default() };
        match std::fs::read_to_string(file) {
            Ok(text) => {
                limits.before =
                    serde_json::from_str(&text).map_err(|error| limits.state(error.to_string()))?;
                log::info!("putting back AllowedCPUs that an earlier run has left");
                limits.release()?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(limits.state(error.to_string())),
        }
        Ok(limits)
    }

    fn state(&self, reason: String) -> GuestError {
        GuestError::CpusetState { path: self.file.clone(), reason }
    }

    /// From now on the units may use only `wanted` of `online`, as far as the administrator has allowed
    /// them. A unit for which nothing would be left stays as it is.
    pub(super) fn apply(&mut self, online: &[usize], wanted: &[usize]) -> Result<(), GuestError> {
        if wanted == online {
            return self.release();
        }
        if self.before.0.is_empty() {
            for unit in UNITS {
                self.before.0.insert(unit.into(), self.keeper.allowed(unit)?);
            }
            // Before anything is changed: the next start after a crash needs it.
            let text = serde_json::to_string(&self.before).map_err(|error| self.state(error.to_string()))?;
            self.file
                .parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(&self.file, text))
                .map_err(|error| self.state(error.to_string()))?;
        }
        for (unit, before) in &self.before.0 {
            let list = match limited(before, wanted)? {
                Some(list) => list,
                None => {
                    log::warn!(
                        "{unit} may use {before} only, of which nothing would be left: it stays as it is"
                    );
                    before.clone()
                }
            };
            self.keeper.allow(unit, &list)?;
        }
        Ok(())
    }

    /// Restores everything. If one unit fails the others are still tried, and the error is returned.
    pub(super) fn release(&mut self) -> Result<(), GuestError> {
        let mut failed = Ok(());
        for (unit, before) in &self.before.0 {
            failed = failed.and(self.keeper.allow(unit, before));
        }
        failed?;
        self.before.0.clear();
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(self.state(error.to_string())),
            _ => Ok(()),
        }
    }
}

/// What is left of a unit's list; none: nothing.
fn limited(before: &str, wanted: &[usize]) -> Result<Option<String>, GuestError> {
    if before.is_empty() {
        return Ok(Some(format_list(wanted)));
    }
    // systemd separates by blanks what the kernel separates by commas.
    let allowed = parse_cpu_list(&before.replace(' ', ","), "systemd's AllowedCPUs")?;
    let both: Vec<usize> = wanted.iter().copied().filter(|cpu| allowed.contains(cpu)).collect();
    Ok((!both.is_empty()).then(|| format_list(&both)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// A systemd that only remembers.
    #[derive(Default)]
    struct Fake {
        lists: RefCell<BTreeMap<String, String>>,
        fails: bool,
    }

    impl Keeper for &Fake {
        fn allowed(&self, unit: &str) -> Result<String, GuestError> {
            Ok(self.lists.borrow().get(unit).cloned().unwrap_or_default())
        }

        fn allow(&self, unit: &str, list: &str) -> Result<(), GuestError> {
            if self.fails {
                return Err(GuestError::Systemd { asked: unit.into(), reason: "no".into() });
            }
            self.lists.borrow_mut().insert(unit.into(), list.into());
            Ok(())
        }
    }

    fn with(user: &str) -> Fake {
        let lists = BTreeMap::from([("user.slice".to_string(), user.to_string())]);
        Fake { lists: RefCell::new(lists), fails: false }
    }

    #[test]
    fn what_the_administrator_allows_is_kept_and_put_back() {
        let (fake, dir) = (with("0 2-3"), tempfile::tempdir().unwrap());
        let file = dir.path().join("below/state.json");
        let mut limits = Limits::recover(&fake, &file).unwrap();
        limits.apply(&[0, 1, 2, 3], &[0, 1, 2]).unwrap();
        assert_eq!(fake.lists.borrow()["system.slice"], "0-2");
        assert_eq!(fake.lists.borrow()["user.slice"], "0,2");
        // Nothing would be left for it.
        limits.apply(&[0, 1, 2, 3], &[1]).unwrap();
        assert_eq!(fake.lists.borrow()["system.slice"], "1");
        assert_eq!(fake.lists.borrow()["user.slice"], "0 2-3");
        limits.apply(&[0, 1, 2, 3], &[0, 1, 2, 3]).unwrap();
        assert_eq!(fake.lists.borrow()["system.slice"], "");
        assert_eq!(fake.lists.borrow()["user.slice"], "0 2-3");
        assert!(!file.exists());
    }

    #[test]
    fn a_crash_is_made_good_by_the_next_run() {
        let (fake, dir) = (with("1-3"), tempfile::tempdir().unwrap());
        let file = dir.path().join("state.json");
        let mut limits = Limits::recover(&fake, &file).unwrap();
        limits.apply(&[0, 1, 2, 3], &[2, 3]).unwrap();
        drop(limits);
        assert_eq!(fake.lists.borrow()["user.slice"], "2-3");
        Limits::recover(&fake, &file).unwrap();
        assert_eq!(fake.lists.borrow()["user.slice"], "1-3");
        assert!(!file.exists());
    }

    #[test]
    fn what_could_not_be_put_back_is_not_forgotten() {
        let (mut fake, dir) = (with(""), tempfile::tempdir().unwrap());
        let file = dir.path().join("state.json");
        Limits::recover(&fake, &file).unwrap().apply(&[0, 1], &[0]).unwrap();
        fake.fails = true;
        assert!(Limits::recover(&fake, &file).is_err());
        assert!(file.exists());
        fake.fails = false;
        Limits::recover(&fake, &file).unwrap();
        assert_eq!(fake.lists.borrow()["system.slice"], "");
    }

    proptest! {
        #[test]
        fn any_state_file_is_read_or_refused(text in "\\PC*") {
            let (fake, dir) = (with(""), tempfile::tempdir().unwrap());
            let file = dir.path().join("state.json");
            std::fs::write(&file, text).unwrap();
            let _ = Limits::recover(&fake, &file);
        }

        #[test]
        fn a_unit_never_gets_more_than_it_had(
            before in prop::collection::btree_set(0usize..8, 1..8),
            wanted in prop::collection::btree_set(0usize..8, 1..8),
        ) {
            let (before, wanted): (Vec<usize>, Vec<usize>) = (before.into_iter().collect(), wanted.into_iter().collect());
            let list = limited(&format_list(&before), &wanted).unwrap();
            let cpus = list.map(|list| parse_cpu_list(&list, "test").unwrap()).unwrap_or_default();
            prop_assert!(cpus.iter().all(|cpu| before.contains(cpu) && wanted.contains(cpu)));
            prop_assert_eq!(cpus.is_empty(), !before.iter().any(|cpu| wanted.contains(cpu)));
        }
    }
}
