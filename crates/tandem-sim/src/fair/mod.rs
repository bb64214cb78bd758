//! Model of the kernel's fair class: EEVDF (from 6.6 on, the version as a parameter) and CFS (before), with groups.
//!
//! One instance per kernel. It knows tasks only as entities with weights. The caller decides when tasks sleep,
//! where they are placed, and when to check for a reschedule. Sources: kernel/sched/fair.c of the versions named;
//! Stoica and Abdel-Wahab 1995.

mod bandwidth;
mod entity;
mod rules;

pub use bandwidth::Bandwidth;
pub use entity::{Entity, EntityId, Owner, Rq};
pub use rules::{weight_of_nice, Flavour, Rules, IDLE_WEIGHT};

/// A task group. Number 0 is the root.
#[derive(Debug, Clone)]
pub struct Group {
    /// Parent; none: this is the root.
    pub parent: Option<usize>,
    /// Shares: 1024 is a task of nice 0.
    pub shares: u64,
    /// `cpu.idle`.
    pub idle: bool,
    /// `cpu.max`.
    pub bandwidth: Option<Bandwidth>,
    /// Its entity on each CPU.
    entities: Vec<EntityId>,
}

/// Why an entity is enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It woke up.
    Wakeup,
    /// It is new.
    New,
    /// It was runnable on another CPU.
    Migrated,
    /// Its group was unthrottled.
    Unthrottled,
}

/// All queues of one kernel.
#[derive(Debug, Clone)]
pub struct Fair {
    rules: Rules,
    cpus: usize,
    groups: Vec<Group>,
    entities: Vec<Entity>,
    /// By group and CPU.
    rqs: Vec<Vec<Rq>>,
}

impl Fair {
    /// Base slice, ns, as the kernel scales it by its CPUs.
    pub fn base_slice_ns(&self) -> u64 {
        self.rules.base_slice_ns
    }

    /// Without tasks.
    pub fn new(rules: Rules, cpus: usize) -> Self {
        let root = Group { parent: None, shares: 1024, idle: false, bandwidth: None, entities: Vec::new() };
        Self { rules, cpus, groups: vec![root], entities: Vec::new(), rqs: vec![vec![Rq::default(); cpus]] }
    }

    /// The rules that it follows.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Adds a group.
    pub fn add_group(
        &mut self,
        parent: usize,
        shares: u64,
        idle: bool,
        bandwidth: Option<Bandwidth>,
    ) -> usize {
        let group = self.groups.len();
        let entities = (0..self.cpus)
            .map(|cpu| {
                self.add(Entity::new(
                    Owner::Group { group, cpu },
                    parent,
                    cpu,
                    shares,
                    idle,
                    self.rules.base_slice_ns,
                ))
            })
            .collect();
        self.groups.push(Group { parent: Some(parent), shares, idle, bandwidth, entities });
        self.rqs.push(vec![Rq::default(); self.cpus]);
        group
    }

    /// Adds a task. `slice_ns`: its request; none: the base slice.
    pub fn add_task(
        &mut self,
        task: usize,
        group: usize,
        weight: u64,
        idle: bool,
        slice_ns: Option<u64>,
    ) -> EntityId {
        let mut entity = Entity::new(
            Owner::Task(task),
            group,
            0,
            weight,
            idle,
            slice_ns.unwrap_or(self.rules.base_slice_ns),
        );
        entity.custom_slice = slice_ns.is_some();
        self.add(entity)
    }

    fn add(&mut self, entity: Entity) -> EntityId {
        self.entities.push(entity);
        self.entities.len() - 1
    }

    /// An entity.
    pub fn entity(&self, id: EntityId) -> &Entity {
        &self.entities[id]
    }

    /// Changes the quota of a group that has one.
    pub fn set_quota(&mut self, group: usize, quota_ns: u64, period_ns: u64) {
        if let Some(bandwidth) = &mut self.groups[group].bandwidth {
            bandwidth.set(quota_ns, period_ns);
        }
    }

    /// How many groups there are, the root included.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// A group.
    pub fn group(&self, group: usize) -> &Group {
        &self.groups[group]
    }

    fn rq(&self, group: usize, cpu: usize) -> &Rq {
        &self.rqs[group][cpu]
    }

    /// Tasks that are runnable on a CPU and not throttled.
    pub fn running(&self, cpu: usize) -> usize {
        self.rqs[0][cpu].tasks
    }

