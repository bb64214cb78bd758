//! vCPUs: host tasks that are CPUs of a guest. Halt, steal, interrupts.

use super::state::{Account, Done, Kind, State, Work};
use super::Machine;
use crate::queue::Irq;
use tandem_policy::inside::NO_RESCHED_BIT;

/// First limit of halt polling (KVM: `halt_poll_ns_grow_start`). It doubles while longer polling would have helped.
const POLL_START_NS: u64 = 10_000;
/// Vectors as in a Linux guest (`arch/x86/include/asm/irq_vectors.h`).
const VECTOR_DEVICE: u32 = 0x30;
const VECTOR_CALL_SINGLE: u32 = 0xfb;
const VECTOR_CALL: u32 = 0xfc;
const VECTOR_RESCHEDULE: u32 = 0xfd;
/// Where guests have their tasks: each idle task, then the others.
const TASKS_FROM: u64 = 0xffff_8880_0000_0000;
const TASK_BYTES: u64 = 16 << 10;
const MOST_CPUS: usize = 1 << 16;

impl Machine {
    /// Guest and CPU number of a host task that is a vCPU.
    fn vcpu_of(&self, task: usize) -> Option<(usize, usize)> {
        match self.tasks[task].kind {
            Kind::Vcpu { world, cpu } => Some((world, cpu)),
            Kind::Program(_) => None,
        }
    }

    /// The host task of a vCPU has become runnable.
    pub(super) fn vcpu_waits(&mut self, task: usize) {
        if let Some((world, cpu)) = self.vcpu_of(task) {
            self.worlds[world].pages[cpu].waits_since = Some(self.now);
        }
    }

    /// The host task of a vCPU is switched out.
    pub(super) fn vcpu_leaves(&mut self, task: usize) {
        let Some((world, cpu)) = self.vcpu_of(task) else { return };
        let runnable = self.tasks[task].state == State::Runnable;
        let now = self.now;
        let page = &mut self.worlds[world].pages[cpu];
        page.preempted = true;
        if runnable {
            page.preemptions += 1;
            page.waits_since = Some(now);
        }
        self.show_page(world, cpu);
    }

    /// The host task of a vCPU is switched in: steal is written, `preempted` is cleared.
    pub(super) fn vcpu_comes(&mut self, task: usize) {
        let Some((world, cpu)) = self.vcpu_of(task) else { return };
        let now = self.now;
        let page = &mut self.worlds[world].pages[cpu];
        let waited = page.waits_since.take().map_or(0, |since| now - since);
        page.steal_ns += waited;
        page.preempted = false;
        page.entries += 1;
        self.show_page(world, cpu);
        let sees_steal = self.worlds[world].sees_steal;
        let pcpu = self.tasks[task].cpu;
        if !sees_steal && self.worlds[world].cpus[cpu].curr.is_some() {
            // Its kernel accounts steal as run time.
            self.cpu(world, cpu).uncharged_ns += waited;
        }
        let ns = self.costs.exit_ns / 2;
        self.cpu(0, pcpu).work.push_back(Work::of(Account::Exit, ns));
    }

    /// Writes the steal time page that the guest's policy reads.
    fn show_page(&mut self, world: usize, cpu: usize) {
        let w = &mut self.worlds[world];
        if let Some(policy) = w.policy.as_mut() {
            let page = &w.pages[cpu];
            policy.write_page(cpu, page.steal_ns, page.entries, page.preempted);
        }
    }

    /// At a tick: the guest's kernel updates its average of steal.
    pub(super) fn note_steal(&mut self, world: usize, cpu: usize) {
        let now = self.now;
        let steal = self.worlds[world].pages[cpu].steal_ns;
        let (last_at, last) = self.record.last_steal(world, cpu, now, steal);
        if now > last_at {
            let part = ((steal - last) as f64 / (now - last_at) as f64).clamp(0.0, 1.0);
            self.cpu(world, cpu).stolen.update(now, part);
        }
    }

    /// KVM accepts an interrupt for a vCPU, which a host scheduler sees. `sender`: the guest's CPU that sends it. A timer's is none of its
    /// business.
    pub(super) fn shows_interrupt(&mut self, world: usize, cpu: usize, sender: Option<usize>, irq: Irq) {
        let vector = match irq {
            Irq::Reschedule => VECTOR_RESCHEDULE,
            Irq::WakeList => VECTOR_CALL_SINGLE,
            Irq::Flush { .. } => VECTOR_CALL,
            Irq::Arrival { .. } | Irq::Device { .. } => VECTOR_DEVICE,
            Irq::Tick | Irq::Timer { .. } | Irq::SliceEnd | Irq::BpfTimer { .. } => return,
        };
        let thread = |cpu: usize| self.worlds[world].cpus[cpu].vcpu;
        let Some((task, number)) = thread(cpu).and_then(|task| Some((task, self.number(task)?))) else {
            return;
        };
        let from = sender.and_then(thread).and_then(|task| self.number(task));
        let here = sender.and_then(|cpu| self.pcpu_of(world, cpu)).unwrap_or(self.tasks[task].cpu);
        self.policy(0, here, |policy| policy.interrupts(here, number, from, vector));
    }

    /// What the vCPU on a pCPU runs, as its guest's memory says.
    pub(super) fn shows_inside(&mut self, pcpu: usize) {
        let Some(task) = self.worlds[0].cpus[pcpu].curr.filter(|_| self.guests_show) else { return };
        let Some(((world, cpu), number)) = self.vcpu_of(task).zip(self.number(task)) else { return };
        let guest = &self.worlds[world].cpus[cpu];
        let of_kernel = |work: &Work| {
            matches!(work.account, Account::GuestIrq | Account::GuestSwitch | Account::GuestKernel)
        };
        // The idle task runs with preemption disabled.
        let critical = guest.curr.is_none() || guest.work.iter().any(of_kernel);
        let current = guest.curr.map_or(cpu, |task| MOST_CPUS + task) as u64;
        let count = NO_RESCHED_BIT | u32::from(critical);
        if let Some(policy) = self.worlds[0].policy.as_mut() {
            policy.guest_runs(number, TASKS_FROM + TASK_BYTES * current, count);
        }
    }

