//! A kernel as its policy sees it. There are no pointers here: tasks, CPUs and DSQs have numbers.

use super::dsq::Dsq;
use crate::hardware::Hardware;
use crate::queue::Ns;
use std::collections::BTreeMap;

/// `SCX_DSQ_LOCAL`: the local DSQ of the CPU that the task is for.
pub const DSQ_LOCAL: u64 = 0x8000_0000_0000_0002;
/// `SCX_DSQ_LOCAL_ON`: the local DSQ of the CPU whose number is in the lower half.
pub const DSQ_LOCAL_ON: u64 = 0xC000_0000_0000_0000;
/// `SCX_DSQ_GLOBAL`: the DSQ that all CPUs consume from.
pub const DSQ_GLOBAL: u64 = 0x8000_0000_0000_0001;
/// `SCX_ENQ_HEAD`: insert at the head.
pub const ENQ_HEAD: u64 = 1 << 16;
/// `SCX_ENQ_WAKEUP`: the task just woke up.
pub const ENQ_WAKEUP: u64 = 1;
/// `SCX_ENQ_PREEMPT`: preempt the CPU's current task.
pub const ENQ_PREEMPT: u64 = 1 << 32;
/// `SCX_ENQ_LAST`: no other task is queued for the CPU.
pub const ENQ_LAST: u64 = 1 << 41;
/// `SCX_SLICE_INF`: a slice without an end.
pub const SLICE_INF: u64 = u64::MAX;
/// `SCX_DEQ_SLEEP`: the task goes to sleep.
pub const DEQ_SLEEP: u64 = 1;
/// `DEQUEUE_SAVE`: the task comes back at once, with other properties.
pub const DEQ_SAVE: u64 = 2;
/// `ENQUEUE_RESTORE`: it comes back.
pub const ENQ_RESTORE: u64 = 2;
/// `SCX_KICK_IDLE`: only if the CPU is idle.
pub const KICK_IDLE: u64 = 1;
/// `SCX_KICK_PREEMPT`: preempt the CPU's current task.
pub const KICK_PREEMPT: u64 = 2;
/// `SCX_WAKE_SYNC`: the waker is about to sleep.
pub const WAKE_SYNC: u64 = 16;
/// `SCX_WAKE_TTWU`: the task just woke up.
pub const WAKE_TTWU: u64 = 8;
/// `SCX_WAKE_FORK`: the task is new.
pub const WAKE_FORK: u64 = 4;
/// `SCX_OPS_ENQ_LAST`.
pub const OPS_ENQ_LAST: u64 = 1 << 1;
/// `SCX_OPS_ENQ_MIGRATION_DISABLED`.
pub const OPS_ENQ_MIGRATION_DISABLED: u64 = 1 << 4;
/// `SCX_SLICE_DFL`, ns.
pub const SLICE_DEFAULT_NS: Ns = 20_000_000;

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// In no DSQ: sleeping, running, or held by the policy.
    #[default]
    Nowhere,
    /// In a user DSQ.
    Queue(u64),
    /// In the local DSQ of a CPU.
    Local(usize),
}

/// An insertion that is carried out when the callback returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insertion {
    /// DSQ.
    pub dsq: u64,
    /// Slice, ns; 0: the task keeps its slice.
    pub slice_ns: Ns,
    /// Key; none: FIFO.
    pub key: Option<u64>,
    /// SCX_ENQ flags.
    pub flags: u64,
}

/// A task.
#[derive(Debug, Clone, Default)]
pub struct ScxTask {
    /// CPU that it runs on, ran on last, or waits for.
    pub cpu: usize,
    /// CPUs that it may use.
    pub allowed: Mask,
    /// Where it is.
    pub place: Place,
    /// Insertion that its select_cpu() or enqueue() has requested.
    pub direct: Option<Insertion>,
    /// Is it running?
    pub running: bool,
    /// Number of its last insertion into a DSQ.
    pub inserted: u64,
}

impl ScxTask {
    /// Has it been in that DSQ since so many insertions had been done (`nldsq_cursor_lost_task()`)?
    pub fn is_in(&self, dsq: u64, inserted: u64) -> bool {
        self.place == Place::Queue(dsq) && self.inserted <= inserted
    }
}

/// A CPU.
#[derive(Debug, Clone, Default)]
pub struct ScxCpu {
    /// Current task.
    pub curr: Option<usize>,
    /// Local DSQ.
    pub local: Dsq,
}

