//! The observer: a BPF program that watches VMs, whatever schedules them.

use crate::error::HostError;
use crate::figures::{Snapshot, Taker, Thread};
use crate::hooks::{Hook, Kernel, HOOKS};
use crate::sys;
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::path::Path;
use tandem_bpf::observe::{intf, ObserveSkel, ObserveSkelBuilder};
use tandem_daemon::preflight::SystemPaths;
use tandem_daemon::DaemonError;

/// Program that looks at exits.
const ON_EXITS: &str = "observe_exit";
/// Names of its programs begin so.
const PREFIX: &str = "observe_";

/// Watches while it is attached, until it is dropped.
pub struct Observer<'a> {
    skel: ObserveSkel<'a>,
    /// By the names of the programs.
    links: Vec<(String, Link)>,
    missing: Vec<&'static Hook>,
    exits: bool,
    cost: bool,
}

/// Is KVM there, with the part of it that is for this processor? `/dev/kvm` alone says nothing: it may be made before any module is loaded.
pub fn kvm_is_there(root: &Path) -> bool {
    let module = |name| root.join("sys/module").join(name).exists();
    root.join("dev/kvm").exists() && module("kvm") && (module("kvm_intel") || module("kvm_amd"))
}

impl<'a> Observer<'a> {
    /// Loads it. `exits`: count them, too, which costs more than all the rest. `cost`: count what its programs cost,
    /// for which all programs are visited.
    ///
    /// # Errors
    /// KVM is not there, the kernel lacks what is needed, or refuses.
    pub fn load(
        storage: &'a mut MaybeUninit<OpenObject>,
        exits: bool,
        cost: bool,
    ) -> Result<Self, HostError> {
        let root = Path::new("/");
        if !SystemPaths::default().btf().exists() {
            return Err(DaemonError::NoBtf.into());
        }
        if !kvm_is_there(root) {
            return Err(HostError::NoKvm);
        }
        let missing = Kernel::under(root).missing();
        if let Some(hook) = missing.iter().find(|hook| hook.needed) {
            return Err(HostError::NoHook(hook.name));
        }
        let mut open = ObserveSkelBuilder::default().open(storage).map_err(HostError::Load)?;
        for mut program in open.open_object_mut().progs_mut() {
            if missing.iter().any(|hook| program.name() == hook.program) {
                program.set_autoload(false);
            }
        }
        let threads =
            most_threads(&std::fs::read_to_string("/proc/sys/kernel/threads-max").unwrap_or_default());
        open.maps.threads.set_max_entries(threads).map_err(HostError::Load)?;
        open.maps.vcpus.set_max_entries(threads).map_err(HostError::Load)?;
        let skel = open.load().map_err(HostError::Load)?;
        Ok(Self { skel, links: Vec::new(), missing, exits, cost })
    }

