//! Names of a guest's tasks. They prove that an address which was found is that of a task.
//!
//! A Linux kernel maps all of its memory in one piece, aligned to 1 GiB even where the place is random (CONFIG_RANDOMIZE_MEMORY), so an address
//! there says where in its GiB of guest memory it is. In which one, and how far from the beginning of a task its name is, is found by trying: there
//! is one place at which all tasks that were seen have names.

use super::memory::Read;
use super::Page;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

const GIB: u64 = 1 << 30;
/// Guests have no memory in the last of their first 4 GiB, at most.
const HOLE_GIBS: u64 = 4;
/// Of a task, the name is in the first so many bytes.
const TASK_BYTES: usize = 4096;
/// `TASK_COMM_LEN`.
const NAME_BYTES: usize = 16;
/// So many tasks with names are no accident.
const ENOUGH: usize = 3;
/// Addresses from here on are those of the kernel's image, of which the first idle task is a part: they are mapped elsewhere.
const IMAGE_FROM: u64 = 0xffff_ffff_8000_0000;

/// Where a guest's tasks are, and their names in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Names {
    /// What is added to an address in the guest's kernel, wrapping, to have it in the VMM's.
    to_hva: u64,
    /// Of the name in a task.
    offset: usize,
}

impl Names {
    /// By tasks that were seen; `ram`: where the VMM may have mapped the guest's memory.
    pub(crate) fn find(
        tasks: &BTreeSet<u64>,
        page: Page,
        ram: &Range<u64>,
        memory: &impl Read,
    ) -> Option<Self> {
        let tasks: Vec<u64> = tasks.iter().copied().filter(|task| *task < IMAGE_FROM).collect();
        let first = *tasks.first().filter(|_| tasks.len() >= ENOUGH)?;
        // Where the guest's first byte is, or would be if its memory had no hole.
        let start = page.hva.checked_sub(page.gpa)?;
        // A hole below 4 GiB puts that one before the mapping.
        let gibs = 0..=ram.end.saturating_sub(ram.start) / GIB + HOLE_GIBS;
        let places = gibs.map(|gib| start.wrapping_add(first % GIB).wrapping_add(gib * GIB));
        places.filter(|hva| ram.contains(hva)).find_map(|hva| {
            let to_hva = hva.wrapping_sub(first);
            let mut offsets: Vec<usize> = (0..=TASK_BYTES - NAME_BYTES).step_by(8).collect();
            for task in &tasks {
                let mut bytes = [0; TASK_BYTES];
                if !memory.read(task.wrapping_add(to_hva), &mut bytes) {
                    return None;
                }
                offsets.retain(|offset| name(&bytes[*offset..*offset + NAME_BYTES]).is_some());
                if offsets.is_empty() {
                    return None;
                }
            }
            Some(Self { to_hva, offset: *offsets.first()? })
        })
    }

    /// Name of a task.
    pub(crate) fn of(&self, task: u64, memory: &impl Read) -> Option<String> {
        if task >= IMAGE_FROM {
            return Some("swapper/0".into());
        }
        let mut bytes = [0; NAME_BYTES];
        let at = task.wrapping_add(self.to_hva).wrapping_add(self.offset as u64);
        memory.read(at, &mut bytes).then(|| name(&bytes).map(str::to_owned))?
    }
}

/// A name, as the kernel keeps it: at least two characters that can be printed, and a zero byte.
fn name(bytes: &[u8]) -> Option<&str> {
    let length = bytes.iter().position(|byte| *byte == 0)?;
    let name = bytes.get(..length).filter(|name| name.len() >= 2)?;
    let good = name[0].is_ascii_alphanumeric() || b"([_/.".contains(&name[0]);
    (good && name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' '))
        .then(|| std::str::from_utf8(name).ok())?
}

#[cfg(test)]
mod tests {
    use super::super::memory::tests::At;
    use super::*;
    use proptest::prelude::*;

    const HVA: u64 = 0x7f00_0000_0000;
    /// An address of the direct map, wherever that begins.
    const VIRTUAL: u64 = 0xffff_9b21_c000_0000;

    /// A guest with tasks of these names, one every 16 KiB.
    fn guest(names: &[&str]) -> (At, BTreeSet<u64>) {
        let mut bytes = vec![0u8; names.len() << 14];
        for (at, name) in names.iter().enumerate() {
            bytes[(at << 14) + 0xbc0..][..name.len()].copy_from_slice(name.as_bytes());
        }
        let tasks = (0..names.len() as u64).map(|at| VIRTUAL + (at << 14)).collect();
        (At(HVA, bytes), tasks)
    }

    fn find(memory: &At, tasks: &BTreeSet<u64>) -> Option<Names> {
        let page = Page { hva: HVA + 0x1000, gpa: 0x1000 };
        Names::find(tasks, page, &(HVA..HVA + memory.1.len() as u64), memory)
    }

    #[test]
    fn names_are_found_where_all_tasks_have_one() {
        let (memory, tasks) = guest(&["swapper/1", "kworker/0:1", "spin"]);
        let names = find(&memory, &tasks).unwrap();
        assert_eq!(names.offset, 0xbc0);
        assert_eq!(names.of(VIRTUAL + (2 << 14), &memory).as_deref(), Some("spin"));
        assert_eq!(names.of(0xffff_ffff_8260_d940, &memory).as_deref(), Some("swapper/0"));
    }

    #[test]
    fn two_tasks_are_not_enough_and_one_without_a_name_is_none() {
        for names in
            [&["swapper/1", "spin"][..], &["swapper/1", "spin", ""], &["swapper/1", "spin", "\u{1}x"]]
        {
            let (memory, tasks) = guest(names);
            assert_eq!(find(&memory, &tasks), None, "{names:?}");
        }
        // What is 64 bytes behind a task is not one: its name is not in reach.
        let (mut memory, tasks) = guest(&["swapper/1", "kworker/0:1", "spin"]);
        let shifted = tasks.iter().map(|task| task + 0x1000).collect();
        assert_eq!(find(&memory, &shifted), None);
        memory.1.truncate(100);
        assert_eq!(find(&memory, &tasks), None, "not mapped");
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_name_or_none(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            prop_assert!(name(&bytes).is_none_or(|name| (2..20).contains(&name.len())));
        }

        /// Whatever a guest says of where its page is.
        #[test]
        fn any_page_and_tasks_do_no_harm(hva in any::<u64>(), gpa in any::<u64>(), tasks in prop::collection::btree_set(any::<u64>(), 0..5), from in any::<u64>()) {
            let memory = At(HVA, vec![b'a'; 1 << 14]);
            let ram = from..from.saturating_add(8 * GIB);
            let _ = Names::find(&tasks, Page { hva, gpa }, &ram, &memory);
        }
    }
}
