/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The preemption period of a vCPU: when it will be preempted, and when it will be scheduled in again.
 *
 * Many hosts preempt a vCPU periodically: bandwidth control, or one CPU-bound neighbour with the same slice.
 * What has been even will be even a little longer. Irregular preemption is not predicted: a neighbour with
 * exponential lengths has no memory, and then this model has no forecast. What disturbs an even host now and
 * then (its own work, a timer that was late) is ignored.
 *
 * A preemption interval is known exactly where a sample of the clock was overdue when it ended (a tick or a
 * timer that should have fired meanwhile fires at once): the vCPU was scheduled in now, and preempted one
 * stolen time ago. An active period is measured only if the vCPU was busy for all of it (`whole`): an idle vCPU
 * does not show when the host would have preempted it.
 *
 * (vSched, EuroSys'25, section 3.3, predicts with a fixed 2 ms after the last schedule-in; section 3.1 measures
 * mean active and inactive periods.)
 */
#ifndef TANDEM_POLICY_PHASE_H
#define TANDEM_POLICY_PHASE_H

#include "../base.h"

/* Shorter preemption intervals are work of the host itself; they do not disturb a period. */
#define TANDEM_PHASE_MIN_NS (500 * NSEC_PER_USEC_)
/* Longer preemption intervals contain at least one tick of any kernel: their end is seen at once. */
#define TANDEM_PHASE_EXACT_NS (4500 * NSEC_PER_USEC_)
/* Longer periods cannot be followed. */
#define TANDEM_PHASE_MAX_NS (200 * NSEC_PER_MSEC_)
/* A forecast reaches this many periods ahead: small errors of the period add up. */
#define TANDEM_PHASE_HORIZON 24U
/* Samples that differ by this much more than a quarter do not fit. */
#define TANDEM_RHYTHM_SLACK_NS (200 * NSEC_PER_USEC_)
/* Scores of a length: the highest, and the lowest that counts as even. */
#define TANDEM_RHYTHM_SURE 8U
#define TANDEM_RHYTHM_EVEN 4U
/* After this many wrong forecasts in a row the position in the period is discarded. */
#define TANDEM_PHASE_MISSES 2U
/* Number of schedule-ins after which the clock is relied on, and after which it only follows slowly. */
#define TANDEM_CLOCK_SURE 3U
#define TANDEM_CLOCK_SET 6U
/* The clock is reset after two schedule-ins in a row that were too early for it, or four that were too late. */
#define TANDEM_CLOCK_STRAYS 4U
/*
 * A schedule-in fits the clock if it is off by less than a sixteenth of the period. The minimum and maximum of that.
 */
#define TANDEM_CLOCK_SLACK_NS (600 * NSEC_PER_USEC_)
#define TANDEM_CLOCK_SLACK_MAX_NS (1 * NSEC_PER_MSEC_)

/*
 * A length that is the same again and again, apart from exceptions: its mean and mean deviation. `score` says
 * how certain that is: one more for a sample that fits, two less for one that does not, up to
 * TANDEM_RHYTHM_SURE.
 */
struct rhythm_length {
	u64 mean_ns;
	u64 dev_ns;
	u32 score;
};

struct vcpu_phase {
	u64 scheduled_in_ns;		/* last observed schedule-in; 0: not known */
	u64 clock_ns;			/* last schedule-in by the clock that follows all of them; 0: not set */
	u64 period_ns;			/* of that clock; 0: mean active period and preemption interval */
	u64 clock_dev_ns;		/* mean deviation of schedule-ins from that clock */
	u64 scheduled_in_dev_ns;		/* likewise, from what the schedule-in before each predicted */
	struct rhythm_length on;	/* active periods, on its pCPU */
	struct rhythm_length off;	/* preemption intervals */
	u32 whole;			/* busy without interruption since `scheduled_in_ns`, which is exact */
	u32 inexact;			/* preemption intervals in a row whose end was not seen at once, up to 255 */
	u32 misses;			/* wrong forecasts in a row */
	u32 clock_score;		/* schedule-ins that it has followed, up to TANDEM_CLOCK_SET */
	u32 strays;			/* schedule-ins in a row that did not fit it; early ones count twice */
};

