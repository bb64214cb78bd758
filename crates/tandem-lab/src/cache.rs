//! The cache of downloads and images, outside of the source tree.

use crate::LabError;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Prefix of the name of one run's work folder.
const WORK_PREFIX: &str = "run.";

/// File that marks the downloads as complete and names their kernel release. Numbered, since the set of downloads
/// changes.
pub(crate) const DONE: &str = "parts-2.done";

/// Everything that the lab puts into its folder. Nothing else is ever removed: the user chooses the folder.
const ENTRIES: [&str; 12] = [
    "apt",
    "kernels",
    "peers",
    "qemu",
    "programs",
    "kernel",
    "vmlinux",
    "vmlinux.packed",
    DONE,
    // The complete-mark of older versions.
    "parts.done",
    "packages",
    "accel",
];

/// Folder of downloads and images.
///
/// `$TANDEM_CACHE`, else `$XDG_CACHE_HOME/tandem`, else `~/.cache/tandem`.
///
/// # Errors
/// The folder cannot be created.
pub fn dir() -> Result<PathBuf, LabError> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = from("TANDEM_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|base| base.join("tandem")))
        .or_else(|| from("HOME").map(|home| home.join(".cache/tandem")))
        .unwrap_or_else(|| PathBuf::from("/var/cache/tandem"));
    create(&dir)?;
    Ok(dir)
}

/// Creates a folder and its parents.
pub(crate) fn create(dir: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(dir).map_err(LabError::io("create", dir))
}

/// A folder for one run, removed at its end. Removes the folders of killed runs first; the caller holds the
/// machine's lock, so no other run is under way.
pub(crate) fn work_dir() -> Result<TempDir, LabError> {
    let dir = dir()?;
    for left_over in entries(&dir)?.filter(|path| name_of(path).starts_with(WORK_PREFIX)) {
        // If it cannot be removed, it only wastes disk space.
        let _ = std::fs::remove_dir_all(left_over);
    }
    tempfile::Builder::new()
        .prefix(WORK_PREFIX)
        .tempdir_in(&dir)
        .map_err(LabError::io("create a folder in", dir))
}

/// Removes everything the lab has downloaded and built, and the folder if nothing else is in it.
///
/// # Errors
/// Something cannot be removed.
pub fn clean() -> Result<PathBuf, LabError> {
    let dir = dir()?;
    clean_at(&dir)?;
    Ok(dir)
}

fn clean_at(dir: &Path) -> Result<(), LabError> {
    for path in entries(dir)?.filter(|path| is_ours(&name_of(path))) {
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(LabError::io("remove", path))?;
    }
    match std::fs::remove_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::DirectoryNotEmpty => {
            Err(LabError::io("remove", dir)(error))
        }
        _ => Ok(()),
    }
}

fn is_ours(name: &str) -> bool {
    let image = (name.starts_with("guest-") || name.starts_with("host-"))
        && (name.ends_with(".cpio") || name.ends_with(".partial"));
    ENTRIES.contains(&name) || name.starts_with("accel-") || name.starts_with(WORK_PREFIX) || image
}

fn entries(dir: &Path) -> Result<impl Iterator<Item = PathBuf>, LabError> {
    let listed = std::fs::read_dir(dir).map_err(LabError::io("read", dir))?;
    Ok(listed.flatten().map(|entry| entry.path()))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        std::fs::create_dir_all(cache.join("qemu/usr")).unwrap();
        for name in ["vmlinux", DONE, "parts.done", "guest-7.2-1.cpio", "host-notes.txt", "thesis.tex"] {
            std::fs::write(cache.join(name), "x").unwrap();
        }
        clean_at(&cache).unwrap();
        let mut left: Vec<_> = entries(&cache).unwrap().map(|path| name_of(&path)).collect();
        left.sort();
        assert_eq!(left, ["host-notes.txt", "thesis.tex"]);
        for name in left {
            std::fs::remove_file(cache.join(name)).unwrap();
        }
        clean_at(&cache).unwrap();
        assert!(!cache.exists());
    }
}
