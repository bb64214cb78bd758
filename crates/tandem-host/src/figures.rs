//! What was observed: totals at a moment, and what came between two.

use crate::times::Times;
use crate::vms::{Label, TAKEN_BY_HOST, TAKEN_BY_ITSELF, TAKEN_BY_UNKNOWN};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use tandem_bpf::observe::intf;

/// Classes of reasons for which a vCPU leaves the guest, in the order of `enum exit_class` (`bpf/host/observe.h`).
pub const EXITS: [&str; intf::exit_class_NR_EXIT_CLASSES as usize] =
    ["halt", "interrupt", "window", "msr", "io", "memory", "cpuid", "hypercall", "pause", "apic", "other"];

/// What a thread of a VM does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs a vCPU.
    Vcpu,
    /// Another thread of the VMM.
    Vmm,
    /// A kernel thread that serves the VM's devices.
    Vhost,
}

/// A thread's totals since it was first seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// Process of its VMM.
    pub vm: u32,
    /// What it does.
    pub role: Role,
    /// Which vCPU it runs.
    pub index: u32,
    /// When it was first seen, ns since boot; another time means another thread of the same number.
    pub born_ns: u64,
    /// Time on a CPU, ns.
    pub run_ns: u64,
    /// Time runnable and waiting for a CPU, ns.
    pub ready_ns: u64,
    /// It lost its CPU although it had work.
    pub preemptions: u64,
    /// It became runnable.
    pub wakeups: u64,
    /// Interrupts accepted for it.
    pub interrupts: u64,
    /// ... while it did not run.
    pub interrupts_off: u64,
    /// Halts that ended while KVM still polled.
    pub polls_won: u64,
    /// Exits of each class.
    pub exits: [u64; EXITS.len()],
    /// Steal as its guest reads it, ns.
    pub steal_ns: u64,
    /// Each wait for a CPU.
    pub ready: Times,
    /// From an interrupt that found it not running to running.
    pub to_run: Times,
    /// From an interrupt of a device that found it waiting for a CPU to running.
    pub device_to_run: Times,
    /// Of those interrupts, how often another task began to run there before it.
    pub passed_over: u64,
}

impl Thread {
    /// From a record, at `now_ns` (CLOCK_MONOTONIC): what has not ended yet counts up to now.
    pub(crate) fn read(r: &intf::thread_record, now_ns: u64) -> Self {
        let pending = |since_ns: u64| if since_ns == 0 { 0 } else { now_ns.saturating_sub(since_ns) };
        Self {
            vm: r.tgid,
            role: match r.kind {
                intf::thread_kind_THREAD_VCPU => Role::Vcpu,
                intf::thread_kind_THREAD_VHOST => Role::Vhost,
                _ => Role::Vmm,
            },
            index: u32::try_from(r.index).unwrap_or(0),
            born_ns: r.first_seen_ns,
            run_ns: r.run_ns.saturating_add(pending(r.running_since_ns)),
            ready_ns: r.ready_ns.saturating_add(pending(r.ready_since_ns)),
            preemptions: r.preemptions,
            wakeups: r.wakeups,
            interrupts: r.interrupts,
            interrupts_off: r.interrupts_off,
            polls_won: r.polls_won,
            exits: r.exits,
            steal_ns: r.steal_ns,
            ready: Times::from(&r.ready),
            to_run: Times::from(&r.to_run),
            device_to_run: Times::from(&r.device_to_run),
            passed_over: r.passed_over,
        }
    }

    /// At least what an earlier state said: a record that was changed while it was read can have the last stretch twice.
    fn not_below(&mut self, earlier: &Self) {
        if (earlier.born_ns, earlier.vm) == (self.born_ns, self.vm) {
            self.run_ns = self.run_ns.max(earlier.run_ns);
            self.ready_ns = self.ready_ns.max(earlier.ready_ns);
        }
    }

    /// What has come since an earlier state; all of it, if that was of another thread.
    fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) =
            earlier.filter(|earlier| earlier.born_ns == self.born_ns && earlier.vm == self.vm)
        else {
            return self.clone();
        };
        let mut exits = self.exits;
        for (now, then) in exits.iter_mut().zip(&earlier.exits) {
            *now = now.saturating_sub(*then);
        }
        Self {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            ready_ns: self.ready_ns.saturating_sub(earlier.ready_ns),
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
            wakeups: self.wakeups.saturating_sub(earlier.wakeups),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            interrupts_off: self.interrupts_off.saturating_sub(earlier.interrupts_off),
            polls_won: self.polls_won.saturating_sub(earlier.polls_won),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
            ready: self.ready.since(&earlier.ready),
            to_run: self.to_run.since(&earlier.to_run),
            device_to_run: self.device_to_run.since(&earlier.device_to_run),
            passed_over: self.passed_over.saturating_sub(earlier.passed_over),
            exits,
            ..self.clone()
        }
    }
}

