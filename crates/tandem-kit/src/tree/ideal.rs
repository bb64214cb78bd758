//! Ideal share of each group: progressive filling over the tree.

use super::spec::Tree;

/// CPUs for each node of the tree on a machine of `cpus`. At every level they are divided by weight. No group gets more
/// than its limit, or than one CPU for each of its threads; what it cannot use goes to its siblings. SCHED_IDLE threads
/// get what normal threads cannot use. Threads beside child groups weigh 100 each, as nice 0 does.
pub fn fill(tree: &Tree, cpus: f64) -> Vec<f64> {
    let mut caps = vec![[0.0; 2]; tree.nodes.len()];
    cap(tree, 0, false, &mut caps);
    let mut shares = vec![0.0; tree.nodes.len()];
    let normal = cpus.min(caps[0][0]);
    give(tree, 0, normal, false, &caps, &mut shares);
    let rest = (cpus - normal).min(caps[0][1]);
    give(tree, 0, rest, true, &caps, &mut shares);
    shares
}

/// Maximum that a node can use: [by normal threads, by SCHED_IDLE threads].
fn cap(tree: &Tree, at: usize, idle_above: bool, caps: &mut [[f64; 2]]) -> [f64; 2] {
    let node = &tree.nodes[at];
    let idle = idle_above || node.idle;
    let mut sum = [0.0; 2];
    sum[usize::from(idle)] += f64::from(node.threads);
    for &child in &node.children {
        let below = cap(tree, child, idle, caps);
        sum = [sum[0] + below[0], sum[1] + below[1]];
    }
    sum[0] = sum[0].min(node.limit_cpus);
    sum[1] = sum[1].min(node.limit_cpus - sum[0]);
    caps[at] = sum;
    sum
}

fn give(tree: &Tree, at: usize, amount: f64, idle_class: bool, caps: &[[f64; 2]], shares: &mut [f64]) {
    let class = usize::from(idle_class);
    shares[at] += amount;
    let node = &tree.nodes[at];
    // (weight, maximum that it can use, node; `None`: the node's own threads)
    let mut wanting: Vec<(f64, f64, Option<usize>)> =
        node.children.iter().map(|&c| (tree.nodes[c].weight, caps[c][class], Some(c))).collect();
    let own = f64::from(node.threads);
    let below: f64 = node.children.iter().map(|&c| caps[c][class]).sum();
    if own > 0.0 && (below > 0.0 || !node.children.is_empty()) {
        wanting.push((100.0 * own, own, None));
    }
    wanting.retain(|(_, most, _)| *most > 0.0);
    let mut left = amount;
    while !wanting.is_empty() {
        let weights: f64 = wanting.iter().map(|(weight, ..)| weight).sum();
        let full: Vec<_> =
            wanting.iter().copied().filter(|(weight, most, _)| left * weight / weights >= *most).collect();
        if full.is_empty() {
            for (weight, _, child) in wanting {
                if let Some(child) = child {
                    give(tree, child, left * weight / weights, idle_class, caps, shares);
                }
            }
            return;
        }
        for (_, most, child) in &full {
            left -= most;
            if let Some(child) = child {
                give(tree, *child, *most, idle_class, caps, shares);
            }
        }
        wanting.retain(|(.., child)| full.iter().all(|(.., other)| other != child));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::spec::GroupSpec;
    use proptest::prelude::*;

    fn shares(specs: &[&str], cpus: f64) -> Vec<f64> {
        let specs: Vec<GroupSpec> = specs.iter().map(|spec| spec.parse().unwrap()).collect();
        let tree = Tree::of(&specs).unwrap();
        let all = fill(&tree, cpus);
        tree.index.iter().map(|index| (all[*index] * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn weights_caps_limits_and_best_effort() {
        assert_eq!(shares(&["a=100x1", "b=300x1"], 1.0), [0.25, 0.75]);
        // One thread uses one CPU at most; the rest goes to the other group.
        assert_eq!(shares(&["a=10000x1", "b=100x10"], 2.0), [1.0, 1.0]);
        assert_eq!(shares(&["a/x=100x1", "a/y=300x1", "b=100x2"], 1.0), [0.125, 0.375, 0.5]);
        assert_eq!(shares(&["a=100x4@10000/100000", "b=100x4"], 2.0), [0.1, 1.9]);
        assert_eq!(shares(&["a=idlex4", "b=100x1"], 2.0), [1.0, 1.0]);
        assert_eq!(shares(&["a=100x1", "b=100x1", "c=100x1"], 2.0), [0.667, 0.667, 0.667]);
        // A parent's limit bounds all groups below it.
        assert_eq!(shares(&["a=100x0@50000/100000", "a/x=100x1", "a/y=400x1"], 2.0), [0.5, 0.1, 0.4]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nobody_gets_more_than_it_can_use(
            threads in prop::collection::vec(0u32..6, 2..6), weights in prop::collection::vec(1u32..10_000, 6), cpus in 1u32..8,
        ) {
            let specs: Vec<GroupSpec> = threads.iter().zip(&weights).enumerate()
                .map(|(i, (t, w))| format!("g{i}={w}x{t}").parse().unwrap()).collect();
            let tree = Tree::of(&specs).unwrap();
            let all = fill(&tree, f64::from(cpus));
            let total: f64 = tree.index.iter().map(|i| all[*i]).sum();
            let usable = f64::from(cpus).min(threads.iter().map(|t| f64::from(*t)).sum());
            prop_assert!((total - usable).abs() < 1e-6, "{total} of {usable}");
            for (spec, i) in specs.iter().zip(&tree.index) {
                prop_assert!(all[*i] <= f64::from(spec.threads) + 1e-9);
            }
        }
    }
}
