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
#include "side.bpf.h"

/* Apart: following where the value comes from, the verifier of 6.16 meets a fault of its own (-EFAULT, __mark_chain_precision). */
COLD u64 lag_base_of(u64 request_ns, u64 base_ns)
{
	return max_u64(request_ns, base_ns);
}

/* By which what a task is owed is limited. */
static __always_inline u64 lag_base(const struct task_state *t, const struct cpu_state *c)
{
	return lag_base_of(t->request_ns, c->base_request_ns);
}

/* A new request. */
static __always_inline void renew_request(struct task_state *t, struct cpu_state *c)
{
	u32 i = class_index(t->class);

	t->request_ns = request_ns(t->base_ns, t->weight, c->weight[i], c->tasks[i]);
	t->used_ns = 0;
	t->deadline = t->v + deadline_distance(t->request_ns, t->weight, t->base_ns);
}

/*
 * It has just woken up: its deadline is that of what it will need until it
 * sleeps again. Its turn is not cut short if that takes a little longer.
 */
static __always_inline void expect_little(struct task_state *t)
{
	u64 expected = min_u64(t->request_ns, wake_request_ns(t->base_ns, t->mean_burst_ns));

	t->deadline = t->v + deadline_distance(expected, t->weight, t->base_ns);
}

static __always_inline u64 remaining(const struct task_state *t)
{
	return sub_floor_u64(t->request_ns, t->used_ns);
}

/* So near to its end that what is left is not worth a turn: timers are early as often as late. */
#define REQUEST_SLACK_NS (100 * NSEC_PER_USEC_)

static __always_inline bool request_done(const struct task_state *t)
{
	return remaining(t) <= min_u64(REQUEST_SLACK_NS, t->request_ns >> 3);
}

/* What others have to wait for on account of t. */
static __always_inline u64 work_of(const struct task_state *t)
{
	return booked_work(max_u64(t->mean_burst_ns, t->burst_ns));
}

static __always_inline void give_back_work(u64 stake)
{
	struct cpu_state *c = cpu_state(stake_cpu(stake));

	if (stake && c)
		__sync_fetch_and_sub(&c->queued_work, stake_value(stake));
}

static __always_inline void book_work(struct task_state *t, struct cpu_state *c, s32 cpu)
{
	u64 work = work_of(t);

	__sync_fetch_and_add(&c->queued_work, work);
	give_back_work(__sync_lock_test_and_set(&t->work_stake, stake_of(cpu, 0, work)));
}

/* A running task has turned out longer than it used to be. */
static __always_inline void rebook_work(struct task_state *t, struct cpu_state *c)
{
	u64 work = work_of(t), old = t->work_stake;
	s32 cpu = stake_cpu(old);

	if (!old || work <= stake_value(old) || c != cpu_state(cpu))
		return;
	__sync_fetch_and_add(&c->queued_work, work - stake_value(old));
	if (__sync_val_compare_and_swap(&t->work_stake, old, stake_of(cpu, 0, work)) != old)
		__sync_fetch_and_sub(&c->queued_work, work - stake_value(old));
}

/*
 * V of a class at this moment. The owner writes it at its ticks and switches;
 * in between it is projected, or whoever wakes there would get a credit.
 */
static __always_inline u64 not_yet_charged(const struct cpu_state *c, u32 i, u64 now)
{
	u64 since = c->curr_charged_at_ns;

	if (!since || class_index(c->curr_class) != i)
		return 0;
	return virtual_ns(min_u64(sub_floor_u64(now, since), TANDEM_TICK_NS), c->weight[i]);
}

static __always_inline u64 clock_now(const struct cpu_state *c, u32 i, u64 now)
{
	return c->clock[i] + not_yet_charged(c, i, now);
}

/* How far the task that runs is ahead of V: what it has had more than its share, at its weight. */
static __always_inline s64 curr_lead(const struct cpu_state *c, u64 now)
{
	u64 uncharged = c->curr_charged_at_ns ? sub_floor_u64(now, c->curr_charged_at_ns) : 0;

	return (s64)(c->curr_v + virtual_ns(min_u64(uncharged, TANDEM_TICK_NS), c->curr_weight) -
		     clock_now(c, class_index(c->curr_class), now));
}

/* What it has run since it last slept. */
static __always_inline u64 curr_burst(const struct cpu_state *c, u64 now)
{
	return c->curr_burst_ns + (c->curr_charged_at_ns ? sub_floor_u64(now, c->curr_charged_at_ns) : 0);
}

