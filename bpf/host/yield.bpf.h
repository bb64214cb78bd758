/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Directed yield: a vCPU that can do nothing useful names a sibling that it waits for (a spinning lock's holder, the target of an IPI).
 *
 * KVM asks by yield_to(); under sched_ext that reaches ops.yield(), and without it every such request is lost. The sibling runs next
 * on the yielder's pCPU, for what is left of the yielder's request: nobody else pays, and the VM gets no more than before. The answer
 * is true only once the pCPU's next dispatch has been claimed for it; on false KVM tries another vCPU.
 *
 * Forwarding is the same without being asked: a vCPU has sent a reschedule IPI to a sibling that waits. When its turn ends, or it sleeps, the
 * sibling runs on its pCPU. (At once, for IPIs whose sender waits for an answer, was tried: simulated, a program that unmaps memory did 0.57 of
 * the rounds.)
 */
#ifndef TANDEM_HOST_YIELD_BPF_H
#define TANDEM_HOST_YIELD_BPF_H

#include "side.bpf.h"
#include "../core/life.bpf.h"
#include "../core/spread.bpf.h"

/*
 * Has it had so much beyond its share that its turn is over? Two that yield to each other in a circle must not leave
 * out those that compute. The bound is that of sched_yield(): one request, against those who stay if it leaves.
 * (Simulated with a VM that unmaps memory all the time, beside one of the same weight: 36,000 rounds with 0.48 of the
 * CPU time, 12,000 without directed yield. With more of a bound it has more than its weight gives it.)
 */
static __always_inline bool is_far_ahead(const struct task_state *t, const struct cpu_state *c, u64 v, u64 now)
{
	u32 i = class_index(t->class);
	s64 lag = lag_of(clock_now(c, i, now), v, t->weight, lag_base(t, c));

	return lag_against(lag, t->weight, sub_floor_u64(c->weight[i], t->weight)) < -(s64)lag_base(t, c);
}

/* So many turns in a row are yielded on a pCPU at most. They come before those that are overdue, who must not wait for long. */
#define YIELDS_IN_ROW_MAX 16

/* Does `to` wait in the queue that it is counted in? It may be on its way from one to another. */
static __always_inline bool waits_where_counted(struct task_struct *to, const struct task_state *t)
{
	return queue_cpu(t) >= 0 && k_dsq_of(to) == queue_of(queue_cpu(t), t->class);
}

/* Does it wait for a pCPU, in whichever of its queues? */
static __always_inline bool waits_for_pcpu(struct task_struct *to, const struct task_state *t)
{
	return waits_where_counted(to, t) || (queue_cpu(t) >= 0 && k_dsq_of(to) == late_queue_of(queue_cpu(t)));
}

/* One that may run on a single pCPU can still be served there. */
static __always_inline bool may_run_at(const struct task_struct *to, const struct task_state *t, s32 cpu)
{
	return k_allowed(to, cpu) && (queue_cpu(t) == cpu || !k_is_pinned(to));
}

/* May `to` run next on the pCPU of a sibling, for what is left of that one's request? */
static __always_inline bool may_give(struct task_state *t, struct cpu_state *c, s32 cpu, struct task_struct *to, struct task_state *target, u64 now)
{
	struct cpu_state *there = cpu_state(queue_cpu(target)), *claimed;

	if (!there || !is_vcpu(t) || target->side.vm != t->side.vm || target->throttled_at_ns || target->class != t->class ||
	    !may_run_at(to, target, cpu) || !waits_where_counted(to, target))
		return false;
	/* It would be throttled as soon as it runs. */
	if (nr_limits && exhausted(target->group, now))
		return false;
	if (is_far_ahead(t, c, curr_v_now(c, now), now) || is_far_ahead(target, there, target->v, now))
		return false;
	/* A task that has been chosen to run next here: then the kernel does not ask for another one. */
	if (k_waiting(SCX_DSQ_LOCAL_ON | cpu))
		return false;
	/* The next dispatch here is claimed already, and that claim is kept. */
	if (c->side.yield_to || c->side.yields_in_row >= YIELDS_IN_ROW_MAX)
		return false;
	/* Another one has yielded to it already. */
	claimed = target->side.yield_cpu >= 0 ? cpu_state(target->side.yield_cpu) : NULL;
	return !claimed || claimed->side.yield_to != to->pid;
}

/* `to` runs next here. */
static __always_inline void give(struct cpu_state *c, s32 cpu, struct task_struct *to, struct task_state *target, u64 now)
{
	c->side.yield_to = to->pid;
	c->side.yield_ns = max_u64(curr_remaining_ns(c, now), TANDEM_QUOTA_RUN_MIN_NS);
	target->side.yield_cpu = cpu;
}

/* Both run queues are locked. `to` is runnable and does not run, which the kernel has checked. */
bool BPF_STRUCT_OPS(host_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_state *t, *target;
	struct cpu_state *c;
	u64 now = k_now();
	s32 cpu;

	if (!to)
		return forfeits_request(from);
	cpu = scx_bpf_task_cpu(from);
	c = cpu_state(cpu);
	t = task_state(from);
	target = task_state(to);
	if (!c || !t || !target)
		return false;
	count(c, CNT_YIELDS);
	if (t->run_cpu != cpu || !vm_uses(t, VM_YIELD) || !may_give(t, c, cpu, to, target, now))
		return false;
	c->side.forwards = 0;
	give(c, cpu, to, target, now);
	k_set_slice(from, 0);
	return true;
}

/* The current vCPU has sent an IPI to a sibling that waits. */
static __always_inline void forward_to(const struct task_struct *to)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());

	/* It may be switched out in this very moment. */
	if (c && c->curr_pid == k_current_pid())
		c->side.forward_to = to->pid;
}

