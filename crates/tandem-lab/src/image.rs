//! Builds the initial RAM disks. Base images (programs, emulator) are kept in the cache. A kernel's modules and our own
//! binaries are in small archives that are appended at every boot: any machine can have any kernel, and rebuilding the
//! binaries does not rebuild the base images.

use crate::cpio::Archive;
use crate::fetch::{library_dir, KernelFiles, Parts};
use crate::{cache, progress, LabError};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Raised whenever the content of base images changes.
const LAYOUT: u32 = 5;
const BUSYBOX: &str = "/usr/bin/busybox";
/// Commands that scripts of experiments may use.
const APPLETS: &str = "[ awk basename cat chmod chrt cmp cp cut date dd dirname dmesg echo env expr false find free \
    grep head id ifconfig insmod kill killall ln ls lsmod mkdir mkfifo mount mv nice nproc pgrep pidof ping pkill ps pwd readlink \
    renice rm rmmod sed seq setsid sh sleep sort stat sync tail taskset tee test time timeout top touch tr true umount \
    uname uniq uptime usleep wc which xargs";
const PROGRAMS: &[&str] = &[
    "usr/bin/hackbench",
    "usr/bin/cyclictest",
    "usr/bin/rt-app",
    "usr/bin/stress-ng",
    "usr/bin/sysbench",
    "usr/sbin/nginx",
    "usr/bin/wrk",
    "usr/bin/redis-server",
    "usr/bin/redis-benchmark",
    "usr/bin/redis-cli",
    "usr/bin/pbzip2",
];
/// Clients of guests, on the host.
const CLIENTS: &[&str] = &["usr/bin/wrk", "usr/bin/redis-benchmark"];
/// The build of QEMU with all devices, for guests on vsock, or with devices on PCI.
const FULL_QEMU: &str = "usr/bin/qemu-system-x86_64";
/// The smallest build of QEMU that can run a guest of the lab.
const HOST_QEMU: &str = "usr/bin/qemu-system-x86_64-microvm";
const HOST_MODULES: &[&str] = &[
    "irqbypass",
    "kvm",
    "kvm-amd",
    "kvm-intel",
    "tun",
    "tap",
    "vhost_iotlb",
    "vhost",
    "vhost_net",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vhost_vsock",
];
const GUEST_MODULES: &[&str] = &[
    "virtio_mmio",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
];
const FIRMWARE: &[&str] =
    &["qboot.rom", "bios-microvm.bin", "bios-256k.bin", "kvmvapic.bin", "linuxboot_dma.bin", "pvh.bin"];

/// Our own binaries.
pub const OWN: &[&str] = &["tandem", "tandem-kit", "tandem-agent"];

/// Base images.
#[derive(Debug, Clone)]
pub struct Images {
    /// Image of guests, and of hosts that run workloads themselves.
    pub guest: PathBuf,
    /// Image of hosts with guests.
    pub host: PathBuf,
}

/// Builds the base images that are not in the cache yet.
pub fn base_images(parts: &Parts) -> Result<Images, LabError> {
    let dir = cache::dir()?;
    // All parts are fetched at the same time: the kernel's release tells their age.
    let name = |kind: &str| dir.join(format!("{kind}-{}-{LAYOUT}.cpio", parts.kernel.release));
    let images = Images { guest: name("guest"), host: name("host") };
    if !images.guest.exists() {
        progress::note("lab: building the guest image");
        build(&images.guest, |archive| {
            common(archive)?;
            programs(archive, parts, PROGRAMS)
        })?;
    }
    if !images.host.exists() {
        progress::note("lab: building the host image");
        build(&images.host, |archive| {
            common(archive)?;
            programs(archive, parts, CLIENTS)?;
            // Last: where both have a library, the emulator needs its own.
            with_libraries(archive, &parts.qemu_root, HOST_QEMU, "bin/qemu")?;
            for firmware in FIRMWARE {
                let found = ["usr/share/qemu", "usr/share/seabios"]
                    .iter()
                    .map(|dir| parts.qemu_root.join(dir).join(firmware))
                    .find(|path| path.exists());
                if let Some(path) = found {
                    add(archive, &path, &format!("usr/share/qemu/{firmware}"), false)?;
                }
            }
            Ok(())
        })?;
    }
    Ok(images)
}