static __always_inline u64 pace_now(const struct cpu_state *c, u64 now)
{
	return c->pace + not_yet_charged(c, class_index(CLASS_NORMAL), now);
}

static __always_inline void take_off_hogs(struct cpu_state *c, u64 weight)
{
	__sync_fetch_and_sub(&c->hog_weight, weight);
	__sync_fetch_and_sub(&c->hogs, 1);
}

/*
 * Balancing looks at those who stay. Somebody who wakes for a moment may weigh
 * a hundred times what all others do; to move them out of its way would take
 * longer than it stays.
 */
static __always_inline void count_hog(struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 weight = t->weight;

	if (t->hog_stake || t->class != CLASS_NORMAL ||
	    !is_cpu_bound(t->burst_ns, sub_floor_u64(now, t->runnable_at_ns)))
		return;
	__sync_fetch_and_add(&c->hog_weight, weight);
	__sync_fetch_and_add(&c->hogs, 1);
	/* Two CPUs may come to that conclusion, while a third moves it. */
	if (__sync_val_compare_and_swap(&t->hog_stake, 0, stake_of(cpu, 0, weight)))
		take_off_hogs(c, weight);
}

/* Whoever counted it, it is not there any more. */
static __always_inline void count_hog_no_more(struct task_state *t)
{
	u64 stake = t->hog_stake ? __sync_lock_test_and_set(&t->hog_stake, 0) : 0;
	struct cpu_state *c = stake ? cpu_state(stake_cpu(stake)) : NULL;

	if (c)
		take_off_hogs(c, stake_value(stake));
}

static __always_inline void take_off_queue(struct cpu_state *c, u64 stake)
{
	u32 i = stake_class(stake);

	__sync_fetch_and_sub(&c->weight[i], stake_value(stake));
	__sync_fetch_and_sub(&c->tasks[i], 1);
}

/* What t has added to the sums of a CPU beside its weight is taken off them. */
static __always_inline void give_back_extras(struct task_state *t)
{
	give_back_work(__sync_lock_test_and_set(&t->work_stake, 0));
	count_hog_no_more(t);
}

/* All that t has added is taken off. */
static __always_inline void give_back(struct task_state *t, u64 stake)
{
	struct cpu_state *c = cpu_state(stake_cpu(stake));

	if (!c)
		return;
	take_off_queue(c, stake);
	give_back_extras(t);
}

/* What a runnable task is owed after it has changed CPUs. Neither of them needs what it asked for before. */
static __always_inline void settle_move(struct task_state *t, struct cpu_state *from, struct cpu_state *to, u64 now)
{
	if (from->pace_known && to->pace_known && t->class == CLASS_NORMAL)
		t->owed_ns = owed_after_move(t->owed_ns, pace_now(from, now), pace_now(to, now), t->weight,
					      t->weight + to->weight[class_index(CLASS_NORMAL)]);
	from->give_to = -1;
	to->give_to = -1;
}

static __always_inline void leave(struct task_state *t, u64 now);

static __always_inline void join(struct task_struct *p, struct task_state *t, s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);
	struct group_state *g;
	u64 clock, custom, stake;
	u32 i;

	if (!c || t->stake)
		return;
	g = group_state(t->group);
	t->class = k_is_best_effort(p) || (g && g->idle) ? CLASS_BEST_EFFORT : CLASS_NORMAL;
	t->own_weight = own_weight(p);
	t->scale = g ? g->scale : TANDEM_SCALE_ONE;
	t->weight = effective_weight(t->own_weight, t->scale);
	custom = k_custom_slice(p);
	t->base_ns = custom ? custom : side_request_ns(p, g, c);
	i = class_index(t->class);
	clock = clock_now(c, i, now);
	if (t->left_cpu == cpu)
		t->lag = lag_after_sleep(t->lag, (s64)(clock - t->left_clock), t->weight);
	/* On an empty queue nobody owes anybody anything. */
	t->v = c->weight[i] ? v_on_join(clock, t->lag, lag_base(t, c), t->weight) : clock;
	t->lag = 0;
	stake = stake_of(cpu, i, t->weight);
	__sync_fetch_and_add(&c->weight[i], stake_value(stake));
	__sync_fetch_and_add(&c->tasks[i], 1);
	if (__sync_val_compare_and_swap(&t->stake, 0, stake)) {
		/* Another CPU was faster. */
		take_off_queue(c, stake);
		return;
	}
	count_hog(t, c, cpu, now);
	book_work(t, c, cpu);
	/* Another CPU may have taken it off the queue meanwhile, before there was anything of this to give back. */
	if (t->stake != stake)
		give_back_extras(t);
	/* Or it has ended, before there was anything at all. */
	if (t->ended)
		leave(t, now);
	renew_request(t, c);
	if (!custom && !t->burst_ns && !k_is_batch(p))
		expect_little(t);
}

