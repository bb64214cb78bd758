/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the core asks of the side that is built on it.
 *
 * The core is a fair scheduler with cgroups, quotas and hotplug, for CPUs of any kind. A side (bpf/guest: the
 * CPUs are vCPUs) decides where tasks go and knows what its CPUs are. It includes the core's headers and
 * defines each of these functions; the compiler reports a missing one as an error. The side's own parts of the
 * records are in its intf.h.
 */
#ifndef TANDEM_CORE_SIDE_BPF_H
#define TANDEM_CORE_SIDE_BPF_H

#include "state.bpf.h"

#pragma clang diagnostic error "-Wundefined-inline"
#pragma clang diagnostic error "-Wundefined-internal"

/* Capacity of this CPU as a part of an uncontended, fastest CPU, 1 to TANDEM_SCALE. */
static __always_inline u32 side_capacity(const struct cpu_state *c, u64 now);

/*
 * Steal: time since the boot for which `cpu` had a task and did not run, ns. No task is charged for it. Call it
 * on that CPU.
 */
static __always_inline u64 side_stolen_ns(s32 cpu);

/*
 * t has run for this long, ns. Returns how much of it is charged to its v, ns: less if its side lends it the rest, more if it pays for what was
 * lent. V moves by the same, so that nobody else's lag changes by what is lent, and others gain what is paid.
 */
static __always_inline u64 side_charge_ns(struct task_state *t, struct cpu_state *c, s32 cpu, u64 service_ns);

/* Request on CPU `c` of a task that has asked for none itself, ns. `g`: its group, or NULL. */
static __always_inline u64 side_request_ns(const struct task_struct *p, const struct task_state *t, const struct group_state *g,
					   const struct cpu_state *c);

/* Request of a task whose deadlines are bounded by its base_ns, ns: as a rule the same. A longer one saves switches. */
static __always_inline u64 side_slice_ns(const struct task_state *t, const struct cpu_state *c);

/* What t is expected to need when it wakes up, ns: its deadline is that of so much. At most its base_ns. */
static __always_inline u64 side_wake_request_ns(const struct task_state *t);

/* A request of t is done, which it has not asked for itself. The side may set another base_ns for the next one. */
static __always_inline void side_request_done(struct task_state *t, const struct cpu_state *c);

/* May normal tasks be put on this CPU? (Apart from affinity, and from whether it is online.) */
static __always_inline bool side_usable(const struct cpu_state *c);

/*
 * p's group is out of quota. For how long may p go on all the same, on debt, because it cannot stop here, ns; 0: it has to wait.
 * The debt is paid later: on average a group gets what its quota says.
 */
static __always_inline u64 side_debt_ns(const struct task_struct *p, struct task_state *t, u64 now);

/* CPU-bound tasks that a CPU may have without being too heavy for load balance, whatever the others have: one, as a rule. */
static __always_inline u32 side_cpu_bound_allowance(const struct cpu_state *c, u64 now);

/*
 * May load balance move a CPU-bound task from the queue of `from` to `to`? `needed`: `from` is heavier without it, too, or tasks there have missed
 * much already; otherwise it only changes places in turn.
 */
static __always_inline bool side_may_move(const struct task_state *t, s32 from, s32 to, bool needed);

/* A real-time or deadline task has taken this CPU. */
static __always_inline void side_cpu_lost(struct cpu_state *c);

/* A cgroup has got a record. `parent`: its parent's, or NULL. */
static __always_inline void side_group_added(struct group_state *g, const struct group_state *parent);

/* A task's record is created, and is given up. */
static __always_inline void side_task_begins(struct task_state *t);
static __always_inline void side_task_ends(const struct task_struct *p, struct task_state *t);

/* A task is in the queue of this CPU from now on, running or waiting; and is in none. Any CPU may call them, the latter also in vain. */
static __always_inline void side_joined(struct task_state *t, s32 cpu);
static __always_inline void side_left(struct task_state *t);

/* A CPU is online again: what was known of it may no longer hold. */
static __always_inline void side_cpu_online(struct cpu_state *c);

/* The side's lines in the kernel's debug dump: of itself, and of a CPU. */
static __always_inline void side_dump(void);
static __always_inline void side_dump_cpu(const struct cpu_state *c);

#endif
