//! The scheduler's hooks in KVM: which of them are attached. Those on exits are only while they tell anything, because each exit costs
//! something then.

use crate::hooks::{Hook, Kernel, OF_THE_SCHEDULER};
use crate::kicks;
use crate::observe::kvm_is_there;
use crate::options::Fault;
use libbpf_rs::{Link, ProgramMut};
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_bpf::host::{intf, HostSkel};

/// Quotas must be gone for this long: containers with quotas come and go.
const NO_LIMITS: Duration = Duration::from_secs(30);

/// Hooks in KVM that can be used, as found when the scheduler was loaded.
pub(crate) struct Hooks {
    there: Vec<&'static Hook>,
    /// KVM was there.
    pub(crate) kvm: bool,
    /// Their programs may interrupt pCPUs.
    may_kick: bool,
}

/// Programs of the hooks that tell where a vCPU out of quota can stop.
const OF_SAFE_POINTS: [&str; 6] = [
    "host_work_begins",
    "host_block_begins",
    "host_vcpu_exits",
    "host_handles_vmx",
    "host_handles_svm",
    "host_handles_tdx",
];
/// Programs that tell of I/O.
const OF_IO: [&str; 4] = ["host_interrupt", "host_kick", "host_mmio", "host_pio"];
/// Where the handling of an exit begins, by processor.
const HANDLERS: [&str; 2] = ["host_handles_vmx", "host_handles_svm"];

impl Hooks {
    pub(crate) fn find() -> Self {
        let root = Path::new("/");
        let kvm = kvm_is_there(root);
        let there = if kvm { Kernel::under(root).of_the_scheduler() } else { Vec::new() };
        if kvm && there.is_empty() {
            log::warn!("KVM cannot be traced on this kernel: vCPUs are scheduled as any other thread (tandem doctor)");
        }
        // Reading all types of the kernel takes a while.
        let may_kick =
            there.iter().any(|hook| hook.program == "host_interrupt") && kicks::programs_may_kick();
        Self { there, kvm, may_kick }
    }

    /// None of them is used: their programs are not loaded.
    pub(crate) fn unused() -> Self {
        Self { there: Vec::new(), kvm: kvm_is_there(Path::new("/")), may_kick: false }
    }

    /// Is any of them used?
    pub(crate) fn are_used(&self) -> bool {
        !self.there.is_empty()
    }

    /// Attaches them, after the scheduler: a task has no record before. What the kernel refuses to attach counts as missing from then
    /// on.
    pub(crate) fn attach(&mut self, skel: &mut HostSkel<'_>, fault: Fault) {
        let refuse = fault == Fault::NoHooks;
        let needed = self.has("host_vcpu_runs").then(|| attach_needed(skel));
        if let Some(Err(error)) = needed {
            log::warn!("vCPUs are scheduled as any other thread, because KVM cannot be traced: {error}");
            (skel.links.host_vcpu_runs, skel.links.host_vm_ends) = (None, None);
            self.there.clear();
        }
        let refused = || libbpf_rs::Error::from(std::io::Error::other("refused, to test that"));
        let mut comes = false;
        if self.has("host_vcpu_comes") {
            let attached = if refuse { Err(refused()) } else { skel.progs.host_vcpu_comes.attach() };
            match attached {
                Ok(link) => {
                    skel.links.host_vcpu_comes = Some(link);
                    comes = true;
                }
                Err(error) => {
                    log::warn!(
                        "vCPUs that were there before are known when they next need their VMM: {error}"
                    );
                    self.there.retain(|hook| hook.program != "host_vcpu_comes");
                }
            }
        }
        let safe = if refuse { Err(refused()) } else { attach_safe_points(skel, self) };
        if let Err(error) = safe {
            detach(skel);
            (skel.links.host_work_begins, skel.links.host_work_ends) = (None, None);
            if self.safe_points() != 0 {
                log::warn!("KVM's way through the kernel cannot be followed: {error}");
            }
            self.there.retain(|hook| !OF_SAFE_POINTS.contains(&hook.program));
        }
        let io = if refuse { Err(refused()) } else { attach_io(skel, self) };
        if let Err(error) = io {
            (skel.links.host_interrupt, skel.links.host_kick) = (None, None);
            (skel.links.host_mmio, skel.links.host_pio) = (None, None);
            log::warn!("vCPUs that do I/O do not come first: {error}");
            self.there.retain(|hook| !OF_IO.contains(&hook.program));
        }
        let may_kick = fault != Fault::NoKicks && self.may_kick;
        if self.has("host_interrupt") && !may_kick {
            log::warn!("a vCPU that is interrupted comes first within a millisecond, not at once: programs that hang in KVM may not interrupt a pCPU on this kernel");
        }
        if let Some(bss) = skel.maps.bss_data.as_mut() {
            bss.sees_interrupts = u32::from(self.has("host_interrupt"));
            bss.programs_may_kick = u32::from(may_kick);
            bss.sees_vcpus_come = u32::from(comes);
            bss.safe_points = self.safe_points();
        }
    }

