//! Common to all kernels: interrupts, ticks, wake-ups, context switches.

use super::ext::Offer;
use super::state::{Account, Done, Kind, Preemption, Resched, State, Work};
use super::Machine;
use crate::fair::Arrival;
use crate::queue::{Event, Irq, Ns};

/// Distance of the ticks of a CPU whose tick is stopped (`sched_tick_remote()`).
const REMOTE_TICK_NS: Ns = 1_000_000_000;

impl Machine {
    /// An interrupt reaches a CPU of a kernel.
    pub(super) fn interrupt(&mut self, world: usize, cpu: usize, irq: Irq) {
        if world != 0 {
            self.interrupt_guest(world, cpu, irq);
            return;
        }
        self.touch(cpu);
        let idle = self.worlds[0].cpus[cpu].curr.is_none() && self.worlds[0].cpus[cpu].work.is_empty();
        if idle {
            let ns = self.costs.idle_exit_ns;
            self.cpu(0, cpu).work.push_back(Work::of(Account::IdleExit, ns));
        } else if self.runs_guest(cpu) {
            // An exit from the guest, and the entry after it.
            let ns = self.costs.exit_ns;
            self.push_irq(0, cpu, Work::of(Account::Exit, ns));
        }
        let ns = self.irq_ns(irq);
        self.push_irq(0, cpu, Work { account: Account::HostIrq, left_ns: ns, done: Done::Irq(irq) });
    }

    /// Interrupts come before all other work, in their order.
    pub(super) fn push_irq(&mut self, world: usize, cpu: usize, work: Work) {
        let list = &mut self.cpu(world, cpu).work;
        let urgent = |w: &Work| {
            matches!(w.account, Account::HostIrq | Account::GuestIrq | Account::Exit | Account::IdleExit)
        };
        let at = list.iter().take_while(|w| urgent(w) && w.done != Done::Halt).count();
        list.insert(at, work);
    }

    pub(super) fn irq_ns(&self, irq: Irq) -> Ns {
        match irq {
            Irq::Tick => self.costs.tick_ns,
            _ => self.costs.irq_ns,
        }
    }

    /// The handler of an interrupt.
    pub(super) fn irq(&mut self, world: usize, cpu: usize, irq: Irq) {
        self.cpu(world, cpu).entered_kernel = true;
        match irq {
            Irq::Reschedule => {}
            Irq::WakeList => {
                let list = std::mem::take(&mut self.cpu(world, cpu).wake_list);
                for task in list {
                    self.queue_task_from(task, cpu, Arrival::Wakeup, Some(cpu));
                }
            }
            Irq::Timer { task } => {
                if self.tasks[task].state == State::Sleeping {
                    self.grant(task);
                    self.wake(task, Some(cpu), false);
                }
            }
            Irq::Flush { task } => self.flushed(task),
            Irq::Tick => self.tick(world, cpu),
            Irq::SliceEnd => self.slice_end(cpu),
            Irq::Arrival { stream, at } => self.request_arrived(stream, at, cpu),
            Irq::Device { device, task } => self.device_done(device, task, cpu),
            Irq::BpfTimer { timer, turn } => self.fire(world, cpu, timer, turn),
        }
    }

    /// Charges the current task of a CPU for its run time.
    pub(super) fn charge(&mut self, world: usize, cpu: usize) {
        self.touch_cpu(world, cpu);
        let ns = std::mem::take(&mut self.cpu(world, cpu).uncharged_ns);
        if self.worlds[world].policy.is_some() {
            self.charge_slice(world, cpu, ns);
            return;
        }
        let w = &mut self.worlds[world];
        if w.cpus[cpu].curr.is_some() && ns > 0 && w.fair.charge(cpu, ns) {
            self.resched(world, cpu, false);
        }
    }

    fn tick(&mut self, world: usize, cpu: usize) {
        self.cpu(world, cpu).ticks += 1;
        self.charge(world, cpu);
        self.hurry(world, cpu);
        let busy = self.worlds[world].cpus[cpu].curr.is_some();
        if self.worlds[world].policy.is_some() {
            self.tick_policy(world, cpu);
        } else if self.worlds[world].fair.tick(cpu) {
            self.cpu(world, cpu).resched = Resched::Now;
        }
        if world != 0 {
            self.note_steal(world, cpu);
        }
        if self.worlds[world].policy.is_none() {
            self.periodic_balance(world, cpu);
            self.ask_idle_to_balance(world, cpu);
        }
        if busy {
            self.start_tick(world, cpu);
        }
    }