/// Who ran while a VM's vCPUs waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taker {
    /// A VM, by the process of its VMM; the same one: its own other threads.
    Vm(u32),
    /// A task of no VM.
    Other,
    /// Not known: nobody, an interrupt, or too many switches ago.
    Unknown,
}

/// All totals at a moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// When, ns since boot (CLOCK_MONOTONIC).
    pub at_ns: u64,
    /// Threads of VMs, by their number.
    pub threads: BTreeMap<u32, Thread>,
    /// Time that each VM's vCPUs waited while another one ran, ns.
    pub taken_ns: BTreeMap<(u32, Taker), u64>,
    /// Threads, and pairs of VMs, for which there was no room.
    pub no_room: u64,
    /// CPU time of the observer's BPF programs, ns; 0: the kernel does not count it.
    pub bpf_ns: u64,
}

impl Snapshot {
    /// No thread's total is below what an earlier snapshot says.
    pub(crate) fn not_below(&mut self, earlier: &Self) {
        for (tid, thread) in &mut self.threads {
            if let Some(earlier) = earlier.threads.get(tid) {
                thread.not_below(earlier);
            }
        }
    }

    /// The VMs that have threads in it, by the process of their VMM.
    pub fn vms(&self) -> BTreeSet<u32> {
        self.threads.values().map(|thread| thread.vm).collect()
    }
}

fn sum(threads: &[&Thread], of: fn(&Thread) -> u64) -> u64 {
    threads.iter().map(|thread| of(thread)).sum()
}

/// A time as a part of an interval, percent.
fn pct(ns: u64, interval_ns: f64) -> f64 {
    ns as f64 / interval_ns * 100.0
}

fn per_s(events: u64, interval_ns: f64) -> f64 {
    events as f64 / (interval_ns / 1e9)
}

/// What only vCPUs have: of one in an interval, or of all of a VM together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfVcpus {
    /// Steal as the guest reads it, percent of the interval; of several: the mean.
    pub steal_pct: f64,
    /// From an interrupt that found its vCPU not running to running.
    pub interrupt_to_run: Times,
    /// From an interrupt of a device that found its vCPU waiting for a CPU to running.
    pub device_interrupt_to_run: Times,
    /// Of those, the part for which another task began to run on that pCPU before the vCPU, percent; 0 as well: there were none.
    pub passed_over_pct: f64,
    /// Each wait for a CPU.
    pub ready: Times,
    /// Interrupts per second, all and those that found their vCPU not running.
    pub interrupts_per_s: [f64; 2],
    /// Halts per second, all and those that ended while KVM still polled.
    pub halts_per_s: [f64; 2],
    /// Exits per second by class.
    pub exits_per_s: BTreeMap<&'static str, f64>,
}

impl OfVcpus {
    fn new(vcpus: &[&Thread], interval_ns: f64) -> Self {
        let rate = |of: fn(&Thread) -> u64| per_s(sum(vcpus, of), interval_ns);
        let all = |of: fn(&Thread) -> &Times| {
            vcpus.iter().fold(Times::default(), |sum, thread| sum.with(of(thread)))
        };
        let exits = |class: usize| per_s(vcpus.iter().map(|thread| thread.exits[class]).sum(), interval_ns);
        let device = all(|thread| &thread.device_to_run);
        let classes = EXITS.iter().enumerate().map(|(class, name)| (*name, exits(class)));
        Self {
            steal_pct: pct(sum(vcpus, |thread| thread.steal_ns), interval_ns) / vcpus.len().max(1) as f64,
            interrupt_to_run: all(|thread| &thread.to_run),
            passed_over_pct: 100.0 * sum(vcpus, |thread| thread.passed_over) as f64
                / device.count.max(1) as f64,
            device_interrupt_to_run: device,
            ready: all(|thread| &thread.ready),
            interrupts_per_s: [rate(|thread| thread.interrupts), rate(|thread| thread.interrupts_off)],
            halts_per_s: [exits(intf::exit_class_EXIT_HALT as usize), rate(|thread| thread.polls_won)],
            exits_per_s: classes.filter(|(_, rate)| *rate > 0.0).collect(),
        }
    }
}

