/* SPDX-License-Identifier: GPL-2.0-only */
/* What the scheduler's BPF side and its daemon share: one layout, read by both. */
#ifndef TANDEM_CORE_INTF_H
#define TANDEM_CORE_INTF_H

#include "../../policy/balance.h"
#include "../../policy/hweight.h"
#include "../../policy/quota.h"
#include "../../policy/work.h"
#include "counters.h"

/*
 * The records below have a part that only the side knows which stands on this core (bpf/guest): its intf.h defines struct
 * side_cpu, side_task, side_group and SIDE_COUNTERS, and includes this file then.
 */
#ifndef TANDEM_SIDE_INTF
#error "include the intf.h of a side, not that of the core"
#endif

/* Task classes, in the order in which they are served. */
enum task_class {
	CLASS_NONE = 0,		/* the CPU is idle */
	CLASS_BEST_EFFORT = 1,	/* SCHED_IDLE */
	CLASS_NORMAL = 2,
};

#define NR_QUEUE_CLASSES 2	/* best effort and normal have a clock each */

#define TANDEM_COUNTER(id, name, text) CNT_##id,

/* One event counter each; per CPU, monotonic. */
enum counter {
	CORE_COUNTERS(TANDEM_COUNTER)
	SIDE_COUNTERS(TANDEM_COUNTER)
	NR_COUNTERS,
};

/* Of the kernel, with the zero at its end. */
#define TASK_NAME_LEN 16

/* What a trace shows besides decisions, which have the numbers of their counters. */
enum trace_kind {
	TRACE_RUNS = 256,	/* a task begins to run */
	TRACE_STOPS,		/* it ends to */
	TRACE_ABSENT,		/* the host took the CPU; value: for how long, up to now (ns) */
};

/* One record of a trace. */
struct trace_record {
	u64 at_ns;		/* CLOCK_MONOTONIC; the scheduler's own clock stands still while it decides */
	u64 value;		/* of some decisions: ns, see where they are counted */
	u32 cpu;		/* where it was decided */
	u32 kind;		/* enum counter or enum trace_kind */
	s32 pid;		/* of the task concerned, or that runs there; 0: none */
	char comm[TASK_NAME_LEN];
};

/* Of the buffer between kernel and daemon. A power of two, and of whole pages. */
#define TRACE_BYTES (1 << 20)

/* Where a CPU is in the machine; numbers mean nothing but equality. */
struct cpu_domain {
	u32 llc;		/* CPUs that share a last-level cache */
	s32 core_next;		/* next in the ring of those that share its core; itself: it shares it with nobody */
	s32 stack_next;		/* next in the ring of those that share its hardware thread (stacked vCPUs) */
};

/* Most members of a ring that are looked at. */
#define MAX_RING 8

/* What a CPU sees of the others when it looks around (bpf/core/spread.bpf.h). */
struct surroundings {
	u64 own_load;		/* weight per capacity */
	u64 own_weight;
	u64 furthest;		/* pace of the CPU that is furthest ahead */
	u64 loads;		/* sum over the CPUs that are a measure for this one */
	u64 excess;		/* weight by which the heaviest is too heavy */
	u64 slow_excess;	/* the same, for the slowest of those that are too heavy */
	u64 slow_pace;
	u32 measures;		/* how many CPUs `loads` sums */
	u32 any_pace;
	s32 heaviest;
	s32 slowest;
};

/* Per CPU; read by all. */
struct cpu_state {
	/*
	 * What any CPU writes, on two cache lines of its own (struct cpu_slot): whoever queues a task here shall not take the
	 * line away from this CPU that its clock stands on.
	 */
	u64 weight[NR_QUEUE_CLASSES];	/* effective, of queued and running tasks (atomic, any CPU) */
	u64 queued_work;	/* theirs, policy/work.h (atomic, any CPU) */
	u64 hog_weight;		/* the part of weight[normal] that balancing counts (atomic, any CPU) */
	u32 tasks[NR_QUEUE_CLASSES];	/* how many these are (atomic, any CPU) */
	u32 hogs;		/* how many tasks that is (atomic, any CPU) */
	s32 give_to;		/* CPU that asked for a task; -1: none */
	u64 give_excess;	/* weight by which this CPU is heavier than give_to (this and the next three: written by others) */
	u64 give_behind;	/* virtual time by which its pace is behind that of give_to */
	u64 give_asked_ns;	/* when it was asked */
	u64 late_due_ns;	/* when the first of the late queue is due; 0: it is empty (any CPU) */
	u64 unused[6];

	/* What this CPU writes, except where noted. */
	u64 clock[NR_QUEUE_CLASSES];	/* V of each class */
	u64 base_request_ns;	/* of tasks here that ask for nothing themselves (the side's choice) */

