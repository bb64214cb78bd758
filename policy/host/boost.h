/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a vCPU comes before its turn: because it was interrupted (Anubis, SoCC'23), or because it was woken (Kilic et al., "Large-vCPU
 * Virtual Machines", fast wake-up).
 */
#ifndef TANDEM_POLICY_HOST_BOOST_H
#define TANDEM_POLICY_HOST_BOOST_H

#include "../base.h"

/* A boosted vCPU runs for so long, and again for as long while it does I/O: the paper's tick. */
#define TANDEM_BOOST_STEP_NS NSEC_PER_MSEC_
/* One whose sibling gives the answer runs for so long, once its VM owes half of what it may: to take the interrupt and to wake a task there. */
#define TANDEM_BOOST_PASS_ON_NS (100 * NSEC_PER_USEC_)
/* But for no longer than this in a row (the scheduler's longest slice in the paper). */
#define TANDEM_BOOST_RUN_MAX_NS (8 * NSEC_PER_MSEC_)
/* So many such turns in a row on a pCPU at most, extensions included, before others come. */
#define TANDEM_BOOSTS_IN_ROW_MAX 16
/* A VM's vCPUs that are woken come before their turn for so much run time ... */
#define TANDEM_WAKE_BUDGET_NS (2 * NSEC_PER_MSEC_)
/* ... in each of these periods. */
#define TANDEM_WAKE_PERIOD_NS (100 * NSEC_PER_MSEC_)
/* One that comes before its turn is not displaced in the same way before it has run for so long. */
#define TANDEM_BOOST_UNDISTURBED_NS (500 * NSEC_PER_USEC_)

/* Who runs if two that do I/O want the same pCPU? */
enum boost_conflict {
	CONFLICT_CONFIDENCE = 0,	/* the one that does more of it (the paper's choice) */
	CONFLICT_DEBT = 1,	/* the one whose VM owes less */
	CONFLICT_NONE = 2,	/* the one that runs already */
};

/* Two vCPUs that do I/O: the one that was interrupted, and the one that runs. */
struct boost_rivals {
	s64 debt_ns;
	s64 running_debt_ns;
	u32 confidence;
	u32 running_confidence;
};

/* Does the one that was interrupted displace the one that runs? Of two that are equal the one that runs goes on. */
POLICY bool displaces(u32 conflict, const struct boost_rivals *rivals)
{
	switch (conflict) {
	case CONFLICT_CONFIDENCE:
		return rivals->confidence > rivals->running_confidence;
	case CONFLICT_DEBT:
		return rivals->debt_ns < rivals->running_debt_ns;
	default:
		return false;
	}
}

/* May one that does I/O go on, although its turn is over? `ran_ns`: since it was boosted; `room_ns`: what may still be lent to its VM. */
POLICY bool goes_on_for_io(bool io, u64 ran_ns, u64 room_ns)
{
	return io && ran_ns < TANDEM_BOOST_RUN_MAX_NS && room_ns >= TANDEM_BOOST_STEP_NS;
}

/* What is left of what was used of the budget (`used_ns`) after `elapsed_ns`: it runs out as it is granted. `budget_ns` up to a second. */
POLICY u64 wake_use_left_ns(u64 used_ns, u64 elapsed_ns, u64 budget_ns)
{
	u64 elapsed = min_u64(elapsed_ns, 1000 * TANDEM_WAKE_PERIOD_NS);

	return sub_floor_u64(used_ns, elapsed / 1024 * min_u64(budget_ns, 1000 * NSEC_PER_MSEC_) / (TANDEM_WAKE_PERIOD_NS / 1024));
}

/* Does the budget allow another vCPU to come before its turn? */
POLICY bool may_wake_fast(u64 used_ns, u64 budget_ns)
{
	return used_ns < budget_ns;
}

#endif
