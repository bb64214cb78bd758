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

/* Parts of techniques that can be left out, to measure what each is worth: a bit set. */
enum part {
	PART_POOL = 1,		/* what is true of all vCPUs, beside what was measured of one */
	PART_WAITS = 2,		/* how long those waited who woke a vCPU; without: what share and absences say of it */
	PART_STATE = 4,		/* which vCPUs that have work are off their pCPU at this moment, and since when the others are there */
	PART_LEARNING = 8,	/* going to a vCPU in order to learn its rhythm */
};

/* What guest_park shall do, and why it did not. */
enum park_what {
	PARK_LOOK = 0,		/* only say how much is left there */
	PARK_TAKE = 1,		/* take out of use */
	PARK_GIVE_BACK = 2,
};

enum park_error {
	PARK_DONE = 0,
	PARK_NO_CPU = 1,	/* no such vCPU is online */
	PARK_LAST = 2,		/* no other vCPU would be left */
};

/* Question and answer of guest_park. */
struct park_query {
	u32 cpu;
	u32 what;		/* enum park_what */
	u32 by;			/* one of TANDEM_PARKED_BY_* */
	u32 error;		/* enum park_error */
	u32 left;		/* tasks that wait or run there */
	u32 was;		/* who had parked it before, TANDEM_PARKED_BY_* */
	u64 emptied_ns;		/* so long after it was parked nobody was left; 0: somebody is */
};

/* What guest_speed is told. */
struct speed_order {
	u32 cpu;
	u32 speed;		/* of its core, parts of TANDEM_SCALE of the fastest */
	u32 unlike;		/* some core is clearly slower than another */
};

/* Question and answer of guest_live. */
struct live_query {
	u32 cpu;
	u32 off;		/* is it off its pCPU? */
	u64 steal_ns;
};

#endif
