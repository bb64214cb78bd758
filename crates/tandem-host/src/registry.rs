//! The VMs that the scheduler knows: its records, and the settings that it reads.

use crate::settings::VmSettings;
use libbpf_rs::{MapCore, MapFlags};
use std::mem::offset_of;
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
}

impl Vm {
    /// From its record; none: the record is that of another VM than the one with this key by now.
    fn read(record: &[u8], number: u32, kvm: u64) -> Option<Self> {
        let at = |offset| u32_at(record, offset);
        (u64_at(record, offset_of!(intf::vm_state, kvm)) == kvm && kvm != 0).then(|| Self {
            number,
            generation: at(offset_of!(intf::vm_state, generation)),
            pid: at(offset_of!(intf::vm_state, pid)),
            vcpus: at(offset_of!(intf::vm_state, vcpus)),
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

/// Tells the scheduler the settings of a VM.
pub(crate) fn install(map: &impl MapCore, vm: Vm, settings: VmSettings) -> Result<(), DaemonError> {
    let mut record = vec![0u8; std::mem::size_of::<intf::vm_settings>()];
    let mut put = |at: usize, value: u32| record[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(offset_of!(intf::vm_settings, generation), vm.generation);
    put(offset_of!(intf::vm_settings, valid), 1);
    put(offset_of!(intf::vm_settings, off), settings.off);
    let at = offset_of!(intf::vm_settings, request_ns);
    record[at..at + 8].copy_from_slice(&(settings.slice_us * 1000).to_ne_bytes());
    map.update(&vm.number.to_ne_bytes(), &record, MapFlags::ANY).map_err(DaemonError::Map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_that_has_changed_hands_is_not_believed() {
        let mut record = vec![0; std::mem::size_of::<intf::vm_state>()];
        record[..8].copy_from_slice(&7u64.to_ne_bytes());
        record[8..12].copy_from_slice(&42u32.to_ne_bytes());
        assert_eq!(Vm::read(&record, 3, 7).map(|vm| (vm.number, vm.pid)), Some((3, 42)));
        assert_eq!(Vm::read(&record, 3, 8), None);
        assert_eq!(Vm::read(&[], 3, 0), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_vm_or_none(bytes in prop::collection::vec(any::<u8>(), 0..64), kvm in any::<u64>()) {
            let _ = Vm::read(&bytes, 0, kvm);
        }
    }
}
