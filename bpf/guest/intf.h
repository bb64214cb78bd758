/* SPDX-License-Identifier: GPL-2.0-only */
/* Data that only the guest side and its daemon share. */
#ifndef TANDEM_GUEST_INTF_H
#define TANDEM_GUEST_INTF_H

#include "../../policy/guest/dedicate.h"
#include "../../policy/guest/ivh.h"
#include "../../policy/guest/place.h"
#include "../../policy/guest/rwc.h"
#include "counters.h"

/* What a CPU counts when it reviews the bans. */
struct review {
	u64 shares;		/* of the vCPUs that are measured, summed */
	u32 counted;
	u32 idle;		/* vCPUs in use that are idle */
	u32 usable;
	u32 unused;
};

/* The guest side's part of a vCPU's record: written by its own CPU, except where noted; read by all. */
struct side_cpu {
	struct vcpu_model model;
	struct vcpu_phase phase;
	u64 seen_at_ns;		/* last sample of time and steal */
	u64 seen_steal_ns;
	u64 seen_sched_ins;
	u64 wanted_ns;		/* time for which it had work, steal included, since the scheduler was loaded */
	u64 stolen_ns;		/* steal in that time */
	u64 seen_inactive_ns;	/* when another CPU first found it preempted; 0: it is not (written by others) */
	u64 scan_due_ns;	/* when the next sample was due; 0: at no certain time */
	u64 tick_at_ns;		/* last tick of a busy CPU */
	u32 observing;		/* a sample is being taken */
	u32 bans;		/* TANDEM_BAN_* (atomic, any CPU) */
	u32 speed;		/* of its core, TANDEM_SCALE: the fastest; 0: as fast (written by the daemon) */
	u32 parked;		/* who has taken it out of use (TANDEM_PARKED_BY_*, written by the daemon) */
	u64 parked_at_ns;	/* when (likewise) */
	u64 emptied_ns;		/* how long after that it was empty; 0: it is not yet */
	s32 owner_pid;		/* policy/guest/dedicate.h; 0: none (atomic, any CPU) */
	u32 inactive_sched_ins;	/* how often it had been scheduled in at seen_inactive_ns (written by others) */
	u64 owner_seen_ns;	/* when its owner last ran */
	struct review review;
	u32 straggles;		/* it is a straggler by its share, banned or not */
	u32 delayed_others;		/* how often others are idle while it has work: parts of TANDEM_SCALE */
	u32 trials_failed;	/* in a row: the ban was lifted, and others waited for it */
	u64 straggles_at_ns;	/* when it became a straggler, or stopped being one */
	u64 banned_at_ns;	/* when its ban as a straggler began, or ended */
	u64 delayed_others_at_ns;	/* when delayed_others was last sampled */
	/* Proactive migration, policy/guest/ivh.h. This CPU as the source: */
	u64 ivh_at_ns;	/* when its armed timer fires */
	u64 departs_at_ns;	/* since when a task is being switched out to be migrated; 0: none is */
	u64 ivh_began_ns;	/* when the end was predicted */
	u64 ivh_ask_at_ns;	/* no target was worth it: not searched for again until then */
	u64 ivh_end_ns;	/* predicted end: when the vCPU will be preempted */
	u64 ivh_fired_ns;	/* when its timer last fired */
	u64 ivh_late_ns;	/* how late it is, on average */
	u64 ivh_latency_ns;	/* from then until the task has left, on average */
	u64 ivh_cost_ns;	/* from when a target ran until the task ran on it, on average; 0: not known */
	u64 ivh_early_ns;	/* how much earlier to leave than that */
	u64 ivh_gain_ns;	/* expected, by migrating to ivh_to */
	u32 ivh_stage;	/* enum ivh_stage (any CPU) */
	u32 ivh_risk;	/* how often migrations failed, on average: parts of TANDEM_SCALE */
	u32 ivh_tries;
	u32 ivh_vain;	/* attempts in a row in which no target ran */
	s32 ivh_to;		/* claimed target; -1: none */
	s32 ivh_learn;	/* target whose preemption period is to be learned; -1: none */
	s32 ivh_pid;	/* the task that is to be migrated */
	/* This CPU as the target: */
	u64 claim;		/* until when, and by which CPU: claim_of() (atomic, any CPU) */
	s32 awaited_pid;	/* task that is on its way here */
	u64 learned_at_ns;	/* when a task was last sent here to learn the preemption period; 0: never */
	u64 called_at_ns;
	u64 answered_at_ns;	/* when it was awake after it was kicked */
	u64 reserved_until_ns;	/* until then no other CPU takes what waits here */
};

/* The guest side's part of a task's record. */
struct side_task {
	u64 pushed_at_ns;	/* when it was last migrated to a stronger vCPU */
	s32 home;		/* vCPU that it owns, policy/guest/dedicate.h; -1: none */
};

/* The guest side's part of a cgroup's record. */
struct side_group {
	u32 hinted;		/* its tasks are latency-sensitive by a hint, for itself or above */
};

#define TANDEM_SIDE_INTF
#include "../core/intf.h"

/* Most names, and most cgroups, that may have hints. */
#define MAX_HINTS 64

/* Fault injection for tests of the exit path; off unless asked for. */
enum fault {
	FAULT_NONE = 0,
	FAULT_STALL = 1,	/* lose tasks whose command name is "tandem-fault" */
	FAULT_ERROR = 2,	/* raise a scheduler error when such a task is queued */
};

/* Parts of techniques that can be left out, to measure what each is worth; a bit set. */
enum part {
	PART_POOL = 1,		/* pooling: what is true of all vCPUs, beside what was measured of one */
	PART_WAITS = 2,		/* measured wake-up waits; without: by share and preemption interval */
	PART_STATE = 4,		/* which vCPUs are preempted now, and when the others were scheduled in */
	PART_LEARNING = 8,	/* migrating to a vCPU in order to learn its preemption period */
};

/* What guest_park is to do, and why it did not. */
enum park_what {
	PARK_LOOK = 0,		/* only say how many tasks are left there */
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
	u64 emptied_ns;		/* how long after it was parked it was empty; 0: it is not yet */
};

/* Order to guest_speed. */
struct speed_order {
	u32 cpu;
	u32 speed;		/* of its core, parts of TANDEM_SCALE of the fastest */
	u32 unlike;		/* some core is clearly slower than another */
};

/* Question and answer of guest_live. */
struct live_query {
	u32 cpu;
	u32 off;		/* is it preempted? */
	u64 steal_ns;
};

#endif
