//! Which CPUs share a last-level cache, as the scheduler is told.

use crate::bpf::{intf, BpfSkel};
use crate::GuestError;
use libbpf_rs::{MapCore, MapFlags};
use tandem_probe::kernel::KernelView;

/// What the kernel knows of CPUs.
const SYSFS_CPU: &str = "/sys/devices/system/cpu";

/// The number of each CPU's cache; numbers mean nothing but equality.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domains {
    llc: Vec<u32>,
    count: u32,
}

impl Domains {
    /// Groups of CPUs, each with a cache of its own; CPUs in none of them are taken to share the first one's.
    pub fn new(nr_cpus: usize, groups: &[Vec<usize>]) -> Self {
        let number = |cpu| groups.iter().position(|group| group.contains(&cpu)).unwrap_or(0) as u32;
        Self { llc: (0..nr_cpus).map(number).collect(), count: groups.len().max(1) as u32 }
    }

    /// As the kernel has them. Where it knows of no caches, all CPUs share one.
    pub fn of_the_kernel(nr_cpus: usize, online: &[usize]) -> Self {
        Self::new(nr_cpus, &KernelView::read(SYSFS_CPU.as_ref(), online).caches)
    }

    /// How many caches there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Tells the scheduler, which may be running.
    pub(crate) fn install(&self, skel: &mut BpfSkel<'_>) -> Result<(), GuestError> {
        for (cpu, llc) in self.llc.iter().enumerate() {
            let mut record = vec![0u8; skel.maps.domains.value_size() as usize];
            let at = std::mem::offset_of!(intf::cpu_domain, llc);
            record[at..at + 4].copy_from_slice(&llc.to_ne_bytes());
            let key = (cpu as u32).to_ne_bytes();
            skel.maps.domains.update(&key, &record, MapFlags::ANY).map_err(GuestError::Map)?;
        }
        if let Some(bss) = skel.maps.data_data.as_mut() {
            bss.nr_llcs = self.count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_a_group_share_a_number() {
        let domains = Domains::new(5, &[vec![0, 2], vec![1, 3]]);
        assert_eq!((domains.llc, domains.count), (vec![0, 1, 0, 1, 0], 2));
        assert_eq!(Domains::new(2, &[]), Domains { llc: vec![0, 0], count: 1 });
    }
}
