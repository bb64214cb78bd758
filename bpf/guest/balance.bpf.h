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

/* Would `cpu`, which is idle, pull one of so many tasks that wait for `from_cpu`? */
COLD bool would_take(s32 cpu, s32 from_cpu, u32 waiting, bool far, u64 now)
{
	struct cpu_state *c = cpu_state(cpu), *from = cpu_state(from_cpu);
	struct pull_view view = { 0 };

	if (!c || !from)
		return false;
	view = (struct pull_view){
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

/* How good a helper is `cpu` for p, which waits for `from_cpu` with so many? */
enum help { HELP_NONE, HELP_FAR, HELP_NEAR };

COLD u32 help_of(struct task_struct *p __arg_trusted, s32 cpu, s32 from_cpu, u32 waiting)
{
	struct cpu_state *c = cpu_state(cpu);
	bool far;

	if (!c || cpu == from_cpu || !c->online || c->side.bans || !is_idle(c) || !k_allowed(p, cpu))
		return HELP_NONE;
	far = far_apart(from_cpu, cpu);
	if (!would_take(cpu, from_cpu, waiting, far, k_now()))
		return HELP_NONE;
	return far ? HELP_FAR : HELP_NEAR;
}

/*
 * An idle vCPU that would pull p, which waits for `from_cpu`; preferably one with the same last-level cache. A
 * weak vCPU that would decline is not even kicked: a kick costs the host two exits.
 */
COLD s32 helper_for(struct task_struct *p __arg_trusted, s32 from_cpu)
{
	struct cpu_state *from = cpu_state(from_cpu);
	u32 first = scan_from(), waiting, help, i;
	s32 distant = -1;

	if (!from)
		return -1;
	/*
	 * Without p, which the kernel puts there after enqueue(): for the first one that waits nobody is kicked. Which is better depends on the
	 * host. (Simulated, two seeds, with p counted: beside real neighbours silo's p95 is 1.9 times EEVDF's instead of 3.1, specjbb's 1.2
	 * instead of 1.9; where a real-time task preempts by turns nginx's is 0.92 of CFS's instead of 0.60, as that vCPU had been chosen for it.)
	 */
	waiting = waiting_normal(from_cpu, from);
	bpf_for(i, 0, nr_candidates()) {
		s32 cpu = candidate(p, first, i);

		if (distant >= 0 && far_apart(from_cpu, cpu))
			continue;
		help = help_of(p, cpu, from_cpu, waiting);
		if (help == HELP_NEAR)
			return cpu;
		if (help == HELP_FAR)
			distant = cpu;
	}
	return distant;
}

/* `cpu` pulls the first normal task that waits for `from`, if there is one and that is wise. */
COLD bool pull_from(s32 cpu, s32 from, bool far)
{
	struct cpu_state *own = cpu_state(cpu), *c = cpu_state(from);
	u64 now = k_now();
	bool inactive;
	u32 waiting;

	if (!own || !c || far_apart(cpu, from) != far)
		return false;
	waiting = waiting_normal(from, c);
	if (!waiting)
		nobody_waits_at(from, c);
	if (!waiting || reserved(c, now))
		return false;
	inactive = is_preempted(from, c, now);
	if (!would_take(cpu, from, waiting, far, now)) {
		count(own, CNT_DECLINED);
		return false;
	}
	if (!k_take(queue_of(from, CLASS_NORMAL)) && !k_take(late_queue_of(from)))
		return false;
	count(own, CNT_PULLED);
	if (inactive)
		count(own, CNT_RESCUED);
	if (c->side.awaited_pid)
		count(own, CNT_TAKEN_BACK);
	if (far)
		count(own, CNT_FAR);
	return true;
}

COLD bool take_normal_at(s32 cpu, bool far)
{
	struct cpu_state *own = cpu_state(cpu);
	enum walk walk = far ? WALK_FAR : WALK_NEAR;
	s32 from, at;
	u32 i;

	if (!own || own->side.bans)
		return false;
	from = walk_begins(own, walk, cpu);
	at = from;
	bpf_for(i, 0, MAX_LOOK) {
		at = next_waiting(from, at, false);
		if (at < 0)
			return false;
		if (at != cpu && pull_from(cpu, at, far))
			return true;
	}
	walk_ends(own, walk, at);
	return false;
}

/* Pull one waiting normal task from another vCPU, preferably one with the same last-level cache. */
static __always_inline bool take_normal(s32 cpu)
{
	return take_normal_at(cpu, false) || (nr_llcs > 1 && take_normal_at(cpu, true));
}

#endif
