//! The properties of this machine that matter to the scheduler, and what to do about them. Changes nothing.

use crate::sys;
use std::path::Path;
pub use tandem_daemon::finding::{Finding, State};
use tandem_daemon::preflight::{CgroupSupport, SystemPaths};
use tandem_probe::hypervisor::Hypervisor;

/// At most this many cgroups with a setting are named.
const NAMED: usize = 3;
/// Depth to which the cgroup tree is searched. No cgroup is deeper: its path would be longer than PATH_MAX.
const MAX_DEPTH: usize = 2048;

/// Examines this machine.
pub fn examine_this_machine() -> Vec<Finding> {
    let paths = SystemPaths::default();
    let support = if paths.btf().exists() {
        CgroupSupport::of_kernel()
    } else {
        CgroupSupport { quota: false, idle: false }
    };
    examine(&paths, sys::is_root(), Hypervisor::detect().as_ref(), support)
}

/// Examines everything.
fn examine(
    paths: &SystemPaths,
    is_root: bool,
    hypervisor: Option<&Hypervisor>,
    support: CgroupSupport,
) -> Vec<Finding> {
    let mut findings =
        vec![beneath(hypervisor), steal(hypervisor, &paths.cmdline()), paravirtual(hypervisor)];
    findings.extend(sched_ext(paths));
    let root = if is_root { (State::Good, "root") } else { (State::Note, "not root") };
    findings.push(Finding {
        subject: "rights",
        state: root.0,
        found: root.1.into(),
        advice: if is_root {
            ""
        } else {
            "loading the scheduler needs root (sudo tandem guest); probing does not"
        },
    });
    findings.extend(cgroups(paths.cgroup(), support));
    findings.retain(|finding| !finding.found.is_empty());
    findings
}

fn beneath(hypervisor: Option<&Hypervisor>) -> Finding {
    let (state, found, advice) = match hypervisor {
        Some(hypervisor) => (State::Good, hypervisor.name.clone(), ""),
        None => (
            State::Note,
            "none, or one that hides".into(),
            "on bare metal there is nothing for a guest scheduler to gain",
        ),
    };
    Finding { subject: "hypervisor", state, found, advice }
}

fn steal(hypervisor: Option<&Hypervisor>, cmdline: &str) -> Finding {
    let (state, found, advice) = match hypervisor {
        // It keeps the kernel's own scheduler from subtracting steal. The kernel registers the page all the same.
        Some(h) if h.reports_steal() && cmdline.split_ascii_whitespace().any(|word| word == "no-steal-acc") => (
            State::Good,
            "reported to the nanosecond; no-steal-acc concerns only the kernel's own scheduler".into(),
            "",
        ),
        Some(h) if h.reports_steal() => (State::Good, "reported to the nanosecond".into(), ""),
        Some(_) => (
            State::Note,
            "not reported by the hypervisor".into(),
            "steal is estimated from late ticks instead; on KVM hosts check that the CPU model has kvm-steal-time",
        ),
        None => (State::Good, String::new(), ""),
    };
    Finding { subject: "steal time", state, found, advice }
}

fn paravirtual(hypervisor: Option<&Hypervisor>) -> Finding {
    let kvm = hypervisor.filter(|h| h.name == "KVM");
    let (offered, missing) = kvm.map(Hypervisor::features).unwrap_or_default();
    let (state, advice) = if missing.iter().any(|name| name.starts_with("pv")) {
        (State::Note, "the host can offer what is missing (QEMU: -cpu host)")
    } else {
        (State::Good, "")
    };
    let list = |list: Vec<&str>| if list.is_empty() { "none".into() } else { list.join(", ") };
    let found = if kvm.is_some() {
        format!("offered: {}; missing: {}", list(offered), list(missing))
    } else {
        String::new()
    };
    Finding { subject: "paravirtual features", state, found, advice }
}

fn sched_ext(paths: &SystemPaths) -> Vec<Finding> {
    let finding = |subject, state, found: String, advice| Finding { subject, state, found, advice };
    if !paths.sched_ext().is_dir() {
        let advice = "boot a kernel with CONFIG_SCHED_CLASS_EXT (6.12 or later; many distributions have it)";
        return vec![finding("sched_ext", State::Bad, "not in this kernel".into(), advice)];
    }
    let mut findings = vec![finding("sched_ext", State::Good, "in this kernel".into(), "")];
    findings.push(if paths.btf().exists() {
        finding("type information", State::Good, "in this kernel".into(), "")
    } else {
        finding("type information", State::Bad, "missing".into(), "boot a kernel with CONFIG_DEBUG_INFO_BTF")
    });
    findings.push(if paths.is_locked_down() {
        finding(
            "kernel lockdown",
            State::Bad,
            "confidentiality: BPF programs may not read kernel memory".into(),
            "boot with lockdown=integrity, or without",
        )
    } else {
        finding("kernel lockdown", State::Good, "does not stand in the way".into(), "")
    });
    let read = |name: &str| {
        std::fs::read_to_string(paths.sched_ext().join(name)).unwrap_or_default().trim().to_owned()
    };
    findings.push(match read("state").as_str() {
        "enabled" => {
            let advice = "one sched_ext scheduler at a time: stop it before loading another";
            finding("loaded scheduler", State::Note, read("root/ops"), advice)
        }
        _ => finding("loaded scheduler", State::Good, "none".into(), ""),
    });
    findings
}

