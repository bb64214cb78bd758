//! Statistics: what the scheduler did, for people (`--stats`) and programs (scx_stats).

use crate::bpf::intf;
use crate::model::{GroupFacts, VcpuFacts};
use scx_stats_derive::Stats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// Why a vCPU is left without work, in words.
const BANS: &[(u32, &str)] = &[
    (intf::TANDEM_BAN_STRAGGLER, "straggler: best effort only"),
    (intf::TANDEM_BAN_STACKED, "spare of its stack: empty"),
    (intf::TANDEM_BAN_PARKED, "parked: empty"),
    (intf::TANDEM_BAN_CROWDED, "more vCPUs than pCPUs: empty"),
];

/// One vCPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(desc = "vCPU as measured", _om_prefix = "vcpu_", _om_label = "cpu")]
pub struct VcpuStats {
    /// Share of a pCPU.
    #[stat(desc = "share of a pCPU that the vCPU gets when it has work, 0 to 1")]
    pub share: f64,
    /// Mean absence in microseconds.
    #[stat(desc = "mean length of an absence (us)")]
    pub inactive_mean_us: f64,
    /// Absences.
    #[stat(desc = "absences seen while the vCPU had work")]
    pub absences: u64,
    /// Their sum in milliseconds.
    #[stat(desc = "sum of these absences (ms)")]
    pub absent_ms: f64,
    /// 95th percentile of their lengths in milliseconds, since the scheduler was loaded.
    #[stat(desc = "95th percentile of their lengths since the scheduler was loaded (ms)")]
    pub absence_p95_ms: f64,
    /// Age of the estimate in milliseconds, -1: none yet.
    #[stat(desc = "age of the estimate (ms), -1 if there is none")]
    pub age_ms: f64,
    /// Length of an active period in milliseconds, 0: it has no rhythm.
    #[stat(desc = "foreseen length of an active period (ms), 0 if absences are irregular")]
    pub rhythm_on_ms: f64,
    /// Length of an absence in milliseconds, 0: it has no rhythm.
    #[stat(desc = "foreseen length of an absence (ms), 0 if absences are irregular")]
    pub rhythm_off_ms: f64,
    /// Why it is left without work.
    #[stat(
        desc = "why it is left without work, a bit set: 1 straggler, 2 spare of a stack, 4 parked, 8 too many"
    )]
    pub bans: u64,
    /// Tasks that wait or run there.
    #[stat(desc = "tasks that wait or run there")]
    pub tasks: u64,
    /// Their weight.
    #[stat(desc = "effective weight of these tasks, 1 is nice 0 outside of all groups")]
    pub weight: f64,
    /// CPU-bound tasks among them.
    #[stat(desc = "of these tasks, those that balancing counts: CPU-bound ones")]
    pub hogs: u64,
    /// Their weight.
    #[stat(desc = "effective weight of the CPU-bound tasks")]
    pub hog_weight: f64,
}

/// What there is at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "runnable tasks and groups", _om_prefix = "now_")]
pub struct Moment {
    /// Runnable tasks.
    #[stat(desc = "tasks that wait or run")]
    pub tasks: u64,
    /// Their weight.
    #[stat(desc = "effective weight of these tasks, 1 is nice 0 outside of all groups")]
    pub weight: f64,
    /// CPU-bound tasks among them.
    #[stat(desc = "of these tasks, those that balancing counts: CPU-bound ones")]
    pub hogs: u64,
    /// Their weight.
    #[stat(desc = "effective weight of the CPU-bound tasks")]
    pub hog_weight: f64,
    /// Groups.
    #[stat(desc = "cgroups with a record of their own")]
    pub groups: u64,
    /// Groups without a record.
    #[stat(desc = "cgroups that share their parent's record because there are too many")]
    pub groups_shared: u64,
    /// Groups with a quota.
    #[stat(desc = "cgroups with a quota")]
    pub limits: u64,
}

