/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fairness: joining and leaving a queue, charging run time, deadlines.
 *
 * A task is in a queue from the moment it becomes runnable until it sleeps,
 * also while it runs. Only the owner of a queue advances its clock; weights
 * are atomic because any CPU may enqueue. Run time is charged without steal:
 * a task does not pay for time in which the host ran somebody else.
 */
#ifndef TANDEM_CORE_FAIR_BPF_H
#define TANDEM_CORE_FAIR_BPF_H

#include "state.bpf.h"
#include "steal.bpf.h"

static __always_inline u32 task_weight(const struct task_struct *p, u32 class)
{
	return class == CLASS_NORMAL ? weight_of_nice(k_nice(p)) : TANDEM_WEIGHT_IDLE;
}

/* A new request: where its deadline lies. */
static __always_inline void renew_request(struct task_state *t)
{
	t->request_ns = t->class == CLASS_NORMAL ? request_ns(base_request_ns, t->weight) : base_request_ns;
	t->used_ns = 0;
	t->deadline = t->v + virtual_ns(t->request_ns, t->weight);
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

static __always_inline void join(struct task_struct *p, struct task_state *t, s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);
	u64 clock;
	u32 i;

	if (!c || t->queue_cpu >= 0)
		return;
	t->class = k_is_best_effort(p) ? CLASS_BEST_EFFORT : CLASS_NORMAL;
	t->weight = task_weight(p, t->class);
	i = class_index(t->class);
	clock = c->clock[i];
	if (t->left_cpu == cpu)
		t->lag = lag_after_sleep(t->lag, (s64)(clock - t->left_clock));
	t->v = clock - lag_on_join(t->lag, t->request_ns, t->weight, c->weight[i]);
	t->lag = 0;
	t->queue_cpu = cpu;
	__sync_fetch_and_add(&c->weight[i], t->weight);
	book_work(t, c);
	renew_request(t);
}

static __always_inline void leave(struct task_state *t)
{
	struct cpu_state *c = cpu_state(t->queue_cpu);
	s64 limit = lag_limit(t->request_ns, t->weight);
	u32 i = class_index(t->class);

	if (t->queue_cpu < 0 || !c)
		return;
	t->lag = clamp_s64((s64)(c->clock[i] - t->v), -limit, limit);
	t->left_cpu = t->queue_cpu;
	t->left_clock = c->clock[i];
	t->queue_cpu = -1;
	__sync_fetch_and_sub(&c->weight[i], (u64)t->weight);
	__sync_fetch_and_sub(&c->queued_work_ns, t->booked_work_ns);
}

/* From one queue's clock to another's: lag is carried, v is not. The rest of the request goes along. */
static __always_inline void rejoin(struct task_struct *p, struct task_state *t, s32 cpu)
{
	u64 used = t->used_ns;

	if (t->queue_cpu == cpu)
		return;
	leave(t);
	join(p, t, cpu);
	if (used < t->request_ns) {
		t->used_ns = used;
		t->deadline = t->v + virtual_ns(t->request_ns - used, t->weight);
	}
}

/*
 * Account what p ran on `cpu` since the last charge, without steal. To be
 * called on that very CPU: its clock and its steal are exact only there.
 */
static __always_inline void charge(struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 steal = steal_of(cpu), wall, service;
	u64 queue_weight;
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
	queue_weight = c->weight[i];
	c->clock[i] += virtual_ns(service, queue_weight < t->weight ? t->weight : (u32)queue_weight);
	c->curr_burst_ns = t->burst_ns;
}

#endif
