//! Statistics: what the scheduler did, for people (`--stats`) and programs (scx_stats).

use crate::bpf::intf;
use crate::model::{GroupFacts, VcpuFacts};
use scx_stats::prelude::{Meta, StatsMeta};
use scx_stats_derive::Stats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use tandem_daemon::report::{format_counters, Counters, Report};

/// Why a vCPU is left without work, in words.
const BANS: &[(u32, &str)] = &[
    (intf::TANDEM_BAN_STRAGGLER, "straggler: best effort only"),
    (intf::TANDEM_BAN_STACKED, "spare of its stack: empty"),
    (intf::TANDEM_BAN_PARKED, "parked: empty"),
    (intf::TANDEM_BAN_LIMITED, "more vCPUs than pCPUs: empty"),
];

/// One vCPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize, Stats)]
#[stat(desc = "vCPU as measured", _om_prefix = "vcpu_", _om_label = "cpu")]
pub struct VcpuStats {
    /// Share of a pCPU.
    #[stat(desc = "share of a pCPU that the vCPU gets when it has work, 0 to 1")]
    pub share: f64,
    /// Mean preemption interval in microseconds.
    #[stat(desc = "mean length of a preemption interval (us)")]
    pub inactive_mean_us: f64,
    /// Preemption intervals.
    #[stat(desc = "preemption intervals while the vCPU had work")]
    pub preemptions: u64,
    /// Their sum in milliseconds.
    #[stat(desc = "their sum (ms)")]
    pub preempted_ms: f64,
    /// 95th percentile of their lengths in milliseconds, since the scheduler was loaded.
    #[stat(desc = "95th percentile of their lengths since the scheduler was loaded (ms)")]
    pub preemption_p95_ms: f64,
    /// Age of the estimate in milliseconds, -1: none yet.
    #[stat(desc = "age of the estimate (ms), -1 if there is none")]
    pub age_ms: f64,
    /// Length of an active period in milliseconds, 0: preemption is not periodic.
    #[stat(desc = "predicted length of an active period (ms), 0 if preemption intervals are irregular")]
    pub rhythm_on_ms: f64,
    /// Length of a preemption interval in milliseconds, 0: preemption is not periodic.
    #[stat(desc = "predicted length of a preemption interval (ms), 0 if they are irregular")]
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
    #[stat(desc = "of these tasks, the CPU-bound ones, which load balance counts")]
    pub cpu_bound_tasks: u64,
    /// Their weight.
    #[stat(desc = "effective weight of the CPU-bound tasks")]
    pub cpu_bound_weight: f64,
}

/// State at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Stats)]
#[stat(desc = "runnable tasks and groups", _om_prefix = "now_")]
pub struct Moment {
    /// 1: the scheduler is loaded.
    #[stat(desc = "1 while the scheduler is loaded, 0 while it is unloaded by --gate")]
    pub loaded: u64,
    /// Runnable tasks.
    #[stat(desc = "tasks that wait or run")]
    pub tasks: u64,
    /// Their weight.
    #[stat(desc = "effective weight of these tasks, 1 is nice 0 outside of all groups")]
    pub weight: f64,
    /// CPU-bound tasks among them.
    #[stat(desc = "of these tasks, the CPU-bound ones, which load balance counts")]
    pub cpu_bound_tasks: u64,
    /// Their weight.
    #[stat(desc = "effective weight of the CPU-bound tasks")]
    pub cpu_bound_weight: f64,
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

include!(concat!(env!("OUT_DIR"), "/counters.rs"));

impl VcpuStats {
    fn since(&self, earlier: Option<&Self>) -> Self {
        let (preemptions, preempted_ms) = earlier.map_or((0, 0.0), |e| (e.preemptions, e.preempted_ms));
        Self {
            preemptions: self.preemptions.saturating_sub(preemptions),
            preempted_ms: (self.preempted_ms - preempted_ms).max(0.0),
            ..self.clone()
        }
    }

    /// Preemption period and bans, in words.
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

