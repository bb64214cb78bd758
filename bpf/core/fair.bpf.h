/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fairness on one CPU: joining and leaving a queue, charging run time, deadlines (policy/eevdf.h).
 *
 * A task is in a queue from the moment it becomes runnable until it sleeps, also while it runs. The CPU that owns
 * a queue advances its V with service; any CPU moves it, and changes the weights, when a task joins or leaves.
 * Run time is charged without steal: a task does not pay for time in which the host ran something else.
 */
#ifndef TANDEM_CORE_FAIR_BPF_H
#define TANDEM_CORE_FAIR_BPF_H

#include "clock.bpf.h"
#include "quota.bpf.h"
#include "side.bpf.h"

/*
 * A separate function: inlined, it triggers a bug in the verifier of 6.16, which fails while it traces where
 * the value comes from (-EFAULT, __mark_chain_precision).
 */
COLD u64 lag_base_of(u64 request_ns, u64 base_ns)
{
	return max_u64(request_ns, base_ns);
}

/* The request that bounds lag (lag_limit()). */
static __always_inline u64 lag_base(const struct task_state *t, const struct cpu_state *c)
{
	return lag_base_of(t->request_ns, c->base_request_ns);
}

/* The deadline of this much CPU time, from where t is. */
static __always_inline void set_deadline(struct task_state *t, u64 request_ns)
{
	t->bounded = is_bounded(request_ns, t->weight, t->base_ns);
	t->deadline = t->v + deadline_distance(request_ns, t->weight, t->base_ns);
}

static __always_inline u64 remaining(const struct task_state *t)
{
	return sub_floor_u64(t->request_ns, t->used_ns);
}

static __always_inline void begin_request(struct task_state *t, struct cpu_state *c)
{
	u32 i = class_index(t->class);

	t->request_ns = request_ns(side_slice_ns(t, c), t->weight, c->weight[i], c->tasks[i]);
	t->used_ns = 0;
	if (c->longest_ns < max_u64(t->base_ns, t->request_ns))
		c->longest_ns = max_u64(t->base_ns, t->request_ns);
	set_deadline(t, t->request_ns);
}

/* A request is done, and the next one begins. */
static __always_inline void renew_request(struct task_state *t, struct cpu_state *c)
{
	if (!t->custom)
		side_request_done(t, c);
	begin_request(t, c);
}

/*
 * After a wake-up the deadline is that of what the task usually needs until it sleeps again. Its slice is not
 * cut short if it needs a little more.
 */
static __always_inline void set_first_deadline(struct task_state *t)
{
	if (!t->patient && !t->burst_ns)
		set_deadline(t, min_u64(remaining(t), side_wake_request_ns(t)));
	else
		set_deadline(t, remaining(t));
}

/* v at the end of the request. */
static __always_inline u64 end_v(const struct task_state *t)
{
	return t->v + virtual_ns(remaining(t), t->weight);
}

/* t has run. */
static __always_inline void move_deadline(struct task_state *t)
{
	t->deadline = deadline_moved(t->deadline, t->bounded, t->v, end_v(t), t->base_ns);
}

/* The current task's deadline, for those that wake up beside it. */
static __always_inline void show_deadline(const struct task_state *t, struct cpu_state *c)
{
	c->curr_deadline = t->deadline;
	c->curr_bounded = t->bounded;
	c->curr_v = t->v;
	c->curr_end_v = end_v(t);
	c->curr_base_ns = t->base_ns;
	c->curr_weight = t->weight;
}

/* The end of a slice that is closer than this counts as now. */
#define SLICE_SLACK_NS (30 * NSEC_PER_USEC_)
/*
 * A rest of a request up to this long is not worth a slice. A timer that ends a slice is set early by as much as it is late on average: where
 * it is late by more, one that is not late at all leaves as much.
 */
#define REQUEST_SLACK_NS (100 * NSEC_PER_USEC_)

static __always_inline bool request_done(const struct task_state *t, const struct cpu_state *c)
{
	return remaining(t) <= min_u64(max_u64(REQUEST_SLACK_NS, c->timer_late_ns + SLICE_SLACK_NS), t->request_ns >> 3);
}

/* Work that t adds to its CPU: what other tasks there have to wait for. */
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

/* A running task runs for longer than it usually does: book the difference. */
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

