//! Deduces the relations of pairs that were not measured.
//!
//! Distances in a machine are nested: a CPU on the same core as i is as far from any other CPU as i is. So one
//! measurement between two cores stands for all pairs of their threads, and one between two sockets for all pairs of
//! their CPUs. If measurements contradict each other, the majority counts. The contradiction is reported and lowers the
//! agreement; it does not end the probe.

use super::classes::Classes;
use super::evidence::Evidence;
use std::collections::HashMap;

/// Distance of two CPUs: 0 on one hardware thread, then one more than the class of their latency.
pub type Level = u8;
/// Both on one hardware thread.
pub const STACKED: Level = 0;

/// Number of hardware threads that a core is expected to have until a larger core has been found.
const USUAL_THREADS: usize = 2;

/// What is known of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// Nothing.
    Unknown,
    /// Not further apart than this.
    AtMost(Level),
    /// Measured, or implied by measurements.
    Is(Level),
}

/// The pairs that were measured.
#[derive(Debug, Clone, Default)]
pub struct Knowledge {
    cpus: usize,
    pairs: HashMap<(usize, usize), Evidence>,
}

/// Relations that follow from the measured pairs.
#[derive(Debug, Clone)]
pub struct Deduced {
    /// By level: the group number of each CPU. Members of a group are no further apart than the level.
    groups: Vec<Vec<usize>>,
    /// By level: the majority of the measurements between two of its groups.
    between: Vec<HashMap<(usize, usize), Vote>>,
    /// Hardware threads of a core.
    threads: usize,
    smt: bool,
    /// Measurements that contradict the majority.
    pub contradictions: usize,
    /// Number of all measurements.
    pub measurements: usize,
}

fn ordered(i: usize, j: usize) -> (usize, usize) {
    (i.min(j), i.max(j))
}

impl Knowledge {
    /// No knowledge yet about this number of CPUs.
    pub fn new(cpus: usize) -> Self {
        Self { cpus, pairs: HashMap::new() }
    }

    /// Evidence about a pair; `None` if it was never tried.
    pub fn pair(&self, i: usize, j: usize) -> Option<&Evidence> {
        self.pairs.get(&ordered(i, j))
    }

    /// Evidence about a pair, for adding to it.
    pub fn pair_mut(&mut self, i: usize, j: usize) -> &mut Evidence {
        self.pairs.entry(ordered(i, j)).or_default()
    }

    /// All latencies, for clustering, ns.
    pub fn latencies(&self) -> Vec<f64> {
        self.pairs.values().filter_map(Evidence::latency_ns).collect()
    }

    /// Latencies with their pairs, in order.
    pub fn measured_latencies(&self) -> impl Iterator<Item = ((usize, usize), f64)> {
        let mut all: Vec<_> = self
            .pairs
            .iter()
            .filter_map(|(pair, evidence)| evidence.latency_ns().map(|ns| (*pair, ns)))
            .collect();
        all.sort_by_key(|(pair, _)| *pair);
        all.into_iter()
    }

    fn measured(&self, classes: &Classes) -> Vec<((usize, usize), Level)> {
        let level = |evidence: &Evidence| match evidence.latency_ns() {
            Some(latency) => Some(classes.class(latency) as Level + 1),
            None => evidence.is_stacked().then_some(STACKED),
        };
        let mut all: Vec<_> =
            self.pairs.iter().filter_map(|(pair, evidence)| level(evidence).map(|l| (*pair, l))).collect();
        // Ties between contradicting measurements must not depend on the order of the hash map.
        all.sort_unstable();
        all
    }

