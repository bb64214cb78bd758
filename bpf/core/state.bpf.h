/* SPDX-License-Identifier: GPL-2.0-only */
/* All state of the scheduler: one record per task, one per CPU, one per cgroup. */
#ifndef TANDEM_CORE_STATE_BPF_H
#define TANDEM_CORE_STATE_BPF_H

#include "kernel.bpf.h"
#include "intf.h"
#include "trace.bpf.h"

struct task_state {
	u64 v;			/* virtual run time on the clock of its queue */
	u64 deadline;
	s64 lag;		/* CPU time owed to it, against those who stayed on left_cpu; carried while not in a queue */
	s64 lag_within;		/* the same against all that were there, itself included: for another CPU */
	u64 left_clock;		/* V of left_cpu after the task left */
	u64 used_ns;		/* of the current request */
	u64 request_ns;
	u64 base_ns;		/* its request, unless heavier tasks are beside it */
	u64 burst_ns;		/* run time since it last slept */
	u64 mean_burst_ns;
	u64 stake;		/* part of the sums of the CPU whose clock v is on; 0: in no queue (atomic, any CPU) */
	u64 work_stake;		/* its part of cpu_state.queued_work (likewise) */
	u64 cpu_bound_stake;		/* its part of cpu_state.cpu_bound_weight; 0: it is not counted as CPU-bound (likewise) */
	u64 charged_at_ns;	/* run time is charged up to here */
	u64 charged_ran_ns;	/* its total run time by then */
	u64 charged_steal_ns;
	u64 queued_at_ns;	/* when it began to wait, while it waits */
	u64 runnable_at_ns;	/* when it last woke up */
	u64 throttled_at_ns;	/* when it was throttled; 0: it is not */
	s64 owed_ns;		/* CPU time owed to it, for having been on slower CPUs; negative: on faster ones, or for light tasks of its group */
	u64 weight;		/* effective */
	u64 scale;		/* its group's, when the weight was computed */
	u32 bounded;		/* its deadline is closer than its request over its weight, and moves along with v */
	u32 custom;		/* it has asked for its request itself */
	u32 patient;		/* its deadline after a wake-up is that of its whole request */
	u32 was_late;		/* waits, or waited, in the late queue; or it has been yielded to: it is picked out of order */
	u32 own_weight;		/* by its nice value */
	u32 group;
	u32 counted_weight;	/* its part of counted_group's load while it is runnable */
	u32 counted_group;
	u64 group_stake;	/* its part of its group's CPU-bound load: the group and the weight; 0: none (atomic, any CPU) */
	u32 admitted;		/* group that has unthrottled it, until its slice ends; 0: none (atomic, any CPU) */
	u32 run_limit;		/* group with a quota that counts it as running; 0: none */
	u32 class;		/* enum task_class */
	u32 ended;		/* it has left the scheduler (atomic; another CPU may be about to move it) */
	s32 left_cpu;
	s32 run_cpu;		/* CPU on which it runs; -1: it does not */
	s32 push_to;		/* CPU to migrate to when it is switched out; -1: none */
	u32 exits;		/* it is exiting; it may still sleep and come back */
	struct side_task side;
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
	/* Map values then begin on a page, and cache lines are as laid out. */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct cpu_slot);
} cpus SEC(".maps");

_Static_assert(offsetof(struct cpu_state, base_request_ns) == 2 * TANDEM_CACHE_LINE, "what any CPU writes takes two cache lines");

/* Sized likewise. Written by the daemon, also while the scheduler runs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_domain);
} domains SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, u32);
	__type(value, struct group_state);
} groups SEC(".maps");

/* Number of last-level caches; with one, distances do not matter. Written by the daemon. */
u32 nr_llcs = 1;

/* Some CPUs share a core or a hardware thread, others do not: it matters which one is chosen. Written by the daemon. */
u32 uneven_cores;

/* Groups with a quota, and how often that set has changed. */
u32 nr_limits;
u32 limits_generation;

const volatile u32 nr_cpu_ids = 1;
const volatile u64 watchdog_ns = 20 * NSEC_PER_MSEC_ * 1000;
/* Base request of a CPU for which the side sets no other. */
const volatile u64 base_request_ns = TANDEM_REQUEST_NS;

/*
 * What a task adds to a CPU's sums: the CPU plus one, the class and the amount, in one word. One CPU may move a
 * waiting task while another does something else with it (a signal, a new affinity). The CPU that takes the
 * word subtracts what it says, and no other CPU can.
 */
#define STAKE_CPU_SHIFT 48
#define STAKE_CLASS_SHIFT 47
#define STAKE_VALUE_MASK ((1ULL << STAKE_CLASS_SHIFT) - 1)

static __always_inline u64 stake_of(s32 cpu, u32 class_index, u64 value)
{
	return ((u64)(u32)(cpu + 1) << STAKE_CPU_SHIFT) | ((u64)(class_index & 1) << STAKE_CLASS_SHIFT) |
	       (value & STAKE_VALUE_MASK);
}

