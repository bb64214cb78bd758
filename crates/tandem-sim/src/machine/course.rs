//! Execution of programs: their steps, and what they wait for.

use super::state::{Account, Course, Resched, Segment, State};
use super::Machine;
use crate::hardware::Distance;
use crate::program::{Step, Waiting};
use crate::queue::{Event, Irq, Ns};
use crate::workload::Intake;

impl Machine {
    fn course(&mut self, task: usize) -> Option<&mut Course> {
        self.tasks[task].course_mut()
    }

    /// The work of a task's segment is done.
    pub(super) fn segment_ended(&mut self, task: usize) {
        let Some(course) = self.course(task) else { return };
        if course.cold_ns > 0 {
            return;
        }
        match course.segment {
            Segment::Run(0) => course.segment = Segment::None,
            Segment::Spin(Some(0)) if course.flushes > 0 => self.spins_in_vain(task),
            // Not granted while it spun: it blocks.
            Segment::Spin(Some(0)) if !course.granted => {
                course.segment = Segment::None;
                self.block(task);
            }
            _ => {}
        }
    }

    /// Grants a task what it waits for. A spinning task notices it when it runs.
    pub(super) fn grant(&mut self, task: usize) {
        if let Some(course) = self.course(task) {
            course.granted = true;
        }
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        if self.tasks[task].state == State::Running {
            self.touch_cpu(world, cpu);
        }
    }

    /// Grants a task what it waits for, and wakes it if it sleeps.
    fn release(&mut self, task: usize, by: usize, sync: bool) {
        self.grant(task);
        if self.tasks[task].state != State::Sleeping {
            return;
        }
        let same = self.tasks[task].world == self.tasks[by].world;
        let waker = same.then_some(self.tasks[by].cpu);
        self.wake(task, waker, sync);
    }

    /// The task blocks, which costs a system call.
    fn block(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        let account = if world == 0 { Account::HostKernel } else { Account::GuestKernel };
        let ns = self.costs.block_ns;
        self.burden(world, cpu, account, ns);
        self.sleep(task);
    }

    /// The task waits for a grant: it blocks or spins, as its program says.
    fn wait(&mut self, task: usize) {
        let waiting = self.tasks[task].waiting();
        let Some(course) = self.course(task) else { return };
        course.granted = false;
        match waiting {
            Waiting::Block => self.block(task),
            Waiting::Spin => course.segment = Segment::Spin(None),
            Waiting::SpinThenBlock(ns) => course.segment = Segment::Spin(Some(ns)),
        }
    }

    /// Does the next step of a running task's program.
    pub(super) fn advance(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        self.cpu(world, cpu).entered_kernel = true;
        self.enable_migration(task);
        let now = self.now;
        let Some(course) = self.course(task) else { return };
        if matches!(course.segment, Segment::Spin(_)) {
            course.segment = Segment::None;
        }
        if course.request_at.is_some() && course.segment == Segment::None && course.granted {
            course.granted = false;
        }
        if let Some(lock) = course.locks.take() {
            self.lock(task, lock);
            return;
        }
        if course.next == course.program.steps.len() {
            course.next = 0;
            course.rounds += 1;
            if course.program.rounds == Some(course.rounds) {
                self.finish(task);
                return;
            }
        }
        let step = course.program.steps[course.next].clone();
        course.next += 1;
        match step {
            Step::Run(spread) => {
                let ns = spread.draw_ns(&mut course.random);
                if ns > 0 {
                    course.segment = Segment::Run(ns);
                }
            }
            Step::Program(spread) => {
                let ns = spread.draw_ns(&mut course.random);
                if ns > 0 {
                    course.segment = Segment::Run(ns);
                    self.disable_migration(task);
                }
            }
            Step::Sleep(spread) => {
                let ns = spread.draw_ns(&mut course.random);
                self.sleep_for(task, ns);
            }
            Step::Timer(period) => {
                let passed = now - course.started;
                let next = (passed / period + 1) * period;
                self.sleep_for(task, next - passed);
            }
            Step::Lock(lock) => self.lock(task, lock),
            Step::Unlock(lock) => self.unlock(task, lock),
            Step::Barrier(barrier) => self.barrier(task, barrier),
            Step::Get(queue) => self.get(task, queue),
            Step::Put(queue) => self.put(task, queue),
            Step::Serve(stream) => self.serve(task, stream),
            Step::Dispatch(stream) => self.dispatch(task, stream),
            Step::Device(device) => self.use_device(task, device),
            Step::Send(mailbox) => self.send(task, mailbox),
            Step::Receive(mailbox) => self.receive(task, mailbox),
            Step::Wait { condition, lock } => {
                self.conditions[condition].waiters.push((task, lock));
                self.unlock(task, lock);
                if let Some(course) = self.course(task) {
                    course.granted = false;
                }
                self.block(task);
            }
            Step::Signal(condition) => {
                if !self.conditions[condition].waiters.is_empty() {
                    let (other, lock) = self.conditions[condition].waiters.remove(0);
                    self.try_lock(other, lock, task);
                }
            }
            Step::Broadcast(condition) => {
                for (other, lock) in std::mem::take(&mut self.conditions[condition].waiters) {
                    self.try_lock(other, lock, task);
                }
            }
            Step::Yield => {
                let entity = self.tasks[task].entity;
                self.charge(world, cpu);
                if self.tasks[task].scx.is_some() {
                    self.yield_to_policy(task);
                } else {
                    self.worlds[world].fair.yields(entity);
                }
                self.cpu(world, cpu).resched = Resched::Now;
            }
            Step::Shootdown => self.shoot_down(task),
            Step::Hop => self.hop(task),
            Step::Count => {
                self.record.counted(now, task);
            }
        }
    }

