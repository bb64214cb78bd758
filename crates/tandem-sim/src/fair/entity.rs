//! Scheduling entities (tasks and groups), and the queue of one group on one CPU.

/// Index of an entity.
pub type EntityId = usize;

/// What an entity stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A task.
    Task(usize),
    /// A group on one CPU.
    Group {
        /// Group.
        group: usize,
        /// CPU.
        cpu: usize,
    },
}

/// A scheduling entity (`sched_entity`).
#[derive(Debug, Clone)]
pub struct Entity {
    /// What it stands for.
    pub owner: Owner,
    /// Group whose queue it belongs to.
    pub group: usize,
    /// CPU of that queue.
    pub cpu: usize,
    /// Weight; 1024 is nice 0.
    pub weight: u64,
    /// A SCHED_IDLE task, or a group with `cpu.idle`.
    pub idle: bool,
    /// Virtual run time.
    pub v: i64,
    /// Virtual deadline (EEVDF).
    pub deadline: i64,
    /// Lag, virtual (EEVDF), while it is in no queue.
    pub lag: i64,
    /// Request (slice), ns.
    pub slice_ns: u64,
    /// The request is its own, not the base slice.
    pub custom_slice: bool,
    /// In a queue, or running.
    pub on_rq: bool,
    /// It sleeps, but is still queued because of its negative lag (DELAY_DEQUEUE).
    pub delayed: bool,
    /// Its deadline is relative to v (it is migrating to another CPU).
    pub relative: bool,
    /// The v up to which it is protected from preemption (RUN_TO_PARITY). A SCHED_IDLE entity is not protected from
    /// normal ones.
    pub protected_to: i64,
    /// Run time since it was picked, ns.
    pub ran_ns: u64,
}

impl Entity {
    pub(super) fn new(
        owner: Owner,
        group: usize,
        cpu: usize,
        weight: u64,
        idle: bool,
        slice_ns: u64,
    ) -> Self {
        Self {
            owner,
            group,
            cpu,
            weight,
            idle,
            v: 0,
            deadline: 0,
            lag: 0,
            slice_ns,
            custom_slice: false,
            on_rq: false,
            delayed: false,
            relative: false,
            protected_to: 0,
            ran_ns: 0,
        }
    }

    /// Its slice in virtual time.
    pub fn virtual_slice(&self) -> i64 {
        (self.slice_ns * 1024 / self.weight.max(1)) as i64
    }
}

/// The queue of one group on one CPU (`cfs_rq`). The current entity is not in `queue`.
#[derive(Debug, Clone, Default)]
pub struct Rq {
    pub(super) queue: Vec<EntityId>,
    pub(super) curr: Option<EntityId>,
    /// Was named by one that yielded to it, and runs next if it is eligible (`cfs_rq->next`).
    pub(super) buddy: Option<EntityId>,
    /// Least virtual run time (CFS: `min_vruntime`); it never decreases.
    pub(super) floor: i64,
    /// Runnable tasks at any depth that are not throttled below here.
    pub(super) tasks: usize,
    /// SCHED_IDLE tasks among them.
    pub(super) idle_tasks: usize,
    pub(super) throttled: bool,
    /// What is left of the group's quota here, ns.
    pub(super) runtime_ns: i64,
}

impl Rq {
    /// Entities, the running one included.
    pub fn entities(&self) -> usize {
        self.queue.len() + usize::from(self.curr.is_some())
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.entities() == 0
    }

    fn all(&self) -> impl Iterator<Item = EntityId> + '_ {
        self.queue.iter().copied().chain(self.curr)
    }

    /// Sum of weights.
    pub fn weight(&self, entities: &[Entity]) -> u64 {
        self.all().map(|id| entities[id].weight).sum()
    }

    /// V: the mean of v, by weight, rounded down; on an empty queue where it was.
    pub fn average(&self, entities: &[Entity]) -> i64 {
        let (sum, weight) = self.sums(entities);
        if weight == 0 {
            self.floor
        } else {
            self.floor + sum.div_euclid(weight) as i64
        }
    }

    fn sums(&self, entities: &[Entity]) -> (i128, i128) {
        self.all().fold((0, 0), |(sum, weight), id| {
            let (w, v) = (i128::from(entities[id].weight), i128::from(entities[id].v - self.floor));
            (sum + w * v, weight + w)
        })
    }

    /// Is it eligible: has it had no more than its share?
    pub fn is_eligible(&self, id: EntityId, entities: &[Entity]) -> bool {
        let (sum, weight) = self.sums(entities);
        sum >= i128::from(entities[id].v - self.floor) * weight
    }

    /// Of the candidates that are eligible, the one with the earliest deadline.
    pub fn earliest_eligible(&self, entities: &[Entity], candidates: &[EntityId]) -> Option<EntityId> {
        let (sum, weight) = self.sums(entities);
        let eligible = |id: &EntityId| sum >= i128::from(entities[*id].v - self.floor) * weight;
        let order = |id: &EntityId| (entities[*id].deadline, entities[*id].v, *id);
        // Some entity is always eligible, but it may be the current one, which may not be a candidate.
        candidates
            .iter()
            .copied()
            .filter(eligible)
            .min_by_key(order)
            .or_else(|| candidates.iter().copied().min_by_key(|id| (entities[*id].v, *id)))
    }

    /// The waiting entity with the least v (CFS).
    pub fn leftmost(&self, entities: &[Entity]) -> Option<EntityId> {
        self.queue.iter().copied().min_by_key(|id| (entities[*id].v, *id))
    }

    /// The shortest slice of all, ns.
    pub fn shortest_slice(&self, entities: &[Entity]) -> u64 {
        self.all().map(|id| entities[id].slice_ns).min().unwrap_or(0)
    }

    /// Advances `floor` to the least v.
    pub(super) fn advance_floor(&mut self, entities: &[Entity]) {
        if let Some(least) = self.all().map(|id| entities[id].v).min() {
            self.floor = self.floor.max(least);
        }
    }
}
