/* SPDX-License-Identifier: GPL-2.0-only */
/* Callbacks about cgroups and about CPUs that come and go: each hands on to the core. */
#ifndef TANDEM_GUEST_TREE_OPS_BPF_H
#define TANDEM_GUEST_TREE_OPS_BPF_H

#include "balance.bpf.h"

s32 BPF_STRUCT_OPS_SLEEPABLE(guest_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	return tree_add(cgrp, args);
}

void BPF_STRUCT_OPS_SLEEPABLE(guest_cgroup_exit, struct cgroup *cgrp)
{
	group_remove(k_cgroup_id(cgrp));
}

/* Called with the task off its queue: it has left the old group's accounts, and joins the new one's later. */
void BPF_STRUCT_OPS(guest_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_state *t = task_state(p);

	if (t && cgroups_enabled)
		t->group = group_of(to);
}

void BPF_STRUCT_OPS(guest_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	tree_set_weight(own_group_of(cgrp), weight);
}

void BPF_STRUCT_OPS(guest_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	tree_set_bandwidth(own_group_of(cgrp), period_us, quota_us, burst_us);
}

void BPF_STRUCT_OPS(guest_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	tree_set_idle(own_group_of(cgrp), idle);
}

void BPF_STRUCT_OPS(guest_cpu_online, s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || c->online)
		return;
	c->online = 1;
	/* Whatever it had armed before it went. */
	c->timer_at_ns = 0;
	c->run_until_ns = 0;
	c->model.updated_ns = 0;
	phase_forget(&c->phase);
	c->harvest_stage = HARVEST_NONE;
	if (__sync_val_compare_and_swap(&c->left, 1, 0) == 1)
		__sync_fetch_and_sub(&nr_offline, 1);
}

void BPF_STRUCT_OPS(guest_cpu_offline, s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (c)
		leaves(c);
}

#endif