static __always_inline void take_off_cpu_bound(struct cpu_state *c, u64 weight)
{
	__sync_fetch_and_sub(&c->cpu_bound_weight, weight);
	__sync_fetch_and_sub(&c->cpu_bound_tasks, 1);
}

/* Stop counting t as CPU-bound, on whichever CPU it was counted. */
static __always_inline void uncount_cpu_bound(struct task_state *t)
{
	u64 stake;
	struct cpu_state *c;

	/* First: who counts it anew counts it in both. */
	not_cpu_bound_in_group(t);
	stake = t->cpu_bound_stake ? __sync_lock_test_and_set(&t->cpu_bound_stake, 0) : 0;
	c = stake ? cpu_state(stake_cpu(stake)) : NULL;
	if (c)
		take_off_cpu_bound(c, stake_value(stake));
}

/*
 * Load balance counts only tasks that stay runnable. A task that wakes up for a moment may weigh a hundred
 * times as much as all others together; migrating the others out of its way would take longer than it runs.
 */
static __always_inline void count_cpu_bound(struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 weight = t->weight;

	if (t->cpu_bound_stake || t->class != CLASS_NORMAL ||
	    !is_cpu_bound(t->burst_ns, sub_floor_u64(now, t->runnable_at_ns)))
		return;
	__sync_fetch_and_add(&c->cpu_bound_weight, weight);
	__sync_fetch_and_add(&c->cpu_bound_tasks, 1);
	/* Two CPUs may count it at the same time, while a third moves it. */
	if (__sync_val_compare_and_swap(&t->cpu_bound_stake, 0, stake_of(cpu, 0, weight))) {
		take_off_cpu_bound(c, weight);
		return;
	}
	cpu_bound_in_group(t);
	/*
	 * Another CPU that wanted to pull it has taken it off the queue, and it counts in no group then. It would go on to count on a
	 * CPU only, also when it joins the next queue, and its siblings would share the group's whole weight among them.
	 */
	if (!t->stake)
		uncount_cpu_bound(t);
}

static __always_inline void take_off_queue(struct cpu_state *c, u64 stake)
{
	u32 i = stake_class(stake);

	__sync_fetch_and_sub(&c->weight[i], stake_value(stake));
	__sync_fetch_and_sub(&c->tasks[i], 1);
}

/* Take off what t has added to a CPU's sums beside its weight. */
static __always_inline void give_back_extras(struct task_state *t)
{
	give_back_work(__sync_lock_test_and_set(&t->work_stake, 0));
	uncount_cpu_bound(t);
	side_left(t);
}

/* Take off all that t has added to a CPU's sums. */
static __always_inline void give_back(struct task_state *t, u64 stake)
{
	struct cpu_state *c = cpu_state(stake_cpu(stake));

	if (!c)
		return;
	take_off_queue(c, stake);
	give_back_extras(t);
}

/* A request counts as the longest of a CPU's CPU-bound tasks until one or two of these windows after its end. */
#define LONGEST_WINDOW_NS (2000 * NSEC_PER_MSEC_)

/* A request of a CPU-bound task has come to its end on this CPU. */
static __always_inline void note_request(const struct task_state *t, struct cpu_state *c, u64 now)
{
	u64 since = sub_floor_u64(now, c->window_since_ns);
	bool next = since < 2 * LONGEST_WINDOW_NS;

	if (since >= LONGEST_WINDOW_NS) {
		c->longest_cpu_bound_ns[1] = next ? c->longest_cpu_bound_ns[0] : 0;
		c->longest_cpu_bound_ns[0] = 0;
		c->window_since_ns = next ? c->window_since_ns + LONGEST_WINDOW_NS : now;
	}
	c->longest_cpu_bound_ns[0] = max_u64(c->longest_cpu_bound_ns[0], t->request_ns);
}

/* The longest request of the CPU-bound tasks whose requests have lately ended on this CPU; it may not have run any for long. */
static __always_inline u64 longest_cpu_bound_ns(const struct cpu_state *c, u64 now)
{
	u64 since = sub_floor_u64(now, c->window_since_ns);

	if (since >= 2 * LONGEST_WINDOW_NS)
		return 0;
	return max_u64(c->longest_cpu_bound_ns[0], since < LONGEST_WINDOW_NS ? c->longest_cpu_bound_ns[1] : 0);
}

