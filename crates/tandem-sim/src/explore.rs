//! Searches for interleavings in which the scheduler loses a task, a quota, or the accounting of either.
//!
//! In each scenario a few actors do a few things on a few CPUs. First each actor starts once, and all run one after
//! the other without a switch. Then each run is repeated with one switch, for every switch point and every actor to
//! switch to. Then two or three switches are drawn at random. In the end every task must have run, and no task may
//! be left in any sum.

use crate::hardware::Hardware;
use crate::queue::Ns;
use crate::random::Stream;
pub use crate::scx::explore::Side;
use crate::scx::explore::{policy, run, Actor, Course, Part, Ran, Switch};
use crate::scx::{NewTask, Policy, Settings};
use std::ffi::CStr;

const MS: Ns = 1_000_000;
/// Process of the VMM of VM 0: beyond the numbers of tasks.
const VMM: i32 = 1000;

/// A group. Its parent is the group before it if `nested`, else the root.
#[derive(Debug, Clone, Copy)]
struct Group {
    nested: bool,
    max_us: Option<(u64, u64)>,
}

/// A task: its group (0 is the root), its nice value, the CPU that it is pinned to, if any, and the VM whose vCPU it runs, if any.
#[derive(Debug, Clone, Copy)]
struct Member {
    group: usize,
    nice: i32,
    only: Option<usize>,
    vm: Option<u32>,
}

const FREE: Member = Member { group: 0, nice: 0, only: None, vm: None };

/// A vCPU of a VM.
const fn vcpu(vm: u32) -> Member {
    Member { vm: Some(vm), ..FREE }
}

/// A task that is pinned to a CPU.
const fn on(cpu: usize) -> Member {
    Member { only: Some(cpu), ..FREE }
}

/// What several CPUs do concurrently.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// Whose scheduler it concerns.
    pub sides: &'static [Side],
    cpus: usize,
    /// CPUs 0 and 1 share a hardware thread, and spare vCPUs of a stack are left without work (`--rwc`).
    stacked: bool,
    groups: &'static [Group],
    members: &'static [Member],
    prepare: fn(&Actor<'_>),
    parts: &'static [fn(&Actor<'_>)],
    /// Counters that move while the actors are at it, in some run: what the scenario is about takes place.
    moves: &'static [&'static CStr],
    check: fn(&mut Policy) -> Result<(), String>,
}

fn nothing_more(_: &mut Policy) -> Result<(), String> {
    Ok(())
}

/// Tasks 0 and 1 run on CPUs 0 and 1; all others wait for CPU 0.
fn two_run(actor: &Actor<'_>) {
    two_of_them_run(actor, actor.with(|policy| policy.kernel().tasks.len()));
}

/// The same of the first tasks; the others sleep.
fn two_of_them_run(actor: &Actor<'_>, tasks: usize) {
    for task in 0..tasks {
        actor.wake(0, task);
        if task < 2 {
            actor.schedule(task);
        }
    }
}

/// Tasks that were pinned to CPU 0 have run there in turn for so long that they count as CPU-bound. Now they may
/// run on CPU 1 as well. CPU 1 runs one task, has scanned the other CPUs, and pulls at its next tick.
fn tasks_wait(actor: &Actor<'_>) {
    two_run(actor);
    for _ in 0..12 {
        actor.pass(12 * MS);
        actor.tick(0);
        actor.tick(1);
        actor.schedule(0);
    }
    for task in 2..5 {
        actor.set_allowed(0, task, &[true, true]);
    }
    // CPU 1's request for a task lapses. They count as CPU-bound again only once they have run for long.
    actor.pass(200 * MS);
    for _ in 0..12 {
        actor.pass(12 * MS);
        actor.tick(0);
        actor.schedule(0);
    }
    actor.tick(1);
    actor.pass(33 * MS);
}

/// Tasks 0 and 2 share CPU 0, and task 1 has CPU 1 for itself. All have been CPU-bound for long. Now they may run
/// on both CPUs: each is to have two thirds of a CPU.
fn three_take_turns(actor: &Actor<'_>) {
    two_run(actor);
    for _ in 0..20 {
        turns(actor);
    }
    for task in [2, 0] {
        actor.set_allowed(0, task, &[true, true]);
        actor.schedule(0);
    }
}

