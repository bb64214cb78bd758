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

/* Waiting tasks that are looked at, and taken over, at a time. */
#define EVEN_LOOK 16
#define EVEN_MOST 4

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

/* Take over waiting tasks of the heavier CPU. From dispatch. */
COLD u32 even_out(u32 cpu)
{
	struct cpu_state *own = cpu_state(cpu), *from;
	u64 now = k_now(), excess, queue;
	struct task_struct *p;
	u32 looked = 0, moved = 0;

	if (!own || own->pull_from < 0)
		return 0;
	excess = own->pull_excess;
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

		if (looked++ >= EVEN_LOOK || moved >= EVEN_MOST)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		t = task_state(task);
		if (t && t->queue_cpu >= 0 && t->queue_cpu != cpu && move_improves(t->weight, excess) &&
		    k_allowed(task, cpu) && !k_is_pinned(task)) {
			excess = sub_floor_u64(excess, 2 * t->weight);
			rejoin(task, t, cpu, now);
			scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, t->deadline);
			if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, queue_of(cpu, t->class), 0)) {
				moved++;
				count(own, CNT_EVENED);
			}
		}
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return moved;
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
