//! Where downloads and images are kept, outside of the source tree.

use crate::LabError;
use std::path::{Path, PathBuf};

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

/// Removes everything the lab has downloaded and built.
///
/// # Errors
/// The folder cannot be removed.
pub fn clean() -> Result<PathBuf, LabError> {
    let dir = dir()?;
    std::fs::remove_dir_all(&dir).map_err(LabError::io("remove", &dir))?;
    Ok(dir)
}