/* What a vCPU is expected to do. */
struct forecast {
	u64 active_for_ns;	/* until it is preempted; 0: it is preempted */
	u64 preempted_for_ns;	/* until it is scheduled in; 0: it is running */
	bool known;
};

POLICY u64 length_off_ns(const struct rhythm_length *l, u64 sample_ns)
{
	return sample_ns > l->mean_ns ? sample_ns - l->mean_ns : l->mean_ns - sample_ns;
}

POLICY bool length_fits(const struct rhythm_length *l, u64 sample_ns)
{
	return length_off_ns(l, sample_ns) <= l->mean_ns / 4 + TANDEM_RHYTHM_SLACK_NS;
}

/*
 * Of exponential lengths less than a fifth fit, and the score hardly ever reaches TANDEM_RHYTHM_EVEN. Of even
 * lengths that are disturbed now and then four fifths fit.
 */
POLICY void length_seen(struct rhythm_length *l, u64 sample_ns)
{
	bool fits;
	u64 off;

	sample_ns = min_u64(sample_ns, TANDEM_PHASE_MAX_NS);
	fits = l->score && length_fits(l, sample_ns);
	if (!fits && l->score > 2) {
		l->score -= 2;
		return;
	}
	if (!fits) {
		l->mean_ns = sample_ns;
		l->dev_ns = 0;
		l->score = 1;
		return;
	}
	off = length_off_ns(l, sample_ns);
	l->dev_ns = l->score == 1 ? off : ewma_u64(l->dev_ns, off, 2);
	l->mean_ns = ewma_u64(l->mean_ns, sample_ns, 2);
	if (l->score < TANDEM_RHYTHM_SURE)
		l->score++;
}

/* Is a length even enough for a forecast? */
POLICY bool length_even(const struct rhythm_length *l)
{
	return l->score >= TANDEM_RHYTHM_EVEN;
}

POLICY bool phase_even(const struct vcpu_phase *p)
{
	return p->scheduled_in_ns && length_even(&p->on) && length_even(&p->off);
}

POLICY u64 phase_period_ns(const struct vcpu_phase *p)
{
	return max_u64(p->period_ns ? p->period_ns : p->on.mean_ns + p->off.mean_ns, 1);
}

/*
 * A schedule-in is seen late, by the time that an interrupt takes to get through: up to a millisecond where it
 * is emulated. The clock that follows all schedule-ins is better than the last one, unless the host keeps no
 * clock: a neighbour whose slices vary in length shifts everything after them.
 */
POLICY bool phase_has_clock(const struct vcpu_phase *p)
{
	return p->clock_score >= TANDEM_CLOCK_SURE && 2 * p->clock_dev_ns <= 3 * p->scheduled_in_dev_ns + NSEC_PER_MSEC_ / 10;
}

/* The expected schedule-ins from one on, and how long the vCPU is active after each. */
struct phase_grid {
	u64 base_ns;
	u64 period_ns;
	u64 active_ns;
};

POLICY struct phase_grid phase_grid(const struct vcpu_phase *p)
{
	struct phase_grid g = { .base_ns = p->scheduled_in_ns, .period_ns = phase_period_ns(p), .active_ns = p->on.mean_ns };

	if (phase_has_clock(p)) {
		g.base_ns = p->clock_ns;
		/* The host itself reports the length of a preemption interval. */
		g.active_ns = max_u64(sub_floor_u64(g.period_ns, p->off.mean_ns), 1);
	}
	return g;
}

/* Expected error of the predicted end of an active period. */
POLICY u64 phase_doubt_ns(const struct vcpu_phase *p)
{
	return min_u64(phase_has_clock(p) ? p->clock_dev_ns : 2 * p->on.dev_ns, TANDEM_PHASE_MAX_NS);
}