    /// Mean preemption interval, milliseconds; 0: there were none.
    pub fn preemption_mean_ms(&self) -> f64 {
        if self.preemptions == 0 {
            0.0
        } else {
            self.preempted_ms / self.preemptions as f64
        }
    }
}

impl GuestStats {
    /// Totals since the scheduler was loaded.
    pub fn totals(facts: &[VcpuFacts], groups: GroupFacts) -> Self {
        let sum = |id: usize| facts.iter().filter_map(|fact| fact.counters.get(id)).sum::<u64>();
        let now = Moment {
            loaded: 1,
            tasks: facts.iter().map(|f| f.tasks).sum(),
            weight: facts.iter().map(|f| f.weight).sum(),
            cpu_bound_tasks: facts.iter().map(|f| f.cpu_bound_tasks).sum(),
            cpu_bound_weight: facts.iter().map(|f| f.cpu_bound_weight).sum(),
            groups: groups.groups,
            groups_shared: groups.shared,
            limits: groups.limits,
        };
        let vcpus = facts
            .iter()
            .filter(|f| f.online)
            .map(|f| {
                let stats = VcpuStats {
                    share: f.share,
                    inactive_mean_us: f.inactive_mean_us,
                    preemptions: f.preemptions.iter().sum(),
                    preempted_ms: f.preempted_ms,
                    preemption_p95_ms: f.preemption_percentile_ms(0.95).unwrap_or(0.0),
                    age_ms: f.age_ms.unwrap_or(-1.0),
                    rhythm_on_ms: f.rhythm_ms.map_or(0.0, |rhythm| rhythm.0),
                    rhythm_off_ms: f.rhythm_ms.map_or(0.0, |rhythm| rhythm.1),
                    bans: u64::from(f.bans),
                    tasks: f.tasks,
                    weight: f.weight,
                    cpu_bound_tasks: f.cpu_bound_tasks,
                    cpu_bound_weight: f.cpu_bound_weight,
                };
                (f.cpu, stats)
            })
            .collect();
        Self::new(std::array::from_fn(sum), now, vcpus)
    }
}

impl Report for GuestStats {
    const SIDE: &'static str = "guest";
    const COUNTERS: &'static Counters = &COUNTERS;

    fn parts() -> Vec<StatsMeta> {
        vec![VcpuStats::meta(), Moment::meta()]
    }

    fn after(&self, earlier: &Self) -> Self {
        let (counters, before) = (self.counters(), earlier.counters());
        let sums = std::array::from_fn(|id| counters[id] + before[id]);
        Self::new(sums, self.now.clone(), self.vcpus.clone())
    }

    /// The vCPUs are as they are now, except for their preemption intervals.
    fn since(&self, earlier: &Self) -> Self {
        let (counters, before) = (self.counters(), earlier.counters());
        let vcpus = self.vcpus.iter().map(|(cpu, v)| (*cpu, v.since(earlier.vcpus.get(cpu))));
        let since = std::array::from_fn(|id| counters[id].saturating_sub(before[id]));
        Self::new(since, self.now.clone(), vcpus.collect())
    }

    fn unloaded(self) -> Self {
        Self { now: Moment::default(), vcpus: BTreeMap::new(), ..self }
    }

    fn format(&self, out: &mut dyn Write) -> std::io::Result<()> {
        format_counters(&COUNTERS, &self.counters(), out)?;
        let now = &self.now;
        if now.loaded == 0 {
            writeln!(out, "  not loaded: unloaded by --gate")?;
        }
        writeln!(
            out,
            "  now: tasks {} weight {:.3} groups {} (shared {}) limits {} CPU-bound {} weight {:.3}",
            now.tasks,
            now.weight,
            now.groups,
            now.groups_shared,
            now.limits,
            now.cpu_bound_tasks,
            now.cpu_bound_weight
        )?;
        for (cpu, vcpu) in &self.vcpus {
            let notes = vcpu.notes();
            if vcpu.age_ms < 0.0 {
                writeln!(
                    out,
                    "  vCPU {cpu:<3} not measured yet, tasks {} weight {:.3} (CPU-bound {} weight {:.3}){notes}",
                    vcpu.tasks, vcpu.weight, vcpu.cpu_bound_tasks, vcpu.cpu_bound_weight
                )?;
            } else {
                writeln!(
                    out,
                    "  vCPU {cpu:<3} share {:5.1} %  preempted for {:6.2} ms, preemptions {} of {:.2} ms (p95 {:.2})  measured {:.0} ms ago  tasks {} weight {:.3} (CPU-bound {} weight {:.3}){notes}",
                    vcpu.share * 100.0,
                    vcpu.inactive_mean_us / 1e3,
                    vcpu.preemptions,
                    vcpu.preemption_mean_ms(),
                    vcpu.preemption_p95_ms,
                    vcpu.age_ms,
                    vcpu.tasks,
                    vcpu.weight,
                    vcpu.cpu_bound_tasks,
                    vcpu.cpu_bound_weight
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_daemon::report::in_words;

    /// The list of the BPF side is parsed line by line; a line that cannot be parsed would shift all that follow.
    #[test]
    fn every_counter_has_its_name() {
        assert_eq!(COUNTERS.len(), intf::counter_NR_COUNTERS as usize);
        assert_eq!(COUNTERS[intf::counter_CNT_THROTTLED as usize].0, "throttled");
        assert_eq!(COUNTERS[intf::counter_CNT_LEASES as usize].0, "leases");
    }

    #[test]
    fn the_guide_explains_every_counter() {
        let guide = include_str!("../../../docs/GUEST.md");
        for (name, text) in COUNTERS {
            let row = format!("| {} | {text} |", in_words(name));
            assert!(guide.contains(&row), "docs/GUEST.md lacks {row:?}");
        }
    }

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
