/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Taking work: what a vCPU without work of its own runs.
 *
 * All waiting tasks sit in per-vCPU user queues (local queues hold at most the
 * task that runs next), so that any vCPU may take them, also from one that
 * the host has preempted and that could not hand anything over itself.
 */
#ifndef TANDEM_GUEST_BALANCE_BPF_H
#define TANDEM_GUEST_BALANCE_BPF_H

#include "place.bpf.h"

/* So often it is looked for vCPUs that are about to go, and so many tasks are handed back at a time. */
#define LEAVERS_EVERY_NS (10 * NSEC_PER_MSEC_)
#define HAND_BACK 32

/* A vCPU is about to go, or has gone: nobody is sent there, and its queues are everybody's. */
static __always_inline void leaves(struct cpu_state *c)
{
	if (__sync_val_compare_and_swap(&c->online, 1, 0) == 1) {
		c->left = 1;
		__sync_fetch_and_add(&nr_offline, 1);
	}
	c->curr_class = CLASS_NONE;
}

/* vCPUs that the kernel does not schedule on any more, before it says so. */
COLD int look_for_leavers(u32 cpu)
{
	u32 word, bit;

	bpf_for(word, 0, (nr_cpu_ids + 63) / 64) {
		u64 active = k_active_cpus(word);

		if (active == ~0ULL)
			continue;
		bpf_for(bit, 0, 64) {
			u32 other = word * 64 + bit;
			struct cpu_state *c;

			if (other >= nr_cpu_ids)
				break;
			c = cpu_state(other);
			if (c && c->online && other != cpu && !(active >> (bit & 63) & 1))
				leaves(c);
		}
	}
	return 0;
}

static __always_inline void watch_for_leavers(struct cpu_state *c, u32 cpu, u64 now)
{
	if (now - c->leavers_at_ns <= LEAVERS_EVERY_NS)
		return;
	c->leavers_at_ns = now;
	look_for_leavers(cpu);
}

/*
 * Those who wait for a vCPU that is about to go and cannot go elsewhere now,
 * pinned as they are, go into the kernel's own queue of it: there the kernel
 * finds them when it clears the vCPU. From dispatch.
 */
COLD int hand_back(u32 cpu, u64 queue)
{
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());
	struct task_struct *p;

	if (!own)
		return 0;
	own->looked = 0;
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_struct *task;

		if (own->looked++ >= HAND_BACK)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		if (scx_bpf_task_cpu(task) == (s32)cpu) {
			scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, base_request_ns);
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, task, SCX_DSQ_LOCAL_ON | cpu, 0);
		}
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return 0;
}

static __always_inline bool take_from_leaver(u32 cpu, u64 queue)
{
	if (!k_waiting(queue))
		return false;
	if (k_take(queue))
		return true;
	hand_back(cpu, queue);
	return false;
}

/* Take one task from the queue of a vCPU that is offline, or about to go. */
static __noinline bool take_orphan(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	u32 i;

	if (!own)
		return false;
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (!c || c->online || !(c->tasks[0] + c->tasks[1]))
			continue;
		if (take_from_leaver(i, queue_of(i, CLASS_NORMAL)) || take_from_leaver(i, late_queue_of(i)) ||
		    take_from_leaver(i, queue_of(i, CLASS_BEST_EFFORT))) {
			count(own, CNT_ORPHANS);
			return true;
		}
	}
	return false;
}

/* Would `cpu`, idle, take a task that waits for `from`? */
static __always_inline bool would_take(struct cpu_state *c, s32 cpu, struct cpu_state *from, s32 from_cpu, u32 waiting,
				       bool far, u64 now)
{
	struct pull_view view = {
		.drain_ns = far ? place_drain_ns(booked_turns_ns(from->queued_work), capacity(from, now)) : 0,
		.far = far,
		.waiting = waiting,
		.from_share = capacity(from, now),
		.to_share = capacity_beside(c, cpu, now),
		.source_burst_ns = from->curr_class == CLASS_NORMAL ? from->curr_burst_ns : 0,
		.source_inactive = off_pcpu(from_cpu, from, now),
	};

	return pull_helps(&view);
}

/*
 * An idle vCPU that would take over p, which waits for `from_cpu`; one with
 * the same cache before others. A weak vCPU that would decline is not even
 * woken: that costs the host two exits.
 */
static __noinline s32 helper_for(struct task_struct *p, s32 from_cpu)
{
	struct cpu_state *from = cpu_state(from_cpu);
	u64 now = k_now();
	s32 distant = -1;
	u32 i;

	if (!p || !from)
		return -1;
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);
		bool far;

		if (!c || i == (u32)from_cpu || !c->online || c->bans || !is_idle(c) || !k_allowed(p, i))
			continue;
		far = far_apart(from_cpu, i);
		if (far && distant >= 0)
			continue;
		if (!would_take(c, i, from, from_cpu, waiting_normal(from_cpu, from), far, now))
			continue;
		if (!far)
			return i;
		distant = i;
	}
	return distant;
}

static __noinline bool take_normal_at(s32 cpu, bool far)
{
	struct cpu_state *own = cpu_state(cpu);
	u64 now = k_now();
	u32 i;

	if (!own || own->bans)
		return false;
	bpf_for(i, 1, nr_cpu_ids) {
		u32 from = cpu_after(cpu, i), waiting;
		struct cpu_state *c = cpu_state(from);
		bool inactive;

		if (!c || far_apart(cpu, from) != far)
			continue;
		waiting = waiting_normal(from, c);
		if (!waiting || reserved(c, now))
			continue;
		inactive = off_pcpu(from, c, now);
		if (!would_take(own, cpu, c, from, waiting, far, now)) {
			count(own, CNT_DECLINED);
			continue;
		}
		if (k_take(queue_of(from, CLASS_NORMAL)) || k_take(late_queue_of(from))) {
			count(own, CNT_PULLED);
			if (inactive)
				count(own, CNT_RESCUED);
			if (c->awaited_pid)
				count(own, CNT_TAKEN_BACK);
			if (far)
				count(own, CNT_FAR);
			return true;
		}
	}
	return false;
}

/* Take one waiting normal task from another vCPU, of the same cache before others. */
static __always_inline bool take_normal(s32 cpu)
{
	return take_normal_at(cpu, false) || (nr_llcs > 1 && take_normal_at(cpu, true));
}

static __noinline bool take_best_effort(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	u32 i;

	if (!own)
		return false;
	bpf_for(i, 1, nr_cpu_ids) {
		u32 from = cpu_after(cpu, i);
		struct cpu_state *c = cpu_state(from);

		if (c && waiting_best_effort(from, c) && k_take(queue_of(from, CLASS_BEST_EFFORT))) {
			count(own, CNT_PULLED);
			return true;
		}
	}
	return false;
}

#endif
