/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How much of a pCPU higher classes leave: an average over time, with a half-life of 32 ms as the kernel's own of RT tasks
 * (PELT, kernel/sched/pelt.c).
 */
#ifndef TANDEM_POLICY_HOST_AWAY_H
#define TANDEM_POLICY_HOST_AWAY_H

#include "../base.h"

#define TANDEM_AWAY_HALF_NS (32 * NSEC_PER_MSEC_)
/* After so many halvings nothing is left of 1024. */
#define TANDEM_AWAY_HALVINGS 10

/* Share, 0 to TANDEM_SCALE, after `ns` in which a higher class had the pCPU (`away`) or had not. */
static __always_inline u32 share_left(u32 share, bool away, u64 ns)
{
	u64 halvings = ns / TANDEM_AWAY_HALF_NS, rest = ns % TANDEM_AWAY_HALF_NS, gap;

	if (share > TANDEM_SCALE)
		share = TANDEM_SCALE;
	gap = away ? share : TANDEM_SCALE - share;
	if (halvings >= TANDEM_AWAY_HALVINGS)
		return away ? 0 : TANDEM_SCALE;
	gap >>= halvings;
	/* Between two halvings along a line. */
	gap -= gap * rest / (2 * TANDEM_AWAY_HALF_NS);
	return away ? (u32)gap : (u32)(TANDEM_SCALE - gap);
}

#endif