    /// Draws the conclusions.
    pub fn deduce(&self, classes: &Classes) -> Deduced {
        let measured = self.measured(classes);
        let levels = classes.count() + 1;
        let mut group: Vec<usize> = (0..self.cpus).collect();
        let mut deduced = Deduced {
            groups: Vec::with_capacity(levels),
            between: Vec::with_capacity(levels),
            threads: USUAL_THREADS,
            smt: classes.nearest_is_smt(),
            contradictions: 0,
            measurements: measured.len(),
        };
        for level in 0..levels as Level {
            // Vote between the groups so far; groups whose vote is this level or less are merged.
            let table = majority(&measured, &group);
            let before = group.clone();
            for (&(a, b), _) in table.iter().filter(|(_, vote)| vote.level <= level) {
                let (a, b) = (root(&group, a), root(&group, b));
                group[a.max(b)] = a.min(b);
            }
            let flat: Vec<usize> = (0..self.cpus).map(|i| root(&group, i)).collect();
            group.copy_from_slice(&flat);
            // No two members of a group may be further apart than its level.
            let joined = |i: usize, j: usize| flat[i] == flat[j] && root(&before, i) != root(&before, j);
            deduced.contradictions +=
                measured.iter().filter(|((i, j), l)| joined(*i, *j) && *l > level).count();
            let between = majority(&measured, &flat);
            deduced.groups.push(flat);
            deduced.between.push(between);
        }
        if deduced.smt {
            deduced.threads = deduced.largest_core().next_power_of_two().max(USUAL_THREADS);
        }
        deduced
    }
}

fn root(group: &[usize], mut i: usize) -> usize {
    while group[i] != i {
        i = group[i];
    }
    i
}

/// The level that most measurements between two groups have.
#[derive(Debug, Clone, Copy)]
struct Vote {
    level: Level,
    /// Number of these measurements.
    votes: usize,
}

/// The vote between any two groups.
fn majority(measured: &[((usize, usize), Level)], group: &[usize]) -> HashMap<(usize, usize), Vote> {
    let mut votes: HashMap<(usize, usize), Vec<Vote>> = HashMap::new();
    for ((i, j), level) in measured {
        let (a, b) = (root(group, *i), root(group, *j));
        if a == b {
            continue;
        }
        let list = votes.entry(ordered(a, b)).or_default();
        match list.iter_mut().find(|vote| vote.level == *level) {
            Some(vote) => vote.votes += 1,
            None => list.push(Vote { level: *level, votes: 1 }),
        }
    }
    // The nearer level wins a tie: errors make latencies longer.
    let best =
        |list: Vec<Vote>| list.into_iter().max_by_key(|vote| (vote.votes, std::cmp::Reverse(vote.level)));
    votes.into_iter().filter_map(|(pair, list)| best(list).map(|vote| (pair, vote))).collect()
}

impl Deduced {
    /// Number of levels, stacking included.
    pub fn levels(&self) -> usize {
        self.groups.len()
    }

    /// Group number of each CPU at a level.
    pub fn groups(&self, level: Level) -> &[usize] {
        &self.groups[usize::from(level).min(self.groups.len() - 1)]
    }

    /// Does the nearest class mean threads of one core?
    pub fn has_smt(&self) -> bool {
        self.smt
    }

    fn largest_core(&self) -> usize {
        let (Some(threads), Some(cores)) = (self.groups.first(), self.groups.get(1)) else { return 1 };
        let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
        for (thread, core) in threads.iter().zip(cores) {
            let list = members.entry(*core).or_default();
            if !list.contains(thread) {
                list.push(*thread);
            }
        }
        members.values().map(Vec::len).max().unwrap_or(1)
    }

    /// Have all hardware threads of this CPU's core been found?
    fn core_is_full(&self, cpu: usize) -> bool {
        if !self.smt || self.groups.len() < 2 {
            return false;
        }
        let core = self.groups[1][cpu];
        let mut threads: Vec<usize> = (0..self.groups[1].len())
            .filter(|i| self.groups[1][*i] == core)
            .map(|i| self.groups[0][i])
            .collect();
        threads.sort_unstable();
        threads.dedup();
        threads.len() >= self.threads
    }

    /// Does the distance of two CPUs rest on a single measurement between their groups? Only for CPUs that share no
    /// cache: there one measurement stands for many pairs.
    pub fn rests_on_one(&self, i: usize, j: usize) -> bool {
        let level = self.groups.iter().position(|group| group[i] == group[j]).unwrap_or(self.groups.len());
        let cache = 1 + usize::from(self.smt);
        level > cache
            && self.between[level - 1]
                .get(&ordered(self.groups[level - 1][i], self.groups[level - 1][j]))
                .is_some_and(|vote| vote.votes == 1)
    }