    /// A lazy reschedule request becomes an immediate one.
    fn hurry(&mut self, world: usize, cpu: usize) {
        let c = self.cpu(world, cpu);
        if c.resched == Resched::Lazy {
            c.resched = Resched::Now;
        }
    }

    /// The slice timer of a host CPU fires (`hrtick()`): its reschedule request is not lazy.
    fn slice_end(&mut self, cpu: usize) {
        self.charge(0, cpu);
        self.hurry(0, cpu);
        self.arm_slice_end(0, cpu);
    }

    /// Arms the timer for the end of the current slice, if another task waits (`hrtick_start_fair()`). Host only.
    fn arm_slice_end(&mut self, world: usize, cpu: usize) {
        if world != 0 || !self.worlds[0].hrtick {
            return;
        }
        let left = self.worlds[0].fair.slice_left_ns(cpu);
        let c = self.cpu(0, cpu);
        c.slice_turn = c.slice_turn.wrapping_add(1);
        let turn = c.slice_turn;
        if let Some(left) = left {
            // The kernel programs no timer for less.
            let at = self.now + left.max(10_000);
            self.queue.add(at, Event::SliceEnd { cpu, turn });
        }
    }

    /// Arms the tick of a busy CPU. The ticks of a kernel's CPUs are staggered.
    pub(super) fn start_tick(&mut self, world: usize, cpu: usize) {
        let stopped = self.worlds[world].cpus[cpu].tick_stopped;
        let tick_ns = if stopped { REMOTE_TICK_NS } else { self.worlds[world].tick_ns };
        let cpus = self.worlds[world].cpus.len() as Ns;
        let offset =
            tick_ns * (cpu as Ns * 7919 % cpus.max(1)) / cpus.max(1) + world as Ns * 131_071 % tick_ns;
        let now = self.now;
        let c = self.cpu(world, cpu);
        if c.ticking {
            return;
        }
        c.ticking = true;
        c.tick_turn = c.tick_turn.wrapping_add(1);
        let turn = c.tick_turn;
        let next = (now + tick_ns - offset % tick_ns) / tick_ns * tick_ns + offset % tick_ns;
        let next = if next <= now { next + tick_ns } else { next };
        self.queue.add(next, Event::Tick { world, cpu, turn });
    }

    pub(super) fn stop_tick(&mut self, world: usize, cpu: usize) {
        let c = self.cpu(world, cpu);
        c.ticking = false;
        c.tick_turn = c.tick_turn.wrapping_add(1);
    }

    /// Requests a reschedule of a CPU (`resched_curr()`). `from_idle`: the CPU is idle.
    pub(super) fn resched(&mut self, world: usize, cpu: usize, from_idle: bool) {
        let lazy = self.worlds[world].preemption == Preemption::Lazy && !from_idle;
        let c = self.cpu(world, cpu);
        let wanted = if lazy { Resched::Lazy } else { Resched::Now };
        c.resched = c.resched.max(wanted);
    }

    /// The same from another CPU, which sends an IPI unless the request is lazy.
    pub(super) fn resched_from(&mut self, world: usize, cpu: usize, from: Option<usize>, idle: bool) {
        self.resched(world, cpu, idle);
        if from == Some(cpu) {
            self.touch_cpu(world, cpu);
            return;
        }
        if self.worlds[world].cpus[cpu].resched == Resched::Now {
            self.send_ipi(world, cpu, from, Irq::Reschedule);
        }
    }

    /// Sends an IPI from one CPU of a kernel to another. In a guest it costs the sender an exit.
    pub(super) fn send_ipi(&mut self, world: usize, cpu: usize, from: Option<usize>, irq: Irq) {
        let delay = if world == 0 { self.costs.ipi_ns } else { self.costs.virtual_ipi_ns };
        if let (true, Some(from)) = (world != 0, from) {
            self.shows_interrupt(world, cpu, Some(from), irq);
            if let Some(pcpu) = self.pcpu_of(world, from) {
                self.touch(pcpu);
                let ns = self.costs.exit_ns;
                self.cpu(0, pcpu).work.push_back(Work::of(Account::Exit, ns));
            }
        }
        self.queue.add(self.now + delay, Event::Interrupt { world, cpu, irq });
    }

