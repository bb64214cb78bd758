//! Checks of this machine, before anything is booted.

use crate::image::{binary_dir, OWN};
use crate::{cache, fetch, sys};
use std::fs;
use std::path::Path;

/// Disk space for downloads, unpacked packages, images and work files.
const DISK_NEEDED: u64 = 2 << 30;
/// Memory for the host, for the emulator itself, and for the page cache of its image.
const MEMORY_NEEDED: u64 = 4 << 30;

/// One finding.
#[derive(Debug)]
pub struct Finding {
    /// What was checked.
    pub what: &'static str,
    /// Can the lab work with it?
    pub good: bool,
    /// What was found, and if it is not good, what is needed.
    pub text: String,
}

/// Runs all checks. Changes nothing, except that the cache's folder is created.
pub fn examine() -> Vec<Finding> {
    vec![processor(), memory(), disk(), parts(), binaries(), acceleration(), sched_ext()]
}

fn finding(what: &'static str, good: bool, text: String) -> Finding {
    Finding { what, good, text }
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let arch = std::env::consts::ARCH;
    let good = arch == "x86_64" && cores >= 2;
    finding("processor", good, format!("{arch}, {cores} cores (x86_64 and 2 are needed)"))
}

fn memory() -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = available_bytes(&text).unwrap_or(0);
    finding(
        "memory",
        free >= MEMORY_NEEDED,
        format!("{} available ({} are needed)", gib(free), gib(MEMORY_NEEDED)),
    )
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

fn disk() -> Finding {
    let dir = match cache::dir() {
        Ok(dir) => dir,
        Err(error) => return finding("cache", false, error.to_string()),
    };
    match sys::free_bytes(&dir) {
        Ok(free) => {
            let enough = free >= DISK_NEEDED || fetch::is_whole(&dir);
            let text = format!("{}, {} free ({} are needed)", dir.display(), gib(free), gib(DISK_NEEDED));
            finding("cache", enough, text)
        }
        Err(error) => finding("cache", false, format!("{}: {error}", dir.display())),
    }
}

fn parts() -> Finding {
    let whole = cache::dir().ok().filter(|dir| fetch::is_whole(dir));
    let done = whole.and_then(|dir| fs::read_to_string(dir.join(cache::DONE)).ok());
    match (done, fetch::machine_mirror()) {
        (Some(release), _) => finding("packages", true, format!("fetched; kernel {}", release.trim())),
        (None, Ok(mirror)) => finding("packages", true, format!("not fetched yet; mirror {mirror}")),
        (None, Err(error)) => finding("packages", false, error.to_string()),
    }
}

fn binaries() -> Finding {
    let dir = binary_dir();
    let missing: Vec<_> = OWN.iter().copied().filter(|name| !dir.join(name).exists()).collect();
    let text = if missing.is_empty() {
        dir.display().to_string()
    } else {
        format!(
            "{} missing in {}: build them (make build), or set TANDEM_BIN_DIR",
            missing.join(", "),
            dir.display()
        )
    };
    finding("binaries", missing.is_empty(), text)
}

fn acceleration() -> Finding {
    let text = match fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => "/dev/kvm can be opened; whether nested guests work is found out by the first run".into(),
        Err(error) => format!("/dev/kvm: {error}; the host will be emulated"),
    };
    finding("hardware", true, text)
}

fn sched_ext() -> Finding {
    let text = if Path::new("/sys/kernel/sched_ext").exists() {
        "present: `sudo tandem guest` runs on this very machine"
    } else {
        "absent here: schedulers run in the lab's machines"
    };
    finding("sched_ext", true, text.into())
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_the_kernels_format() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:    2097152 kB\n";
        assert_eq!(available_bytes(text), Some(2 << 30));
        assert_eq!(available_bytes("MemTotal: 1 kB"), None);
        assert_eq!(available_bytes("MemAvailable: many kB"), None);
    }
}
