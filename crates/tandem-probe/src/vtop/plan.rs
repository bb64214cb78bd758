//! Chooses the pairs to measure next: unknown ones, as many at a time as there are free CPUs.

use super::classes::Classes;
use super::is_open;
use super::knowledge::{Deduced, Knowledge, Relation};

/// Number of further CPUs that may be made busy if at most `most` may be busy.
pub(super) fn room(busy: &[bool], most: usize) -> usize {
    most.saturating_sub(busy.iter().filter(|busy| **busy).count())
}

/// The busy CPUs, and where the search continues.
pub(super) struct Plan {
    busy: Vec<bool>,
    /// Maximum number of busy CPUs.
    most: usize,
    /// Offset at which the search for partners begins. It changes each time, so that every pair is tried.
    turn: usize,
}

impl Plan {
    pub(super) fn new(cpus: usize, most: usize) -> Self {
        Self { busy: vec![false; cpus], most, turn: 0 }
    }

    pub(super) fn done(&mut self, i: usize, j: usize) {
        self.busy[i] = false;
        self.busy[j] = false;
    }

    /// Pairs of free CPUs about which something is open. They count as busy from now on. Pairs without any known
    /// relation come first: one measurement between two groups decides many pairs.
    pub(super) fn next(
        &mut self,
        knowledge: &Knowledge,
        classes: &Classes,
        deduced: &Deduced,
    ) -> Vec<(usize, usize)> {
        let cpus = self.busy.len();
        let full = deduced.full_cores();
        let mut pairs = Vec::new();
        let mut free = room(&self.busy, self.most);
        for i in 0..cpus {
            if free < 2 {
                break;
            }
            if self.busy[i] {
                continue;
            }
            let mut best: Option<(u32, usize)> = None;
            for step in 1..cpus {
                let j = (i + step + self.turn) % cpus;
                if j == i || self.busy[j] || !is_open(knowledge, classes, deduced, &full, i, j) {
                    continue;
                }
                let tries = knowledge.pair(i, j).map_or(0, |evidence| evidence.attempts());
                let unknown = deduced.relation(i, j, &full) == Relation::Unknown;
                // A pair that did not overlap last time is tried again after all pairs that were tried less often.
                let cost = tries * 4 + u32::from(!unknown);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, j));
                }
                if cost == 0 {
                    break;
                }
            }
            if let Some((_, j)) = best {
                self.busy[i] = true;
                self.busy[j] = true;
                pairs.push((i, j));
                free -= 2;
            }
        }
        // Adjacent numbers are often siblings: they come first, then the rest in turn.
        self.turn = self.turn.wrapping_add(1) % cpus.max(1);
        pairs
    }
}
