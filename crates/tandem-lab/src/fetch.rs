//! Fetches QEMU, a kernel with sched_ext and the workload programs from Debian's packages into the cache. The machine's
//! own packages are not touched: apt runs with a separate configuration and an empty package database. Only the mirror
//! is taken from the machine's sources.

use crate::{cache, progress, sys, LabError};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Everything comes from this suite. It changes over time, so the fetched versions are recorded.
const SUITE: &str = "sid";
const QEMU: &[&str] = &["qemu-system-x86"];
const PROGRAMS: &[&str] =
    &["rt-tests", "rt-app", "stress-ng", "sysbench", "nginx", "wrk", "redis-server", "redis-tools", "pbzip2"];

/// Everything that the lab boots and runs.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Root of the unpacked QEMU packages.
    pub qemu_root: PathBuf,
    /// Root of the unpacked workload programs.
    pub programs_root: PathBuf,
    /// Kernel of the host, and of the guests that have no other.
    pub kernel: KernelFiles,
    /// Kernels of guests that have another one than the host, by the guest's name.
    pub guest_kernels: BTreeMap<String, KernelFiles>,
    /// Version of QEMU.
    pub qemu_version: String,
}

impl Parts {
    /// Kernel of a guest.
    pub fn kernel_of(&self, vm: &str) -> &KernelFiles {
        self.guest_kernels.get(vm).unwrap_or(&self.kernel)
    }
}

/// A kernel that machines of the lab boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFiles {
    /// Its release, as in `uname -r`.
    pub release: String,
    /// Uncompressed image.
    pub vmlinux: PathBuf,
    /// Folder of its modules, and of its configuration (`config`).
    pub modules: PathBuf,
}

/// Fetches what is not in the cache yet.
///
/// # Errors
/// A package or a tool is missing, or the disk is full.
pub fn parts() -> Result<Parts, LabError> {
    let root = cache::dir()?;
    let done = root.join(cache::DONE);
    if !is_whole(&root) {
        let apt = Apt::new(&root, &[SUITE])?;
        progress::note("lab: fetching package lists");
        apt.run("apt-get", &["-qq", "update"])?;
        apt.unpack("QEMU", QEMU, &root.join("qemu"))?;
        apt.unpack("workload programs", PROGRAMS, &root.join("programs"))?;
        let release = newest_kernel(&apt)?;
        let packages = ["binary", "modules", "base"].map(|part| format!("linux-{part}-{release}"));
        apt.unpack_exactly(&format!("kernel {release}"), &packages, &root.join("kernel"))?;
        extract_vmlinux(&root.join("kernel"), &release, &root.join("vmlinux"))?;
        fs::write(&done, &release).map_err(LabError::io("write", &done))?;
    }
    let release = fs::read_to_string(&done).map_err(LabError::io("read", &done))?.trim().to_string();
    let qemu_root = root.join("qemu");
    Ok(Parts {
        qemu_version: qemu_version(&qemu_root),
        qemu_root,
        programs_root: root.join("programs"),
        kernel: KernelFiles {
            vmlinux: root.join("vmlinux"),
            modules: root.join("kernel/usr/lib/modules").join(&release),
            release,
        },
        guest_kernels: BTreeMap::new(),
    })
}

/// Are all parts in the cache? The mark alone does not prove it: a part may have been removed since.
pub(crate) fn is_whole(root: &Path) -> bool {
    [cache::DONE, "qemu", "programs", "kernel", "vmlinux"].iter().all(|name| root.join(name).exists())
}

/// Command that runs a program of an unpacked root with that root's own loader and libraries.
pub(crate) fn with_own_loader(root: &Path, program: &str) -> Command {
    let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(library_dir(root)).arg(root.join(program));
    command
}

pub(crate) fn library_dir(root: &Path) -> PathBuf {
    root.join("usr/lib/x86_64-linux-gnu")
}

fn qemu_version(root: &Path) -> String {
    let said = with_own_loader(root, "usr/bin/qemu-system-x86_64").arg("--version").output();
    let text = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().nth(3).unwrap_or("unknown").to_string()
}

