/* SPDX-License-Identifier: GPL-2.0-only */
/* A trace, as the scheduler writes it and the daemon reads it. */
#ifndef TANDEM_CORE_TRACE_H
#define TANDEM_CORE_TRACE_H

#include "../../policy/base.h"

/* The kernel's TASK_COMM_LEN, which includes the terminating zero. */
#define TASK_NAME_LEN 16

/* What a trace shows besides decisions. Decisions have the numbers of their counters. */
enum trace_kind {
	TRACE_RUNS = 256,	/* a task begins to run */
	TRACE_STOPS,		/* it stops running */
	TRACE_PREEMPTED,	/* the host had preempted the CPU; value: for how long, up to now (ns) */
};

/* One record of a trace. */
struct trace_record {
	u64 at_ns;		/* CLOCK_MONOTONIC; k_now() stands still during a callback */
	u64 value;		/* of some decisions, in ns: see where they are counted */
	u32 cpu;		/* where it was decided */
	u32 kind;		/* enum counter or enum trace_kind */
	s32 pid;		/* of the task concerned, or of the one that runs there; 0: none */
	char comm[TASK_NAME_LEN];
};

/* Size of the ring buffer between kernel and daemon: a power of two, and whole pages. */
#define TRACE_BYTES (1 << 20)

#endif
