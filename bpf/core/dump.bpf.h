/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel's debug dump shows of this scheduler: why a task waits, and for what. */
#ifndef TANDEM_CORE_DUMP_BPF_H
#define TANDEM_CORE_DUMP_BPF_H

#include "side.bpf.h"
#include "turn.bpf.h"

void BPF_STRUCT_OPS(core_dump, struct scx_dump_ctx *dctx)
{
	scx_bpf_dump("tandem: groups=%u shared=%u limits=%u offline=%u\n", nr_groups, nr_groups_shared, nr_limits, nr_offline);
	side_dump();
}

void BPF_STRUCT_OPS(core_dump_cpu, struct scx_dump_ctx *dctx, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || (idle && !waiting_normal(cpu, c)))
		return;
	scx_bpf_dump("tandem: class=%u waiting=%u late=%u best_effort=%u weight=%llu\n", c->curr_class,
		     k_waiting(queue_of(cpu, CLASS_NORMAL)), k_waiting(late_queue_of(cpu)),
		     k_waiting(queue_of(cpu, CLASS_BEST_EFFORT)), c->weight[class_index(CLASS_NORMAL)]);
	scx_bpf_dump("tandem: cpu_bound=%u cpu_bound_weight=%llu vtime=%llu known=%llu light_share=%u give_to=%d pull_from=%d seen_excess=%llu\n",
		     c->cpu_bound_tasks, c->cpu_bound_weight, c->vtime, c->vtime_known, c->light_share, c->give_to, c->pull_from,
		     c->seen_excess);
	side_dump_cpu(c);
}

void BPF_STRUCT_OPS(core_dump_task, struct scx_dump_ctx *dctx, struct task_struct *p)
{
	struct task_state *t = task_state(p);
	struct group_state *g;

	if (!t)
		return;
	g = group_state(t->group);
	scx_bpf_dump("tandem: class=%u queue=%d run=%d v=%llu deadline=%llu weight=%llu used_us=%llu request_us=%llu cpu_bound=%u mean_burst_us=%llu\n",
		     t->class, queue_cpu(t), t->run_cpu, t->v, t->deadline, t->weight, t->used_ns / 1000,
		     t->request_ns / 1000, !!t->cpu_bound_stake, t->mean_burst_ns / 1000);
	scx_bpf_dump("tandem: group=%u cgroup=%llu quota_us=%llu pool_ns=%lld throttled_at_us=%llu\n", t->group,
		     g ? g->id : 0, g ? g->quota_ns / 1000 : 0, g ? g->pool_ns : 0, t->throttled_at_ns / 1000);
}

#endif