/// What the machine has to do after a callback has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A CPU is kicked.
    Kick {
        /// CPU.
        cpu: usize,
        /// SCX_KICK flags.
        flags: u64,
    },
    /// A timer is armed on a CPU.
    Timer {
        /// Timer.
        timer: usize,
        /// Generation number.
        turn: u32,
        /// When, ns.
        at: Ns,
        /// Where.
        cpu: usize,
    },
    /// A task that was taken out of a local DSQ is enqueued again.
    Again {
        /// Task.
        task: usize,
    },
    /// A task was inserted into a CPU's local DSQ.
    Local {
        /// CPU.
        cpu: usize,
        /// It preempts the current task.
        preempt: bool,
    },
}

/// An iteration over a DSQ.
#[derive(Debug, Clone, Default)]
pub struct Iteration {
    /// The DSQ.
    pub dsq: u64,
    /// Tasks that were in it when the iteration began.
    pub tasks: Vec<usize>,
    /// Number of tasks returned so far.
    pub next: usize,
    /// Number of insertions before it began: a task that was inserted since is not part of it (`dsq_seq`).
    pub inserted: u64,
    /// Slice for tasks that are moved, ns.
    pub slice_ns: Option<Ns>,
    /// Key for tasks that are moved.
    pub key: Option<u64>,
}

/// A kernel.
#[derive(Debug, Default)]
pub struct Kernel {
    /// Regular distance of ticks, ns.
    pub tick_ns: Ns,
    /// Number of insertions into DSQs so far.
    pub inserted: u64,
    /// Time, ns.
    pub now: Ns,
    /// CPU on which the callback runs.
    pub here: usize,
    /// CPUs.
    pub cpus: Vec<ScxCpu>,
    /// CPUs that are idle and not claimed by a task (the idle cpumask).
    pub idle: Mask,
    /// Tasks.
    pub tasks: Vec<ScxTask>,
    /// User DSQs.
    pub dsqs: BTreeMap<u64, Dsq>,
    /// CPU that the last `bpf_cpumask_any_distribute()` returned.
    pub distributed: usize,
    /// CPU topology that the kernel assumes.
    pub layout: Hardware,
    /// Effects to carry out after the callback.
    pub effects: Vec<Effect>,
    /// Insertions of a dispatch() that are still to be carried out.
    pub buffer: Vec<(usize, Insertion)>,
    /// CPU on which a dispatch() is in progress, if any.
    pub dispatching: Option<usize>,
    /// Number of tasks that a dispatch() has moved.
    pub moved: usize,
    /// Why the kernel would eject the policy.
    pub error: Option<String>,
    /// Iterations over DSQs.
    pub iterations: Vec<Option<Iteration>>,
    /// What the policy has written into its dump.
    pub dump: String,
}

/// A set of CPUs, one bit each (a cpumask). The address of its words does not change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mask(Box<[u64]>);

impl Mask {
    /// A set for `cpus` CPUs that contains the named ones.
    pub fn new(cpus: usize, named: impl IntoIterator<Item = usize>) -> Self {
        let mut mask = Self(vec![0; cpus.div_ceil(64).max(1)].into_boxed_slice());
        for cpu in named {
            mask.set(cpu, true);
        }
        mask
    }

    /// Is a CPU in the set?
    pub fn has(&self, cpu: usize) -> bool {
        self.0.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    /// Sets or clears a CPU.
    pub fn set(&mut self, cpu: usize, on: bool) {
        if let Some(word) = self.0.get_mut(cpu / 64) {
            *word = if on { *word | 1 << (cpu % 64) } else { *word & !(1 << (cpu % 64)) };
        }
    }

    /// Makes it the set of these CPUs.
    pub fn assign(&mut self, cpus: &[bool]) {
        for (cpu, on) in cpus.iter().enumerate() {
            self.set(cpu, *on);
        }
    }

    /// Is any CPU in the set?
    pub fn any(&self) -> bool {
        self.0.iter().any(|word| *word != 0)
    }

    /// The CPUs of the set, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        })
    }

    /// Address of its words.
    pub fn as_ptr(&self) -> *const u64 {
        self.0.as_ptr()
    }
}

impl Kernel {
    /// CPU of the local DSQ that an insertion is for; none: the DSQ is not a local one.
    pub fn local_target(&self, task: usize, dsq: u64) -> Option<usize> {
        if dsq == DSQ_LOCAL {
            Some(self.dispatching.unwrap_or(self.tasks[task].cpu))
        } else if dsq & DSQ_LOCAL_ON == DSQ_LOCAL_ON {
            Some((dsq & 0xFFFF_FFFF) as usize)
        } else {
            None
        }
    }

