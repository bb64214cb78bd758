//! Finds how far from its steal time page a guest's kernel keeps the current task of each CPU, and its preemption count (Anubis, SoCC'23,
//! "Introspection").
//!
//! All of them are in the per-CPU area. So the surroundings of each vCPU's page are read, again and again. A place is that of the current task
//! if there, on all vCPUs and each time, is what can be the address of a task, if it changes, if no two vCPUs have the same,
//! and if tasks lie at these addresses that have names. The preemption count is in the same cache line (`struct pcpu_hot`, or the
//! section of hot per-CPU variables since 6.15).

use super::memory::Read;
use super::names::Names;
use super::{Found, Page};
use std::collections::BTreeSet;
use std::ops::Range;
use tandem_policy::inside::{is_critical, is_guest_task, is_preempt_count, NO_RESCHED_BIT};

/// The per-CPU area of a kernel has so many bytes at most, and the page is behind most of it.
pub(crate) const BACK: usize = 256 << 10;
pub(crate) const AHEAD: usize = 64 << 10;
const LINE: usize = 64;
/// So often the surroundings are read before anything is said.
const SAMPLES: u32 = 16;
/// And so often the current task of some vCPU must have been another one.
const CHANGES: u32 = 6;
/// Without a preemption count beside it a place is believed only after so many.
const SAMPLES_ALONE: u32 = 64;
/// After so many there is nothing to be found.
const SAMPLES_MAX: u32 = 240;
/// Tasks that are remembered, for their names.
const TASKS_MAX: usize = 16;

/// What a place has been like.
struct Candidate {
    /// Its first byte in the surroundings.
    at: usize,
    last: Vec<u64>,
    changes: u32,
    /// Samples in which two vCPUs had the same: a task may have been migrated between two reads.
    same: u32,
    tasks: BTreeSet<u64>,
    counts: [Count; LINE / 4],
}

/// Can a word be the preemption count?
#[derive(Clone, Copy, Default)]
struct Count {
    impossible: bool,
    /// What it is most of the time: in user mode, or once disabled, and no need to reschedule.
    usual: u32,
    seen: u32,
    zero: bool,
    critical: bool,
}

impl Count {
    fn see(&mut self, word: u32) {
        self.impossible |= !is_preempt_count(word);
        self.usual += u32::from(word & !1 == NO_RESCHED_BIT);
        self.seen += 1;
        self.zero |= !is_critical(word);
        self.critical |= is_critical(word);
    }

    fn is_it(&self) -> bool {
        !self.impossible && self.zero && self.critical && 2 * self.usual >= self.seen
    }
}

impl Candidate {
    /// Where it is, from the page.
    fn distance(&self) -> i32 {
        self.at as i32 - BACK as i32
    }

    fn depth(&self) -> Option<i32> {
        let word = self.counts.iter().position(Count::is_it)?;
        Some((self.at - self.at % LINE + 4 * word) as i32 - BACK as i32)
    }

    fn see(&mut self, windows: &[Vec<u8>]) -> bool {
        let words: Vec<u64> = windows.iter().map(|window| u64_at(window, self.at)).collect();
        if !words.iter().all(|word| is_guest_task(*word)) {
            return false;
        }
        self.changes += words.iter().zip(&self.last).filter(|(now, before)| now != before).count() as u32;
        self.same += u32::from(have_two_alike(&words));
        self.last.clone_from(&words);
        // Most never change. What is beside them is of no interest.
        if self.changes == 0 {
            return true;
        }
        for word in &words {
            if self.tasks.len() < TASKS_MAX {
                self.tasks.insert(*word);
            }
        }
        let line = self.at - self.at % LINE;
        for window in windows {
            for (word, count) in self.counts.iter_mut().enumerate() {
                count.see(u64_at(window, line + 4 * word) as u32);
            }
        }
        true
    }
}

fn have_two_alike(words: &[u64]) -> bool {
    words.iter().collect::<BTreeSet<_>>().len() < words.len()
}

/// A word of a window; zero: it is not in it.
fn u64_at(window: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    let there = window.get(at..(at + 8).min(window.len())).unwrap_or_default();
    bytes[..there.len()].copy_from_slice(there);
    u64::from_ne_bytes(bytes)
}

/// A search in one guest.
#[derive(Default)]
pub(crate) struct Search {
    samples: u32,
    candidates: Vec<Candidate>,
}

impl Search {
    /// The surroundings of each vCPU's page, of [`BACK`] and [`AHEAD`] bytes, were read again.
    pub(crate) fn see(&mut self, windows: &[Vec<u8>]) {
        let bytes = windows.iter().map(Vec::len).min().unwrap_or(0);
        if self.samples == 0 {
            for at in (0..bytes.saturating_sub(7)).step_by(8) {
                let words: Vec<u64> = windows.iter().map(|window| u64_at(window, at)).collect();
                if words.iter().all(|word| is_guest_task(*word)) {
                    let counts = [Count::default(); LINE / 4];
                    let tasks = BTreeSet::new();
                    self.candidates.push(Candidate { at, last: words, changes: 0, same: 0, tasks, counts });
                }
            }
        }
        self.samples += 1;
        self.candidates.retain_mut(|candidate| candidate.see(windows));
    }