    /// Can this program be attached?
    pub(crate) fn has(&self, program: &str) -> bool {
        // Two hooks have a program at their end as well.
        let program = match program {
            "host_work_ends" => "host_work_begins",
            "host_block_ends" => "host_block_begins",
            other => other,
        };
        let there = |program: &str| self.there.iter().any(|hook| hook.program == program);
        // Without the beginning of the exit's handling its mark would stay while locks are held.
        there(program) && (program != "host_vcpu_exits" || HANDLERS.iter().any(|handler| there(handler)))
    }

    /// Where a vCPU out of quota can be stopped (`enum safe_points`).
    pub(crate) fn safe_points(&self) -> u32 {
        let mut points = 0;
        if self.has("host_work_begins") {
            points |= intf::safe_points_SAFE_BEFORE_ENTRY;
            // Alone it is no help: a kernel that is not preemptible never switches there.
            if self.has("host_vcpu_exits") {
                points |= intf::safe_points_SAFE_AFTER_EXIT;
            }
        }
        points
    }

    /// What is missing for quotas, in words; none: nothing, or there is no KVM.
    pub(crate) fn missing_for_quotas(&self) -> Option<String> {
        if !self.kvm || self.there.is_empty() || self.safe_points() & intf::safe_points_SAFE_AFTER_EXIT != 0 {
            return None;
        }
        let missing = OF_THE_SCHEDULER.iter().filter(|hook| OF_SAFE_POINTS.contains(&hook.program));
        let missing: Vec<&str> =
            missing.filter(|hook| !self.has(hook.program)).map(|hook| hook.name).collect();
        Some(missing.join(", "))
    }
}

/// What to do with the hooks on exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Attached,
    /// Marks are not made any more, but still taken away.
    Fading,
    Detached,
}

/// Keeps them attached while they are needed.
pub(crate) struct Exits {
    limits_at: Option<Instant>,
    now: Wish,
    /// They could not be attached; it is not tried again.
    refused: bool,
}

impl Exits {
    /// The scheduler was loaded with all of its hooks attached.
    pub(crate) fn new() -> Self {
        Self { limits_at: None, now: Wish::Attached, refused: false }
    }

    fn wish(&mut self, limits: bool, now: Instant) -> Wish {
        if limits {
            self.limits_at = Some(now);
        }
        let recent = self.limits_at.is_some_and(|at| now.saturating_duration_since(at) < NO_LIMITS);
        match self.now {
            _ if recent && !self.refused => Wish::Attached,
            Wish::Attached => Wish::Fading,
            Wish::Fading | Wish::Detached => Wish::Detached,
        }
    }

    /// A step of the daemon. `limits`: some cgroup has a quota.
    pub(crate) fn step(&mut self, skel: &mut HostSkel<'_>, hooks: &Hooks, limits: bool, now: Instant) {
        let wish = self.wish(limits, now);
        if wish == self.now {
            return;
        }
        match wish {
            Wish::Attached => {
                if let Err(error) = attach(skel, hooks) {
                    log::warn!("exits are not looked at: {error}");
                    detach(skel);
                    self.refused = true;
                    self.now = Wish::Detached;
                    return;
                }
            }
            Wish::Fading => fade(skel),
            Wish::Detached => detach(skel),
        }
        self.now = wish;
    }
}

fn attach_needed(skel: &mut HostSkel<'_>) -> libbpf_rs::Result<()> {
    skel.links.host_vm_ends = Some(skel.progs.host_vm_ends.attach()?);
    skel.links.host_vcpu_runs = Some(skel.progs.host_vcpu_runs.attach()?);
    Ok(())
}

