//! Kernels other than the newest: one of each series that Debian's suites offer at this moment. Of each only the image,
//! the configuration and the modules that the lab needs are kept. Some suites offer an image and no modules: it boots as a
//! machine without guests.

use crate::fetch::{extract_vmlinux, version_key, Apt, KernelFiles};
use crate::{cache, image, progress, LabError};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

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
    /// Packages with its image, its modules and its configuration, as far as they are offered: of late each has its own.
    fn packages(&self, apt: &Apt) -> Result<Vec<String>, LabError> {
        let mut packages = vec![self.package.clone()];
        for part in ["modules", "base"] {
            let name = format!("linux-{part}-{}", self.release);
            let offered = apt.run("apt-cache", &["pkgnames", &name])?.lines().any(|line| line == name);
            packages.extend(offered.then_some(name));
        }
        Ok(packages)
    }

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

/// Fetches the newest kernel whose release begins with `prefix`.
///
/// # Errors
/// There is none, or it cannot be fetched.
pub fn fetch(prefix: &str) -> Result<KernelFiles, LabError> {
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
    let files = files_at(&folder, &kernel.release);
    let apt = apt()?;
    let packages = kernel.packages(&apt)?;
    apt.unpack_exactly(&format!("kernel {}", kernel.release), &packages, &unpacked)?;
    keep_modules(&unpacked, &files)?;
    // Last, and at once: it tells that all is there.
    let partial = folder.join("extracted");
    extract_vmlinux(&unpacked, &kernel.release, &partial)?;
    fs::rename(&partial, &files.vmlinux).map_err(LabError::io("write", &files.vmlinux))?;
    let _ = fs::remove_dir_all(&unpacked);
    Ok(files)
}

fn files_at(folder: &Path, release: &str) -> KernelFiles {
    KernelFiles {
        release: release.into(),
        vmlinux: folder.join(format!("vmlinux-{release}")),
        modules: folder.join(format!("modules-{release}")),
    }
}

/// Copies what the lab needs of an unpacked kernel's modules, and its configuration, as far as they are there. A module that is not
/// may be built in.
fn keep_modules(unpacked: &Path, files: &KernelFiles) -> Result<(), LabError> {
    let all = ["usr/lib/modules", "lib/modules"].map(|dir| unpacked.join(dir).join(&files.release));
    let boot = unpacked.join("boot").join(format!("config-{}", files.release));
    let config = all.iter().map(|dir| dir.join("config")).chain([boot]).find(|path| path.exists());
    let modules = image::needed_modules()
        .filter_map(|name| all.iter().find_map(|dir| image::find_module(dir, name)))
        .map(|path| (path.file_name().map(ToOwned::to_owned).unwrap_or_default(), path));
    cache::create(&files.modules)?;
    for (name, from) in modules.chain(config.map(|path| ("config".into(), path))) {
        fs::copy(&from, files.modules.join(name)).map_err(LabError::io("copy", &from))?;
    }
    Ok(())
}

/// A kernel that was fetched before.
fn cached(folder: &Path, prefix: &str) -> Option<KernelFiles> {
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
            (release.ends_with(FLAVOUR) && matches(&release)).then(|| files_at(folder, &release))
        })
        // Those of older versions have no modules.
        .filter(|files| files.modules.is_dir())
        .max_by_key(|files| version_key(&files.release))
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
            assert!(
                cached(dir.path(), "7.2").is_none_or(|known| known.release != release),
                "without modules"
            );
            let modules = dir.path().join(format!("modules-{release}"));
            fs::create_dir(&modules).unwrap();
        }
        assert_eq!(cached(dir.path(), "7.2").unwrap().release, "7.2.13+deb14-cloud-amd64");
        assert!(cached(dir.path(), "7.3").is_none());
    }
}