    /// SCHED_IDLE tasks among them.
    pub fn idle_running(&self, cpu: usize) -> usize {
        self.rqs[0][cpu].idle_tasks
    }

    /// Sum of the weights at the root of a CPU.
    pub fn load(&self, cpu: usize) -> u64 {
        self.rqs[0][cpu].weight(&self.entities)
    }

    /// Weight of a task at the root: its own, scaled by its groups'.
    pub fn load_of(&self, id: EntityId) -> u64 {
        let mut load = self.entities[id].weight;
        let (mut group, cpu) = (self.entities[id].group, self.entities[id].cpu);
        while let Some(parent) = self.groups[group].parent {
            let inside = self.rq(group, cpu).weight(&self.entities).max(1);
            let own = self.entities[self.groups[group].entities[cpu]].weight;
            load = load * own / inside.max(load);
            group = parent;
        }
        load.max(1)
    }

    /// Runnable tasks of a CPU that are not running, in the order of the queues.
    pub fn waiting_tasks(&self, cpu: usize) -> Vec<usize> {
        let mut found = Vec::new();
        self.collect(0, cpu, &mut found);
        found
    }

    fn collect(&self, group: usize, cpu: usize, found: &mut Vec<usize>) {
        let rq = self.rq(group, cpu);
        if rq.throttled {
            return;
        }
        // The current group has waiting tasks, too.
        for &id in rq.queue.iter().chain(rq.curr.iter()) {
            let entity = &self.entities[id];
            if entity.delayed {
                continue;
            }
            match entity.owner {
                Owner::Task(task) if rq.curr != Some(id) => found.push(task),
                Owner::Task(_) => {}
                Owner::Group { group, .. } => self.collect(group, cpu, found),
            }
        }
    }

    /// Puts a task into the queue of `cpu`.
    pub fn enqueue(&mut self, id: EntityId, cpu: usize, how: Arrival) {
        let from = self.entities[id].cpu;
        if self.rules.flavour == Flavour::Cfs && how == Arrival::Wakeup && from != cpu {
            // Its v is relative to the virtual time of another queue.
            let group = self.entities[id].group;
            self.entities[id].v += self.rqs[group][cpu].floor - self.rqs[group][from].floor;
        }
        self.entities[id].cpu = cpu;
        let idle = self.entities[id].idle;
        let (mut at, mut how) = (id, how);
        let mut blocked = false;
        loop {
            let group = self.entities[at].group;
            if self.entities[at].on_rq {
                self.wake_delayed(at);
            } else {
                self.place(at, group, cpu, how);
                self.entities[at].on_rq = true;
                self.rqs[group][cpu].queue.push(at);
            }
            if !blocked {
                let rq = &mut self.rqs[group][cpu];
                rq.tasks += 1;
                rq.idle_tasks += usize::from(idle);
                blocked = rq.throttled;
            }
            let Some(_) = self.groups[group].parent else { break };
            if self.rqs[group][cpu].throttled {
                break;
            }
            at = self.groups[group].entities[cpu];
            self.reweigh_group(group, cpu);
            // A group that has been empty is placed like a task that wakes.
            how = if self.entities[at].on_rq { how } else { Arrival::Wakeup };
        }
    }

    /// Wakes a task that was still queued until its negative lag is gone (DELAY_DEQUEUE).
    fn wake_delayed(&mut self, id: EntityId) {
        if !self.entities[id].delayed {
            return;
        }
        self.entities[id].delayed = false;
        let (group, cpu) = (self.entities[id].group, self.entities[id].cpu);
        let average = self.rqs[group][cpu].average(&self.entities);
        // DELAY_ZERO: lag that has become positive meanwhile is set to zero.
        if self.entities[id].v < average {
            let entity = &mut self.entities[id];
            entity.v = average;
            entity.deadline = average + entity.virtual_slice();
        }
    }

    fn place(&mut self, id: EntityId, group: usize, cpu: usize, how: Arrival) {
        let rq = &self.rqs[group][cpu];
        let placed = match self.rules.flavour {
            Flavour::Eevdf { version } => {
                rules::place_eevdf(&self.entities[id], rq, &self.entities, how, version)
            }
            Flavour::Cfs => rules::place_cfs(&self.entities[id], rq, &self.entities, how, &self.rules),
        };
        let entity = &mut self.entities[id];
        (entity.v, entity.deadline) = placed;
        entity.cpu = cpu;
        entity.relative = false;
    }

