//! What people call a virtual machine: from its cgroup and its VMM's command line. For display only; what is a VM and which
//! thread runs which vCPU is KVM's word.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A virtual machine, as people know it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Label {
    /// Its name; `VMM-PID` where it has none.
    pub name: String,
    /// Its cgroup, below the root, as the kernel has it; empty: not known.
    pub cgroup: String,
}

/// Names of the VMs there are, by the processes of their VMMs.
#[derive(Debug, Clone, Default)]
pub struct Labels(BTreeMap<u32, Label>);

/// What stands in place of a VM's name where the time went that it waited for: its own other threads, tasks of no VM, nobody that is known.
pub const TAKEN_BY_ITSELF: &str = "itself";
/// Likewise.
pub const TAKEN_BY_HOST: &str = "host";
/// Likewise.
pub const TAKEN_BY_UNKNOWN: &str = "unknown";

impl Labels {
    /// Names those of `vms` that are new. No two have the same name: whoever comes later has the number of its process behind it.
    pub fn add(&mut self, vms: &BTreeSet<u32>) {
        self.add_by(vms, |pid| label(Path::new(PROC), pid));
    }

    fn add_by(&mut self, vms: &BTreeSet<u32>, label: impl Fn(u32) -> Label) {
        for pid in vms {
            if self.0.contains_key(pid) {
                continue;
            }
            let mut label = label(*pid);
            // Somebody's own name may look like that.
            while self.find(&label.name).is_some() || is_reserved(&label.name) {
                label.name = format!("{}-{pid}", label.name);
            }
            self.0.insert(*pid, label);
        }
    }

    /// Forgets all but these.
    pub fn keep(&mut self, vms: &BTreeSet<u32>) {
        self.0.retain(|pid, _| vms.contains(pid));
    }

    /// A VM may be moved to another cgroup at any time.
    pub fn read_cgroups_again(&mut self) {
        self.read_cgroups_in(Path::new(PROC));
    }

    fn read_cgroups_in(&mut self, proc: &Path) {
        for (pid, label) in &mut self.0 {
            // Of one that is about to end there is none any more.
            if let Some(cgroup) = read_cgroup(proc, *pid) {
                label.cgroup = cgroup;
            }
        }
    }

    /// Of one VM.
    pub fn of(&self, pid: u32) -> Label {
        self.0
            .get(&pid)
            .cloned()
            .unwrap_or_else(|| Label { name: format!("vm-{pid}"), cgroup: String::new() })
    }

    /// The VM of this name.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.0.iter().find(|(_, label)| label.name == name).map(|(pid, _)| *pid)
    }
}

impl<const N: usize> From<[(u32, Label); N]> for Labels {
    fn from(labels: [(u32, Label); N]) -> Self {
        Self(labels.into())
    }
}

fn is_reserved(name: &str) -> bool {
    [TAKEN_BY_ITSELF, TAKEN_BY_HOST, TAKEN_BY_UNKNOWN].contains(&name)
}

const PROC: &str = "/proc";

/// Longest name that is shown.
const LONGEST_NAME: usize = 64;
/// What libvirt puts the threads of a VM into, below the VM's own cgroup.
const LIBVIRT_PARTS: [&str; 3] = ["vcpu", "emulator", "iothread"];

/// Of the process of a VMM; none: this process has no vCPU, as far as its open files tell.
pub fn label_of_vmm(proc: &Path, pid: u32) -> Option<Label> {
    const VCPU: &str = "anon_inode:kvm-vcpu";
    let files = std::fs::read_dir(proc.join(pid.to_string()).join("fd")).ok()?;
    let is_vcpu = |file: std::fs::DirEntry| {
        std::fs::read_link(file.path()).is_ok_and(|target| target.to_string_lossy().starts_with(VCPU))
    };
    files.flatten().any(is_vcpu).then(|| label(proc, pid))
}

