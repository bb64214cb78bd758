/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Proactive migration: the target of a task that leaves a vCPU (policy/guest/ivh.h). It is the one with the
 * largest gain; or, where it is not known when the others run, one whose preemption period is learned in this
 * way.
 */
#ifndef TANDEM_GUEST_IVH_TARGET_BPF_H
#define TANDEM_GUEST_IVH_TARGET_BPF_H

#include "claim.bpf.h"

/* Nothing to do but SCHED_IDLE tasks, or so little that the task gets its slice soon. */
static __always_inline bool may_be_target(const struct cpu_state *c)
{
	return c->online && !c->side.bans && booked_slices_ns(c->queued_work) <= TANDEM_IVH_BUSY_NS;
}

/* How much of this vCPU's active period leaving takes. */
static __always_inline u64 loss_of(const struct cpu_state *c)
{
	return ivh_loss_ns(&c->side.phase, c->side.ivh_latency_ns, c->side.ivh_early_ns);
}

/*
 * What `to` would do for a task that leaves `cpu` at `at`, left_ns before that is preempted. For a target whose
 * preemption period is not known the mean is expected.
 */
COLD u64 gain_at(u32 cpu, u32 to, u64 now)
{
	struct cpu_state *c = cpu_state(cpu), *target = cpu_state(to);
	struct ivh_view view = { 0 };
	struct forecast f;
	u64 loss, at;
	u32 share;

	if (!c || !target)
		return 0;
	loss = loss_of(c);
	at = time_before_ns(now + loss, c->side.ivh_end_ns) ? c->side.ivh_end_ns - loss : now;
	view.left_ns = sub_floor_u64(c->side.ivh_end_ns, at);
	view.away_ns = c->side.phase.off.mean_ns;
	view.margin_ns = loss;
	view.risk = c->side.ivh_risk;
	view.cost_ns = c->side.ivh_cost_ns ? c->side.ivh_cost_ns : TANDEM_IVH_COST_NS;
	view.queue_ns = booked_slices_ns(target->queued_work);
	view.stay_ns = ~0ULL >> 1;
	share = share_of(target, now);
	f = phase_forecast(&target->side.phase, at);
	if (f.known) {
		view.wait_ns = f.preempted_for_ns;
		view.stay_ns = f.active_for_ns ? f.active_for_ns : target->side.phase.on.mean_ns;
		return ivh_gain_ns(&view);
	}
	view.taken = share < TANDEM_CONTENDED_SHARE;
	if (target->side.model.inactive_events && share < TANDEM_SCALE) {
		bool there = answered(target) || (!is_idle(target) && !is_preempted(to, target, now));

		if (!there)
			view.wait_ns = target->side.model.inactive_mean_ns * (TANDEM_SCALE - share) / TANDEM_SCALE;
	}
	return ivh_gain_ns(&view);
}

enum prospect {
	PROSPECT_NONE,	/* no target is worth it */
	PROSPECT_CALL,	/* there are some, but it is not known whether they will run: they have to be kicked */
	PROSPECT_KNOWN,	/* there are some, and for one of them it is known when it will run */
};

/* Will there be a target at the predicted end? Returns enum prospect. */
COLD u32 prospect_of(u32 cpu, s32 pid, u64 now)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	u32 from = scan_from(), best = PROSPECT_NONE, i;

	if (!p)
		return PROSPECT_NONE;
	bpf_rcu_read_lock();
	bpf_for(i, 0, nr_candidates()) {
		u32 other = candidate(p, from, i);
		struct cpu_state *c = cpu_state(other);

		if (!c || other == cpu || !k_allowed(p, other) || !may_be_target(c) || !gain_at(cpu, other, now))
			continue;
		best = max_u64(best, rhythm_known(c, now) ? PROSPECT_KNOWN : PROSPECT_CALL);
		if (best == PROSPECT_KNOWN)
			break;
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return best;
}

/* A vCPU that gets no less of its pCPU, and whose preemption period is not known; -1: none. */
COLD s32 one_to_learn(u32 cpu, s32 pid, u64 now)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct cpu_state *own = cpu_state(cpu);
	u32 from = scan_from(), i;
	s32 found = -1;

	if (!p)
		return -1;
	bpf_rcu_read_lock();
	bpf_for(i, 0, nr_candidates()) {
		u32 other = candidate(p, from, i);
		struct cpu_state *c = cpu_state(other);

		if (!c || !own || other == cpu || !is_idle(c) || rhythm_known(c, now) || !k_allowed(p, other))
			continue;
		if (!may_be_target(c) || claimed(c, now) || share_of(c, now) >= TANDEM_CONTENDED_SHARE)
			continue;
		if (!ivh_learns(capacity(own, now), capacity(c, now), c->side.learned_at_ns ? now - c->side.learned_at_ns : now))
			continue;
		found = other;
		break;
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return found;
}

/* Claim that vCPU: it need not run now. */
static __always_inline int call_to_learn(struct cpu_state *c, s32 cpu, u64 now)
{
	struct cpu_state *target = cpu_state(c->side.ivh_learn);

	if (!target || !claim(target, cpu, c->side.ivh_end_ns + c->side.phase.off.mean_ns, now))
		return 0;
	target->side.answered_at_ns = 0;
	target->side.learned_at_ns = now;
	c->side.ivh_to = c->side.ivh_learn;
	c->side.ivh_gain_ns = 0;
	return 1;
}

/*
 * Claim the target with the largest gain, if there is any, and kick it if need be. Called from the timer and
 * from dispatch.
 */
COLD int call_target(u32 cpu, s32 pid)
{
	struct task_struct *p;
	struct cpu_state *c = cpu_state(cpu), *target;
	u64 now = k_now(), best = 0, gain;
	u32 from = scan_from(), i;
	s32 to = -1;

	if (c && c->side.ivh_learn >= 0)
		return call_to_learn(c, cpu, now);
	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	/* For the verifier, which also sees the timer set up from a sleepable program. */
	bpf_rcu_read_lock();
	if (c && !k_is_pinned(p)) {
		bpf_for(i, 0, nr_candidates()) {
			u32 other = candidate(p, from, i);

			target = cpu_state(other);
			if (!target || other == cpu || other == (u32)c->side.ivh_to || !k_allowed(p, other))
				continue;
			if (!may_be_target(target) || (claimed(target, now) && !claimed_by(target, cpu)))
				continue;
			gain = gain_at(cpu, other, now);
			if (gain > best) {
				best = gain;
				to = other;
			}
		}
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	target = cpu_state(to);
	if (!c || to < 0 || !target)
		return 0;
	if (!call(target, to, cpu, c->side.ivh_end_ns + c->side.phase.off.mean_ns, now))
		return 0;
	if (c->side.ivh_to >= 0)
		release_claim(c->side.ivh_to, cpu);
	c->side.ivh_to = to;
	c->side.ivh_gain_ns = best;
	count_of(c, CNT_PREDICTED, sub_floor_u64(c->side.ivh_end_ns, now));
	return 1;
}

#endif
