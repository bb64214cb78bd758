//! The VMs that the scheduler knows: its records, and the settings that it reads.

use crate::inside::{Found, Page};
use crate::settings::VmSettings;
use libbpf_rs::{MapCore, MapFlags};
use std::mem::{offset_of, size_of};
use tandem_bpf::host::intf;
use tandem_daemon::bytes::{u32_at, u64_at};
use tandem_daemon::DaemonError;

/// A VM with vCPUs that have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vm {
    /// Number of its record.
    pub(crate) number: u32,
    /// How many VMs have had that record.
    pub(crate) generation: u32,
    /// Process of its VMM.
    pub(crate) pid: u32,
    /// Threads that run a vCPU.
    pub(crate) vcpus: u32,
    /// What it owes for its boosts, ns; negative: what it is owed.
    pub(crate) debt_ns: i64,
    /// All that was lent to it, and all that it has paid, ns.
    pub(crate) borrowed_ns: u64,
    pub(crate) repaid_ns: u64,
    /// Its last event of a device, ns of the kernel's clock; 0: there was none.
    pub(crate) device_at_ns: u64,
    /// Words of its memory that were not what they should have been.
    pub(crate) misread: u64,
    /// Where vCPUs' guests read their steal time; 0: not.
    pages: [Page; intf::KNOWN_PAGES as usize],
}

impl Vm {
    /// Its record, and which of those that had it.
    pub(crate) fn record(&self) -> (u32, u32) {
        (self.number, self.generation)
    }

    /// Where its vCPUs' guests read their steal time, of a few vCPUs.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Page> + '_ {
        self.pages.iter().copied().filter(|page| page.hva != 0)
    }

    /// From its record; none: the record is that of another VM than the one with this key by now.
    fn read(record: &[u8], number: u32, kvm: u64) -> Option<Self> {
        let at = |offset| u32_at(record, offset);
        (u64_at(record, offset_of!(intf::vm_state, kvm)) == kvm && kvm != 0).then(|| Self {
            number,
            generation: at(offset_of!(intf::vm_state, generation)),
            pid: at(offset_of!(intf::vm_state, pid)),
            vcpus: at(offset_of!(intf::vm_state, vcpus)),
            debt_ns: u64_at(record, offset_of!(intf::vm_state, debt_ns)) as i64,
            borrowed_ns: u64_at(record, offset_of!(intf::vm_state, borrowed_ns)),
            repaid_ns: u64_at(record, offset_of!(intf::vm_state, repaid_ns)),
            device_at_ns: u64_at(record, offset_of!(intf::vm_state, device_at_ns)),
            misread: u64_at(record, offset_of!(intf::vm_state, misread)),
            pages: std::array::from_fn(|at| {
                let page = offset_of!(intf::vm_state, pages) + at * size_of::<intf::steal_page>();
                Page {
                    hva: u64_at(record, page + offset_of!(intf::steal_page, hva)),
                    gpa: u64_at(record, page + offset_of!(intf::steal_page, gpa)),
                }
            }),
        })
    }
}

/// All of them, by the numbers of their records.
pub(crate) fn read(vms: &impl MapCore, kvm_vms: &impl MapCore) -> Result<Vec<Vm>, DaemonError> {
    let mut found = Vec::new();
    // The map by KVM's key has an entry for each VM there is; there are a thousand records.
    for key in kvm_vms.keys() {
        let Some(number) = kvm_vms.lookup(&key, MapFlags::ANY).map_err(DaemonError::Map)? else { continue };
        let number = u32_at(&number, 0).saturating_sub(1);
        let record = vms.lookup(&number.to_ne_bytes(), MapFlags::ANY).map_err(DaemonError::Map)?;
        found.extend(record.and_then(|record| Vm::read(&record, number, u64_at(&key, 0))));
    }
    found.sort_unstable_by_key(|vm| vm.number);
    // If an entry goes meanwhile, the map is read from its beginning again.
    found.dedup_by_key(|vm| vm.number);
    Ok(found)
}

/// Limit of a VM's debt, ns: by its `cpu.weight`.
pub(crate) fn debt_max_ns(settings: VmSettings, weight: f64) -> u64 {
    let at_100_ns = match settings.debt_max_ms {
        0 => intf::TANDEM_DEBT_MAX_NS as u64,
        ms => ms * 1_000_000,
    };
    // A weight of 1 leaves a hundredth; cgroup weights are 1 to 10,000.
    (at_100_ns as f64 * weight.clamp(1.0, 10_000.0) / 100.0) as u64
}

/// Tells the scheduler the settings of a VM.
pub(crate) fn install(
    map: &impl MapCore,
    vm: Vm,
    settings: VmSettings,
    debt_max_ns: u64,
    found: Option<Found>,
) -> Result<(), DaemonError> {
    let mut record = vec![0u8; size_of::<intf::vm_settings>()];
    let mut put = |at: usize, value: u32| record[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(offset_of!(intf::vm_settings, generation), vm.generation);
    put(offset_of!(intf::vm_settings, valid), 1);
    put(offset_of!(intf::vm_settings, off), settings.off);
    put(offset_of!(intf::vm_settings, conflict), settings.conflict.number());
    let depth = found.and_then(|found| found.depth).unwrap_or(0);
    put(offset_of!(intf::vm_settings, task_distance), found.map_or(0, |found| found.task) as u32);
    put(offset_of!(intf::vm_settings, depth_distance), depth as u32);
    let mut put = |at: usize, value: u64| record[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    put(offset_of!(intf::vm_settings, request_ns), settings.slice_us * 1000);
    put(offset_of!(intf::vm_settings, debt_max_ns), debt_max_ns);
    put(offset_of!(intf::vm_settings, wake_budget_ns), settings.wake_budget_us * 1000);
    map.update(&vm.number.to_ne_bytes(), &record, MapFlags::ANY).map_err(DaemonError::Map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_that_has_changed_hands_is_not_believed() {
        let mut record = vec![0; size_of::<intf::vm_state>()];
        record[..8].copy_from_slice(&7u64.to_ne_bytes());
        record[8..12].copy_from_slice(&42u32.to_ne_bytes());
        assert_eq!(Vm::read(&record, 3, 7).map(|vm| (vm.number, vm.pid)), Some((3, 42)));
        assert_eq!(Vm::read(&record, 3, 8), None);
        assert_eq!(Vm::read(&[], 3, 0), None);
    }

    #[test]
    fn a_heavier_vm_may_owe_more() {
        let with = |debt_max_ms| VmSettings { debt_max_ms, ..VmSettings::default() };
        assert_eq!(debt_max_ns(with(0), 100.0), 100_000_000);
        assert_eq!(debt_max_ns(with(0), 250.0), 250_000_000);
        assert_eq!(debt_max_ns(with(30), 50.0), 15_000_000);
        assert_eq!(debt_max_ns(with(0), f64::NAN), 0, "0 is the scheduler's default");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_vm_or_none(bytes in prop::collection::vec(any::<u8>(), 0..64), kvm in any::<u64>()) {
            let _ = Vm::read(&bytes, 0, kvm);
        }
    }
}
