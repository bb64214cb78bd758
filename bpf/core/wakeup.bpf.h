/* SPDX-License-Identifier: GPL-2.0-only */
/* A task is queued: does it run at once, and does it preempt the current task? The same on any side. */
#ifndef TANDEM_CORE_WAKEUP_BPF_H
#define TANDEM_CORE_WAKEUP_BPF_H

#include "side.bpf.h"
#include "turn.bpf.h"

/*
 * Does p, which is about to wait in cpu's queue, preempt the task that runs there? `at_once`: also one that has only just begun to run, if it is
 * CPU-bound. `prompt`: such a one whatever the deadlines.
 */
static __always_inline bool preempts_current(struct task_struct *p, struct task_state *t, struct cpu_state *c, u64 enq_flags, bool at_once,
					     bool prompt, u64 now)
{
	u64 burst, deadline, request_ns, ran = sub_floor_u64(now, c->curr_since_ns);
	s64 owed_ns, lead;

	if (!(enq_flags & SCX_ENQ_WAKEUP) || t->class != c->curr_class || k_is_batch(p))
		return false;
	/* Tasks that all sleep soon must not preempt each other for being a little shorter. */
	burst = curr_burst(c, now);
	deadline = burst >= long_burst_ns(c->base_request_ns) ? t->deadline : t->v + deadline_distance(t->request_ns, t->weight, t->base_ns);
	if (at_once && burst >= long_burst_ns(c->base_request_ns))
		ran = ~0ULL;
	lead = curr_lead(c, now);
	request_ns = lag_base(t, c);
	owed_ns = lag_of(clock_now(c, class_index(t->class), now), t->v, t->weight, request_ns);
	if (!(prompt && ran == ~0ULL) && !owed_preempts(owed_ns, lead, request_ns) &&
	    !wakeup_preempts(deadline, curr_deadline_now(c, now), lead, ran, burst, c->base_request_ns))
		return false;
	count_task(CNT_PREEMPTED, p->pid);
	return true;
}

/* Does a task of the normal class come before all that wait at `cpu`? Those in its local DSQ, whose number is `local`, have been chosen already. */
static __always_inline bool comes_first(const struct task_state *t, const struct cpu_state *c, s32 cpu, u64 local)
{
	u64 first;

	if (t->class != CLASS_NORMAL || c->late_due_ns || k_waiting(local))
		return false;
	return !k_peek_key(queue_of(cpu, CLASS_NORMAL), &first) || time_before_ns(t->deadline, first);
}

/*
 * A task that preempts the current one on this very CPU, and comes before all that wait there, need not go
 * through the queue: the switch follows at once, without a self-IPI and another check of the queue. On any
 * other CPU it is queued, so that it can be pulled back if that CPU is preempted meanwhile.
 */
static __always_inline bool takes_over(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu)
{
	if (cpu != (s32)bpf_get_smp_processor_id() || cpu != scx_bpf_task_cpu(p) || c->curr_pid != k_current_pid() || !side_usable(c))
		return false;
	return comes_first(t, c, cpu, SCX_DSQ_LOCAL);
}

/*
 * A kernel thread that serves one CPU: others wait for it, so it runs at once when it wakes up. Not if it has
 * already had more than its share: some compute (ksmd, khugepaged, workers that encrypt), and beside two of
 * them that preempt each other no other task would run.
 */
static __always_inline bool serves_at_once(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
					   u64 enq_flags, u64 now)
{
	u64 clock;

	if (!k_is_kthread(p) || p->nr_cpus_allowed != 1 || !(enq_flags & SCX_ENQ_WAKEUP) || t->mean_burst_ns > c->base_request_ns)
		return false;
	/* Before it joins: what the current task has run since its last charge it has run without this one. */
	clock = clock_now(c, class_index(CLASS_NORMAL), now);
	rejoin(p, t, cpu, now);
	return t->class == CLASS_NORMAL && !is_ahead(clock, t->v);
}

/* p joins cpu's queue, or stays there, with a request of which something is left. */
static __always_inline void lines_up(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	if (queue_cpu(t) == cpu)
		reweigh(t, c);
	else
		rejoin(p, t, cpu, now);
	if (request_done(t, c))
		renew_request(t, c);
	count_task(CNT_QUEUED, p->pid);
}

#endif