    /// Sets the task's affinity to the next CPU. The kernel migrates it as soon as it is switched out.
    fn hop(&mut self, task: usize) {
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        let cpus = self.worlds[world].cpus.len();
        let next = (cpu + 1) % cpus;
        if self.tasks[task].scx.is_some() {
            self.fail("x_hop is not possible in a kernel with a policy".into());
            return;
        }
        self.tasks[task].allowed = (0..cpus).map(|other| other == next).collect();
        if next != cpu {
            self.sleep(task);
            self.tasks[task].woken = true;
        }
    }

    fn finish(&mut self, task: usize) {
        self.ends(task);
        self.sleep(task);
        self.tasks[task].state = State::Dead;
    }

    fn sleep_for(&mut self, task: usize, ns: Ns) {
        if ns == 0 {
            return;
        }
        self.block(task);
        let t = &mut self.tasks[task];
        t.timer_turn = t.timer_turn.wrapping_add(1);
        let turn = t.timer_turn;
        self.tasks[task].timer_due = Some(self.now + ns);
        self.queue.add(self.now + ns, Event::Timer { task, turn });
    }

    fn lock(&mut self, task: usize, lock: usize) {
        let l = &mut self.locks[lock];
        if l.owner.is_none() {
            l.owner = Some(task);
        } else {
            l.waiters.push(task);
            self.wait(task);
        }
    }

    /// Any task that comes can take the lock (barging), as with a mutex of the C library. The first sleeping waiter
    /// is woken and tries again when it runs. All spinning waiters try, too. A lock that is handed off to a
    /// sleeping waiter lies idle until that waiter runs, and from then on all tasks that share it proceed in step
    /// with the slowest.
    fn unlock(&mut self, task: usize, lock: usize) {
        self.locks[lock].owner = None;
        let waiters = std::mem::take(&mut self.locks[lock].waiters);
        let mut woken = false;
        for other in waiters {
            let sleeps = self.tasks[other].state == State::Sleeping;
            if sleeps && woken {
                self.locks[lock].waiters.push(other);
                continue;
            }
            woken |= sleeps;
            self.try_lock(other, lock, task);
        }
    }

    /// Lets a task that needs the lock try to take it: wakes it, or ends its spinning.
    fn try_lock(&mut self, task: usize, lock: usize, by: usize) {
        if let Some(course) = self.course(task) {
            course.locks = Some(lock);
        }
        self.release(task, by, false);
    }

    fn barrier(&mut self, task: usize, barrier: usize) {
        let b = &mut self.barriers[barrier];
        if b.waiters.len() + 1 < b.size {
            b.waiters.push(task);
            self.wait(task);
            return;
        }
        b.rounds += 1;
        let all = std::mem::take(&mut b.waiters);
        for other in all {
            self.release(other, task, false);
        }
    }

    fn get(&mut self, task: usize, queue: usize) {
        let q = &mut self.items[queue];
        if q.level == 0 {
            q.getters.push(task);
            self.wait(task);
            return;
        }
        q.level -= 1;
        if !q.putters.is_empty() {
            let next = q.putters.remove(0);
            q.level += 1;
            self.release(next, task, false);
        }
    }

