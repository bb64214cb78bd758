/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cgroups: which group a task belongs to, and what that does to its weight.
 *
 * The hot path reads one number per group, its scale (policy/hweight.h): one load and one multiplication at any
 * depth. In return it counts tasks that become runnable or stop being runnable, in a cell of its CPU (with more
 * than MAX_LOAD_CELLS CPUs several share a cell). The tree is walked only when a group becomes active that had
 * been quiet for milliseconds. A timer turns the cells into new scales: often while they change and tasks wait for a CPU, seldom while
 * nobody waits, for then no weight matters, and not at all while only the root has tasks. CPU-bound tasks are counted apart; they pay
 * for what the light ones of their group take, which these note in the record of the group that pays whenever they are charged.
 */
#ifndef TANDEM_CORE_GROUPS_BPF_H
#define TANDEM_CORE_GROUPS_BPF_H

#include "timer.bpf.h"

#define ROOT_GROUP 0
/* Interval between two refreshes of the scales: the shortest (while they change and tasks wait), and the longest. */
#define REFRESH_MIN_NS (2 * NSEC_PER_MSEC_)
#define REFRESH_MAX_NS (32 * NSEC_PER_MSEC_)
/* A refresh may take one part in REFRESH_PART of a CPU's time. */
#define REFRESH_PART 32
/* The kernel's weight of a cpu.idle group. */
#define IDLE_GROUP_WEIGHT 3

/*
 * Sums of the nice weights of a group's tasks, in cells by the CPU on which they began to count or stopped. With few CPUs each
 * has a cell of its own, which no other CPU writes; with many, CPUs share cells, or the refresh would take too long.
 */
struct load_cell {
	s64 runnable;
	s64 cpu_bound;	/* those of them that are CPU-bound (fair.bpf.h) */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LOAD_CELLS * MAX_GROUPS);
	__type(key, u32);
	__type(value, struct load_cell);
} group_load SEC(".maps");

static __always_inline struct load_cell *load_cell(u32 group, u32 cell)
{
	u32 key = cell * MAX_GROUPS + group;

	return bpf_map_lookup_elem(&group_load, &key);
}

static __always_inline u32 nr_load_cells(void)
{
	return nr_cpu_ids < MAX_LOAD_CELLS ? nr_cpu_ids : MAX_LOAD_CELLS;
}

/* cgroup id -> number of the record. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u32);
} group_ids SEC(".maps");

/* Unused group numbers. First in, first out: a number stays unused for long before it is used again. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_GROUPS);
	__type(value, u32);
} free_groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct one_timer);
} refresh_timer SEC(".maps");

u64 active_groups[NR_GROUP_WORDS];
u32 nr_group_words;	/* beyond these all words are 0 */
u64 refresh_at_ns;	/* when the armed timer fires; 0: not armed */
u64 refresh_interval_ns;
u64 refresh_not_before_ns;	/* when the next one may be, also if somebody asks for it */
u64 refresh_least_ns;	/* so long after the last one: REFRESH_PART */
bool scales_stale;	/* they have changed, and nobody has asked for a refresh since */
bool refresh_wanted;	/* somebody has, since the last one */
u32 nr_groups;
u32 nr_groups_shared;	/* cgroups without a record of their own */

const volatile bool cgroups_enabled = true;

static __always_inline u32 own_weight(const struct task_struct *p)
{
	return k_is_best_effort(p) ? TANDEM_WEIGHT_IDLE : weight_of_nice(k_nice(p));
}

static __always_inline void set_group_bit(u64 *words, u32 group, bool on)
{
	u32 word = (group / 64) & (NR_GROUP_WORDS - 1);
	u64 bit = 1ULL << (group & 63);

	if (on)
		__sync_fetch_and_or(&words[word], bit);
	else
		__sync_fetch_and_and(&words[word], ~bit);
}

COLD int arm_refresh(u64 armed_ns, u64 at_ns, u64 now)
{
	u32 zero = 0;
	struct one_timer *t = bpf_map_lookup_elem(&refresh_timer, &zero);

	return t && rebook_timer(t, &refresh_at_ns, armed_ns, at_ns, now);
}

