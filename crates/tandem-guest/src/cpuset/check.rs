//! Can vCPUs be taken out of use through systemd on this machine?

use super::UNITS;
use crate::GuestError;
use std::path::{Path, PathBuf};
use tandem_daemon::preflight::{no_other_scheduler, SystemPaths};
use tandem_daemon::DaemonError;

/// What is checked below a root; tests use another root than `/`.
struct Paths {
    system: SystemPaths,
    systemd: PathBuf,
    own_cgroup: PathBuf,
}

impl Paths {
    fn under(root: &Path) -> Self {
        Self {
            system: SystemPaths::under(root),
            systemd: root.join("run/systemd/system"),
            own_cgroup: root.join("proc/self/cgroup"),
        }
    }
}

/// # Errors
/// The first obstacle found, with its remedy.
pub(super) fn check(is_root: bool) -> Result<(), GuestError> {
    check_paths(&Paths::under(Path::new("/")), is_root)
}

fn check_paths(paths: &Paths, is_root: bool) -> Result<(), GuestError> {
    if !paths.systemd.is_dir() {
        return Err(GuestError::NoSystemd);
    }
    if !is_root {
        return Err(DaemonError::NotRoot.into());
    }
    // A loaded scheduler decides itself where tasks go.
    if let Ok(state) = std::fs::read_to_string(paths.system.sched_ext().join("state")) {
        no_other_scheduler(&paths.system, state.trim())?;
    }
    let own = std::fs::read_to_string(&paths.own_cgroup)
        .map_err(|source| DaemonError::Read { path: paths.own_cgroup.clone(), source })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    match path.split('/').next().filter(|unit| UNITS.contains(unit)) {
        Some(unit) => Err(GuestError::OwnUnit { unit: unit.into() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpusets_need_systemd_no_other_scheduler_and_a_slice_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::under(dir.path());
        let state = paths.system.sched_ext().join("state");
        std::fs::create_dir_all(paths.system.sched_ext()).unwrap();
        std::fs::write(&state, "disabled\n").unwrap();
        assert!(matches!(check_paths(&paths, true), Err(GuestError::NoSystemd)));
        std::fs::create_dir_all(&paths.systemd).unwrap();
        std::fs::create_dir_all(paths.own_cgroup.parent().unwrap()).unwrap();
        std::fs::write(&paths.own_cgroup, "0::/tandem.slice/run-1.service\n").unwrap();
        assert!(matches!(check_paths(&paths, false), Err(GuestError::Daemon(DaemonError::NotRoot))));
        check_paths(&paths, true).unwrap();
        std::fs::write(&paths.own_cgroup, "0::/user.slice/user-0.slice/session-1.scope\n").unwrap();
        let error = check_paths(&paths, true).unwrap_err();
        assert!(matches!(&error, GuestError::OwnUnit { unit } if unit == "user.slice"), "{error}");
        std::fs::write(&state, "enabled\n").unwrap();
        let error = check_paths(&paths, true).unwrap_err();
        assert!(matches!(error, GuestError::Daemon(DaemonError::SchedulerPresent { .. })));
    }
}
