//! Notation of a tree of groups on the command line.

use anyhow::{ensure, Result};
use std::collections::BTreeMap;
use std::str::FromStr;

/// Most threads in one group.
const MAX_GROUP_THREADS: u32 = 20_000;

/// One group: `PATH=WEIGHTxTHREADS[@QUOTA/PERIOD]`.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSpec {
    /// Path below the root of the tree.
    pub path: String,
    /// cpu.weight.
    pub weight: u32,
    /// cpu.idle.
    pub idle: bool,
    /// CPU-bound threads in the group itself.
    pub threads: u32,
    /// cpu.max: quota and period in microseconds.
    pub limit: Option<(u64, u64)>,
}

impl FromStr for GroupSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("{text:?}: {what}; expected e.g. a/b=300x2 or a=100x4@10000/100000");
        let (path, rest) = text.split_once('=').ok_or_else(|| wrong("no ="))?;
        let good = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric());
        if !path.split('/').all(good) {
            return Err(wrong("a path has names of letters and digits"));
        }
        let (shape, limit) = match rest.split_once('@') {
            Some((shape, limit)) => (shape, Some(limit)),
            None => (rest, None),
        };
        let (weight, threads) = shape.split_once('x').ok_or_else(|| wrong("no x"))?;
        let idle = weight == "idle";
        let weight = if idle { 100 } else { weight.parse().map_err(|_| wrong("the weight is no number"))? };
        if !(1..=10_000).contains(&weight) {
            return Err(wrong("weights go from 1 to 10000"));
        }
        let threads = threads.parse().ok().filter(|threads| *threads <= MAX_GROUP_THREADS);
        let limit = limit.map(|limit| {
            let (quota, period) = limit.split_once('/')?;
            let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
            // The kernel's limits.
            (quota >= 1000 && (1000..=1_000_000).contains(&period)).then_some((quota, period))
        });
        if limit == Some(None) {
            return Err(wrong("quota and period are microseconds from 1000, the period up to 1000000"));
        }
        Ok(Self {
            path: path.into(),
            weight,
            idle,
            threads: threads.ok_or_else(|| wrong("threads from 0 to 20000"))?,
            limit: limit.flatten(),
        })
    }
}

/// A node of the tree.
#[derive(Debug, Clone)]
pub struct Node {
    /// Weight among its siblings.
    pub weight: f64,
    /// SCHED_IDLE (cpu.idle).
    pub idle: bool,
    /// Threads of its own.
    pub threads: u32,
    /// Maximum number of CPUs that it may use.
    pub limit_cpus: f64,
    /// Numbers of its child nodes.
    pub children: Vec<usize>,
}

/// All nodes; number 0 is the root.
#[derive(Debug)]
pub struct Tree {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Node of each spec.
    pub index: Vec<usize>,
}

impl Tree {
    /// Builds the tree. A group that is only named in a path gets weight 100.
    ///
    /// # Errors
    /// A group is given twice.
    pub fn of(specs: &[GroupSpec]) -> Result<Self> {
        let plain =
            || Node { weight: 100.0, idle: false, threads: 0, limit_cpus: f64::INFINITY, children: vec![] };
        let mut tree = Self { nodes: vec![plain()], index: Vec::new() };
        let mut known = BTreeMap::from([(String::new(), 0)]);
        for spec in specs {
            let mut at = 0;
            let mut path = String::new();
            for name in spec.path.split('/') {
                path = format!("{path}/{name}");
                at = match known.get(&path) {
                    Some(&index) => index,
                    None => {
                        tree.nodes.push(plain());
                        let index = tree.nodes.len() - 1;
                        tree.nodes[at].children.push(index);
                        known.insert(path.clone(), index);
                        index
                    }
                };
            }
            ensure!(!tree.index.contains(&at), "group {} is given twice", spec.path);
            tree.index.push(at);
            let node = &mut tree.nodes[at];
            (node.weight, node.idle, node.threads) = (f64::from(spec.weight), spec.idle, spec.threads);
            node.limit_cpus =
                spec.limit.map_or(f64::INFINITY, |(quota, period)| quota as f64 / period as f64);
        }
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn specs_are_read() {
        let spec: GroupSpec = "a/b=300x2@10000/100000".parse().unwrap();
        assert_eq!((spec.path.as_str(), spec.weight, spec.threads), ("a/b", 300, 2));
        assert_eq!(spec.limit, Some((10_000, 100_000)));
        assert!("a=idlex1".parse::<GroupSpec>().unwrap().idle);
        for bad in ["a", "a=1", "=1x1", "a/=1x1", "../a=1x1", "a=0x1", "a=1x1@5/5", "a=1x99999"] {
            assert!(bad.parse::<GroupSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn groups_form_a_tree() {
        let specs: Vec<GroupSpec> = ["a/b=300x2", "a=200x0", "c=50x1"].map(|s| s.parse().unwrap()).into();
        let tree = Tree::of(&specs).unwrap();
        assert_eq!(tree.nodes.len(), 4);
        assert_eq!(tree.nodes[0].children.len(), 2);
        assert_eq!(tree.nodes[tree.index[1]].children, [tree.index[0]]);
        assert!(Tree::of(&["a=1x1".parse().unwrap(), "a=2x1".parse().unwrap()]).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            let _ = text.parse::<GroupSpec>();
        }
    }
}
