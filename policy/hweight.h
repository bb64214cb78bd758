/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hierarchical weights, flattened: the effective weight of one task in a tree of cgroups.
 *
 * A group of weight w among active siblings and tasks of total weight S gets
 * w / S of what its parent gets. Instead of shares, which underflow in deep
 * trees, every group has a scale: the factor between a task's own weight and
 * its effective weight.
 *
 *     scale(root) = 1,   scale(g) = scale(parent) x weight(g) / S(g)
 *
 * where S(g) sums the weights of g's runnable tasks and active child groups; see light tasks below.
 * A group with one runnable task thus weighs as much as a task of the group's
 * weight, whatever the task's own. The scale is machine-wide and recomputed
 * off the hot path; a task's effective weight is one multiplication at any
 * depth. (Earlier flattening: scx_flatcg, with a walk on activation; the
 * kernel's since 7.3.)
 */
#ifndef TANDEM_POLICY_HWEIGHT_H
#define TANDEM_POLICY_HWEIGHT_H

#include "eevdf.h"

/* Fixed point of scales: 1 << 30 leaves a task its own weight. */
#define TANDEM_SCALE_ONE (1ULL << 30)
/* Largest scale: a group of weight 10000 whose only task has nice 19. */
#define TANDEM_SCALE_MAX (1ULL << 44)
/* A group stays active for this long after its last task went to sleep, so that short sleeps of light tasks change no scale. */
#define TANDEM_GROUP_LINGER_NS 8000000ULL

/* cgroup cpu.weight (1..10000, 100 is ordinary) -> the kernel's load weight. */
POLICY u64 weight_of_cgroup(u32 cgroup_weight)
{
	u64 w = (u64)cgroup_weight * 1024 / 100;

	return w ? w : 1;
}

POLICY u64 effective_weight(u32 own_weight, u64 scale)
{
	/* Rounded to the nearest: light tasks have few steps. */
	u64 w = ((u64)own_weight * min_u64(scale, TANDEM_SCALE_MAX) + (1ULL << 19)) >> 20;

	return w < TANDEM_EFFECTIVE_MIN ? TANDEM_EFFECTIVE_MIN : min_u64(w, TANDEM_EFFECTIVE_MAX);
}

/* `active_weight` is S(g): the weight of the group's runnable tasks and active child groups. */
POLICY u64 group_scale(u64 parent_scale, u64 group_weight, u64 active_weight)
{
	u64 product;

	parent_scale = min_u64(parent_scale, TANDEM_SCALE_MAX);
	group_weight = min_u64(group_weight, 1ULL << 18);
	product = parent_scale * group_weight;
	if (!active_weight)
		active_weight = TANDEM_WEIGHT_NICE_0;
	return max_u64(min_u64(product / active_weight, TANDEM_SCALE_MAX), 1);
}

/*
 * Light tasks: those that usually sleep before they are CPU-bound (is_cpu_bound()). One that runs for a part of the time and is weighed
 * only meanwhile takes its CPU time from all tasks beside it; in a tree of queues its own group would go without it. So, in
 * a group that has CPU-bound tasks, those alone share its weight (S(g) above), and they pay for what the light ones take
 * (task_state.owed_ns). A group that cannot pay, because its light tasks take too much, counts all of them.
 */
/* What a group has to pay for and has not yet, at most. Beyond it, what is more is forgiven, and all of its tasks are counted */
#define TANDEM_UNPAID_MAX_NS (24 * NSEC_PER_MSEC_)
/* for this long. */
#define TANDEM_COUNT_ALL_NS (1000 * NSEC_PER_MSEC_)

/* What a CPU-bound task that is owed `owed_ns` pays, after `service_ns` of CPU time, of its group's `unpaid_ns`. */
POLICY s64 paid_ns(s64 unpaid_ns, s64 owed_ns, u64 service_ns)
{
	s64 room = owed_ns + (s64)TANDEM_UNPAID_MAX_NS, most = (s64)min_u64(service_ns, TANDEM_UNPAID_MAX_NS);

	return clamp_s64(unpaid_ns, 0, clamp_s64(room, 0, most));
}

/*
 * The part of `unpaid_ns` that goes to the child groups, per unit of their weight and in 1/1024 ns; the rest stays with the group's own
 * CPU-bound tasks. Groups with CPU-bound tasks only.
 */
POLICY u64 passed_down(s64 unpaid_ns, u64 own_cpu_bound, u64 child_cpu_bound)
{
	u64 unpaid = (u64)clamp_s64(unpaid_ns, 0, (s64)TANDEM_UNPAID_MAX_NS), all = own_cpu_bound + child_cpu_bound;

	return child_cpu_bound && all ? (unpaid << 10) / all : 0;
}

/* Is the change large enough to reweight tasks? The kernel ignores 1/64; over three levels that adds up. */
POLICY bool scale_moved(u64 old_scale, u64 new_scale)
{
	u64 d = old_scale > new_scale ? old_scale - new_scale : new_scale - old_scale;

	return d > (old_scale >> 9);
}

#endif