/// The first Debian mirror in one of the machine's sources, in either format of apt.
fn mirror(text: &str) -> Option<String> {
    // A file of the newer format (deb822) has stanzas; each can be disabled.
    let off =
        |stanza: &str| stanza.lines().any(|line| line.replace(' ', "").eq_ignore_ascii_case("enabled:no"));
    text.split("\n\n")
        .filter(|stanza| !off(stanza))
        .flat_map(str::lines)
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://") && word.trim_end_matches('/').ends_with("/debian"))
        .map(str::to_string)
}

/// The mirror that the machine itself uses.
///
/// # Errors
/// Its sources name none.
pub fn machine_mirror() -> Result<String, LabError> {
    // Like apt, ignore files with other extensions.
    let is_source = |path: &PathBuf| path.extension().is_some_and(|end| end == "list" || end == "sources");
    let listed = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(is_source);
    std::iter::once(PathBuf::from("/etc/apt/sources.list"))
        .chain(listed)
        .find_map(|path| mirror(&fs::read_to_string(path).ok()?))
        .ok_or(LabError::NoMirror)
}

pub(crate) struct Apt {
    config: PathBuf,
    debs: PathBuf,
    manifest: PathBuf,
}

impl Apt {
    /// A separate apt below `cache` that sees these suites.
    pub(crate) fn new(cache: &Path, suites: &[&str]) -> Result<Self, LabError> {
        let root = cache.join("apt");
        for dir in ["lists/partial", "archives/partial", "none", "debs"] {
            cache::create(&root.join(dir))?;
        }
        let keys = ["gpg", "pgp"].map(|end| format!("/usr/share/keyrings/debian-archive-keyring.{end}"));
        let key = keys.iter().find(|path| Path::new(path).exists()).ok_or_else(|| LabError::Fetch {
            what: "package lists".into(),
            reason: format!("{} is missing: install debian-archive-keyring", keys[0]),
        })?;
        let at = root.display();
        let write = |name: &str, text: String| {
            let path = root.join(name);
            fs::write(&path, text).map_err(LabError::io("write", &path)).map(|()| path)
        };
        write("status", String::new())?;
        let mirror = machine_mirror()?;
        let sources: String =
            suites.iter().map(|suite| format!("deb [signed-by={key}] {mirror} {suite} main\n")).collect();
        write("sources.list", sources)?;
        let config = write(
            "apt.conf",
            format!(
                "Dir::State \"{at}\";\nDir::State::status \"{at}/status\";\nDir::State::Lists \"{at}/lists\";\n\
                 Dir::Cache \"{at}\";\nDir::Cache::archives \"{at}/archives\";\nDir::Etc \"{at}\";\n\
                 Dir::Etc::SourceList \"{at}/sources.list\";\nDir::Etc::SourceParts \"{at}/none\";\n\
                 Dir::Etc::Main \"{at}/none\";\nDir::Etc::Parts \"{at}/none\";\n\
                 Dir::Etc::Preferences \"{at}/none/preferences\";\nDir::Etc::PreferencesParts \"{at}/none\";\n\
                 APT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\nAcquire::Languages \"none\";\n\
                 APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\n\
                 // A mirror may lag behind; the signature is still checked.\n\
                 Acquire::Check-Valid-Until \"false\";\n"
            ),
        )?;
        let manifest = cache.join("packages");
        // Left by an interrupted run.
        let _ = fs::remove_file(&manifest);
        Ok(Self { config, debs: root.join("debs"), manifest })
    }