/// A vCPU, or the other threads of a VM together, in an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// Which vCPU; none: all other threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    /// Thread; none: several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Part of the interval on a CPU, percent.
    pub run_pct: f64,
    /// Part of the interval runnable and waiting for one, percent.
    pub ready_pct: f64,
    /// It lost its CPU although it had work, per second.
    pub preemptions_per_s: f64,
    /// It became runnable, per second.
    pub wakeups_per_s: f64,
    /// Of a vCPU.
    #[serde(flatten)]
    pub of_vcpu: Option<OfVcpus>,
}

/// A VM in an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VmReport {
    /// Its name and cgroup.
    #[serde(flatten)]
    pub label: Label,
    /// Process of its VMM.
    pub pid: u32,
    /// vCPUs that were seen.
    pub vcpus: usize,
    /// CPU time of its vCPUs, percent of one pCPU.
    pub run_pct: f64,
    /// CPU time of its other threads, percent of one pCPU.
    pub vmm_run_pct: f64,
    /// CPU ready: mean over its vCPUs of the part of the interval for which they waited for a CPU, percent.
    pub ready_pct: f64,
    /// The same of its other threads together, percent.
    pub vmm_ready_pct: f64,
    /// Of all its vCPUs together.
    #[serde(flatten)]
    pub of_vcpus: OfVcpus,
    /// Who ran while its vCPUs waited, percent of one pCPU, most first.
    pub taken_by_pct: Vec<(String, f64)>,
    /// Each vCPU.
    pub parts: Vec<Part>,
}

/// All VMs in an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Length of the interval, seconds.
    pub interval_s: f64,
    /// Its end, seconds of CLOCK_MONOTONIC: the clock of ftrace's `mono`.
    pub until_s: f64,
    /// The VMs, by name.
    pub vms: Vec<VmReport>,
    /// What could not be observed, because of hooks that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_observed: Vec<&'static str>,
    /// Threads and pairs of VMs for which there was no room, in all.
    pub no_room: u64,
    /// CPU time of the observer's BPF programs, percent of one pCPU; none: the kernel does not count it
    /// (`kernel.bpf_stats_enabled`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpf_pct: Option<f64>,
}

/// What came between two moments. `label` tells what people call a VM.
pub fn between(earlier: &Snapshot, later: &Snapshot, mut label: impl FnMut(u32) -> Label) -> Report {
    let interval_ns = later.at_ns.saturating_sub(earlier.at_ns).max(1) as f64;
    let mut vms: BTreeMap<u32, Vec<(u32, Thread)>> = BTreeMap::new();
    for (tid, thread) in &later.threads {
        let came = thread.since(earlier.threads.get(tid));
        vms.entry(thread.vm).or_default().push((*tid, came));
    }
    // The VMM may outlive its VM.
    vms.retain(|_, threads| threads.iter().any(|(_, thread)| thread.role == Role::Vcpu));
    let labels: BTreeMap<u32, Label> = vms.keys().map(|pid| (*pid, label(*pid))).collect();
    let mut reports: Vec<VmReport> = vms
        .iter()
        .map(|(pid, threads)| {
            let taken = taken_by(*pid, earlier, later, interval_ns, &labels);
            report_of(*pid, labels[pid].clone(), threads, interval_ns, taken)
        })
        .collect();
    reports.sort_by(|a, b| (&a.label.name, a.pid).cmp(&(&b.label.name, b.pid)));
    let bpf_ns = later.bpf_ns.saturating_sub(earlier.bpf_ns);
    Report {
        interval_s: interval_ns / 1e9,
        until_s: later.at_ns as f64 / 1e9,
        vms: reports,
        not_observed: Vec::new(),
        no_room: later.no_room,
        bpf_pct: (bpf_ns > 0).then(|| bpf_ns as f64 / interval_ns * 100.0),
    }
}

fn taken_by(
    vm: u32,
    earlier: &Snapshot,
    later: &Snapshot,
    interval_ns: f64,
    labels: &BTreeMap<u32, Label>,
) -> Vec<(String, f64)> {
    let name = |taker: Taker| match taker {
        Taker::Vm(pid) if pid == vm => TAKEN_BY_ITSELF.to_owned(),
        Taker::Vm(pid) => labels.get(&pid).map_or_else(|| format!("vm-{pid}"), |label| label.name.clone()),
        Taker::Other => TAKEN_BY_HOST.to_owned(),
        Taker::Unknown => TAKEN_BY_UNKNOWN.to_owned(),
    };
    let mut list: Vec<(String, f64)> = later
        .taken_ns
        .range((vm, Taker::Vm(0))..=(vm, Taker::Unknown))
        .map(|(key, ns)| {
            let before = earlier.taken_ns.get(key).copied().unwrap_or(0);
            (name(key.1), pct(ns.saturating_sub(before), interval_ns))
        })
        .filter(|(_, pct)| *pct > 0.0)
        .collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1));
    list
}

