/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Measuring: feeds samples of each vCPU into its model (policy/guest/vcap.h), and keeps the summary by which
 * the hot paths decide whether to evaluate the models at all.
 */
#ifndef TANDEM_GUEST_OBSERVE_BPF_H
#define TANDEM_GUEST_OBSERVE_BPF_H

#include "ban.bpf.h"

/* Share (upper half) and capacity (lower half) of an online vCPU; ~0: it is offline. */
COLD u64 share_and_capacity_of(u32 cpu, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);

	return c && c->online ? (u64)share_of(c, now) << 32 | capacity(c, now) : ~0ULL;
}

/* A round through all vCPUs, one scan at a time: where it stands, and what it has found so far. */
struct {
	u32 held;		/* locked: a CPU is working on it */
	u32 next;		/* vCPU to visit next */
	u32 least_share;
	u32 least_capacity;
	u32 most_capacity;
} survey;

/* How often bans are reviewed on a large machine, whose rounds follow each other closely. */
#define REVIEW_EVERY_NS (10 * NSEC_PER_MSEC_)

u64 reviewed_at_ns;

static __always_inline void survey_ends(u64 now)
{
	contended = survey.least_share < TANDEM_CONTENDED_SHARE;
	/* Steal is reported after all. */
	if (steal_untold && steal_accounted(bpf_get_smp_processor_id()))
		steal_untold = 0;
	uneven = push_gains(survey.least_capacity, survey.most_capacity);
	if (!rwc_enabled || (nr_cpu_ids > MAX_LOOK && now - reviewed_at_ns < REVIEW_EVERY_NS))
		return;
	reviewed_at_ns = now;
	review_bans(now);
}

/* Continue the summary; at most once per window and vCPU. On a small machine each call is a whole round. */
COLD int summarise(u64 now)
{
	u32 i;

	if (__sync_lock_test_and_set(&survey.held, 1))
		return 0;
	if (!survey.next) {
		survey.least_share = TANDEM_SCALE;
		survey.least_capacity = TANDEM_SCALE;
		survey.most_capacity = 0;
	}
	bpf_for(i, 0, nr_scanned()) {
		u64 both = share_and_capacity_of(survey.next, now);

		if (both != ~0ULL) {
			survey.least_share = min_u64(survey.least_share, both >> 32);
			survey.least_capacity = min_u64(survey.least_capacity, (u32)both);
			survey.most_capacity = max_u64(survey.most_capacity, (u32)both);
		}
		survey.next = cpu_after(survey.next, 1);
		if (!survey.next) {
			survey_ends(now);
			break;
		}
	}
	barrier();
	survey.held = 0;
	return 0;
}

/*
 * A vCPU has lost much of its share at once: the neighbours on the host have moved, and what was measured of
 * other, idle vCPUs may no longer hold. Their estimates become stale, so that a task may try them.
 */
COLD int forget_others(s32 cpu)
{
	u32 i;

	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (c && i != (u32)cpu && is_idle(c))
			c->side.model.updated_ns = 0;
	}
	return 0;
}

/* A sample that is this late was delayed by a preemption interval. */
#define LOOK_LATE_NS (250 * NSEC_PER_USEC_)

/* A tick of a busy CPU: when was it due? */
static __always_inline void expect_tick(struct cpu_state *c, u64 now)
{
	if (!tick_known)
		learn_tick(now);
	c->side.scan_due_ns = c->side.tick_at_ns ? c->side.tick_at_ns + tick_ns : 0;
	c->side.tick_at_ns = now;
}

/* What the vCPU did since its last sample. */
enum vcpu_was {
	WAS_BUSY,
	WAS_WOKEN,	/* was idle until now; whether it found work does not matter */
	WAS_CALLED,	/* likewise, and was kicked at a time chosen by when it would run */
};

/* A sample, as the preemption period (phase.h) gets it. */
#define STEP_BUSY 1U
#define STEP_OVERDUE 2U
#define STEP_RETURNS_SHIFT 2
#define STEP_RETURNS_MAX 1024U