/* Returns whether a refresh comes by then, or as soon as one may be. */
static __always_inline bool refresh_by(u64 at_ns, u64 now)
{
	u64 armed_ns = refresh_at_ns;

	at_ns = max_u64(at_ns, refresh_not_before_ns);
	return timer_comes_by(armed_ns, at_ns, now) || arm_refresh(armed_ns, at_ns, now);
}

/* From a CPU that goes offline no timer is started: the next task that waits elsewhere asks. */
static __always_inline void refresh_soon(u64 now)
{
	bool asks;

	/* All CPUs read these: they are not written for nothing. */
	if (!refresh_wanted)
		refresh_wanted = true;
	if (refresh_interval_ns != REFRESH_MIN_NS)
		refresh_interval_ns = REFRESH_MIN_NS;
	asks = is_leaving() || !refresh_by(now + REFRESH_MIN_NS, now);
	if (scales_stale != asks)
		scales_stale = asks;
}

/* The scales have changed, or will have. That matters once a task waits. */
static __always_inline void scales_change(u64 now)
{
	scales_stale = true;
	if (!is_leaving())
		refresh_by(now + REFRESH_MAX_NS, now);
}

/* A task waits for a CPU that another one has. */
static __always_inline void scales_matter(u64 now)
{
	if (scales_stale)
		refresh_soon(now);
}

/* A group has runnable tasks again: it counts among its siblings, and its ancestors count among theirs. */
COLD int activate(u32 group, u64 now)
{
	u32 depth;

	bpf_for(depth, 0, MAX_DEPTH) {
		struct group_state *g = group_state(group);

		if (!g || g->active)
			break;
		g->active = 1;
		g->active_at_ns = now;
		set_group_bit(active_groups, group, true);
		if (group == ROOT_GROUP)
			break;
		group = g->parent;
	}
	scales_change(now);
	return 0;
}

/* The cell of this CPU. */
static __always_inline struct load_cell *own_load_cell(u32 group)
{
	return load_cell(group, bpf_get_smp_processor_id() % MAX_LOAD_CELLS);
}

static __always_inline void count_load(u32 group, s64 weight)
{
	struct load_cell *cell = own_load_cell(group);

	if (cell)
		__sync_fetch_and_add(&cell->runnable, weight);
}

static __always_inline void count_cpu_bound_load(u32 group, s64 weight)
{
	struct load_cell *cell = own_load_cell(group);

	if (cell)
		__sync_fetch_and_add(&cell->cpu_bound, weight);
}

static __always_inline void take_off_cpu_bound_load(u64 stake)
{
	if (stake)
		count_cpu_bound_load(stake >> 32, -(s64)(u32)stake);
}

static __always_inline void not_cpu_bound_in_group(struct task_state *t)
{
	if (t->group_stake)
		take_off_cpu_bound_load(__sync_lock_test_and_set(&t->group_stake, 0));
}

/* t counts as CPU-bound in its group. As elsewhere, who takes the word subtracts what it says. */
COLD int cpu_bound_in_group(struct task_state *t __arg_nonnull)
{
	u32 weight = t->own_weight, group = t->group;
	struct group_state *g = group_state(group);

	count_cpu_bound_load(group, weight);
	take_off_cpu_bound_load(__sync_lock_test_and_set(&t->group_stake, (u64)group << 32 | weight));
	/* Another CPU has taken it off the queue meanwhile, before this was booked. */
	if (!t->stake)
		not_cpu_bound_in_group(t);
	else if (g && !g->has_cpu_bound && group != ROOT_GROUP)
		scales_change(k_now());
	return 0;
}

static __always_inline void group_runnable(struct task_struct *p, struct task_state *t)
{
	struct group_state *g;

	if (!cgroups_enabled || t->counted_weight)
		return;
	t->counted_weight = own_weight(p);
	t->counted_group = t->group;
	count_load(t->group, t->counted_weight);
	g = group_state(t->group);
	if (g && !g->active)
		activate(t->group, k_now());
}

static __always_inline void group_quiescent(struct task_state *t)
{
	if (!t->counted_weight)
		return;
	count_load(t->counted_group, -(s64)t->counted_weight);
	t->counted_weight = 0;
}