/* Time since the latest predicted schedule-in. Up to TANDEM_PHASE_HORIZON periods after the last observed one. */
POLICY u64 phase_past_return_ns(const struct phase_grid *g, u64 now_ns)
{
	return sub_floor_u64(now_ns, g->base_ns) % g->period_ns;
}

POLICY bool phase_within_horizon(const struct vcpu_phase *p, u64 now_ns)
{
	return sub_floor_u64(now_ns, p->scheduled_in_ns) / TANDEM_PHASE_HORIZON <= phase_period_ns(p);
}

/*
 * Samples at ticks only may never meet the end of a short preemption interval: both have a period of 4 ms.
 * Samples at other times are worth their timers then, unless many of them have not helped.
 */
POLICY bool phase_wants_scouts(const struct vcpu_phase *p)
{
	return p->inexact >= 2 && p->inexact < 255 && !phase_even(p);
}

/* Restarts the clock with a schedule-in; 0: there is none. */
POLICY void clock_set(struct vcpu_phase *p, u64 scheduled_in_ns)
{
	p->clock_ns = scheduled_in_ns;
	p->clock_score = 0;
	p->strays = 0;
}

/* Discards everything that was learned: the host does something else now. */
POLICY void phase_forget(struct vcpu_phase *p)
{
	p->scheduled_in_ns = 0;
	clock_set(p, 0);
	p->period_ns = 0;
	p->on.score = 0;
	p->off.score = 0;
	p->whole = 0;
	p->inexact = 0;
	p->misses = 0;
}

/* A forecast was wrong. The lengths may still be right; only the position in the period is no longer known. */
POLICY void phase_missed(struct vcpu_phase *p)
{
	if (++p->misses < TANDEM_PHASE_MISSES)
		return;
	p->scheduled_in_ns = 0;
	clock_set(p, 0);
	p->misses = 0;
}

/* Compares `scheduled_in_ns` with the nearest time that is a number of periods after `base_ns`, and gives that number. */
struct return_off {
	u64 count;
	u64 expected_ns;
	u64 off_ns;
};

POLICY struct return_off return_off(u64 base_ns, u64 period_ns, u64 scheduled_in_ns)
{
	struct return_off r = { 0 };

	r.count = (sub_floor_u64(scheduled_in_ns, base_ns) + period_ns / 2) / max_u64(period_ns, 1);
	r.expected_ns = base_ns + r.count * period_ns;
	r.off_ns = scheduled_in_ns > r.expected_ns ? scheduled_in_ns - r.expected_ns : r.expected_ns - scheduled_in_ns;
	return r;
}

/*
 * The clock of schedule-ins: the deviation of each one corrects its position and period. The first ones count
 * as in a line fitted to all of them (growing-memory g-h filter: Brookner, Tracking and Kalman Filtering Made
 * Easy, 1998, section 1.2.10). After that the clock follows slowly, and early schedule-ins move it more than
 * late ones: the guest itself causes the delays, and there are no negative ones.
 */