    /// May a task run on a CPU?
    pub fn may_use(&self, task: usize, cpu: usize) -> bool {
        self.tasks[task].allowed.has(cpu)
    }

    /// Reports an error for which the kernel would eject the policy.
    pub fn fail(&mut self, why: String) {
        self.error.get_or_insert(why);
    }

    /// Carries out an insertion. The caller sets the task's slice and key.
    pub fn insert(&mut self, task: usize, insertion: &Insertion) {
        self.inserted += 1;
        self.tasks[task].inserted = self.inserted;
        if self.tasks[task].place != Place::Nowhere {
            self.fail(format!("task {task} is inserted twice"));
            return;
        }
        if let Some(cpu) = self.local_target(task, insertion.dsq) {
            if cpu >= self.cpus.len() || !self.may_use(task, cpu) {
                self.fail(format!("task {task} is sent to CPU {cpu}, which it may not use"));
                return;
            }
            if insertion.flags & (ENQ_HEAD | ENQ_PREEMPT) == 0 {
                self.cpus[cpu].local.push(task);
            } else {
                self.cpus[cpu].local.push_front(task);
            }
            self.tasks[task].cpu = cpu;
            self.tasks[task].place = Place::Local(cpu);
            self.effects.push(Effect::Local { cpu, preempt: insertion.flags & ENQ_PREEMPT != 0 });
            return;
        }
        match self.dsqs.get_mut(&insertion.dsq) {
            Some(dsq) => {
                match insertion.key {
                    Some(key) => dsq.insert(key, task),
                    None if insertion.flags & ENQ_HEAD != 0 => dsq.push_front(task),
                    None => dsq.push(task),
                }
                self.tasks[task].place = Place::Queue(insertion.dsq);
            }
            None => self.fail(format!("there is no queue {:#x}", insertion.dsq)),
        }
    }

    /// Removes a task from the DSQ that it is in, if any.
    pub fn withdraw(&mut self, task: usize) {
        match std::mem::take(&mut self.tasks[task].place) {
            Place::Nowhere => {}
            Place::Queue(dsq) => {
                if let Some(dsq) = self.dsqs.get_mut(&dsq) {
                    dsq.remove(task);
                }
            }
            Place::Local(cpu) => {
                self.cpus[cpu].local.remove(task);
            }
        }
    }

    /// Moves the first task of a DSQ that may run on the dispatching CPU into that CPU's local DSQ.
    pub fn move_to_local(&mut self, dsq: u64) -> bool {
        let Some(cpu) = self.dispatching else {
            self.fail("tasks are moved to a local queue outside of dispatch()".into());
            return false;
        };
        let Some(queue) = self.dsqs.get(&dsq) else {
            self.fail(format!("there is no queue {dsq:#x}"));
            return false;
        };
        let Some(task) = queue.iter().find(|task| self.may_use(*task, cpu)) else { return false };
        self.withdraw(task);
        self.cpus[cpu].local.push(task);
        self.tasks[task].cpu = cpu;
        self.tasks[task].place = Place::Local(cpu);
        self.moved += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        let mut kernel = Kernel { layout: Hardware { cores: 2, ..Hardware::default() }, ..Kernel::default() };
        kernel.cpus = vec![ScxCpu::default(), ScxCpu::default()];
        kernel.tasks = vec![
            ScxTask { allowed: Mask::new(2, [1]), ..ScxTask::default() },
            ScxTask { allowed: Mask::new(2, [0, 1]), ..ScxTask::default() },
        ];
        kernel.dsqs.insert(7, Dsq::default());
        kernel
    }

    #[test]
    fn affinity_is_respected_and_its_violation_is_an_error() {
        let mut k = kernel();
        let by_key = |key| Insertion { dsq: 7, slice_ns: 0, key: Some(key), flags: 0 };
        k.insert(0, &by_key(1));
        k.insert(1, &by_key(2));
        k.dispatching = Some(0);
        assert!(k.move_to_local(7) && k.cpus[0].local.first() == Some(1), "the first may not run there");
        assert!(!k.move_to_local(7));
        k.withdraw(0);
        k.insert(0, &Insertion { dsq: DSQ_LOCAL_ON, slice_ns: 0, key: None, flags: 0 });
        assert!(k.error.is_some_and(|error| error.contains("may not use")));
    }

    #[test]
    fn nobody_is_in_two_queues() {
        let mut k = kernel();
        let insertion = Insertion { dsq: 7, slice_ns: 0, key: None, flags: 0 };
        k.insert(1, &insertion);
        k.insert(1, &insertion);
        assert!(k.error.is_some());
    }
}