static __always_inline void leave(struct task_state *t, u64 now)
{
	u64 stake = t->stake ? __sync_lock_test_and_set(&t->stake, 0) : 0;
	struct cpu_state *c = cpu_state(stake_cpu(stake));

	if (!stake || !c)
		return;
	t->left_clock = clock_now(c, stake_class(stake), now);
	t->lag = lag_of(t->left_clock, t->v, t->weight, lag_base(t, c));
	t->left_cpu = stake_cpu(stake);
	give_back(t, stake);
}

/* A move that was prepared has failed: somebody else has the task. What it has joined since is not touched. */
static __always_inline void retract(struct task_state *t, u64 stake)
{
	if (stake && __sync_val_compare_and_swap(&t->stake, stake, 0) == stake)
		give_back(t, stake);
}

/* From one queue's clock to another's: lag is carried, v is not. The rest of the request goes along. */
static __always_inline void rejoin(struct task_struct *p, struct task_state *t, s32 cpu, u64 now)
{
	struct cpu_state *from, *to = cpu_state(cpu);
	u64 used = t->used_ns;

	if (queue_cpu(t) == cpu)
		return;
	if (t->stake) {
		from = cpu_state(queue_cpu(t));
		if (from && to)
			settle_move(t, from, to, now);
	}
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
	u64 old = t->weight, clock, stake = t->stake, hog = t->hog_stake;
	s32 cpu = stake_cpu(stake);

	if (!g || g->scale == t->scale || !stake)
		return;
	t->scale = g->scale;
	t->weight = effective_weight(t->own_weight, t->scale);
	clock = c->clock[i];
	t->v = v_reweighted(clock, t->v, old, t->weight, lag_base(t, c));
	if (c == cpu_state(cpu) &&
	    __sync_val_compare_and_swap(&t->stake, stake, stake_of(cpu, stake_class(stake), t->weight)) == stake)
		__sync_fetch_and_add(&c->weight[stake_class(stake)], t->weight - stake_value(stake));
	if (hog && stake_cpu(hog) == cpu && c == cpu_state(cpu) &&
	    __sync_val_compare_and_swap(&t->hog_stake, hog, stake_of(cpu, 0, t->weight)) == hog)
		__sync_fetch_and_add(&c->hog_weight, t->weight - stake_value(hog));
	t->deadline = t->v + deadline_distance(remaining(t), t->weight, t->base_ns);
}

/*
 * Run time is what the kernel accounts it as (cpu.stat, top): its clock stops
 * when it begins to look for the next task, not when we are told. Steal comes
 * off, unless the kernel has taken it off itself (PARAVIRT_TIME_ACCOUNTING):
 * then the two cannot both fit into the time that has passed.
 */
static __always_inline u64 service_of(u64 ran_ns, u64 wall_ns, u64 stolen_ns)
{
	return ran_ns + stolen_ns / 2 > wall_ns ? sub_floor_u64(ran_ns, stolen_ns) : ran_ns;
}

/*
 * Account what p ran on `cpu` since the last charge, without steal. To be
 * called on that very CPU: its clock and its steal are exact only there.
 */
static __always_inline void charge(const struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 steal = side_stolen_ns(cpu), ran = k_ran_ns(p), service, progress;
	s64 settled = 0;
	u32 i = class_index(t->class);

	if (t->run_cpu != cpu)
		return;
	service = service_of(sub_floor_u64(ran, t->charged_ran_ns), sub_floor_u64(now, t->charged_at_ns),
			     sub_floor_u64(steal, t->charged_steal_ns));
	t->charged_ran_ns = ran;
	t->charged_at_ns = now;
	t->charged_steal_ns = steal;
	t->used_ns += service;
	t->burst_ns += service;
	count_hog(t, c, cpu, now);
	if (t->owed_ns && t->class == CLASS_NORMAL) {
		settled = settled_ns(t->owed_ns, service);
		t->owed_ns -= settled;
	}
	t->v += virtual_ns(service - settled, t->weight);
	progress = virtual_ns(service - settled, max_u64(c->weight[i], t->weight));
	c->clock[i] += progress;
	if (t->class == CLASS_NORMAL)
		c->pace += progress;
	c->curr_charged_at_ns = now;
	c->curr_v = t->v;
	c->curr_burst_ns = t->burst_ns;
	if (nr_limits)
		quota_charge(t->group, service);
}

#endif
