/* SPDX-License-Identifier: GPL-2.0-only */
/* What the guest scheduler's BPF side and its daemon share: one layout, read by both. */
#ifndef TANDEM_GUEST_INTF_H
#define TANDEM_GUEST_INTF_H

#include "../../policy/place.h"

/* Task classes, in the order in which they are served. */
enum task_class {
	CLASS_NONE = 0,		/* the CPU is idle */
	CLASS_BEST_EFFORT = 1,	/* SCHED_IDLE */
	CLASS_NORMAL = 2,
};

#define NR_QUEUE_CLASSES 2	/* best effort and normal have a queue each */

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
	NR_COUNTERS,
};

/* Per vCPU: written by its own CPU, except where noted; read by all. */
struct cpu_state {
	struct vcpu_model model;

	u64 seen_at_ns;		/* last observation of time and steal */
	u64 seen_steal_ns;
	u64 seen_inactive_ns;	/* when another CPU first found it inactive; 0: active (written by others) */

	u64 clock[NR_QUEUE_CLASSES];	/* V of each class */
	u64 weight[NR_QUEUE_CLASSES];	/* of queued and running tasks (atomic, any CPU) */
	u64 queued_work_ns;	/* sum of their mean run times (atomic, any CPU) */

	u64 curr_deadline;
	u64 curr_since_ns;
	u64 curr_burst_ns;	/* run time of the current task since it last slept */
	u64 idle_floor_at_ns;
	u32 curr_class;		/* enum task_class */
	u32 online;
	u64 counters[NR_COUNTERS];
};

/* Fault injection for tests of the way out; off unless asked for. */
enum fault {
	FAULT_NONE = 0,
	FAULT_STALL = 1,	/* lose tasks whose command name is "tandem-fault" */
	FAULT_ERROR = 2,	/* raise a scheduler error when such a task is queued */
};

#endif
