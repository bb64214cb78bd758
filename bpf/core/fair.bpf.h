/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fairness on one CPU: joining and leaving a queue, charging run time,
 * deadlines (policy/eevdf.h).
 *
 * A task is in a queue from the moment it becomes runnable until it sleeps,
 * also while it runs. Only the owner of a queue advances its clock; weights
 * are atomic because any CPU may enqueue. Run time is charged without steal:
 * a task does not pay for time in which the host ran somebody else.
 */
#ifndef TANDEM_CORE_FAIR_BPF_H
#define TANDEM_CORE_FAIR_BPF_H

#include "quota.bpf.h"
#include "steal.bpf.h"

/* A new request. */
static __always_inline void renew_request(struct task_state *t, struct cpu_state *c)
{
	u32 i = class_index(t->class);

	t->request_ns = request_ns(t->base_ns, t->weight, c->weight[i], c->tasks[i]);
	t->used_ns = 0;
	t->deadline = t->v + deadline_distance(t->request_ns, t->weight, t->base_ns);
}

static __always_inline u64 remaining(const struct task_state *t)
{
	return sub_floor_u64(t->request_ns, t->used_ns);
}

/*
 * What others have to wait for on account of t: its usual run, but not more
 * than one turn, for then the next deadline is served.
 */
static __always_inline u64 turn_of(const struct task_state *t)
{
	return min_u64(max_u64(t->mean_burst_ns, t->burst_ns), TANDEM_TICK_NS);
}

static __always_inline void book_work(struct task_state *t, struct cpu_state *c)
{
	t->booked_work_ns = turn_of(t);
	__sync_fetch_and_add(&c->queued_work_ns, t->booked_work_ns);
}

/* A running task has turned out longer than it used to be. */
static __always_inline void rebook_work(struct task_state *t, struct cpu_state *c)
{
	u64 turn = turn_of(t);

	if (turn <= t->booked_work_ns)
		return;
	__sync_fetch_and_add(&c->queued_work_ns, turn - t->booked_work_ns);
	t->booked_work_ns = turn;
}

/*
 * V of a class at this moment. The owner writes it at its ticks and switches;
 * in between it is projected, or whoever wakes there would get a credit.
 */
static __always_inline u64 clock_now(const struct cpu_state *c, u32 i, u64 now)
{
	u64 since = c->curr_charged_at_ns, clock = c->clock[i];

	if (!since || class_index(c->curr_class) != i)
		return clock;
	return clock + virtual_ns(min_u64(sub_floor_u64(now, since), TANDEM_TICK_NS), c->weight[i]);
}

static __always_inline void join(struct task_struct *p, struct task_state *t, s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);
	struct group_state *g;
	u64 clock, custom;
	u32 i;

	if (!c || t->queue_cpu >= 0)
		return;
	g = group_state(t->group);
	t->class = k_is_best_effort(p) || (g && g->idle) ? CLASS_BEST_EFFORT : CLASS_NORMAL;
	t->own_weight = own_weight(p);
	t->scale = g ? g->scale : TANDEM_SCALE_ONE;
	t->weight = effective_weight(t->own_weight, t->scale);
	custom = k_custom_slice(p);
	t->base_ns = custom ? custom : base_request_ns;
	i = class_index(t->class);
	clock = clock_now(c, i, now);
	if (t->left_cpu == cpu)
		t->lag = lag_after_sleep(t->lag, (s64)(clock - t->left_clock), t->weight);
	t->v = v_on_join(clock, t->lag, t->request_ns, t->weight, c->weight[i]);
	t->lag = 0;
	t->queue_cpu = cpu;
	__sync_fetch_and_add(&c->weight[i], t->weight);
	__sync_fetch_and_add(&c->tasks[i], 1);
	book_work(t, c);
	renew_request(t, c);
}

static __always_inline void leave(struct task_state *t, u64 now)
{
	struct cpu_state *c = cpu_state(t->queue_cpu);
	u32 i = class_index(t->class);

	if (t->queue_cpu < 0 || !c)
		return;
	t->left_clock = clock_now(c, i, now);
	t->lag = lag_of(t->left_clock, t->v, t->weight, t->request_ns);
	t->left_cpu = t->queue_cpu;
	t->queue_cpu = -1;
	__sync_fetch_and_sub(&c->weight[i], t->weight);
	__sync_fetch_and_sub(&c->tasks[i], 1);
	__sync_fetch_and_sub(&c->queued_work_ns, t->booked_work_ns);
}

/* From one queue's clock to another's: lag is carried, v is not. The rest of the request goes along. */
static __always_inline void rejoin(struct task_struct *p, struct task_state *t, s32 cpu, u64 now)
{
	u64 used = t->used_ns;

	if (t->queue_cpu == cpu)
		return;
	leave(t, now);
	join(p, t, cpu, now);
	if (used < t->request_ns) {
		t->used_ns = used;
		t->deadline = t->v + deadline_distance(t->request_ns - used, t->weight, t->base_ns);
	}
}

/* The weight may have changed meanwhile, by the group's activity or by its settings. */
static __always_inline void reweigh(struct task_state *t, struct cpu_state *c)
{
	struct group_state *g = group_state(t->group);
	u32 i = class_index(t->class);
	u64 old = t->weight, clock;

	if (!g || g->scale == t->scale || t->queue_cpu < 0)
		return;
	t->scale = g->scale;
	t->weight = effective_weight(t->own_weight, t->scale);
	clock = c->clock[i];
	t->v = v_reweighted(clock, t->v, old, t->weight, t->request_ns);
	__sync_fetch_and_add(&c->weight[i], t->weight - old);
	t->deadline = t->v + deadline_distance(remaining(t), t->weight, t->base_ns);
}

/*
 * Account what p ran on `cpu` since the last charge, without steal. To be
 * called on that very CPU: its clock and its steal are exact only there.
 */
static __always_inline void charge(struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 steal = steal_of(cpu), wall, service;
	u32 i = class_index(t->class);

	if (t->run_cpu != cpu)
		return;
	wall = sub_floor_u64(now, t->charged_at_ns);
	service = sub_floor_u64(wall, sub_floor_u64(steal, t->charged_steal_ns));
	t->charged_at_ns = now;
	t->charged_steal_ns = steal;
	t->used_ns += service;
	t->burst_ns += service;
	t->v += virtual_ns(service, t->weight);
	t->recent_ns = recent_ns(t->recent_ns, sub_floor_u64(now, t->recent_at_ns), service);
	t->recent_at_ns = now;
	c->clock[i] += virtual_ns(service, max_u64(c->weight[i], t->weight));
	c->curr_charged_at_ns = now;
	c->curr_burst_ns = t->burst_ns;
	if (nr_limits)
		quota_charge(t->group, service);
}

#endif