POLICY void clock_follow(struct vcpu_phase *p, u64 scheduled_in_ns)
{
	u64 lengths = p->on.mean_ns + p->off.mean_ns, period = phase_period_ns(p), step, vtime;
	struct return_off r = return_off(p->clock_ns, period, scheduled_in_ns);
	u32 k = p->clock_score + 1;
	bool early = r.expected_ns > scheduled_in_ns, fits, void_now;

	if (!r.count)
		return;
	p->clock_dev_ns = ewma_u64(p->clock_dev_ns, min_u64(r.off_ns, TANDEM_CLOCK_SLACK_MAX_NS), 3);
	fits = r.off_ns <= min_u64(max_u64(period / 16, TANDEM_CLOCK_SLACK_NS), TANDEM_CLOCK_SLACK_MAX_NS);
	/* With half or twice the period it would go on fitting some of the schedule-ins. */
	void_now = r.count > TANDEM_PHASE_HORIZON || period > lengths + lengths / 8 || period < lengths - lengths / 8;
	/* A late one proves little. */
	if (!fits)
		p->strays += early ? 2 : 1;
	if (void_now || p->strays >= TANDEM_CLOCK_STRAYS) {
		p->period_ns = 0;
		clock_set(p, scheduled_in_ns);
		return;
	}
	if (!fits)
		return;
	if (k >= TANDEM_CLOCK_SET) {
		step = min_u64(r.off_ns, TANDEM_CLOCK_SLACK_NS) / (early ? 2 : 10);
		vtime = step / 8;
	} else {
		step = r.off_ns * 2 * (2 * k + 1) / ((k + 1) * (k + 2));
		vtime = k == 1 ? r.off_ns / 2 : r.off_ns * 6 / ((k + 1) * (k + 2));
	}
	vtime /= r.count;
	p->clock_ns = early ? r.expected_ns - step : r.expected_ns + step;
	p->period_ns = max_u64(early ? sub_floor_u64(period, vtime) : period + vtime, 1);
	p->strays = 0;
	if (p->clock_score < TANDEM_CLOCK_SET)
		p->clock_score++;
}

POLICY_LARGE int phase_returned(struct vcpu_phase *p, u64 scheduled_in_ns)
{
	struct return_off r;

	if (!p)
		return 0;
	if (p->scheduled_in_ns && p->on.score && p->off.score) {
		r = return_off(p->scheduled_in_ns, phase_period_ns(p), scheduled_in_ns);
		if (r.count)
			p->scheduled_in_dev_ns = ewma_u64(p->scheduled_in_dev_ns,
						      min_u64(r.off_ns, TANDEM_CLOCK_SLACK_MAX_NS), 3);
		if (p->clock_ns)
			clock_follow(p, scheduled_in_ns);
		else
			clock_set(p, scheduled_in_ns);
	}
	p->scheduled_in_ns = scheduled_in_ns;
	return 0;
}

/* Is a time near an expected schedule-in of the clock? */
POLICY bool clock_expects(const struct vcpu_phase *p, u64 now_ns)
{
	struct return_off r = return_off(p->clock_ns, phase_period_ns(p), now_ns);

	return phase_has_clock(p) && r.count && r.count <= TANDEM_PHASE_HORIZON && r.off_ns <= TANDEM_CLOCK_SLACK_NS;
}

/*
 * The vCPU was busy for `elapsed_ns` up to now. Of these the host stole `stolen_ns`, in `returns` preemption
 * intervals. `overdue`: this sample should have come earlier.
 */
POLICY void phase_busy(struct vcpu_phase *p, u64 now_ns, u64 elapsed_ns, u64 stolen_ns, u32 sched_ins, bool overdue)
{
	u64 ran_ns, left_ns;

	stolen_ns = min_u64(stolen_ns, elapsed_ns);
	if (stolen_ns < TANDEM_PHASE_MIN_NS)
		return;
	if (stolen_ns > TANDEM_PHASE_MAX_NS) {
		phase_forget(p);
		return;
	}
	ran_ns = elapsed_ns - stolen_ns;
	/* Work of the host itself, beside preemption intervals that are much longer. */
	if (length_even(&p->off) && stolen_ns < p->off.mean_ns / 4)
		return;
	/* Several intervals at unknown times: it is only known that the last one is over. */
	if (sched_ins > 1 && length_even(&p->off) && !length_fits(&p->off, stolen_ns)) {
		p->whole = 0;
		return;
	}
	length_seen(&p->off, stolen_ns);
	p->misses = 0;
	/* An end that was not seen at once lies anywhere in between. */
	if (!overdue && stolen_ns < TANDEM_PHASE_EXACT_NS && ran_ns >= TANDEM_PHASE_MIN_NS / 2) {
		p->whole = 0;
		if (p->inexact < 255)
			p->inexact++;
		return;
	}
	left_ns = now_ns - stolen_ns;
	if (p->whole && time_before_ns(p->scheduled_in_ns, left_ns))
		length_seen(&p->on, left_ns - p->scheduled_in_ns);
	phase_returned(p, now_ns);
	p->whole = 1;
	p->inexact = 0;
}

