/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Relaxed work conservation (rwc): vCPUs that are better left without work (vSched, EuroSys'25, section 3.4).
 *
 * A straggler is a vCPU that gets about a tenth of what the others get. It makes all threads of a program wait for
 * the one that runs there, so it takes SCHED_IDLE tasks only. If no other vCPU goes idle while the straggler has
 * work, its threads are independent, and it keeps taking normal work. (The paper leaves it empty all the same.)
 *
 * Of vCPUs that are stacked on one hardware thread one works and the others stay empty: together they are no
 * faster than one, and the host switches between them at times of its own choosing. A parked vCPU was taken out
 * of use, by the operator or because the VM has more vCPUs than the host gives it pCPUs (policy/guest/vcpu_limit.h).
 *
 * A ban keeps tasks away that may run elsewhere. Tasks that may not, by their affinity or their cpuset, run where
 * they have to; affinity is not touched. A stale estimate counts as an ordinary vCPU, so that a ban ends by itself.
 */
#ifndef TANDEM_POLICY_RWC_H
#define TANDEM_POLICY_RWC_H

#include "../base.h"

#define TANDEM_BAN_STRAGGLER 1U		/* SCHED_IDLE tasks only */
#define TANDEM_BAN_STACKED 2U		/* nothing, while the working vCPU of its stack has normal work */
#define TANDEM_BAN_PARKED 4U		/* nothing */
#define TANDEM_BAN_LIMITED 8U		/* nothing: more vCPUs than pCPUs (policy/guest/vcpu_limit.h) */

/* Bans that leave a vCPU empty, whatever the other vCPUs of its stack do. */
#define TANDEM_BAN_EMPTY (TANDEM_BAN_PARKED | TANDEM_BAN_LIMITED)

/* What has taken a vCPU out of use. */
#define TANDEM_PARKED_BY_OPERATOR 1U
#define TANDEM_PARKED_BY_LIMIT 2U

/* A straggler is banned at 1/8 of the mean share of the others, and released at 1/5 of it. */
#define TANDEM_STRAGGLER_BELOW 8U
#define TANDEM_STRAGGLER_ABOVE 5U
/* A ban of a straggler lasts for this long at least, and so does the time without one. */
#define TANDEM_BAN_HOLD_NS (1000 * NSEC_PER_MSEC_)
/* Number of samples of its share that it takes: the first ones are chance. */
#define TANDEM_STRAGGLER_SAMPLES 3U

/*
 * Part of the time in which some other vCPU is idle while the straggler has work, or is kept from it. From the
 * first value on others wait for the straggler, below the second they do not. It is sampled this often; one
 * sample counts for a sixteenth.
 */
#define TANDEM_HOLDS_UP 256U
#define TANDEM_HOLDS_UP_NO_MORE 128U
#define TANDEM_HOLDS_UP_EVERY_NS (20 * NSEC_PER_MSEC_)
/*
 * Beside a straggler that is left without work one cannot see whether others would wait for it: using it again
 * is a trial. A trial lasts for this long at least. If it fails within four seconds, the next ban lasts twice
 * as long as the one before, up to a minute.
 */
#define TANDEM_TRIAL_NS (100 * NSEC_PER_MSEC_)
#define TANDEM_TRIAL_PASSED_NS (4000 * NSEC_PER_MSEC_)
#define TANDEM_TRIALS_MAX 6U

struct straggler_view {
	u64 others_sum;		/* sum of the shares of all other vCPUs in use */
	u32 others;		/* number of these */
	u32 share;		/* 0..1024 */
	u32 samples;
	bool fresh;		/* the share is not stale */
	bool banned;
	u64 since_ns;		/* since `banned` last changed */
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

/* The part of the time with one more sample. */
POLICY u32 delayed_others(u32 part, bool others_idle)
{
	return (u32)ewma_u64(part, others_idle ? TANDEM_SCALE : 0, 4);
}

/*
 * Do others wait for a straggler, so that it is better left without normal work? A decision holds for a while.
 * `failed`: number of trials in a row that failed.
 */
POLICY bool holds_others_up(u32 part, bool banned, u64 since_ns, u32 failed)
{
	if (since_ns < (banned ? TANDEM_BAN_HOLD_NS << (failed < TANDEM_TRIALS_MAX ? failed : TANDEM_TRIALS_MAX) : TANDEM_TRIAL_NS))
		return banned;
	return part >= (banned ? TANDEM_HOLDS_UP_NO_MORE : TANDEM_HOLDS_UP);
}

/* Number of trials in a row that failed, after one that lasted for `lasted_ns`. */
POLICY u32 trials_failed(u32 failed, u64 lasted_ns)
{
	return lasted_ns >= TANDEM_TRIAL_PASSED_NS ? 0 : failed < TANDEM_TRIALS_MAX ? failed + 1 : failed;
}

/* May a vCPU with these bans take normal tasks that may run elsewhere? */
POLICY bool takes_normal(u32 bans)
{
	return !bans;
}

/* May it take SCHED_IDLE tasks? `stack_busy`: another vCPU of its stack has normal work. */
POLICY bool takes_best_effort(u32 bans, bool stack_busy)
{
	return !(bans & TANDEM_BAN_EMPTY) && !stack_busy;
}

/* The bans of a vCPU that was parked for these reasons. */
POLICY u32 bans_of_parked(u32 parked_by)
{
	return (parked_by & TANDEM_PARKED_BY_OPERATOR ? TANDEM_BAN_PARKED : 0) |
	       (parked_by & TANDEM_PARKED_BY_LIMIT ? TANDEM_BAN_LIMITED : 0);
}

#endif
