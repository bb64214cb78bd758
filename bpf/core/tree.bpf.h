/* SPDX-License-Identifier: GPL-2.0-only */
/* Puts what the kernel says about cgroups into the records of groups.bpf.h and quota.bpf.h. */
#ifndef TANDEM_CORE_TREE_BPF_H
#define TANDEM_CORE_TREE_BPF_H

#include "throttle.bpf.h"

/* "No limit" is the largest number of microseconds that fits; from here on a quota counts as none. */
#define NO_QUOTA_US (1ULL << 40)

static __always_inline void tree_set_bandwidth(u32 group, u64 period_us, u64 quota_us, u64 burst_us)
{
	bool limited = quota_us && quota_us < NO_QUOTA_US;

	/* The kernel does not let the root have one. */
	if (group == ROOT_GROUP) {
		if (limited)
			count_task(CNT_UNENFORCED, 0);
		return;
	}
	set_quota(group, limited ? quota_us * 1000 : 0, period_us * 1000, burst_us * 1000);
	/* Throttled tasks may go on, or at least have a new time to wait for. */
	quota_timer_by(k_now(), k_now());
}

/* The quota that a new cgroup comes with. `group`: its record; the root's if it has none. */
static __always_inline void tree_set_first_bandwidth(u32 group, struct scx_cgroup_init_args *args)
{
	if (bpf_core_field_exists(args->bw_quota_us))
		tree_set_bandwidth(group, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
}

static __always_inline void tree_set_weight(u32 group, u32 weight)
{
	struct group_state *g = group_state(group);

	if (!g || group == ROOT_GROUP)
		return;
	g->weight = weight_of_cgroup(weight);
	refresh_soon(k_now());
}

static __always_inline void tree_set_idle(u32 group, bool idle)
{
	struct group_state *g = group_state(group), *parent;

	if (!g || group == ROOT_GROUP)
		return;
	parent = group_state(g->parent);
	g->own_idle = idle;
	g->idle = idle || (parent && parent->idle);
	/* Groups below get it with the next refresh. */
	refresh_soon(k_now());
}

static __always_inline s32 tree_add(struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	u64 id = k_cgroup_id(cgrp), parent_id = k_cgroup_parent_id(cgrp);
	u32 group = group_add(id, parent_id);
	struct group_state *g = group_state(group);
	s32 err;

	if (!g || g->id != id || group == ROOT_GROUP) {
		tree_set_first_bandwidth(ROOT_GROUP, args);
		return 0;
	}
	/* A number that is used again still has its throttled queue. */
	err = scx_bpf_create_dsq(throttle_queue_of(group), -1);
	if (err && err != -EEXIST) {
		/* No memory. An error would keep somebody from creating a cgroup: its tasks count as the root's own instead. */
		group_remove(id);
		tree_set_first_bandwidth(ROOT_GROUP, args);
		return 0;
	}
	side_group_added(g, group_state(g->parent));
	tree_set_weight(group, args->weight);
	tree_set_first_bandwidth(group, args);
	tree_set_idle(group, k_cgroup_idle(cgrp));
	return 0;
}

#endif
