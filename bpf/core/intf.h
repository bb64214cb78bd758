/* SPDX-License-Identifier: GPL-2.0-only */
/* Data that the scheduler's BPF programs and its daemon share: one layout for both. */
#ifndef TANDEM_CORE_INTF_H
#define TANDEM_CORE_INTF_H

#include "../../policy/balance.h"
#include "../../policy/distance.h"
#include "../../policy/hweight.h"
#include "../../policy/quota.h"
#include "../../policy/work.h"
#include "counters.h"
#include "trace.h"

/*
 * The records below have a part that belongs to the side that is built on this core (bpf/guest). Its intf.h
 * defines struct side_cpu, side_task, side_group and SIDE_COUNTERS, and then includes this file.
 */
#ifndef TANDEM_SIDE_INTF
#error "include the intf.h of a side, not that of the core"
#endif

/* Task classes, in ascending priority. */
enum task_class {
	CLASS_NONE = 0,		/* the CPU is idle */
	CLASS_BEST_EFFORT = 1,	/* SCHED_IDLE */
	CLASS_NORMAL = 2,
};

/* What a CPU without work walks over the CPUs with waiting tasks for. */
enum walk {
	WALK_NEAR,		/* a normal task that waits in the same last-level cache */
	WALK_FAR,		/* one that waits in another one */
	WALK_BEST_EFFORT,
	NR_WALKS,
};

#define NR_QUEUE_CLASSES 2	/* best-effort (SCHED_IDLE) and normal tasks have a V each */

#define TANDEM_COUNTER(id, name, text) CNT_##id,

/* Event counters; per CPU, monotonic. */
enum counter {
	CORE_COUNTERS(TANDEM_COUNTER)
	SIDE_COUNTERS(TANDEM_COUNTER)
	NR_COUNTERS,
};

/* Where a CPU is in the topology. */
struct cpu_domain {
	u32 llc;		/* the same for CPUs that share a last-level cache; has no other meaning */
	s32 core_next;		/* next in the ring of CPUs that share its core; itself: it shares it with none */
	s32 stack_next;		/* next in the ring of CPUs on its hardware thread (stacked vCPUs) */
	s32 llc_next;		/* next in the ring of CPUs that share its last-level cache (hosts) */
};

/* Most members of a ring that are visited. */
#define MAX_RING 8

/* What a CPU finds out about the others when it scans them for load balance (bpf/core/spread.bpf.h). */
struct surroundings {
	u64 own_load;		/* weight per capacity */
	u64 own_weight;
	u64 furthest;		/* global virtual time of the CPU that is furthest ahead */
	u64 loads;		/* sum over the CPUs that this one compares itself with */
	u64 excess;		/* weight by which `heaviest` is too heavy */
	u64 slow_excess;	/* weight by which `slowest` is too heavy, which has the least global virtual time of those that are */
	u64 slow_vtime;
	u64 longest_ns;		/* longest request of any CPU-bound task on them, or on this one */
	u32 measures;		/* number of CPUs in `loads` */
	u32 any_vtime;
	s32 heaviest;
	s32 slowest;
};

/* One per CPU; read by all. */
struct cpu_state {
	/*
	 * Written by any CPU, on two cache lines of its own (struct cpu_slot): a CPU that queues a task here
	 * must not take away the lines that only this CPU writes.
	 */
	u64 weight[NR_QUEUE_CLASSES];	/* effective weight of queued and running tasks (atomic, any CPU) */
	u64 queued_work;	/* their work, policy/work.h (atomic, any CPU) */
	u64 cpu_bound_weight;		/* the part of weight[normal] that load balance counts (atomic, any CPU) */
	u32 tasks[NR_QUEUE_CLASSES];	/* number of tasks in `weight` (atomic, any CPU) */
	u32 cpu_bound_tasks;		/* number of CPU-bound tasks, those in cpu_bound_weight (atomic, any CPU) */
	s32 give_to;		/* CPU that asked for a task; -1: none */
	u64 give_excess;	/* excess weight over give_to (this and the next two: set by the CPU that asks) */
	u64 give_behind;	/* by which its global virtual time is behind that of give_to */
	u64 give_asked_ns;	/* when it was asked */
	u64 late_due_ns;	/* when the first task of the late queue is due; 0: it is empty (any CPU) */
	u64 clock[NR_QUEUE_CLASSES];	/* V of each class (atomic: any CPU moves it when a task with a lag joins or leaves) */
	u64 longest_ns;		/* longest request, or bound of a deadline, since the queues were empty (any CPU) */
	u64 unused[3];

	/* Written by this CPU, except where noted. */
	u64 base_request_ns;	/* of tasks here that do not ask for a slice themselves (set by the side) */

