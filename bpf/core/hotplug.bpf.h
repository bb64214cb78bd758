/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * CPU hotplug. Any CPU may take tasks from the queues of a CPU that is about to go offline: the kernel does not
 * call dispatch() there any more, and it waits for the tasks in those queues.
 */
#ifndef TANDEM_CORE_HOTPLUG_BPF_H
#define TANDEM_CORE_HOTPLUG_BPF_H

#include "look.bpf.h"
#include "side.bpf.h"
#include "turn.bpf.h"

/* How often to check for CPUs that are about to go offline, and how many tasks to hand back at a time. */
#define LEAVERS_EVERY_NS (10 * NSEC_PER_MSEC_)
#define HAND_BACK 32

/* A CPU is about to go offline, or has gone: no task is sent there, and any CPU may take from its queues. */
static __always_inline void leaves(struct cpu_state *c, u32 cpu)
{
	if (__sync_val_compare_and_swap(&c->online, 1, 0) == 1) {
		c->left = 1;
		cpu_is_gone(cpu, true);
		__sync_fetch_and_add(&nr_offline, 1);
	}
	c->curr_class = CLASS_NONE;
}

/* Find CPUs on which the kernel does not schedule any more, before it calls cpu_offline(). */
COLD int find_offline(u32 cpu)
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
			if (other == cpu || active >> (bit & 63) & 1)
				continue;
			c = cpu_state(other);
			if (c && c->online)
				leaves(c, other);
		}
	}
	return 0;
}

static __always_inline void watch_for_offline(struct cpu_state *c, u32 cpu, u64 now)
{
	if (now - c->offline_scan_at_ns <= LEAVERS_EVERY_NS)
		return;
	c->offline_scan_at_ns = now;
	find_offline(cpu);
}

/*
 * Tasks that wait for a CPU that is about to go offline, and may not run elsewhere now because they are pinned,
 * go into the kernel's local DSQ of that CPU: there the kernel finds them when it clears the CPU. Called from
 * dispatch.
 */
COLD int hand_back(u32 cpu, u64 queue)
{
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());
	struct task_struct *p;

	if (!own)
		return 0;
	own->scanned = 0;
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_struct *task;

		if (own->scanned++ >= HAND_BACK)
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

/*
 * Take one task from the queue of a CPU that is offline, or about to go. That CPU does not clear its own bit in
 * waiting_cpus any more.
 */
COLD bool take_orphan(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	u32 at = cpu, i;

	if (!own)
		return false;
	bpf_for(i, 0, MAX_LOOK) {
		s32 from = next_waiting(cpu, at, true);
		struct cpu_state *c = cpu_state(from);

		if (!c)
			break;
		at = from;
		if (!(c->tasks[0] + c->tasks[1])) {
			nobody_waits_at(from, c);
			continue;
		}
		if (take_from_leaver(from, queue_of(from, CLASS_NORMAL)) || take_from_leaver(from, late_queue_of(from)) ||
		    take_from_leaver(from, queue_of(from, CLASS_BEST_EFFORT))) {
			count(own, CNT_ORPHANS);
			return true;
		}
	}
	return false;
}

void BPF_STRUCT_OPS(core_cpu_online, s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || c->online)
		return;
	cpu_is_gone(cpu, false);
	c->online = 1;
	/* Forget what it had armed before it went offline. */
	c->timer_at_ns = 0;
	c->run_until_ns = 0;
	side_cpu_online(c);
	if (__sync_val_compare_and_swap(&c->left, 1, 0) == 1)
		__sync_fetch_and_sub(&nr_offline, 1);
}

void BPF_STRUCT_OPS(core_cpu_offline, s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (c)
		leaves(c, cpu);
}

#endif
