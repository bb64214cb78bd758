/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Load balance, for fairness across CPUs: which CPU hands over a task to which.
 *
 * A CPU's load is the effective weight of its CPU-bound tasks over what its light tasks leave of its capacity. The lighter CPU asks the
 * heavier one for tasks whose weight is clearly less than the difference, so that each migration makes the
 * difference smaller.
 *
 * What no migration can even out (three equal tasks on two CPUs) is rotated. Every CPU has a global virtual
 * time (`vtime`), that of its CPU-bound tasks. It advances by their service / weight, like the virtual time V of a queue in
 * policy/eevdf.h, but is comparable between CPUs that are busy at the same time. A CPU whose global virtual time is ahead asks the one
 * behind for a task. It gets a task as soon as that task would be behind by some requests (rotate_ns()).
 *
 * Service that a task misses on the slower CPU is not forgotten. A migration adds the difference of the two
 * global virtual times to what the task is owed. While the task is owed something, half of its run time is not
 * charged. So the sum of global virtual time and what is owed is conserved, and shares become exact over time,
 * whatever the order of migrations. No other task waits for more than twice as long. What a task pays for light tasks of its
 * group (policy/hweight.h) is settled in the same way.
 */
#ifndef TANDEM_POLICY_BALANCE_H
#define TANDEM_POLICY_BALANCE_H

#include "eevdf.h"

/* A CPU scans for heavier CPUs this often. An imbalance must be found twice in a row: wake-ups come and go. */
#define TANDEM_BALANCE_NS (32 * NSEC_PER_MSEC_)
/* Load balance covers tasks that ran for TANDEM_CPU_BOUND_NS since they last slept, and those that have been runnable for this long. */
#define TANDEM_CPU_BOUND_WAIT_NS (64 * NSEC_PER_MSEC_)
/* Tasks that missed less than so many requests are not rotated: 24 ms for a request of 3 ms. */
#define TANDEM_ROTATE_REQUESTS 8
/* Limit of what a task is owed, or owes, after migrations, in requests: 96 ms for a request of 3 ms. */
#define TANDEM_OWED_REQUESTS 32
/* No request is longer: this only bounds the arithmetic. */
#define TANDEM_REQUEST_MAX_NS (100 * NSEC_PER_MSEC_)

/*
 * The request that both of the above are multiples of: the longest that CPU-bound tasks have lately come to the end of on the CPU. A task is
 * rotated at the end of one, and misses as much while another one has its own. Shorter requests than usual make no difference: a migration costs as much.
 */
POLICY u64 balance_request_ns(u64 longest_ns)
{
	return max_u64(min_u64(longest_ns, TANDEM_REQUEST_MAX_NS), TANDEM_REQUEST_NS);
}

POLICY u64 rotate_ns(u64 longest_ns)
{
	return TANDEM_ROTATE_REQUESTS * balance_request_ns(longest_ns);
}

POLICY u64 owed_max_ns(u64 longest_ns)
{
	return TANDEM_OWED_REQUESTS * balance_request_ns(longest_ns);
}

POLICY bool is_cpu_bound(u64 ran_ns, u64 runnable_for_ns)
{
	return ran_ns >= TANDEM_CPU_BOUND_NS || runnable_for_ns >= TANDEM_CPU_BOUND_WAIT_NS;
}

/* Load of a CPU: weight per capacity (1024: one whole pCPU). */
POLICY u64 load_of(u64 weight, u32 capacity)
{
	return (min_u64(weight, 1ULL << 50) << 10) / (capacity ? capacity : 1);
}

/* All of a CPU's time, as light_share() counts. */
#define TANDEM_LIGHT_ALL 65536U
/* Light tasks leave at least one part in so many of a CPU's capacity to CPU-bound ones, for load balance. */
#define TANDEM_LEFT_PART 4

/* The part of a CPU's time that its light tasks take, of TANDEM_LIGHT_ALL: on average, over some eight intervals. */
POLICY u32 light_share(u32 old, u64 light_ns, u64 interval_ns)
{
	u64 now = interval_ns ? min_u64(light_ns, min_u64(interval_ns, 1ULL << 40)) * TANDEM_LIGHT_ALL / interval_ns : old;

	return ewma_u64(old, now, 3);
}

/* What is left of a capacity for CPU-bound tasks: at least a part of it, and never 0. */
POLICY u32 left_by_light(u32 capacity, u32 light)
{
	u64 taken = min_u64(light, TANDEM_LIGHT_ALL) * TANDEM_SCALE / TANDEM_LIGHT_ALL;
	u64 left = max_u64(sub_floor_u64(capacity, taken), capacity / TANDEM_LEFT_PART);

	return max_u64(left, 1);
}

/* Is a task that is not CPU-bound yet a light one? Not if it usually becomes CPU-bound before it sleeps. */
POLICY bool is_light(u64 mean_burst_ns)
{
	return mean_burst_ns < TANDEM_CPU_BOUND_NS;
}

/*
 * The weight whose migration from the heavier to the lighter CPU would reverse the imbalance. 0: there is no
 * imbalance.
 */
