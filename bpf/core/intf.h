/* SPDX-License-Identifier: GPL-2.0-only */
/* What the scheduler's BPF side and its daemon share: one layout, read by both. */
#ifndef TANDEM_CORE_INTF_H
#define TANDEM_CORE_INTF_H

#include "../../policy/balance.h"
#include "../../policy/dedicate.h"
#include "../../policy/harvest.h"
#include "../../policy/hweight.h"
#include "../../policy/place.h"
#include "../../policy/quota.h"
#include "../../policy/rwc.h"

/* Task classes, in the order in which they are served. */
enum task_class {
	CLASS_NONE = 0,		/* the CPU is idle */
	CLASS_BEST_EFFORT = 1,	/* SCHED_IDLE */
	CLASS_NORMAL = 2,
};

#define NR_QUEUE_CLASSES 2	/* best effort and normal have a clock each */

/* One event counter each; per CPU, monotonic. */
enum counter {
	CNT_DIRECT,		/* woken straight onto an idle vCPU */
	CNT_QUEUED,		/* put into a vCPU's queue */
	CNT_KEPT,		/* went on after its request, still first by deadline */
	CNT_REGRANTED,		/* got back a slice that the host had stolen */
	CNT_PULLED,		/* taken from another vCPU's queue */
	CNT_RESCUED,		/* of these: from a vCPU that the host had preempted */
	CNT_PUSHED,		/* running task moved to a stronger vCPU */
	CNT_PREEMPTED,		/* wake-up preemptions */
	CNT_STEERED,		/* wake-ups sent to another vCPU than the previous one by cost */
	CNT_DECLINED,		/* idle vCPU left a waiting task where it was served sooner */
	CNT_DROPS,		/* sudden losses of share that made other estimates old */
	CNT_FLOOR,		/* best-effort slices given only to keep the watchdog quiet */
	CNT_ORPHANS,		/* tasks taken from the queue of an offline vCPU */
	CNT_DUE,		/* light tasks served by the clock on the wall, before their deadline */
	CNT_PARKED,		/* tasks that had to wait for their group's quota */
	CNT_UNPARKED,		/* tasks that came back from there */
	CNT_ON_DEBT,		/* of these: without quota, only to keep the watchdog quiet */
	CNT_GIVEN,		/* tasks handed to a lighter CPU, for fairness across CPUs */
	CNT_EVENED,		/* waiting tasks taken over from a heavier CPU */
	CNT_TIMERS,		/* slice timers armed */
	CNT_FAR,		/* waiting tasks taken across last-level caches */
	CNT_FORESEEN,		/* vCPUs called because another would soon be taken */
	CNT_HARVESTED,		/* running tasks that left before their vCPU was taken */
	CNT_HARVESTED_US,	/* what these gained by it, as foreseen (us) */
	CNT_ABANDONED,		/* moves given up because nobody answered, or nothing was to be gained */
	CNT_TAKEN_BACK,		/* tasks that were not fetched in time */
	CNT_CAUGHT,		/* CPU-bound tasks whose vCPU was taken although its rhythm is known */
	CNT_STRAGGLERS,		/* vCPUs found to get about a tenth of what others get */
	CNT_EVICTED,		/* tasks sent away from a vCPU that is left without work */
	CNT_HELD,		/* best-effort work interrupted because another vCPU of its stack got normal work */
	CNT_HINTED,		/* wake-ups of tasks that shall answer soon by the user's word */
	CNT_LEASES,		/* threads that were given a vCPU of their own */
	NR_COUNTERS,
};

/* Of the kernel, with the zero at its end; and how many of them may be hinted at, cgroups likewise. */
#define TASK_NAME_LEN 16
#define MAX_HINTS 64

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

/* What a CPU counts when it reviews who is banned. */
struct review {
	u64 shares;		/* of the vCPUs that are measured, summed */
	u32 counted;
	u32 idle;		/* vCPUs in use that have nothing to do */
	u32 banned;
	u32 usable;
};

/* Per CPU: written by its own CPU, except where noted; read by all. */
struct cpu_state {
	struct vcpu_model model;
	struct vcpu_phase phase;

