//! The result: groups of CPUs at each level, unknown pairs, and the agreement of the measurements.

use super::classes::Classes;
use super::evidence::Evidence;
use super::knowledge::{Deduced, Knowledge, Level, Relation, STACKED};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the members of a group share; nearer compares as less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shares {
    /// One hardware thread: only one of them can run at a time.
    Thread,
    /// A core (SMT).
    Core,
    /// A cache.
    Cache,
    /// A socket, or whatever the next level is.
    Socket,
    /// The machine.
    Machine,
}

/// One level of the topology.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// What the groups share.
    pub shares: Shares,
    /// CPUs of each group, ascending.
    pub groups: Vec<Vec<usize>>,
    /// Typical latency between members that share nothing nearer, ns; `None` on one hardware thread.
    pub latency_ns: Option<f64>,
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Topology {
    /// CPUs that were probed.
    pub cpus: Vec<usize>,
    /// Levels, nearest first.
    pub tiers: Vec<Tier>,
    /// Pairs with an unknown relation.
    pub unknown: Vec<(usize, usize)>,
    /// Part of the measurements that agree with the result, 0 to 1.
    pub agreement: f64,
    /// Measured pairs, with the time of one pass, ns.
    pub measured: Vec<(usize, usize, f64)>,
    #[serde(skip)]
    pub(super) classes: Classes,
    /// Level of each pair of indices, row by row; `None`: unknown, or only an upper bound is known.
    #[serde(skip)]
    pub(super) levels: Vec<Option<Level>>,
}

/// A pair to measure in a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) pair: (usize, usize),
    pub(super) stacked: bool,
}

impl Topology {
    pub(super) fn of(cpus: &[usize], knowledge: &Knowledge, classes: &Classes, deduced: &Deduced) -> Self {
        let n = cpus.len();
        let full = deduced.full_cores();
        let mut levels = vec![None; n * n];
        let mut unknown = Vec::new();
        for i in 0..n {
            for j in i + 1..n {
                match deduced.relation(i, j, &full) {
                    Relation::Is(level) => {
                        levels[i * n + j] = Some(level);
                        levels[j * n + i] = Some(level);
                    }
                    Relation::AtMost(_) => {}
                    Relation::Unknown => unknown.push((cpus[i], cpus[j])),
                }
            }
        }
        let tiers = (0..deduced.levels())
            .map(|level| tier(cpus, knowledge, classes, deduced, level as Level))
            .collect();
        let agreement = if deduced.measurements == 0 {
            0.0
        } else {
            1.0 - (deduced.contradictions.min(deduced.measurements) as f64 / deduced.measurements as f64)
        };
        let measured = knowledge.measured_latencies().map(|((i, j), ns)| (cpus[i], cpus[j], ns)).collect();
        Self { cpus: cpus.to_vec(), tiers, unknown, agreement, measured, classes: classes.clone(), levels }
    }

    /// Groups at the tier of a kind; empty if the machine has no such tier.
    pub fn groups(&self, shares: Shares) -> &[Vec<usize>] {
        self.tiers.iter().find(|tier| tier.shares == shares).map_or(&[], |tier| &tier.groups)
    }

    /// Groups of CPUs that share one hardware thread.
    pub fn stacked(&self) -> impl Iterator<Item = &Vec<usize>> {
        self.groups(Shares::Thread).iter().filter(|group| group.len() > 1)
    }

    /// The nearest thing that two CPUs share, by their numbers; `None`: unknown.
    pub fn relation(&self, one: usize, other: usize) -> Option<Shares> {
        let (i, j) = (self.index(one)?, self.index(other)?);
        let level = self.levels[i * self.cpus.len() + j]?;
        self.tiers.get(usize::from(level)).map(|tier| tier.shares)
    }

    fn index(&self, cpu: usize) -> Option<usize> {
        self.cpus.binary_search(&cpu).ok()
    }

    fn level(&self, cpus: &[usize], pair: (usize, usize)) -> Option<Level> {
        let (i, j) = (self.index(cpus[pair.0])?, self.index(cpus[pair.1])?);
        self.levels[i * self.cpus.len() + j]
    }

    pub(super) fn question(&self, cpus: &[usize], pair: (usize, usize)) -> Question {
        Question { pair, stacked: self.level(cpus, pair) == Some(STACKED) }
    }

    /// Pairs for each group and tier whose measurement would differ if a member had moved: adjacent members of a
    /// group, at the tier that joins them.
    pub(super) fn questions(&self, cpus: &[usize]) -> Vec<Question> {
        let position: BTreeMap<usize, usize> = cpus.iter().enumerate().map(|(i, cpu)| (*cpu, i)).collect();
        let mut questions = Vec::new();
        let mut below: Vec<Vec<usize>> = self.cpus.iter().map(|cpu| vec![*cpu]).collect();
        for tier in &self.tiers {
            for group in &tier.groups {
                let heads: Vec<usize> =
                    below.iter().filter(|part| group.contains(&part[0])).map(|part| part[0]).collect();
                for pair in heads.windows(2) {
                    if let (Some(&i), Some(&j)) = (position.get(&pair[0]), position.get(&pair[1])) {
                        questions.push(self.question(cpus, (i, j)));
                    }
                }
            }
            below.clone_from(&tier.groups);
        }
        // Stacked pairs first: they take longest.
        questions.sort_by_key(|question| !question.stacked);
        questions
    }

    /// Does the evidence about a pair agree with this topology? `None` if the evidence does not decide.
    pub(super) fn agrees(&self, cpus: &[usize], pair: (usize, usize), evidence: &Evidence) -> Option<bool> {
        let expected = self.level(cpus, pair)?;
        if evidence.is_stacked() {
            return Some(expected == STACKED);
        }
        let latency = evidence.least_latency_ns()?;
        Some(expected == self.classes.class(latency) as Level + 1)
    }
}

fn tier(cpus: &[usize], knowledge: &Knowledge, classes: &Classes, deduced: &Deduced, level: Level) -> Tier {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (i, group) in deduced.groups(level).iter().enumerate() {
        groups.entry(*group).or_default().push(cpus[i]);
    }
    let mut latencies: Vec<f64> =
        knowledge.latencies().into_iter().filter(|l| classes.class(*l) as Level + 1 == level).collect();
    latencies.sort_by(f64::total_cmp);
    let order = [Shares::Core, Shares::Cache, Shares::Socket, Shares::Machine];
    let shares = match level {
        STACKED => Shares::Thread,
        level => order[(usize::from(level) - usize::from(deduced.has_smt())).min(order.len() - 1)],
    };
    Tier {
        shares,
        groups: groups.into_values().collect(),
        latency_ns: latencies.get(latencies.len() / 2).copied(),
    }
}