/// Of a process, as /proc shows it.
pub fn label(proc: &Path, pid: u32) -> Label {
    let file = |name: &str| -> PathBuf { proc.join(pid.to_string()).join(name) };
    let read = |name: &str| std::fs::read(file(name)).unwrap_or_default();
    let cgroup = read_cgroup(proc, pid).unwrap_or_default();
    let command: Vec<String> = read("cmdline")
        .split(|byte| *byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect();
    let comm = String::from_utf8_lossy(&read("comm")).trim().to_owned();
    let name = name_in_command(&command)
        .or_else(|| name_in_cgroup(&cgroup))
        .unwrap_or_else(|| format!("{}-{pid}", if comm.is_empty() { "vm" } else { &comm }));
    Label { name: shown(&name), cgroup }
}

/// Nothing: it has ended.
fn read_cgroup(proc: &Path, pid: u32) -> Option<String> {
    let text = std::fs::read(proc.join(pid.to_string()).join("cgroup")).ok()?;
    Some(cgroup_of(&String::from_utf8_lossy(&text)))
}

/// Text of others: without control characters, and not endless.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect()
}

/// The cgroup (v2) of a VM: that of its process, without what libvirt puts below.
fn cgroup_of(text: &str) -> String {
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.last().is_some_and(|last| LIBVIRT_PARTS.iter().any(|part| last.starts_with(part))) {
        parts.pop();
        if parts.last() == Some(&"libvirt") {
            parts.pop();
        }
    }
    parts.iter().map(|part| format!("/{part}")).collect()
}

/// QEMU: `-name guest=NAME,...` or `-name NAME,...`; Firecracker: `--id NAME`.
fn name_in_command(command: &[String]) -> Option<String> {
    let after = |option: &str| {
        let at = command.iter().position(|argument| argument == option)?;
        command.get(at + 1)
    };
    if let Some(value) = after("-name") {
        let guest = value.split(',').find_map(|part| part.strip_prefix("guest="));
        let name = guest.or_else(|| value.split(',').next()).unwrap_or_default();
        return (!name.is_empty()).then(|| name.to_owned());
    }
    after("--id").filter(|name| !name.is_empty()).cloned()
}

/// libvirt: `machine-qemu\x2d1\x2dNAME.scope`; others: `NAME.scope` in a slice of VMs.
fn name_in_cgroup(cgroup: &str) -> Option<String> {
    let unit = cgroup.rsplit('/').find_map(|part| part.strip_suffix(".scope"))?;
    let Some(machine) = unit.strip_prefix("machine-") else {
        let of_vms = ["/qemu.slice/", "/machine.slice/", "/cocoon.slice/"];
        return of_vms.iter().any(|slice| cgroup.contains(slice)).then(|| unit.to_owned());
    };
    let plain = unescape(machine);
    let mut parts = plain.splitn(3, '-');
    let (_, number, name) = (parts.next(), parts.next(), parts.next());
    match (number, name) {
        (Some(number), Some(name)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(name.to_owned())
        }
        _ => Some(plain),
    }
}