    /// Dequeues a runnable task. Returns whether it left the queue: a task with negative lag that goes to sleep
    /// stays queued until that lag is gone (DELAY_DEQUEUE).
    pub fn dequeue(&mut self, id: EntityId, sleeps: bool) -> bool {
        let cpu = self.entities[id].cpu;
        let idle = self.entities[id].idle;
        let delays = sleeps && self.delays(id);
        let mut at = id;
        let mut remove = !delays;
        if delays {
            self.entities[id].delayed = true;
        }
        loop {
            let group = self.entities[at].group;
            if remove {
                self.remove(at, group, cpu, !sleeps && at == id);
            }
            let throttled = self.rqs[group][cpu].throttled;
            let rq = &mut self.rqs[group][cpu];
            rq.tasks -= 1;
            rq.idle_tasks -= usize::from(idle);
            if self.groups[group].parent.is_none() || throttled {
                break;
            }
            at = self.groups[group].entities[cpu];
            // The group's entity is dequeued when the group is empty.
            remove = remove && self.rqs[group][cpu].is_empty();
            if !remove {
                self.reweigh_group(group, cpu);
            }
        }
        !delays
    }

    fn delays(&self, id: EntityId) -> bool {
        let Flavour::Eevdf { version } = self.rules.flavour else { return false };
        let entity = &self.entities[id];
        let rq = self.rq(entity.group, entity.cpu);
        version >= 612 && !rq.throttled && rq.curr != Some(id) && !rq.is_eligible(id, &self.entities)
    }

    fn remove(&mut self, id: EntityId, group: usize, cpu: usize, migrates: bool) {
        let average = self.rqs[group][cpu].average(&self.entities);
        let floor = self.rqs[group][cpu].floor;
        let limit = self.rules.lag_limit(&self.entities[id]);
        let eevdf = matches!(self.rules.flavour, Flavour::Eevdf { .. });
        let entity = &mut self.entities[id];
        entity.on_rq = false;
        entity.delayed = false;
        if eevdf {
            entity.lag = (average - entity.v).clamp(-limit, limit);
            if migrates {
                entity.deadline -= entity.v;
                entity.relative = true;
            }
        } else if migrates {
            // Relative to the queue that it leaves.
            entity.v -= floor;
        }
        let rq = &mut self.rqs[group][cpu];
        rq.queue.retain(|other| *other != id);
        if rq.curr == Some(id) {
            rq.curr = None;
        }
        rq.buddy = rq.buddy.filter(|buddy| *buddy != id);
        rq.advance_floor(&self.entities);
    }

    /// Updates the weight of a group's entity on a CPU: the group's shares times the part of its load on that CPU
    /// (`update_cfs_group()`).
    fn reweigh_group(&mut self, group: usize, cpu: usize) {
        let shares = self.groups[group].shares;
        let here = self.rqs[group][cpu].weight(&self.entities);
        let all: u64 = (0..self.cpus).map(|cpu| self.rqs[group][cpu].weight(&self.entities)).sum();
        let weight = (shares * here).checked_div(all).map_or(shares, |part| part.clamp(2, shares.max(2)));
        let id = self.groups[group].entities[cpu];
        let parent = self.entities[id].group;
        let weight = if self.groups[group].idle { IDLE_WEIGHT } else { weight };
        if self.entities[id].weight == weight {
            return;
        }
        let average = self.rqs[parent][cpu].average(&self.entities);
        let entity = &mut self.entities[id];
        if entity.on_rq && matches!(self.rules.flavour, Flavour::Eevdf { .. }) {
            // Lag stays the same in CPU time, and so does the rest of the request.
            let (old, new) = (entity.weight as i64, weight as i64);
            let lag = (average - entity.v) * old / new;
            let rest = (entity.deadline - entity.v) * old / new;
            entity.v = average - lag;
            entity.deadline = entity.v + rest;
        }
        entity.weight = weight;
    }

