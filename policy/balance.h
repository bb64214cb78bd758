/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fairness across CPUs: which CPU hands over a task to which.
 *
 * A CPU's load is the effective weight of its runnable tasks over its
 * capacity. The lighter CPU asks the heavier one for a task; the heavier one
 * gives the first task that ends its turn and whose weight is clearly less
 * than the difference: that makes the difference smaller. If there is none
 * for a while, it gives one whose weight equals the difference. That only
 * turns the imbalance round, and is wanted: three equal tasks on two CPUs are
 * treated equally only if they take turns at being alone. Of those the one
 * leaves that has run most of late, so that the other finds itself alone.
 */
#ifndef TANDEM_POLICY_BALANCE_H
#define TANDEM_POLICY_BALANCE_H

#include "base.h"

/* A CPU looks for heavier ones this often. What it sees must be there twice in a row: wake-ups come and go. */
#define TANDEM_BALANCE_NS (32 * NSEC_PER_MSEC_)
/* Half-life of a task's recent run time. */
#define TANDEM_RECENT_NS (128 * NSEC_PER_MSEC_)

/* Load of a CPU: weight per capacity (1024: one whole pCPU). */
POLICY u64 load_of(u64 weight, u32 capacity)
{
	return (min_u64(weight, 1ULL << 50) << 10) / (capacity ? capacity : 1);
}

/* The weight whose move from the heavier to the lighter CPU would turn the imbalance round; 0: there is none. */
POLICY u64 excess_weight(u64 heavy_weight, u32 heavy_capacity, u64 light_weight, u32 light_capacity)
{
	u64 heavy = load_of(heavy_weight, heavy_capacity), light = load_of(light_weight, light_capacity);
	u64 least = heavy_capacity < light_capacity ? heavy_capacity : light_capacity;

	if (heavy <= light)
		return 0;
	return ((heavy - light) >> 10) * least;
}

/* Does moving a task of this weight make the imbalance smaller? */
POLICY bool move_improves(u64 weight, u64 excess)
{
	return weight <= excess - (excess >> 3);
}

/* Does it at least hardly make it larger? Loads are not known to the last bit: others wake beside the hogs. */
POLICY bool move_rotates(u64 weight, u64 excess)
{
	return weight <= excess + (excess >> 1) - (excess >> 3);
}

/* Fading memory of run time: halves every TANDEM_RECENT_NS. */
POLICY u64 recent_ns(u64 old_ns, u64 since_ns, u64 ran_ns)
{
	u64 halvings = since_ns / TANDEM_RECENT_NS;
	u64 rest = since_ns % TANDEM_RECENT_NS;

	if (halvings >= 32)
		return ran_ns;
	old_ns >>= halvings & 31;
	/* Linear between two halvings. */
	old_ns -= ((old_ns >> 8) * ((rest << 7) / TANDEM_RECENT_NS));
	return old_ns + ran_ns;
}

#endif