/// The whole guest; counters since the previous report.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(desc = "Tandem guest scheduler", _om_prefix = "tandem_guest_", top)]
pub struct GuestStats {
    /// Counter, see `desc`.
    #[stat(desc = "tasks woken straight onto an idle vCPU")]
    pub direct: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks put into a queue")]
    pub queued: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks that went on after their request, first by deadline")]
    pub kept: u64,
    /// Counter, see `desc`.
    #[stat(desc = "slices given back that the host had stolen")]
    pub regranted: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks taken from another vCPU's queue")]
    pub pulled: u64,
    /// Counter, see `desc`.
    #[stat(desc = "of these, from a vCPU that the host had preempted")]
    pub rescued: u64,
    /// Counter, see `desc`.
    #[stat(desc = "running tasks moved to a stronger vCPU")]
    pub pushed: u64,
    /// Counter, see `desc`.
    #[stat(desc = "wake-up preemptions")]
    pub preempted: u64,
    /// Counter, see `desc`.
    #[stat(desc = "wake-ups sent to a better vCPU than the previous one")]
    pub steered: u64,
    /// Counter, see `desc`.
    #[stat(desc = "waiting tasks that a weak idle vCPU left where they are served sooner")]
    pub declined: u64,
    /// Counter, see `desc`.
    #[stat(desc = "sudden losses of share")]
    pub drops: u64,
    /// Counter, see `desc`.
    #[stat(desc = "best-effort slices given only to satisfy the watchdog")]
    pub floor: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks taken from the queue of an offline vCPU")]
    pub orphans: u64,
    /// Counter, see `desc`.
    #[stat(desc = "light tasks served by the clock on the wall, before their deadline")]
    pub due: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks that had to wait for their group's quota")]
    pub parked: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks that came back from there")]
    pub unparked: u64,
    /// Counter, see `desc`.
    #[stat(desc = "of these, without quota, only to satisfy the watchdog")]
    pub on_debt: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks handed to a lighter CPU, for fairness across CPUs")]
    pub given: u64,
    /// Counter, see `desc`.
    #[stat(desc = "waiting tasks taken over from a heavier CPU")]
    pub evened: u64,
    /// Counter, see `desc`.
    #[stat(desc = "slice timers armed")]
    pub timers: u64,
    /// Taken across caches.
    #[stat(desc = "waiting tasks taken across last-level caches")]
    pub far: u64,
    /// Counter, see `desc`.
    #[stat(desc = "vCPUs called because another would soon be taken by the host")]
    pub foreseen: u64,
    /// Counter, see `desc`.
    #[stat(desc = "running tasks that left before their vCPU was taken")]
    pub harvested: u64,
    /// Counter, see `desc`.
    #[stat(desc = "what these gained by it, as foreseen (us)")]
    pub harvested_us: u64,
    /// Counter, see `desc`.
    #[stat(desc = "such moves given up: nobody answered, or nothing was to be gained")]
    pub abandoned: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks on their way to another vCPU that were not fetched in time")]
    pub taken_back: u64,
    /// Counter, see `desc`.
    #[stat(desc = "CPU-bound tasks whose vCPU was taken before they had left")]
    pub caught: u64,
    /// Counter, see `desc`.
    #[stat(desc = "vCPUs found to get about a tenth of what others get")]
    pub stragglers: u64,
    /// Counter, see `desc`.
    #[stat(desc = "tasks sent away from a vCPU that is left without work")]
    pub evicted: u64,
    /// Counter, see `desc`.
    #[stat(desc = "best-effort work interrupted for normal work on the same hardware thread")]
    pub held: u64,
    /// Counter, see `desc`.
    #[stat(desc = "wake-ups of tasks that shall answer soon by the user's word")]
    pub hinted: u64,
    /// Counter, see `desc`.
    #[stat(desc = "threads that were given a vCPU of their own")]
    pub leases: u64,
    /// What there is now, not since when.
    #[stat(desc = "runnable tasks and groups at this moment")]
    pub now: Moment,
    /// Each vCPU.
    #[stat(desc = "vCPUs")]
    pub vcpus: BTreeMap<usize, VcpuStats>,
}

impl VcpuStats {
    fn since(&self, earlier: Option<&Self>) -> Self {
        let (absences, absent_ms) = earlier.map_or((0, 0.0), |e| (e.absences, e.absent_ms));
        Self {
            absences: self.absences.saturating_sub(absences),
            absent_ms: (self.absent_ms - absent_ms).max(0.0),
            ..self.clone()
        }
    }

    /// What else is to be said of it.
    fn notes(&self) -> String {
        let mut notes = String::new();
        if self.rhythm_on_ms > 0.0 {
            notes += &format!("  rhythm {:.1}/{:.1} ms", self.rhythm_on_ms, self.rhythm_off_ms);
        }
        for (bit, reason) in BANS {
            if self.bans & u64::from(*bit) != 0 {
                notes += &format!("  {reason}");
            }
        }
        notes
    }

    /// Mean length of the absences, milliseconds; 0: there were none.
    pub fn absence_mean_ms(&self) -> f64 {
        if self.absences == 0 {
            0.0
        } else {
            self.absent_ms / self.absences as f64
        }
    }
}

