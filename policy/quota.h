/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.max: a group may run for `quota` ns per period, on all CPUs together.
 *
 * The group has a pool. What its tasks run is taken from the pool when it is
 * charged, to the nanosecond, also below zero: an overrun is a debt to the
 * next period. At each boundary of its period the pool gets the quota, up to
 * quota + burst. Boundaries are multiples of the period from the moment when
 * the limit was set; nothing shifts them.
 *
 * So that an overrun stays small, a task is let run for a part of the pool
 * only: the pool divided by the CPUs on which the group runs.
 */
#ifndef TANDEM_POLICY_QUOTA_H
#define TANDEM_POLICY_QUOTA_H

#include "base.h"

/* Shortest run on what is left of a pool: shorter ones cost more than they carry. */
#define TANDEM_QUOTA_RUN_MIN_NS 100000ULL

/* Whole periods between the start of the current one and now. */
POLICY u64 periods_passed(u64 now_ns, u64 start_ns, u64 period_ns)
{
	if (!period_ns || time_before_ns(now_ns, start_ns))
		return 0;
	return (now_ns - start_ns) / period_ns;
}

/* More periods than this fill a pool from any debt that can have come up. */
#define TANDEM_QUOTA_PERIODS_MOST 1000ULL

/*
 * What `running` CPUs may have run and not been charged for when several
 * boundaries pass at once, as they do if the whole machine stood still.
 */
POLICY u64 uncharged_ns(u32 running, u64 periods, u64 period_ns)
{
	if (periods <= 1)
		return 0;
	/* The kernel knows no period above a second; no product that wraps. */
	return min_u64(running, 1024) * min_u64(periods, TANDEM_QUOTA_PERIODS_MOST) * min_u64(period_ns, 1000 * NSEC_PER_MSEC_);
}

/*
 * The pool after `periods` boundaries. A debt is paid from the first quotas.
 * What has been run and is still to be charged (at most) may stay above the
 * limit till then: the quotas of those periods were there for it.
 */
POLICY s64 pool_refilled(s64 pool_ns, u64 quota_ns, u64 burst_ns, u64 periods, u64 uncharged)
{
	s64 limit = (s64)(quota_ns + burst_ns);

	/* No product that wraps. */
	if (periods > TANDEM_QUOTA_PERIODS_MOST)
		return limit;
	limit += (s64)uncharged;
	pool_ns += (s64)(quota_ns * periods);
	return pool_ns > limit ? limit : pool_ns;
}

/* How long one CPU may run tasks of the group before it asks again. 0: not at all. */
POLICY u64 quota_run_ns(s64 pool_ns, u32 running_cpus)
{
	if (pool_ns <= 0)
		return 0;
	return max_u64((u64)pool_ns / (running_cpus ? running_cpus : 1), TANDEM_QUOTA_RUN_MIN_NS);
}

/* A task that waits for quota for this long is let run once all the same: the kernel's watchdog watches. */
POLICY bool quota_wait_too_long(u64 waited_ns, u64 watchdog_ns)
{
	return waited_ns > watchdog_ns / 4;
}

#endif
