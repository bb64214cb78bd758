/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Work queued on a CPU: how long the tasks that run or wait there delay a task that joins them.
 *
 * Tasks share a CPU in slices. Beside a task that needs w until it sleeps, a task that needs w_i gets min(w_i, w) of
 * the CPU before both are done. One sum cannot express that for every w, but two sums bound it: one slice of each
 * task, which is exact for a joining task that needs no more than a slice, and the whole burst of each task.
 */
#ifndef TANDEM_POLICY_WORK_H
#define TANDEM_POLICY_WORK_H

#include "eevdf.h"

/* Run time between two sleeps is not tracked beyond this: such a task is CPU-bound. */
#define TANDEM_BURST_MAX_NS (32 * NSEC_PER_MSEC_)

/*
 * Both sums, in microseconds, are in one word, so that one atomic addition books a task. They hold up to 1e5
 * tasks per CPU.
 */
#define TANDEM_BOOKED_RUNS_SHIFT 32

/* What a task with this burst (run time between two sleeps) adds: 47 bits at most. Both sums grow with the burst. */
POLICY u64 booked_work(u64 burst_ns)
{
	u64 turn_us = min_u64(burst_ns, TANDEM_TICK_NS) / NSEC_PER_USEC_;
	u64 run_us = min_u64(burst_ns, TANDEM_BURST_MAX_NS) / NSEC_PER_USEC_;

	return run_us << TANDEM_BOOKED_RUNS_SHIFT | turn_us;
}

/* One slice of each task. */
POLICY u64 booked_slices_ns(u64 booked)
{
	return (u32)booked * NSEC_PER_USEC_;
}

/* The whole burst of each task. */
POLICY u64 booked_runs_ns(u64 booked)
{
	return (booked >> TANDEM_BOOKED_RUNS_SHIFT) * NSEC_PER_USEC_;
}

/* How long the booked tasks delay the completion of a task that needs `work_ns`. */
POLICY u64 delayed_others_ns(u64 booked, u64 work_ns)
{
	u64 slices_ns = booked_slices_ns(booked);

	if (work_ns <= TANDEM_TICK_NS)
		return slices_ns;
	work_ns = min_u64(work_ns, TANDEM_BURST_MAX_NS);
	return min_u64(booked_runs_ns(booked), slices_ns / NSEC_PER_USEC_ * work_ns / (TANDEM_TICK_NS / NSEC_PER_USEC_));
}

/*
 * How long the task delays the tasks queued ahead, summed over them. Each loses the slices that this task takes
 * before it is done, min(w_i, w), and n tasks lose no more than n times w. `waits_for_ns`: delayed_others_ns().
 */
POLICY u64 delays_others_ns(u64 waits_for_ns, u32 nr_tasks, u64 work_ns)
{
	return min_u64(waits_for_ns, min_u64(work_ns, TANDEM_BURST_MAX_NS) * nr_tasks);
}

#endif