/* What a task has missed beside long requests is not forgotten where they are short. */
COLD u64 longest_of_move(const struct task_state *t __arg_nonnull, const struct cpu_state *from __arg_nonnull,
			 const struct cpu_state *to __arg_nonnull, u64 now)
{
	return max_u64(t->request_ns, max_u64(longest_cpu_bound_ns(from, now), longest_cpu_bound_ns(to, now)));
}

/* Settle what a runnable task is owed after a migration. Requests for a task from either CPU are dropped. */
static __always_inline void settle_move(struct task_state *t, struct cpu_state *from, struct cpu_state *to, u64 now)
{
	/* Without CPU-bound tasks the global virtual time of a CPU stands still. */
	if (from->vtime_known && to->vtime_known && t->cpu_bound_stake && to->cpu_bound_tasks)
		t->owed_ns = owed_after_move(t->owed_ns, vtime_now(from, now), vtime_now(to, now), t->weight,
					      t->weight + to->cpu_bound_weight, longest_of_move(t, from, to, now));
	from->give_to = -1;
	to->give_to = -1;
}

/*
 * Joining, leaving and changing queues are functions apart: the verifier would follow each of their many paths from every place that
 * calls them.
 */
COLD int join_queue(struct task_struct *p __arg_trusted, struct task_state *t __arg_nonnull, s32 cpu, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);
	struct group_state *g;
	u64 clock, charged_at_ns, custom, stake, by;
	s64 lag;
	u32 i;

	if (!c || t->stake)
		return 0;
	g = group_state(t->group);
	i = t->class;
	t->class = k_is_best_effort(p) || (g && g->idle) ? CLASS_BEST_EFFORT : CLASS_NORMAL;
	/* V of one class says nothing of V of another one. */
	if (i != t->class)
		t->left_cpu = -1;
	t->own_weight = own_weight(p);
	t->scale = g ? g->scale : TANDEM_SCALE_ONE;
	t->weight = effective_weight(t->own_weight, t->scale);
	custom = k_custom_slice(p);
	t->custom = custom != 0;
	t->patient = custom || k_is_batch(p);
	t->base_ns = custom ? custom : side_request_ns(p, t, g, c);
	i = class_index(t->class);
	charged_at_ns = c->curr_charged_at_ns;
	clock = *(volatile u64 *)&c->clock[i] + not_in_clock(c, i, now);
	if (t->left_cpu == cpu)
		lag = lag_after_sleep(t->lag, (s64)(clock - t->left_clock), t->weight);
	else
		lag = t->exits ? t->lag_within : lag_against(t->lag_within, t->weight, c->weight[i]);
	/* In an empty queue nobody is owed anything: start at V. */
	lag = c->weight[i] ? lag_on_join(lag, t->weight, c->weight[i], lag_base(t, c)) : 0;
	stake = stake_of(cpu, i, t->weight);
	__sync_fetch_and_add(&c->weight[i], stake_value(stake));
	__sync_fetch_and_add(&c->tasks[i], 1);
	if (__sync_val_compare_and_swap(&t->stake, 0, stake)) {
		/* Another CPU was faster. */
		take_off_queue(c, stake);
		return 0;
	}
	t->v = v_of(clock, lag, t->weight);
	t->lag = 0;
	t->lag_within = 0;
	/* The difference before V moves, by which one that was alone is projected. In leave_queue(), after. */
	by = t->exits ? 0 : clock_shift(-lag, c->weight[i]);
	move_clock(c, i, by + difference_by_weight(c, i, stake_value(stake), charged_at_ns, now));
	side_joined(t, cpu);
	count_cpu_bound(t, c, cpu, now);
	/*
	 * In its group it counts from the start if it usually becomes CPU-bound: otherwise its siblings would share the group's whole
	 * weight whenever it has slept for a moment, and it would have its own on top of that.
	 */
	if (t->class == CLASS_NORMAL && !t->group_stake && (t->cpu_bound_stake || !is_light(t->mean_burst_ns)))
		cpu_bound_in_group(t);
	book_work(t, c, cpu);
	/* Another CPU may have taken it off the queue meanwhile, before the extras were booked: take them off again. */
	if (t->stake != stake)
		give_back_extras(t);
	begin_request(t, c);
	set_first_deadline(t);
	return 0;
}