    /// For each CPU: is its core complete? Computed once for many calls of [`Deduced::relation`].
    pub fn full_cores(&self) -> Vec<bool> {
        let cpus = self.groups.first().map_or(0, Vec::len);
        let mut by_core: HashMap<usize, bool> = HashMap::new();
        (0..cpus)
            .map(|i| {
                *by_core.entry(self.groups.get(1).map_or(i, |g| g[i])).or_insert_with(|| self.core_is_full(i))
            })
            .collect()
    }

    /// The relation of a pair. `full` comes from [`Deduced::full_cores`].
    pub fn relation(&self, i: usize, j: usize, full: &[bool]) -> Relation {
        let Some(level) = self.groups.iter().position(|group| group[i] == group[j]) else {
            // No group contains both, but something may have been measured between their groups.
            let found = self
                .groups
                .iter()
                .zip(&self.between)
                .find_map(|(group, between)| between.get(&ordered(group[i], group[j])).copied());
            return found.map_or(Relation::Unknown, |vote| Relation::Is(vote.level));
        };
        if level == 0 {
            return Relation::Is(STACKED);
        }
        // A group of this level contains both. It is exactly this level if their groups below it were measured.
        let below = &self.groups[level - 1];
        if self.between[level - 1].contains_key(&ordered(below[i], below[j])) {
            return Relation::Is(level as Level);
        }
        for lower in (0..level - 1).rev() {
            let group = &self.groups[lower];
            if let Some(found) = self.between[lower].get(&ordered(group[i], group[j])) {
                return Relation::Is(found.level);
            }
        }
        if level >= 2 && level - 1 == 1 && full[i] && full[j] {
            return Relation::Is(level as Level);
        }
        Relation::AtMost(level as Level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Outcome;

    fn know(cpus: usize, pairs: &[(usize, usize, f64)]) -> (Knowledge, Classes) {
        let mut knowledge = Knowledge::new(cpus);
        for &(i, j, latency) in pairs {
            let outcome = Outcome { pair: (i, j), latency_ns: Some(latency), ..Outcome::default() };
            knowledge.pair_mut(i, j).add(&outcome);
        }
        let classes = Classes::of(&knowledge.latencies(), 5.0);
        (knowledge, classes)
    }

    #[test]
    fn siblings_of_siblings_and_sockets_follow() {
        // Cores {0,1} and {2,3} in one socket, {4,5} in another.
        let (knowledge, classes) =
            know(6, &[(0, 1, 8.0), (2, 3, 8.0), (4, 5, 8.0), (1, 2, 50.0), (0, 4, 120.0)]);
        let deduced = knowledge.deduce(&classes);
        let full = deduced.full_cores();
        assert_eq!(deduced.relation(0, 3, &full), Relation::Is(2));
        assert_eq!(deduced.relation(3, 5, &full), Relation::Is(3));
        assert_eq!(deduced.contradictions, 0);
    }

    #[test]
    fn what_was_not_measured_is_not_known() {
        let (knowledge, classes) = know(5, &[(0, 1, 8.0), (0, 2, 50.0), (0, 3, 50.0)]);
        let deduced = knowledge.deduce(&classes);
        let full = deduced.full_cores();
        assert_eq!(deduced.relation(2, 3, &full), Relation::AtMost(2), "they might share a core");
        assert_eq!(deduced.relation(1, 2, &full), Relation::Is(2));
        assert_eq!(deduced.relation(0, 4, &full), Relation::Unknown);
    }

    #[test]
    fn a_contradiction_is_outvoted_and_counted() {
        let (knowledge, classes) = know(
            6,
            &[
                (0, 1, 8.0),
                (2, 3, 8.0),
                (4, 5, 8.0),
                (0, 2, 50.0),
                (1, 3, 50.0),
                (0, 3, 130.0),
                (0, 4, 120.0),
                (2, 4, 120.0),
            ],
        );
        let deduced = knowledge.deduce(&classes);
        let full = deduced.full_cores();
        assert_eq!(deduced.relation(0, 3, &full), Relation::Is(2));
        assert!(deduced.contradictions > 0);
    }
}
