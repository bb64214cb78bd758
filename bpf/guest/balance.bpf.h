/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Newidle balance: a vCPU without work of its own pulls waiting tasks.
 *
 * All waiting tasks sit in per-vCPU user DSQs (a local DSQ holds at most the task that runs next), so that any
 * vCPU may pull them, also from one that the host has preempted and that could not push anything itself.
 */
#ifndef TANDEM_GUEST_BALANCE_BPF_H
#define TANDEM_GUEST_BALANCE_BPF_H

#include "place.bpf.h"
#include "../core/hotplug.bpf.h"

/* Would `cpu`, which is idle, pull a task that waits for `from`? */
static __always_inline bool would_take(struct cpu_state *c, s32 cpu, struct cpu_state *from, s32 from_cpu, u32 waiting,
				       bool far, u64 now)
{
	struct pull_view view = {
		.drain_ns = far ? place_drain_ns(booked_slices_ns(from->queued_work), capacity(from, now)) : 0,
		.far = far,
		.waiting = waiting,
		.from_share = capacity(from, now),
		.to_share = capacity_beside(c, cpu, now),
		.source_burst_ns = from->curr_class == CLASS_NORMAL ? from->curr_burst_ns : 0,
		.source_inactive = is_preempted(from_cpu, from, now),
	};

	return pull_helps(&view);
}

/*
 * An idle vCPU that would pull p, which waits for `from_cpu`; preferably one with the same last-level cache. A
 * weak vCPU that would decline is not even kicked: a kick costs the host two exits.
 */
static __noinline s32 helper_for(struct task_struct *p, s32 from_cpu)
{
	struct cpu_state *from = cpu_state(from_cpu);
	u32 first = scan_from(), i;
	u64 now = k_now();
	s32 distant = -1;

	if (!p || !from)
		return -1;
	bpf_for(i, 0, nr_candidates()) {
		u32 cpu = candidate(p, first, i);
		struct cpu_state *c = cpu_state(cpu);
		bool far;

		if (!c || cpu == (u32)from_cpu || !c->online || c->side.bans || !is_idle(c) || !k_allowed(p, cpu))
			continue;
		far = far_apart(from_cpu, cpu);
		if (far && distant >= 0)
			continue;
		if (!would_take(c, cpu, from, from_cpu, waiting_normal(from_cpu, from), far, now))
			continue;
		if (!far)
			return cpu;
		distant = cpu;
	}
	return distant;
}

static __noinline bool take_normal_at(s32 cpu, bool far)
{
	struct cpu_state *own = cpu_state(cpu);
	u64 now = k_now();
	u32 at = cpu, i;

	if (!own || own->side.bans)
		return false;
	bpf_for(i, 0, MAX_LOOK) {
		s32 from = next_waiting(cpu, at, false);
		struct cpu_state *c = cpu_state(from);
		bool inactive;
		u32 waiting;

		if (!c)
			break;
		at = from;
		if (far_apart(cpu, from) != far)
			continue;
		waiting = waiting_normal(from, c);
		if (!waiting)
			nobody_waits_at(from, c);
		if (!waiting || reserved(c, now))
			continue;
		inactive = is_preempted(from, c, now);
		if (!would_take(own, cpu, c, from, waiting, far, now)) {
			count(own, CNT_DECLINED);
			continue;
		}
		if (k_take(queue_of(from, CLASS_NORMAL)) || k_take(late_queue_of(from))) {
			count(own, CNT_PULLED);
			if (inactive)
				count(own, CNT_RESCUED);
			if (c->side.awaited_pid)
				count(own, CNT_TAKEN_BACK);
			if (far)
				count(own, CNT_FAR);
			return true;
		}
	}
	return false;
}

/* Pull one waiting normal task from another vCPU, preferably one with the same last-level cache. */
static __always_inline bool take_normal(s32 cpu)
{
	return take_normal_at(cpu, false) || (nr_llcs > 1 && take_normal_at(cpu, true));
}

static __noinline bool take_best_effort(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	u32 at = cpu, i;

	if (!own)
		return false;
	bpf_for(i, 0, MAX_LOOK) {
		s32 from = next_waiting(cpu, at, false);
		struct cpu_state *c = cpu_state(from);

		if (!c)
			break;
		at = from;
		if (waiting_best_effort(from, c) && k_take(queue_of(from, CLASS_BEST_EFFORT))) {
			count(own, CNT_PULLED);
			return true;
		}
	}
	return false;
}

#endif
