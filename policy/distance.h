/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The cost of a migration: a cold core within the domain of a last-level cache (LLC), the whole working set
 * beyond it. Also the capacity of a vCPU that shares its core, or its hardware thread, with other vCPUs.
 */
#ifndef TANDEM_POLICY_DISTANCE_H
#define TANDEM_POLICY_DISTANCE_H

#include "base.h"

/* A migration within an LLC must gain at least this, the cost of a cold core, */
#define TANDEM_MOVE_COST_NS (60 * NSEC_PER_USEC_)
/* and one to another LLC the cost of a cold cache: the kernel's own estimate (sched_migration_cost). */
#define TANDEM_FAR_COST_NS (500 * NSEC_PER_USEC_)

POLICY u64 move_cost_ns(bool far)
{
	return far ? TANDEM_FAR_COST_NS : TANDEM_MOVE_COST_NS;
}

/*
 * A waiting task is pulled into another LLC only if it would otherwise wait for clearly longer than the cold
 * cache costs. `drain_ns`: time until the source has served one slice of each task there.
 */
POLICY bool worth_going_far(u64 drain_ns)
{
	return drain_ns >= 2 * TANDEM_FAR_COST_NS;
}

/*
 * Imbalance as seen from another LLC. An eighth of the heavier CPU's weight may stay (the kernel leaves 17 to
 * 25 %). Of the rest a quarter less is moved at a time, so that a CPU in the same LLC is asked first.
 */
POLICY u64 far_excess(u64 excess, u64 heavy_weight)
{
	return excess <= heavy_weight / 8 ? 0 : excess - excess / 4;
}

/* What a hardware thread gets of its core while an SMT sibling is busy, too (SMT gains a quarter). */
#define TANDEM_SMT_NUM 5U
#define TANDEM_SMT_DEN 8U

/*
 * Capacity of a vCPU beside other busy vCPUs. vCPUs stacked on the same hardware thread divide its time; SMT
 * siblings slow each other down.
 */
POLICY u32 share_beside_busy(u32 share, u32 stacked_busy, u32 siblings_busy)
{
	share /= stacked_busy + 1;
	return siblings_busy ? share * TANDEM_SMT_NUM / TANDEM_SMT_DEN : share;
}

#endif
