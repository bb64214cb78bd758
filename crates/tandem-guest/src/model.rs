//! What the scheduler knows of each vCPU, read out of its map.

use crate::bpf::intf;
use libbpf_rs::{MapCore, MapFlags};
use tandem_daemon::{bytes, DaemonError};

/// One vCPU as measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VcpuFacts {
    /// Number of the CPU in the guest.
    pub cpu: usize,
    /// Is it online?
    pub online: bool,
    /// Share of a pCPU that it gets when it has work, 0 to 1.
    pub share: f64,
    /// The same over more samples.
    pub steady_share: f64,
    /// Mean wait of wake-ups, microseconds; none: there were too few.
    pub woken_wait_us: Option<f64>,
    /// Mean preemption interval in microseconds.
    pub inactive_mean_us: f64,
    /// Number of preemption intervals, by length (`preemption_bucket` in `policy/guest/vcap.h`).
    pub preemptions: Vec<u64>,
    /// Their sum in milliseconds.
    pub preempted_ms: f64,
    /// For how long it had work since the scheduler was loaded, steal included, nanoseconds.
    pub wanted_ns: u64,
    /// Steal in that time, nanoseconds.
    pub stolen_ns: u64,
    /// Age of the estimate in milliseconds; none: nothing measured yet.
    pub age_ms: Option<f64>,
    /// Length of an active period and of a preemption interval in milliseconds, if they are even enough
    /// for a forecast.
    pub rhythm_ms: Option<(f64, f64)>,
    /// When it was last scheduled in after a preemption, by the guest's monotonic clock; 0: never.
    pub scheduled_in_ns: u64,
    /// Why it is left without work: `TANDEM_BAN_*` in `policy/guest/rwc.h`; 0: it is not.
    pub bans: u32,
    /// Tasks that wait or run on it.
    pub tasks: u64,
    /// Their effective weight; 1 is a task of nice 0 outside of all groups.
    pub weight: f64,
    /// How many of these tasks are CPU-bound.
    pub cpu_bound_tasks: u64,
    /// The effective weight of those.
    pub cpu_bound_weight: f64,
    /// Event counters, indexed as `enum counter` in `bpf/guest/intf.h`.
    pub counters: Vec<u64>,
}

/// How many cgroups the scheduler knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupFacts {
    /// With a record of their own.
    pub groups: u64,
    /// Sharing their parent's.
    pub shared: u64,
    /// With a quota.
    pub limits: u64,
}

/// `TANDEM_PREEMPTION_MIN_NS` in `policy/guest/vcap.h`.
const PREEMPTION_MIN_MS: f64 = 0.1;

impl VcpuFacts {
    /// A percentile of the preemption intervals, 0 to 1, in milliseconds: the middle of its bucket.
    /// None: there were none.
    pub fn preemption_percentile_ms(&self, part: f64) -> Option<f64> {
        let all: u64 = self.preemptions.iter().sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.preemptions.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        let doublings = (bucket / 4) as i32;
        let least = PREEMPTION_MIN_MS * 2f64.powi(doublings);
        Some(least * (1.0 + ((bucket % 4) as f64 + 0.5) / 4.0))
    }
}

/// Number of waits that make a mean.
const WAITS_KNOWN: u32 = 8;

/// Reads every possible CPU's record.
pub(crate) fn read(map: &impl MapCore, nr_cpus: usize, now_ns: u64) -> Result<Vec<VcpuFacts>, DaemonError> {
    (0..nr_cpus).map(|cpu| read_one(map, cpu, now_ns)).collect()
}

