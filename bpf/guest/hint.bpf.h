/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Latency hints: the user marks tasks as latency-sensitive, by name or by cgroup. They count as if they had
 * asked for the shortest request by sched_setattr(): earlier deadlines, and places where they are served soon
 * (policy/guest/place.h). They do not get more CPU time: a request says when, not how much.
 */
#ifndef TANDEM_GUEST_HINT_BPF_H
#define TANDEM_GUEST_HINT_BPF_H

#include "records.bpf.h"

struct task_name {
	char text[TASK_NAME_LEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_HINTS);
	__type(key, struct task_name);
	__type(value, u32);
} hinted_names SEC(".maps");

/* By cgroup id. Filled before the scheduler is attached: child cgroups inherit the hint when they are added. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_HINTS);
	__type(key, u64);
	__type(value, u32);
} hinted_groups SEC(".maps");

/* There are hints. Set by the loader. */
const volatile bool hints_enabled = false;

static __always_inline bool group_hinted(u64 id, const struct group_state *parent)
{
	return hints_enabled && ((parent && parent->side.hinted) || bpf_map_lookup_elem(&hinted_groups, &id));
}

static __always_inline bool task_hinted(const struct task_struct *p, const struct group_state *g)
{
	struct task_name name;

	if (!hints_enabled)
		return false;
	if (g && g->side.hinted)
		return true;
	__builtin_memcpy(name.text, p->comm, sizeof(name.text));
	return bpf_map_lookup_elem(&hinted_names, &name);
}

#endif
