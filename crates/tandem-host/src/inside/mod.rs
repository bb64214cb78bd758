//! What guests run, as their own memory says: where in it that is, for each VM.
//!
//! The scheduler reads the guest's current task and its preemption count at a distance from the page in which the guest reads its steal time
//! (`bpf/host/inside.bpf.h`). That distance is the same on all CPUs of a kernel, and another one for each build. It is searched for here.

mod look;
mod memory;
mod names;
mod search;

pub use look::{seen_table, Agreement, Look, Seen};

use crate::registry::Vm;
use memory::Memory;
use names::Names;
use search::{Search, AHEAD, BACK};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a guest in which nothing was found is left alone.
const REST: Duration = Duration::from_secs(300);
/// A guest that did no I/O since it was looked into is looked into again after so long: nobody needs to know soon.
const QUIET: Duration = Duration::from_secs(2);
/// So many guests are looked into at a time, those first that were not for the longest time.
const AT_A_TIME: usize = 4;
/// So many words that were not what they should have been, and the place is searched for again.
const MISREAD_MAX: u64 = 16;

/// Where a vCPU's guest reads its steal time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Page {
    /// In the VMM's memory.
    pub(crate) hva: u64,
    /// In the guest's.
    pub(crate) gpa: u64,
}

/// What was found of a guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// From the page to the address of the current task, bytes.
    pub(crate) task: i32,
    /// And to the preemption count.
    pub(crate) depth: Option<i32>,
    pub(crate) names: Names,
}

enum State {
    Rests(Instant),
    Searches(Box<Searched>),
    Knows(Found),
}

/// A guest in which it is searching.
#[derive(Default)]
struct Searched {
    search: Search,
    memory: Option<Memory>,
    looked_at: Option<Instant>,
    /// The last event of a device before that, ns.
    device_at_ns: u64,
}

/// What is known of one guest.
struct Inside {
    pages: Vec<Page>,
    misread: u64,
    state: State,
}

/// Of all guests, by the number and the generation of their VMs' records.
#[derive(Default)]
pub(crate) struct Insides(BTreeMap<(u32, u32), Inside>);

impl Insides {
    /// Looks into guests in which it is still searching.
    pub(crate) fn step(&mut self, vms: &[Vm], now: Instant) {
        self.0.retain(|record, _| vms.iter().any(|vm| vm.record() == *record));
        let mut due = Vec::new();
        for vm in vms {
            let pages: Vec<Page> = vm.pages().collect();
            if pages.is_empty() {
                self.0.remove(&vm.record());
                continue;
            }
            let new = || Inside {
                pages: pages.clone(),
                misread: vm.misread,
                state: State::Searches(Box::default()),
            };
            let inside = self.0.entry(vm.record()).or_insert_with(new);
            // Another kernel, or more vCPUs.
            if inside.pages != pages {
                *inside = new();
            }
            inside.wake(vm, now);
            if let Some(looked_at) = inside.due_since(vm, now) {
                due.push((looked_at, vm));
            }
        }
        due.sort_by_key(|(looked_at, _)| *looked_at);
        for (_, vm) in due.into_iter().take(AT_A_TIME) {
            if let Some(inside) = self.0.get_mut(&vm.record()) {
                inside.look(vm, now);
            }
        }
    }

    /// What was found of a VM's guest.
    pub(crate) fn found(&self, vm: &Vm) -> Option<Found> {
        self.0.get(&vm.record()).and_then(|inside| match inside.state {
            State::Knows(found) => Some(found),
            State::Rests(_) | State::Searches(_) => None,
        })
    }
}

impl Inside {
    /// Begins to search again, if it is time.
    fn wake(&mut self, vm: &Vm, now: Instant) {
        let begins = match &self.state {
            State::Knows(_) => vm.misread.saturating_sub(self.misread) > MISREAD_MAX,
            State::Rests(until) => now >= *until,
            State::Searches(_) => false,
        };
        if begins {
            self.misread = vm.misread;
            self.state = State::Searches(Box::default());
        }
    }

    /// When it was looked into, if it is to be again; none at all: never yet.
    fn due_since(&self, vm: &Vm, now: Instant) -> Option<Option<Instant>> {
        let State::Searches(searched) = &self.state else { return None };
        let waits = |at: Instant| vm.device_at_ns == searched.device_at_ns && now.duration_since(at) < QUIET;
        (!searched.looked_at.is_some_and(waits)).then_some(searched.looked_at)
    }

    fn look(&mut self, vm: &Vm, now: Instant) {
        let State::Searches(searched) = &mut self.state else { return };
        searched.looked_at = Some(now);
        searched.device_at_ns = vm.device_at_ns;
        match searched.look_once_more(vm.pid, &self.pages) {
            Outcome::Found(found) => {
                let pid = vm.pid;
                log::debug!(
                    "process {pid}: its guest's current task is {:#x} from the steal time page",
                    found.task
                );
                self.misread = vm.misread;
                self.state = State::Knows(found);
            }
            Outcome::Nothing => self.state = State::Rests(now + REST),
            Outcome::GoesOn => {}
        }
    }
}

/// What came of it.
enum Outcome {
    Found(Found),
    GoesOn,
    Nothing,
}

impl Searched {
    /// In a VMM that has ended, or has moved its guest's memory, nothing is found.
    fn look_once_more(&mut self, pid: u32, pages: &[Page]) -> Outcome {
        if self.memory.is_none() {
            self.memory = Memory::of(pid).ok();
        }
        let (Some(memory), Some(first)) = (&self.memory, pages.first()) else { return Outcome::Nothing };
        let windows: Option<Vec<Vec<u8>>> =
            pages.iter().map(|page| memory.window(page.hva, BACK, AHEAD)).collect();
        let (Some(windows), Some(ram)) = (windows, memory.around(first.hva)) else { return Outcome::Nothing };
        self.search.see(&windows);
        match self.search.found(*first, &ram, memory) {
            Some(found) => Outcome::Found(found),
            None if self.search.is_over() => Outcome::Nothing,
            None => Outcome::GoesOn,
        }
    }
}
