/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * V of a queue, and where the current task is on it (policy/eevdf.h). The CPU that owns a queue advances V at its ticks
 * and switches; in between both are projected for those that wake up tasks there.
 */
#ifndef TANDEM_CORE_CLOCK_BPF_H
#define TANDEM_CORE_CLOCK_BPF_H

#include "state.bpf.h"

/* The longest request, or bound of a deadline, on this CPU since its queues were empty. */
static __always_inline u64 longest_request_ns(const struct cpu_state *c)
{
	return max_u64(c->longest_ns, c->base_request_ns);
}

/* Run time of the current task since its last charge, of which there is one per tick, unless it runs without ticks. */
static __always_inline u64 uncharged_run_ns(const struct cpu_state *c, u64 now)
{
	u64 since = c->curr_charged_at_ns, ran = since ? sub_floor_u64(now, since) : 0;

	return c->endless ? ran : min_u64(ran, TANDEM_TICK_NS);
}

/* How far V of a class advances while a task with this v, one of `tasks`, gains `gained` there. */
static __always_inline u64 progress_of(const struct cpu_state *c, u32 i, u32 tasks, u64 v, u64 gained)
{
	return tasks == 1 ? progress_alone(*(volatile u64 *)&c->clock[i], v, gained) : gained;
}

/*
 * V of a class advances at the owner's ticks and switches. In between it is projected, with the weight that is there;
 * otherwise a task that wakes up there would get a credit. `i`: the index of the class.
 */
static __always_inline u64 projected(const struct cpu_state *c, u32 i, u64 weight, u32 tasks, u64 now)
{
	u64 gained = class_index(c->curr_class) == i && weight ? virtual_ns(uncharged_run_ns(c, now), weight) : 0;

	return progress_of(c, i, tasks, c->curr_v, gained);
}

/* The same with what is there now. Apart, as the kernel limits the stack of all functions that call each other. */
COLD u64 not_in_clock(struct cpu_state *c __arg_nonnull, u32 i, u64 now)
{
	i &= NR_QUEUE_CLASSES - 1;
	return projected(c, i, c->weight[i], c->tasks[i], now);
}

/*
 * A task of this weight has joined (negative: left). What the current one has run since its last charge, which was at
 * `charged_at_ns` before, will be charged by the new weight. Returns how far V has to move so that it is the same now.
 */
COLD u64 difference_by_weight(struct cpu_state *c __arg_nonnull, u32 i, u64 joined, u64 charged_at_ns, u64 now)
{
	u64 weight;
	u32 tasks;

	i &= NR_QUEUE_CLASSES - 1;
	weight = c->weight[i];
	tasks = c->tasks[i];
	/* It has been charged meanwhile. */
	if (c->curr_charged_at_ns != charged_at_ns)
		return 0;
	return projected(c, i, weight - joined, (s64)joined < 0 ? tasks + 1 : tasks - 1, now) -
	       projected(c, i, weight, tasks, now);
}

static __always_inline u64 clock_now(const struct cpu_state *c, u32 i, u64 now)
{
	return *(volatile u64 *)&c->clock[i] + projected(c, i, c->weight[i], c->tasks[i], now);
}

/*
 * V of a class moves: any CPU lets tasks join and leave, the owner charges them. Each adds its own part, so that none
 * undoes what another one does at the same time.
 */
static __always_inline void move_clock(struct cpu_state *c, u32 i, u64 by)
{
	if (by)
		__sync_fetch_and_add(&c->clock[i], by);
}

/* v of the running task. */
static __always_inline u64 curr_v_now(const struct cpu_state *c, u64 now)
{
	return c->curr_v + virtual_ns(uncharged_run_ns(c, now), c->curr_weight);
}

/* How far it is ahead of V: what it got beyond its share, at its weight. */
static __always_inline s64 curr_lead(const struct cpu_state *c, u64 now)
{
	return (s64)(curr_v_now(c, now) - clock_now(c, class_index(c->curr_class), now));
}

/* What is left of its request. */
static __always_inline u64 curr_remaining_ns(const struct cpu_state *c, u64 now)
{
	u64 v = curr_v_now(c, now);

	return time_before_ns(v, c->curr_end_v) ? real_ns(c->curr_end_v - v, c->curr_weight) : 0;
}

static __always_inline u64 curr_deadline_now(const struct cpu_state *c, u64 now)
{
	return deadline_moved(c->curr_deadline, c->curr_bounded, curr_v_now(c, now), c->curr_end_v, c->curr_base_ns);
}

/* Run time of the current task since it last slept. */
static __always_inline u64 curr_burst(const struct cpu_state *c, u64 now)
{
	return c->curr_burst_ns + (c->curr_charged_at_ns ? sub_floor_u64(now, c->curr_charged_at_ns) : 0);
}

/* The global virtual time of a CPU, likewise. It is that of its CPU-bound tasks: while a light one runs, none of them gains anything. */
static __always_inline u64 vtime_now(const struct cpu_state *c, u64 now)
{
	if (!c->curr_cpu_bound || !c->cpu_bound_weight)
		return c->vtime;
	return c->vtime + virtual_ns(uncharged_run_ns(c, now), c->cpu_bound_weight);
}

/*
 * V is where the mean can be, now that t has been picked, unless t was picked out of order. It is not behind one that
 * is alone; it may be ahead of it, by what it is owed by tasks that have ended.
 */
static __always_inline void anchor_clock(const struct task_state *t, struct cpu_state *c, u32 i)
{
	u64 clock = *(volatile u64 *)&c->clock[i], to = clock, longest = longest_request_ns(c);

	if (c->tasks[i] > 1 && !t->was_late)
		to = clock_anchored(clock, t->v, t->weight, longest, c->tasks[i], c->weight[i]);
	else if (c->tasks[i] <= 1 && is_ahead(clock, t->v))
		to = t->v;
	move_clock(c, i, to - clock);
}

#endif
