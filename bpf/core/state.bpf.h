/* SPDX-License-Identifier: GPL-2.0-only */
/* All state of the scheduler: one record per task, one per vCPU, and the counters. */
#ifndef TANDEM_CORE_STATE_BPF_H
#define TANDEM_CORE_STATE_BPF_H

#include "kernel.bpf.h"
#include "../../policy/eevdf.h"
#include "../guest/intf.h"

struct task_state {
	u64 v;			/* virtual run time on the clock of queue_cpu */
	u64 deadline;
	s64 lag;		/* carried while not in a queue */
	u64 left_clock;		/* V of left_cpu when the task left */
	u64 used_ns;		/* of the current request */
	u64 request_ns;
	u64 burst_ns;		/* run time since it last slept */
	u64 mean_burst_ns;
	u64 booked_work_ns;	/* its part of cpu_state.queued_work_ns */
	u64 charged_at_ns;	/* up to here its run time is accounted */
	u64 charged_steal_ns;
	u64 pushed_at_ns;
	u32 weight;
	u32 class;		/* enum task_class */
	s32 queue_cpu;		/* whose clock v is on; -1: in no queue */
	s32 left_cpu;
	s32 run_cpu;		/* where it runs; -1: it does not */
	s32 push_to;		/* where it shall go when it is switched out; -1: nowhere */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

/* Sized to the number of possible CPUs when the object is loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

const volatile u32 nr_cpu_ids = 1;
const volatile u64 watchdog_ns = 20 * NSEC_PER_MSEC_ * 1000;
const volatile u64 base_request_ns = TANDEM_REQUEST_NS;

static __always_inline struct task_state *task_state(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

static __always_inline struct cpu_state *cpu_state(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&cpus, &key);
}

static __always_inline void count(struct cpu_state *c, enum counter id)
{
	c->counters[id]++;
}

/* Two queues per CPU: best effort and normal. */
static __always_inline u64 queue_of(s32 cpu, u32 class)
{
	return ((u64)(u32)cpu << 1) | (class == CLASS_NORMAL);
}

static __always_inline u32 class_index(u32 class)
{
	return class == CLASS_NORMAL;
}

#endif