	u64 curr_deadline;
	u64 curr_v;		/* up to curr_charged_at_ns */
	u64 curr_weight;
	u64 curr_since_ns;
	u64 curr_charged_at_ns;	/* V is exact up to here; 0: nobody runs */
	u64 curr_burst_ns;	/* run time of the current task since it last slept */
	u64 idle_floor_at_ns;
	u64 overdue_at_ns;	/* when those were last looked for who have waited for long */
	u64 leavers_at_ns;	/* when it was last looked for CPUs that are about to go */
	u64 late_weight;	/* weight on whose account the last of them was put there */
	u64 run_until_ns;	/* when the current task's turn ends; 0: nothing depends on it */
	u64 timer_at_ns;	/* for when the slice timer is armed; 0: it is not */
	u64 turn_due_ns;	/* when the turn was to end that the timer has just ended; 0: it did not */
	u64 timer_late_ns;	/* from the timer to the end of the turn, on average */
	u64 balanced_at_ns;
	/* Fairness across CPUs, policy/balance.h. */
	u64 pace;		/* virtual time, comparable between CPUs that are busy at the same time */
	u64 pace_known;		/* 0: it has been without normal tasks since it was last compared */
	u64 seen_excess;	/* weight by which another CPU was heavier at the last look; 0: none was */
	u64 pull_excess;	/* weight by which pull_from is heavier than this CPU */
	s32 pull_from;		/* CPU whose waiting tasks this one shall take over; -1: none */
	struct surroundings look;
	u64 lightest[2];	/* least weight whose turn ended: since the last look, and between the two before */
	u64 last_weight;	/* of the task whose turn ended last */
	s64 last_owed;		/* and what it was owed */
	u32 unthrottle_limit;	/* a task of this limited group has just stopped: the next may come; 0: none */
	u32 throttled_limit;	/* on this CPU a task was put into this group's throttled queue, where it may not be yet; 0: none */
	u32 curr_class;		/* enum task_class */
	u32 tickless;		/* nohz_full: no tick while a single task runs that has no end of its turn (written by the daemon) */
	u32 endless;		/* such a task runs */
	u32 online;
	u32 left;		/* it went while the scheduler was loaded, and is counted in nr_offline */
	s32 curr_pid;
	/*
	 * Of a loop over a queue that runs on this CPU: how many it has had,
	 * and where the one at hand goes. Values in maps are all the same to
	 * the verifier; as local variables they would make each round a new one.
	 */
	u32 looked;
	u32 let_go;		/* the same of a loop that a timer may run, which a tick interrupts */
	u32 stayed;		/* in such a loop */
	u32 look_from;		/* where the next look at other CPUs begins (bpf/core/look.bpf.h) */
	u64 move_slice_ns;
	u64 move_key;
	u64 move_queue;
	u64 move_stake;
	u64 counters[NR_COUNTERS];
	struct side_cpu side;
};

#define TANDEM_CACHE_LINE 64

/* As it lies in the map, whose values begin on a page. */
struct cpu_slot {
	struct cpu_state state;
	u8 unused[TANDEM_CACHE_LINE - sizeof(struct cpu_state) % TANDEM_CACHE_LINE];
};

/* Most cgroups that have a record of their own; further ones share their parent's. */
#define MAX_GROUPS 16384
/* Sums of a group's load that several CPUs share, if there are more of them than this. */
#define MAX_LOAD_CELLS 8
#define NR_GROUP_WORDS (MAX_GROUPS / 64)
/* No cgroup lies deeper: its path would be longer than the kernel's PATH_MAX of 4096. */
#define MAX_DEPTH 2048

/*
 * A cgroup with the cpu controller; number 0 is the root. The first fields
 * are read whenever a task of the group is queued, and seldom written.
 */
struct group_state {
	u64 scale;		/* policy/hweight.h */
	u64 weight;		/* load weight among its siblings */
	u32 parent;
	u32 active;		/* had runnable tasks of late, itself or below */
	u32 own_idle;		/* cpu.idle */
	u32 idle;		/* the same, or inherited */
	struct side_group side;
	u64 limit;		/* nearest group with a quota, itself or above (0: none), and in the upper half the generation of that */
	u64 id;			/* of the cgroup */
	u64 quota_ns;		/* per period; 0: no limit */
	u64 period_ns;
	u64 burst_ns;

	s64 pool_ns;		/* policy/quota.h (atomic, any CPU) */
	u64 period_start_ns;
	u32 running;		/* CPUs on which its tasks run (atomic, any CPU) */
	u32 admitted;		/* tasks let go on from its throttled queue that have not had their turn (atomic, any CPU) */
	u32 sharers;		/* cgroups that share this record for want of their own */
	u64 own_weight_sum;	/* of its runnable tasks, as of the last refresh */
	u64 child_weight;	/* of its active child groups, as of the last refresh */
	u64 active_at_ns;
	u64 throttled_ns;	/* time for which tasks waited for quota, summed */
};

#endif
