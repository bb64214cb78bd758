/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.max: charges run time to the groups that have a quota, and checks whether quota is left (policy/quota.h).
 * Costs nothing while no group has one. Otherwise the cost grows with the number of quotas above a task, not
 * with its depth.
 */
#ifndef TANDEM_CORE_QUOTA_BPF_H
#define TANDEM_CORE_QUOTA_BPF_H

#include "groups.bpf.h"

/* Nearest group with a quota, at or above `group`; 0: none. */
COLD u32 find_limit(u32 group)
{
	struct group_state *first = group_state(group);
	u32 generation = limits_generation, limit = 0, at = group, depth;

	bpf_for(depth, 0, MAX_DEPTH) {
		struct group_state *g = group_state(at);

		if (!g || at == ROOT_GROUP)
			break;
		if (g->quota_ns) {
			limit = at;
			break;
		}
		at = g->parent;
	}
	/* In one word: two CPUs may do this at the same time, and one of them may not have seen the newest limits. */
	if (first)
		first->limit = (u64)generation << 32 | limit;
	return limit;
}

static __always_inline u32 limit_of(u32 group)
{
	struct group_state *g = group_state(group);
	u64 known;

	if (!g)
		return 0;
	known = g->limit;
	return known >> 32 == limits_generation ? (u32)known : find_limit(group);
}

/* Next quota above a group that has one. */
static __always_inline u32 limit_above(const struct group_state *g)
{
	return limit_of(g->parent);
}

/*
 * Charges a task's run time to all quotas above it. A kernel thread is never throttled: what it runs beyond a debt of one period's quota is not
 * charged (`unstoppable`), or the others of its group would pay for it long after it has stopped.
 */
COLD int quota_charge(u32 group, u64 service_ns, bool unstoppable)
{
	u32 limit = limit_of(group), i;

	bpf_for(i, 0, MAX_DEPTH) {
		struct group_state *g;

		if (!limit)
			break;
		g = group_state(limit);
		if (!g)
			break;
		if (!unstoppable || may_charge_unstoppable(g->pool_ns, g->quota_ns))
			__sync_fetch_and_sub(&g->pool_ns, service_ns);
		limit = limit_above(g);
	}
	return 0;
}

/* A function of its own, so that the verifier carries no bounds over: that of 6.19 gives up on them. */
COLD u64 uncharged_of(u32 running, u64 periods, u64 period_ns)
{
	return uncharged_ns(running, periods, period_ns);
}

/* Begin the period that contains `now`. One of the CPUs that notice does it. */
static __always_inline void roll_period(struct group_state *g, u64 now)
{
	u64 start = g->period_start_ns, passed = periods_passed(now, start, g->period_ns);
	s64 old, new;

	if (!passed || __sync_val_compare_and_swap(&g->period_start_ns, start, start + passed * g->period_ns) != start)
		return;
	/* Other CPUs charge meanwhile: only the difference is added, so that no charge is lost. */
	old = g->pool_ns;
	new = pool_refilled(old, g->quota_ns, g->burst_ns, passed, uncharged_of(g->running, passed, g->period_ns));
	__sync_fetch_and_add(&g->pool_ns, new - old);
	g->lends_none = new <= 0 && g->lent;
	g->lent = 0;
}

/* First group at or above `group` whose quota is used up; 0: there is quota. */
COLD u32 exhausted(u32 group, u64 now)
{
	u32 limit = limit_of(group), i;

	bpf_for(i, 0, MAX_DEPTH) {
		struct group_state *g;

		if (!limit)
			break;
		g = group_state(limit);
		if (!g)
			break;
		roll_period(g, now);
		if (g->pool_ns <= 0)
			return limit;
		limit = limit_above(g);
	}
	return 0;
}

/* How long a task of `group` may run before quotas are checked again. ~0: there is no quota. */
COLD u64 quota_allowance(u32 group, u64 now)
{
	u32 limit = limit_of(group), i;
	u64 least = ~0ULL;

	bpf_for(i, 0, MAX_DEPTH) {
		struct group_state *g;

		if (!limit)
			break;
		g = group_state(limit);
		if (!g)
			break;
		roll_period(g, now);
		/* Only the innermost group knows on how many CPUs it runs; for those above assume all CPUs. */
		least = min_u64(least, quota_run_ns(g->pool_ns, i ? nr_cpu_ids : g->running));
		limit = limit_above(g);
	}
	return least;
}

/* The task starts or stops running: one CPU more or less shares its innermost quota. */
static __always_inline void quota_running(struct task_state *t, bool running)
{
	struct group_state *g;

	if (running)
		t->run_limit = nr_limits ? limit_of(t->group) : 0;
	if (!t->run_limit)
		return;
	g = group_state(t->run_limit);
	if (g)
		__sync_fetch_and_add(&g->running, running ? 1 : -1);
	if (!running)
		t->run_limit = 0;
}

/* cpu.max of a group: set, changed or lifted. */
COLD int set_quota(u32 group, u64 quota_ns, u64 period_ns, u64 burst_ns)
{
	struct group_state *g = group_state(group);
	bool had;

	if (!g || group == ROOT_GROUP)
		return 0;
	had = g->quota_ns;
	if (!period_ns)
		quota_ns = 0;
	/* As most groups are created: what is known of the set of quotas stays true. */
	if (!had && !quota_ns)
		return 0;
	g->period_ns = period_ns;
	g->burst_ns = burst_ns;
	g->period_start_ns = k_now();
	g->pool_ns = quota_ns;
	g->lends_none = 0;
	g->lent = 0;
	g->quota_ns = quota_ns;
	/* In this order: what was noted under the old set is never believed under the new one. */
	__sync_fetch_and_add(&limits_generation, 1);
	if (had != (quota_ns != 0))
		__sync_fetch_and_add(&nr_limits, had ? -1 : 1);
	return 0;
}

#endif