#[derive(Default)]
struct InUse {
    weights: Vec<String>,
    limits: Vec<String>,
    idle: Vec<String>,
}

fn cgroups(root: &Path, support: CgroupSupport) -> Vec<Finding> {
    let mut used = InUse::default();
    look(root, root, 0, &mut used);
    let one = |subject, groups: &[String], honoured: bool, advice| {
        let names = groups.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let more = if groups.len() > NAMED { ", ..." } else { "" };
        let found = match (groups.len(), honoured) {
            (0, _) => "not in use".into(),
            (n, true) => format!("in {n} groups ({names}{more}), honoured"),
            (n, false) => format!("in {n} groups ({names}{more}), not reported to schedulers by this kernel"),
        };
        let state = if groups.is_empty() || honoured { State::Good } else { State::Bad };
        Finding { subject, state, found, advice: if state == State::Good { "" } else { advice } }
    };
    vec![
        one("cpu.weight", &used.weights, true, ""),
        one(
            "cpu.max",
            &used.limits,
            support.quota,
            "use kernel 6.17 or later, lift the limits, or accept --ignore-cgroups",
        ),
        one(
            "cpu.idle",
            &used.idle,
            support.idle,
            "use kernel 6.19 or later, reset it, or accept --ignore-cgroups",
        ),
    ]
}

fn look(root: &Path, dir: &Path, depth: usize, used: &mut InUse) {
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).ok().map(|text| text.trim().to_owned());
    let name = || {
        dir.strip_prefix(root).map_or_else(|_| dir.display().to_string(), |path| path.display().to_string())
    };
    if read("cpu.weight").is_some_and(|value| value != "100" && value != "0") {
        used.weights.push(name());
    }
    if read("cpu.max").is_some_and(|value| !value.starts_with("max")) {
        used.limits.push(name());
    }
    if read("cpu.idle").is_some_and(|value| value != "0") {
        used.idle.push(name());
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if depth < MAX_DEPTH && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            look(root, &entry.path(), depth + 1, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
        findings.iter().find(|f| f.subject == subject).unwrap()
    }

    #[test]
    fn limits_that_the_kernel_does_not_report_are_bad_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("sys/fs/cgroup/system.slice/a.service");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cpu.max"), "20000 100000\n").unwrap();
        std::fs::write(group.join("cpu.weight"), "300\n").unwrap();
        let paths = SystemPaths::under(dir.path());
        let without = CgroupSupport { quota: false, idle: false };
        let findings = examine(&paths, false, None, without);
        assert_eq!(find(&findings, "cpu.max").state, State::Bad);
        assert!(find(&findings, "cpu.max").found.contains("system.slice/a.service"));
        assert_eq!(find(&findings, "cpu.weight").state, State::Good);
        assert_eq!(find(&findings, "sched_ext").state, State::Bad);
        let with = CgroupSupport { quota: true, idle: true };
        assert_eq!(find(&examine(&paths, true, None, with), "cpu.max").state, State::Good);
    }

    #[test]
    fn what_is_offered_is_not_what_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let paths = SystemPaths::under(dir.path());
        let kvm = Hypervisor { name: "KVM".into(), kvm_features: 1 << 5 };
        let support = CgroupSupport { quota: true, idle: true };
        let steal = || find(&examine(&paths, true, Some(&kvm), support), "steal time").clone();
        assert_eq!(steal().state, State::Good);
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/cmdline"), "quiet no-steal-accounting\n").unwrap();
        assert!(steal().state == State::Good && !steal().found.contains("no-steal-acc"));
        std::fs::write(dir.path().join("proc/cmdline"), "ro quiet no-steal-acc\n").unwrap();
        assert!(steal().state == State::Good && steal().found.contains("no-steal-acc"));
    }

    #[test]
    fn a_locked_down_kernel_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = SystemPaths::under(dir.path());
        for (file, text) in [
            ("sys/kernel/sched_ext/state", "disabled"),
            ("sys/kernel/btf/vmlinux", ""),
            ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let support = CgroupSupport { quota: true, idle: true };
        assert_eq!(find(&examine(&paths, true, None, support), "kernel lockdown").state, State::Bad);
        let error = tandem_daemon::preflight::check(&paths, true, || support, false).unwrap_err().to_string();
        assert!(error.contains("lockdown=integrity"), "{error}");
    }

    #[test]
    fn every_problem_comes_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let findings =
            examine(&SystemPaths::under(dir.path()), false, None, CgroupSupport { quota: true, idle: true });
        assert!(findings.iter().all(|f| f.state != State::Bad || !f.advice.is_empty()));
    }
}