impl GuestStats {
    /// Totals since the scheduler was loaded.
    pub fn totals(facts: &[VcpuFacts], groups: GroupFacts) -> Self {
        let sum = |id: u32| facts.iter().filter_map(|f| f.counters.get(id as usize)).sum::<u64>();
        Self {
            direct: sum(intf::counter_CNT_DIRECT),
            queued: sum(intf::counter_CNT_QUEUED),
            kept: sum(intf::counter_CNT_KEPT),
            regranted: sum(intf::counter_CNT_REGRANTED),
            pulled: sum(intf::counter_CNT_PULLED),
            rescued: sum(intf::counter_CNT_RESCUED),
            pushed: sum(intf::counter_CNT_PUSHED),
            preempted: sum(intf::counter_CNT_PREEMPTED),
            steered: sum(intf::counter_CNT_STEERED),
            declined: sum(intf::counter_CNT_DECLINED),
            drops: sum(intf::counter_CNT_DROPS),
            floor: sum(intf::counter_CNT_FLOOR),
            orphans: sum(intf::counter_CNT_ORPHANS),
            due: sum(intf::counter_CNT_DUE),
            parked: sum(intf::counter_CNT_PARKED),
            unparked: sum(intf::counter_CNT_UNPARKED),
            on_debt: sum(intf::counter_CNT_ON_DEBT),
            given: sum(intf::counter_CNT_GIVEN),
            evened: sum(intf::counter_CNT_EVENED),
            timers: sum(intf::counter_CNT_TIMERS),
            far: sum(intf::counter_CNT_FAR),
            foreseen: sum(intf::counter_CNT_FORESEEN),
            harvested: sum(intf::counter_CNT_HARVESTED),
            harvested_us: sum(intf::counter_CNT_HARVESTED_US),
            abandoned: sum(intf::counter_CNT_ABANDONED),
            taken_back: sum(intf::counter_CNT_TAKEN_BACK),
            caught: sum(intf::counter_CNT_CAUGHT),
            stragglers: sum(intf::counter_CNT_STRAGGLERS),
            evicted: sum(intf::counter_CNT_EVICTED),
            held: sum(intf::counter_CNT_HELD),
            hinted: sum(intf::counter_CNT_HINTED),
            leases: sum(intf::counter_CNT_LEASES),
            now: Moment {
                tasks: facts.iter().map(|f| f.tasks).sum(),
                weight: facts.iter().map(|f| f.weight).sum(),
                hogs: facts.iter().map(|f| f.hogs).sum(),
                hog_weight: facts.iter().map(|f| f.hog_weight).sum(),
                groups: groups.groups,
                groups_shared: groups.shared,
                limits: groups.limits,
            },
            vcpus: facts
                .iter()
                .filter(|f| f.online)
                .map(|f| {
                    let stats = VcpuStats {
                        share: f.share,
                        inactive_mean_us: f.inactive_mean_us,
                        absences: f.absences.iter().sum(),
                        absent_ms: f.absent_ms,
                        absence_p95_ms: f.absence_percentile_ms(0.95).unwrap_or(0.0),
                        age_ms: f.age_ms.unwrap_or(-1.0),
                        rhythm_on_ms: f.rhythm_ms.map_or(0.0, |rhythm| rhythm.0),
                        rhythm_off_ms: f.rhythm_ms.map_or(0.0, |rhythm| rhythm.1),
                        bans: u64::from(f.bans),
                        tasks: f.tasks,
                        weight: f.weight,
                        hogs: f.hogs,
                        hog_weight: f.hog_weight,
                    };
                    (f.cpu, stats)
                })
                .collect(),
        }
    }

