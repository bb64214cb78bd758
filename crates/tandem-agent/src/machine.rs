//! Prepares the machine and collects facts about it.

use crate::sys;
use std::fs;
use std::path::Path;
use std::process::Command;
use tandem_agent::Facts;

const MOUNTS: [(&str, &str); 9] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// A parameter of the kernel command line.
pub fn parameter(name: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    line.split_whitespace().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_string()))
}

/// Mounts, modules, loopback. Failures are only printed on the console: later requests will show their effect.
pub fn prepare() {
    for (kind, target) in MOUNTS {
        let _ = fs::create_dir_all(target);
        if let Err(error) = sys::mount(kind, target) {
            println!("AGENT-WARNING mount {target}: {error}");
        }
    }
    for module in parameter("tandem.modules").iter().flat_map(|list| list.split(',')) {
        let path = format!("/lib/mods/{module}.ko");
        match Command::new("insmod").arg(&path).status() {
            Ok(status) if status.success() => {}
            other => println!("AGENT-WARNING insmod {path}: {other:?}"),
        }
    }
    if let Some(address) = parameter("tandem.address") {
        if let Err(error) = crate::vm::address("eth0", &address) {
            println!("AGENT-WARNING {error}");
        }
    }
    if let Err(error) = sys::loopback_up() {
        println!("AGENT-WARNING loopback: {error}");
    }
    // Errors of the kernel belong on the console, where the lab searches for signatures; its other messages do not.
    let _ = fs::write("/proc/sys/kernel/printk", "4");
}

fn trimmed(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_string()).unwrap_or_default()
}

/// Number of online CPUs, independent of the calling thread's affinity.
pub fn cpus() -> usize {
    // The lab's machines have CPUs 0 to n-1.
    trimmed("/sys/devices/system/cpu/online")
        .rsplit('-')
        .next()
        .and_then(|last| last.parse().ok())
        .map_or(1, |last: usize| last + 1)
}

/// Collects the facts about this machine.
pub fn facts() -> Facts {
    let timers = fs::read_to_string("/proc/timer_list").unwrap_or_default();
    let mut resolutions =
        timers.lines().filter_map(|line| line.trim().strip_prefix(".hres_active")).peekable();
    Facts {
        kernel: trimmed("/proc/sys/kernel/osrelease"),
        cpus: cpus(),
        high_resolution: resolutions.peek().is_some()
            && resolutions.all(|rest| rest.trim_end().ends_with('1')),
        clock_source: trimmed("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_event: trimmed("/sys/devices/system/clockevents/clockevent0/current_device"),
        kvm: Path::new("/dev/kvm").exists(),
    }
}
