//! Compares the estimates of a program in a guest with the host's accounting of the same time.

use crate::contention::{Delivered, Truth};
use crate::experiment::{AgainstHost, HostFigure};
use tandem_agent::VcpuStat;

/// The host's accounting of a vCPU during one workload.
#[derive(Clone)]
pub(crate) struct VcpuTime {
    pub(crate) arm: String,
    pub(crate) workload: String,
    pub(crate) vm: String,
    pub(crate) vcpu: usize,
    pub(crate) run_ms: f64,
    pub(crate) run_delay_ms: f64,
}

/// Run time and run delay of every vCPU thread between two moments.
pub(crate) fn vcpu_times(arm: &str, workload: &str, before: &Truth, after: &Truth) -> Vec<VcpuTime> {
    let earlier = |v: &VcpuStat| before.vcpus.iter().find(|b| b.tid == v.tid);
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    after
        .vcpus
        .iter()
        .filter_map(|v| earlier(v).map(|b| (b, v)))
        .map(|(b, v)| VcpuTime {
            arm: arm.to_string(),
            workload: workload.to_string(),
            vm: v.vm.clone(),
            vcpu: v.vcpu,
            run_ms: ms(b.run_ns, v.run_ns),
            run_delay_ms: ms(b.run_delay_ns, v.run_delay_ns),
        })
        .collect()
}

/// What all vCPUs did meanwhile, for a message: one that neither ran nor waited has slept.
pub(crate) fn in_words(times: &[VcpuTime]) -> String {
    let all = times.iter().map(|v| {
        format!("{} vCPU {} ran {:.1} s, waited {:.1} s", v.vm, v.vcpu, v.run_ms / 1e3, v.run_delay_ms / 1e3)
    });
    all.collect::<Vec<_>>().join("; ")
}

/// The host's accounting of one guest during one workload.
pub(crate) struct HostTruth<'a> {
    vm: &'a str,
    times: &'a [VcpuTime],
    delivered: &'a [Delivered],
}

impl<'a> HostTruth<'a> {
    pub(crate) fn new(vm: &'a str, times: &'a [VcpuTime], delivered: &'a [Delivered]) -> Self {
        Self { vm, times, delivered }
    }

    /// The error of an estimate, in the unit that [`HostFigure`] names. `None` if the host has no figure for it.
    pub(crate) fn error_of(&self, estimate: f64, against: AgainstHost) -> Option<f64> {
        match against.figure {
            HostFigure::Share => {
                let time = self.times.iter().find(|t| t.vm == self.vm && t.vcpu == against.vcpu)?;
                let wanted = time.run_ms + time.run_delay_ms;
                (wanted > 0.0).then(|| 100.0 * (estimate - time.run_ms / wanted).abs())
            }
            HostFigure::PreemptionMs => {
                let found = self.delivered.iter().find(|d| d.vm == self.vm && d.vcpu == against.vcpu)?;
                (found.preemption_ms > 0.0).then(|| 100.0 * (estimate / found.preemption_ms - 1.0).abs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_shares_in_points_and_of_preemptions_in_percent() {
        let time = VcpuTime {
            arm: "a".into(),
            workload: "w".into(),
            vm: "g".into(),
            vcpu: 1,
            run_ms: 250.0,
            run_delay_ms: 750.0,
        };
        let delivered = Delivered {
            vm: "g".into(),
            vcpu: 1,
            cpu: 2,
            asked_share_pct: 75.0,
            share_pct: 75.0,
            asked_period_ms: 8.0,
            drawn_period_ms: 8.0,
            period_ms: 7.0,
            preemption_ms: 8.0,
            demand_pct: 100.0,
        };
        let (times, delivered) = ([time], [delivered]);
        let host = HostTruth::new("g", &times, &delivered);
        let share = AgainstHost { vcpu: 1, figure: HostFigure::Share };
        let preemption = AgainstHost { vcpu: 1, figure: HostFigure::PreemptionMs };
        assert_eq!(host.error_of(0.28, share).map(f64::round), Some(3.0));
        assert_eq!(host.error_of(8.8, preemption).map(f64::round), Some(10.0));
        assert_eq!(host.error_of(0.5, AgainstHost { vcpu: 0, ..share }), None);
        assert_eq!(HostTruth::new("other", &times, &delivered).error_of(0.5, share), None);
    }
}
