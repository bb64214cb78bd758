/* SPDX-License-Identifier: GPL-2.0-only */
/* Callbacks about cgroups; each calls into tree.bpf.h. */
#ifndef TANDEM_CORE_TREE_OPS_BPF_H
#define TANDEM_CORE_TREE_OPS_BPF_H

#include "tree.bpf.h"

s32 BPF_STRUCT_OPS_SLEEPABLE(core_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	return tree_add(cgrp, args);
}

void BPF_STRUCT_OPS_SLEEPABLE(core_cgroup_exit, struct cgroup *cgrp)
{
	group_remove(k_cgroup_id(cgrp));
}

/* Called with the task dequeued: it has left the old group's accounts, and joins the new one's later. */
void BPF_STRUCT_OPS(core_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_state *t = task_state(p);

	if (t && cgroups_enabled)
		t->group = group_of(to);
}

void BPF_STRUCT_OPS(core_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	tree_set_weight(own_group_of(cgrp), weight);
}

void BPF_STRUCT_OPS(core_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	tree_set_bandwidth(own_group_of(cgrp), period_us, quota_us, burst_us);
}

void BPF_STRUCT_OPS(core_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	tree_set_idle(own_group_of(cgrp), idle);
}

#endif