/*
 * `only`: if it is in this queue, as this stake says; 0: in whatever queue. (Another CPU that lets the task join at the
 * same time may read an old lag, or this one an old v: what that can cost is one limit of its lag.)
 */
COLD int leave_queue(struct task_state *t __arg_nonnull, u64 only, u64 now)
{
	/* Read before others may let it join another queue. */
	u64 v = t->v, stake, charged_at_ns, shift;
	struct cpu_state *c;
	u32 i;

	if (only)
		stake = __sync_val_compare_and_swap(&t->stake, only, 0) == only ? only : 0;
	else
		stake = t->stake ? __sync_lock_test_and_set(&t->stake, 0) : 0;
	c = cpu_state(stake_cpu(stake));
	i = stake_class(stake);
	if (!stake || !c)
		return 0;
	charged_at_ns = c->curr_charged_at_ns;
	t->left_clock = *(volatile u64 *)&c->clock[i] + not_in_clock(c, i, now);
	t->lag_within = lag_of(t->left_clock, v, t->weight, lag_base(t, c));
	give_back(t, stake);
	/*
	 * A task that ends does not pay asleep, nor is it paid. V stands still, so that those who stay are owed what it
	 * owes: otherwise nobody would run beside a program that forks all the time.
	 */
	t->lag = t->lag_within;
	if (!c->weight[i]) {
		/* Nobody stays whom it could owe anything. */
		t->lag = 0;
	} else if (!t->exits) {
		shift = clock_shift(t->lag_within, c->weight[i]);
		move_clock(c, i, shift);
		t->left_clock += shift;
		t->lag = lag_against(t->lag_within, t->weight, c->weight[i]);
	}
	move_clock(c, i, difference_by_weight(c, i, -stake_value(stake), charged_at_ns, now));
	t->left_cpu = stake_cpu(stake);
	if (!(c->tasks[0] + c->tasks[1]))
		c->longest_ns = 0;
	return 0;
}

static __always_inline void leave(struct task_state *t, u64 now)
{
	leave_queue(t, 0, now);
}

/* A task that joined may have ended before its stake was set. Not in join_queue(), for the sake of the stack. */
static __always_inline void join(struct task_struct *p, struct task_state *t, s32 cpu, u64 now)
{
	join_queue(p, t, cpu, now);
	if (t->ended)
		leave(t, now);
}

/* Undo a prepared move that failed because another CPU has the task. What the task has joined since is not touched. */
static __always_inline void retract(struct task_state *t, u64 stake)
{
	if (stake)
		leave_queue(t, stake, k_now());
}

/* Change from one queue's clock to another's: lag is carried, v is not. The rest of the request is carried, too. */
COLD int rejoin(struct task_struct *p __arg_trusted, struct task_state *t __arg_nonnull, s32 cpu, u64 now)
{
	struct cpu_state *from, *to = cpu_state(cpu);
	u64 used = t->used_ns;

	if (queue_cpu(t) == cpu)
		return 0;
	if (t->stake) {
		from = cpu_state(queue_cpu(t));
		if (from && to)
			settle_move(t, from, to, now);
	}
	leave(t, now);
	join(p, t, cpu, now);
	if (used < t->request_ns) {
		t->used_ns = used;
		set_first_deadline(t);
	}
	return 0;
}

/* The weight that the group now has is another one. */
COLD int change_weight(struct task_state *t __arg_nonnull, struct cpu_state *c __arg_nonnull)
{
	struct group_state *g = group_state(t->group);
	u32 i = class_index(t->class);
	u64 old = t->weight, clock, stake = t->stake, bound = t->cpu_bound_stake;
	s32 cpu = stake_cpu(stake);

	if (!g || !stake)
		return 0;
	t->scale = g->scale;
	t->weight = effective_weight(t->own_weight, t->scale);
	clock = c->clock[i];
	t->v = v_reweighted(clock, t->v, old, t->weight, lag_base(t, c));
	if (c == cpu_state(cpu) &&
	    __sync_val_compare_and_swap(&t->stake, stake, stake_of(cpu, stake_class(stake), t->weight)) == stake)
		__sync_fetch_and_add(&c->weight[stake_class(stake)], t->weight - stake_value(stake));
	if (bound && stake_cpu(bound) == cpu && c == cpu_state(cpu) &&
	    __sync_val_compare_and_swap(&t->cpu_bound_stake, bound, stake_of(cpu, 0, t->weight)) == bound)
		__sync_fetch_and_add(&c->cpu_bound_weight, t->weight - stake_value(bound));
	set_first_deadline(t);
	return 0;
}

