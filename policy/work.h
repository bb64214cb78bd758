/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Work that is to be done on a CPU: what those who run or wait there hold up
 * somebody who joins them for.
 *
 * Tasks take turns. Beside a task that needs w until it sleeps again, one that
 * needs w_i gets min(w_i, w) of the CPU before both are through. One sum cannot
 * say that for every w; two can bound it: of one turn of each, which is exact for
 * who needs no more than a turn, and of what each needs in all.
 */
#ifndef TANDEM_POLICY_WORK_H
#define TANDEM_POLICY_WORK_H

#include "eevdf.h"

/* Run time between sleeps is not followed beyond this: such a task is a hog. */
#define TANDEM_BURST_MAX_NS (32 * NSEC_PER_MSEC_)

/* Both sums, in microseconds, in one word, so that one atomic addition books a task: up to 1e5 tasks on a CPU. */
#define TANDEM_BOOKED_RUNS_SHIFT 32

/* What a task adds that runs for so long between two sleeps. Fewer than 47 bits; more for a longer run, in both sums. */
POLICY u64 booked_work(u64 burst_ns)
{
	u64 turn_us = min_u64(burst_ns, TANDEM_TICK_NS) / NSEC_PER_USEC_;
	u64 run_us = min_u64(burst_ns, TANDEM_BURST_MAX_NS) / NSEC_PER_USEC_;

	return run_us << TANDEM_BOOKED_RUNS_SHIFT | turn_us;
}

/* One turn of each. */
POLICY u64 booked_turns_ns(u64 booked)
{
	return (u32)booked * NSEC_PER_USEC_;
}

/* What each needs until it sleeps. */
POLICY u64 booked_runs_ns(u64 booked)
{
	return (booked >> TANDEM_BOOKED_RUNS_SHIFT) * NSEC_PER_USEC_;
}

/* How long those booked keep a task from being done that needs `work_ns`. */
POLICY u64 held_up_ns(u64 booked, u64 work_ns)
{
	u64 turns_ns = booked_turns_ns(booked);

	if (work_ns <= TANDEM_TICK_NS)
		return turns_ns;
	work_ns = min_u64(work_ns, TANDEM_BURST_MAX_NS);
	return min_u64(booked_runs_ns(booked), turns_ns / NSEC_PER_USEC_ * work_ns / (TANDEM_TICK_NS / NSEC_PER_USEC_));
}

/*
 * How long the task keeps those from being done, in all: beside it each of them loses what it takes in turn from this one,
 * min(w_i, w), and n of them no more than n times w. `waits_for_ns`: held_up_ns().
 */
POLICY u64 holds_up_ns(u64 waits_for_ns, u32 nr_tasks, u64 work_ns)
{
	return min_u64(waits_for_ns, min_u64(work_ns, TANDEM_BURST_MAX_NS) * nr_tasks);
}

#endif
