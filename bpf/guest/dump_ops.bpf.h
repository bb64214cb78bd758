/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel's debug dump shows of this scheduler: why a task waits, and for what. */
#ifndef TANDEM_GUEST_DUMP_OPS_BPF_H
#define TANDEM_GUEST_DUMP_OPS_BPF_H

#include "balance.bpf.h"

void BPF_STRUCT_OPS(guest_dump, struct scx_dump_ctx *dctx)
{
	scx_bpf_dump("tandem: contended=%u uneven=%u groups=%u shared=%u limits=%u offline=%u\n", contended, uneven,
		     nr_groups, nr_groups_shared, nr_limits, nr_offline);
}

void BPF_STRUCT_OPS(guest_dump_cpu, struct scx_dump_ctx *dctx, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || (idle && !waiting_normal(cpu, c)))
		return;
	scx_bpf_dump("tandem: share=%u/1024 absence_us=%llu class=%u waiting=%u late=%u best_effort=%u weight=%llu\n",
		     c->model.share, c->model.inactive_mean_ns / 1000, c->curr_class,
		     k_waiting(queue_of(cpu, CLASS_NORMAL)), k_waiting(late_queue_of(cpu)),
		     k_waiting(queue_of(cpu, CLASS_BEST_EFFORT)), c->weight[1]);
}

void BPF_STRUCT_OPS(guest_dump_task, struct scx_dump_ctx *dctx, struct task_struct *p)
{
	struct task_state *t = task_state(p);
	struct group_state *g;

	if (!t)
		return;
	g = group_state(t->group);
	scx_bpf_dump("tandem: class=%u queue=%d run=%d v=%llu deadline=%llu weight=%llu used_us=%llu request_us=%llu\n",
		     t->class, queue_cpu(t), t->run_cpu, t->v, t->deadline, t->weight, t->used_ns / 1000,
		     t->request_ns / 1000);
	scx_bpf_dump("tandem: group=%u cgroup=%llu quota_us=%llu pool_ns=%lld parked_at_us=%llu\n", t->group,
		     g ? g->id : 0, g ? g->quota_ns / 1000 : 0, g ? g->pool_ns : 0, t->parked_at_ns / 1000);
}

#endif
