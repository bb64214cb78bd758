/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtual deadlines, after EEVDF (Stoica and Abdel-Wahab, 1995).
 *
 * Every queue has a virtual time V that advances by service / total weight.
 * A task's virtual runtime v advances by service / its weight; lag = V - v is
 * what the task is owed (in nanoseconds at nice 0). A task asks for a request
 * r of CPU time and gets the deadline v + r / weight; the earliest deadline
 * runs. Lag, never v, is what a task carries from one queue to another: two
 * queues have two clocks.
 *
 * Not here: the eligibility test of EEVDF (v <= V at the pick). Without it the
 * long-run shares are the same; a heavy task may run its turns in a burst.
 */
#ifndef TANDEM_POLICY_EEVDF_H
#define TANDEM_POLICY_EEVDF_H

#include "base.h"

#define TANDEM_WEIGHT_NICE_0 1024U
/* Weight among SCHED_IDLE tasks only; they have a queue of their own. */
#define TANDEM_WEIGHT_IDLE 3U
#define TANDEM_REQUEST_NS (3 * NSEC_PER_MSEC_)
#define TANDEM_REQUEST_MIN_NS (500 * NSEC_PER_USEC_)
/* A running task is not preempted by a wake-up before it ran this long. */
#define TANDEM_MIN_RUN_NS (700 * NSEC_PER_USEC_)
#define TANDEM_TICK_NS (4 * NSEC_PER_MSEC_)

/* The kernel's table of weights (nice -20 .. 19): one step of nice is 1.25 times. */
POLICY u32 weight_of_nice(s32 nice)
{
	static const u32 table[40] = {
		88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916,
		9548,  7620,  6100,  4904,  3906,  3121,  2501,  1991,  1586,  1277,
		1024,  820,   655,   526,   423,   335,   272,   215,   172,   137,
		110,   87,    70,    56,    45,    36,    29,    23,    18,    15,
	};
	u32 i = (u32)(nice + 20);

	return i < 40 ? table[i] : TANDEM_WEIGHT_NICE_0;
}

/* Real service -> virtual time for a weight. */
POLICY u64 virtual_ns(u64 service_ns, u32 weight)
{
	return service_ns * TANDEM_WEIGHT_NICE_0 / (weight ? weight : 1);
}

/*
 * How much CPU a task asks for at a time. Light tasks ask for less: their
 * deadline lies request / weight ahead, and one that asked for a whole slice
 * at weight 15 beside heavy tasks would legally wait for tens of seconds.
 */
POLICY u64 request_ns(u64 base_ns, u32 weight)
{
	u64 r = base_ns;

	if (weight < TANDEM_WEIGHT_NICE_0)
		r = base_ns * weight / TANDEM_WEIGHT_NICE_0;
	return max_u64(r, TANDEM_REQUEST_MIN_NS);
}

/* Largest credit or debt that a task keeps, in virtual nanoseconds. */
POLICY s64 lag_limit(u64 request, u32 weight)
{
	return (s64)virtual_ns(max_u64(request, TANDEM_REQUEST_NS) + TANDEM_TICK_NS, weight);
}

/*
 * The lag with which a task joins a queue of total weight `queue_weight`.
 * Joining moves the average, so that a task would lose w / (W + w) of its lag;
 * it is inflated beforehand (PLACE_LAG in the kernel). On an empty queue
 * nobody owes anybody anything.
 */
POLICY s64 lag_on_join(s64 lag, u64 request, u32 weight, u64 queue_weight)
{
	s64 limit = lag_limit(request, weight);

	if (!queue_weight)
		return 0;
	lag = clamp_s64(lag, -limit, limit);
	/* Signed division is not available in BPF: work on the magnitude. */
	if (lag < 0)
		return -(s64)((u64)-lag * (queue_weight + weight) / queue_weight);
	return (s64)((u64)lag * (queue_weight + weight) / queue_weight);
}

/*
 * A debt is worked off while others are served: `progress` is how far V came
 * since the task left the queue (DELAY_DEQUEUE in the kernel).
 */
POLICY s64 lag_after_sleep(s64 lag, s64 progress)
{
	if (lag >= 0 || progress <= 0)
		return lag;
	return lag + progress > 0 ? 0 : lag + progress;
}

/* Does a waking task take the CPU from the one that runs? */
POLICY bool wakeup_preempts(u64 wakee_deadline, u64 curr_deadline, u64 curr_ran_ns)
{
	return curr_ran_ns >= TANDEM_MIN_RUN_NS && time_before_ns(wakee_deadline, curr_deadline);
}

/*
 * Best effort gets nothing while others want the CPU, except this: the
 * kernel's watchdog ends any scheduler that lets a runnable task wait for its
 * time limit. One short slice per interval keeps `waiting` tasks alive.
 */
POLICY bool idle_floor_due(u64 now_ns, u64 last_ns, u32 waiting, u64 watchdog_ns)
{
	u64 interval = watchdog_ns / 4 / (waiting ? waiting : 1);

	return waiting && now_ns - last_ns >= max_u64(interval, 20 * NSEC_PER_MSEC_);
}

#endif
