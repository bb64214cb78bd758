/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The vCPU limit: how many vCPUs are worth using.
 *
 * A VM with more busy vCPUs than the host gives it pCPUs steals from itself: the work done stays the same, and
 * every thread waits twice, once in the guest and once on the host. Inside of the VM its own vCPUs cannot be
 * told from neighbours that take the time, but a trial can: with as many vCPUs as pCPUs were got, the steal
 * vanishes in the first case and stays in the second.
 *
 *   all     high steal in two windows in a row         -> try
 *   try     a short window with few vCPUs: the steal is gone, and there
 *           was as much CPU time as before             -> few, otherwise all
 *   few     tasks wait                                 -> more
 *           high steal, or for long little to do       -> all
 *   more    a short window with half as many again, in
 *           which more CPU time was got                -> few (this many)
 *
 * The vCPUs of a trial may have been on the same pCPU: the steal stays then, too. The first trial therefore
 * tries other vCPUs twice before it has failed, unless it got far too little CPU time for that. From then on
 * each trial that fails doubles the time until the next, which tries other vCPUs as well. The same holds for
 * trials with more vCPUs; after one that failed the previous vCPUs are in use again.
 *
 * VCPU-Bal (APSys'13) has the host tell each VM how many vCPUs to use; this is what the guest can find out
 * alone. The method is ours.
 */
#ifndef TANDEM_POLICY_VCPU_LIMIT_H
#define TANDEM_POLICY_VCPU_LIMIT_H

#include "../base.h"

/* Length of a window, of a trial window, and of the pause after a change: vCPUs have to be emptied first. */
#define TANDEM_VCPU_LIMIT_WINDOW_NS 400000000ULL
#define TANDEM_VCPU_LIMIT_TRIAL_NS 150000000ULL
#define TANDEM_VCPU_LIMIT_SETTLE_NS 30000000ULL
/* Thousandths of the time of busy vCPUs: high steal, negligible steal. */
#define TANDEM_VCPU_LIMIT_MUCH 300U
#define TANDEM_VCPU_LIMIT_LITTLE 150U
/* Time from a failed trial to the next, at first and at most. */
#define TANDEM_VCPU_LIMIT_PAUSE_NS (2000 * NSEC_PER_MSEC_)
#define TANDEM_VCPU_LIMIT_LONGEST_NS (300000 * NSEC_PER_MSEC_)
/* The first trial tries other vCPUs this many times, if it got two fifths of the CPU time before the trial. */
#define TANDEM_VCPU_LIMIT_OTHERS 2U
/*
 * Little to do: this many thousandths of the vCPUs in use are busy, or fewer. After this much more time with
 * little to do than with much all vCPUs are in use again: they cost nothing then, and answer sooner. This need
 * not be half a minute without interruption: something runs now and then on every machine.
 */
#define TANDEM_VCPU_LIMIT_LITTLE_BUSY 300U
#define TANDEM_VCPU_LIMIT_IDLE_NS (30000 * NSEC_PER_MSEC_)

/* Measurements of a window, summed over all vCPUs. */
struct vcpu_limit_seen {
	u64 length_ns;
	u64 ran_ns;		/* vCPUs had work, steal included */
	u64 stolen_ns;
	u64 waited_ns;		/* tasks waited for a vCPU that ran other tasks */
};

enum vcpu_limit_state {
	VCPU_LIMIT_ALL = 0,
	VCPU_LIMIT_TRY = 1,
	VCPU_LIMIT_FEW = 2,
	VCPU_LIMIT_MORE = 3,
};

struct vcpu_limit {
	u64 rest_ns;		/* until the next trial */
	u64 pause_ns;		/* after the next trial that fails */
	u64 idle_ns;		/* time with little to do less time with much */
	u32 state;		/* enum vcpu_limit_state */
	u32 used;		/* vCPUs in use; 0: all */
	u32 before;		/* vCPUs in use before the trial */
	u32 got;		/* pCPUs got before the trial, or in the window before, in thousandths */
	u32 lost;		/* steal before the trial, in thousandths of the time of busy vCPUs */
	u32 in_a_row;		/* windows in a row with high steal */
	u32 attempt;		/* selects the vCPUs to be used */
	u32 settled;		/* before a trial with more: `attempt` then */
	u32 in_vain;		/* choices for more vCPUs that failed since */
	u32 others;		/* choices that failed in this trial */
};

/* Thousandths; 0 if there is nothing to compare with. */
POLICY u32 vcpu_limit_part(u64 part, u64 whole)
{
	/* In microseconds: a window of many vCPUs stays far below 2^50. */
	part /= NSEC_PER_USEC_;
	whole /= NSEC_PER_USEC_;
	return whole ? (u32)min_u64(min_u64(part, 1ULL << 50) * 1000 / whole, 1U << 30) : 0;
}

/* Number of vCPUs that `got` thousandths of a pCPU would fill. */
POLICY u32 vcpu_limit_enough(u32 got)
{
	u32 enough = (got + 850) / 1000;

	return enough ? enough : 1;
}

POLICY void vcpu_limit_enter(struct vcpu_limit *c, u32 state, u32 used)
{
	c->state = state;
	c->used = used;
	c->in_a_row = 0;
	c->idle_ns = 0;
	c->others = 0;
}

POLICY void vcpu_limit_failed(struct vcpu_limit *c, u32 state, u32 used, u32 attempt)
{
	c->pause_ns = c->pause_ns ? min_u64(2 * c->pause_ns, TANDEM_VCPU_LIMIT_LONGEST_NS) : TANDEM_VCPU_LIMIT_PAUSE_NS;
	c->rest_ns = c->pause_ns;
	c->attempt = attempt;
	vcpu_limit_enter(c, state, used);
}

/* May this trial still try other vCPUs? Then it does. */
POLICY bool vcpu_limit_others(struct vcpu_limit *c)
{
	if (c->pause_ns || c->others >= TANDEM_VCPU_LIMIT_OTHERS)
		return false;
	c->others++;
	c->attempt++;
	return true;
}

/*
 * Do the vCPUs in use give as much CPU time, used or not, as was got with more? Threads that wait for each
 * other leave some of it idle on the way.
 */
POLICY bool vcpu_limit_as_much(const struct vcpu_limit *c, u32 busy, u32 got)
{
	u64 stolen = busy > got ? busy - got : 0;

	return sub_floor_u64(1000ULL * c->used, stolen) * 20 >= (u64)c->got * 19;
}

POLICY void vcpu_limit_worked(struct vcpu_limit *c)
{
	c->pause_ns = 0;
	c->rest_ns = 0;
	c->in_vain = 0;
	vcpu_limit_enter(c, VCPU_LIMIT_FEW, c->used);
}

/*
 * A window is over; `usable` vCPUs could be used. From now on c->used of them are in use (0: all). Returns the
 * length of the next window.
 */
POLICY u64 vcpu_limit_window(struct vcpu_limit *c, const struct vcpu_limit_seen *s, u32 usable)
{
	u64 done_ns = sub_floor_u64(s->ran_ns, s->stolen_ns);
	u32 busy = vcpu_limit_part(s->ran_ns, s->length_ns), got = vcpu_limit_part(done_ns, s->length_ns);
	u32 lost = vcpu_limit_part(min_u64(s->stolen_ns, s->ran_ns), s->ran_ns);
	u32 waiting = vcpu_limit_part(s->waited_ns, s->length_ns), enough, more, most;
	bool little, much = lost >= TANDEM_VCPU_LIMIT_MUCH && busy >= (c->state == VCPU_LIMIT_ALL ? 1500 : 500);

	c->rest_ns = sub_floor_u64(c->rest_ns, s->length_ns);
	c->in_a_row = much ? min_u64(c->in_a_row + 1, 1000) : 0;
	if (c->used > usable || (c->used == usable && c->state != VCPU_LIMIT_MORE))
		vcpu_limit_enter(c, VCPU_LIMIT_ALL, 0);
	switch (c->state) {
	case VCPU_LIMIT_TRY:
		little = lost <= max_u64(TANDEM_VCPU_LIMIT_LITTLE, c->lost / 3);
		if (little && (busy < 850 * c->used || vcpu_limit_as_much(c, busy, got)))
			vcpu_limit_worked(c);
		else if (little || got * 5ULL < c->got * 2ULL || !vcpu_limit_others(c))
			vcpu_limit_failed(c, VCPU_LIMIT_ALL, 0, c->attempt + 1);
		break;
	case VCPU_LIMIT_MORE:
		if (lost < TANDEM_VCPU_LIMIT_MUCH && got >= c->got + 300 * (c->used - c->before)) {
			vcpu_limit_worked(c);
			break;
		}
		c->in_vain++;
		if (c->used == usable || !vcpu_limit_others(c))
			vcpu_limit_failed(c, VCPU_LIMIT_FEW, c->before, c->settled);
		break;
	case VCPU_LIMIT_FEW:
		c->idle_ns = busy <= TANDEM_VCPU_LIMIT_LITTLE_BUSY * c->used ? c->idle_ns + s->length_ns
									  : sub_floor_u64(c->idle_ns, s->length_ns);
		if (c->in_a_row >= 2 || c->idle_ns >= TANDEM_VCPU_LIMIT_IDLE_NS) {
			c->pause_ns = 0;
			c->rest_ns = TANDEM_VCPU_LIMIT_PAUSE_NS;
			vcpu_limit_enter(c, VCPU_LIMIT_ALL, 0);
		} else if (!c->rest_ns && waiting >= 500 * c->used && usable > c->used) {
			more = c->used + (c->used > 1 ? c->used / 2 : 1);
			c->before = c->used;
			c->settled = c->attempt;
			c->attempt += c->in_vain;
			c->got = got;
			c->lost = lost;
			vcpu_limit_enter(c, VCPU_LIMIT_MORE, (u32)min_u64(more, usable));
		}
		break;
	default:
		/* Work may have begun in the middle of one of the two windows: the better one counts. */
		most = c->in_a_row > 1 ? (u32)max_u64(c->got, got) : got;
		enough = vcpu_limit_enough(most);
		c->got = got;
		if (c->in_a_row >= 2 && !c->rest_ns && enough < usable && enough * 4000 <= busy * 3) {
			c->before = 0;
			c->got = most;
			c->lost = lost;
			vcpu_limit_enter(c, VCPU_LIMIT_TRY, enough);
		}
	}
	return c->state == VCPU_LIMIT_TRY || c->state == VCPU_LIMIT_MORE ? TANDEM_VCPU_LIMIT_TRIAL_NS : TANDEM_VCPU_LIMIT_WINDOW_NS;
}

#endif
