//! CPUs that share a cache, a core or a hardware thread, as reported to the scheduler.

use crate::bpf::{intf, GuestSkel};
use libbpf_rs::{MapCore, MapFlags};
use tandem_daemon::DaemonError;
use tandem_probe::kernel::{format_list, ring, KernelView};
use tandem_probe::vtop::topology::{Shares, Topology};

/// The kernel's description of the CPUs.
const SYSFS_CPU: &str = "/sys/devices/system/cpu";
/// A topology whose measurements contradict each other more than this is not used.
const LEAST_AGREEMENT: f64 = 0.8;

/// What each CPU shares with which others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domains {
    /// Number of each CPU's cache; only equality of numbers matters.
    llc: Vec<u32>,
    caches: u32,
    /// Next in the ring of CPUs on the same core, and on the same hardware thread; itself: alone.
    core_next: Vec<usize>,
    stack_next: Vec<usize>,
    uneven_cores: bool,
    probed: bool,
}

impl Domains {
    fn new(nr_cpus: usize, caches: &[Vec<usize>], cores: &[Vec<usize>], stacks: &[Vec<usize>]) -> Self {
        // CPUs in no group are assumed to share the first one's cache.
        let number = |cpu| caches.iter().position(|group| group.contains(&cpu)).unwrap_or(0) as u32;
        let apart = |groups: &[Vec<usize>]| groups.len() > 1 && groups.iter().any(|group| group.len() > 1);
        Self {
            llc: (0..nr_cpus).map(number).collect(),
            caches: caches.len().max(1) as u32,
            core_next: ring(nr_cpus, cores),
            stack_next: ring(nr_cpus, stacks),
            uneven_cores: apart(cores) || apart(stacks),
            probed: false,
        }
    }

    /// As the kernel knows them. Where it knows no caches, all CPUs share one. Cores are left to the
    /// kernel's own idle selection, which knows as much about them.
    pub fn of_the_kernel(nr_cpus: usize, online: &[usize]) -> Self {
        Self::new(nr_cpus, &KernelView::read(SYSFS_CPU.as_ref(), online).caches, &[], &[])
    }

    /// As probed; none: the probe leaves too much unknown.
    pub fn of_topology(nr_cpus: usize, topology: &Topology) -> Option<Self> {
        if !topology.unknown.is_empty() || topology.agreement < LEAST_AGREEMENT {
            return None;
        }
        let groups = |shares| topology.groups(shares);
        let domains = Self::new(nr_cpus, groups(Shares::Cache), groups(Shares::Core), groups(Shares::Thread));
        Some(Self { probed: true, ..domains })
    }

    /// The vCPU of lowest number on the same hardware thread, out of `cpu` and those in `among`.
    pub fn first_of_stack(&self, cpu: usize, among: &[usize]) -> usize {
        let mut first = cpu;
        let mut at = cpu;
        for _ in 0..self.stack_next.len() {
            at = self.stack_next.get(at).copied().unwrap_or(cpu);
            if at == cpu {
                break;
            }
            if among.contains(&at) {
                first = first.min(at);
            }
        }
        first
    }

    /// Possible CPUs.
    pub fn nr_cpus(&self) -> usize {
        self.llc.len()
    }

    /// Last-level caches.
    pub fn caches(&self) -> u32 {
        self.caches
    }

    /// In one line, for the log.
    pub fn in_words(&self) -> String {
        format!(
            "last-level caches: {}, CPUs that share a core: {}, a hardware thread: {} ({})",
            self.caches,
            groups_in_words(&self.core_next),
            groups_in_words(&self.stack_next),
            if self.probed { "as probed" } else { "as the kernel has them" }
        )
    }

    /// Installs the domains in the scheduler, which may be running.
    pub(crate) fn install(&self, skel: &mut GuestSkel<'_>) -> Result<(), DaemonError> {
        for cpu in 0..self.llc.len() {
            let mut record = vec![0u8; skel.maps.domains.value_size() as usize];
            let mut put = |at: usize, value: u32| record[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            put(std::mem::offset_of!(intf::cpu_domain, llc), self.llc[cpu]);
            put(std::mem::offset_of!(intf::cpu_domain, core_next), self.core_next[cpu] as u32);
            put(std::mem::offset_of!(intf::cpu_domain, stack_next), self.stack_next[cpu] as u32);
            let key = (cpu as u32).to_ne_bytes();
            skel.maps.domains.update(&key, &record, MapFlags::ANY).map_err(DaemonError::Map)?;
        }
        if let Some(data) = skel.maps.data_data.as_mut() {
            data.nr_llcs = self.caches;
        }
        if let Some(bss) = skel.maps.bss_data.as_mut() {
            bss.uneven_cores = u32::from(self.uneven_cores);
        }
        Ok(())
    }
}

/// The groups of a ring with more than one CPU, e.g. `0-1 2,4`.
fn groups_in_words(next: &[usize]) -> String {
    let members = |first: usize| {
        let mut group: Vec<usize> = vec![first];
        let mut at = next[first];
        while at != first && group.len() < next.len() {
            group.push(at);
            at = next.get(at).copied().unwrap_or(first);
        }
        group.sort_unstable();
        group
    };
    let groups: Vec<Vec<usize>> = (0..next.len()).map(members).collect();
    let several = groups.iter().enumerate().filter(|(cpu, group)| group.len() > 1 && group[0] == *cpu);
    let words: Vec<String> = several.map(|(_, group)| format_list(group)).collect();
    if words.is_empty() {
        "none".into()
    } else {
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_probe::emulated::Emulated;

    #[test]
    fn cpus_of_a_group_share_a_number() {
        let domains = Domains::new(5, &[vec![0, 2], vec![1, 3]], &[], &[]);
        assert_eq!((domains.llc, domains.caches, domains.uneven_cores), (vec![0, 1, 0, 1, 0], 2, false));
        assert_eq!(Domains::new(2, &[], &[], &[]).llc, [0, 0]);
    }

    #[test]
    fn the_originals_machine() {
        let (topology, _) = tandem_probe::vtop::full(&mut Emulated::rcvm(3), 2_000_000_000).unwrap();
        let domains = Domains::of_topology(12, &topology).unwrap();
        assert!(domains.uneven_cores && domains.probed);
        assert_eq!(domains.core_next, [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10]);
        assert_eq!(domains.stack_next, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 10]);
        let words = domains.in_words();
        assert!(words.contains("a core: 0-1 2-3 4-5"), "{words}");
        assert!(words.ends_with("a hardware thread: 10-11 (as probed)"), "{words}");
        assert!(Domains::new(2, &[], &[], &[]).in_words().contains("a hardware thread: none"));
    }

    #[test]
    fn what_is_open_is_not_used() {
        let (mut topology, _) = tandem_probe::vtop::full(&mut Emulated::rcvm(3), 2_000_000_000).unwrap();
        topology.unknown.push((0, 3));
        assert_eq!(Domains::of_topology(12, &topology), None);
    }

    #[test]
    fn where_all_share_a_core_none_is_better() {
        assert!(!Domains::new(2, &[vec![0, 1]], &[vec![0, 1]], &[]).uneven_cores);
        assert!(Domains::new(3, &[], &[vec![0, 1], vec![2]], &[]).uneven_cores);
    }
}
