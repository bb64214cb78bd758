/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A task's life, the same on any side: it begins, becomes runnable, sleeps, yields, changes its weight, ends.
 * The side's ops table names these callbacks directly.
 */
#ifndef TANDEM_CORE_LIFE_BPF_H
#define TANDEM_CORE_LIFE_BPF_H

#include "turn.bpf.h"

UEI_DEFINE(uei);

void BPF_STRUCT_OPS(core_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	t->ended = 0;
	group_runnable(p, t);
	/* For a change of its nice level, affinity or cgroup the kernel dequeues and enqueues a task that stays runnable: its burst goes on. */
	if (!(enq_flags & SCX_ENQ_WAKEUP) && t->runnable_at_ns)
		return;
	t->mean_burst_ns = ewma_u64(t->mean_burst_ns, min_u64(t->burst_ns, TANDEM_BURST_MAX_NS), 2);
	t->burst_ns = 0;
	t->runnable_at_ns = k_now();
}

void BPF_STRUCT_OPS(core_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	group_quiescent(t);
	admission_done(t);
	if (!t->stake) {
		/* Another CPU may have moved it in vain, and have taken its stake off; its extras were booked since. */
		give_back_extras(t);
		return;
	}
	t->exits = k_is_exiting(p);
	leave(t, k_now());
	/* After a sleep a new request begins; after a change of one of its properties the same goes on. */
	if (deq_flags & SCX_DEQ_SLEEP) {
		t->used_ns = 0;
		t->owed_ns >>= 1;
	}
}

/* The kernel dequeues a task to change its weight. This is for a task that is in our queues all the same. */
void BPF_STRUCT_OPS(core_set_weight, struct task_struct *p, u32 weight)
{
	struct task_state *t = task_state(p);
	u64 now;

	if (!t || !t->stake)
		return;
	now = k_now();
	leave(t, now);
	join(p, t, t->left_cpu, now);
}

/* sched_yield(): the current task forfeits the rest of its request. */
static __always_inline bool forfeits_request(struct task_struct *from)
{
	struct task_state *t = task_state(from);
	s32 cpu = scx_bpf_task_cpu(from);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now(), ahead;
	u32 i;

	if (!t || !c || t->run_cpu != cpu)
		return false;
	charge(from, t, c, cpu, now);
	i = class_index(t->class);
	/*
	 * The rest of the request is forfeited, as under EEVDF: where others wait it counts as served;
	 * otherwise a task that has run less than they would come first again at once. This applies up to one
	 * request ahead of V: tasks that yield to each other in a circle must not leave out those that compute.
	 * A task further ahead only gets a later deadline.
	 */
	ahead = clock_now(c, i, now) + virtual_ns(t->request_ns, t->weight);
	if (may_wait(c, t->class) && !time_before_ns(ahead, t->v)) {
		move_clock(c, i, virtual_ns(remaining(t), max_u64(c->weight[i], t->weight)));
		t->v += virtual_ns(remaining(t), t->weight);
		c->curr_v = t->v;
	}
	t->used_ns = t->request_ns;
	k_set_slice(from, 0);
	return false;
}

s32 BPF_STRUCT_OPS_SLEEPABLE(core_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_state *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->left_cpu = -1;
	t->run_cpu = -1;
	t->push_to = -1;
	t->weight = TANDEM_UNIT;
	t->class = CLASS_NORMAL;
	t->request_ns = base_request_ns;
	t->base_ns = base_request_ns;
	t->group = cgroups_enabled && bpf_core_field_exists(args->cgroup) && args->cgroup ? group_of(args->cgroup)
											  : ROOT_GROUP;
	/* Nothing is known of a new task: neither a short one nor a CPU-bound one. */
	t->mean_burst_ns = NSEC_PER_MSEC_;
	side_task_begins(t);
	return 0;
}

/* What it has run until now it has run under another scheduler, or as a real-time task: it owes nobody for that. */
void BPF_STRUCT_OPS(core_enable, struct task_struct *p)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	t->charged_ran_ns = k_ran_ns(p);
	/* Nor is it known since when it is runnable. */
	t->runnable_at_ns = 0;
}

void BPF_STRUCT_OPS(core_disable, struct task_struct *p)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	group_quiescent(t);
	side_task_ends(p, t);
	/* A full barrier: a CPU that queues or unthrottles the task now sees `ended`, or what it has set is seen below. */
	__sync_lock_test_and_set(&t->ended, 1);
	leave(t, k_now());
	admission_done(t);
	/* What a lost race may have left. */
	give_back_extras(t);
}

/* Core scheduling, on SMT siblings with different cookies: the task that is behind by more runs first. */
bool BPF_STRUCT_OPS(core_core_sched_before, struct task_struct *a, struct task_struct *b)
{
	struct task_state *ta = task_state(a), *tb = task_state(b);
	struct cpu_state *ca, *cb;

	if (!ta || !tb || !ta->stake || !tb->stake)
		return a->scx.runnable_at < b->scx.runnable_at;
	ca = cpu_state(queue_cpu(ta));
	cb = cpu_state(queue_cpu(tb));
	if (!ca || !cb)
		return false;
	return time_before_ns(ta->v - ca->clock[class_index(ta->class)], tb->v - cb->clock[class_index(tb->class)]);
}

/* The record of a CPU, and its queues. Called from the side's init. */
static __noinline s32 core_init_cpu(u32 cpu, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);
	s32 err;

	if (!c)
		return -EINVAL;
	c->give_to = -1;
	c->pull_from = -1;
	c->scan_from = cpu;
	c->base_request_ns = base_request_ns;
	c->idle_floor_at_ns = now;
	c->curr_class = CLASS_NONE;
	err = scx_bpf_create_dsq(queue_of(cpu, CLASS_NORMAL), -1);
	if (!err)
		err = scx_bpf_create_dsq(late_queue_of(cpu), -1);
	if (!err)
		err = scx_bpf_create_dsq(queue_of(cpu, CLASS_BEST_EFFORT), -1);
	return err;
}

void BPF_STRUCT_OPS(core_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

#endif
