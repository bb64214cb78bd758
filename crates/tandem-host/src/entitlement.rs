//! What each VM is entitled to: its part of the pCPUs by the weights of the cgroups that lead to it, if all VMs want all they can get.
//!
//! Progressive filling: a VM gets no more than one pCPU per vCPU, and what it leaves goes to the others by their weights.

use std::collections::BTreeMap;
use std::path::Path;

/// A VM's place among the cgroups.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Weight of each cgroup from the root to the VM's own, with its name.
    pub path: Vec<(String, f64)>,
    /// vCPUs.
    pub vcpus: u32,
}

/// `cpu.weight` where none is set.
const DEFAULT_WEIGHT: f64 = 100.0;
/// Of a group with `cpu.idle`, whose `cpu.weight` reads 0: the kernel's weight of 3 where 1024 is the default.
const IDLE_WEIGHT: f64 = 0.3;

impl Claim {
    /// Of the VM in `cgroup` (below the root of cgroup v2), with weights as they are set now.
    pub fn of(root: &Path, cgroup: &str, vcpus: u32) -> Self {
        let mut dir = root.to_path_buf();
        let path = cgroup
            .split('/')
            .filter(|part| !part.is_empty() && *part != "..")
            .map(|part| {
                dir.push(part);
                let weight = std::fs::read_to_string(dir.join("cpu.weight")).ok();
                let weight = weight.and_then(|text| text.trim().parse::<f64>().ok());
                let weight = match weight {
                    Some(weight) if weight > 0.0 => weight,
                    Some(_) => IDLE_WEIGHT,
                    None => DEFAULT_WEIGHT,
                };
                (part.to_owned(), weight)
            })
            .collect();
        Self { path, vcpus }
    }
}

/// pCPUs that each VM is entitled to, in the order of `claims`. `pcpus`: how many there are for VMs.
pub fn entitled(claims: &[Claim], pcpus: f64) -> Vec<f64> {
    let mut result = vec![0.0; claims.len()];
    fill(claims, &(0..claims.len()).collect::<Vec<_>>(), 0, pcpus, &mut result);
    result
}

/// Divides `pcpus` among VMs whose paths are the same down to `depth`. Returns nothing; what each gets is in `result`.
fn fill(claims: &[Claim], members: &[usize], depth: usize, pcpus: f64, result: &mut [f64]) {
    // Groups of VMs below the same cgroup; a VM that ends here is a group of its own.
    let mut groups: BTreeMap<(String, usize), (f64, Vec<usize>)> = BTreeMap::new();
    for &i in members {
        let (key, weight) = match claims[i].path.get(depth) {
            Some((name, weight)) => ((name.clone(), usize::MAX), *weight),
            None => ((String::new(), i), DEFAULT_WEIGHT),
        };
        groups.entry(key).or_insert((weight, Vec::new())).1.push(i);
    }
    let wants = |group: &[usize]| group.iter().map(|i| f64::from(claims[*i].vcpus)).sum::<f64>();
    let parts: Vec<(f64, f64)> = groups.values().map(|(weight, group)| (*weight, wants(group))).collect();
    for ((_, group), share) in groups.values().zip(shares(&parts, pcpus)) {
        match group[..] {
            [one] if claims[one].path.len() <= depth + 1 => result[one] = share,
            _ => fill(claims, group, depth + 1, share, result),
        }
    }
}

/// Progressive filling of `total` among (weight, most).
pub fn shares(parts: &[(f64, f64)], total: f64) -> Vec<f64> {
    let mut result = vec![0.0; parts.len()];
    let mut open: Vec<usize> = (0..parts.len()).collect();
    let mut left = total;
    loop {
        let weights: f64 = open.iter().map(|i| parts[*i].0).sum();
        if open.is_empty() || weights <= 0.0 {
            return result;
        }
        let full: Vec<usize> =
            open.iter().copied().filter(|i| left * parts[*i].0 / weights >= parts[*i].1).collect();
        if full.is_empty() {
            for i in open {
                result[i] = left * parts[i].0 / weights;
            }
            return result;
        }
        for i in full {
            result[i] = parts[i].1;
            left = (left - parts[i].1).max(0.0);
            open.retain(|other| *other != i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(path: &[(&str, f64)], vcpus: u32) -> Claim {
        Claim { path: path.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(), vcpus }
    }

    #[test]
    fn weights_divide_what_there_is() {
        let vms = [("a", 100.0, 1), ("b", 200.0, 2), ("c", 400.0, 4)]
            .map(|(name, weight, vcpus)| claim(&[("machine.slice", 100.0), (name, weight)], vcpus));
        let got = entitled(&vms, 2.0);
        for (got, expected) in got.iter().zip([2.0 / 7.0, 4.0 / 7.0, 8.0 / 7.0]) {
            assert!((got - expected).abs() < 1e-9, "{got} {expected}");
        }
    }

    #[test]
    fn nobody_gets_more_than_its_vcpus_and_others_get_the_rest() {
        let vms = [claim(&[("a", 900.0)], 1), claim(&[("b", 100.0)], 4)];
        assert_eq!(entitled(&vms, 4.0), [1.0, 3.0]);
    }

    #[test]
    fn a_slice_divides_what_it_got() {
        let vms = [
            claim(&[("x", 100.0), ("a", 100.0)], 4),
            claim(&[("x", 100.0), ("b", 300.0)], 4),
            claim(&[("y", 100.0)], 4),
        ];
        assert_eq!(entitled(&vms, 4.0), [0.5, 1.5, 2.0]);
    }

    #[test]
    fn weights_are_read_from_the_cgroups() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("machine.slice/a.scope");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("cpu.weight"), "0\n").unwrap();
        assert_eq!(Claim::of(root.path(), "/machine.slice/a.scope", 2).path[1].1, IDLE_WEIGHT);
        std::fs::write(dir.join("cpu.weight"), "250\n").unwrap();
        let claim = Claim::of(root.path(), "/machine.slice/../a.scope", 2);
        assert_eq!(claim.path, [("machine.slice".to_owned(), 100.0), ("a.scope".to_owned(), 250.0)]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nobody_gets_too_much(parts in prop::collection::vec((1.0..10_000.0f64, 1.0..64.0f64), 1..20), total in 0.5..200.0f64) {
            let got = shares(&parts, total);
            let wanted: f64 = parts.iter().map(|part| part.1).sum();
            let sum: f64 = got.iter().sum();
            prop_assert!((sum - total.min(wanted)).abs() < 1e-6 * total, "{} of {}", sum, total.min(wanted));
            prop_assert!(got.iter().zip(&parts).all(|(got, part)| *got <= part.1 + 1e-9));
        }
    }
}
