/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Taking work: what a vCPU without work of its own runs.
 *
 * All waiting tasks sit in per-vCPU user queues (local queues hold at most the
 * task that runs next), so that any vCPU may take them, also from one that
 * the host has preempted and that could not hand anything over itself.
 */
#ifndef TANDEM_GUEST_BALANCE_BPF_H
#define TANDEM_GUEST_BALANCE_BPF_H

#include "place.bpf.h"

/* Offline vCPUs may keep tasks in their queue. Written by hotplug only. */
u32 nr_offline;

/* Take one task from the queue of an offline vCPU. */
static __noinline bool take_orphan(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	u32 i;

	if (!own)
		return false;
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (!c || c->online)
			continue;
		if (k_take(queue_of(i, CLASS_NORMAL)) || k_take(queue_of(i, CLASS_BEST_EFFORT))) {
			count(own, CNT_ORPHANS);
			return true;
		}
	}
	return false;
}

/*
 * Take one waiting normal task from another vCPU. With `rescue_only`, just
 * from vCPUs that the host has preempted: this one has work of its own.
 */
static __noinline bool take_normal(s32 cpu, bool rescue_only)
{
	struct cpu_state *own = cpu_state(cpu);
	u64 now = k_now();
	u32 own_cap, i;

	if (!own)
		return false;
	own_cap = capacity(own, now);
	bpf_for(i, 1, nr_cpu_ids) {
		u32 from = (u32)cpu + i;
		struct cpu_state *c;
		struct pull_view view = {};

		if (from >= nr_cpu_ids)
			from -= nr_cpu_ids;
		c = cpu_state(from);
		if (!c)
			continue;
		view.waiting = k_waiting(queue_of(from, CLASS_NORMAL));
		if (!view.waiting)
			continue;
		view.from_share = capacity(c, now);
		view.to_share = own_cap;
		view.source_burst_ns = c->curr_class == CLASS_NORMAL ? c->curr_burst_ns : 0;
		view.source_inactive = off_pcpu(from, c, now);
		if (rescue_only && !view.source_inactive)
			continue;
		if (!pull_helps(&view)) {
			count(own, CNT_DECLINED);
			continue;
		}
		if (k_take(queue_of(from, CLASS_NORMAL))) {
			count(own, CNT_PULLED);
			if (view.source_inactive)
				count(own, CNT_RESCUED);
			return true;
		}
	}
	return false;
}

static __noinline bool take_best_effort(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	u32 i;

	if (!own)
		return false;
	bpf_for(i, 1, nr_cpu_ids) {
		u32 from = (u32)cpu + i;

		if (from >= nr_cpu_ids)
			from -= nr_cpu_ids;
		if (k_waiting(queue_of(from, CLASS_BEST_EFFORT)) && k_take(queue_of(from, CLASS_BEST_EFFORT))) {
			count(own, CNT_PULLED);
			return true;
		}
	}
	return false;
}

#endif