static __always_inline s32 stake_cpu(u64 stake)
{
	return (s32)(stake >> STAKE_CPU_SHIFT) - 1;
}

static __always_inline u32 stake_class(u64 stake)
{
	return (stake >> STAKE_CLASS_SHIFT) & 1;
}

static __always_inline u64 stake_value(u64 stake)
{
	return stake & STAKE_VALUE_MASK;
}

/* The CPU in whose queue a task is, waiting or running; -1: in none. */
static __always_inline s32 queue_cpu(const struct task_state *t)
{
	return stake_cpu(t->stake);
}

static __always_inline struct task_state *task_state(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

static __always_inline struct cpu_state *cpu_state(s32 cpu)
{
	u32 key = cpu;
	struct cpu_slot *slot = bpf_map_lookup_elem(&cpus, &key);

	return slot ? &slot->state : NULL;
}

/* The i-th CPU after this one, around the ring. */
static __always_inline u32 cpu_after(s32 cpu, u32 i)
{
	u32 other = (u32)cpu + i;

	return other >= nr_cpu_ids ? other - nr_cpu_ids : other;
}

static __always_inline bool is_idle(const struct cpu_state *c)
{
	return c->curr_class == CLASS_NONE;
}

static __always_inline struct cpu_domain *domain_of(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&domains, &key);
}

/*
 * CPUs that went offline while the scheduler was loaded, or are about to: any CPU may take from their queues.
 * CPUs that were never online, of which a VM with room for hotplug has many, are not checked.
 */
u32 nr_offline;

/*
 * Is this CPU about to go offline? An interrupt that it requests for itself (a kick, a timer) may then never
 * come, and later ones do not come either: the kernel sees the first still pending. A task that is inserted
 * directly reaches its CPU without one.
 */
static __always_inline bool is_leaving(void)
{
	struct cpu_state *c = nr_offline ? cpu_state(bpf_get_smp_processor_id()) : NULL;

	return c && !c->online;
}

static __always_inline u32 llc_of(s32 cpu)
{
	struct cpu_domain *d = domain_of(cpu);

	return d ? d->llc : 0;
}

/* Do two CPUs share no last-level cache? */
static __always_inline bool far_apart(s32 one, s32 other)
{
	return nr_llcs > 1 && llc_of(one) != llc_of(other);
}

/*
 * A decision is counted in the record of the CPU that takes it (`c`, the one that this runs on); otherwise
 * counts would get lost. `value`: for a trace.
 */
static __always_inline void count_of(struct cpu_state *c, enum counter id, u64 value)
{
	c->counters[id]++;
	trace(id, c->curr_pid, value);
}

static __always_inline void count(struct cpu_state *c, enum counter id)
{
	count_of(c, id, 0);
}

/* A decision about the task `pid`, counted on the CPU that takes it. */
static __always_inline void count_task(enum counter id, s32 pid)
{
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());

	if (own)
		own->counters[id]++;
	trace(id, pid, 0);
}

static __always_inline struct group_state *group_state(u32 group)
{
	return bpf_map_lookup_elem(&groups, &group);
}

/*
 * Queues. Per CPU: one for best-effort (SCHED_IDLE) tasks, one for normal tasks, and the late queue, for normal
 * tasks that would wait for too long because of their weight. Per cgroup: one for throttled tasks.
 */
#define LATE_QUEUE 2
#define THROTTLE_QUEUE_BASE (1ULL << 40)

static __always_inline u64 queue_of(s32 cpu, u32 class)
{
	return ((u64)(u32)cpu << 2) | (class == CLASS_NORMAL);
}

static __always_inline u64 late_queue_of(s32 cpu)
{
	return ((u64)(u32)cpu << 2) | LATE_QUEUE;
}

static __always_inline u64 throttle_queue_of(u32 group)
{
	return THROTTLE_QUEUE_BASE | group;
}

static __always_inline u32 class_index(u32 class)
{
	return class == CLASS_NORMAL;
}

/*
 * A task that waits for a CPU has been counted there before. Where only the running task is counted, the kernel
 * need not look up the queue.
 */
static __always_inline bool may_wait(const struct cpu_state *c, u32 class)
{
	u32 i = class_index(class), runs = c->curr_charged_at_ns && class_index(c->curr_class) == i;

	return c->tasks[i] > runs;
}

/* Normal tasks that wait for this CPU. */
static __always_inline u32 waiting_normal(s32 cpu, const struct cpu_state *c)
{
	u32 n;

	if (!may_wait(c, CLASS_NORMAL))
		return 0;
	n = k_waiting(queue_of(cpu, CLASS_NORMAL));
	return c->late_due_ns ? n + k_waiting(late_queue_of(cpu)) : n;
}

static __always_inline u32 waiting_best_effort(s32 cpu, const struct cpu_state *c)
{
	return may_wait(c, CLASS_BEST_EFFORT) ? k_waiting(queue_of(cpu, CLASS_BEST_EFFORT)) : 0;
}

#endif