/* The turn of a vCPU on this pCPU ends, and it had sent an IPI to a sibling: the sibling runs next if it still waits. `prev`: the vCPU, if it is there. */
COLD int claim_forward(s32 cpu, s32 sender)
{
	struct cpu_state *c = cpu_state(cpu), *there;
	struct task_struct *to, *from;
	struct task_state *t, *target;
	u64 now = k_now();

	if (!c)
		return 0;
	to = bpf_task_from_pid(c->side.forward_to);
	c->side.forward_to = 0;
	if (!to)
		return 0;
	from = bpf_task_from_pid(sender);
	if (from) {
		bpf_rcu_read_lock();
		target = task_state(to);
		t = task_state(from);
		there = target ? cpu_state(queue_cpu(target)) : NULL;
		/* Nobody has asked for it: it is for those who have not had their share. */
		if (t && there && !is_ahead(clock_now(there, class_index(target->class), now), target->v) &&
		    may_give(t, c, cpu, to, target, now)) {
			c->side.forwards = 1;
			give(c, cpu, to, target, now);
		}
		bpf_rcu_read_unlock();
		bpf_task_release(from);
	}
	bpf_task_release(to);
	return 0;
}

/* Another task runs here. The claim is broken if its target still waits; it may have begun to run elsewhere, or sleep. */
static __always_inline void claim_lost(struct task_struct *to, struct task_state *t, struct cpu_state *c, s32 cpu)
{
	if (!t || t->side.yield_cpu != cpu)
		return;
	t->side.yield_cpu = -1;
	if (t->run_cpu < 0 && waits_for_pcpu(to, t))
		count(c, CNT_BROKEN);
}

/* The claim of `pid` ends: another task runs on `cpu`. -1: the kernel took the pCPU, and nobody was passed over. */
COLD int claim_ends(s32 pid, s32 cpu)
{
	struct task_struct *to = bpf_task_from_pid(pid);
	struct cpu_state *c = cpu_state(cpu);
	struct task_state *t;

	if (!to)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(to);
	if (c)
		claim_lost(to, t, c, cpu);
	else if (t)
		t->side.yield_cpu = -1;
	bpf_rcu_read_unlock();
	bpf_task_release(to);
	return 0;
}