    fn put(&mut self, task: usize, queue: usize) {
        let q = &mut self.items[queue];
        if !q.getters.is_empty() {
            let next = q.getters.remove(0);
            self.release(next, task, false);
        } else if q.level < q.capacity {
            q.level += 1;
        } else {
            q.putters.push(task);
            self.wait(task);
        }
    }

    fn send(&mut self, task: usize, mailbox: usize) {
        let now = self.now;
        let m = &mut self.mailboxes[mailbox];
        m.sent.push_back(now);
        match m.reader.take() {
            Some(reader) => {
                m.sent.pop_back();
                if let Some(course) = self.course(reader) {
                    course.request_at = Some(now);
                }
                self.release(reader, task, false);
            }
            None => m.messages += 1,
        }
    }

    fn receive(&mut self, task: usize, mailbox: usize) {
        let m = &mut self.mailboxes[mailbox];
        if m.messages > 0 {
            m.messages -= 1;
            m.sent.pop_front();
            return;
        }
        m.reader = Some(task);
        self.wait(task);
    }

    /// Completes the previous request, then serves the next one or waits for one.
    fn serve(&mut self, task: usize, stream: usize) {
        let now = self.now;
        if let Some(at) = self.course(task).and_then(|course| course.request_at.take()) {
            self.record.served(now, stream, now - at);
            // The answer goes to a network card.
            let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
            if world != 0 {
                self.shows_kick(world, cpu);
            }
        }
        let r = &mut self.requests[stream];
        if r.intake == Intake::Own {
            let at = r.next_at;
            r.next_at = at + r.interval.draw_ns(&mut r.arrivals).max(1);
            self.take_request(task, stream, at);
            match at.saturating_sub(now) {
                0 => self.begin_service(task),
                wait => self.sleep_for(task, wait),
            }
            return;
        }
        if r.intake == Intake::Locked {
            if r.receiver.is_some_and(|other| other != task) {
                r.locked_out.push_back(task);
                // When it is woken, another server may have taken the lock.
                self.wait_to_serve(task, true);
                return;
            }
            r.receiver = Some(task);
        }
        match r.waiting.pop_front() {
            Some(at) => {
                self.take_request(task, stream, at);
                self.begin_service(task);
                self.let_next_in(task, stream);
            }
            None => {
                r.idle.push(task);
                // It is woken with the lock, and checks itself whether there is a request.
                let again = r.intake == Intake::Locked;
                self.wait_to_serve(task, again);
            }
        }
    }

    /// Dispatches the next request at its arrival time, or as soon after it as the task runs.
    fn dispatch(&mut self, task: usize, stream: usize) {
        let now = self.now;
        let r = &mut self.requests[stream];
        if r.next_at == 0 {
            r.next_at = r.interval.draw_ns(&mut r.arrivals).max(1);
        }
        let at = r.next_at;
        if at > now {
            if let Some(course) = self.course(task) {
                course.next -= 1;
            }
            self.sleep_for(task, at - now);
            return;
        }
        r.arrived += 1;
        r.next_at = at + r.interval.draw_ns(&mut r.arrivals).max(1);
        self.record.delivered(now, stream, now - at);
        let r = &mut self.requests[stream];
        if r.idle.is_empty() {
            r.waiting.push_back(at);
            return;
        }
        let server = r.idle.remove(0);
        self.take_request(server, stream, at);
        let cpu = self.tasks[task].cpu;
        self.wake(server, Some(cpu), false);
    }

    /// A server blocks. `again`: after the wake-up it tries again to get a request.
    fn wait_to_serve(&mut self, task: usize, again: bool) {
        if let Some(course) = self.course(task) {
            course.granted = false;
            course.next -= usize::from(again);
        }
        self.block(task);
    }

    fn take_request(&mut self, task: usize, stream: usize, at: Ns) {
        let r = &mut self.requests[stream];
        let ns = r.service.draw_ns(&mut r.services).max(1);
        if let Some(course) = self.course(task) {
            course.request_at = Some(at);
            course.to_begin = Some(stream);
            course.segment = Segment::Run(ns);
        }
    }

    /// A server runs: if it has taken a request, its service begins now.
    pub(super) fn begin_service(&mut self, task: usize) {
        let now = self.now;
        let Some(course) = self.course(task) else { return };
        if let (Some(stream), Some(at)) = (course.to_begin.take(), course.request_at) {
            self.record.queued(now, stream, now.saturating_sub(at));
        }
    }