fn read_one(map: &impl MapCore, cpu: usize, now_ns: u64) -> Result<VcpuFacts, DaemonError> {
    let key = (cpu as u32).to_ne_bytes();
    let record = map
        .lookup(&key, MapFlags::ANY)
        .map_err(DaemonError::Map)?
        .unwrap_or_else(|| vec![0; std::mem::size_of::<intf::cpu_state>()]);
    let u64_at = |offset: usize| bytes::u64_at(&record, offset);
    let u32_at = |offset: usize| bytes::u32_at(&record, offset);
    let model = std::mem::offset_of!(intf::cpu_state, side.model);
    let updated_ns = u64_at(model + std::mem::offset_of!(intf::vcpu_model, updated_ns));
    let tasks = std::mem::offset_of!(intf::cpu_state, tasks);
    let weights = std::mem::offset_of!(intf::cpu_state, weight);
    let counters = std::mem::offset_of!(intf::cpu_state, counters);
    Ok(VcpuFacts {
        cpu,
        online: u32_at(std::mem::offset_of!(intf::cpu_state, online)) != 0,
        share: f64::from(u32_at(model + std::mem::offset_of!(intf::vcpu_model, share)))
            / f64::from(intf::TANDEM_SCALE),
        steady_share: f64::from(u32_at(model + std::mem::offset_of!(intf::vcpu_model, steady_share)))
            / f64::from(intf::TANDEM_SCALE),
        woken_wait_us: (u32_at(model + std::mem::offset_of!(intf::vcpu_model, waits_known))
            >= WAITS_KNOWN * intf::TANDEM_ONE_SAMPLE)
            .then(|| u64_at(model + std::mem::offset_of!(intf::vcpu_model, wait_mean_ns)) as f64 / 1e3),
        inactive_mean_us: u64_at(model + std::mem::offset_of!(intf::vcpu_model, inactive_mean_ns)) as f64
            / 1e3,
        preemptions: (0..intf::TANDEM_PREEMPTION_BUCKETS as usize)
            .map(|i| u64::from(u32_at(model + std::mem::offset_of!(intf::vcpu_model, preemptions) + 4 * i)))
            .collect(),
        preempted_ms: u64_at(model + std::mem::offset_of!(intf::vcpu_model, preempted_ns)) as f64 / 1e6,
        wanted_ns: u64_at(std::mem::offset_of!(intf::cpu_state, side.wanted_ns)),
        stolen_ns: u64_at(std::mem::offset_of!(intf::cpu_state, side.stolen_ns)),
        age_ms: (updated_ns > 0).then(|| now_ns.saturating_sub(updated_ns) as f64 / 1e6),
        rhythm_ms: rhythm(&record),
        scheduled_in_ns: u64_at(
            std::mem::offset_of!(intf::cpu_state, side.phase)
                + std::mem::offset_of!(intf::vcpu_phase, scheduled_in_ns),
        ),
        bans: u32_at(std::mem::offset_of!(intf::cpu_state, side.bans)),
        tasks: [0, 1].map(|class| u64::from(u32_at(tasks + 4 * class))).iter().sum(),
        weight: [0, 1].map(|class| u64_at(weights + 8 * class) as f64).iter().sum::<f64>()
            / f64::from(intf::TANDEM_UNIT),
        cpu_bound_tasks: u64::from(u32_at(std::mem::offset_of!(intf::cpu_state, cpu_bound_tasks))),
        cpu_bound_weight: u64_at(std::mem::offset_of!(intf::cpu_state, cpu_bound_weight)) as f64
            / f64::from(intf::TANDEM_UNIT),
        counters: (0..intf::counter_NR_COUNTERS as usize).map(|i| u64_at(counters + 8 * i)).collect(),
    })
}

/// The preemption period of the record, judged as the scheduler judges it.
fn rhythm(record: &[u8]) -> Option<(f64, f64)> {
    let at = std::mem::offset_of!(intf::cpu_state, side.phase);
    let u64_at = |offset: usize| bytes::u64_at(record, at + offset);
    let u32_at = |offset: usize| bytes::u32_at(record, at + offset);
    let length = |at: usize| tandem_policy::rhythm_length {
        mean_ns: u64_at(at + std::mem::offset_of!(intf::rhythm_length, mean_ns)),
        dev_ns: u64_at(at + std::mem::offset_of!(intf::rhythm_length, dev_ns)),
        score: u32_at(at + std::mem::offset_of!(intf::rhythm_length, score)),
    };
    let (on, off) = (
        length(std::mem::offset_of!(intf::vcpu_phase, on)),
        length(std::mem::offset_of!(intf::vcpu_phase, off)),
    );
    let even = tandem_policy::phase::length_even(&on) && tandem_policy::phase::length_even(&off);
    even.then_some((on.mean_ns as f64 / 1e6, off.mean_ns as f64 / 1e6))
}