/*
 * Earlier than any deadline that a task may have: while a task of another run queue is moved here, this one is unlocked, and others may be
 * queued. (Measured in an emulated VM: two of 10,600 claims were lost that way.)
 */
static __always_inline u64 before_all(u64 deadline)
{
	return deadline - (1ULL << 62);
}

/*
 * `to`, which waits, joins this pCPU's queue, before all others there, and is taken from it. Returns whether a task was dispatched; it was this one
 * if its was_late is set. In the meantime it may have begun to run elsewhere.
 */
static __always_inline bool take_out_of_order(struct task_struct *to, struct task_state *t, struct cpu_state *by, s32 cpu)
{
	u64 queue = queue_of(cpu, t->class);
	s32 from = queue_cpu(t), pid = to->pid;
	struct bpf_iter_scx_dsq it;
	s64 owed_ns = t->owed_ns;
	bool moved = false;

	by->move_stake = 0;
	by->move_key = t->deadline;
	if (from < 0 || (from != cpu && !join_elsewhere(pid, from, cpu)))
		return false;
	/* What others have missed is made up for only where load balance moves a task; this one moves as often as it likes. */
	t->owed_ns = owed_ns;
	/* The task need not be the iterator's: it has to be in that queue. */
	if (!bpf_iter_scx_dsq_new(&it, queue_of(from, t->class), 0)) {
		scx_bpf_dsq_move_set_vtime(&it, before_all(by->move_key));
		moved = scx_bpf_dsq_move_vtime(&it, to, queue, 0);
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (!moved) {
		not_taken_over(pid);
		return false;
	}
	/* Out of order: V of this queue stays. */
	t->was_late = 1;
	moved = k_take(queue);
	/* Nobody was taken. */
	if (k_dsq_of(to) == queue)
		t->was_late = 0;
	return moved;
}

/*
 * The task that the current one has yielded to runs next. Returns whether it was dispatched. It may not be allowed here any more: a task that is
 * put into the local DSQ of a CPU that it must not use would end the scheduler.
 */
COLD bool serve_yielded(s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu), *by = mover();
	bool moved = false, served = false;
	struct task_struct *to;
	struct task_state *t;

	if (!c || !by)
		return false;
	/* Until it runs the claim stands, so that nobody comes before it, and no other pCPU claims it. */
	to = bpf_task_from_pid(c->side.yield_to);
	if (!to) {
		c->side.yield_to = 0;
		return false;
	}
	bpf_rcu_read_lock();
	t = task_state(to);
	if (t && t->side.yield_cpu == cpu && t->run_cpu < 0 && may_run_at(to, t, cpu) && waits_where_counted(to, t)) {
		moved = take_out_of_order(to, t, by, cpu);
		served = moved && t->was_late;
	}
	if (!served) {
		c->side.yield_to = 0;
		claim_lost(to, t, c, cpu);
	}
	bpf_rcu_read_unlock();
	bpf_task_release(to);
	return moved;
}

/* p runs, maybe because it was yielded to. */
static __always_inline void yield_served(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	if (c->side.yield_to) {
		if (c->side.yield_to != p->pid)
			claim_ends(c->side.yield_to, cpu);
		c->side.yield_to = 0;
	}
	if (t->side.yield_cpu < 0)
		return;
	/* Here on the yielder's time; elsewhere because another pCPU was free sooner. */
	if (t->side.yield_cpu == cpu) {
		count(c, c->side.forwards ? CNT_FORWARDED : CNT_YIELDED);
		if (c->side.yield_ns && c->side.yield_ns < p->scx.slice) {
			k_set_slice(p, c->side.yield_ns);
			end_turn_at(c, cpu, now + c->side.yield_ns, now);
		}
		c->side.yield_ns = 0;
	}
	t->side.yield_cpu = -1;
}

#endif
