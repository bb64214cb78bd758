//! Compares the estimates of a program in a guest with the host's accounting of the same time.

use crate::contention::Delivered;
use crate::experiment::{AgainstHost, HostFigure};
use crate::run::VcpuTime;

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
            HostFigure::AbsenceMs => {
                let found = self.delivered.iter().find(|d| d.vm == self.vm && d.vcpu == against.vcpu)?;
                (found.absence_ms > 0.0).then(|| 100.0 * (estimate / found.absence_ms - 1.0).abs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_shares_in_points_and_of_absences_in_percent() {
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
            absence_ms: 8.0,
            demand_pct: 100.0,
        };
        let (times, delivered) = ([time], [delivered]);
        let host = HostTruth::new("g", &times, &delivered);
        let share = AgainstHost { vcpu: 1, figure: HostFigure::Share };
        let absence = AgainstHost { vcpu: 1, figure: HostFigure::AbsenceMs };
        assert_eq!(host.error_of(0.28, share).map(f64::round), Some(3.0));
        assert_eq!(host.error_of(8.8, absence).map(f64::round), Some(10.0));
        assert_eq!(host.error_of(0.5, AgainstHost { vcpu: 0, ..share }), None);
        assert_eq!(HostTruth::new("other", &times, &delivered).error_of(0.5, share), None);
    }
}