/* Update the weight, which may have changed with the group's activity or settings. */
static __always_inline void reweigh(struct task_state *t, struct cpu_state *c)
{
	struct group_state *g = group_state(t->group);

	if (g && g->scale != t->scale && t->stake)
		change_weight(t, c);
}

/*
 * Run time is what the kernel accounts (cpu.stat, top): its clock stops when it begins to pick the next task,
 * not when the scheduler is told. Steal is subtracted unless the kernel has already done so
 * (PARAVIRT_TIME_ACCOUNTING). If it has not, run time and steal do not both fit into the time that has passed.
 */
static __always_inline u64 service_of(u64 ran_ns, u64 wall_ns, u64 stolen_ns)
{
	return ran_ns + stolen_ns / 2 > wall_ns ? sub_floor_u64(ran_ns, stolen_ns) : ran_ns;
}

/* A normal task that sleeps before it is CPU-bound. */
static __always_inline bool runs_lightly(const struct task_state *t)
{
	return t->class == CLASS_NORMAL && !t->cpu_bound_stake && is_light(t->mean_burst_ns);
}

/* What a light task has taken its group's CPU-bound ones pay, as they run (policy/hweight.h). */
COLD int charge_group(struct task_state *t __arg_nonnull, u64 service_ns)
{
	struct group_state *g = group_state(t->group);
	s64 paid;

	if (!g)
		return 0;
	if (!t->cpu_bound_stake) {
		g = g->payer && runs_lightly(t) ? group_state(g->payer) : NULL;
		if (!g)
			return 0;
		__sync_fetch_and_add(&g->unpaid_ns, (s64)service_ns);
		/* It gets to those who pay with a refresh. */
		if (g->unpaid_ns > (s64)TANDEM_UNPAID_MAX_NS / 2)
			refresh_soon(k_now());
		return 0;
	}
	paid = g->unpaid_ns > 0 ? paid_ns(g->unpaid_ns, t->owed_ns, service_ns) : 0;
	if (paid) {
		__sync_fetch_and_sub(&g->unpaid_ns, paid);
		t->owed_ns -= paid;
	}
	return 0;
}

/*
 * Charge what p ran on `cpu` since the last charge, without steal. Call it on that CPU: its clock and steal are
 * exact only there.
 */
static __always_inline void charge(const struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 steal = side_stolen_ns(cpu), ran = k_ran_ns(p), service, charged, progress;
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
	count_cpu_bound(t, c, cpu, now);
	charged = side_charge_ns(t, c, cpu, service);
	if (t->owed_ns && t->class == CLASS_NORMAL) {
		settled = settled_ns(t->owed_ns, min_u64(charged, service));
		t->owed_ns -= settled;
	}
	progress = virtual_ns(charged - settled, max_u64(c->weight[i], t->weight));
	move_clock(c, i, progress_of(c, i, c->tasks[i], t->v, progress));
	t->v += virtual_ns(charged - settled, t->weight);
	if (t->cpu_bound_stake)
		c->vtime += virtual_ns(service - settled, max_u64(c->cpu_bound_weight, t->weight));
	c->curr_cpu_bound = t->cpu_bound_stake != 0;
	if (runs_lightly(t))
		c->light_ns += service;
	c->curr_charged_at_ns = now;
	c->curr_v = t->v;
	c->curr_burst_ns = t->burst_ns;
	if (t->group != ROOT_GROUP && t->class == CLASS_NORMAL)
		charge_group(t, min_u64(charged, service));
	if (nr_limits)
		quota_charge(t->group, service, k_is_kthread(p));
}

/* A tick: the current task is charged, and the CPUs that wake up tasks here see where it is now. */
static __always_inline void charge_at_tick(const struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	charge(p, t, c, cpu, now);
	rebook_work(t, c);
	reweigh(t, c);
	move_deadline(t);
	if (t->run_cpu == cpu)
		show_deadline(t, c);
}

#endif
