/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.max: a group may run for `quota` ns per period, on all CPUs together.
 *
 * The group has a pool. The run time of its tasks is charged to the pool to the nanosecond. The pool may become
 * negative: an overrun is a debt to the next period. At each period boundary the quota is added to the pool, up to
 * quota + burst. Boundaries are multiples of the period from the moment when the limit was set; nothing shifts them.
 *
 * To keep an overrun small, a task may run for only a part of the pool at a time: the pool divided by the
 * number of CPUs on which the group runs.
 */
#ifndef TANDEM_POLICY_QUOTA_H
#define TANDEM_POLICY_QUOTA_H

#include "base.h"

/* Shortest run on the rest of a pool. A shorter one costs more than it gives. */
#define TANDEM_QUOTA_RUN_MIN_NS 100000ULL

/* Whole periods between the start of the current one and now. */
POLICY u64 periods_passed(u64 now_ns, u64 start_ns, u64 period_ns)
{
	if (!period_ns || time_before_ns(now_ns, start_ns))
		return 0;
	return (now_ns - start_ns) / period_ns;
}

/* After more periods than this a pool is full, whatever its debt was. */
#define TANDEM_QUOTA_PERIODS_MOST 1000ULL

/*
 * Upper bound of the run time on `running` CPUs that is not charged yet when several boundaries pass at once,
 * as they do if the whole machine stood still.
 */
POLICY u64 uncharged_ns(u32 running, u64 periods, u64 period_ns)
{
	if (periods <= 1)
		return 0;
	/* The kernel allows no period above one second. The product cannot wrap. */
	return min_u64(running, 1024) * min_u64(periods, TANDEM_QUOTA_PERIODS_MOST) * min_u64(period_ns, 1000 * NSEC_PER_MSEC_);
}

/*
 * The pool after `periods` boundaries. The first quotas pay the debt. Run time that is still to be charged
 * (`uncharged` at most) may stay above the limit until then: the quotas of those periods cover it.
 */
POLICY s64 pool_refilled(s64 pool_ns, u64 quota_ns, u64 burst_ns, u64 periods, u64 uncharged)
{
	s64 limit = (s64)(quota_ns + burst_ns);

	/* The product below must not wrap. */
	if (periods > TANDEM_QUOTA_PERIODS_MOST)
		return limit;
	limit += (s64)uncharged;
	pool_ns += (s64)(quota_ns * periods);
	return pool_ns > limit ? limit : pool_ns;
}

/* Is the run time of a task that cannot be throttled still charged? Not beyond a debt of one period's quota. */
POLICY bool may_charge_unstoppable(s64 pool_ns, u64 quota_ns)
{
	return pool_ns > -(s64)quota_ns;
}

/* How long one CPU may run tasks of the group before it asks again. 0: not at all. */
POLICY u64 quota_run_ns(s64 pool_ns, u32 running_cpus)
{
	if (pool_ns <= 0)
		return 0;
	return max_u64((u64)pool_ns / (running_cpus ? running_cpus : 1), TANDEM_QUOTA_RUN_MIN_NS);
}

/*
 * For how long may a task go on although the pool is empty, on debt of at most one part in `part` of the quota? 0: not at all. Every one of
 * `cpus` CPUs may be lent as much.
 */
POLICY u64 quota_loan_ns(s64 pool_ns, u64 quota_ns, u32 part, u32 cpus)
{
	return part ? quota_run_ns(pool_ns + (s64)(quota_ns / part), cpus) : 0;
}

/*
 * Anti-stall grant: a task that has been throttled for this long runs once without quota, before the kernel's
 * watchdog acts.
 */
POLICY bool quota_wait_too_long(u64 waited_ns, u64 watchdog_ns)
{
	return waited_ns > watchdog_ns / 4;
}

#endif