    /// A guest's CPU writes to a device.
    pub(super) fn shows_kick(&mut self, world: usize, cpu: usize) {
        let number = self.worlds[world].cpus[cpu].vcpu.and_then(|task| self.number(task));
        if let (Some(number), Some(pcpu)) = (number, self.pcpu_of(world, cpu)) {
            self.shows_inside(pcpu);
            self.policy(0, pcpu, |policy| policy.kicks_device(number));
        }
    }

    /// The vCPU of a guest that runs, or that ran most recently; `cpu`: which one of those that are equal.
    fn most_recent(&self, world: usize, cpu: usize) -> usize {
        let ran_at = |cpu: usize| {
            let task = &self.tasks[self.worlds[world].cpus[cpu].vcpu?];
            Some(if task.state == State::Running { u64::MAX } else { task.ran_at })
        };
        let cpus = 0..self.worlds[world].cpus.len();
        cpus.max_by_key(|other| (ran_at(*other), *other == cpu)).unwrap_or(cpu)
    }

    /// An interrupt for a vCPU.
    pub(super) fn interrupt_guest(&mut self, world: usize, mut cpu: usize, irq: Irq) {
        if matches!(irq, Irq::Arrival { .. } | Irq::Device { .. }) {
            if self.redirects {
                cpu = self.most_recent(world, cpu);
            }
            self.shows_interrupt(world, cpu, None, irq);
        }
        let list = &mut self.cpu(world, cpu).irqs;
        // Pending ticks, reschedule requests and wake-list interrupts coalesce.
        if !(matches!(irq, Irq::Tick | Irq::Reschedule | Irq::WakeList) && list.contains(&irq)) {
            list.push_back(irq);
        }
        let Some(vcpu) = self.worlds[world].cpus[cpu].vcpu else { return };
        match self.tasks[vcpu].state {
            State::Running => {
                let pcpu = self.tasks[vcpu].cpu;
                self.touch(pcpu);
                if self.runs_guest(pcpu) {
                    let ns = self.costs.exit_ns;
                    self.cpu(0, pcpu).work.push_back(Work::of(Account::Exit, ns));
                } else {
                    // It was about to block, and does not.
                    self.stop_polling(pcpu);
                }
            }
            State::Sleeping => {
                let slept = self.now - self.worlds[world].pages[cpu].slept_at;
                let longest = self.costs.halt_poll_ns;
                let page = &mut self.worlds[world].pages[cpu];
                page.poll_ns = match page.poll_ns {
                    _ if slept > longest => 0,
                    0 => POLL_START_NS.min(longest),
                    now => (2 * now).min(longest),
                };
                self.wake(vcpu, None, false);
            }
            State::Runnable | State::Dead => {}
        }
    }

    fn stop_polling(&mut self, pcpu: usize) {
        let work = &mut self.cpu(0, pcpu).work;
        work.retain(|w| w.done != Done::PollOver);
        for w in work.iter_mut().filter(|w| w.done == Done::Halt) {
            w.done = Done::Nothing;
        }
    }

    /// A running vCPU takes its pending interrupts.
    pub(super) fn take_interrupts(&mut self, world: usize, cpu: usize) {
        while let Some(irq) = self.cpu(world, cpu).irqs.pop_front() {
            let ns = self.irq_ns(irq);
            self.push_irq(world, cpu, Work { account: Account::GuestIrq, left_ns: ns, done: Done::Irq(irq) });
        }
    }

    /// A vCPU becomes idle: HLT, which is an exit.
    pub(super) fn start_halt(&mut self, world: usize, cpu: usize) {
        let Some(vcpu) = self.worlds[world].cpus[cpu].vcpu else { return };
        let pcpu = self.tasks[vcpu].cpu;
        let ns = self.costs.exit_ns;
        self.cpu(0, pcpu).work.push_back(Work { account: Account::Exit, left_ns: ns, done: Done::Halt });
    }

    /// The exit of HLT is done: the host does halt polling, or the vCPU blocks.
    pub(super) fn halt(&mut self, pcpu: usize) {
        let Some(vcpu) = self.worlds[0].cpus[pcpu].curr else { return };
        let Some((world, cpu)) = self.vcpu_of(vcpu) else { return };
        if !self.worlds[world].cpus[cpu].irqs.is_empty() {
            return;
        }
        let poll_ns = self.worlds[world].pages[cpu].poll_ns;
        // No halt polling while other tasks wait for the pCPU.
        if poll_ns > 0 && self.runnable_on(0, pcpu) <= 1 {
            self.cpu(0, pcpu).work.push_back(Work {
                account: Account::HaltPoll,
                left_ns: poll_ns,
                done: Done::PollOver,
            });
        } else {
            self.sleep_vcpu(pcpu);
        }
    }

    /// The vCPU on a pCPU blocks.
    pub(super) fn sleep_vcpu(&mut self, pcpu: usize) {
        let Some(vcpu) = self.worlds[0].cpus[pcpu].curr else { return };
        let Some((world, cpu)) = self.vcpu_of(vcpu) else { return };
        if !self.worlds[world].cpus[cpu].irqs.is_empty() {
            return;
        }
        let now = self.now;
        self.worlds[world].pages[cpu].slept_at = now;
        self.sleep(vcpu);
    }
}