/// All that tell of I/O. Kicks alone make no boost.
fn attach_io(skel: &mut HostSkel<'_>, hooks: &Hooks) -> libbpf_rs::Result<()> {
    if !hooks.has("host_interrupt") {
        return Ok(());
    }
    let (links, progs) = (&mut skel.links, &skel.progs);
    attach_each(
        hooks,
        [
            (&mut links.host_kick, &progs.host_kick, "host_kick"),
            (&mut links.host_mmio, &progs.host_mmio, "host_mmio"),
            (&mut links.host_pio, &progs.host_pio, "host_pio"),
            (&mut links.host_interrupt, &progs.host_interrupt, "host_interrupt"),
        ],
    )
}

/// Those that can be attached and are not yet, in this order.
fn attach_each<const N: usize>(
    hooks: &Hooks,
    programs: [(&mut Option<Link>, &ProgramMut<'_>, &str); N],
) -> libbpf_rs::Result<()> {
    for (link, program, name) in programs {
        if hooks.has(name) && link.is_none() {
            *link = Some(program.attach()?);
        }
    }
    Ok(())
}

/// All that tell where a vCPU out of quota can stop. What takes marks away comes first.
fn attach_safe_points(skel: &mut HostSkel<'_>, hooks: &Hooks) -> libbpf_rs::Result<()> {
    if hooks.has("host_work_begins") {
        skel.links.host_work_ends = Some(skel.progs.host_work_ends.attach()?);
        skel.links.host_work_begins = Some(skel.progs.host_work_begins.attach()?);
    }
    attach(skel, hooks)
}

/// What takes marks away comes first: a mark that nobody takes away would be believed.
fn attach(skel: &mut HostSkel<'_>, hooks: &Hooks) -> libbpf_rs::Result<()> {
    let (links, progs) = (&mut skel.links, &skel.progs);
    attach_each(
        hooks,
        [
            (&mut links.host_handles_vmx, &progs.host_handles_vmx, "host_handles_vmx"),
            (&mut links.host_handles_svm, &progs.host_handles_svm, "host_handles_svm"),
            (&mut links.host_handles_tdx, &progs.host_handles_tdx, "host_handles_tdx"),
            (&mut links.host_block_ends, &progs.host_block_ends, "host_block_ends"),
            (&mut links.host_block_begins, &progs.host_block_begins, "host_block_begins"),
            (&mut links.host_vcpu_exits, &progs.host_vcpu_exits, "host_vcpu_exits"),
        ],
    )
}

fn fade(skel: &mut HostSkel<'_>) {
    skel.links.host_vcpu_exits = None;
    skel.links.host_block_begins = None;
}

fn detach(skel: &mut HostSkel<'_>) {
    fade(skel);
    skel.links.host_block_ends = None;
    skel.links.host_handles_vmx = None;
    skel.links.host_handles_svm = None;
    skel.links.host_handles_tdx = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(programs: &[&str]) -> Hooks {
        let there = OF_THE_SCHEDULER.iter().filter(|hook| programs.contains(&hook.program)).collect();
        Hooks { there, kvm: true, may_kick: true }
    }

    #[test]
    fn safe_points_need_their_hooks() {
        let (entry, exit) = (intf::safe_points_SAFE_BEFORE_ENTRY, intf::safe_points_SAFE_AFTER_EXIT);
        assert_eq!(hooks(&["host_vcpu_exits", "host_handles_svm"]).safe_points(), 0);
        assert_eq!(hooks(&["host_work_begins", "host_handles_svm"]).safe_points(), entry);
        let all = hooks(&["host_work_begins", "host_vcpu_exits", "host_handles_vmx"]);
        assert_eq!(all.safe_points(), entry | exit);
        assert!(all.has("host_work_ends") && all.missing_for_quotas().is_none());
        assert!(hooks(&["host_vcpu_exits"]).missing_for_quotas().unwrap().contains("xfer_to_guest_mode"));
    }

    #[test]
    fn exits_are_looked_at_while_they_tell_anything() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut exits = Exits::new();
        let mut wish = |limits, s| {
            let wish = exits.wish(limits, at(s));
            exits.now = wish;
            wish
        };
        assert_eq!(wish(false, 11), Wish::Fading, "loading has attached all");
        assert_eq!(wish(false, 12), Wish::Detached);
        assert_eq!(wish(true, 20), Wish::Attached);
        assert_eq!(wish(false, 45), Wish::Attached, "quotas come and go");
        assert_eq!(wish(false, 51), Wish::Fading);
        assert_eq!(wish(false, 52), Wish::Detached);
    }
}