	u64 curr_deadline;
	u64 curr_end_v;		/* v at the end of its request */
	u64 curr_base_ns;	/* bound of its deadline */
	u64 curr_v;		/* up to curr_charged_at_ns */
	u64 curr_weight;
	u64 curr_since_ns;
	u64 curr_charged_at_ns;	/* V is charged up to here; 0: no task runs */
	u64 curr_burst_ns;	/* run time of the current task since it last slept */
	u64 idle_floor_at_ns;
	u64 overdue_at_ns;	/* last search for tasks that have waited for too long */
	u64 offline_scan_at_ns;	/* last check for CPUs that are about to go offline */
	u64 late_weight;	/* queue weight because of which the last task was put into the late queue */
	u64 run_until_ns;	/* when the current task's slice ends; 0: that does not matter */
	u64 timer_at_ns;	/* when the armed slice timer fires; 0: not armed */
	u64 slice_due_ns;	/* planned end of the slice that the timer has just ended; 0: it ended none */
	u64 timer_late_ns;	/* from the timer to the end of the slice, on average */
	u64 balanced_at_ns;
	u64 light_ns;		/* run time of light tasks since then */
	u32 light_share;	/* the part of the CPU's time that they take, of TANDEM_LIGHT_ALL (policy/balance.h) */
	u32 curr_cpu_bound;	/* the current task is one of cpu_bound_tasks, as of its last charge */
	/* Fairness across CPUs, policy/balance.h. */
	u64 vtime;		/* global virtual time: comparable between CPUs that are busy at the same time */
	u64 vtime_known;		/* 0: no CPU-bound tasks when it was last compared */
	u64 seen_excess;	/* weight by which another CPU was heavier in the last scan; 0: none was */
	u64 pull_excess;	/* weight by which pull_from is heavier than this CPU */
	s32 pull_from;		/* CPU from which this one pulls waiting tasks; -1: none */
	struct surroundings look;
	u64 longest_cpu_bound_ns[2];	/* longest request of a CPU-bound task that ended: in this window; in the one before */
	u64 window_since_ns;
	u64 lightest[2];	/* least weight whose slice ended: since the last scan; between the two before */
	u64 last_weight;	/* of the task whose slice ended last */
	s64 last_owed;		/* and what it was owed */
	u32 unthrottle_limit;	/* a task of this group with a quota has just stopped: unthrottle the next; 0: none */
	u32 throttled_limit;	/* group whose throttled queue got a task from here, maybe not there yet; 0: none */
	u32 curr_class;		/* enum task_class */
	u32 tickless;		/* nohz_full: no tick while a lone task has no slice end (written by the daemon) */
	u32 endless;		/* such a task runs */
	u32 curr_bounded;	/* task_state.bounded */
	u32 online;		/* (any CPU) */
	u32 left;		/* went offline while the scheduler was loaded, counted in nr_offline (any CPU) */
	s32 curr_pid;
	/*
	 * Scratch space for a loop over a queue on this CPU: how many tasks it has visited, and where the
	 * current one goes. The verifier does not track values in maps; as local variables they would make each
	 * iteration a new state.
	 */
	u32 scanned;
	u32 let_go;		/* the same of unthrottle(), which a timer may run and a tick may interrupt */
	u32 stayed;		/* tasks that stay throttled in that loop */
	u32 scan_from;		/* where the next scan of other CPUs begins (bpf/core/look.bpf.h) */
	u32 walk_at[NR_WALKS];	/* CPU plus 1 at which its last walk of that kind ended without success; 0: it saw all */
	u64 move_slice_ns;
	u64 move_key;
	u64 move_queue;
	u64 move_stake;
	u64 counters[NR_COUNTERS];
	struct side_cpu side;
};

#define TANDEM_CACHE_LINE 64

/* Layout in the map, whose values begin on a page. */
struct cpu_slot {
	struct cpu_state state;
	u8 unused[TANDEM_CACHE_LINE - sizeof(struct cpu_state) % TANDEM_CACHE_LINE];
};

/* Most cgroups that have a record of their own; further ones share their parent's. */
#define MAX_GROUPS 16384
/* Cells of a group's load. With more CPUs than this several share a cell. */
#define MAX_LOAD_CELLS 8
#define NR_GROUP_WORDS (MAX_GROUPS / 64)
/* No cgroup is deeper: its path would be longer than the kernel's PATH_MAX of 4096. */
#define MAX_DEPTH 2048

/*
 * A cgroup with the cpu controller; number 0 is the root. The first fields are read whenever a task of the
 * group is queued, and seldom written.
 */
struct group_state {
	u64 scale;		/* policy/hweight.h */
	u64 weight;		/* load weight among its siblings */
	u32 parent;
	u32 active;		/* had runnable tasks recently, itself or below */
	u32 own_idle;		/* cpu.idle */
	u32 idle;		/* cpu.idle, its own or inherited */
	struct side_group side;
	u64 limit;		/* nearest group with a quota, itself or above (0: none) | limits_generation << 32 */
	u64 id;			/* of the cgroup */
	u64 quota_ns;		/* per period; 0: no limit */
	u64 period_ns;
	u64 burst_ns;

	s64 pool_ns;		/* policy/quota.h (atomic, any CPU) */
	u64 period_start_ns;
	u32 lent;		/* in this period a task went on without quota that has to stop if that lasts (side_debt_ns()) */
	u32 lends_none;		/* the current period's quota did not pay what came of that */
	u32 running;		/* CPUs on which its tasks run (atomic, any CPU) */
	u32 admitted;		/* unthrottled tasks that have not had their slice yet (atomic, any CPU) */
	u32 sharers;		/* cgroups that share this record because none was left */
	u64 own_weight_sum;	/* of its runnable tasks, as of the last refresh */
	u64 child_weight;	/* of its active child groups, as of the last refresh */
	u64 own_cpu_bound;	/* the same of its CPU-bound tasks */
	u64 child_cpu_bound;	/* and of its child groups that have some, themselves or below */
	s64 unpaid_ns;		/* CPU time of light tasks that its CPU-bound ones have to pay for (atomic, any CPU) */
	u64 passed_down;	/* what each child with CPU-bound tasks gets of it: passed_down() (policy/hweight.h) */
	u64 count_all_until_ns;	/* until then its light tasks share its weight, and nobody pays for them */
	u32 payer;		/* the group that pays for its light tasks: itself, one above, or 0: none */
	u32 has_cpu_bound;	/* it has CPU-bound tasks, itself or below, as of the last refresh */
	u32 has_rivals;		/* and so have others that it shares its parent's weight with, or its parent has rivals */
	u32 counted_above;	/* its weight is in its parent's child_cpu_bound */
	u64 active_at_ns;
	u64 throttled_ns;	/* time for which its tasks were throttled, summed */
};

#endif