COLD u64 sum_load(u32 group)
{
	struct group_state *g = group_state(group);
	s64 runnable = 0, cpu_bound = 0;
	u32 i;

	bpf_for(i, 0, nr_load_cells()) {
		struct load_cell *cell = load_cell(group, i);

		if (!cell)
			continue;
		runnable += cell->runnable;
		cpu_bound += cell->cpu_bound;
	}
	if (g)
		g->own_cpu_bound = cpu_bound > 0 ? cpu_bound : 0;
	return runnable > 0 ? runnable : 0;
}

/* A group with runnable tasks keeps its ancestors active: the refresh may visit them before it or after it. */
COLD int active_up_to_root(u32 group, u64 now)
{
	u32 depth;

	bpf_for(depth, 0, MAX_DEPTH) {
		struct group_state *g = group_state(group);

		if (!g || g->active_at_ns == now)
			break;
		g->active_at_ns = now;
		if (group == ROOT_GROUP)
			break;
		group = g->parent;
	}
	return 0;
}

enum refresh_pass {
	PASS_COUNT,	/* sum up the cells, clear the children's sums */
	PASS_TELL,	/* add each group to its parent, deactivate the quiet ones */
	PASS_SCALE,	/* new scales; a parent seldom comes after its child, and then the next round corrects it */
};

/* What the group's CPU-bound tasks have to pay goes to where they are, a level per refresh. */
static __always_inline void pass_down(struct group_state *g, u64 now)
{
	u64 each = 0;

	if (g->unpaid_ns > (s64)TANDEM_UNPAID_MAX_NS) {
		g->count_all_until_ns = now + TANDEM_COUNT_ALL_NS;
		__sync_lock_test_and_set(&g->unpaid_ns, (s64)TANDEM_UNPAID_MAX_NS);
	} else if (g->unpaid_ns > 0) {
		each = passed_down(g->unpaid_ns, g->own_cpu_bound, g->child_cpu_bound);
		__sync_fetch_and_sub(&g->unpaid_ns, (s64)(each * g->child_cpu_bound >> 10));
	}
	g->passed_down = each;
}

/*
 * The group's part of what its parent has passed down, and of the parent's sums. `weight`: among its siblings. Returns whether it counts
 * as one with CPU-bound tasks there, and did not before, or the other way round.
 */
static __always_inline bool tell_parent(struct group_state *g, struct group_state *parent, u64 weight)
{
	u32 was = g->counted_above;

	if (g->counted_above && parent->passed_down)
		__sync_fetch_and_add(&g->unpaid_ns, (s64)(parent->passed_down * weight >> 10));
	g->counted_above = 0;
	/* A group without quota left does not compete with its siblings. */
	if (!g->quota_ns || g->pool_ns > 0) {
		parent->child_weight += weight;
		if (g->has_cpu_bound) {
			parent->child_cpu_bound += weight;
			g->counted_above = 1;
		}
	}
	return g->counted_above != was;
}

/* Who pays for the group's light tasks? Returns the weight that its own is divided by. */
static __always_inline u64 shared_by(struct group_state *g, const struct group_state *parent, u32 group, u64 weight, u64 now)
{
	u64 cpu_bound = g->own_cpu_bound + g->child_cpu_bound;

	g->has_rivals = parent->has_rivals || parent->own_cpu_bound + parent->child_cpu_bound > (g->counted_above ? weight : 0);
	if (time_before_ns(now, g->count_all_until_ns)) {
		g->payer = 0;
	} else if (g->has_rivals && cpu_bound) {
		g->payer = group;
		return cpu_bound;
	} else {
		g->payer = parent->payer;
	}
	return g->own_weight_sum + g->child_weight;
}

