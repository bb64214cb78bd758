//! What an experiment file may say: each mistake is named with what would be right.

use super::{Experiment, Mode, KERNEL_ARM, SINGLE};
use std::collections::BTreeSet;

/// Most CPUs of the emulator.
const MOST_CPUS: usize = 255;
/// Upper bound of a workload's time limit, seconds.
const LONGEST_S: f64 = 7200.0;
/// Largest disk of a guest, MiB.
const MOST_DISK_MIB: u32 = 512;

impl Experiment {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.arms.is_empty()
            || self.workloads.is_empty()
            || [self.reps, self.rounds, self.boots].contains(&0)
        {
            return Err(
                "needs at least one arm, one [[workload]], one repetition, one round and one boot".into()
            );
        }
        for arm in &self.arms {
            let elsewhere = self.also_load.contains_key(arm) && self.command(arm).is_none();
            let none = self.command(arm).is_none_or(|command| command.is_empty());
            if arm != KERNEL_ARM && none && !elsewhere {
                return Err(format!(
                    "arm {arm:?} has no command: use \"eevdf\", \"tandem\" or add it to [commands]"
                ));
            }
        }
        for (arm, also) in &self.also_load {
            let wrong = also.iter().any(|also| !self.knows(&also.machine) || also.argv.is_empty());
            if wrong || !self.arms.contains(arm) {
                return Err(format!(
                    "[also_load] of {arm:?}: needs an arm of that name, argv, and as machine \"host\" or a guest"
                ));
            }
            // One kernel holds one scheduler.
            let own = self.command(arm).map(|_| self.target().to_owned());
            unique("[also_load] on machine", also.iter().map(|also| &also.machine).chain(&own))?;
        }
        unique("arm", self.arms.iter())?;
        unique("guest", self.vms.iter().map(|vm| &vm.name))?;
        unique("workload", self.workloads.iter().map(|workload| &workload.name))?;
        unique(
            "metric",
            self.workloads.iter().flat_map(|workload| workload.metrics.iter().map(|metric| &metric.name)),
        )?;
        match (self.mode, self.vms.is_empty()) {
            (Mode::Nested, true) => return Err("mode \"nested\" needs a [[vm]]".into()),
            (Mode::Single, false) => return Err("mode \"single\" has no [[vm]]".into()),
            _ => {}
        }
        if let Some(name) = self
            .under_test
            .as_ref()
            .filter(|name| *name != SINGLE && self.vms.iter().all(|vm| vm.name != **name))
        {
            return Err(format!("under_test = {name:?}: no such [[vm]]"));
        }
        for vm in &self.vms {
            let named = !vm.name.is_empty() && vm.name.chars().all(|c| c.is_ascii_alphanumeric());
            if !named || vm.name == SINGLE {
                return Err(format!("guest name {:?}: letters and digits only, and not \"host\"", vm.name));
            }
            if vm.pins.is_empty() || vm.pins.contains(&0) {
                return Err(format!(
                    "guest {}: pins name the host CPU of each vCPU, from 1 on (0 is the host's own)",
                    vm.name
                ));
            }
            if vm.disk_mib > MOST_DISK_MIB {
                return Err(format!(
                    "guest {}: disk_mib up to {MOST_DISK_MIB}: it is in the host's memory",
                    vm.name
                ));
            }
            if vm.weight.is_some_and(|weight| !(1..=10_000).contains(&weight)) {
                return Err(format!("guest {}: weight from 1 to 10000", vm.name));
            }
        }
        self.check_sockets()?;
        match (self.max_cpus, self.cpus) {
            (None, _) => {}
            (Some(most), Some(cpus))
                if (cpus..=MOST_CPUS).contains(&most) && most % self.sockets.unwrap_or(1) == 0 => {}
            _ => {
                return Err(format!(
                    "max_cpus: needs cpus, and is from these to {MOST_CPUS}, a multiple of sockets"
                ))
            }
        }
        self.check_throttle()?;
        self.host.check()?;
        self.check_contention()?;
        self.check_metrics()?;
        for background in &self.background {
            if !self.knows(&background.machine) || background.argv.is_empty() {
                return Err(format!(
                    "[[background]] of {:?}: needs argv, and as machine \"host\" or a guest",
                    background.machine
                ));
            }
            for name in background.workloads.iter().flatten() {
                if self.workloads.iter().all(|workload| workload.name != *name) {
                    return Err(format!("[[background]] of {:?}: no workload {name:?}", background.machine));
                }
            }
        }
        if !self.functions.is_empty() && self.workloads.iter().all(|workload| workload.script.is_none()) {
            return Err("functions: no workload has a script that could use them".into());
        }
        for workload in &self.workloads {
            if let Some(on) = workload.on.as_ref().filter(|on| !self.knows(on)) {
                return Err(format!("workload {}: on = {on:?}: no such machine", workload.name));
            }
            unique("also of machine", workload.also.iter().map(|also| &also.machine))?;
            for also in &workload.also {
                if !self.knows(&also.machine) || also.argv.is_empty() {
                    return Err(format!(
                        "workload {}: also: needs argv, and as machine \"host\" or a guest",
                        workload.name
                    ));
                }
            }
            let named = |machine: &String| workload.also.iter().any(|also| also.machine == *machine);
            if let Some(metric) =
                workload.metrics.iter().find(|m| m.machine.as_ref().is_some_and(|machine| !named(machine)))
            {
                return Err(format!("metric {:?}: its machine is none of the workload's also", metric.name));
            }
            if workload.argv.is_empty() == workload.script.is_none() {
                return Err(format!("workload {}: give either argv or script", workload.name));
            }
            if !(workload.timeout_s > 0.0 && workload.timeout_s <= LONGEST_S) {
                return Err(format!(
                    "workload {}: timeout_s must lie between 0 and {LONGEST_S}",
                    workload.name
                ));
            }
        }
        Ok(())
    }

    fn check_metrics(&self) -> Result<(), String> {
        let all = || self.workloads.iter().flat_map(|workload| &workload.metrics);
        for metric in all() {
            if metric.per.is_some() && (metric.reduce.is_some() || metric.against_host.is_some()) {
                return Err(format!(
                    "metric {:?}: per goes neither with reduce nor with against_host",
                    metric.name
                ));
            }
            let Some(how) = &metric.reduce else { continue };
            how.check().map_err(|message| format!("metric {:?}: {message}", metric.name))?;
            let Some(of) = how.of() else { continue };
            if !all().any(|other| other.name == of && other.reduce.is_none()) {
                return Err(format!("metric {:?}: no plain metric {of:?} to compare with", metric.name));
            }
        }
        Ok(())
    }

    fn check_sockets(&self) -> Result<(), String> {
        match (self.sockets, self.cpus) {
            (None, _) => Ok(()),
            (Some(sockets), Some(cpus)) if sockets > 0 && cpus % sockets == 0 => Ok(()),
            _ => Err("sockets: needs cpus, and cpus must be a multiple of it".into()),
        }
    }

    fn check_throttle(&self) -> Result<(), String> {
        for throttle in &self.throttle {
            let vm = self.vms.iter().find(|vm| vm.name == throttle.vm);
            if vm.is_none_or(|vm| throttle.vcpu.is_some_and(|vcpu| vcpu >= vm.pins.len())) {
                return Err(format!(
                    "[[throttle]]: no guest {:?} with that vCPU (counted from 0)",
                    throttle.vm
                ));
            }
            // The kernel's limits.
            if throttle.quota_us < 1000 || !(1000..=1_000_000).contains(&throttle.period_us) {
                return Err(
                    "[[throttle]]: quota_us from 1000, period_us from 1000 to 1000000 (the kernel's limits)"
                        .into(),
                );
            }
        }
        Ok(())
    }

    fn check_contention(&self) -> Result<(), String> {
        for contention in &self.contention {
            if contention.cpus.is_empty() || contention.cpus.contains(&0) {
                return Err("[[contention]]: cpus are host CPUs from 1 on".into());
            }
            if contention.on_us < 800 || contention.off_us < 800 {
                return Err(
                    "[[contention]]: on_us and off_us below 800 are lost in the cost of switching".into()
                );
            }
            for phase in &contention.phases {
                let rests = phase.on_us == 0 && phase.off_us == 0;
                if phase.for_ms == 0
                    || phase.for_ms > 3_600_000
                    || !(rests || phase.on_us.min(phase.off_us) >= 800)
                {
                    return Err("[[contention.phase]]: for_ms from 1 to 3600000, on_us and off_us from 800 on, or neither"
                        .into());
                }
            }
        }
        let named: Vec<&String> =
            self.contention.iter().map(|c| &c.name).filter(|name| !name.is_empty()).collect();
        unique("contention", named.iter().copied())?;
        for workload in &self.workloads {
            for name in workload.contention.iter().flatten() {
                if !named.contains(&name) {
                    return Err(format!("workload {}: no [[contention]] named {name:?}", workload.name));
                }
            }
            let mut taken = BTreeSet::new();
            for cpu in self.contention_of(workload).iter().flat_map(|index| &self.contention[*index].cpus) {
                if !taken.insert(cpu) {
                    return Err(format!("workload {}: two contentions on host CPU {cpu}", workload.name));
                }
            }
        }
        Ok(())
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("{what} {name:?} appears twice"));
        }
    }
    Ok(())
}
