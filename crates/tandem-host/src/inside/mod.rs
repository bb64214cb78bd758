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
const REST: Duration = Duration::from_secs(60);
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
    Searches(Search),
    Knows(Found),
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
    /// Looks into each guest in which it is still searching.
    pub(crate) fn step(&mut self, vms: &[Vm], now: Instant) {
        self.0.retain(|record, _| vms.iter().any(|vm| vm.record() == *record));
        for vm in vms {
            let pages: Vec<Page> = vm.pages().collect();
            if pages.is_empty() {
                self.0.remove(&vm.record());
                continue;
            }
            let new = || Inside {
                pages: pages.clone(),
                misread: vm.misread,
                state: State::Searches(Search::default()),
            };
            let inside = self.0.entry(vm.record()).or_insert_with(new);
            // Another kernel, or more vCPUs.
            if inside.pages != pages {
                *inside = new();
            }
            inside.step(vm, now);
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
    fn step(&mut self, vm: &Vm, now: Instant) {
        match &mut self.state {
            State::Knows(_) if vm.misread.saturating_sub(self.misread) <= MISREAD_MAX => {}
            State::Rests(until) if now < *until => {}
            State::Knows(_) | State::Rests(_) => {
                self.misread = vm.misread;
                self.state = State::Searches(Search::default());
            }
            State::Searches(search) => {
                let found = look_once_more(search, vm.pid, &self.pages);
                if let Some(found) = found {
                    log::debug!(
                        "process {}: its guest's current task is {:#x} from the steal time page",
                        vm.pid,
                        found.task
                    );
                    self.misread = vm.misread;
                    self.state = State::Knows(found);
                } else if search.is_over() {
                    self.state = State::Rests(now + REST);
                }
            }
        }
    }
}

/// A VMM that has ended is found nowhere.
fn look_once_more(search: &mut Search, pid: u32, pages: &[Page]) -> Option<Found> {
    let memory = Memory::of(pid).ok()?;
    let windows: Option<Vec<Vec<u8>>> =
        pages.iter().map(|page| memory.window(page.hva, BACK, AHEAD)).collect();
    search.see(&windows?);
    let first = *pages.first()?;
    search.found(first, &memory.around(first.hva)?, &memory)
}
