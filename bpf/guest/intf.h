/* SPDX-License-Identifier: GPL-2.0-only */
/* What only the guest side and its daemon share. */
#ifndef TANDEM_GUEST_INTF_H
#define TANDEM_GUEST_INTF_H

#include "../core/intf.h"

/* Fault injection for tests of the way out; off unless asked for. */
enum fault {
	FAULT_NONE = 0,
	FAULT_STALL = 1,	/* lose tasks whose command name is "tandem-fault" */
	FAULT_ERROR = 2,	/* raise a scheduler error when such a task is queued */
};

/* How running tasks leave a vCPU that the host is about to take. */
enum harvest_mode {
	HARVEST_OFF = 0,
	HARVEST_AWARE = 1,	/* when it is foreseen, for a vCPU that is there */
	HARVEST_UNAWARE = 2,	/* after 2 ms, for any that seems idle: for comparison */
};

/* Question and answer of guest_live. */
struct live_query {
	u32 cpu;
	u32 off;		/* is it off its pCPU? */
	u64 steal_ns;
};

#endif