/* Feed a sample to the vCPU's preemption period. Apart from the rest, so that the verifier checks it once. */
COLD int rhythm_learns(u32 cpu, u64 now, u64 elapsed, u64 stolen, u32 step)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return 0;
	if (step & STEP_BUSY)
		phase_busy(&c->side.phase, now, elapsed, stolen, step >> STEP_RETURNS_SHIFT, step & STEP_OVERDUE);
	else
		phase_woken(&c->side.phase, now, stolen, step >> STEP_RETURNS_SHIFT);
	return 0;
}

static __always_inline void learn_rhythm(struct cpu_state *c, s32 cpu, u64 now, u64 elapsed, u64 stolen, u32 step)
{
	if (stolen >= TANDEM_PHASE_MIN_NS || (!(step & STEP_BUSY) && phase_even(&c->side.phase)))
		rhythm_learns(cpu, now, elapsed, stolen, step);
	else if (!(step & STEP_BUSY))
		phase_idle(&c->side.phase);
}

static __always_inline void observe_once(struct cpu_state *c, s32 cpu, u64 now, enum vcpu_was was)
{
	u64 steal = steal_of(cpu), elapsed, stolen;
	bool overdue;
	/* Halving the page's count loses one bit of it. */
	u32 all = sched_ins_of(cpu), sched_ins = (all - (u32)c->side.seen_sched_ins) & 0x7fffffffU, changed, step;

	/* A sample is overdue if the tick, or a timer before it, should have taken it earlier. */
	elapsed = sub_floor_u64(now, c->side.seen_at_ns);
	overdue = c->side.scan_due_ns && time_before_ns(c->side.scan_due_ns + LOOK_LATE_NS, now);
	if (steal_untold)
		steal = c->side.seen_steal_ns + (overdue && was == WAS_BUSY ? steal_guessed(now - c->side.scan_due_ns, elapsed) : 0);
	c->side.scan_due_ns = 0;
	stolen = sub_floor_u64(steal, c->side.seen_steal_ns);
	c->side.seen_at_ns = now;
	c->side.seen_inactive_ns = 0;
	c->side.seen_steal_ns = steal;
	c->side.seen_sched_ins = all;
	c->side.wanted_ns += was == WAS_BUSY ? elapsed : stolen;
	c->side.stolen_ns += stolen;
	if (stolen >= TANDEM_PREEMPTION_MIN_NS)
		trace(TRACE_PREEMPTED, 0, stolen);
	step = (u32)min_u64(sched_ins, STEP_RETURNS_MAX) << STEP_RETURNS_SHIFT;
	step |= (was == WAS_BUSY ? STEP_BUSY : 0) | (overdue ? STEP_OVERDUE : 0);
	learn_rhythm(c, cpu, now, elapsed, stolen, step);
	if (was == WAS_BUSY) {
		changed = vcap_busy(&c->side.model, now, elapsed, stolen, sched_ins);
	} else {
		/* Where steal is estimated from ticks, the wait of a wake-up is not known. */
		if (was == WAS_CALLED || steal_untold) {
			vcap_called(&c->side.model);
			return;
		}
		changed = vcap_arrive(&c->side.model, now, sub_floor_u64(elapsed, stolen), stolen);
		vcap_pool_wait(&pool, stolen);
	}
	if (!changed)
		return;
	if (changed & VCAP_SAMPLED)
		vcap_pool_share(&pool, &c->side.model);
	if (changed & VCAP_DROPPED) {
		count(c, CNT_DROPS);
		forget_others(cpu);
	}
	summarise(now);
}

/*
 * Take one sample of this CPU. Call it on that CPU. A tick may interrupt a timer that is taking one: that one
 * is enough.
 */
static __always_inline void observe(struct cpu_state *c, s32 cpu, u64 now, enum vcpu_was was)
{
	if (c->side.observing)
		return;
	c->side.observing = 1;
	barrier();
	observe_once(c, cpu, now, was);
	barrier();
	c->side.observing = 0;
}

#endif