    /// Begins to watch, with empty records: what was known before it was detached is of that time. Until [`Self::settle`] it looks at
    /// exits, too, by which vCPUs are found that run and are not switched.
    ///
    /// # Errors
    /// The kernel refuses a program that is needed, or records cannot be removed.
    pub fn attach(&mut self) -> Result<(), HostError> {
        self.forget()?;
        for program in self.skel.object_mut().progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if self.missing.iter().any(|hook| hook.program == name) {
                continue;
            }
            match (program.attach(), HOOKS.iter().find(|hook| hook.program == name)) {
                (Ok(link), _) => self.links.push((name, link)),
                (Err(error), Some(hook)) if !hook.needed => {
                    log::warn!("{} cannot be traced, which would tell {}: {error}", hook.name, hook.tells);
                    self.missing.push(hook);
                }
                (Err(error), _) => {
                    self.links.clear();
                    return Err(HostError::Load(error));
                }
            }
        }
        Ok(())
    }

    /// What runs is known by now: exits are looked at no longer, unless they are to be counted.
    pub fn settle(&mut self) {
        if !self.exits {
            self.links.retain(|(name, _)| name != ON_EXITS);
        }
    }

    /// Watches no longer, and costs nothing any more, until it is attached again.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    fn forget(&self) -> Result<(), HostError> {
        let maps = &self.skel.maps;
        let hashes: [&dyn MapCore; 4] = [&maps.threads, &maps.vcpus, &maps.vms, &maps.taken];
        for map in hashes {
            for key in map.keys() {
                // Nothing is lost if it has gone meanwhile.
                let _ = map.delete(&key);
            }
        }
        let cpus = libbpf_rs::num_possible_cpus().map_err(HostError::Load)?;
        let nothing = vec![vec![0; maps.cpus.value_size() as usize]; cpus];
        let forgotten = maps.cpus.update_percpu(&0u32.to_ne_bytes(), &nothing, MapFlags::ANY);
        forgotten.map_err(|source| HostError::Read { what: "CPUs", source })
    }

    /// What cannot be told, because a hook is missing.
    pub fn not_observed(&self) -> Vec<&'static str> {
        self.missing.iter().map(|hook| hook.tells).collect()
    }

    /// How many places it hangs on.
    pub fn hooks(&self) -> usize {
        self.links.len()
    }

    /// All totals now. What belongs to threads that have ended is in it for the last time.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot, HostError> {
        let read = |what| move |source| HostError::Read { what, source };
        let map = &self.skel.maps.threads;
        let at_ns = sys::monotonic_ns();
        let mut snapshot = Snapshot { at_ns, ..Snapshot::default() };
        let mut gone = Vec::new();
        for key in map.keys() {
            // It may have gone between the two.
            let Some(value) = map.lookup(&key, MapFlags::ANY).map_err(read("threads"))? else { continue };
            let (Some(tid), Some(record)) = (number(&key), sys::from_bytes::<intf::thread_record>(&value))
            else {
                continue;
            };
            snapshot.threads.insert(tid, Thread::read(&record, at_ns));
            if record.gone != 0 {
                gone.push(key);
            }
        }
        for key in gone {
            // Nothing is lost if somebody else was faster.
            let _ = map.delete(&key);
        }
        let vms = snapshot.vms();
        let map = &self.skel.maps.taken;
        let mut of_the_dead = Vec::new();
        for key in map.keys() {
            let Some(value) = map.lookup(&key, MapFlags::ANY).map_err(read("who took time"))? else {
                continue;
            };
            let (Some(from), Some(by), Some(ns)) = (number(&key), number(&key[4..]), long(&value)) else {
                continue;
            };
            let by = match by {
                intf::TAKEN_OTHER => Taker::Other,
                intf::TAKEN_UNKNOWN => Taker::Unknown,
                pid => Taker::Vm(pid),
            };
            if is_between_living(from, by, &vms) {
                snapshot.taken_ns.insert((from, by), ns);
            } else {
                of_the_dead.push(key);
            }
        }
        for key in of_the_dead {
            let _ = map.delete(&key);
        }
        snapshot.no_room = self.skel.maps.bss_data.as_deref().map_or(0, |data| data.troubles.iter().sum());
        // Last: it takes long, and the records are to be those of `at_ns`.
        snapshot.bpf_ns = if self.cost { bpf_time_ns() } else { 0 };
        Ok(snapshot)
    }
}

/// Is what `by` has taken from VM `from` still told? Not once either has ended: on a host where VMs come and go there is no room for all pairs that
/// ever were, and the number of a process may be another VM's next.
fn is_between_living(from: u32, by: Taker, living: &BTreeSet<u32>) -> bool {
    living.contains(&from) && !matches!(by, Taker::Vm(pid) if !living.contains(&pid))
}

/// CPU time of the observer's programs so far, ns; the kernel counts it only while `kernel.bpf_stats_enabled` is 1.
fn bpf_time_ns() -> u64 {
    ProgInfoIter::default()
        .filter(|program| program.name.to_string_lossy().starts_with(PREFIX))
        .map(|program| program.run_time_ns)
        .sum()
}

/// Threads of VMs that can be remembered, from the kernel's limit of threads. Room is taken only for those that there are.
fn most_threads(limit: &str) -> u32 {
    limit.trim().parse::<u32>().unwrap_or(0).clamp(16_384, 131_072)
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn long(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{is_between_living, most_threads, Taker};

    #[test]
    fn who_has_ended_takes_no_room() {
        let living = [10, 20].into();
        for by in [Taker::Vm(10), Taker::Vm(20), Taker::Other, Taker::Unknown] {
            assert!(is_between_living(10, by, &living) && !is_between_living(30, by, &living), "{by:?}");
        }
        assert!(!is_between_living(10, Taker::Vm(30), &living));
    }

    #[test]
    fn room_follows_the_limit_of_threads() {
        assert_eq!(most_threads("190000\n"), 131_072);
        assert_eq!(most_threads("63000\n"), 63_000);
        assert_eq!([most_threads(""), most_threads("-1"), most_threads("99999999999")], [16_384; 3]);
    }
}