    /// Charges the current task of `cpu` and its groups for `ns` (`update_curr()`). Returns whether to reschedule.
    pub fn charge(&mut self, cpu: usize, ns: u64) -> bool {
        let mut resched = false;
        let mut group = 0;
        while let Some(id) = self.rqs[group][cpu].curr {
            let several = self.rqs[group][cpu].entities() > 1;
            let eevdf = matches!(self.rules.flavour, Flavour::Eevdf { .. });
            let base = self.rules.base_slice_ns;
            let entity = &mut self.entities[id];
            entity.v += (ns * 1024 / entity.weight.max(1)) as i64;
            entity.ran_ns += ns;
            if eevdf && entity.v >= entity.deadline {
                if !entity.custom_slice {
                    entity.slice_ns = base;
                }
                entity.deadline = entity.v + entity.virtual_slice();
                resched |= several;
            }
            let (protected, owner) = (entity.v < entity.protected_to, entity.owner);
            if eevdf && several && self.rules.short_protection() && !protected {
                resched = true;
            }
            if let Some(bandwidth) = &mut self.groups[group].bandwidth {
                let rq = &mut self.rqs[group][cpu];
                rq.runtime_ns -= ns as i64;
                if rq.runtime_ns <= 0 && !bandwidth.give(&mut rq.runtime_ns) {
                    resched = true;
                }
            }
            self.rqs[group][cpu].advance_floor(&self.entities);
            match owner {
                Owner::Task(_) => break,
                Owner::Group { group: below, .. } => group = below,
            }
        }
        resched
    }

    /// Puts the current task of a CPU back into its queue.
    pub fn put_back(&mut self, cpu: usize) {
        let mut group = 0;
        while let Some(id) = self.rqs[group][cpu].curr.take() {
            let entity = &self.entities[id];
            if entity.on_rq {
                self.rqs[group][cpu].queue.push(id);
            }
            match entity.owner {
                Owner::Task(_) => break,
                Owner::Group { group: below, .. } => group = below,
            }
        }
    }

    /// Throttles the groups of a CPU that have used up their quota. It is called before the next task is picked.
    pub fn throttle(&mut self, cpu: usize) {
        for group in 1..self.groups.len() {
            let spent = self.groups[group].bandwidth.is_some() && self.rqs[group][cpu].runtime_ns <= 0;
            if !spent || self.rqs[group][cpu].throttled || self.rqs[group][cpu].is_empty() {
                continue;
            }
            self.rqs[group][cpu].throttled = true;
            let (tasks, idle_tasks) = (self.rqs[group][cpu].tasks, self.rqs[group][cpu].idle_tasks);
            self.leave_above(group, cpu, tasks, idle_tasks);
        }
    }

    /// Takes the tasks of a throttled group, and its entity, out of the groups above it on a CPU.
    fn leave_above(&mut self, group: usize, cpu: usize, tasks: usize, idle_tasks: usize) {
        let (mut group, mut remove) = (group, true);
        while let Some(parent) = self.groups[group].parent {
            let above = self.groups[group].entities[cpu];
            if remove && self.entities[above].on_rq {
                self.remove(above, parent, cpu, false);
            }
            let rq = &mut self.rqs[parent][cpu];
            rq.tasks -= tasks;
            rq.idle_tasks -= idle_tasks;
            if rq.throttled {
                break;
            }
            remove = rq.is_empty();
            group = parent;
        }
    }

    /// Begins a period of a group's quota. Returns the CPUs on which the group is unthrottled.
    pub fn refill(&mut self, group: usize) -> Vec<usize> {
        let Some(bandwidth) = &mut self.groups[group].bandwidth else { return Vec::new() };
        bandwidth.refill();
        let mut again = Vec::new();
        for cpu in 0..self.cpus {
            if !self.rqs[group][cpu].throttled {
                continue;
            }
            let Some(bandwidth) = &mut self.groups[group].bandwidth else { break };
            if bandwidth.give(&mut self.rqs[group][cpu].runtime_ns) {
                self.unthrottle(group, cpu);
                again.push(cpu);
            }
        }
        again
    }

    fn unthrottle(&mut self, group: usize, cpu: usize) {
        self.rqs[group][cpu].throttled = false;
        let (tasks, idle_tasks) = (self.rqs[group][cpu].tasks, self.rqs[group][cpu].idle_tasks);
        let mut group = group;
        while let Some(parent) = self.groups[group].parent {
            let above = self.groups[group].entities[cpu];
            self.reweigh_group(group, cpu);
            if !self.entities[above].on_rq && !self.rqs[group][cpu].is_empty() {
                self.place(above, parent, cpu, Arrival::Unthrottled);
                self.entities[above].on_rq = true;
                self.rqs[parent][cpu].queue.push(above);
            }
            let rq = &mut self.rqs[parent][cpu];
            rq.tasks += tasks;
            rq.idle_tasks += idle_tasks;
            if rq.throttled {
                break;
            }
            group = parent;
        }
    }