/// systemd's `\x2d` and the like.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut result = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at..at + 4).filter(|part| part.starts_with(b"\\x"));
        let value = hex
            .and_then(|part| std::str::from_utf8(&part[2..]).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match value {
            Some(value) => {
                result.push(value);
                at += 4;
            }
            None => {
                result.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&result).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn process(cgroup: &str, command: &[&str], comm: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("42");
        std::fs::create_dir(&proc).unwrap();
        std::fs::write(proc.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        std::fs::write(proc.join("cmdline"), command.join("\0")).unwrap();
        std::fs::write(proc.join("comm"), format!("{comm}\n")).unwrap();
        dir
    }

    fn labelled(cgroup: &str, command: &[&str], comm: &str) -> (String, String) {
        let dir = process(cgroup, command, comm);
        let label = label(dir.path(), 42);
        (label.name, label.cgroup)
    }

    #[test]
    fn names_are_those_that_people_gave() {
        let libvirt = "/machine.slice/machine-qemu\\x2d3\\x2dweb\\x2d1.scope";
        assert_eq!(
            labelled(
                &format!("{libvirt}/libvirt/emulator"),
                &["qemu", "-name", "guest=web-1,debug-threads=on"],
                "qemu"
            ),
            ("web-1".into(), libvirt.into())
        );
        assert_eq!(labelled(&format!("{libvirt}/libvirt/vcpu0"), &["qemu"], "qemu").0, "web-1");
        assert_eq!(
            labelled("/qemu.slice/101.scope", &["kvm", "-id", "101", "-name", "db,debug-threads=on"], "kvm")
                .0,
            "db"
        );
        assert_eq!(labelled("/qemu.slice/101.scope", &["kvm"], "kvm").0, "101");
        assert_eq!(labelled("/machine.slice/machine-web.scope", &["vmm"], "vmm").0, "web");
        assert_eq!(labelled("/machine.slice/machine-web\\x2d1.scope", &["vmm"], "vmm").0, "web-1");
        assert_eq!(labelled("/user.slice", &["firecracker", "--id", "f1"], "firecracker").0, "f1");
        assert_eq!(
            labelled("/user.slice/session-1.scope", &["vmm"], "cloud-hypervisor").0,
            "cloud-hypervisor-42"
        );
    }

    #[test]
    fn no_two_vms_have_the_same_name() {
        let mut labels = Labels::default();
        let web = |_| Label { name: "web".into(), cgroup: String::new() };
        labels.add_by(&BTreeSet::from([5]), web);
        labels.add_by(&BTreeSet::from([3, 5]), web);
        assert_eq!((labels.of(5).name.as_str(), labels.of(3).name.as_str()), ("web", "web-3"));
        assert_eq!((labels.find("web"), labels.find("web-3"), labels.find("db")), (Some(5), Some(3), None));
        labels.keep(&BTreeSet::from([3]));
        assert_eq!((labels.find("web"), labels.of(3).name.as_str()), (None, "web-3"), "it keeps its name");
        // A name that somebody else has of his own, and words that stand for what is no VM.
        labels.add_by(&BTreeSet::from([6]), |_| Label { name: "web-7".into(), cgroup: String::new() });
        labels.add_by(&BTreeSet::from([5, 7]), web);
        assert_eq!((labels.of(5).name.as_str(), labels.of(7).name.as_str()), ("web", "web-7-7"));
        labels.add_by(&BTreeSet::from([9]), |_| Label { name: "host".into(), cgroup: String::new() });
        assert_eq!(labels.of(9).name, "host-9");
    }

    #[test]
    fn a_vm_may_be_moved_to_another_cgroup() {
        let dir = process("/machine.slice/web.scope", &["qemu"], "qemu");
        let mut labels = Labels::default();
        labels.add_by(&BTreeSet::from([42, 43]), |pid| label(dir.path(), pid));
        std::fs::write(dir.path().join("42/cgroup"), "0::/gold.slice/web.scope\n").unwrap();
        labels.read_cgroups_in(dir.path());
        assert_eq!(labels.of(42).cgroup, "/gold.slice/web.scope");
        std::fs::remove_dir_all(dir.path().join("42")).unwrap();
        labels.read_cgroups_in(dir.path());
        assert_eq!(labels.of(42).cgroup, "/gold.slice/web.scope", "it is about to end");
    }

    #[test]
    fn a_long_cgroup_stays_whole() {
        let scope = format!("/machine.slice/machine-qemu\\x2d1\\x2d{}.scope", "x".repeat(100));
        assert_eq!(labelled(&scope, &["qemu"], "qemu").1, scope);
    }

    #[test]
    fn a_vmm_is_known_by_its_open_vcpus() {
        let dir = process("/user.slice", &["qemu", "-name", "web"], "qemu");
        assert_eq!(label_of_vmm(dir.path(), 42), None);
        let files = dir.path().join("42/fd");
        std::fs::create_dir(&files).unwrap();
        std::os::unix::fs::symlink("anon_inode:kvm-vcpu:0", files.join("9")).unwrap();
        assert_eq!(label_of_vmm(dir.path(), 42).unwrap().name, "web");
    }

    #[test]
    fn a_process_that_has_gone_has_a_name_too() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(label(dir.path(), 7), Label { name: "vm-7".into(), cgroup: String::new() });
    }

    proptest! {
        #[test]
        fn no_text_of_others_does_harm(cgroup in "\\PC{0,80}|[\\\\x0-9a-f/.\\-]{0,60}", name in ".{0,100}") {
            let dir = process(&cgroup, &["qemu", "-name", &name], "qemu");
            let label = label(dir.path(), 42);
            prop_assert!(!label.name.chars().any(char::is_control));
            prop_assert!(label.name.chars().count() <= LONGEST_NAME + 3);
        }
    }
}
