/* SPDX-License-Identifier: GPL-2.0-only */
/* What only the guest side and its daemon share. */
#ifndef TANDEM_GUEST_INTF_H
#define TANDEM_GUEST_INTF_H

#include "../../policy/guest/dedicate.h"
#include "../../policy/guest/harvest.h"
#include "../../policy/guest/place.h"
#include "../../policy/guest/rwc.h"
#include "counters.h"

/* What a CPU counts when it reviews who is banned. */
struct review {
	u64 shares;		/* of the vCPUs that are measured, summed */
	u32 counted;
	u32 idle;		/* vCPUs in use that have nothing to do */
	u32 banned;
	u32 usable;
};

/* What the guest side keeps of a vCPU: written by its own CPU, except where noted; read by all. */
struct side_cpu {
	struct vcpu_model model;
	struct vcpu_phase phase;
	u64 seen_at_ns;		/* last observation of time and steal */
	u64 seen_steal_ns;
	u64 seen_returns;
	u64 wanted_ns;		/* time for which it had work, steal included, since the scheduler was loaded */
	u64 stolen_ns;		/* steal in that time */
	u64 seen_inactive_ns;	/* when another CPU first found it inactive; 0: active (written by others) */
	u64 look_due_ns;	/* when the look that comes next was to come; 0: at no certain time */
	u64 tick_at_ns;		/* last tick of a busy CPU */
	u32 observing;		/* a step of its time line is being taken */
	u32 bans;		/* TANDEM_BAN_* (written by any CPU) */
	u32 speed;		/* of its core, parts of TANDEM_SCALE of the fastest; 0: as fast (written by the daemon) */
	u32 parked;		/* taken out of use by whom (TANDEM_PARKED_BY_*, written by the daemon) */
	u64 parked_at_ns;	/* when (likewise) */
	u64 emptied_ns;		/* so long after that nobody was left; 0: somebody is */
	s32 owner_pid;		/* policy/guest/dedicate.h; 0: nobody (atomic, any CPU) */
	u64 owner_seen_ns;	/* when its owner last had a turn */
	struct review review;
	u32 straggles;		/* it is a straggler by its share, banned or not */
	u32 held_up;		/* how often others are idle beside its work: parts of TANDEM_SCALE */
	u32 trials_failed;	/* in a row: it was let back, and others waited for it */
	u64 straggles_at_ns;	/* when it became a straggler, or ceased to be one */
	u64 banned_at_ns;	/* when its ban as one began, or ended */
	u64 held_up_at_ns;	/* when that was last looked at */
	/* Harvesting, policy/guest/harvest.h: this CPU as the one that is left, */
	u64 harvest_at_ns;	/* for when its timer is armed */
	u64 departs_at_ns;	/* since when a task is being switched out in order to leave; 0: none is */
	u64 harvest_began_ns;	/* when that was foreseen */
	u64 harvest_ask_at_ns;	/* nobody was worth it: not asked again until then */
	u64 harvest_end_ns;	/* when it will be taken */
	u64 harvest_fired_ns;	/* when its timer fired last */
	u64 harvest_late_ns;	/* how late that is, on average */
	u64 harvest_latency_ns;	/* from then until the task has left, on average */
	u64 harvest_cost_ns;	/* from when a target was there until the task ran on it, on average; 0: not known */
	u64 harvest_early_ns;	/* how much earlier to leave than that */
	u64 harvest_gain_ns;	/* by leaving for harvest_to */
	u32 harvest_stage;	/* enum harvest_stage (any CPU) */
	u32 harvest_risk;	/* how often leaving failed, on average: parts of TANDEM_SCALE */
	u32 harvest_tries;
	u32 harvest_vain;	/* times in a row at which nobody was there for its task */
	s32 harvest_to;		/* -1: nobody is called */
	s32 harvest_learn;	/* whose rhythm is to be learned by going there; -1: nobody's */
	s32 harvest_pid;	/* the task that is to leave */
	/* and as the one that is called. */
	u64 claim;		/* until when, and by whom: claim_of() (atomic, any CPU) */
	s32 awaited_pid;	/* who is on its way here */
	u64 learned_at_ns;	/* when somebody was sent here last for learning the rhythm; 0: never */
	u64 called_at_ns;
	u64 answered_at_ns;	/* when it was awake after it was called */
	u64 reserved_until_ns;	/* nobody else takes what waits here before */
};

/* Of a task. */
struct side_task {
	u64 pushed_at_ns;	/* when it was moved to a stronger vCPU last */
	s32 home;		/* vCPU that it owns, policy/guest/dedicate.h; -1: none */
};

/* Of a cgroup. */
struct side_group {
	u32 hinted;		/* its tasks shall answer soon by the user's word, itself or above */
};

#define TANDEM_SIDE_INTF
#include "../core/intf.h"

/* So many names, and as many cgroups, may be hinted at. */
#define MAX_HINTS 64

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