/// Both CPUs run their tasks in turn.
fn turns(actor: &Actor<'_>) {
    actor.pass(12 * MS);
    for cpu in 0..2 {
        actor.tick(cpu);
        actor.schedule(cpu);
    }
}

/// The tasks of `tasks_wait`: one on CPU 1, the others on CPU 0.
const WAITING: &[Member] = &[on(0), on(1), on(0), on(0), on(0)];

/// CPU 1 finds that CPU 0 is heavier, and pulls.
fn pull_by_load_balance(actor: &Actor<'_>) {
    actor.tick(1);
    actor.schedule(1);
}

fn over_quota(actor: &Actor<'_>) {
    actor.wake(0, 0);
    actor.schedule(0);
    actor.pass(2 * MS);
}

/// Task 0 has used up the quota of the group, and task 1 wakes up without any.
fn throttled(actor: &Actor<'_>) {
    over_quota(actor);
    actor.tick(0);
    actor.schedule(0);
    actor.wake(1, 1);
}

/// Quota is refilled three times, and both CPUs look for tasks.
fn periods_pass(actor: &Actor<'_>) {
    for _ in 0..3 {
        actor.pass(9 * MS);
        actor.fire_due();
    }
    actor.schedule(0);
    actor.schedule(1);
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "an idle CPU pulls while the other one switches",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: &[FREE; 4],
        prepare: two_run,
        parts: &[
            |actor| {
                actor.schedule(0);
                actor.sleep(0);
            },
            |actor| actor.sleep(1),
        ],
        moves: &[c"pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "a waiting task gets another affinity while it is pulled",
        sides: &Side::ALL,
        cpus: 3,
        stacked: false,
        groups: &[],
        members: &[FREE; 5],
        prepare: two_run,
        parts: &[
            |actor| actor.set_allowed(2, 3, &[false, true, false]),
            |actor| actor.sleep(1),
            |actor| actor.schedule(2),
        ],
        moves: &[c"pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "a waiting task ends while it is pulled",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: &[FREE; 4],
        prepare: two_run,
        parts: &[|actor| actor.end(0, 2), |actor| actor.sleep(1), |actor| actor.schedule(0)],
        moves: &[c"pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while they run and sleep",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| {
            actor.schedule(0);
            actor.sleep(0);
        }],
        moves: &[c"lb_pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while one of them begins to run",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| actor.schedule(0)],
        moves: &[c"lb_pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while they end",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| {
            for task in 2..5 {
                actor.end(0, task);
            }
        }],
        moves: &[c"lb_pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while they get another affinity",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| {
            for task in 2..5 {
                actor.set_allowed(0, task, &[true, false]);
            }
        }],
        moves: &[c"lb_pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "tasks that take turns on two CPUs are pushed while one gets another affinity",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: &[on(0), on(1), on(0)],
        prepare: three_take_turns,
        parts: &[
            |actor| {
                for _ in 0..24 {
                    turns(actor);
                }
            },
            |actor| actor.set_allowed(1, 2, &[true, false]),
        ],
        moves: &[c"lb_pushed"],
        check: nothing_more,
    },
    Scenario {
        name: "a CPU goes offline while tasks are queued there and pulled",
        sides: &Side::ALL,
        cpus: 3,
        stacked: false,
        groups: &[],
        members: &[FREE; 5],
        prepare: two_run,
        parts: &[|actor| actor.offline(2, 0), |actor| actor.sleep(1), |actor| actor.schedule(2)],
        moves: &[c"orphans"],
        check: nothing_more,
    },
    Scenario {
        name: "a group runs out of quota while its period ends",
        sides: &Side::ALL,
        cpus: 3,
        stacked: false,
        groups: &[Group { nested: false, max_us: Some((1_000, 10_000)) }],
        members: &[Member { group: 1, ..FREE }; 3],
        prepare: over_quota,
        parts: &[
            |actor| {
                actor.tick(0);
                actor.schedule(0);
            },
            |actor| actor.wake(1, 1),
            |actor| {
                actor.pass(9 * MS);
                actor.fire_due();
                actor.wake(2, 2);
                // What was overrun is paid in the first period.
                actor.pass(12 * MS);
                actor.fire_due();
                actor.schedule(0);
            },
        ],
        moves: &[c"throttled", c"unthrottled"],
        check: nothing_more,
    },
    Scenario {
        name: "a task out of quota ends",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[Group { nested: false, max_us: Some((1_000, 10_000)) }],
        members: &[Member { group: 1, ..FREE }; 3],
        prepare: throttled,
        parts: &[|actor| actor.end(0, 1), periods_pass, |actor| actor.wake(1, 2)],
        moves: &[c"unthrottled"],
        check: nothing_more,
    },
    Scenario {
        name: "a quota is set while tasks below it are queued",
        sides: &Side::ALL,
        cpus: 3,
        stacked: false,
        groups: &[
            Group { nested: false, max_us: None },
            Group { nested: true, max_us: None },
            Group { nested: false, max_us: Some((5_000, 10_000)) },
        ],
        members: &[Member { group: 2, ..FREE }, Member { group: 2, ..FREE }, Member { group: 2, ..FREE }],
        prepare: |actor| {
            actor.wake(0, 0);
            actor.schedule(0);
        },
        parts: &[
            |actor| actor.wake(1, 1),
            |actor| actor.with(|policy| policy.set_bandwidth(0, 1, Some((5_000, 10_000)))),
            |actor| actor.wake(2, 2),
        ],
        moves: &[c"direct"],
        check: |policy| match policy.limit_of(2) {
            1 => Ok(()),
            other => Err(format!("the quota of group 1 is lost: group {other} limits what is below it")),
        },
    },
    Scenario {
        name: "two groups run out of quota at once",
        sides: &Side::ALL,
        cpus: 3,
        stacked: false,
        groups: &[
            Group { nested: false, max_us: Some((2_000, 150_000)) },
            Group { nested: false, max_us: Some((2_000, 10_000)) },
        ],
        members: &[Member { group: 1, ..FREE }, Member { group: 2, ..FREE }],
        prepare: |actor| {
            for task in 0..2 {
                actor.wake(task, task);
                actor.schedule(task);
            }
            // The timer was armed when the quotas were set.
            actor.pass(MS);
            actor.fire_due();
            actor.pass(MS);
        },
        parts: &[
            |actor| {
                actor.tick(0);
                actor.schedule(0);
            },
            |actor| {
                actor.tick(1);
                actor.schedule(1);
            },
        ],
        moves: &[c"throttled"],
        check: nothing_more,
    },
    Scenario {
        name: "light tasks beside a heavy one are served by the wall clock",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[],
        members: &[
            Member { nice: -20, only: Some(0), ..FREE },
            Member { nice: -20, only: Some(1), ..FREE },
            Member { nice: 19, ..FREE },
            Member { nice: 19, only: Some(0), ..FREE },
            Member { nice: 19, ..FREE },
        ],
        prepare: |actor| {
            for task in 0..2 {
                actor.wake(task, task);
                actor.schedule(task);
            }
            actor.pass(30 * MS);
            actor.tick(0);
            actor.wake(0, 2);
            actor.wake(0, 3);
            actor.pass(3000 * MS);
        },
        parts: &[
            |actor| {
                actor.tick(0);
                actor.schedule(0);
            },
            |actor| actor.wake(1, 4),
            |actor| actor.sleep(1),
        ],
        moves: &[c"due"],
        check: nothing_more,
    },
    Scenario {
        name: "a task changes its group while it is pulled",
        sides: &Side::ALL,
        cpus: 3,
        stacked: false,
        groups: &[Group { nested: false, max_us: None }, Group { nested: true, max_us: None }],
        members: &[Member { group: 1, ..FREE }; 5],
        prepare: two_run,
        parts: &[|actor| actor.move_to_group(2, 3, 1, 2), |actor| actor.sleep(1), |actor| actor.schedule(2)],
        moves: &[c"pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "a weight changes while the group's tasks are pulled and its weights are refreshed",
        sides: &Side::ALL,
        cpus: 3,
        stacked: false,
        groups: &[Group { nested: false, max_us: None }, Group { nested: true, max_us: None }],
        members: &[Member { group: 2, ..FREE }; 5],
        prepare: two_run,
        parts: &[
            |actor| {
                actor.with(|policy| policy.set_weight(2, 2, 1000));
                actor.pass(40 * MS);
                actor.fire_due();
            },
            |actor| actor.sleep(1),
            |actor| {
                actor.schedule(0);
                actor.schedule(2);
            },
        ],
        moves: &[c"pulled"],
        check: nothing_more,
    },
    Scenario {
        name: "a throttled task changes its group",
        sides: &Side::ALL,
        cpus: 2,
        stacked: false,
        groups: &[
            Group { nested: false, max_us: Some((1_000, 10_000)) },
            Group { nested: false, max_us: None },
        ],
        members: &[Member { group: 1, ..FREE }; 3],
        prepare: throttled,
        parts: &[|actor| actor.move_to_group(0, 1, 1, 2), periods_pass, |actor| actor.wake(1, 2)],
        moves: &[c"unthrottled"],
        check: nothing_more,
    },
    Scenario {
        name: "a vCPU is parked while tasks run and wait there, and are pulled",
        sides: &[Side::Guest],
        cpus: 3,
        stacked: false,
        groups: &[],
        members: &[FREE; 5],
        prepare: two_run,
        parts: &[
            |actor| {
                actor.with(|policy| policy.park(2, 0, true, false));
            },
            |actor| actor.sleep(1),
            |actor| actor.schedule(0),
        ],
        moves: &[c"evicted", c"pulled"],
        check: Policy::bans_are_counted,
    },
    Scenario {
        name: "a parked vCPU is given back while it is cleared and a task wakes up",
        sides: &[Side::Guest],
        cpus: 3,
        stacked: false,
        groups: &[],
        members: &[FREE; 6],
        prepare: |actor| {
            two_of_them_run(actor, 5);
            actor.with(|policy| policy.park(2, 0, true, false));
        },
        parts: &[
            |actor| {
                actor.with(|policy| policy.park(2, 0, false, false));
            },
            |actor| actor.schedule(0),
            |actor| actor.wake(1, 5),
        ],
        moves: &[c"evicted"],
        check: Policy::bans_are_counted,
    },
    Scenario {
        name: "a vCPU goes offline while it is parked, and is given back",
        sides: &[Side::Guest],
        cpus: 3,
        stacked: false,
        groups: &[],
        members: &[FREE; 5],
        prepare: two_run,
        parts: &[
            |actor| {
                let parked = actor.with(|policy| policy.park(2, 0, true, false));
                let given_back = actor.with(|policy| policy.park(2, 0, false, false));
                actor.require(!parked || given_back, "a vCPU that was parked cannot be given back");
            },
            |actor| actor.offline(2, 0),
            |actor| actor.sleep(1),
        ],
        moves: &[c"orphans"],
        check: Policy::bans_are_counted,
    },
    Scenario {
        name: "the spare vCPU of a stack is banned while tasks run and wait there, and one wakes up",
        sides: &[Side::Guest],
        cpus: 3,
        stacked: true,
        groups: &[],
        members: &[on(1), on(0), on(1), on(1), FREE],
        prepare: |actor| {
            for task in 0..4 {
                actor.wake(1, task);
            }
            actor.schedule(1);
            actor.schedule(0);
            for task in 0..4 {
                actor.set_allowed(1, task, &[true, true, true]);
            }
            actor.pass(40 * MS);
        },
        parts: &[
            |actor| {
                for _ in 0..2 {
                    actor.tick(0);
                    actor.tick(1);
                    actor.pass(12 * MS);
                }
            },
            |actor| actor.schedule(1),
            |actor| actor.wake(1, 4),
        ],
        moves: &[c"evicted"],
        check: Policy::bans_are_counted,
    },
    Scenario {
        name: "a vCPU yields to a sibling that is pulled, while another thread wakes up",
        sides: &[Side::Host],
        cpus: 2,
        stacked: false,
        groups: &[],
        members: &[vcpu(1), vcpu(2), vcpu(1), vcpu(1), FREE],
        prepare: |actor| {
            two_of_them_run(actor, 4);
            actor.pass(4 * MS);
        },
        parts: &[
            |actor| {
                actor.yield_to(0, 2);
                actor.yield_to(0, 3);
            },
            |actor| actor.sleep(1),
            |actor| {
                actor.wake(0, 4);
                actor.schedule(0);
            },
        ],
        moves: &[c"yielded", c"pulled", c"preempted"],
        check: promises_are_kept,
    },
    Scenario {
        name: "a vCPU yields to a sibling while a thread that preempts it wakes up",
        sides: &[Side::Host],
        cpus: 2,
        stacked: false,
        groups: &[],
        members: &[vcpu(1), on(1), vcpu(1), on(0)],
        prepare: |actor| {
            two_of_them_run(actor, 3);
            actor.pass(2 * MS);
        },
        parts: &[
            // What wakes up here is switched to after whatever the other CPU has done meanwhile.
            |actor| {
                actor.wake(0, 3);
                actor.yield_to(0, 2);
            },
            |actor| actor.tick(1),
        ],
        moves: &[c"yields", c"preempted"],
        check: promises_are_kept,
    },
    Scenario {
        name: "a VM ends, and its number is given to another one, while its vCPUs run and are pulled",
        sides: &[Side::Host],
        cpus: 2,
        stacked: false,
        groups: &[],
        members: &[vcpu(1), vcpu(2), vcpu(1), vcpu(1), FREE],
        prepare: |actor| {
            two_of_them_run(actor, 4);
            actor.pass(4 * MS);
        },
        parts: &[
            |actor| {
                actor.with(|policy| {
                    policy.vm_ends(1);
                    let again = policy.runs_vcpu(4, 3, 9);
                    actor.require(again.is_ok(), "there is no room for a VM");
                });
                actor.wake(0, 4);
                actor.schedule(0);
            },
            |actor| actor.sleep(1),
            |actor| actor.schedule(0),
        ],
        moves: &[c"pulled", c"vcpus"],
        check: promises_are_kept,
    },
    Scenario {
        name: "vCPUs on two CPUs use up the quota of their VM, holding locks and not",
        sides: &[Side::Host],
        cpus: 2,
        stacked: false,
        groups: &[Group { nested: false, max_us: Some((1000, 9000)) }],
        members: &[
            Member { group: 1, ..vcpu(1) },
            Member { group: 1, ..vcpu(1) },
            Member { group: 1, ..vcpu(1) },
        ],
        prepare: |actor| {
            two_of_them_run(actor, 3);
            actor.with(|policy| policy.hold_locks(true));
            actor.pass(MS);
        },
        parts: &[
            |actor| {
                for _ in 0..3 {
                    actor.tick(0);
                    actor.schedule(0);
                    actor.pass(MS / 4);
                }
                actor.with(|policy| policy.hold_locks(false));
                periods_pass(actor);
            },
            |actor| {
                actor.tick(1);
                actor.schedule(1);
            },
            |actor| actor.end(1, 2),
        ],
        moves: &[c"throttled", c"unthrottled", c"on_debt"],
        check: promises_are_kept,
    },
];

/// A directed yield that was answered with yes had its way, and no vCPU is counted on a pCPU.
fn promises_are_kept(policy: &mut Policy) -> Result<(), String> {
    match (policy.counter(c"broken"), policy.left_of_vms()) {
        (Some(0), 0) => Ok(()),
        (broken, left) => Err(format!("{broken:?} promises broken, vCPUs of {left} VMs left on pCPUs")),
    }
}

/// The result of exploring a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explored {
    /// Number of runs.
    pub runs: u64,
    /// For each of the scenario's counters: did it move?
    pub moved: Vec<bool>,
    /// The course (interleaving) that failed, and how; none: no failure was found.
    pub failure: Option<(Course, String)>,
}

impl Scenario {
    fn set_up(&self, side: Side) -> Result<Policy, String> {
        let layout = Hardware { cores: self.cpus, ..Hardware::default() };
        let mut settings = Settings { steal_page: true, slice_timers: true, ..Settings::of(layout) };
        if self.stacked {
            settings.threads[1] = settings.threads[0];
            settings.cores[1] = settings.cores[0];
            settings.techniques.rwc = true;
        }
        let mut policy = policy(side, &settings)?;
        policy.add_group(None, 100, false, None)?;
        for (number, group) in self.groups.iter().enumerate() {
            let parent = if group.nested { number } else { 0 };
            policy.add_group(Some(parent), 100, false, group.max_us)?;
        }
        for (vcpu, member) in self.members.iter().enumerate() {
            let allowed: Vec<bool> =
                (0..self.cpus).map(|cpu| member.only.is_none_or(|only| only == cpu)).collect();
            let task = policy.add_task(&NewTask {
                name: "task",
                cpu: member.only.unwrap_or(0),
                allowed: &allowed,
                policy: 0,
                nice: member.nice,
                slice_ns: 0,
                group: member.group,
            })?;
            if let Some(vm) = member.vm {
                policy.joins_process(task, VMM + vm as i32);
                policy.runs_vcpu(task, vm, vcpu as u32)?;
            }
        }
        Ok(policy)
    }

    /// One run of a side's scheduler with a course.
    ///
    /// # Errors
    /// The policy cannot be loaded.
    pub fn run(&self, side: Side, course: &Course) -> Result<Ran, String> {
        let mut policy = self.set_up(side)?;
        let parts: Vec<Part<'_>> = self
            .parts
            .iter()
            .map(|part| -> Part<'_> { Box::new(move |actor: &Actor<'_>| part(actor)) })
            .collect();
        let (cpus, groups) = (self.cpus, self.groups.len());
        Ok(run(&mut policy, self.prepare, parts, course, self.moves, |actor| {
            actor.with(|policy| {
                for cpu in 0..cpus {
                    let left = policy.left(cpu);
                    if !left.is_empty() {
                        return Err(format!(
                            "tasks that sleep are left in sums of CPU {cpu}: {}",
                            left.join(", ")
                        ));
                    }
                }
                if let Some(group) = (0..=groups).find(|group| policy.left_of_group(*group)) {
                    return Err(format!("tasks that sleep are left in the record of group {group}"));
                }
                (self.check)(policy)
            })
        }))
    }

    /// Runs with each actor first: without a switch, then with every single switch. Then `most` runs with two or
    /// three random switches.
    ///
    /// # Errors
    /// The policy cannot be loaded.
    pub fn explore(&self, side: Side, most: u64, seed: u64) -> Result<Explored, String> {
        let actors = self.parts.len();
        let mut explored = Explored { runs: 0, moved: vec![false; self.moves.len()], failure: None };
        let mut points = Vec::new();
        for first in 0..actors {
            let course = Course { first, switches: Vec::new() };
            points.push(self.attempt(side, course, &mut explored)?);
        }
        for (first, points) in points.iter().enumerate() {
            for point in 1..=*points {
                for to in 0..actors {
                    let switches = vec![Switch { point, to }];
                    self.attempt(side, Course { first, switches }, &mut explored)?;
                }
            }
        }
        let mut random = Stream::new(seed, self.name, 0);
        for _ in 0..most {
            let first = random.below(actors as u64) as usize;
            let mut at: Vec<u64> =
                (0..2 + random.below(2)).map(|_| 1 + random.below(points[first])).collect();
            at.sort_unstable();
            at.dedup();
            let switch = |point| Switch { point, to: random.below(actors as u64) as usize };
            let switches = at.into_iter().map(switch).collect();
            self.attempt(side, Course { first, switches }, &mut explored)?;
        }
        Ok(explored)
    }

    /// One more run, unless a failure was already found. Returns the number of switch points that it passed.
    fn attempt(&self, side: Side, course: Course, explored: &mut Explored) -> Result<u64, String> {
        if explored.failure.is_some() {
            return Ok(1);
        }
        let ran = self.run(side, &course)?;
        explored.runs += 1;
        for (moved, also) in explored.moved.iter_mut().zip(&ran.moved) {
            *moved |= also;
        }
        explored.failure = ran.failure.map(|what| (course, format!("{what} [{}]", ran.places.join("; "))));
        Ok(ran.points.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_interleaving_loses_anything() {
        for (side, scenario) in
            SCENARIOS.iter().flat_map(|one| one.sides.iter().map(move |side| (*side, one)))
        {
            let explored = scenario.explore(side, 50, 1).unwrap();
            let name = format!("{}: {}", side.name(), scenario.name);
            assert_eq!(explored.failure, None, "{name}");
            let moved = explored.moved.iter().all(|moved| *moved);
            assert!(moved, "{name}: {:?} of {:?}", explored.moved, scenario.moves);
            assert!(explored.runs > 50, "{name}: {} runs", explored.runs);
        }
    }

    /// Control: the switches of a course take place, and change the run.
    #[test]
    fn courses_are_followed() {
        let scenario = &SCENARIOS[0];
        let straight = scenario.run(Side::Guest, &Course::default()).unwrap();
        let course = |point| Course { first: 0, switches: vec![Switch { point, to: 1 }] };
        let points: Vec<u64> = (1..straight.points)
            .map(|point| scenario.run(Side::Guest, &course(point)).unwrap().points)
            .collect();
        assert!(points.iter().any(|points| *points != straight.points), "all runs were alike");
        let middle = course(straight.points / 2);
        assert_eq!(scenario.run(Side::Guest, &middle).unwrap(), scenario.run(Side::Guest, &middle).unwrap());
    }
}