    /// Runs an apt tool and returns its standard output.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, tool: &str, args: &[S]) -> Result<String, LabError> {
        let failed = |reason: String| LabError::Fetch { what: tool.to_string(), reason };
        let output = Command::new(tool)
            .env("APT_CONFIG", &self.config)
            .current_dir(&self.debs)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if sys::termination_requested() {
            return Err(LabError::Interrupted);
        }
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(said.lines().last().unwrap_or("no message").trim().to_string()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Fetches packages with all their dependencies, and unpacks them below `root`.
    fn unpack(&self, what: &str, packages: &[&str], root: &Path) -> Result<(), LabError> {
        let mut args = vec!["install", "-s", "--no-install-recommends"];
        args.extend(packages);
        let plan = self.run("apt-get", &args)?;
        let all: Vec<String> = plan
            .lines()
            .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
            .map(str::to_string)
            .collect();
        self.unpack_exactly(what, &all, root)
    }

    /// Records the fetched versions, since the suite changes over time.
    fn record(&self, what: &str, mut files: Vec<String>) -> Result<(), LabError> {
        files.sort();
        let text: String = files.iter().map(|file| format!("{what}: {file}\n")).collect();
        let open = fs::File::options().append(true).create(true).open(&self.manifest);
        let mut manifest = open.map_err(LabError::io("open", &self.manifest))?;
        manifest.write_all(text.as_bytes()).map_err(LabError::io("write", &self.manifest))
    }

    pub(crate) fn unpack_exactly(
        &self,
        what: &str,
        packages: &[String],
        root: &Path,
    ) -> Result<(), LabError> {
        progress::note(&format!("lab: fetching {what} ({} packages)", packages.len()));
        // Files of an interrupted run must not mix with those of this one.
        let _ = fs::remove_dir_all(root);
        let _ = fs::remove_dir_all(&self.debs);
        cache::create(&self.debs)?;
        cache::create(root)?;
        let mut args = vec!["-qq".to_string(), "download".to_string()];
        args.extend_from_slice(packages);
        self.run("apt-get", &args)?;
        let mut came = Vec::new();
        for entry in fs::read_dir(&self.debs).map_err(LabError::io("read", &self.debs))?.flatten() {
            came.push(entry.file_name().to_string_lossy().into_owned());
            let status = Command::new("dpkg-deb")
                .arg("-x")
                .args([&entry.path(), root])
                .status()
                .map_err(LabError::io("run dpkg-deb on", entry.path()))?;
            if !status.success() {
                return Err(LabError::Fetch {
                    what: what.to_string(),
                    reason: format!(
                        "dpkg-deb could not unpack {} (disk full?)",
                        entry.file_name().to_string_lossy()
                    ),
                });
            }
        }
        let _ = fs::remove_dir_all(&self.debs);
        cache::create(&self.debs)?;
        self.record(what, came)
    }
}

/// Release of the newest cloud kernel whose modules are in a separate package.
fn newest_kernel(apt: &Apt) -> Result<String, LabError> {
    let names = apt.run("apt-cache", &["pkgnames", "linux-binary-"])?;
    names
        .lines()
        .filter_map(|name| name.strip_prefix("linux-binary-"))
        .filter(|release| {
            release.starts_with(|c: char| c.is_ascii_digit()) && release.ends_with("-cloud-amd64")
        })
        .max_by_key(|release| version_key(release))
        .map(str::to_string)
        .ok_or_else(|| LabError::Fetch {
            what: "kernel".into(),
            reason: format!("no cloud kernel in {SUITE}"),
        })
}

/// Numbers of a version, for ordering.
pub(crate) fn version_key(release: &str) -> Vec<u32> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// The ELF image inside of a compressed kernel image (x86 boot protocol: setup sectors, then payload).
pub(crate) fn extract_vmlinux(root: &Path, release: &str, out: &Path) -> Result<(), LabError> {
    let failed = |reason: String| LabError::Fetch { what: format!("vmlinux of {release}"), reason };
    let image = root.join("boot").join(format!("vmlinuz-{release}"));
    let alternative = root.join("usr/lib/modules").join(release).join("vmlinuz");
    let image = if image.exists() { image } else { alternative };
    let bytes = fs::read(&image).map_err(LabError::io("read", &image))?;
    let word = |at: usize| {
        let four: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|slice| slice.try_into().ok());
        four.map(|four| u32::from_le_bytes(four) as usize)
    };
    let setup_sectors = match bytes.get(0x1f1) {
        Some(0) | None => 4,
        Some(&n) => usize::from(n),
    };
    let (offset, length) = word(0x248).zip(word(0x24c)).ok_or_else(|| failed("too short".into()))?;
    let begin = (setup_sectors + 1) * 512 + offset;
    let payload =
        bytes.get(begin..begin + length).ok_or_else(|| failed("payload outside of the file".into()))?;
    let tool = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        _ => return Err(failed("compressed neither by zstd nor by xz".into())),
    };
    let packed = out.with_extension("packed");
    fs::write(&packed, payload).map_err(LabError::io("write", &packed))?;
    let file = fs::File::create(out).map_err(LabError::io("write", out))?;
    let status = Command::new(tool)
        .arg("-dc")
        .arg(&packed)
        .stdout(file)
        .stderr(Stdio::null())
        .status()
        .map_err(LabError::io("run zstd on", &packed))?;
    let _ = fs::remove_file(&packed);
    // The kernel appends four bytes: the unpacked length. Both tools complain about them after they have written
    // everything. The length tells whether the output is complete (the disk may be full).
    let whole = length_of_packed(payload) == fs::metadata(out).ok().map(|meta| meta.len());
    if !whole {
        let _ = fs::remove_file(out);
        return Err(failed(format!("{tool} unpacked only a part of it ({status}; disk full?)")));
    }
    Ok(())
}