    /// Is there nothing left that it could be?
    pub(crate) fn is_over(&self) -> bool {
        self.samples > 0 && self.candidates.is_empty() || self.samples >= SAMPLES_MAX
    }

    /// What was found by now.
    pub(crate) fn found(&self, page: Page, ram: &Range<u64>, memory: &impl Read) -> Option<Found> {
        if self.samples < SAMPLES {
            return None;
        }
        let likely = |candidate: &&Candidate| {
            candidate.changes >= CHANGES
                && 8 * candidate.same <= self.samples
                && (candidate.depth().is_some() || self.samples >= SAMPLES_ALONE)
        };
        let mut likely: Vec<&Candidate> = self.candidates.iter().filter(likely).collect();
        likely.sort_by_key(|candidate| candidate.depth().is_none());
        likely.into_iter().find_map(|candidate| {
            let names = Names::find(&candidate.tasks, page, ram, memory)?;
            Some(Found { task: candidate.distance(), depth: candidate.depth(), names })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::tests::At;
    use super::*;
    use proptest::prelude::*;

    const HVA: u64 = 0x7f00_0000_0000;
    const VIRTUAL: u64 = 0xffff_8880_0000_0000;
    const TASK: usize = BACK - 0x3080;
    const COUNT: usize = TASK + 8;

    /// A guest's memory: ten tasks with names, one every 16 KiB.
    fn tasks() -> At {
        let mut bytes = vec![0u8; 10 << 14];
        for at in 0..10 {
            bytes[(at << 14) + 0xbb8..][..5].copy_from_slice(format!("task{at}").as_bytes());
        }
        At(HVA, bytes)
    }

    fn put(window: &mut [u8], at: usize, word: u64) {
        window[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }

    /// What two vCPUs have at some moment: current tasks and counts, pointers that never change, and others that change and are no tasks.
    fn windows(moment: u64) -> [Vec<u8>; 2] {
        [0, 1].map(|cpu| {
            let mut window = vec![0u8; BACK + AHEAD];
            let task = (moment * (cpu + 3) + 5 * cpu) % 5 + 5 * cpu;
            put(&mut window, TASK, VIRTUAL + (task << 14));
            put(&mut window, COUNT, 0x8000_0000 + u64::from(moment % 3 == cpu) + (cpu << 32));
            put(&mut window, 0x800, VIRTUAL + (cpu << 14));
            put(&mut window, 0x1000, VIRTUAL + 0x40 * (1 + (moment + cpu) % 7));
            window
        })
    }

    fn found(search: &Search) -> Option<Found> {
        let memory = tasks();
        let page = Page { hva: HVA + 0x4000, gpa: 0x4000 };
        search.found(page, &(HVA..HVA + memory.1.len() as u64), &memory)
    }

    #[test]
    fn the_current_task_and_the_preemption_count_are_found() {
        let mut search = Search::default();
        for moment in 0..SAMPLES {
            assert_eq!(found(&search), None);
            search.see(&windows(moment.into()));
        }
        let found = found(&search).unwrap();
        assert_eq!((found.task, found.depth), (-0x3080, Some(-0x3078)));
        assert_eq!(found.names.of(VIRTUAL + (7 << 14), &tasks()).as_deref(), Some("task7"));
    }

    #[test]
    fn what_does_not_change_has_no_names_or_is_the_same_everywhere_is_no_current_task() {
        let search = |change: fn(u64, &mut [Vec<u8>; 2])| {
            let mut search = Search::default();
            for moment in 0..SAMPLES_MAX.into() {
                let mut seen = windows(moment);
                change(moment, &mut seen);
                search.see(&seen);
            }
            assert!(search.is_over());
            found(&search)
        };
        assert!(search(|_, _| ()).is_some());
        // It stands still.
        assert_eq!(search(|_, seen| *seen = windows(0)), None);
        // Both vCPUs have the same.
        assert_eq!(search(|_, seen| seen[1] = seen[0].clone()), None);
        // Once it was no address.
        assert_eq!(
            search(|moment, seen| put(&mut seen[0], TASK, u64::from(moment != 9) * (VIRTUAL + 64))),
            None
        );
        // Encrypted memory.
        let garbage = search(|moment, seen| {
            for (at, byte) in seen.iter_mut().flatten().enumerate() {
                *byte = (moment.wrapping_mul(at as u64 + 7) >> 3) as u8;
            }
        });
        assert_eq!(garbage, None);
        // Without a count there is still a task.
        let alone = search(|_, seen| seen.iter_mut().for_each(|window| put(window, COUNT, u64::MAX)));
        assert_eq!(alone.map(|found| (found.task, found.depth)), Some((-0x3080, None)));
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..600), cpus in 0usize..4) {
            let mut search = Search::default();
            for _ in 0..3 {
                search.see(&vec![bytes.clone(); cpus]);
            }
            prop_assert_eq!(found(&search), None);
        }
    }
}
