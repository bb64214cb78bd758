//! Checks before anything is loaded. Each finding is one sentence that says what to do.

use crate::DaemonError;
use std::path::{Path, PathBuf};

/// Where the kernel shows what is checked. Tests use another root.
#[derive(Debug, Clone)]
pub struct SystemPaths {
    sched_ext: PathBuf,
    btf: PathBuf,
    cgroup: PathBuf,
    cmdline: PathBuf,
    lockdown: PathBuf,
}

impl Default for SystemPaths {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl SystemPaths {
    /// The usual places below another root.
    pub fn under(root: &Path) -> Self {
        Self {
            sched_ext: root.join("sys/kernel/sched_ext"),
            btf: root.join("sys/kernel/btf/vmlinux"),
            cgroup: root.join("sys/fs/cgroup"),
            cmdline: root.join("proc/cmdline"),
            lockdown: root.join("sys/kernel/security/lockdown"),
        }
    }

    /// The kernel's sched_ext directory.
    pub fn sched_ext(&self) -> &Path {
        &self.sched_ext
    }

    /// The kernel's type information.
    pub fn btf(&self) -> &Path {
        &self.btf
    }

    /// The root of the cgroups.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// The kernel's command line; empty where it cannot be read.
    pub fn cmdline(&self) -> String {
        std::fs::read_to_string(&self.cmdline).unwrap_or_default()
    }

    /// Does lockdown forbid reading kernel memory, to BPF programs as well? (`none [integrity] confidentiality`)
    pub fn is_locked_down(&self) -> bool {
        std::fs::read_to_string(&self.lockdown).is_ok_and(|text| text.contains("[confidentiality]"))
    }
}

/// Cgroup settings that the running kernel reports to a scheduler. It always reports weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupSupport {
    /// cpu.max (6.17 and later).
    pub quota: bool,
    /// cpu.idle (6.19 and later).
    pub idle: bool,
}

impl CgroupSupport {
    /// Of the running kernel, by the callbacks that it has.
    pub fn of_kernel() -> Self {
        let has = |field| scx_utils::compat::struct_has_field("sched_ext_ops", field).unwrap_or(false);
        Self { quota: has("cgroup_set_bandwidth"), idle: has("cgroup_set_idle") }
    }
}

/// Depth to which the cgroup tree is searched. No cgroup is deeper: its path would be longer than PATH_MAX.
const MAX_CGROUP_DEPTH: usize = 2048;

/// Can the scheduler be loaded on this machine, and would it honour what is configured?
///
/// # Errors
/// The first obstacle found, with its remedy.
pub fn check(
    paths: &SystemPaths,
    is_root: bool,
    support: impl FnOnce() -> CgroupSupport,
    ignore_cgroups: bool,
) -> Result<(), DaemonError> {
    if !paths.sched_ext.is_dir() {
        return Err(DaemonError::NoSchedExt);
    }
    if !paths.btf.exists() {
        return Err(DaemonError::NoBtf);
    }
    if paths.is_locked_down() {
        return Err(DaemonError::LockedDown);
    }
    if !is_root {
        return Err(DaemonError::NotRoot);
    }
    no_other_scheduler(paths, &read_trimmed(&paths.sched_ext.join("state"))?)?;
    if ignore_cgroups {
        return Ok(());
    }
    let support = support();
    if support.quota && support.idle {
        return Ok(());
    }
    check_cgroups(&paths.cgroup, support, 0)
}

/// Only one scheduler can be loaded; `state` is what the kernel says in `sched_ext/state`.
///
/// # Errors
/// Another one is loaded; its name.
pub fn no_other_scheduler(paths: &SystemPaths, state: &str) -> Result<(), DaemonError> {
    if state == "disabled" {
        return Ok(());
    }
    let name = read_trimmed(&paths.sched_ext.join("root/ops")).unwrap_or_else(|_| "unknown".into());
    Err(DaemonError::SchedulerPresent { name })
}

fn read_trimmed(path: &Path) -> Result<String, DaemonError> {
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_string())
        .map_err(|source| DaemonError::Read { path: path.to_path_buf(), source })
}

/// For a setting that the kernel would not report: the value at which it does nothing.
fn neutral_value(file: &str, value: &str, support: CgroupSupport) -> Option<&'static str> {
    match file {
        "cpu.max" if !support.quota && !value.starts_with("max") => Some("max"),
        "cpu.idle" if !support.idle && value != "0" => Some("0"),
        _ => None,
    }
}

