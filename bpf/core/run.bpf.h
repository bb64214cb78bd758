/* SPDX-License-Identifier: GPL-2.0-only */
/* A task starts or stops running, or a CPU goes idle: the core's part, which each side calls from its callbacks. */
#ifndef TANDEM_CORE_RUN_BPF_H
#define TANDEM_CORE_RUN_BPF_H

#include "spread.bpf.h"
#include "turn.bpf.h"

/* p runs on `cpu` from now on. Returns the class that ran there before, enum task_class. */
static __always_inline u32 turn_begins(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u32 was = c->curr_class, i;

	if (queue_cpu(t) == cpu)
		reweigh(t, c);
	else
		rejoin(p, t, cpu, now);
	i = class_index(t->class);
	if (queue_cpu(t) == cpu)
		anchor_clock(t, c, i);
	t->was_late = 0;
	trace(TRACE_RUNS, p->pid, 0);
	t->run_cpu = cpu;
	t->push_to = -1;
	t->throttled_at_ns = 0;
	t->charged_at_ns = now;
	t->charged_steal_ns = side_stolen_ns(cpu);
	c->curr_pid = p->pid;
	/* Others read the class first, and the host may preempt this CPU at any moment. */
	barrier();
	c->curr_class = t->class;
	show_deadline(t, c);
	c->curr_since_ns = now;
	c->curr_charged_at_ns = now;
	c->curr_v = t->v;
	c->curr_cpu_bound = t->cpu_bound_stake != 0;
	c->curr_burst_ns = t->burst_ns;
	quota_running(t, true);
	return was;
}

/*
 * How long is the slice? Without timers the slice given at enqueue is good enough: only ticks check it. For a
 * lone task the end of that slice, which a preemption interval brings on, would only mean another pass through
 * dispatch. Where the kernel may stop the tick the slice says so.
 *
 * A task that begins to run has a slice. One without has lost it to a task that preempts it, which is in the local DSQ, and has been stopped and
 * started again for a change of its properties before it could be switched out. The kernel changes some by itself: the CPUs of a task
 * that is preempted while migration is disabled, as it is in a BPF program. With a new slice it would go on, and the other one wait for
 * the end of that: up to ALONE_SLICE_NS. (Traced on a KVM host with programs on events of KVM: one wake-up in a hundred.)
 */
static __always_inline void turn_lasts(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	if (!p->scx.slice)
		return;
	if ((slice_timers_enabled || nr_limits || c->tickless || c->tasks[0] + c->tasks[1] <= 1) && cpu == bpf_get_smp_processor_id())
		take_turn(p, t, c, cpu, now);
}

/*
 * It stops running. Call it on its CPU only: a property change stops a running task from another CPU, where its
 * clock is not exact.
 */
static __always_inline void turn_pauses(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	charge(p, t, c, cpu, now);
	move_deadline(t);
	turn_ended(c, now);
}

/* It does not run any more. */
static __always_inline void turn_ends(const struct task_struct *p, struct task_state *t, struct cpu_state *c, bool runnable)
{
	trace(TRACE_STOPS, p->pid, runnable);
	t->run_cpu = -1;
	c->curr_charged_at_ns = 0;
	c->run_until_ns = 0;
	c->endless = 0;
	if (t->run_limit || t->admitted)
		c->unthrottle_limit = t->admitted ? t->admitted : t->run_limit;
	admission_done(t);
	quota_running(t, false);
}

/*
 * The CPU goes idle. A task may have been queued between the last check of the queues and now, by a CPU that
 * saw this one busy.
 */
static __always_inline void rests(struct cpu_state *c, s32 cpu)
{
	rest_from_balancing(c);
	if (!c->late_due_ns && may_wait(c, CLASS_NORMAL))
		look_at_late(c, cpu);
	if (c->online && waiting_normal(cpu, c))
		k_kick_idle(cpu);
}

#endif