    /// Picks the next task of a CPU, and makes it the current one. None: no task can run. There must be no current
    /// task.
    pub fn pick(&mut self, cpu: usize) -> Option<usize> {
        'again: loop {
            let mut group = 0;
            let mut path = Vec::new();
            loop {
                let Some(id) = self.choose(group, cpu) else {
                    // An empty or throttled group on the path: its entity is dequeued.
                    if path.is_empty() {
                        return None;
                    }
                    let (above, stale): (usize, EntityId) = path[path.len() - 1];
                    self.entities[stale].on_rq = false;
                    self.rqs[above][cpu].queue.retain(|other| *other != stale);
                    continue 'again;
                };
                if self.entities[id].delayed {
                    // Its negative lag is gone: the delayed dequeue is completed.
                    self.finish_delayed(id, group, cpu);
                    continue 'again;
                }
                path.push((group, id));
                match self.entities[id].owner {
                    Owner::Task(task) => {
                        for (group, id) in path {
                            self.make_current(id, group, cpu);
                        }
                        return Some(task);
                    }
                    Owner::Group { group: below, .. } => group = below,
                }
            }
        }
    }

    fn finish_delayed(&mut self, id: EntityId, group: usize, cpu: usize) {
        self.remove(id, group, cpu, false);
        let (mut group, mut empty) = (group, self.rqs[group][cpu].is_empty());
        while empty {
            let Some(parent) = self.groups[group].parent else { break };
            let above = self.groups[group].entities[cpu];
            if !self.entities[above].on_rq {
                break;
            }
            self.remove(above, parent, cpu, false);
            group = parent;
            empty = self.rqs[group][cpu].is_empty();
        }
    }

    fn choose(&self, group: usize, cpu: usize) -> Option<EntityId> {
        let rq = self.rq(group, cpu);
        if rq.throttled {
            return None;
        }
        let may_run = |buddy: &EntityId| {
            rq.queue.contains(buddy)
                && !self.entities[*buddy].delayed
                && rq.is_eligible(*buddy, &self.entities)
        };
        if let Some(buddy) = rq.buddy.filter(may_run) {
            return Some(buddy);
        }
        match self.rules.flavour {
            Flavour::Eevdf { .. } => rq.earliest_eligible(&self.entities, &rq.queue),
            Flavour::Cfs => rq.leftmost(&self.entities),
        }
    }

    fn make_current(&mut self, id: EntityId, group: usize, cpu: usize) {
        let rq = &mut self.rqs[group][cpu];
        rq.queue.retain(|other| *other != id);
        rq.curr = Some(id);
        rq.buddy = None;
        let shortest = rq.shortest_slice(&self.entities);
        let entity = &mut self.entities[id];
        entity.ran_ns = 0;
        entity.protected_to = self.rules.protection(entity, shortest);
    }

    /// Does a task that was just enqueued on `cpu` preempt the current one (wake-up preemption)?
    pub fn preempts(&mut self, cpu: usize, id: EntityId, batch: bool) -> bool {
        // The two are compared at the level where their paths part (`find_matching_se()`).
        let Some((group, curr, woken)) = self.parting(cpu, id) else { return false };
        let (c, w) = (&self.entities[curr], &self.entities[woken]);
        if c.idle && !w.idle {
            return true;
        }
        if w.idle || batch {
            return false;
        }
        let rq = &self.rqs[group][cpu];
        match self.rules.flavour {
            Flavour::Cfs => c.v - w.v > (self.rules.wakeup_granularity_ns * 1024 / w.weight.max(1)) as i64,
            Flavour::Eevdf { version } => {
                let shorter = version >= 612 && w.slice_ns < c.slice_ns;
                let protected = !shorter && c.v < c.protected_to && rq.is_eligible(curr, &self.entities);
                if protected {
                    let shortest = rq.shortest_slice(&self.entities);
                    if self.rules.short_protection() {
                        let to = c.v + (shortest * 1024 / c.weight.max(1)) as i64;
                        self.entities[curr].protected_to = self.entities[curr].protected_to.min(to);
                    }
                    return false;
                }
                let candidates: Vec<EntityId> = rq.queue.iter().copied().chain([curr]).collect();
                rq.earliest_eligible(&self.entities, &candidates) == Some(woken)
            }
        }
    }

    /// The group at which the paths of a CPU's current task and of another task part, with the entities of both there.
    fn parting(&self, cpu: usize, id: EntityId) -> Option<(usize, EntityId, EntityId)> {
        let mut path = vec![id];
        let mut group = self.entities[id].group;
        while self.groups[group].parent.is_some() {
            if self.rq(group, cpu).throttled {
                return None;
            }
            let above = self.groups[group].entities[cpu];
            path.push(above);
            group = self.entities[above].group;
        }
        let mut group = 0;
        for &at in path.iter().rev() {
            let curr = self.rq(group, cpu).curr?;
            if curr != at {
                return Some((group, curr, at));
            }
            match self.entities[at].owner {
                Owner::Task(_) => return None,
                Owner::Group { group: below, .. } => group = below,
            }
        }
        None
    }

    /// Run time until the request of the current task, or of one of its groups, is done (EEVDF), or until its
    /// protection ends (from 6.17 on). None: no other entity waits.
    pub fn slice_left_ns(&self, cpu: usize) -> Option<u64> {
        if self.rules.flavour == Flavour::Cfs {
            return None;
        }
        let (mut group, mut least) = (0, None);
        while let Some(id) = self.rqs[group][cpu].curr {
            let entity = &self.entities[id];
            if self.rqs[group][cpu].entities() > 1 {
                let end = if self.rules.short_protection() {
                    entity.protected_to.min(entity.deadline)
                } else {
                    entity.deadline
                };
                let left = ((end - entity.v).max(0) as u64 * entity.weight).div_ceil(1024);
                least = Some(least.map_or(left, |other: u64| other.min(left)));
            }
            match entity.owner {
                Owner::Task(_) => break,
                Owner::Group { group: below, .. } => group = below,
            }
        }
        least
    }

    /// The tick. Returns whether to reschedule. (EEVDF decides in `charge()`.)
    pub fn tick(&mut self, cpu: usize) -> bool {
        if !matches!(self.rules.flavour, Flavour::Cfs) {
            return false;
        }
        let mut group = 0;
        while let Some(id) = self.rqs[group][cpu].curr {
            let rq = &self.rqs[group][cpu];
            let entity = &self.entities[id];
            if rq.entities() > 1 {
                let slice = self.rules.cfs_slice(entity.weight, rq.weight(&self.entities), rq.entities());
                let behind = rq.leftmost(&self.entities).map_or(0, |left| entity.v - self.entities[left].v);
                if entity.ran_ns > slice
                    || (entity.ran_ns >= self.rules.min_granularity_ns && behind > slice as i64)
                {
                    return true;
                }
            }
            match entity.owner {
                Owner::Task(_) => break,
                Owner::Group { group: below, .. } => group = below,
            }
        }
        false
    }

    /// The task yields. EEVDF: its deadline moves back by a slice. CFS: its v moves on by the minimum granularity.
    pub fn yields(&mut self, id: EntityId) {
        let entity = &mut self.entities[id];
        match self.rules.flavour {
            Flavour::Eevdf { .. } => entity.deadline += entity.virtual_slice(),
            Flavour::Cfs => entity.v += (self.rules.min_granularity_ns * 1024 / entity.weight.max(1)) as i64,
        }
        entity.protected_to = entity.v;
    }

    /// A task yields to another one, which waits (`yield_to_task_fair()`). Returns whether that one is queued.
    pub fn yields_to(&mut self, from: EntityId, to: EntityId) -> bool {
        let (mut at, cpu) = (to, self.entities[to].cpu);
        loop {
            if !self.entities[at].on_rq {
                return false;
            }
            let group = self.entities[at].group;
            self.rqs[group][cpu].buddy = Some(at);
            if self.groups[group].parent.is_none() {
                break;
            }
            at = self.groups[group].entities[cpu];
        }
        self.yields(from);
        true
    }

    /// Changes a task's weight.
    pub fn set_weight(&mut self, id: EntityId, weight: u64, idle: bool) {
        let entity = &mut self.entities[id];
        entity.weight = weight;
        entity.idle = idle;
    }
}
