//! What differs between versions: constants, placement, protection.

use super::entity::{Entity, Rq};
use super::Arrival;

/// The kernel's table (nice -20 to 19): one step of nice is 1.25 times.
const WEIGHTS: [u64; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121,
    2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29,
    23, 18, 15,
];
/// Weight of SCHED_IDLE tasks and `cpu.idle` groups.
pub const IDLE_WEIGHT: u64 = 3;

/// Weight of a nice value; those out of range count as the nearest.
pub fn weight_of_nice(nice: i32) -> u64 {
    WEIGHTS[(nice.clamp(-20, 19) + 20) as usize]
}

/// Which scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// From 6.6 on. `version`: major times a hundred plus minor, 606 to 702.
    Eevdf {
        /// See above.
        version: u32,
    },
    /// Before 6.6.
    Cfs,
}

/// Constants of one kernel, by its number of CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Which scheduler.
    pub flavour: Flavour,
    /// EEVDF: base slice, ns.
    pub base_slice_ns: u64,
    /// EEVDF: the same before it is scaled with the number of CPUs, ns.
    unscaled_slice_ns: u64,
    /// CFS: period for up to eight tasks (`sched_latency`), ns.
    pub latency_ns: u64,
    /// CFS: least slice (minimum granularity), ns.
    pub min_granularity_ns: u64,
    /// CFS: lead that a waking task needs to preempt (wake-up granularity), ns.
    pub wakeup_granularity_ns: u64,
    /// The tick, ns.
    pub tick_ns: u64,
}

impl Rules {
    /// The rules of a kernel on `cpus` CPUs with a tick of `tick_ns`.
    pub fn new(flavour: Flavour, cpus: usize, tick_ns: u64) -> Self {
        // 1 + log2 of the CPUs, at most eight.
        let factor = u64::from(1 + cpus.clamp(1, 8).ilog2());
        let unscaled_slice_ns = match flavour {
            Flavour::Eevdf { version } if version >= 615 => 700_000,
            _ => 750_000,
        };
        Self {
            flavour,
            base_slice_ns: unscaled_slice_ns * factor,
            unscaled_slice_ns,
            latency_ns: 6_000_000 * factor,
            min_granularity_ns: 750_000 * factor,
            wakeup_granularity_ns: 1_000_000 * factor,
            tick_ns,
        }
    }

    /// The same with values as written to `/sys/kernel/debug/sched`, ns.
    #[must_use]
    pub fn with_granularity(mut self, least_ns: Option<u64>, wakeup_ns: Option<u64>) -> Self {
        if let Some(ns) = least_ns {
            self.base_slice_ns = ns.max(100_000);
            self.min_granularity_ns = ns.max(100_000);
        }
        if let Some(ns) = wakeup_ns {
            self.wakeup_granularity_ns = ns;
        }
        self
    }

    /// Limit of a task's lag when it is dequeued, virtual.
    pub(super) fn lag_limit(&self, entity: &Entity) -> i64 {
        let ns = (2 * entity.slice_ns).max(self.tick_ns);
        (ns * 1024 / entity.weight.max(1)) as i64
    }

    /// From 6.17 on a task is protected for the shortest slice in the queue, not for its own.
    pub(super) fn short_protection(&self) -> bool {
        matches!(self.flavour, Flavour::Eevdf { version } if version >= 617)
    }

    /// The v up to which a task that was just picked is protected (RUN_TO_PARITY).
    pub(super) fn protection(&self, entity: &Entity, shortest_slice_ns: u64) -> i64 {
        match self.flavour {
            Flavour::Cfs => entity.v,
            Flavour::Eevdf { .. } if self.short_protection() => {
                let ns = shortest_slice_ns.min(entity.slice_ns);
                entity.deadline.min(entity.v + (ns * 1024 / entity.weight.max(1)) as i64)
            }
            Flavour::Eevdf { .. } => entity.deadline,
        }
    }

    /// CFS: slice of a task of `weight` among `entities` of `total` weight, ns (`sched_slice()`).
    pub(super) fn cfs_slice(&self, weight: u64, total: u64, entities: usize) -> u64 {
        let most = self.latency_ns.div_ceil(self.min_granularity_ns) as usize;
        let period =
            if entities > most { entities as u64 * self.min_granularity_ns } else { self.latency_ns };
        (period * weight / total.max(1)).max(self.min_granularity_ns)
    }

    /// EEVDF: the base slice of one CPU, ns.
    pub fn unscaled_slice_ns(&self) -> u64 {
        self.unscaled_slice_ns
    }
}

/// v and deadline of an entity that joins a queue (EEVDF).
pub(super) fn place_eevdf(
    entity: &Entity,
    rq: &Rq,
    entities: &[Entity],
    how: Arrival,
    _version: u32,
) -> (i64, i64) {
    let average = rq.average(entities);
    let weight = rq.weight(entities) as i64;
    let mut v = average;
    if weight > 0 && how != Arrival::New && entity.lag != 0 {
        // V moves towards the entity that joins: inflated by (W + w) / W, the lag is the same afterwards (PLACE_LAG).
        let own = entity.weight as i64;
        v -= (i128::from(entity.lag) * i128::from(weight + own) / i128::from(weight)) as i64;
    }
    let deadline = if entity.relative {
        entity.deadline + v
    } else if how == Arrival::New {
        v + entity.virtual_slice() / 2
    } else {
        v + entity.virtual_slice()
    };
    (v, deadline)
}

/// The same for CFS; the deadline is not used.
pub(super) fn place_cfs(
    entity: &Entity,
    rq: &Rq,
    entities: &[Entity],
    how: Arrival,
    rules: &Rules,
) -> (i64, i64) {
    let v = match how {
        // v is relative to the queue that was left.
        Arrival::Migrated => entity.v + rq.floor,
        Arrival::New => {
            let total = rq.weight(entities) + entity.weight;
            let slice = rules.cfs_slice(entity.weight, total, rq.entities() + 1);
            rq.floor + (slice * 1024 / entity.weight.max(1)) as i64
        }
        // Gentle fair sleepers: half a period of credit at most.
        Arrival::Wakeup | Arrival::Unthrottled => entity.v.max(rq.floor - rules.latency_ns as i64 / 2),
    };
    (v, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_grow_with_the_cpus() {
        let eevdf = |cpus| Rules::new(Flavour::Eevdf { version: 702 }, cpus, 4_000_000).base_slice_ns;
        assert_eq!([1, 2, 4, 8, 64].map(eevdf), [700_000, 1_400_000, 2_100_000, 2_800_000, 2_800_000]);
        assert_eq!(Rules::new(Flavour::Cfs, 16, 4_000_000).latency_ns, 24_000_000);
        assert_eq!((weight_of_nice(0), weight_of_nice(-20), weight_of_nice(99)), (1024, 88761, 15));
    }
}
