/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Relaxed work conservation: vCPUs that are better left without work (vSched,
 * EuroSys'25, section 3.4).
 *
 * A straggler, a vCPU that gets about a tenth of what the others get, makes
 * all of a program wait for the one thread that is there; it takes best-effort
 * work only. Where threads do not wait for one another, nobody waits for that
 * one, and it gives what it can: others that are never idle, for as long as it
 * has work, do not wait for it. (The paper leaves it empty all the same.) Of vCPUs that are stacked on one hardware thread one works and
 * the others stay empty: together they are no faster than one, and the host
 * switches between them at moments of its own choosing. A parked vCPU was
 * taken out of use, by the operator or because the VM has more vCPUs than the
 * host gives it pCPUs (policy/guest/crowd.h).
 *
 * A ban keeps tasks away that may go elsewhere. Those that may not, by their
 * affinity or their cpuset, run where they have to; nobody's affinity is
 * touched. What is not fresh is not believed, so that a ban ends without
 * anybody's doing.
 */
#ifndef TANDEM_POLICY_RWC_H
#define TANDEM_POLICY_RWC_H

#include "../base.h"

#define TANDEM_BAN_STRAGGLER 1U		/* best-effort work only */
#define TANDEM_BAN_STACKED 2U		/* nothing, while the one that works of its stack has normal work */
#define TANDEM_BAN_PARKED 4U		/* nothing */
#define TANDEM_BAN_CROWDED 8U		/* nothing: more vCPUs than pCPUs (policy/guest/crowd.h) */

/* Those that leave a vCPU empty, whatever the others of its stack do. */
#define TANDEM_BAN_EMPTY (TANDEM_BAN_PARKED | TANDEM_BAN_CROWDED)

/* Who has taken a vCPU out of use. */
#define TANDEM_PARKED_BY_OPERATOR 1U
#define TANDEM_PARKED_BY_CROWD 2U

/* The share, compared with the mean of the others, at which a straggler is banned, and at which it is let back. */
#define TANDEM_STRAGGLER_BELOW 8U
#define TANDEM_STRAGGLER_ABOVE 5U
/* A ban of a straggler lasts for this long at least, and so does its absence. */
#define TANDEM_BAN_HOLD_NS (1000 * NSEC_PER_MSEC_)
/* Samples of its share that must have been taken: the first ones are chance. */
#define TANDEM_STRAGGLER_SAMPLES 3U

/*
 * Part of the time in which some other vCPU is idle although the straggler has work, or is kept from it: from the first
 * on others wait for it, below the second they do not. Looked at this often; one look counts for a sixteenth.
 */
#define TANDEM_HOLDS_UP 256U
#define TANDEM_HOLDS_UP_NO_MORE 128U
#define TANDEM_HOLDS_UP_EVERY_NS (20 * NSEC_PER_MSEC_)
/*
 * Beside a straggler that is left nobody can see whether others would wait for it: to let it work again is a trial. It
 * lasts for this long at least; if it fails within four seconds, the ban that follows lasts twice as long as the
 * one before, up to a minute.
 */
#define TANDEM_TRIAL_NS (100 * NSEC_PER_MSEC_)
#define TANDEM_TRIAL_PASSED_NS (4000 * NSEC_PER_MSEC_)
#define TANDEM_TRIALS_MAX 6U

struct straggler_view {
	u64 others_sum;		/* shares of all other vCPUs that are in use, summed */
	u32 others;		/* how many these are */
	u32 share;		/* 0..1024 */
	u32 samples;
	bool fresh;		/* is the share believed? */
	bool banned;
	u64 since_ns;		/* for how long that has been so */
};

POLICY bool is_straggler(const struct straggler_view *v)
{
	u64 all = (u64)v->share * v->others;

	if (!v->fresh || !v->others || v->samples < TANDEM_STRAGGLER_SAMPLES)
		return false;
	if (v->since_ns < TANDEM_BAN_HOLD_NS)
		return v->banned;
	return v->banned ? all * TANDEM_STRAGGLER_ABOVE < v->others_sum : all * TANDEM_STRAGGLER_BELOW <= v->others_sum;
}

/* The part of the time with one more look. */
POLICY u32 held_up(u32 part, bool others_idle)
{
	return (u32)ewma_u64(part, others_idle ? TANDEM_SCALE : 0, 4);
}

/*
 * Do others wait for a straggler, so that it is better left without normal work? What was decided stays for a while.
 * `failed`: trials in a row that did.
 */
POLICY bool holds_others_up(u32 part, bool banned, u64 since_ns, u32 failed)
{
	if (since_ns < (banned ? TANDEM_BAN_HOLD_NS << (failed < TANDEM_TRIALS_MAX ? failed : TANDEM_TRIALS_MAX) : TANDEM_TRIAL_NS))
		return banned;
	return part >= (banned ? TANDEM_HOLDS_UP_NO_MORE : TANDEM_HOLDS_UP);
}

/* Trials in a row that failed, after one that lasted for so long. */
POLICY u32 trials_failed(u32 failed, u64 lasted_ns)
{
	return lasted_ns >= TANDEM_TRIAL_PASSED_NS ? 0 : failed < TANDEM_TRIALS_MAX ? failed + 1 : failed;
}

/* May a vCPU with these bans take normal work that could go elsewhere? */
POLICY bool takes_normal(u32 bans)
{
	return !bans;
}

/* And best effort? `stack_busy`: another of its stack has normal work. */
POLICY bool takes_best_effort(u32 bans, bool stack_busy)
{
	return !(bans & TANDEM_BAN_EMPTY) && !stack_busy;
}

/* The bans of a vCPU that was parked by these. */
POLICY u32 bans_of_parked(u32 parked_by)
{
	return (parked_by & TANDEM_PARKED_BY_OPERATOR ? TANDEM_BAN_PARKED : 0) |
	       (parked_by & TANDEM_PARKED_BY_CROWD ? TANDEM_BAN_CROWDED : 0);
}

#endif
