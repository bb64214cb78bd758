//! Latency hints: names and cgroups of tasks that the user marks as latency-sensitive, checked before
//! anything is loaded.

use crate::bpf::intf::{MAX_HINTS, TASK_NAME_LEN};
use crate::{GuestError, GuestOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};
use tandem_daemon::preflight::SystemPaths;

/// A task's name as the scheduler compares it: padded with zeros.
type NameKey = [u8; TASK_NAME_LEN as usize];

/// Names and cgroups as the scheduler looks them up.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    names: Vec<NameKey>,
    groups: Vec<u64>,
}

impl Hints {
    /// # Errors
    /// The first name that no task can have, or the first cgroup that does not exist or has no weight.
    pub(crate) fn new(options: &GuestOptions, paths: &SystemPaths) -> Result<Self, GuestError> {
        let (names, groups) = (&options.latency_names, &options.latency_groups);
        if names.len().max(groups.len()) > MAX_HINTS as usize {
            return Err(GuestError::Hints(format!("more than {MAX_HINTS} names, or cgroups")));
        }
        Ok(Self {
            names: names
                .iter()
                .map(|name| key_of(name).map_err(GuestError::Hints))
                .collect::<Result<_, _>>()?,
            groups: groups.iter().map(|group| id_of(paths.cgroup(), group)).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.groups.is_empty()
    }

    pub(crate) fn names(&self) -> &[NameKey] {
        &self.names
    }

    pub(crate) fn groups(&self) -> &[u64] {
        &self.groups
    }
}

/// A task's name, as /proc/PID/comm shows it.
///
/// # Errors
/// Why no task can have that name, and what would be right.
pub fn task_name(text: &str) -> Result<String, String> {
    key_of(text).map(|_| text.to_string())
}

fn key_of(name: &str) -> Result<NameKey, String> {
    let longest = TASK_NAME_LEN as usize - 1;
    let mut key = NameKey::default();
    if name.is_empty() || name.len() > longest || name.contains('\0') {
        return Err(format!(
            "{name:?} is no task's name: expected 1 to {longest} bytes, as /proc/PID/comm shows them"
        ));
    }
    key[..name.len()].copy_from_slice(name.as_bytes());
    Ok(key)
}

/// The id of a cgroup, whose path is given below the mount point or including it.
fn id_of(mount: &Path, group: &Path) -> Result<u64, GuestError> {
    let inside = group.strip_prefix(mount).or_else(|_| group.strip_prefix("/")).unwrap_or(group);
    let path = mount.join(inside);
    let wrong = |reason: String| GuestError::Hints(format!("cgroup {}: {reason}", path.display()));
    if inside.components().any(|part| !matches!(part, Component::Normal(_))) || inside.as_os_str().is_empty()
    {
        return Err(wrong("expected the path of a cgroup below the root's".into()));
    }
    let found = std::fs::metadata(&path).map_err(|error| wrong(format!("{error}; it must exist already")))?;
    if !path.join("cpu.weight").exists() {
        return Err(wrong("has no cpu controller: write +cpu to the cgroup.subtree_control above it".into()));
    }
    Ok(found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    fn hints(names: &[&str], groups: &[&str], root: &Path) -> Result<Hints, GuestError> {
        let options = GuestOptions {
            latency_names: names.iter().map(ToString::to_string).collect(),
            latency_groups: groups.iter().map(PathBuf::from).collect(),
            ..GuestOptions::default()
        };
        Hints::new(&options, &SystemPaths::under(root))
    }

    #[test]
    fn cgroups_are_found_with_and_without_the_mount_point() {
        let root = tempfile::tempdir().unwrap();
        let mount = root.path().join("sys/fs/cgroup");
        let web = mount.join("system.slice/web.service");
        std::fs::create_dir_all(&web).unwrap();
        std::fs::write(web.join("cpu.weight"), "100\n").unwrap();
        let id = std::fs::metadata(&web).unwrap().ino();
        let whole = web.to_str().unwrap();
        let found =
            hints(&[], &["system.slice/web.service", "/system.slice/web.service", whole], root.path())
                .unwrap();
        assert_eq!(found.groups(), [id; 3]);
        for (wrong, reason) in [
            ("system.slice/none", "must exist"),
            ("system.slice", "no cpu controller"),
            ("../etc", "below the root's"),
            ("/", "below the root's"),
        ] {
            let error = hints(&[], &[wrong], root.path()).unwrap_err().to_string();
            assert!(error.contains(reason), "{wrong}: {error}");
        }
    }

    #[test]
    fn no_hints_are_none_and_too_many_are_refused() {
        let root = Path::new("/");
        assert!(hints(&[], &[], root).unwrap().is_empty());
        assert!(hints(&vec!["web"; 65], &[], root).is_err());
        assert_eq!(hints(&["web"], &[], root).unwrap().names(), [*b"web\0\0\0\0\0\0\0\0\0\0\0\0\0"]);
    }

    proptest! {
        #[test]
        fn a_name_is_taken_if_a_task_can_have_it(name in ".{0,20}") {
            let possible = (1..16).contains(&name.len()) && !name.contains('\0');
            prop_assert_eq!(task_name(&name).is_ok(), possible);
        }
    }
}
