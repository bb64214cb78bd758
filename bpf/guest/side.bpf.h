/* SPDX-License-Identifier: GPL-2.0-only */
/* The guest side's answers to core/side.bpf.h. */
#ifndef TANDEM_GUEST_SIDE_BPF_H
#define TANDEM_GUEST_SIDE_BPF_H

#include "dedicate.bpf.h"
#include "hint.bpf.h"
#include "vcpu.bpf.h"

static __always_inline u32 side_capacity(const struct cpu_state *c, u64 now)
{
	return capacity(c, now);
}

static __always_inline u64 side_stolen_ns(s32 cpu)
{
	return steal_of(cpu);
}

/* In a guest nothing is lent. */
static __always_inline u64 side_charge_ns(struct task_state *t, struct cpu_state *c, s32 cpu, u64 service_ns)
{
	return service_ns;
}

static __always_inline u64 side_request_ns(const struct task_struct *p, const struct task_state *t, const struct group_state *g,
					   const struct cpu_state *c)
{
	if (!task_hinted(p, g))
		return c->base_request_ns;
	count_task(CNT_HINTED, p->pid);
	return min_u64(TANDEM_REQUEST_MIN_NS, c->base_request_ns);
}

static __always_inline u64 side_slice_ns(const struct task_state *t, const struct cpu_state *c)
{
	return t->base_ns;
}

static __always_inline u64 side_wake_request_ns(const struct task_state *t)
{
	return wake_request_ns(t->base_ns, t->mean_burst_ns);
}

static __always_inline void side_request_done(struct task_state *t, const struct cpu_state *c)
{
}

static __always_inline bool side_usable(const struct cpu_state *c)
{
	return !c->side.bans;
}

static __always_inline u64 side_debt_ns(const struct task_struct *p, struct task_state *t, u64 now)
{
	return 0;
}

static __always_inline u32 side_cpu_bound_allowance(const struct cpu_state *c, u64 now)
{
	return 1;
}

static __always_inline bool side_may_move(const struct task_state *t, s32 from, s32 to, bool needed)
{
	return true;
}

static __always_inline void side_cpu_lost(struct cpu_state *c)
{
}

static __always_inline void side_group_added(struct group_state *g, const struct group_state *parent)
{
	g->side.hinted = group_hinted(g->id, parent);
}

static __always_inline void side_task_begins(struct task_state *t)
{
	t->side.home = -1;
}

static __always_inline void side_task_ends(const struct task_struct *p, struct task_state *t)
{
	end_lease(t, p->pid);
}

static __always_inline void side_joined(struct task_state *t, s32 cpu)
{
}

static __always_inline void side_left(struct task_state *t)
{
}

static __always_inline void side_cpu_online(struct cpu_state *c)
{
	c->side.model.updated_ns = 0;
	phase_forget(&c->side.phase);
	c->side.ivh_stage = IVH_NONE;
}

static __always_inline void side_dump(void)
{
	scx_bpf_dump("tandem: contended=%u uneven=%u\n", contended, uneven);
}

static __always_inline void side_dump_cpu(const struct cpu_state *c)
{
	scx_bpf_dump("tandem: share=%u/1024 preemption_us=%llu\n", c->side.model.share, c->side.model.inactive_mean_ns / 1000);
}

#endif
