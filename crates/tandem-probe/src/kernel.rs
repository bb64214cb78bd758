//! The topology as the kernel knows it (as shown by `lscpu`), and a sysfs tree with the probed one.
//!
//! Stock scx schedulers read the topology below a prefix that can be set (`SCX_SYSFS_PREFIX`): the probed topology can
//! be written in sysfs' own form and given to them.

use crate::vtop::topology::{Shares, Topology};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Groups of CPUs as the kernel knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct KernelView {
    /// Threads of a core.
    pub cores: Vec<Vec<usize>>,
    /// CPUs that share the last-level cache; empty if the kernel knows no caches.
    pub caches: Vec<Vec<usize>>,
    /// Sockets.
    pub sockets: Vec<Vec<usize>>,
}

/// Parses "0-3,8": ascending, without duplicates. `None` if the text is something else.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // Bound the memory that a malformed list can take.
        if first > last || last >= 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The inverse of [`parse_list`].
pub fn format_list(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some(last) if last.1 + 1 == cpu => last.1 = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let text = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

impl KernelView {
    /// Reads the topology of these CPUs from sysfs. If files are missing, their part is empty.
    pub fn read(sysfs_cpu: &Path, cpus: &[usize]) -> Self {
        let mut view = Self::default();
        for &cpu in cpus {
            let dir = sysfs_cpu.join(format!("cpu{cpu}"));
            let list =
                |file: &str| std::fs::read_to_string(dir.join(file)).ok().and_then(|text| parse_list(&text));
            let add = |groups: &mut Vec<Vec<usize>>, group: Option<Vec<usize>>| {
                if let Some(group) = group {
                    let group: Vec<usize> = group.into_iter().filter(|c| cpus.contains(c)).collect();
                    if !group.is_empty() && !groups.contains(&group) {
                        groups.push(group);
                    }
                }
            };
            add(
                &mut view.cores,
                list("topology/core_cpus_list").or_else(|| list("topology/thread_siblings_list")),
            );
            add(
                &mut view.sockets,
                list("topology/package_cpus_list").or_else(|| list("topology/core_siblings_list")),
            );
            // The highest index is the last level.
            let cache = (0..8).rev().find_map(|i| list(&format!("cache/index{i}/shared_cpu_list")));
            add(&mut view.caches, cache);
        }
        view
    }
}

/// Writes the probed topology in sysfs' form below `root`, which must be empty or not exist.
///
/// # Errors
/// The directory is not empty, or cannot be written.
pub fn write_tree(root: &Path, topology: &Topology) -> Result<()> {
    if root.exists() && std::fs::read_dir(root)?.next().is_some() {
        return Err(Error::new(ErrorKind::AlreadyExists, "the directory is not empty"));
    }
    let base = root.join("sys/devices/system/cpu");
    std::fs::create_dir_all(&base)?;
    for file in ["online", "possible", "present"] {
        std::fs::write(base.join(file), format_list(&topology.cpus) + "\n")?;
    }
    let groups = |shares: Shares| {
        let own = topology.groups(shares);
        // Without the tier, every CPU is a group of its own (cores), or all CPUs are one group (caches and sockets).
        if !own.is_empty() {
            own.to_vec()
        } else if shares == Shares::Core {
            topology.cpus.iter().map(|cpu| vec![*cpu]).collect()
        } else {
            vec![topology.cpus.clone()]
        }
    };
    let (cores, caches) = (groups(Shares::Core), groups(Shares::Cache));
    for &cpu in &topology.cpus {
        let find = |groups: &[Vec<usize>]| groups.iter().position(|group| group.contains(&cpu)).unwrap_or(0);
        let (core, cache) = (find(&cores), find(&caches));
        let dir = base.join(format!("cpu{cpu}"));
        std::fs::create_dir_all(dir.join("topology"))?;
        std::fs::create_dir_all(dir.join("cache/index3"))?;
        let list = |group: &[usize]| format_list(group) + "\n";
        for (file, text) in [
            ("topology/core_id", format!("{core}\n")),
            ("topology/physical_package_id", format!("{cache}\n")),
            ("topology/cluster_id", format!("{core}\n")),
            ("topology/core_cpus_list", list(&cores[core])),
            ("topology/thread_siblings_list", list(&cores[core])),
            ("topology/package_cpus_list", list(&caches[cache])),
            ("topology/core_siblings_list", list(&caches[cache])),
            ("cache/index3/id", format!("{cache}\n")),
            ("cache/index3/level", "3\n".into()),
            ("cache/index3/type", "Unified\n".into()),
            ("cache/index3/shared_cpu_list", list(&caches[cache])),
            ("online", "1\n".into()),
        ] {
            std::fs::write(dir.join(file), text)?;
        }
    }
    Ok(())
}

/// The successor of each CPU in its group; itself where it is alone or in no group.
pub fn ring(nr_cpus: usize, groups: &[Vec<usize>]) -> Vec<usize> {
    let mut next: Vec<usize> = (0..nr_cpus).collect();
    for group in groups {
        for (i, cpu) in group.iter().enumerate() {
            if let Some(slot) = next.get_mut(*cpu) {
                *slot = group[(i + 1) % group.len()].min(nr_cpus.saturating_sub(1));
            }
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), Some(vec![]));
        for bad in ["a", "3-1", "1-", "0-99999999", "-4"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn lists_go_there_and_back(set in prop::collection::btree_set(0usize..3000, 0..80)) {
            let cpus: Vec<usize> = set.into_iter().collect();
            prop_assert_eq!(parse_list(&format_list(&cpus)), Some(cpus));
        }

        #[test]
        fn any_text_is_survived(text in ".{0,40}") {
            let _ = parse_list(&text);
        }
    }
}
