/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the simulator needs of the kernel's structures, so that it need not know their layout. To be included
 * after a policy.
 */
#ifndef TANDEM_SIM_EXPORTS_H
#define TANDEM_SIM_EXPORTS_H

#include "enums.h"

/* In the order of `Op` in src/scx/native/mod.rs. */
void *sim_op(u32 op)
{
	switch (op) {
	case 0: return sim_ops.select_cpu;
	case 1: return sim_ops.enqueue;
	case 2: return sim_ops.dispatch;
	case 3: return sim_ops.tick;
	case 4: return sim_ops.runnable;
	case 5: return sim_ops.running;
	case 6: return sim_ops.stopping;
	case 7: return sim_ops.quiescent;
	case 8: return sim_ops.yield;
	case 9: return sim_ops.update_idle;
	case 10: return sim_ops.cpu_release;
	case 11: return sim_ops.init;
	case 12: return sim_ops.disable;
	case 13: return sim_ops.cgroup_set_bandwidth;
	case 14: return sim_ops.cpu_online;
	case 15: return sim_ops.cpu_offline;
	case 16: return sim_ops.cgroup_move;
	case 17: return sim_ops.cgroup_set_weight;
	case 18: return sim_ops.enable;
	default: return NULL;
	}
}

u64 sim_flags(void)
{
	return sim_ops.flags;
}

u32 sim_timeout_ms(void)
{
	return sim_ops.timeout_ms;
}

u64 sim_task_size(void)
{
	return sizeof(struct task_struct);
}

void sim_task_set_up(struct task_struct *p, s32 pid, const char *comm, u32 len, const void *cpus, s32 nr_cpus,
		     u32 policy, s32 nice, u64 custom_slice_ns)
{
	u32 i;

	p->pid = pid;
	p->tgid = pid;
	for (i = 0; i < len && i < sizeof(p->comm) - 1; i++)
		p->comm[i] = comm[i];
	p->cpus_ptr = (const cpumask_t *)cpus;
	p->nr_cpus_allowed = nr_cpus;
	p->policy = policy;
	p->static_prio = 120 + nice;
	p->group_leader = p;
	p->se.slice = custom_slice_ns;
	p->se.custom_slice = custom_slice_ns != 0;
	p->scx.weight = 100;
	p->scx.slice = SCX_SLICE_DFL;
}

/* A task is a thread of this process. */
void sim_set_process(struct task_struct *p, s32 process)
{
	p->tgid = process;
}

u64 sim_slice(const struct task_struct *p)
{
	return p->scx.slice;
}

void sim_set_slice(struct task_struct *p, u64 slice_ns)
{
	p->scx.slice = slice_ns;
}

void sim_add_run_time(struct task_struct *p, u64 ns)
{
	p->se.sum_exec_runtime += ns;
}

u64 sim_key(const struct task_struct *p)
{
	return p->scx.dsq_vtime;
}

void sim_set_key(struct task_struct *p, u64 key)
{
	p->scx.dsq_vtime = key;
}

void sim_set_queued(struct task_struct *p, bool queued)
{
	if (queued)
		p->scx.flags |= SCX_TASK_QUEUED;
	else
		p->scx.flags &= ~SCX_TASK_QUEUED;
}

/* A cgroup with the structures that hang on it. */
struct sim_cgroup {
	struct cgroup cgroup;
	struct kernfs_node node;
	struct task_group group;
};

u64 sim_cgroup_size(void)
{
	return sizeof(struct sim_cgroup);
}

void sim_cgroup_set_up(struct sim_cgroup *c, u64 id, const struct sim_cgroup *parent, bool idle)
{
	c->node.id = id;
	c->cgroup.kn = &c->node;
	c->cgroup.self.parent = parent ? (void *)&parent->cgroup.self : NULL;
	c->cgroup.level = parent ? parent->cgroup.level + 1 : 0;
	c->group.idle = idle;
	c->cgroup.subsys[cpu_cgrp_id] = (void *)&c->group;
}

s32 sim_init_task(struct task_struct *p, struct sim_cgroup *c)
{
	struct scx_init_task_args args = { .cgroup = &c->cgroup };

	return sim_ops.init_task ? sim_ops.init_task(p, &args) : 0;
}

s32 sim_init_cgroup(struct sim_cgroup *c, u32 weight, u64 period_us, u64 quota_us)
{
	struct scx_cgroup_init_args args = {
		.weight = weight,
		.bw_period_us = period_us,
		.bw_quota_us = quota_us,
	};

	return sim_ops.cgroup_init ? sim_ops.cgroup_init(&c->cgroup, &args) : 0;
}

/* Marks the task as exiting. */
void sim_set_exiting(struct task_struct *p)
{
	p->flags |= K_PF_EXITING;
}

/* The task is in a BPF program, or not any more. */
void sim_set_migration_disabled(struct task_struct *p, bool disabled)
{
	p->migration_disabled = disabled;
}

/* The number of CPUs that the task's affinity allows has changed; the mask itself is shared. */
void sim_set_nr_cpus_allowed(struct task_struct *p, s32 nr_cpus)
{
	p->nr_cpus_allowed = nr_cpus;
}

/* A vCPU's paravirtual page. */
u64 sim_page_size(void)
{
	return sizeof(struct kvm_steal_time);
}

void sim_page_write(struct kvm_steal_time *page, u64 steal_ns, u32 version, bool preempted)
{
	page->steal = steal_ns;
	page->version = version;
	page->preempted = preempted;
}

/* For a test: the constants that src/scx/kernel.rs defines itself, in the same order. */
u64 sim_constant(u32 i)
{
	const u64 all[] = { SCX_DSQ_LOCAL, SCX_DSQ_LOCAL_ON, SCX_DSQ_GLOBAL, SCX_ENQ_HEAD, SCX_ENQ_WAKEUP, SCX_ENQ_PREEMPT,
			    SCX_ENQ_LAST, SCX_SLICE_INF, SCX_DEQ_SLEEP, SCX_KICK_IDLE, SCX_KICK_PREEMPT, SCX_WAKE_SYNC, SCX_WAKE_TTWU,
			    SCX_WAKE_FORK, SCX_OPS_ENQ_LAST, SCX_OPS_ENQ_MIGRATION_DISABLED };

	return i < sizeof(all) / sizeof(all[0]) ? all[i] : 0;
}

/* Kfuncs whose arguments come in a structure. */
bool sim_insert_ordered(struct task_struct *p, u64 dsq, u64 slice_ns, u64 key, u64 enq_flags);

bool __scx_bpf_dsq_insert_vtime(struct task_struct *p, struct scx_bpf_dsq_insert_vtime_args *args)
{
	return sim_insert_ordered(p, args->dsq_id, args->slice, args->vtime, args->enq_flags);
}

#endif