fn check_cgroups(dir: &Path, support: CgroupSupport, depth: usize) -> Result<(), DaemonError> {
    for file in ["cpu.max", "cpu.idle"] {
        let path = dir.join(file);
        // The file is absent at the root and where the controller is off; it is gone when the group has
        // just been removed.
        let Ok(value) = read_trimmed(&path) else { continue };
        if let Some(neutral) = neutral_value(file, &value, support) {
            return Err(DaemonError::CgroupKnob { path, value, neutral });
        }
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        if depth < MAX_CGROUP_DEPTH && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            check_cgroups(&entry.path(), support, depth + 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CgroupSupport = CgroupSupport { quota: true, idle: true };

    fn machine() -> (tempfile::TempDir, SystemPaths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = SystemPaths::under(dir.path());
        std::fs::create_dir_all(&paths.sched_ext).unwrap();
        std::fs::write(paths.sched_ext.join("state"), "disabled\n").unwrap();
        std::fs::create_dir_all(paths.btf.parent().unwrap()).unwrap();
        std::fs::write(&paths.btf, "").unwrap();
        std::fs::create_dir_all(paths.cgroup.join("system.slice/a.service")).unwrap();
        (dir, paths)
    }

    #[test]
    fn a_plain_machine_passes() {
        let (_dir, paths) = machine();
        std::fs::write(paths.cgroup.join("system.slice/cpu.weight"), "100\n").unwrap();
        std::fs::write(paths.cgroup.join("system.slice/cpu.max"), "max 100000\n").unwrap();
        check(&paths, true, || ALL, false).unwrap();
    }

    #[test]
    fn each_obstacle_is_named() {
        let (_dir, paths) = machine();
        assert!(matches!(check(&paths, false, || ALL, false), Err(DaemonError::NotRoot)));
        std::fs::write(paths.sched_ext.join("state"), "enabled\n").unwrap();
        std::fs::create_dir_all(paths.sched_ext.join("root")).unwrap();
        std::fs::write(paths.sched_ext.join("root/ops"), "other\n").unwrap();
        assert!(
            matches!(check(&paths, true, || ALL, false), Err(DaemonError::SchedulerPresent { name }) if name == "other")
        );
        std::fs::remove_file(&paths.btf).unwrap();
        assert!(matches!(check(&paths, true, || ALL, false), Err(DaemonError::NoBtf)));
        std::fs::remove_dir_all(&paths.sched_ext).unwrap();
        assert!(matches!(check(&paths, true, || ALL, false), Err(DaemonError::NoSchedExt)));
    }

    #[test]
    fn a_knob_that_the_kernel_does_not_report_is_refused_only_where_it_is_in_use() {
        let (_dir, paths) = machine();
        let old = CgroupSupport { quota: false, idle: false };
        check(&paths, true, || old, false).unwrap();
        let knob = paths.cgroup.join("system.slice/a.service/cpu.max");
        std::fs::write(&knob, "50000 100000\n").unwrap();
        check(&paths, true, || ALL, false).unwrap();
        let error = check(&paths, true, || old, false).unwrap_err();
        assert!(matches!(&error, DaemonError::CgroupKnob { path, .. } if *path == knob), "{error}");
        assert!(error.to_string().contains("50000 100000"));
        check(&paths, true, || old, true).unwrap();
        std::fs::remove_file(&knob).unwrap();
        let deep = (0..40).fold(paths.cgroup.clone(), |dir, _| dir.join("d"));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("cpu.max"), "50000 100000\n").unwrap();
        let error = check(&paths, true, || old, false).unwrap_err();
        assert!(
            matches!(&error, DaemonError::CgroupKnob { path, .. } if *path == deep.join("cpu.max")),
            "{error}"
        );
        std::fs::remove_file(deep.join("cpu.max")).unwrap();
        let knob = paths.cgroup.join("system.slice/a.service/cpu.idle");
        std::fs::write(&knob, "1\n").unwrap();
        let no_idle = CgroupSupport { quota: true, idle: false };
        let error = check(&paths, true, || no_idle, false).unwrap_err();
        assert!(matches!(&error, DaemonError::CgroupKnob { path, .. } if *path == knob), "{error}");
    }
}