	u64 seen_at_ns;		/* last observation of time and steal */
	u64 seen_steal_ns;
	u64 seen_returns;
	u64 wanted_ns;		/* time for which it had work, steal included, since the scheduler was loaded */
	u64 stolen_ns;		/* steal in that time */
	u64 seen_inactive_ns;	/* when another CPU first found it inactive; 0: active (written by others) */
	u64 look_due_ns;	/* when the look that comes next was to come; 0: at no certain time */
	u64 tick_at_ns;		/* last tick of a busy CPU */

	u64 clock[NR_QUEUE_CLASSES];	/* V of each class */
	u64 weight[NR_QUEUE_CLASSES];	/* effective, of queued and running tasks (atomic, any CPU) */
	u32 tasks[NR_QUEUE_CLASSES];	/* how many these are (atomic, any CPU) */
	u64 queued_work;	/* theirs, policy/work.h (atomic, any CPU) */

	u64 curr_deadline;
	u64 curr_v;		/* up to curr_charged_at_ns */
	u64 curr_weight;
	u64 curr_since_ns;
	u64 curr_charged_at_ns;	/* V is exact up to here; 0: nobody runs */
	u64 curr_burst_ns;	/* run time of the current task since it last slept */
	u64 idle_floor_at_ns;
	u64 late_due_ns;	/* when the first of the late queue is due; 0: it is empty (any CPU) */
	u64 overdue_at_ns;	/* when those were last looked for who have waited for long */
	u64 leavers_at_ns;	/* when it was last looked for CPUs that are about to go */
	u64 late_weight;	/* weight on whose account the last of them was put there */
	u64 run_until_ns;	/* when the current task's turn ends; 0: nothing depends on it */
	u64 timer_at_ns;	/* for when the slice timer is armed; 0: it is not */
	u64 turn_due_ns;	/* when the turn was to end that the timer has just ended; 0: it did not */
	u64 timer_late_ns;	/* from the timer to the end of the turn, on average */
	u64 balanced_at_ns;
	u64 hog_weight;		/* the part of weight[normal] that balancing counts (atomic, any CPU) */
	u32 hogs;		/* how many tasks that is (atomic, any CPU) */
	/* Fairness across CPUs, policy/balance.h. */
	u64 pace;		/* virtual time, comparable between CPUs that are busy at the same time */
	u64 pace_known;		/* 0: it has been without normal tasks since it was last compared */
	u64 seen_excess;	/* weight by which another CPU was heavier at the last look; 0: none was */
	u64 pull_excess;	/* weight by which pull_from is heavier than this CPU */
	u64 give_excess;	/* weight by which this CPU is heavier than give_to (this and the next three: written by others) */
	u64 give_behind;	/* virtual time by which its pace is behind that of give_to */
	u64 give_asked_ns;	/* when it was asked */
	s32 give_to;		/* CPU that asked for a task; -1: none */
	s32 pull_from;		/* CPU whose waiting tasks this one shall take over; -1: none */
	struct surroundings look;
	u64 lightest[2];	/* least weight whose turn ended: since the last look, and between the two before */
	u64 last_weight;	/* of the task whose turn ended last */
	s64 last_owed;		/* and what it was owed */
	u32 unpark_limit;	/* a task of this limited group has just stopped: the next may come; 0: none */
	u32 parked_limit;	/* on this CPU a task was put into this group's backlog, where it may not be yet; 0: none */
	u32 curr_class;		/* enum task_class */
	u32 tickless;		/* nohz_full: no tick while a single task runs that has no end of its turn (written by the daemon) */
	u32 endless;		/* such a task runs */
	u32 online;
	u32 left;		/* it went while the scheduler was loaded, and is counted in nr_offline */
	u32 bans;		/* TANDEM_BAN_* (written by any CPU) */
	u32 speed;		/* of its core, parts of TANDEM_SCALE of the fastest; 0: as fast (written by the daemon) */
	u32 parked;		/* taken out of use by whom (TANDEM_PARKED_BY_*, written by the daemon) */
	u64 parked_at_ns;	/* when (likewise) */
	u64 emptied_ns;		/* so long after that nobody was left; 0: somebody is */
	s32 owner_pid;		/* policy/dedicate.h; 0: nobody (atomic, any CPU) */
	u64 owner_seen_ns;	/* when its owner last had a turn */
	struct review review;
	u32 straggles;		/* it is a straggler by its share, banned or not */
	u32 held_up;		/* how often others are idle beside its work: parts of TANDEM_SCALE */
	u32 trials_failed;	/* in a row: it was let back, and others waited for it */
	u64 straggles_at_ns;	/* when it became a straggler, or ceased to be one */
	u64 banned_at_ns;	/* when its ban as one began, or ended */
	u64 held_up_at_ns;	/* when that was last looked at */
	/* Harvesting, policy/harvest.h: this CPU as the one that is left, */
	u64 harvest_at_ns;	/* for when its timer is armed */
	u64 departs_at_ns;	/* since when a task is being switched out in order to leave; 0: none is */
	u64 harvest_began_ns;	/* when that was foreseen */
	u64 harvest_ask_at_ns;	/* nobody was worth it: not asked again until then */
	u64 harvest_end_ns;	/* when it will be taken */
	u64 harvest_fired_ns;	/* when its timer fired last */
	u64 harvest_late_ns;	/* how late that is, on average */
	u64 harvest_latency_ns;	/* from then until the task has left, on average */
	u64 harvest_cost_ns;	/* from when a target was there until the task ran on it, on average; 0: not known */
	u64 harvest_early_ns;	/* how much earlier to leave than that */
	u64 harvest_gain_ns;	/* by leaving for harvest_to */
	u32 harvest_stage;	/* enum harvest_stage (any CPU) */
	u32 harvest_risk;	/* how often leaving failed, on average: parts of TANDEM_SCALE */
	u32 harvest_tries;
	u32 harvest_vain;	/* times in a row at which nobody was there for its task */
	s32 harvest_to;		/* -1: nobody is called */
	s32 harvest_learn;	/* whose rhythm is to be learned by going there; -1: nobody's */
	s32 harvest_pid;	/* the task that is to leave */
	s32 curr_pid;
	/* and as the one that is called. */
	u64 claim;		/* until when, and by whom: claim_of() (atomic, any CPU) */
	s32 awaited_pid;	/* who is on its way here */
	u64 learned_at_ns;	/* when somebody was sent here last for learning the rhythm; 0: never */
	u64 called_at_ns;
	u64 answered_at_ns;	/* when it was awake after it was called */
	u64 reserved_until_ns;	/* nobody else takes what waits here before */
	/*
	 * Of a loop over a queue that runs on this CPU: how many it has had,
	 * and where the one at hand goes. Values in maps are all the same to
	 * the verifier; as local variables they would make each round a new one.
	 */
	u32 looked;
	u32 stayed;
	u64 move_slice_ns;
	u64 move_key;
	u64 move_queue;
	u64 move_stake;
	u64 counters[NR_COUNTERS];
};

/* Most cgroups that have a record of their own; further ones share their parent's. */
#define MAX_GROUPS 16384
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
	u32 hinted;		/* its tasks shall answer soon by the user's word, itself or above */
	u64 limit;		/* nearest group with a quota, itself or above (0: none), and in the upper half the generation of that */
	u64 id;			/* of the cgroup */
	u64 quota_ns;		/* per period; 0: no limit */
	u64 period_ns;
	u64 burst_ns;

	s64 pool_ns;		/* policy/quota.h (atomic, any CPU) */
	u64 period_start_ns;
	u32 running;		/* CPUs on which its tasks run (atomic, any CPU) */
	u32 admitted;		/* tasks let go on from its backlog that have not had their turn (atomic, any CPU) */
	u32 sharers;		/* cgroups that share this record for want of their own */
	u64 own_weight_sum;	/* of its runnable tasks, as of the last refresh */
	u64 child_weight;	/* of its active child groups, as of the last refresh */
	u64 active_at_ns;
	u64 throttled_ns;	/* time for which tasks waited for quota, summed */
};

#endif
