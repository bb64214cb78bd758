/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A real-time or deadline task takes a CPU: tasks in the kernel's local DSQ there go back into our queues,
 * where other CPUs can pull them.
 *
 * The kernel reports this by ops.cpu_release(), which it calls deprecated since 6.19. It is used where it
 * exists, because it costs nothing at any other switch. On kernels without it the daemon loads the tracing
 * program below instead, which runs at every switch.
 */
#ifndef TANDEM_CORE_HIGHER_BPF_H
#define TANDEM_CORE_HIGHER_BPF_H

#include "side.bpf.h"

/* The kernel's MAX_RT_PRIO: real-time and deadline tasks are below it. */
#define K_MAX_RT_PRIO 100

/* Busy, but not with a task of ours. */
static __always_inline void preempted_by_higher_class(s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return;
	c->curr_class = CLASS_NORMAL;
	side_cpu_lost(c);
}

void BPF_STRUCT_OPS(core_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	preempted_by_higher_class(cpu);
	scx_bpf_reenqueue_local();
}

SEC("?tp_btf/sched_switch")
int BPF_PROG(core_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	if (next->prio >= K_MAX_RT_PRIO || prev->prio < K_MAX_RT_PRIO)
		return 0;
	preempted_by_higher_class(bpf_get_smp_processor_id());
	scx_bpf_reenqueue_local_from_anywhere();
	return 0;
}

#endif