/* The vCPU goes idle: from now on nothing shows when the host would preempt it. */
POLICY void phase_idle(struct vcpu_phase *p)
{
	p->whole = 0;
}

/*
 * The vCPU was woken and waited for its pCPU for `waited_ns`, up to now, in `returns` intervals. A wait ends
 * with a schedule-in; a wake-up that is served at once shows that the vCPU is not preempted. Interrupts of an
 * idle vCPU, which are not observed, make it wait, too: more than one preemption interval is the sum of such
 * waits, and none of them need end now.
 */
POLICY void phase_woken(struct vcpu_phase *p, u64 now_ns, u64 waited_ns, u32 sched_ins)
{
	struct phase_grid g = phase_grid(p);
	u64 past, tolerance;
	bool even = phase_even(p) && phase_within_horizon(p, now_ns);
	bool several = sched_ins > 1 || (length_even(&p->off) && waited_ns > p->off.mean_ns && !length_fits(&p->off, waited_ns));

	p->whole = 0;
	tolerance = max_u64(g.period_ns / 8, TANDEM_PHASE_MIN_NS);
	past = even ? phase_past_return_ns(&g, now_ns) : 0;
	if (several && waited_ns >= TANDEM_PHASE_MIN_NS && clock_expects(p, now_ns)) {
		phase_returned(p, now_ns);
		p->whole = 1;
		return;
	}
	if (!several && waited_ns >= TANDEM_PHASE_MIN_NS && waited_ns <= TANDEM_PHASE_MAX_NS) {
		if (even && past > tolerance && past < g.period_ns - tolerance) {
			/* It may have waited for something else; a period that has shifted shows again. */
			if (waited_ns < p->off.mean_ns / 4)
				return;
			phase_missed(p);
			if (!p->scheduled_in_ns)
				return;
		} else if (even) {
			p->misses = 0;
		}
		if (even || !p->scheduled_in_ns || waited_ns >= p->off.mean_ns / 4) {
			phase_returned(p, now_ns);
			p->whole = 1;
		}
		return;
	}
	/* Running, although it should be preempted? */
	if (waited_ns < TANDEM_PHASE_MIN_NS && even && past > g.active_ns + tolerance && past < g.period_ns - tolerance)
		phase_missed(p);
}

/* Time until it is preempted, or, negative, until it is scheduled in; 0: not known. */
POLICY_LARGE s64 phase_changes_ns(const struct vcpu_phase *p, u64 at_ns)
{
	struct phase_grid g;
	u64 past, ahead;

	if (!p || !phase_even(p) || !phase_within_horizon(p, at_ns) || time_before_ns(at_ns, p->scheduled_in_ns))
		return 0;
	g = phase_grid(p);
	/* It was scheduled in a little before its time by the clock. */
	ahead = sub_floor_u64(g.base_ns, at_ns);
	if (ahead > g.period_ns / 4)
		return 0;
	past = phase_past_return_ns(&g, at_ns);
	if (past < g.active_ns)
		return (s64)max_u64(g.active_ns - past + ahead, 1);
	return -(s64)max_u64(sub_floor_u64(g.period_ns, past), 1);
}

/* The forecast for `at_ns`, which is not before the last schedule-in. */
POLICY struct forecast phase_forecast(const struct vcpu_phase *p, u64 at_ns)
{
	s64 changes_ns = phase_changes_ns(p, at_ns);
	struct forecast f = { .known = changes_ns != 0 };

	if (changes_ns > 0)
		f.active_for_ns = changes_ns;
	else
		f.preempted_for_ns = -changes_ns;
	return f;
}

#endif