POLICY u64 excess_weight(u64 heavy_weight, u32 heavy_capacity, u64 light_weight, u32 light_capacity)
{
	u64 heavy = load_of(heavy_weight, heavy_capacity), light = load_of(light_weight, light_capacity);
	u64 least = heavy_capacity < light_capacity ? heavy_capacity : light_capacity;

	if (heavy <= light)
		return 0;
	return ((heavy - light) >> 10) * least;
}

/* Does the migration of a task of this weight make the imbalance smaller? */
POLICY bool move_improves(u64 weight, u64 excess)
{
	return weight <= excess - (excess >> 3);
}

/*
 * A heavier CPU whose global virtual time is ahead evens out by itself, unless it has more than four times the
 * weight of the other CPU.
 */
POLICY bool settles_itself(u64 excess, u64 heavy_weight)
{
	return excess <= heavy_weight / 4 * 3;
}

/* The end of a task's slice on a CPU that was asked for a task because its global virtual time is behind. */
struct rotation_view {
	u64 weight;
	s64 owed_ns;
	u64 last_weight;	/* of the task whose slice ended before */
	s64 last_owed_ns;
	u64 lightest;		/* lowest weight, observed recently, of tasks that matter */
	u64 excess;		/* weight by which the CPU is too heavy */
	u64 behind_ns;		/* by which the CPU's global virtual time is behind */
	u64 queue_weight;
	u64 longest_ns;		/* request of the CPU's CPU-bound tasks */
	u32 queue_tasks;
};

/* Would the migration of a task of this weight change anything? */
POLICY bool matters_for_turns(u64 weight, u64 excess)
{
	return weight >= excess / 4;
}

/*
 * Is this task rotated to the other CPU? Only if the average task has missed some requests (rotate_ns(); less if there
 * are many tasks). Only the lightest task, because it reverses the imbalance by least. Of equal tasks the one
 * that is owed more stays, because it is alone afterwards.
 */
POLICY bool rotates_away(const struct rotation_view *t)
{
	bool equal = t->last_weight >= t->weight && t->last_weight <= t->weight + (t->weight >> 3);
	u64 due_ns = min_u64((u64)t->queue_tasks * rotate_ns(t->longest_ns), owed_max_ns(t->longest_ns) / 2);
	u64 mean = t->queue_weight / (t->queue_tasks ? t->queue_tasks : 1);

	if (real_ns(t->behind_ns, t->queue_weight) < due_ns)
		return false;
	if ((t->weight >> 4) > t->excess)
		return false;
	/* `lightest` may miss a task that has not run recently. The lightest one is no heavier than the mean. */
	if (t->weight > mean + (mean >> 3))
		return false;
	if (t->lightest < ~0ULL >> 1 && t->weight > t->lightest + (t->lightest >> 3))
		return false;
	return !equal || t->owed_ns <= t->last_owed_ns;
}

/* Have the tasks of a CPU missed so much that a little more would be forgiven? */
POLICY bool missed_much(u64 behind_ns, u64 queue_weight, u64 longest_ns)
{
	return real_ns(behind_ns, queue_weight) >= owed_max_ns(longest_ns) * 3 / 4;
}

/*
 * What a task is owed after a migration between CPUs with different global virtual times (virtual ns), as CPU
 * time in ns. On a CPU that it shares with other tasks (`queue_weight`, itself included) it cannot soon get
 * more than its share: ten light tasks with a claim of one slice each would be a claim of ten slices.
 */
POLICY s64 owed_after_move(s64 owed_ns, u64 vtime_from, u64 vtime_to, u64 weight, u64 queue_weight, u64 longest_ns)
{
	u64 most = owed_max_ns(longest_ns), share = virtual_ns(2 * most >> 10, max_u64(queue_weight, weight));
	s64 limit = (s64)min_u64(real_ns(share, weight) << 10, most);
	s64 missed;

	if (time_before_ns(vtime_from, vtime_to))
		missed = (s64)min_u64(real_ns(vtime_to - vtime_from, weight), 2 * most);
	else
		missed = -(s64)min_u64(real_ns(vtime_from - vtime_to, weight), 2 * most);
	return clamp_s64(clamp_s64(owed_ns, -limit, limit) + missed, -limit, limit);
}

/* The part of a run that settles what the task is owed: not charged if positive, charged twice if negative. */
POLICY s64 settled_ns(s64 owed_ns, u64 service_ns)
{
	s64 most = (s64)(min_u64(service_ns, 1ULL << 40) >> 1);

	return clamp_s64(owed_ns, -most, most);
}

/*
 * New global virtual time of a CPU that is compared with the one furthest ahead. A CPU that already gives all
 * its time to one task, heavier than what the other CPU has to do, is behind for lack of capacity and has no
 * claim (`gives_all`). A CPU with tasks of total weight `weight` cannot make up for more than what one of them
 * can be owed: while it catches up, tasks that came later wait although they took nothing.
 */
POLICY u64 vtime_caught_up(u64 vtime, u64 furthest, bool gives_all, u64 weight, u64 longest_ns)
{
	u64 most = owed_max_ns(longest_ns);

	if (!time_before_ns(vtime, furthest))
		return vtime;
	if (gives_all)
		return furthest;
	return real_ns(furthest - vtime, weight) > most ? furthest - virtual_ns(most, weight) : vtime;
}

#endif
