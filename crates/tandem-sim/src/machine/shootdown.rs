//! TLB shootdown, and directed yield. A task that unmaps memory waits, in its kernel, until every other busy CPU has flushed its
//! TLB; where one of them is a vCPU that the host has preempted, it waits for the host. Two things help, and KVM has both:
//! a vCPU that has been preempted flushes by itself when it enters the guest again (paravirtual TLB flush), and a vCPU that waits
//! gives its pCPU to a sibling that waits for one: to any, when it has spun for long (`kvm_vcpu_on_spin()`), or at once to the first
//! preempted one that it has sent the interrupt to (`KVM_HC_SCHED_YIELD`). With paravirtual flush no preempted vCPU is waited for, and so none is named.

use super::state::{Account, Resched, Segment, State, Work};
use super::Machine;
use crate::queue::{Irq, Ns};

/// For how long a vCPU spins until the processor lets it exit (pause-loop exiting; KVM's `ple_window`, 4096 cycles and more).
const SPIN_EXIT_NS: Ns = 10_000;

/// Directed yields so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectedYields {
    /// Times that KVM asked the host's scheduler.
    pub asked: u64,
    /// Times that the scheduler promised to run the sibling next.
    pub promised: u64,
    /// How many of `asked` the guest has asked for itself.
    pub named: u64,
}

impl Machine {
    /// A running task unmaps memory.
    pub(super) fn shoot_down(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        let paravirtual = self.worlds[world].paravirtual;
        let holds = |other: &usize| {
            let busy = *other != cpu && self.worlds[world].cpus[*other].curr.is_some();
            let flushes_later =
                paravirtual && self.worlds[world].pages.get(*other).is_some_and(|page| page.preempted);
            busy && !flushes_later
        };
        let targets: Vec<usize> = (0..self.worlds[world].cpus.len()).filter(holds).collect();
        if targets.is_empty() {
            return;
        }
        if let Some(course) = self.tasks[task].course_mut() {
            course.granted = false;
            course.flushes = targets.len();
            course.segment = Segment::Spin((world != 0).then_some(SPIN_EXIT_NS));
        }
        for target in &targets {
            self.send_ipi(world, *target, Some(cpu), Irq::Flush { task });
        }
        if self.worlds[world].pv_yield {
            let preempted =
                |cpu: &&usize| self.worlds[world].pages.get(**cpu).is_some_and(|page| page.preempted);
            if let Some(target) = targets.iter().find(preempted) {
                self.yields_by_name(world, cpu, *target);
            }
        }
    }

    /// A guest asks by hypercall that this vCPU may run in place of its own (`kvm_sched_yield()`).
    fn yields_by_name(&mut self, world: usize, cpu: usize, other: usize) {
        self.exit_of(world, cpu);
        let asked = self.yields.asked;
        self.yields_to(world, cpu, other);
        self.yields.named += self.yields.asked - asked;
    }

    /// A CPU has flushed its TLB for a task that waits for that.
    pub(super) fn flushed(&mut self, task: usize) {
        let Some(course) = self.tasks[task].course_mut() else { return };
        course.flushes = course.flushes.saturating_sub(1);
        if course.flushes == 0 {
            self.grant(task);
        }
    }

    /// A vCPU has spun for so long that it exits: KVM looks for a sibling to run in its place.
    pub(super) fn spins_in_vain(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        if let Some(course) = self.tasks[task].course_mut() {
            course.segment = Segment::Spin(Some(SPIN_EXIT_NS));
        }
        let cpus = self.worlds[world].cpus.len();
        // From the next one on, around the ring: as KVM, which begins after the last one that it has boosted.
        let candidates: Vec<usize> = (1..cpus).map(|i| (cpu + i) % cpus).collect();
        self.exit_of(world, cpu);
        for other in candidates {
            if self.yields_to(world, cpu, other) {
                return;
            }
        }
    }

    /// A vCPU exits.
    fn exit_of(&mut self, world: usize, cpu: usize) {
        if let Some(pcpu) = self.pcpu_of(world, cpu) {
            self.touch(pcpu);
            let ns = self.costs.exit_ns;
            self.cpu(0, pcpu).work.push_back(Work::of(Account::Exit, ns));
        }
    }

    /// A vCPU that runs gives its pCPU to a sibling that waits for one (`yield_to()`). Returns whether the scheduler promises to run that one
    /// next.
    fn yields_to(&mut self, world: usize, cpu: usize, other: usize) -> bool {
        let (Some(from), Some(to)) = (self.worlds[world].cpus[cpu].vcpu, self.worlds[world].cpus[other].vcpu)
        else {
            return false;
        };
        let pcpu = self.tasks[from].cpu;
        if self.tasks[to].state != State::Runnable || self.worlds[0].cpus[pcpu].curr != Some(from) {
            return false;
        }
        self.charge(0, pcpu);
        self.yields.asked += 1;
        let promised = match (self.number(from), self.number(to)) {
            (Some(from), Some(to)) => self.ask_to_yield(pcpu, from, to),
            _ => self.worlds[0].fair.yields_to(self.tasks[from].entity, self.tasks[to].entity),
        };
        if promised {
            self.yields.promised += 1;
            self.cpu(0, pcpu).resched = Resched::Now;
            let there = self.tasks[to].cpu;
            if there != pcpu && self.number(to).is_none() {
                self.resched_from(0, there, Some(pcpu), false);
            }
        }
        promised
    }
}