    /// What happened since `earlier`. The vCPUs are as they are now, but for their absences.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            direct: self.direct.saturating_sub(earlier.direct),
            queued: self.queued.saturating_sub(earlier.queued),
            kept: self.kept.saturating_sub(earlier.kept),
            regranted: self.regranted.saturating_sub(earlier.regranted),
            pulled: self.pulled.saturating_sub(earlier.pulled),
            rescued: self.rescued.saturating_sub(earlier.rescued),
            pushed: self.pushed.saturating_sub(earlier.pushed),
            preempted: self.preempted.saturating_sub(earlier.preempted),
            steered: self.steered.saturating_sub(earlier.steered),
            declined: self.declined.saturating_sub(earlier.declined),
            drops: self.drops.saturating_sub(earlier.drops),
            floor: self.floor.saturating_sub(earlier.floor),
            orphans: self.orphans.saturating_sub(earlier.orphans),
            due: self.due.saturating_sub(earlier.due),
            parked: self.parked.saturating_sub(earlier.parked),
            unparked: self.unparked.saturating_sub(earlier.unparked),
            on_debt: self.on_debt.saturating_sub(earlier.on_debt),
            given: self.given.saturating_sub(earlier.given),
            evened: self.evened.saturating_sub(earlier.evened),
            timers: self.timers.saturating_sub(earlier.timers),
            far: self.far.saturating_sub(earlier.far),
            foreseen: self.foreseen.saturating_sub(earlier.foreseen),
            harvested: self.harvested.saturating_sub(earlier.harvested),
            harvested_us: self.harvested_us.saturating_sub(earlier.harvested_us),
            abandoned: self.abandoned.saturating_sub(earlier.abandoned),
            taken_back: self.taken_back.saturating_sub(earlier.taken_back),
            caught: self.caught.saturating_sub(earlier.caught),
            stragglers: self.stragglers.saturating_sub(earlier.stragglers),
            evicted: self.evicted.saturating_sub(earlier.evicted),
            held: self.held.saturating_sub(earlier.held),
            hinted: self.hinted.saturating_sub(earlier.hinted),
            leases: self.leases.saturating_sub(earlier.leases),
            now: self.now.clone(),
            vcpus: self.vcpus.iter().map(|(cpu, v)| (*cpu, v.since(earlier.vcpus.get(cpu)))).collect(),
        }
    }

    /// One report for people.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn format<W: Write>(&self, out: &mut W) -> std::io::Result<()> {
        writeln!(
            out,
            "direct {} queued {} kept {} regranted {} pulled {} (rescued {}) pushed {} preempted {} steered {} declined {} drops {} floor {} orphans {} due {} parked {} unparked {} (on debt {}) given {} evened {} timers {}",
            self.direct, self.queued, self.kept, self.regranted, self.pulled, self.rescued, self.pushed,
            self.preempted, self.steered, self.declined, self.drops, self.floor, self.orphans,
            self.due, self.parked, self.unparked, self.on_debt, self.given, self.evened, self.timers
        )?;
        writeln!(
            out,
            "  left in time {} (called {} abandoned {} taken back {}, {:.1} ms gained; caught {})  stragglers {} evicted {} held {}  hinted {}  leases {}",
            self.harvested, self.foreseen, self.abandoned, self.taken_back, self.harvested_us as f64 / 1e3, self.caught,
            self.stragglers, self.evicted, self.held, self.hinted, self.leases
        )?;
        let now = &self.now;
        writeln!(
            out,
            "  now: tasks {} weight {:.3} groups {} (shared {}) limits {} CPU-bound {} weight {:.3}",
            now.tasks, now.weight, now.groups, now.groups_shared, now.limits, now.hogs, now.hog_weight
        )?;
        for (cpu, vcpu) in &self.vcpus {
            let notes = vcpu.notes();
            if vcpu.age_ms < 0.0 {
                writeln!(
                    out,
                    "  vCPU {cpu:<3} not measured yet, tasks {} weight {:.3} (CPU-bound {} weight {:.3}){notes}",
                    vcpu.tasks, vcpu.weight, vcpu.hogs, vcpu.hog_weight
                )?;
            } else {
                writeln!(
                    out,
                    "  vCPU {cpu:<3} share {:5.1} %  absence {:6.2} ms  absences {} of {:.2} ms (p95 {:.2})  measured {:.0} ms ago  tasks {} weight {:.3} (CPU-bound {} weight {:.3}){notes}",
                    vcpu.share * 100.0,
                    vcpu.inactive_mean_us / 1e3,
                    vcpu.absences,
                    vcpu.absence_mean_ms(),
                    vcpu.absence_p95_ms,
                    vcpu.age_ms,
                    vcpu.tasks,
                    vcpu.weight,
                    vcpu.hogs,
                    vcpu.hog_weight
                )?;
            }
        }
        Ok(())
    }
}

/// Prints the statistics of a running scheduler at an interval until `stop` says so.
///
/// # Errors
/// If no scheduler serves statistics.
pub fn monitor(interval: Duration, stop: impl Fn() -> bool) -> Result<(), crate::GuestError> {
    scx_utils::monitor_stats::<GuestStats>(&[], interval, stop, |stats| {
        Ok(stats.format(&mut std::io::stdout().lock())?)
    })
    .map_err(crate::GuestError::Stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_reported_as_differences_and_vcpus_as_they_are() {
        let mut earlier = GuestStats { direct: 5, pulled: 2, ..Default::default() };
        earlier.vcpus.insert(0, VcpuStats { share: 0.5, ..Default::default() });
        let mut later = GuestStats { direct: 9, pulled: 2, ..Default::default() };
        later.vcpus.insert(0, VcpuStats { share: 0.9, ..Default::default() });
        let delta = later.since(&earlier);
        assert_eq!((delta.direct, delta.pulled, delta.vcpus[&0].share), (4, 0, 0.9));
    }
}