static __always_inline bool refresh_group(struct group_state *g, u32 group, u32 pass, u64 now)
{
	struct group_state *parent;
	u64 scale, weight;

	if (pass == PASS_COUNT) {
		pass_down(g, now);
		g->own_weight_sum = sum_load(group);
		/* Below as of the last refresh, which is called for anew if that changes. */
		g->has_cpu_bound = g->own_cpu_bound || g->child_cpu_bound;
		g->child_weight = 0;
		g->child_cpu_bound = 0;
		if (g->own_weight_sum)
			active_up_to_root(group, now);
		return false;
	}
	parent = group_state(g->parent);
	if (!parent)
		return false;
	weight = g->own_idle ? IDLE_GROUP_WEIGHT : g->weight;
	if (pass == PASS_TELL) {
		/* It may have been activated since `now`. */
		if (sub_floor_u64(now, g->active_at_ns) > TANDEM_GROUP_LINGER_NS) {
			g->active = 0;
			g->counted_above = 0;
			g->has_cpu_bound = 0;
			g->passed_down = 0;
			g->payer = 0;
			set_group_bit(active_groups, group, false);
			/* A task may have become runnable meanwhile, and have found the group active. */
			if (sum_load(group))
				activate(group, now);
			return true;
		}
		if (group == ROOT_GROUP)
			return false;
		/* It may have become active in the moment in which its parent was retired. */
		if (!parent->active)
			activate(g->parent, now);
		g->idle = g->own_idle || parent->idle;
		return tell_parent(g, parent, weight);
	}
	if (group == ROOT_GROUP)
		return false;
	scale = group_scale(parent->scale, weight, shared_by(g, parent, group, weight, now));
	if (!scale_moved(g->scale, scale))
		return false;
	g->scale = scale;
	return true;
}

COLD u32 refresh_all(u32 pass, u64 now)
{
	u32 word, bit, changes = 0;

	bpf_for(word, 0, nr_group_words) {
		u64 bits = active_groups[word & (NR_GROUP_WORDS - 1)];

		if (!bits)
			continue;
		bpf_for(bit, 0, 64) {
			u32 group = word * 64 + bit;
			struct group_state *g;

			if (!(bits >> (bit & 63) & 1))
				continue;
			g = group_state(group);
			if (g && refresh_group(g, group, pass, now))
				changes++;
		}
	}
	return changes;
}

/* The root alone needs no refresh. */
static __always_inline bool any_group_active(void)
{
	u32 word;

	bpf_for(word, 0, nr_group_words) {
		if (active_groups[word & (NR_GROUP_WORDS - 1)] & ~(word ? 0ULL : 1ULL))
			return true;
	}
	return false;
}

static int refresh(void *map, u32 *key, struct one_timer *t)
{
	u64 now = k_now(), began_ns = bpf_ktime_get_ns(), interval, least, armed_ns, at_ns;
	u32 changes;
	bool wanted;

	/* For those who ask while this one is under way. */
	refresh_not_before_ns = now + refresh_least_ns;
	__sync_lock_test_and_set(&refresh_at_ns, 0);
	wanted = refresh_wanted;
	refresh_wanted = false;
	scales_stale = false;
	refresh_all(PASS_COUNT, now);
	changes = refresh_all(PASS_TELL, now);
	changes += refresh_all(PASS_SCALE, now);
	if (!any_group_active())
		return 0;
	/*
	 * With thousands of active groups a refresh takes long, but it may take only a small part of the CPU's time. One that takes
	 * long because the CPU was preempted meanwhile must not put the next one off by 32 times as much.
	 */
	least = max_u64(min_u64(REFRESH_PART * (bpf_ktime_get_ns() - began_ns), 2 * refresh_least_ns), REFRESH_MIN_NS);
	interval = changes && wanted ? REFRESH_MIN_NS : min_u64(refresh_interval_ns * 2, REFRESH_MAX_NS);
	interval = max_u64(interval, least);
	refresh_least_ns = least;
	refresh_not_before_ns = now + least;
	refresh_interval_ns = interval;
	/* Somebody may have asked meanwhile for an earlier one than may be. A CPU that goes offline hands its timers over. */
	armed_ns = refresh_at_ns;
	at_ns = max_u64(armed_ns ? min_u64(armed_ns, now + interval) : now + interval, now + least);
	/* Should the timer not come, the next task that waits asks. */
	if ((at_ns != armed_ns && !arm_refresh(armed_ns, at_ns, now)) || changes || is_leaving())
		scales_stale = true;
	return 0;
}