    /// Wakes a sleeping task. `waker`: CPU of the same kernel that does so. `sync`: the waker is about to sleep.
    pub(super) fn wake(&mut self, task: usize, waker: Option<usize>, sync: bool) {
        if self.tasks[task].state != State::Sleeping {
            return;
        }
        let world = self.tasks[task].world;
        if self.worlds[world].cpus[self.tasks[task].cpu].curr == Some(task) {
            // It is still being switched out.
            self.tasks[task].woken = true;
            return;
        }
        if let Some(waker) = waker {
            let (account, ns) =
                (if world == 0 { Account::HostKernel } else { Account::GuestKernel }, self.costs.wake_ns);
            self.burden(world, waker, account, ns);
            self.note_wakee(world, waker, task);
        }
        let target = if self.tasks[task].real_time {
            self.tasks[task].cpu
        } else if self.tasks[task].scx.is_some() {
            self.ask_for_cpu(task, waker, sync)
        } else {
            self.select_cpu(task, waker, sync)
        };
        self.tasks[task].state = State::Runnable;
        self.tasks[task].runnable_since = self.now;
        self.vcpu_waits(task);
        let idle = self.worlds[world].cpus[target].curr.is_none();
        if waker.is_some() && waker != Some(target) && idle && self.number(task).is_none() {
            // The target CPU completes the wake-up (TTWU_QUEUE). The guest scheduler does not allow that where the
            // host reports steal: the target may be preempted, and until it is scheduled in no other CPU could pull
            // the task.
            let list = &mut self.cpu(world, target).wake_list;
            list.push(task);
            if list.len() == 1 {
                self.send_ipi(world, target, waker, Irq::WakeList);
            }
            return;
        }
        let how = if self.tasks[task].switches == 0 { Arrival::New } else { Arrival::Wakeup };
        self.queue_task_from(task, target, how, waker);
    }

    /// Enqueues a runnable task on a CPU, and checks whether it preempts the current task.
    pub(super) fn queue_task_from(&mut self, task: usize, cpu: usize, how: Arrival, from: Option<usize>) {
        let world = self.tasks[task].world;
        self.charge(world, cpu);
        self.migrate(task, cpu);
        if self.tasks[task].real_time {
            self.cpu(world, cpu).real_time.push_back(task);
            self.cpu(world, cpu).resched = Resched::Now;
            self.resched_from(world, cpu, from, true);
            return;
        }
        if self.tasks[task].scx.is_some() {
            self.offer(task, cpu, Offer::Wakeup, from);
            return;
        }
        let entity = self.tasks[task].entity;
        self.worlds[world].fair.enqueue(entity, cpu, how);
        if self.worlds[world].cpus[cpu].curr.is_none() {
            self.resched_from(world, cpu, from, true);
        } else {
            let batch = self.tasks[task].batch;
            let real_time = !self.worlds[world].cpus[cpu].real_time.is_empty();
            if !real_time && self.worlds[world].fair.preempts(cpu, entity, batch) {
                self.resched_from(world, cpu, from, false);
            }
            self.arm_slice_end(world, cpu);
        }
    }

    /// Migrates a task to a CPU, unless that is its CPU already.
    pub(super) fn migrate(&mut self, task: usize, cpu: usize) {
        if self.tasks[task].cpu != cpu {
            self.tasks[task].migrations += 1;
            self.chill(task, cpu);
            self.tasks[task].recent_cpu = self.tasks[task].cpu;
            self.tasks[task].cpu = cpu;
        }
    }

    /// A task stops being runnable.
    pub(super) fn sleep(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        self.charge(world, cpu);
        if self.tasks[task].real_time {
            self.cpu(world, cpu).real_time.retain(|other| *other != task);
        } else if self.tasks[task].scx.is_some() {
            self.withdraw(task);
        } else {
            let entity = self.tasks[task].entity;
            self.worlds[world].fair.dequeue(entity, true);
        }
        self.tasks[task].state = State::Sleeping;
        self.tasks[task].ran_at = self.now;
    }

    /// Picks the next task of a CPU, and switches to it.
    pub(super) fn schedule(&mut self, world: usize, cpu: usize) {
        if self.worlds[world].policy.is_some() {
            self.schedule_by_policy(world, cpu);
            return;
        }
        self.charge(world, cpu);
        let prev = self.worlds[world].cpus[cpu].curr;
        self.cpu(world, cpu).resched = Resched::No;
        self.cpu(world, cpu).entered_kernel = false;
        self.worlds[world].fair.put_back(cpu);
        self.worlds[world].fair.throttle(cpu);
        let mut next = self.worlds[world].cpus[cpu].real_time.front().copied();
        if next.is_none() {
            next = self.worlds[world].fair.pick(cpu);
        }
        if std::mem::take(&mut self.cpu(world, cpu).balances_idle) && next.is_none() {
            self.balance_idle(world, cpu);
            next = self.worlds[world].fair.pick(cpu);
        }
        if next.is_none() && self.newidle_balance(world, cpu) {
            next = self.worlds[world].fair.pick(cpu);
        }
        if next == prev {
            self.arm_slice_end(world, cpu);
            return;
        }
        if let Some(prev) = prev {
            self.leaves(prev);
        }
        self.switch(world, cpu, prev, next);
        self.arm_slice_end(world, cpu);
        self.wake_if_woken(prev, cpu);
    }

