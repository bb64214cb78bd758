/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fairness across CPUs (policy/balance.h): a CPU with less weight takes over
 * waiting tasks of the one with most, as far as that brings both together;
 * where only turning the imbalance round is left, it asks for a task. The
 * side that includes this supplies capacity().
 */
#ifndef TANDEM_CORE_SPREAD_BPF_H
#define TANDEM_CORE_SPREAD_BPF_H

#include "fair.bpf.h"

static __always_inline u32 capacity(const struct cpu_state *c, u64 now);

/* Waiting tasks that are looked at, at a time. */
#define EVEN_LOOK 8

/* Whether there is something to take over; then `cpu` has to go through dispatch. */
static __noinline bool ask_for_task(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu), *from = NULL, *other;
	u64 now = k_now(), most = 0, own_weight, excess;
	s32 from_cpu = -1;
	u32 i;

	if (!own)
		return false;
	own_weight = max_u64(own->weight[1], own->load_avg);
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (!c || i == (u32)cpu || !c->online || !waiting_normal(i, c))
			continue;
		/* Neither a crowd of a moment nor one that has just left counts. */
		excess = excess_weight(min_u64(c->weight[1], c->load_avg), capacity(c, now), own_weight,
				       capacity(own, now));
		if (excess > most) {
			most = excess;
			from = c;
			from_cpu = i;
		}
	}
	if (!from || own->seen_from != from_cpu) {
		own->seen_from = from_cpu;
		own->seen_excess = most;
		return false;
	}
	excess = min_u64(most, own->seen_excess);
	own->seen_excess = most;
	most = excess;
	own->pull_excess = most;
	own->pull_from = from_cpu;
	/* Of several that ask, the one whose task has run most is to get company. */
	other = from->give_to >= 0 && from->give_to != cpu ? cpu_state(from->give_to) : NULL;
	if (!other || !other->online || other->last_recent <= own->last_recent) {
		from->give_to = cpu;
		from->give_excess = most;
	}
	from->give_asked++;
	return true;
}

/*
 * If moving a waiting task to `cpu` makes things better, it joins the queue
 * there, and its weight is returned. Apart from the loop that moves it: the
 * verifier would follow each of its paths through every round.
 */
COLD u64 take_over(s32 pid, s32 cpu, u64 excess)
{
	struct task_struct *task = bpf_task_from_pid(pid);
	struct task_state *t;
	u64 weight = 0;

	if (!task)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(task);
	if (t && t->queue_cpu >= 0 && t->queue_cpu != cpu && move_improves(t->weight, excess) && !k_is_pinned(task) &&
	    k_allowed(task, cpu)) {
		rejoin(task, t, cpu, k_now());
		weight = t->weight;
	}
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return weight;
}

/* Take over waiting tasks of the heavier CPU. From dispatch. */
COLD int even_out(u32 cpu)
{
	struct cpu_state *own = cpu_state(cpu), *from;
	struct task_struct *p;
	u32 looked = 0;
	u64 queue;

	if (!own || own->pull_from < 0)
		return 0;
	/* Those who would wait for longest have most to gain. */
	from = cpu_state(own->pull_from);
	queue = from && from->late_due_ns && k_waiting(late_queue_of(own->pull_from)) ?
			late_queue_of(own->pull_from) :
			queue_of(own->pull_from, CLASS_NORMAL);
	own->pull_from = -1;
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_struct *task;
		struct task_state *t;
		u64 weight;

		if (looked++ >= EVEN_LOOK)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		weight = take_over(p->pid, cpu, own->pull_excess);
		t = weight ? task_state(task) : NULL;
		if (t) {
			own->pull_excess = sub_floor_u64(own->pull_excess, 2 * weight);
			scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, t->deadline);
			if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, queue_of(cpu, t->class), 0))
				count(own, CNT_EVENED);
		}
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* Once per tick of a busy CPU. */
static __always_inline bool balance_tick(struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	c->load_avg = ewma_u64(c->load_avg, c->weight[1], 5);
	if (now - c->balanced_at_ns < TANDEM_BALANCE_NS)
		return false;
	c->balanced_at_ns = now;
	c->last_recent = virtual_ns(t->recent_ns, t->weight);
	return ask_for_task(cpu);
}

/* p's turn on this CPU is over and it wants to go on. Where? */
static __always_inline s32 give_away(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu)
{
	u64 recent = virtual_ns(t->recent_ns, t->weight), last = c->last_recent;
	s32 to = c->give_to;

	c->last_recent = recent;
	if (to < 0 || t->class != CLASS_NORMAL)
		return cpu;
	/* Turning the imbalance round is only for when nobody could be taken over to make it smaller. */
	if (!move_improves(t->weight, c->give_excess) &&
	    (c->give_asked < 2 || recent < last || !move_rotates(t->weight, c->give_excess)))
		return cpu;
	if (k_is_pinned(p) || !k_allowed(p, to))
		return cpu;
	c->give_to = -1;
	c->give_asked = 0;
	count(c, CNT_GIVEN);
	return to;
}

#endif
