//! What several CPUs do concurrently, of either side's scheduler.

use super::{Group, Member, Scenario};
use crate::queue::Ns;
use crate::scx::explore::{Actor, Side};
use crate::scx::Policy;

const MS: Ns = 1_000_000;

const FREE: Member = Member { group: 0, nice: 0, only: None, vm: None };

/// A vCPU of a VM.
const fn vcpu(vm: u32) -> Member {
    Member { vm: Some(vm), ..FREE }
}

/// A task that is pinned to a CPU.
const fn on(cpu: usize) -> Member {
    Member { only: Some(cpu), ..FREE }
}

/// Beside what is promised to vCPUs: what VMs owe is what others are owed.
fn debts_are_credits(policy: &mut Policy) -> Result<(), String> {
    match policy.sum_of_debts() {
        0 => promises_are_kept(policy),
        sum => Err(format!("{sum} ns are owed to nobody")),
    }
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

/// The first two of four tasks have run for longer than a slice, while the other two wait.
fn two_run_and_two_wait(actor: &Actor<'_>) {
    two_of_them_run(actor, 4);
    actor.pass(4 * MS);
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

/// `VM_FAST_WAKEUP` in `bpf/host/intf.h`.
const FAST_WAKEUP: u32 = 64;
/// No technique of that number is known: all are used, also those that are off by default.
const NOTHING: u32 = 1 << 31;
/// A vector of a device.
const DEVICE: u32 = 0x30;
/// That of a reschedule IPI.
const RESCHEDULE: u32 = 0xfd;

/// What most scenarios have in common.
const PLAIN: Scenario = Scenario {
    name: "",
    sides: &Side::ALL,
    cpus: 2,
    stacked: false,
    // Who is woken waits.
    left_out: FAST_WAKEUP,
    groups: &[],
    members: &[],
    prepare: two_run,
    parts: &[],
    moves: &[],
    check: nothing_more,
};

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "an idle CPU pulls while the other one switches",
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
        ..PLAIN
    },
    Scenario {
        name: "a waiting task gets another affinity while it is pulled",
        cpus: 3,
        members: &[FREE; 5],
        prepare: two_run,
        parts: &[
            |actor| actor.set_allowed(2, 3, &[false, true, false]),
            |actor| actor.sleep(1),
            |actor| actor.schedule(2),
        ],
        moves: &[c"pulled"],
        ..PLAIN
    },
    Scenario {
        name: "a waiting task ends while it is pulled",
        members: &[FREE; 4],
        prepare: two_run,
        parts: &[|actor| actor.end(0, 2), |actor| actor.sleep(1), |actor| actor.schedule(0)],
        moves: &[c"pulled"],
        ..PLAIN
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while they run and sleep",
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| {
            actor.schedule(0);
            actor.sleep(0);
        }],
        moves: &[c"lb_pulled"],
        ..PLAIN
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while one of them begins to run",
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| actor.schedule(0)],
        moves: &[c"lb_pulled"],
        ..PLAIN
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while they end",
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| {
            for task in 2..5 {
                actor.end(0, task);
            }
        }],
        moves: &[c"lb_pulled"],
        ..PLAIN
    },
    Scenario {
        name: "CPU-bound tasks are pulled by load balance while they get another affinity",
        members: WAITING,
        prepare: tasks_wait,
        parts: &[pull_by_load_balance, |actor| {
            for task in 2..5 {
                actor.set_allowed(0, task, &[true, false]);
            }
        }],
        moves: &[c"lb_pulled"],
        ..PLAIN
    },
    Scenario {
        name: "tasks that take turns on two CPUs are pushed while one gets another affinity",
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
        ..PLAIN
    },
    Scenario {
        name: "a CPU goes offline while tasks are queued there and pulled",
        cpus: 3,
        members: &[FREE; 5],
        prepare: two_run,
        parts: &[|actor| actor.offline(2, 0), |actor| actor.sleep(1), |actor| actor.schedule(2)],
        moves: &[c"orphans"],
        ..PLAIN
    },
    Scenario {
        name:
            "a CPU goes offline while it refreshes the scales of groups, and others wake up and ask for that",
        cpus: 3,
        groups: &[Group { nested: false, max_us: None }; 2],
        members: &[
            Member { group: 1, ..FREE },
            Member { group: 2, ..FREE },
            Member { group: 1, ..FREE },
            Member { group: 2, ..FREE },
        ],
        prepare: |actor| {
            // CPU 0 arms the timer, and after some refreshes nothing changes any more.
            two_of_them_run(actor, 3);
            for _ in 0..6 {
                actor.pass(40 * MS);
                actor.tick(0);
                actor.tick(1);
                actor.fire_due();
            }
            actor.pass(40 * MS);
        },
        parts: &[
            |actor| actor.offline(2, 0),
            |actor| {
                actor.fire_due();
            },
            |actor| {
                actor.wake(1, 3);
                actor.schedule(1);
            },
        ],
        moves: &[c"orphans"],
        ..PLAIN
    },
    Scenario {
        name: "a group becomes active while the weight of another one changes and a task waits",
        groups: &[Group { nested: false, max_us: None }; 2],
        members: &[Member { group: 1, ..FREE }, Member { group: 1, ..FREE }, Member { group: 2, ..FREE }],
        // The refresh that the weights have asked for finds nothing active: no other one comes.
        prepare: |actor| {
            actor.pass(3 * MS);
            actor.fire_due();
        },
        parts: &[
            |actor| {
                actor.wake(0, 0);
                actor.wake(0, 2);
            },
            |actor| {
                actor.with(|policy| policy.set_weight(1, 1, 1000));
                actor.wake(1, 1);
                actor.schedule(1);
            },
        ],
        moves: &[c"direct"],
        ..PLAIN
    },
    Scenario {
        name: "a group runs out of quota while its period ends",
        cpus: 3,
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
        ..PLAIN
    },
    Scenario {
        name: "a task out of quota ends",
        groups: &[Group { nested: false, max_us: Some((1_000, 10_000)) }],
        members: &[Member { group: 1, ..FREE }; 3],
        prepare: throttled,
        parts: &[|actor| actor.end(0, 1), periods_pass, |actor| actor.wake(1, 2)],
        moves: &[c"unthrottled"],
        ..PLAIN
    },
    Scenario {
        name: "a quota is set while tasks below it are queued",
        cpus: 3,
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
        ..PLAIN
    },
    Scenario {
        name: "two groups run out of quota at once",
        cpus: 3,
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
        ..PLAIN
    },
    Scenario {
        name: "light tasks beside a heavy one are served by the wall clock",
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
        ..PLAIN
    },
    Scenario {
        name: "a task changes its group while it is pulled",
        cpus: 3,
        groups: &[Group { nested: false, max_us: None }, Group { nested: true, max_us: None }],
        members: &[Member { group: 1, ..FREE }; 5],
        prepare: two_run,
        parts: &[|actor| actor.move_to_group(2, 3, 1, 2), |actor| actor.sleep(1), |actor| actor.schedule(2)],
        moves: &[c"pulled"],
        ..PLAIN
    },
    Scenario {
        name: "a weight changes while the group's tasks are pulled and its weights are refreshed",
        cpus: 3,
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
        ..PLAIN
    },
    Scenario {
        name: "a throttled task changes its group",
        groups: &[
            Group { nested: false, max_us: Some((1_000, 10_000)) },
            Group { nested: false, max_us: None },
        ],
        members: &[Member { group: 1, ..FREE }; 3],
        prepare: throttled,
        parts: &[|actor| actor.move_to_group(0, 1, 1, 2), periods_pass, |actor| actor.wake(1, 2)],
        moves: &[c"unthrottled"],
        ..PLAIN
    },
    Scenario {
        name: "a vCPU is parked while tasks run and wait there, and are pulled",
        sides: &[Side::Guest],
        cpus: 3,
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
        ..PLAIN
    },
    Scenario {
        name: "a parked vCPU is given back while it is cleared and a task wakes up",
        sides: &[Side::Guest],
        cpus: 3,
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
        ..PLAIN
    },
    Scenario {
        name: "a vCPU goes offline while it is parked, and is given back",
        sides: &[Side::Guest],
        cpus: 3,
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
        ..PLAIN
    },
    Scenario {
        name: "the spare vCPU of a stack is banned while tasks run and wait there, and one wakes up",
        sides: &[Side::Guest],
        cpus: 3,
        stacked: true,
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
        ..PLAIN
    },
    Scenario {
        name: "a vCPU yields to a sibling that is pulled, while another thread wakes up",
        sides: &[Side::Host],
        members: &[vcpu(1), vcpu(2), vcpu(1), vcpu(1), FREE],
        prepare: two_run_and_two_wait,
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
        ..PLAIN
    },
    Scenario {
        name: "a vCPU yields to a sibling while a thread that preempts it wakes up",
        sides: &[Side::Host],
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
        ..PLAIN
    },
    Scenario {
        name: "a vCPU yields to a sibling that waits for another CPU, while a thread with an earlier deadline wakes up",
        sides: &[Side::Host],
        members: &[vcpu(1), vcpu(2), Member { only: Some(1), ..vcpu(1) }, Member { nice: -20, ..on(0) }],
        prepare: |actor| {
            two_of_them_run(actor, 2);
            actor.wake(1, 2);
            actor.set_allowed(1, 2, &[true, true]);
            actor.pass(MS / 10);
        },
        parts: &[|actor| actor.yield_to(0, 2), |actor| actor.wake(1, 3)],
        moves: &[c"yielded"],
        check: promises_are_kept,
        ..PLAIN
    },
    Scenario {
        name: "a vCPU that waits is interrupted while it is pulled, and its pCPU switches",
        sides: &[Side::Host],
        members: &[vcpu(1), vcpu(2), vcpu(1), vcpu(3), FREE],
        prepare: two_run_and_two_wait,
        parts: &[
            |actor| {
                actor.with(|policy| policy.interrupts(1, 2, None, DEVICE));
                actor.schedule(0);
                actor.pass(2 * MS);
                actor.schedule(0);
            },
            |actor| {
                actor.sleep(1);
                actor.with(|policy| policy.interrupts(1, 3, None, DEVICE));
                actor.schedule(1);
            },
            |actor| {
                actor.wake(0, 4);
                actor.schedule(0);
            },
        ],
        moves: &[c"io_events", c"boosted"],
        check: debts_are_credits,
        ..PLAIN
    },
    Scenario {
        name: "a vCPU is woken while a sibling is sent an IPI, and another one yields to that",
        sides: &[Side::Host],
        left_out: NOTHING,
        members: &[vcpu(1), vcpu(2), vcpu(1), vcpu(1), vcpu(2)],
        prepare: two_run_and_two_wait,
        parts: &[
            |actor| {
                actor.with(|policy| policy.interrupts(0, 2, Some(0), RESCHEDULE));
                actor.schedule(0);
            },
            |actor| {
                actor.wake(1, 4);
                actor.schedule(1);
            },
            |actor| actor.tick(0),
        ],
        moves: &[c"woken_fast"],
        check: debts_are_credits,
        ..PLAIN
    },
    Scenario {
        name: "a VM ends, and another one is made, while its vCPUs run and are pulled",
        sides: &[Side::Host],
        members: &[vcpu(1), vcpu(2), vcpu(1), vcpu(1), FREE],
        prepare: two_run_and_two_wait,
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
            |actor| {
                actor.sleep(1);
                actor.sleep(1);
            },
            |actor| actor.schedule(0),
        ],
        moves: &[c"pulled", c"vcpus_found"],
        check: promises_are_kept,
        ..PLAIN
    },
    Scenario {
        name: "vCPUs on two CPUs use up the quota of their VM, holding locks and not",
        sides: &[Side::Host],
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
        ..PLAIN
    },
];

/// A directed yield that was answered with yes had its way, and no vCPU is counted on a pCPU.
fn promises_are_kept(policy: &mut Policy) -> Result<(), String> {
    match (policy.counter(c"broken"), policy.left_of_vms()) {
        (Some(0), 0) => Ok(()),
        (broken, left) => Err(format!("{broken:?} promises broken, vCPUs of {left} VMs left on pCPUs")),
    }
}
