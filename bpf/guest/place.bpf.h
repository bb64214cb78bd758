/* SPDX-License-Identifier: GPL-2.0-only */
/* Wake-up placement, and active balance: the migration of a running task to a stronger vCPU. */
#ifndef TANDEM_GUEST_PLACE_BPF_H
#define TANDEM_GUEST_PLACE_BPF_H

#include "ivh.bpf.h"

/* Expected wait of a wake-up on this vCPU, if it is idle now. */
static __always_inline u64 wait_of(const struct cpu_state *c, u64 now)
{
	return vcap_wait_after_ns(&c->side.model, now, sub_floor_u64(now, c->side.seen_at_ns));
}

/* Share assumed for a vCPU, pooled with what is true of all. `prior`: vcap_prior(). */
static __always_inline u32 believed_share(const struct cpu_state *c, u64 now, u32 prior)
{
	return has(PART_POOL) ? vcap_share_believed(&c->side.model, now, &pool, prior) : share_of(c, now);
}

/*
 * A function apart from the loop that calls it: otherwise the verifier would follow each of its paths through
 * every iteration.
 */
COLD u64 cost_of(u32 cpu, u64 work_ns, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);
	struct place_view view = { 0 };
	u32 prior;

	if (!c)
		return ~0ULL;
	prior = vcap_prior(&c->side.model, &pool);
	view = (struct place_view){
		.queued_work = c->queued_work,
		.nr_tasks = c->tasks[class_index(CLASS_NORMAL)],
		.inactive_mean_ns = vcap_fresh(&c->side.model, now) ? c->side.model.inactive_mean_ns : 0,
		.share = believed_share(c, now, prior),
		.speed = c->side.speed,
		.idle = is_idle(c),
		.here = cpu == bpf_get_smp_processor_id(),
	};

	if (!has(PART_WAITS))
		view.wait_ns = vcap_wait_by_share_ns(&c->side.model, now);
	else	/* This vCPU will have been idle for any length of time when it is woken again. */
		view.wait_ns = view.here ? vcap_wait_ns(&c->side.model, now) : wait_of(c, now);
	if (has(PART_POOL))
		view.wait_ns = vcap_wait_believed_ns(&c->side.model, now, view.wait_ns, &pool, prior);
	view.share = beside(view.share, cpu);
	if (has(PART_STATE)) {
		view.inactive_for_ns = inactive_for(c, cpu, now);
		if (c->side.phase.whole && !view.idle)
			view.on_cpu_for_ns = max_u64(sub_floor_u64(now, c->side.phase.scheduled_in_ns), 1);
	}
	/*
	 * Not of an idle vCPU, of which only the host knows: where it has a quota, that is not used meanwhile,
	 * and its period begins when the vCPU works again.
	 */
	if (ivh_enabled && !is_idle(c) && c->side.phase.whole) {
		struct forecast f = phase_forecast(&c->side.phase, now);

		view.predicted = f.known;
		view.active_for_ns = f.active_for_ns;
		view.preempted_for_ns = f.preempted_for_ns;
		view.active_mean_ns = c->side.phase.on.mean_ns;
	}
	return place_cost_ns(&view, work_ns);
}

/*
 * Where p is expected to be done first, among the vCPUs without a ban for its class or (`banned`) among the
 * others; -1: it may use none.
 */
COLD s32 cheapest_of(struct task_struct *p __arg_trusted, struct task_state *t __arg_nonnull, s32 prev_cpu, bool banned)
{
	u64 now = k_now(), best_cost = ~0ULL, work;
	u32 from = scan_from(), i;
	const struct cpumask *idle;
	s32 best = -1;

	work = place_work_ns(t->mean_burst_ns, t->base_ns, base_request_ns);
	idle = scx_bpf_get_idle_cpumask();
	/* On a large machine the previous vCPU comes last. */
	bpf_for(i, 0, nr_candidates() + (nr_cpu_ids > MAX_LOOK)) {
		u32 cpu = i < nr_candidates() ? candidate(p, from, i) : (u32)prev_cpu;
		struct cpu_state *c = cpu_state(cpu);
		u64 cost;

		if (!c || !c->online || (nr_banned && allowed_here(t->class, c, cpu) == banned) || !k_allowed(p, cpu))
			continue;
		cost = cost_of(cpu, work, now);
		/* A task that was placed at the same moment is on its way there; its work is booked when it runs. */
		if (is_idle(c) && !c->queued_work && !bpf_cpumask_test_cpu(cpu, idle))
			cost += work;
		if (cpu != (u32)prev_cpu)
			cost += move_cost_ns(far_apart(prev_cpu, cpu));
		if (cost < best_cost) {
			best_cost = cost;
			best = cpu;
		}
	}
	scx_bpf_put_idle_cpumask(idle);
	return best;
}

/* The vCPU on which p is expected to be done first. A banned one only if p may run nowhere else. */
static __always_inline s32 cheapest_cpu(struct task_struct *p, struct task_state *t, s32 prev_cpu)
{
	s32 cpu = cheapest_of(p, t, prev_cpu, false);

	if (cpu < 0 && nr_banned)
		cpu = cheapest_of(p, t, prev_cpu, true);
	return cpu < 0 ? prev_cpu : cpu;
}

COLD u32 capacity_at_worst(u32 cpu, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);

	return c ? beside(at_its_speed(c, vcap_at_worst(&c->side.model, now)), cpu) : 0;
}

/*
 * A vCPU worth leaving `cpu` for: idle or with SCHED_IDLE tasks only, clearly stronger, and allowed. Called
 * from the tick.
 */
COLD s32 stronger_idle_cpu(struct task_struct *p __arg_trusted, s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	u32 from = scan_from(), best_cap, i;
	u64 now = k_now();
	s32 best = -1;

	if (!own)
		return -1;
	best_cap = beside(at_its_speed(own, vcap_at_best(&own->side.model, now)), cpu);
	bpf_for(i, 0, nr_candidates()) {
		u32 other = candidate(p, from, i), cap;
		struct cpu_state *c = cpu_state(other);

		if (!c || other == (u32)cpu || !c->online || !k_allowed(p, other))
			continue;
		if (c->side.bans || (!is_idle(c) && c->curr_class != CLASS_BEST_EFFORT))
			continue;
		cap = capacity_at_worst(other, now);
		if (push_gains(best_cap, cap) && !k_waiting(queue_of(other, CLASS_NORMAL))) {
			best_cap = cap;
			best = other;
		}
	}
	return best;
}

#endif
