//! Checks a scenario.

use super::{bad, Scenario};
use crate::catalog;
use crate::SimError;

/// Is a quota with its period (microseconds), if there is one, out of the kernel's range?
fn is_bad(max_us: Option<(u64, u64)>, least_quota_us: u64) -> bool {
    max_us.is_some_and(|(quota, period)| quota < least_quota_us || !(1000..=1_000_000).contains(&period))
}

impl Scenario {
    pub(super) fn check(&self) -> Result<(), SimError> {
        self.hardware.check().map_err(bad)?;
        if !(self.duration_s > 0.0
            && self.duration_s <= 3600.0
            && (0.0..self.duration_s).contains(&self.warmup_s))
        {
            return Err(bad("duration_s lies above 0 and up to 3600, warmup_s below it"));
        }
        let cpus = self.hardware.cpus();
        for vm in &self.vms {
            if !(1..=1024).contains(&vm.vcpus) {
                return Err(bad(format!("vm {}: 1 to 1024 vcpus are possible", vm.name)));
            }
            if let Some(pins) = &vm.pins {
                if pins.len() != vm.vcpus
                    || pins.iter().any(|list| list.is_empty() || list.iter().any(|cpu| *cpu >= cpus))
                {
                    return Err(bad(format!(
                        "vm {}: pins needs a list of pCPUs below {cpus} for each of {} vcpus",
                        vm.name, vm.vcpus
                    )));
                }
            }
            if let Some(layout) = &vm.layout {
                layout.check().map_err(bad)?;
                if layout.cpus() != vm.vcpus {
                    return Err(bad(format!(
                        "vm {}: the layout has {} CPUs, the guest {}",
                        vm.name,
                        layout.cpus(),
                        vm.vcpus
                    )));
                }
            }
            if vm.weight == 0 || vm.weight > 10_000 {
                return Err(bad(format!("vm {}: weight from 1 to 10000", vm.name)));
            }
            if vm.vcpu_max_us.len() > vm.vcpus || vm.vcpu_max_us.iter().any(|(_, period)| *period > 1_000_000)
            {
                return Err(bad(format!(
                    "vm {}: vcpu_max_us: one for each vCPU at most, periods up to 1000000",
                    vm.name
                )));
            }
            if is_bad(vm.max_us, 1000) {
                return Err(bad(format!(
                    "vm {}: max_us: quota from 1000, period from 1000 to 1000000",
                    vm.name
                )));
            }
        }
        let guests = self.vms.iter().map(|vm| &vm.kernel).chain(self.arms.iter().flat_map(|arm| &arm.guest));
        if guests.into_iter().any(|kernel| kernel.hrtick) {
            return Err(bad("hrtick is the host's: a guest's slices end at ticks here"));
        }
        if let Some(arm) = self.arms.iter().find(|arm| is_bad(arm.each_vcpu_max_us, 100)) {
            return Err(bad(format!(
                "arm {:?}: each_vcpu_max_us: quota from 100, period from 1000 to 1000000",
                arm.name
            )));
        }
        for competitor in &self.competitors {
            let max = competitor.max_us.unwrap_or((1000, 1000));
            if competitor.cpus.iter().any(|cpu| *cpu >= cpus)
                || (max.0 != 0 && max.0 < 100)
                || !(1000..=1_000_000).contains(&max.1)
            {
                return Err(bad(format!(
                    "competitor: pCPUs are numbered 0 to {}; max_us: quota from 100, period from 1000 to 1000000",
                    cpus - 1
                )));
            }
        }
        for contention in &self.contention {
            if contention.cpus.iter().any(|cpu| *cpu >= cpus) {
                return Err(bad(format!("contention: pCPUs are numbered 0 to {}", cpus - 1)));
            }
            if !(contention.on_us >= 1.0
                && contention.off_us >= 1.0
                && contention.on_us.max(contention.off_us) <= 1e7)
            {
                return Err(bad("contention: on_us and off_us from 1 to 1e7"));
            }
            let period_us = contention.on_us + contention.off_us;
            let swap_us = contention.swap_ms * 1000.0;
            if swap_us != 0.0 && !(period_us..=1e4 * period_us).contains(&swap_us) {
                return Err(bad("contention: swap_ms from one period to 10000"));
            }
            if swap_us != 0.0 && contention.irregular {
                return Err(bad(
                    "contention: swap_ms needs lengths that do not differ, or several would come at once",
                ));
            }
        }
        for phase in &self.phases {
            let bad_max = |(_, period): &(u64, u64)| !(1000..=1_000_000).contains(period);
            if !(0.0..self.duration_s).contains(&phase.at_s)
                || phase.vcpu_max_us.iter().chain(&phase.competitors).any(bad_max)
                || phase
                    .pins
                    .iter()
                    .flatten()
                    .any(|list| list.is_empty() || list.iter().any(|cpu| *cpu >= cpus))
            {
                return Err(bad(format!(
                    "phase at {} s: at_s lies within the run, periods from 1000 to 1000000, pins are pCPUs below {cpus}",
                    phase.at_s
                )));
            }
        }
        for metric in &self.metrics {
            if metric
                .between_s
                .is_some_and(|(from, to)| !(0.0 <= from && from + 0.1 <= to && to <= self.duration_s))
            {
                return Err(bad(format!(
                    "metric {:?}: between_s lies within the run, a tenth of a second at least",
                    metric.name
                )));
            }
            if metric.workload != "*" && self.workloads.iter().all(|placed| placed.name != metric.workload) {
                return Err(bad(format!("metric {:?}: no workload {:?}", metric.name, metric.workload)));
            }
            if metric.percentile.is_some_and(|part| !(0.0..=1.0).contains(&part)) {
                return Err(bad(format!("metric {:?}: percentile lies between 0 and 1", metric.name)));
            }
        }
        if let Some(family) = &self.family {
            if let Some(name) = family.models.iter().find(|name| catalog::find(name).is_none()) {
                return Err(bad(format!("family: no model {name:?}")));
            }
            let server = |name: &String| catalog::find(name).is_some_and(catalog::Model::is_server);
            if let Some((name, rate)) =
                family.rates_hz.iter().find(|(name, rate)| !server(name) || !(0.001..=1e7).contains(*rate))
            {
                return Err(bad(format!(
                    "family: rates_hz: {name} = {rate}: expected a server and up to 1e7"
                )));
            }
        }
        for placed in &self.workloads {
            placed.read()?;
            if is_bad(placed.max_us, 100) {
                return Err(bad(format!(
                    "workload {}: max_us: quota from 100, period from 1000 to 1000000",
                    placed.name
                )));
            }
            if placed.place != "host" && self.vms.iter().all(|vm| vm.name != placed.place) {
                return Err(bad(format!("workload {}: no vm {:?}", placed.name, placed.place)));
            }
        }
        Ok(())
    }
}