static __always_inline u32 group_by_id(u64 id)
{
	u32 *group = bpf_map_lookup_elem(&group_ids, &id);

	return group ? *group : ROOT_GROUP;
}

/* Number of a cgroup's record; the root's if it has none. */
static __always_inline u32 group_of(const struct cgroup *cgrp)
{
	return group_by_id(k_cgroup_id(cgrp));
}

/*
 * Number of the record that a cgroup's settings belong to. For a cgroup that shares its parent's record it is
 * the root's, which has no settings.
 */
static __always_inline u32 own_group_of(const struct cgroup *cgrp)
{
	u32 group = group_of(cgrp);
	struct group_state *g = group_state(group);

	return g && g->id == k_cgroup_id(cgrp) ? group : ROOT_GROUP;
}

/* A cgroup with the cpu controller is created. Returns the number of its record. */
COLD u32 group_add(u64 id, u64 parent_id)
{
	u32 parent = group_by_id(parent_id), group = ROOT_GROUP, i;
	struct group_state *g;

	if (parent_id && bpf_map_pop_elem(&free_groups, &group)) {
		/*
		 * All records are in use. The cgroup's tasks count as the parent's own: weights inside of the
		 * parent are lost.
		 */
		if (bpf_map_update_elem(&group_ids, &id, &parent, BPF_ANY))
			return ROOT_GROUP;
		g = group_state(parent);
		if (g)
			__sync_fetch_and_add(&g->sharers, 1);
		__sync_fetch_and_add(&nr_groups_shared, 1);
		return parent;
	}
	g = group_state(group);
	if (!g)
		return ROOT_GROUP;
	__builtin_memset(g, 0, sizeof(*g));
	g->id = id;
	g->parent = parent;
	g->scale = TANDEM_SCALE_ONE;
	g->weight = TANDEM_WEIGHT_NICE_0;
	bpf_for(i, 0, nr_load_cells()) {
		struct load_cell *cell = load_cell(group, i);

		if (cell)
			__builtin_memset(cell, 0, sizeof(*cell));
	}
	if (group / 64 >= nr_group_words)
		nr_group_words = group / 64 + 1;
	/* No memory: its tasks count as the root's own. */
	if (bpf_map_update_elem(&group_ids, &id, &group, BPF_ANY)) {
		g->id = 0;
		if (group != ROOT_GROUP)
			bpf_map_push_elem(&free_groups, &group, BPF_EXIST);
		return ROOT_GROUP;
	}
	__sync_fetch_and_add(&nr_groups, 1);
	return group;
}

COLD int group_remove(u64 id)
{
	u32 *found = bpf_map_lookup_elem(&group_ids, &id), group;
	struct group_state *g;

	if (!found)
		return 0;
	group = *found;
	bpf_map_delete_elem(&group_ids, &id);
	g = group_state(group);
	if (!g || group == ROOT_GROUP)
		return 0;
	if (g->id != id) {
		__sync_fetch_and_sub(&g->sharers, 1);
		__sync_fetch_and_sub(&nr_groups_shared, 1);
		return 0;
	}
	if (g->quota_ns) {
		__sync_fetch_and_sub(&nr_limits, 1);
		g->quota_ns = 0;
		__sync_fetch_and_add(&limits_generation, 1);
	}
	g->active = 0;
	set_group_bit(active_groups, group, false);
	__sync_fetch_and_sub(&nr_groups, 1);
	bpf_map_push_elem(&free_groups, &group, BPF_EXIST);
	return 0;
}

static __always_inline s32 groups_init(void)
{
	struct one_timer *t;
	u32 zero = 0, i;

	bpf_for(i, 1, MAX_GROUPS)
		bpf_map_push_elem(&free_groups, &i, 0);
	t = bpf_map_lookup_elem(&refresh_timer, &zero);
	if (!t)
		return -EINVAL;
	bpf_timer_init(&t->timer, &refresh_timer, K_CLOCK_MONOTONIC);
	return bpf_timer_set_callback(&t->timer, refresh);
}

#endif
