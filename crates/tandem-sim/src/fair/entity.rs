//! Entities (tasks and groups) and the queue of one group on one CPU.

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

/// Something with a weight that wants to run.
#[derive(Debug, Clone)]
pub struct Entity {
    /// What it stands for.
    pub owner: Owner,
    /// Group whose queue it belongs into.
    pub group: usize,
    /// CPU of that queue.
    pub cpu: usize,
    /// Weight; 1024 is nice 0.
    pub weight: u64,
    /// Best effort.
    pub idle: bool,
    /// Virtual run time.
    pub v: i64,
    /// Virtual deadline (EEVDF).
    pub deadline: i64,
    /// What it is owed, virtual (EEVDF), while it is in no queue.
    pub lag: i64,
    /// What it asks for at a time, ns.
    pub slice_ns: u64,
    /// That is its own wish.
    pub custom_slice: bool,
    /// In a queue, or running.
    pub on_rq: bool,
    /// Sleeps, but is still in the queue for what it owes.
    pub delayed: bool,
    /// Its deadline is relative to v (it is on its way to another CPU).
    pub relative: bool,
    /// Up to here (v) it is not preempted by its equals.
    pub protected_to: i64,
    /// Time since it was chosen, ns.
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

/// The queue of one group on one CPU. The one that runs is beside it.
#[derive(Debug, Clone, Default)]
pub struct Rq {
    pub(super) queue: Vec<EntityId>,
    pub(super) curr: Option<EntityId>,
    /// Least virtual time of late (CFS: min_vruntime); never goes back.
    pub(super) floor: i64,
    /// Runnable tasks at any depth that are not throttled below here.
    pub(super) tasks: usize,
    /// Of these, best effort.
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

    /// Is nobody here?
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

    /// Has it had no more than its share?
    pub fn is_eligible(&self, id: EntityId, entities: &[Entity]) -> bool {
        let (sum, weight) = self.sums(entities);
        sum >= i128::from(entities[id].v - self.floor) * weight
    }

    /// Of the candidates that are eligible, the one with the earliest deadline.
    pub fn earliest_eligible(&self, entities: &[Entity], candidates: &[EntityId]) -> Option<EntityId> {
        let (sum, weight) = self.sums(entities);
        let eligible = |id: &EntityId| sum >= i128::from(entities[*id].v - self.floor) * weight;
        let order = |id: &EntityId| (entities[*id].deadline, entities[*id].v, *id);
        // Somebody always is, but the mean may be that of the one who runs and is no candidate.
        candidates
            .iter()
            .copied()
            .filter(eligible)
            .min_by_key(order)
            .or_else(|| candidates.iter().copied().min_by_key(|id| (entities[*id].v, *id)))
    }

    /// The one with the least v among those who wait (CFS).
    pub fn leftmost(&self, entities: &[Entity]) -> Option<EntityId> {
        self.queue.iter().copied().min_by_key(|id| (entities[*id].v, *id))
    }

    /// The shortest slice of all, ns.
    pub fn shortest_slice(&self, entities: &[Entity]) -> u64 {
        self.all().map(|id| entities[id].slice_ns).min().unwrap_or(0)
    }

    /// Follows the least v.
    pub(super) fn advance_floor(&mut self, entities: &[Entity]) {
        if let Some(least) = self.all().map(|id| entities[id].v).min() {
            self.floor = self.floor.max(least);
        }
    }
}
