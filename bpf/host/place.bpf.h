/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which pCPU a task goes to, and which tasks an idle pCPU pulls.
 *
 * Idle pCPUs come first, as the kernel chooses them for who wakes up (previous one, whole core, same last-level cache). A task that waits is
 * pulled across caches unless it is served soon where it is. Where none is idle a
 * vCPU avoids the pCPUs that siblings of its VM are on, as long as another one with the same last-level cache is no heavier: two siblings on one pCPU wait for
 * each other, which no guest expects of two CPUs.
 */
#ifndef TANDEM_HOST_PLACE_BPF_H
#define TANDEM_HOST_PLACE_BPF_H

#include "side.bpf.h"
#include "../core/hotplug.bpf.h"
#include "../core/spread.bpf.h"

/* A pCPU of which higher classes leave less than this is not as good as another one. */
#define APART_SHARE (TANDEM_SCALE * 3 / 4)

/*
 * Load of a pCPU with `more` weight. For a CPU-bound vCPU it is that of load balance: what wakes up there for a moment is no reason to
 * leave, since load balance would only bring it back.
 */
static __always_inline u64 load_with(const struct task_state *t, const struct cpu_state *c, u64 more, u64 now)
{
	if (t->cpu_bound_stake)
		return load_of(c->cpu_bound_weight + more, capacity_left(c, now));
	return load_of(c->weight[1] + more, side_capacity(c, now));
}

/*
 * Would p be as well served on `other` as on `cpu`, with this load there? Returns the load of `other`, with p; ~0: it would not. By load, as
 * in load balance: otherwise one would undo what the other has done.
 */
COLD u64 load_if_as_good(struct task_struct *p __arg_trusted, s32 cpu, s32 other, u64 load)
{
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(other);
	u64 now = k_now(), there;

	if (!t || !c || other == cpu || !c->online || !k_allowed(p, other))
		return ~0ULL;
	there = load_with(t, c, t->weight, now);
	return there <= load && !far_apart(cpu, other) && share_now(c, now) >= APART_SHARE && !siblings_at(t, other) ? there : ~0ULL;
}

/*
 * A pCPU for a vCPU that would be beside a sibling on `cpu`: the lightest of those scanned that has none and is no heavier;
 * `cpu` itself if there is none. (One with fewer siblings is not enough: a VM with more vCPUs than pCPUs would move one at each wake-up, and a
 * pinned VM beside it got 0.96 of its part, simulated.)
 */
COLD s32 apart_from_siblings(struct task_struct *p __arg_trusted, s32 cpu)
{
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u32 from = scan_from(), i;
	u64 load;
	s32 best = cpu;

	if (!t || !c)
		return cpu;
	/* With p in both cases. */
	load = load_with(t, c, queue_cpu(t) == cpu ? 0 : t->weight, k_now());
	bpf_for(i, 0, nr_candidates()) {
		u32 other = candidate(p, from, i);
		u64 there = load_if_as_good(p, cpu, other, load);

		if (there == ~0ULL)
			continue;
		best = other;
		load = there;
	}
	return best;
}

/* Where to with a vCPU that would be beside a sibling on `cpu`? It moves at most once for that: where it goes there is none. */
static __always_inline s32 unstacked(struct task_struct *p, const struct task_state *t, s32 cpu)
{
	s32 to = vm_uses(t, VM_APART) ? apart_from_siblings(p, cpu) : cpu;

	if (to != cpu)
		count_task(CNT_UNSTACKED, p->pid);
	return to;
}

/*
 * Is a task served soon that comes after so many others? If nobody waits before it, and the one that runs, or has been chosen to run next, usually
 * sleeps soon: a cold cache costs more than that wait.
 */
static __always_inline bool soon_served(const struct cpu_state *c, u32 others)
{
	if (others || c->side.away_since_ns)
		return false;
	return c->curr_charged_at_ns ? !c->curr_cpu_bound : c->side.light_next;
}

/* An idle pCPU that p may use, of those that share a last-level cache with `cpu`; -1: none of those that are looked at. It is claimed. */
COLD s32 near_idle(struct task_struct *p __arg_trusted, s32 cpu)
{
	s32 other = cpu;
	u32 i;

	bpf_for(i, 0, MAX_LOOK) {
		struct cpu_domain *d = domain_of(other);

		other = d ? d->llc_next : cpu;
		if (other == cpu)
			break;
		if (k_allowed(p, other) && scx_bpf_test_and_clear_cpu_idle(other))
			return other;
	}
	/* A cache may have many more. */
	other = k_any_idle_for(p);
	return (u32)other < nr_cpu_ids && !far_apart(cpu, other) && scx_bpf_test_and_clear_cpu_idle(other) ? other : -1;
}

/*
 * An idle pCPU for a task that is about to wait for `cpu`: one further away only if it is not served soon. A best-effort task waits for all
 * others. It is claimed.
 */
static __always_inline s32 idle_for(struct task_struct *p, const struct task_state *t, const struct cpu_state *c, s32 cpu)
{
	s32 idle = nr_llcs > 1 ? near_idle(p, cpu) : -1;

	if (idle < 0 && (nr_llcs <= 1 || t->class == CLASS_BEST_EFFORT || !soon_served(c, waiting_normal(cpu, c))))
		idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	return idle;
}

/* `cpu` pulls the first normal task that waits for `from`, if any. From further away only if it is not served soon there. */
COLD bool pull_from(s32 cpu, s32 from, bool far)
{
	struct cpu_state *own = cpu_state(cpu), *c = cpu_state(from);
	u32 waiting;

	if (!own || !c || far_apart(cpu, from) != far)
		return false;
	waiting = waiting_normal(from, c);
	if (!waiting) {
		nobody_waits_at(from, c);
		return false;
	}
	if (far && soon_served(c, waiting - 1))
		return false;
	if (!k_take(queue_of(from, CLASS_NORMAL)) && !k_take(late_queue_of(from)))
		return false;
	count(own, CNT_PULLED);
	if (far)
		count(own, CNT_FAR);
	return true;
}

COLD bool pull_normal(s32 cpu, bool far)
{
	struct cpu_state *own = cpu_state(cpu);
	enum walk walk = far ? WALK_FAR : WALK_NEAR;
	s32 from, at;
	u32 i;

	if (!own)
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

/* An idle pCPU pulls a waiting task: that for which it was kicked, or one from a pCPU with the same last-level cache, or any. */
static __always_inline bool take_normal(s32 cpu, struct cpu_state *c)
{
	u32 first = c->side.pull_first;

	if (first) {
		c->side.pull_first = 0;
		if (k_take(queue_of(first - 1, CLASS_NORMAL))) {
			count(c, CNT_PULLED);
			if (far_apart(cpu, first - 1))
				count(c, CNT_FAR);
			return true;
		}
	}
	return pull_normal(cpu, false) || (nr_llcs > 1 && pull_normal(cpu, true));
}

#endif