fn report_of(
    pid: u32,
    label: Label,
    threads: &[(u32, Thread)],
    interval_ns: f64,
    taken_by_pct: Vec<(String, f64)>,
) -> VmReport {
    let mut vcpus: Vec<(u32, &Thread)> = threads
        .iter()
        .filter(|(_, thread)| thread.role == Role::Vcpu)
        .map(|(tid, thread)| (*tid, thread))
        .collect();
    vcpus.sort_by_key(|(_, thread)| thread.index);
    let others: Vec<&Thread> =
        threads.iter().map(|(_, thread)| thread).filter(|thread| thread.role != Role::Vcpu).collect();
    let part = |vcpu: Option<(u32, u32)>, threads: &[&Thread]| {
        let time = |of: fn(&Thread) -> u64| pct(sum(threads, of), interval_ns);
        let rate = |of: fn(&Thread) -> u64| per_s(sum(threads, of), interval_ns);
        Part {
            vcpu: vcpu.map(|(index, _)| index),
            tid: vcpu.map(|(_, tid)| tid),
            run_pct: time(|thread| thread.run_ns),
            ready_pct: time(|thread| thread.ready_ns),
            preemptions_per_s: rate(|thread| thread.preemptions),
            wakeups_per_s: rate(|thread| thread.wakeups),
            of_vcpu: vcpu.map(|_| OfVcpus::new(threads, interval_ns)),
        }
    };
    let mut parts: Vec<Part> =
        vcpus.iter().map(|(tid, thread)| part(Some((thread.index, *tid)), &[*thread])).collect();
    let rest = part(None, &others);
    if !others.is_empty() {
        parts.push(rest.clone());
    }
    let vcpus: Vec<&Thread> = vcpus.into_iter().map(|(_, thread)| thread).collect();
    let all = part(None, &vcpus);
    VmReport {
        label,
        pid,
        vcpus: vcpus.len(),
        run_pct: all.run_pct,
        vmm_run_pct: rest.run_pct,
        ready_pct: all.ready_pct / vcpus.len().max(1) as f64,
        vmm_ready_pct: rest.ready_pct,
        of_vcpus: OfVcpus::new(&vcpus, interval_ns),
        taken_by_pct,
        parts,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    pub(crate) fn thread(vm: u32, role: Role, index: u32, run_ns: u64, ready_ns: u64) -> Thread {
        Thread {
            vm,
            role,
            index,
            born_ns: 1,
            run_ns,
            ready_ns,
            preemptions: 0,
            wakeups: 0,
            interrupts: 0,
            interrupts_off: 0,
            polls_won: 0,
            exits: [0; EXITS.len()],
            steal_ns: 0,
            ready: Times::default(),
            to_run: Times::default(),
            device_to_run: Times::default(),
            passed_over: 0,
        }
    }

    pub(crate) fn label(pid: u32) -> Label {
        Label { name: format!("vm{pid}"), cgroup: format!("/machine.slice/vm{pid}.scope") }
    }

    /// Two seconds: VM 10 with two vCPUs and an emulator thread beside VM 20 with one.
    pub(crate) fn two_vms() -> (Snapshot, Snapshot) {
        let mut earlier = Snapshot { at_ns: 10 * S, ..Snapshot::default() };
        earlier.threads.insert(11, thread(10, Role::Vcpu, 1, 5 * S, S));
        earlier.taken_ns.insert((10, Taker::Vm(20)), S);
        let mut later = Snapshot { at_ns: 12 * S, ..Snapshot::default() };
        later.threads.insert(11, thread(10, Role::Vcpu, 1, 6 * S, 2 * S));
        later.threads.insert(12, thread(10, Role::Vcpu, 0, 2 * S, 0));
        later.threads.insert(13, thread(10, Role::Vmm, 0, S / 10, S / 5));
        later.threads.insert(21, thread(20, Role::Vcpu, 0, S, S));
        later.taken_ns.insert((10, Taker::Vm(20)), S + S * 4 / 5);
        later.taken_ns.insert((10, Taker::Other), S / 5);
        (earlier, later)
    }

    #[test]
    fn what_came_in_an_interval_is_told_by_vm() {
        let (earlier, later) = two_vms();
        let report = between(&earlier, &later, label);
        let names: Vec<&str> = report.vms.iter().map(|vm| vm.label.name.as_str()).collect();
        assert_eq!(names, ["vm10", "vm20"]);
        let vm = &report.vms[0];
        assert_eq!((vm.vcpus, vm.run_pct, vm.ready_pct), (2, 150.0, 25.0));
        assert_eq!((vm.vmm_run_pct, vm.vmm_ready_pct), (5.0, 10.0));
        assert_eq!(vm.taken_by_pct, [("vm20".to_owned(), 40.0), ("host".to_owned(), 10.0)]);
        let vcpus: Vec<Option<u32>> = vm.parts.iter().map(|part| part.vcpu).collect();
        assert_eq!(vcpus, [Some(0), Some(1), None]);
    }

    #[test]
    fn each_vcpu_has_its_own_figures() {
        let (earlier, mut later) = two_vms();
        for (tid, exits) in [(11, 6), (12, 4)] {
            let thread = later.threads.get_mut(&tid).unwrap();
            thread.exits[intf::exit_class_EXIT_HALT as usize] = exits;
            thread.steal_ns = S / 10 * exits;
            thread.interrupts = 2 * exits;
        }
        let vm = &between(&earlier, &later, label).vms[0];
        let halts = |part: &Part| part.of_vcpu.as_ref().map(|of| (of.halts_per_s[0], of.steal_pct));
        let halts: Vec<_> = vm.parts.iter().map(halts).collect();
        assert_eq!(halts, [Some((2.0, 20.0)), Some((3.0, 30.0)), None]);
        assert_eq!((vm.of_vcpus.halts_per_s[0], vm.of_vcpus.steal_pct), (5.0, 25.0));
        assert_eq!(vm.of_vcpus.interrupts_per_s[0], 10.0);
        // Programs find both under the same names.
        let value = serde_json::to_value(vm).unwrap();
        assert_eq!((&value["steal_pct"], &value["parts"][0]["steal_pct"]), (&25.0.into(), &20.0.into()));
        assert!(value["parts"][2].get("steal_pct").is_none());
    }

    #[test]
    fn a_vmm_without_vcpus_is_no_vm() {
        let (earlier, mut later) = two_vms();
        later.threads.retain(|_, thread| thread.vm != 10 || thread.role != Role::Vcpu);
        let names: Vec<String> =
            between(&earlier, &later, label).vms.into_iter().map(|vm| vm.label.name).collect();
        assert_eq!(names, ["vm20"]);
    }

    #[test]
    fn totals_never_fall() {
        let (_, earlier) = two_vms();
        let mut later = earlier.clone();
        for thread in later.threads.values_mut() {
            thread.run_ns = thread.run_ns.saturating_sub(S / 2);
        }
        later.not_below(&earlier);
        assert_eq!(later, earlier);
        // Another thread of the same number begins at its own totals.
        let mut other = earlier.clone();
        for thread in other.threads.values_mut() {
            (thread.born_ns, thread.run_ns) = (7, 0);
        }
        other.not_below(&earlier);
        assert!(other.threads.values().all(|thread| thread.run_ns == 0));
    }

    #[test]
    fn interrupts_of_devices_are_told_apart_and_who_passed_them_over() {
        let (mut earlier, mut later) = two_vms();
        let times = |count: u64| Times { count, sum_ns: count * 2_000, ..Times::default() };
        for (snapshot, count, passed_over) in [(&mut earlier, 10, 3), (&mut later, 30, 4)] {
            let thread = snapshot.threads.get_mut(&11).unwrap();
            (thread.device_to_run, thread.passed_over) = (times(count), passed_over);
        }
        later.threads.get_mut(&12).unwrap().device_to_run = times(5);
        let vms = between(&earlier, &later, label).vms;
        assert_eq!(vms[0].of_vcpus.device_interrupt_to_run, times(25));
        assert_eq!((vms[0].of_vcpus.passed_over_pct, vms[1].of_vcpus.passed_over_pct), (4.0, 0.0));
    }

    #[test]
    fn another_thread_of_the_same_number_begins_anew() {
        let (earlier, mut later) = two_vms();
        if let Some(thread) = later.threads.get_mut(&11) {
            thread.born_ns = 2;
            thread.run_ns = S / 2;
        }
        let report = between(&earlier, &later, label);
        assert_eq!(report.vms[0].parts[1].run_pct, 25.0);
    }

    #[test]
    fn what_has_not_ended_yet_counts_up_to_now() {
        let zeros = vec![0; std::mem::size_of::<intf::thread_record>()];
        let mut record: intf::thread_record = crate::sys::from_bytes(&zeros).unwrap();
        (record.run_ns, record.running_since_ns, record.ready_ns) = (5, 100, 7);
        let thread = Thread::read(&record, 150);
        assert_eq!((thread.run_ns, thread.ready_ns), (55, 7));
        assert_eq!(Thread::read(&record, 90).run_ns, 5, "it began after the clock was read");
    }
}