/// Writes the archive of the emulator with all devices, in the place of the smallest one.
pub fn full_emulator(out: &Path, parts: &Parts) -> Result<(), LabError> {
    build(out, |archive| with_libraries(archive, &parts.qemu_root, FULL_QEMU, "bin/qemu"))
}

/// Writes the archive of what a machine needs of its kernel: modules of a host with guests, or of a guest.
pub fn kernel(out: &Path, kernel: &KernelFiles, has_guests: bool) -> Result<(), LabError> {
    build(out, |archive| {
        // BPF programs' loaders read the kernel's configuration here. Not every kernel comes with it.
        let config = kernel.modules.join("config");
        if config.exists() {
            add(archive, &config, &format!("boot/config-{}", kernel.release), false)?;
        }
        modules(archive, kernel, if has_guests { HOST_MODULES } else { GUEST_MODULES })
    })
}

/// All modules that any machine of the lab needs.
pub(crate) fn needed_modules() -> impl Iterator<Item = &'static str> {
    HOST_MODULES.iter().chain(GUEST_MODULES).copied()
}

/// Writes the archive of our own binaries, and of the other schedulers that are `wanted`: a small guest has no room
/// for more.
pub fn overlay(out: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), LabError> {
    let dir = binary_dir();
    build(out, |archive| {
        for name in OWN {
            let path = dir.join(name);
            if !path.exists() {
                return Err(LabError::NoBinary { path });
            }
            add(archive, &path, &format!("usr/bin/{name}"), true)?;
        }
        for path in peers()?.into_iter().filter(|path| wanted(base_name(&path.to_string_lossy()))) {
            add(archive, &path, &format!("usr/bin/{}", base_name(&path.to_string_lossy())), true)?;
        }
        symlink(archive, "init", "usr/bin/tandem-agent")
    })
}

/// Other schedulers to compare with, static binaries named scx_*. They exist only after `make bench`.
fn peers() -> Result<Vec<PathBuf>, LabError> {
    let dir = cache::dir()?.join("peers/bin");
    let is_peer = |path: &PathBuf| base_name(&path.to_string_lossy()).starts_with("scx_");
    let mut peers: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_peer).collect();
    peers.sort();
    Ok(peers)
}

/// Concatenates archives: the kernel unpacks all of them.
pub fn concatenate(out: &Path, inputs: &[&Path]) -> Result<(), LabError> {
    let mut file = File::create(out).map_err(LabError::io("write", out))?;
    for input in inputs {
        let mut part = File::open(input).map_err(LabError::io("read", *input))?;
        std::io::copy(&mut part, &mut file).map_err(LabError::io("write", out))?;
    }
    Ok(())
}

/// An archive with these files, under these names.
pub fn of_files(out: &Path, files: &[(PathBuf, String)]) -> Result<(), LabError> {
    build(out, |archive| files.iter().try_for_each(|(file, name)| add(archive, file, name, false)))
}

/// Where our own binaries are: `$TANDEM_BIN_DIR`, else beside the running program.
pub(crate) fn binary_dir() -> PathBuf {
    std::env::var_os("TANDEM_BIN_DIR").map(PathBuf::from).unwrap_or_else(|| {
        let own = std::env::current_exe().unwrap_or_default();
        own.parent().map(Path::to_path_buf).unwrap_or_default()
    })
}

type Out = Archive<BufWriter<File>>;

fn build(out: &Path, fill: impl FnOnce(&mut Out) -> Result<(), LabError>) -> Result<(), LabError> {
    let partial = out.with_extension("partial");
    let file = File::create(&partial).map_err(LabError::io("write", &partial))?;
    let mut archive = Archive::new(BufWriter::new(file));
    fill(&mut archive)?;
    archive.finish().and_then(|mut writer| writer.flush()).map_err(LabError::io("write", &partial))?;
    fs::rename(&partial, out).map_err(LabError::io("write", out))
}