/// Unpacked length of a kernel's payload, from its last four bytes.
fn length_of_packed(payload: &[u8]) -> Option<u64> {
    payload.last_chunk::<4>().map(|four| u64::from(u32::from_le_bytes(*four)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_found_in_both_formats() {
        let line = "# comment http://no.example/debian\ndeb http://one.example/debian bookworm main";
        assert_eq!(mirror(line).as_deref(), Some("http://one.example/debian"));
        let deb822 = "Types: deb\nURIs: https://two.example/debian/\nSuites: trixie";
        assert_eq!(mirror(deb822).as_deref(), Some("https://two.example/debian/"));
        assert_eq!(mirror("deb http://one.example/debian-security bookworm main"), None);
        let off = "Enabled: no\nURIs: https://off.example/debian\n\nURIs: https://on.example/debian\n";
        assert_eq!(mirror(off).as_deref(), Some("https://on.example/debian"));
    }

    /// A kernel image around `content`, which claims to be `length` bytes long.
    fn bz_image(dir: &Path, content: &[u8], length: u32) {
        let plain = dir.join("plain");
        fs::write(&plain, content).unwrap();
        let packed = Command::new("xz").args(["--check=crc32", "-c"]).arg(&plain).output().unwrap();
        assert!(packed.status.success());
        let mut image = vec![0u8; 1024];
        image[0x1f1] = 1;
        image[0x24c..0x250].copy_from_slice(&(packed.stdout.len() as u32 + 4).to_le_bytes());
        image.extend_from_slice(&packed.stdout);
        image.extend_from_slice(&length.to_le_bytes());
        fs::create_dir_all(dir.join("boot")).unwrap();
        fs::write(dir.join("boot/vmlinuz-1.2"), image).unwrap();
    }

    #[test]
    fn a_kernel_that_was_not_unpacked_to_its_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (content, out) = (vec![7u8; 100_000], dir.path().join("vmlinux"));
        bz_image(dir.path(), &content, 100_000);
        extract_vmlinux(dir.path(), "1.2", &out).unwrap();
        assert_eq!(fs::read(&out).unwrap(), content);
        bz_image(dir.path(), &content[..60_000], 100_000);
        let error = extract_vmlinux(dir.path(), "1.2", &out).unwrap_err().to_string();
        assert!(error.contains("only a part") && !out.exists(), "{error}");
    }

    #[test]
    fn what_is_missing_is_fetched_again_whatever_the_mark_says() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["qemu", "programs", "kernel"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join(cache::DONE), "7.2").unwrap();
        assert!(!is_whole(dir.path()));
        fs::write(dir.path().join("vmlinux"), "x").unwrap();
        assert!(is_whole(dir.path()));
    }

    #[test]
    fn kernels_are_ordered_by_number() {
        assert!(version_key("7.10.2+deb14-cloud-amd64") > version_key("7.9.13+deb14-cloud-amd64"));
    }
}
