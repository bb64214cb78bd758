//! What the vCPUs of a VM run right now, for people: `tandem host inside`.

use super::memory::{word, Memory};
use super::{Found, Page};
use crate::HostError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;
use tandem_policy::inside::{is_guest_task, is_preempt_count, NO_RESCHED_BIT};

/// Time between two samples.
const PAUSE: Duration = Duration::from_millis(1);

/// Where to look: what the scheduler's daemon has found of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Process of the VMM.
    pid: u32,
    /// Where each vCPU's guest reads its steal time, of up to eight.
    pages: Vec<Page>,
    found: Found,
}

/// What a vCPU runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Address of the guest's current task; none: the word there is no address of one.
    pub task: Option<u64>,
    /// Its name.
    pub name: Option<String>,
    /// Preemption count of its CPU, without the bit that says whether to reschedule.
    pub depth: Option<u32>,
}

/// Of samples, how many are what the guest has recorded itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Agreement {
    /// Samples.
    pub samples: u64,
    /// Those in which both are the same.
    pub agree: u64,
    /// Those in which the word read can be no task.
    pub ambiguous: u64,
    /// Reads that do not count: what was read is the task before, and the guest's kernel is about to switch.
    pub switching: u64,
    /// Different tasks that were seen.
    pub tasks: u64,
}

impl Look {
    pub(crate) fn new(pid: u32, pages: impl Iterator<Item = Page>, found: Found) -> Self {
        Self { pid, pages: pages.collect(), found }
    }

    /// What its vCPUs run.
    ///
    /// # Errors
    /// The VMM has ended.
    pub fn look(&self) -> Result<Vec<Seen>, HostError> {
        let memory = self.memory()?;
        let at = |hva: u64, distance: i32| word(&memory, hva.wrapping_add_signed(distance.into()));
        let Found { task, depth, names } = self.found;
        let one = |page: &Page| {
            let task = at(page.hva, task).filter(|word| is_guest_task(*word));
            let count = depth.and_then(|depth| at(page.hva, depth)).map(|word| word as u32);
            let count = count.filter(|count| is_preempt_count(*count));
            Seen {
                task,
                name: task.and_then(|task| names.of(task, &memory)),
                depth: count.map(|count| count & !NO_RESCHED_BIT),
            }
        };
        Ok(self.pages.iter().map(one).collect())
    }

    /// Compares the current tasks with what the guest itself records just before each switch: an array at `record` in the guest's memory, two words for
    /// each CPU, the next task and the one before. `off`: bytes by which the distance is wrong on purpose. Reads during which the record
    /// changes do not count.
    ///
    /// # Errors
    /// The VMM has ended.
    pub fn agreement(&self, record: u64, samples: u64, off: i32) -> Result<Agreement, HostError> {
        let memory = self.memory()?;
        let mut agreement = Agreement::default();
        let mut tasks = BTreeSet::new();
        let Some(&Page { hva, gpa }) = self.pages.first() else { return Ok(agreement) };
        let recorded = |cpu: usize| {
            let at = hva.wrapping_add(record.wrapping_add(16 * cpu as u64).wrapping_sub(gpa));
            word(&memory, at).zip(word(&memory, at.wrapping_add(8)))
        };
        // Records that change all the time must not keep it here for ever.
        for sample in 0..4 * samples {
            if agreement.samples == samples {
                break;
            }
            let cpu = sample as usize % self.pages.len();
            let before = recorded(cpu);
            let read = word(&memory, self.pages[cpu].hva.wrapping_add_signed((self.found.task + off).into()));
            let Some((task, last)) = before.filter(|_| before == recorded(cpu)) else { continue };
            if read == Some(last) && task != last {
                agreement.switching += 1;
                continue;
            }
            agreement.samples += 1;
            agreement.agree += u64::from(read == Some(task));
            agreement.ambiguous += u64::from(!read.is_some_and(is_guest_task));
            tasks.extend(read);
            std::thread::sleep(PAUSE);
        }
        agreement.tasks = tasks.len() as u64;
        Ok(agreement)
    }

    fn memory(&self) -> Result<Memory, HostError> {
        Memory::of(self.pid).map_err(|source| HostError::Memory { pid: self.pid, source })
    }
}

/// What vCPUs run, for people.
pub fn seen_table(seen: &[Seen]) -> String {
    use std::fmt::Write as _;
    let mut text = format!("  {:<5} {:<18} {:<16} {}\n", "vCPU", "task", "name", "preemption count");
    for (vcpu, seen) in seen.iter().enumerate() {
        let task = seen.task.map_or_else(|| "-".into(), |task| format!("{task:#x}"));
        let name = seen.name.as_deref().unwrap_or("-");
        let depth = seen.depth.map_or_else(|| "-".into(), |depth| format!("{depth:#x}"));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {vcpu:<5} {task:<18} {name:<16} {depth}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_a_line_per_vcpu() {
        let one = Seen { task: Some(0xffff_8880_03a4_8000), name: Some("spin".into()), depth: Some(1) };
        let text = seen_table(&[one, Seen { task: None, name: None, depth: None }]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["0", "0xffff888003a48000", "spin", "0x1"]);
        assert_eq!(lines[2], ["1", "-", "-", "-"]);
    }

    /// A process that looks at itself as if it were a guest.
    #[test]
    fn what_the_guest_records_is_compared_with_what_is_read() {
        let tasks: Vec<u64> = vec![0xffff_8880_0000_4000; 64];
        let (page, record) = (tasks.as_ptr() as u64, tasks[32..].as_ptr() as u64);
        let gpa = 0x1000;
        let look = |distance| Look {
            pid: std::process::id(),
            pages: vec![Page { hva: page, gpa }],
            found: Found {
                task: distance,
                depth: None,
                names: serde_json::from_str(r#"{"to_hva": 0, "offset": 0}"#).unwrap(),
            },
        };
        let at = gpa + (record - page);
        let right = look(8).agreement(at, 20, 0).unwrap();
        assert_eq!((right.samples, right.agree, right.ambiguous, right.tasks), (20, 20, 0, 1));
        // Words that lie across two others are no addresses.
        let wrong = look(8).agreement(at, 20, 3).unwrap();
        assert_eq!((wrong.samples, wrong.agree, wrong.ambiguous), (20, 0, 20));
        assert_eq!(look(8).look().unwrap()[0].task, Some(tasks[0]));
        let gone = Look { pid: u32::MAX >> 1, ..look(8) };
        assert!(matches!(gone.look(), Err(HostError::Memory { .. })));
    }
}