fn add(archive: &mut Out, source: &Path, name: &str, executable: bool) -> Result<(), LabError> {
    let content = fs::read(source).map_err(LabError::io("read", source))?;
    archive.file(name, &content, executable).map_err(LabError::io("write an image entry for", source))
}

fn symlink(archive: &mut Out, name: &str, target: &str) -> Result<(), LabError> {
    archive.symlink(name, target).map_err(LabError::io("write an image entry for", name))
}

fn common(archive: &mut Out) -> Result<(), LabError> {
    for dir in ["dev", "proc", "sys", "tmp", "run", "root", "var/log/nginx", "var/lib/nginx"] {
        archive.directory(dir).map_err(LabError::io("write an image entry for", dir))?;
    }
    add(archive, Path::new(BUSYBOX), "bin/busybox", true)?;
    for applet in APPLETS.split_whitespace() {
        symlink(archive, &format!("bin/{applet}"), "busybox")?;
    }
    for (file, text) in [
        ("etc/passwd", "root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/false\n"),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
        ("etc/hosts", "127.0.0.1 localhost\n"),
    ] {
        archive.file(file, text.as_bytes(), false).map_err(LabError::io("write an image entry for", file))?;
    }
    Ok(())
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Adds workload programs.
fn programs(archive: &mut Out, parts: &Parts, names: &[&str]) -> Result<(), LabError> {
    names.iter().try_for_each(|program| {
        let name = format!("usr/bin/{}", base_name(program));
        with_libraries(archive, &parts.programs_root, program, &name)
    })
}

/// Adds a program with its loader and the shared libraries that its own loader finds.
fn with_libraries(archive: &mut Out, root: &Path, program: &str, name: &str) -> Result<(), LabError> {
    let path = root.join(program);
    add(archive, &path, name, true)?;
    let loader = root.join("usr/lib64/ld-linux-x86-64.so.2");
    let output = Command::new(&loader)
        .args(["--library-path".as_ref(), library_dir(root).as_os_str(), "--list".as_ref(), path.as_os_str()])
        .output()
        .map_err(LabError::io("run", &loader))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(LabError::Fetch {
            what: program.to_string(),
            reason: format!("its libraries are unknown: {said}"),
        });
    }
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut seen = BTreeSet::new();
    for line in listed.lines() {
        // "libz.so.1 => /path/libz.so.1 (0x...)"
        let Some(library) = line.split("=> ").nth(1).and_then(|rest| rest.split(" (").next()) else {
            continue;
        };
        if library.contains("not found") {
            return Err(LabError::Fetch { what: program.to_string(), reason: line.trim().to_string() });
        }
        if seen.insert(library.to_string()) {
            add(archive, Path::new(library), &format!("usr/lib/{}", base_name(library)), true)?;
        }
    }
    add(archive, &loader, "lib64/ld-linux-x86-64.so.2", true)?;
    // Without an ld.so.cache the loader searches its default directories, usr/lib among them.
    Ok(())
}

fn modules(archive: &mut Out, kernel: &KernelFiles, names: &[&str]) -> Result<(), LabError> {
    for name in names {
        let Some(path) = find_module(&kernel.modules, name) else { continue };
        let output =
            Command::new("xz").arg("-dc").arg(&path).output().map_err(LabError::io("run xz on", &path))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            return Err(LabError::Fetch { what: format!("module {name}"), reason: said });
        }
        archive
            .file(&format!("lib/mods/{name}.ko"), &output.stdout, false)
            .map_err(LabError::io("write an image entry for", &path))?;
    }
    Ok(())
}

pub(crate) fn find_module(dir: &Path, name: &str) -> Option<PathBuf> {
    let wanted = [format!("{name}.ko.xz"), format!("{}.ko.xz", name.replace('-', "_"))];
    let mut stack = vec![dir.to_path_buf()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                stack.push(path);
            } else if wanted.iter().any(|name| entry.file_name().to_string_lossy() == *name) {
                return Some(path);
            }
        }
    }
    None
}