    /// Completes the wake-up of a task that was woken while it was being switched out.
    pub(super) fn wake_if_woken(&mut self, prev: Option<usize>, cpu: usize) {
        if let Some(prev) = prev.filter(|prev| std::mem::take(&mut self.tasks[*prev].woken)) {
            self.wake(prev, Some(cpu), false);
        }
    }

    /// Context switch. Either task may be the idle task (none). `prev` is already switched out ([`Machine::leaves`]).
    pub(super) fn switch(&mut self, world: usize, cpu: usize, prev: Option<usize>, next: Option<usize>) {
        let now = self.now;
        self.touch_cpu(world, cpu);
        self.record.switched(now, world, cpu, next);
        self.cpu(world, cpu).curr = next;
        let (switch, ns) =
            (if world == 0 { Account::HostSwitch } else { Account::GuestSwitch }, self.costs.switch_ns);
        self.cpu(world, cpu).work.push_back(Work::of(switch, ns));
        match next {
            Some(next) => {
                if prev.is_none() {
                    let idle = now - self.worlds[world].cpus[cpu].idle_since;
                    let c = self.cpu(world, cpu);
                    c.mean_idle_ns = (c.mean_idle_ns * 7 + idle.min(1_000_000)) / 8;
                }
                self.comes(next, cpu);
                self.start_tick(world, cpu);
            }
            None => {
                self.cpu(world, cpu).idle_since = now;
                self.stop_tick(world, cpu);
            }
        }
    }

    /// A task is switched out.
    pub(super) fn leaves(&mut self, task: usize) {
        let now = self.now;
        let t = &mut self.tasks[task];
        t.ran_at = now;
        if t.state == State::Running {
            t.state = State::Runnable;
            t.runnable_since = now;
        }
        self.vcpu_leaves(task);
    }

    /// A task is switched in.
    fn comes(&mut self, task: usize, cpu: usize) {
        let now = self.now;
        let others = now - self.tasks[task].ran_at;
        let t = &mut self.tasks[task];
        t.waited_ns += now - t.runnable_since;
        t.state = State::Running;
        t.switches += 1;
        t.cpu = cpu;
        let due = t.timer_due.take();
        if t.switches > 1 {
            self.warm_up_after(task, others);
        }
        if let Some(due) = due {
            self.record.awake(now, task, now.saturating_sub(due));
        }
        self.begin_service(task);
        self.vcpu_comes(task);
    }

    /// Carries out a change in the host.
    pub(super) fn change(&mut self, change: &super::Change) {
        match change {
            super::Change::Quota { group, quota_ns, period_ns } => {
                self.worlds[0].fair.set_quota(*group, *quota_ns, *period_ns);
            }
            super::Change::Pins { task, allowed } => {
                self.tasks[*task].allowed.clone_from(allowed);
                let cpu = self.tasks[*task].cpu;
                if allowed[cpu] {
                    return;
                }
                match self.tasks[*task].state {
                    State::Running => {
                        // It is migrated as soon as it is switched out.
                        self.touch(cpu);
                        self.sleep(*task);
                        self.tasks[*task].woken = true;
                    }
                    State::Runnable => {
                        let to = allowed.iter().position(|ok| *ok).unwrap_or(cpu);
                        self.move_task(*task, to, to);
                    }
                    State::Sleeping | State::Dead => {}
                }
            }
        }
    }

    /// Begins a period of a group's quota.
    pub(super) fn refill(&mut self, world: usize, group: usize) {
        let again = self.worlds[world].fair.refill(group);
        for cpu in again {
            self.resched_from(world, cpu, None, self.worlds[world].cpus[cpu].curr.is_none());
        }
        if let Some(bandwidth) = &self.worlds[world].fair.group(group).bandwidth {
            self.queue.add(self.now + bandwidth.period_ns, Event::Refill { world, group });
        }
    }

    /// Does a pCPU run guest code now?
    pub(super) fn runs_guest(&self, pcpu: usize) -> bool {
        let host = &self.worlds[0].cpus[pcpu];
        host.work.is_empty()
            && host.curr.is_some_and(|task| matches!(self.tasks[task].kind, Kind::Vcpu { .. }))
    }
}
