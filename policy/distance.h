/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What it costs a task to go on elsewhere: nothing but a cold core within the
 * domain of a last-level cache (LLC), its whole working set beyond it; and what
 * a vCPU is worth that shares its core, or its hardware thread, with others.
 */
#ifndef TANDEM_POLICY_DISTANCE_H
#define TANDEM_POLICY_DISTANCE_H

#include "base.h"

/* Leaving the previous CPU must be worth a cold core, */
#define TANDEM_MOVE_COST_NS (60 * NSEC_PER_USEC_)
/* and leaving its LLC a cold cache: the kernel's own estimate (sched_migration_cost). */
#define TANDEM_FAR_COST_NS (500 * NSEC_PER_USEC_)

POLICY u64 move_cost_ns(bool far)
{
	return far ? TANDEM_FAR_COST_NS : TANDEM_MOVE_COST_NS;
}

/*
 * A task that waits is taken into another LLC only if it would otherwise wait
 * for clearly longer than the cold cache costs it. `drain_ns`: time until the
 * source has served one turn of everybody there.
 */
POLICY bool worth_going_far(u64 drain_ns)
{
	return drain_ns >= 2 * TANDEM_FAR_COST_NS;
}

/*
 * Imbalance as seen from another LLC: an eighth of the heavier one's weight
 * may stay (the kernel leaves 17 to 25 %), and of the rest a quarter less is
 * moved at a time, so that a neighbour in the same LLC is asked first.
 */
POLICY u64 far_excess(u64 excess, u64 heavy_weight)
{
	return excess <= heavy_weight / 8 ? 0 : excess - excess / 4;
}

/* What a hardware thread gets of its core while a sibling works there, too (share of SMT gains: a quarter). */
#define TANDEM_SMT_NUM 5U
#define TANDEM_SMT_DEN 8U

/*
 * Share of a vCPU that has neighbours: those stacked with it on one hardware
 * thread take turns with it, threads of the same core slow it down.
 */
POLICY u32 crowded_share(u32 share, u32 stacked_busy, u32 siblings_busy)
{
	share /= stacked_busy + 1;
	return siblings_busy ? share * TANDEM_SMT_NUM / TANDEM_SMT_DEN : share;
}

#endif