    /// A server that has a request releases the lock, and wakes the next server.
    fn let_next_in(&mut self, task: usize, stream: usize) {
        let r = &mut self.requests[stream];
        if r.receiver != Some(task) {
            return;
        }
        r.receiver = None;
        if let Some(next) = r.locked_out.pop_front() {
            let cpu = self.tasks[task].cpu;
            self.wake(next, Some(cpu), false);
        }
    }

    /// A request reaches the machine: an interrupt.
    pub(super) fn arrival(&mut self, stream: usize) {
        let now = self.now;
        let r = &mut self.requests[stream];
        let wait = r.interval.draw_ns(&mut r.arrivals).max(1);
        let cpu = r.irq_cpus[(r.arrived % r.irq_cpus.len() as u64) as usize];
        r.arrived += 1;
        r.waiting.push_back(now);
        let world = r.world;
        self.queue.add(now + wait, Event::Arrival { stream });
        self.interrupt(world, cpu, Irq::Arrival { stream, at: now });
    }

    /// The interrupt of a request has been handled: an idle server gets the request.
    pub(super) fn request_arrived(&mut self, stream: usize, at: Ns, cpu: usize) {
        self.record.delivered(self.now, stream, self.now.saturating_sub(at));
        let r = &mut self.requests[stream];
        if r.waiting.is_empty() || r.idle.is_empty() {
            return;
        }
        // The server that went to sleep last: its cache is warmest (as with exclusive wake-ups of epoll).
        let Some(task) = r.idle.pop() else { return };
        if r.intake != Intake::Locked {
            let Some(at) = r.waiting.pop_front() else { return };
            self.take_request(task, stream, at);
        }
        self.wake(task, Some(cpu), false);
    }

    fn use_device(&mut self, task: usize, device: usize) {
        let now = self.now;
        let (world, cpu) = (self.tasks[task].world, self.tasks[task].cpu);
        if world != 0 {
            self.shows_kick(world, cpu);
        }
        let d = &mut self.devices[device];
        if d.busy < d.parallel {
            d.busy += 1;
            let ns = d.service.draw_ns(&mut d.stream).max(1);
            self.queue.add(now + ns, Event::Device { device, task });
        } else {
            d.waiting.push_back(task);
        }
        if let Some(course) = self.course(task) {
            course.granted = false;
        }
        self.block(task);
    }

    /// A device's interrupt has been handled.
    pub(super) fn device_done(&mut self, device: usize, task: usize, cpu: usize) {
        let now = self.now;
        let d = &mut self.devices[device];
        match d.waiting.pop_front() {
            Some(next) => {
                let ns = d.service.draw_ns(&mut d.stream).max(1);
                self.queue.add(now + ns, Event::Device { device, task: next });
            }
            None => d.busy -= 1,
        }
        self.grant(task);
        self.wake(task, Some(cpu), false);
    }

    /// A task migrates: its cache is cold on the new CPU.
    pub(super) fn chill(&mut self, task: usize, to: usize) {
        let (world, from) = (self.tasks[task].world, self.tasks[task].cpu);
        let place = |cpu: usize| if world == 0 { Some(cpu) } else { self.last_pcpu(world, cpu) };
        let distance = match (place(from), place(to)) {
            (Some(a), Some(b)) => self.hardware.distance(a, b),
            _ => Distance::Cache,
        };
        let Some(kib) = self.tasks[task].course().map(|course| course.program.working_set_kib) else {
            return;
        };
        let ns = self.costs.refill_ns(kib, distance);
        if let Some(course) = self.course(task) {
            course.cold_ns = course.cold_ns.max(ns);
        }
    }

    /// The pCPU on which a vCPU runs or ran last.
    fn last_pcpu(&self, world: usize, cpu: usize) -> Option<usize> {
        self.worlds[world].cpus[cpu].vcpu.map(|vcpu| self.tasks[vcpu].cpu)
    }

    /// A task is switched in after other tasks ran on its CPU for some time.
    pub(super) fn warm_up_after(&mut self, task: usize, others_ns: Ns) {
        let Some(kib) = self.tasks[task].course().map(|course| course.program.working_set_kib) else {
            return;
        };
        let ns = self.costs.refill_after_others_ns(kib, others_ns);
        if let Some(course) = self.course(task) {
            course.cold_ns = course.cold_ns.max(ns);
        }
    }
}
