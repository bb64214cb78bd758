//! Kernels other than the newest: one of each series that Debian's suites offer at this moment. They boot as hosts
//! without guests, so that only the kernel image is needed.

use crate::fetch::{extract_vmlinux, version_key, Apt};
use crate::{cache, progress, LabError};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Suites that carry kernels of different ages.
const SUITES: &[&str] =
    &["bookworm", "bookworm-backports", "trixie", "trixie-backports", "forky", "sid", "experimental"];
/// The first series with sched_ext.
const OLDEST: [u32; 2] = [6, 12];
/// Name prefixes of packages with a bootable cloud kernel, signed ones first.
const PREFIXES: &[&str] =
    &["linux-binary-", "linux-image-", "linux-binary-unsigned-", "linux-image-unsigned-"];
const FLAVOUR: &str = "-cloud-amd64";

/// A kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its release, as in `uname -r`.
    pub release: String,
    /// Package that carries it.
    pub package: String,
}

impl Kernel {
    /// Major and minor number.
    pub fn series(&self) -> String {
        let key = version_key(&self.release);
        key.iter().take(2).map(u32::to_string).collect::<Vec<_>>().join(".")
    }
}

fn apt() -> Result<Apt, LabError> {
    let root = cache::dir()?.join("kernels");
    cache::create(&root)?;
    Apt::new(&root, SUITES)
}

/// The newest kernel of each series from 6.12 on, oldest first.
///
/// # Errors
/// No package list is available.
pub fn list() -> Result<Vec<Kernel>, LabError> {
    let apt = apt()?;
    progress::note("lab: fetching package lists of all suites");
    // A suite that the mirror does not carry is no failure. If there is no suite at all, the list below is empty.
    let failure = apt.run("apt-get", &["-qq", "update"]).err();
    let mut names = Vec::new();
    for prefix in PREFIXES {
        names.extend(apt.run("apt-cache", &["pkgnames", prefix])?.lines().map(str::to_string));
    }
    let found = choose(&names);
    match failure {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

fn choose(names: &[String]) -> Vec<Kernel> {
    let mut newest: BTreeMap<Vec<u32>, Kernel> = BTreeMap::new();
    // The order of PREFIXES decides between packages of one release.
    for prefix in PREFIXES {
        for package in names {
            let Some(release) = package.strip_prefix(prefix) else { continue };
            if !release.starts_with(|c: char| c.is_ascii_digit()) || !release.ends_with(FLAVOUR) {
                continue;
            }
            let key = version_key(release);
            let series: Vec<u32> = key.iter().take(2).copied().collect();
            if series.as_slice() < OLDEST.as_slice() {
                continue;
            }
            let better =
                newest.get(&series).is_none_or(|known| version_key(&known.release) < version_key(release));
            if better {
                let kernel = Kernel { release: release.into(), package: package.clone() };
                newest.insert(series, kernel);
            }
        }
    }
    newest.into_values().collect()
}

/// Fetches the newest kernel whose release begins with `prefix`; returns it and its image.
///
/// # Errors
/// There is none, or it cannot be fetched.
pub fn fetch(prefix: &str) -> Result<(String, PathBuf), LabError> {
    let folder = cache::dir()?.join("kernels");
    if let Some(known) = cached(&folder, prefix) {
        return Ok(known);
    }
    let offered = list()?;
    let kernel = offered.iter().find(|kernel| kernel.series() == prefix || kernel.release == prefix);
    let kernel = kernel.ok_or_else(|| LabError::Fetch {
        what: format!("kernel {prefix}"),
        reason: format!(
            "not offered; there are {}",
            offered.iter().map(Kernel::series).collect::<Vec<_>>().join(", ")
        ),
    })?;
    let unpacked = folder.join("unpacked");
    let packages = [kernel.package.clone()];
    apt()?.unpack_exactly(&format!("kernel {}", kernel.release), &packages, &unpacked)?;
    let image = folder.join(format!("vmlinux-{}", kernel.release));
    extract_vmlinux(&unpacked, &kernel.release, &image)?;
    let _ = fs::remove_dir_all(&unpacked);
    Ok((kernel.release.clone(), image))
}

/// A kernel that was fetched before.
fn cached(folder: &Path, prefix: &str) -> Option<(String, PathBuf)> {
    let matches = |release: &str| {
        release == prefix
            || release
                .strip_prefix(prefix)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    fs::read_dir(folder)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let release = entry.file_name().to_string_lossy().strip_prefix("vmlinux-")?.to_string();
            (release.ends_with(FLAVOUR) && matches(&release)).then(|| (release, entry.path()))
        })
        .max_by_key(|(release, _)| version_key(release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kernel_of_each_series_is_chosen() {
        let names = [
            "linux-image-6.1.0-30-cloud-amd64",
            "linux-image-6.16.3+deb13-cloud-amd64",
            "linux-image-6.16.12+deb13-cloud-amd64",
            "linux-image-6.16.12+deb13-cloud-amd64-dbg",
            "linux-image-unsigned-6.16.12+deb13-cloud-amd64",
            "linux-image-6.16.12+deb13-amd64",
            "linux-binary-7.2.13+deb14-cloud-amd64",
            "linux-image-7.2.13+deb14-cloud-amd64",
            "linux-image-cloud-amd64",
        ]
        .map(str::to_string);
        let chosen = choose(&names);
        let packages: Vec<&str> = chosen.iter().map(|kernel| kernel.package.as_str()).collect();
        assert_eq!(
            packages,
            ["linux-image-6.16.12+deb13-cloud-amd64", "linux-binary-7.2.13+deb14-cloud-amd64"]
        );
        assert_eq!(chosen[0].series(), "6.16");
    }

    #[test]
    fn a_series_is_no_prefix_of_another() {
        let dir = tempfile::tempdir().unwrap();
        for release in ["7.2.13+deb14-cloud-amd64", "7.20.1-cloud-amd64"] {
            fs::write(dir.path().join(format!("vmlinux-{release}")), "x").unwrap();
        }
        let (release, _) = cached(dir.path(), "7.2").unwrap();
        assert_eq!(release, "7.2.13+deb14-cloud-amd64");
        assert!(cached(dir.path(), "7.3").is_none());
    }
}
