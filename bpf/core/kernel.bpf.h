/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Wrappers (k_*) around the kernel: kfuncs, kernel fields and time.
 *
 * Other code in bpf/ goes through them, except for plain fields and kfuncs that all supported kernels have, and
 * where one feature needs a field (steal.bpf.h, tree.bpf.h, life.bpf.h). That keeps differences between kernels
 * in one place. They are resolved when the object is loaded, by symbol and field, never by version. A simulator
 * has one small interface to supply.
 */
#ifndef TANDEM_CORE_KERNEL_BPF_H
#define TANDEM_CORE_KERNEL_BPF_H

#include <scx/common.bpf.h>

/* From include/linux/sched.h and uapi/linux/sched.h: preprocessor constants, so absent from BTF. */
#define K_PF_EXITING 0x00000004
#define K_PF_KTHREAD 0x00200000
/* From include/linux/sched/jobctl.h: STOP_PENDING, TRAP_STOP, TRAP_NOTIFY and TRAP_FREEZE. */
#define K_JOBCTL_PENDING (1UL << 17 | 1UL << 19 | 1UL << 20 | 1UL << 23)
#define K_CLOCK_MONOTONIC 1
#define K_SCHED_BATCH 3
#define K_SCHED_IDLE 5
#define K_DEFAULT_PRIO 120

/*
 * Global functions for the verifier: it checks each of them once, for any arguments, instead of following every
 * path from every caller. What a loop decides about one CPU or task is such a function: otherwise each of its paths would be followed
 * through every iteration, and those of 6.17 to 6.19 fail over it (-EFAULT, "backtracking call unexpected regs", "stack slot 9, total
 * slots 9").
 */
#define COLD __weak __noinline

static __always_inline u64 k_now(void)
{
	return scx_bpf_now();
}

static __always_inline u64 k_jiffies(void)
{
	return bpf_jiffies64();
}

static __always_inline bool k_is_kthread(const struct task_struct *p)
{
	return p->flags & K_PF_KTHREAD;
}

static __always_inline bool k_is_best_effort(const struct task_struct *p)
{
	return p->policy == K_SCHED_IDLE;
}

static __always_inline bool k_is_batch(const struct task_struct *p)
{
	return p->policy == K_SCHED_BATCH;
}

/* p->scx.weight is rounded to the cgroup scale (nice 19 is a third off); the nice level is exact. */
static __always_inline s32 k_nice(const struct task_struct *p)
{
	return (s32)p->static_prio - K_DEFAULT_PRIO;
}

/*
 * Where RCU is preemptible, the kernel disables migration of the current task around every BPF program, so
 * p->migration_disabled of that task counts one too many. Elsewhere it does not: a single program that sees 0
 * proves that.
 */
bool k_programs_leave_migration;

static __always_inline void k_learn_migration(void)
{
	const struct task_struct *curr = bpf_get_current_task_btf();

	if (!curr->migration_disabled && !k_programs_leave_migration)
		k_programs_leave_migration = true;
}

static __always_inline bool k_migration_disabled(const struct task_struct *p)
{
	u32 own = p == bpf_get_current_task_btf() && !k_programs_leave_migration ? 1 : 0;

	return p->migration_disabled > own;
}

/*
 * A BPF program runs in an RCU read section itself, so the current task's nesting count includes it. The
 * minimum that programs have seen is that offset. Until the first sample the current task counts as not
 * reading. Where RCU is not preemptible there is nothing to ask.
 */
u32 k_programs_read = ~0U;

static __always_inline void k_learn_reading(void)
{
	const struct task_struct *curr = bpf_get_current_task_btf();
	u32 depth;

	if (!bpf_core_field_exists(curr->rcu_read_lock_nesting))
		return;
	depth = curr->rcu_read_lock_nesting;
	if (depth < k_programs_read)
		k_programs_read = depth;
}

/* Was p preempted in an RCU read section? Then the whole machine waits for it before long. */
static __always_inline bool k_reads_rcu(const struct task_struct *p)
{
	u32 own = p == bpf_get_current_task_btf() ? k_programs_read : 0;

	return bpf_core_field_exists(p->rcu_read_lock_nesting) && (u32)p->rcu_read_lock_nesting > own;
}

/* May p run on one CPU only? (Migration-disabled tasks keep nr_cpus_allowed.) */
static __always_inline bool k_is_pinned(const struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || k_migration_disabled(p);
}

static __always_inline bool k_allowed(const struct task_struct *p, s32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/*
 * CPUs that the kernel schedules on, one bit each; all ones if it does not export them. A CPU that is about to
 * go offline leaves this mask first. The kernel calls cpu_offline() only after all RCU readers that were
 * preempted before have finished, also those in that CPU's queues, and meanwhile it does not call dispatch()
 * there any more.
 */
extern const void __cpu_active_mask __ksym __weak;

static __always_inline u64 k_active_cpus(u32 word)
{
	const void *mask = &__cpu_active_mask;
	u64 bits = ~0ULL;

	if (mask && bpf_probe_read_kernel(&bits, sizeof(bits), mask + word * sizeof(bits)))
		bits = ~0ULL;
	return bits;
}

/* Is the task that is being switched out still runnable? */
static __always_inline bool k_wants_to_run(const struct task_struct *p)
{
	return p->scx.flags & SCX_TASK_QUEUED;
}

static __always_inline void k_set_slice(struct task_struct *p, u64 slice_ns)
{
	scx_bpf_task_set_slice(p, slice_ns);
}

static __always_inline void k_insert_local(struct task_struct *p, u64 slice_ns, u64 enq_flags)
{
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
}

static __always_inline void k_insert_ordered(struct task_struct *p, u64 dsq, u64 slice_ns, u64 key, u64 enq_flags)
{
	scx_bpf_dsq_insert_vtime(p, dsq, slice_ns, key, enq_flags);
}

static __always_inline u32 k_waiting(u64 dsq)
{
	s32 n = scx_bpf_dsq_nr_queued(dsq);

	return n > 0 ? n : 0;
}

static __always_inline bool k_take(u64 dsq)
{
	return scx_bpf_dsq_move_to_local(dsq, 0);
}

/* The DSQ that a task is in; ~0: none. The simulator has another one. */
#ifndef k_dsq_of
static __always_inline u64 k_dsq_of(const struct task_struct *p)
{
	struct scx_dispatch_q *dsq = BPF_CORE_READ(p, scx.dsq);

	return dsq ? BPF_CORE_READ(dsq, id) : ~0ULL;
}
#endif

/* Reads a field of the first task of a queue; false if the queue is empty. */
#define K_PEEK(dsq, field, value)					\
({									\
	struct task_struct *___p = NULL;				\
	struct bpf_iter_scx_dsq ___it;					\
									\
	if (bpf_ksym_exists(scx_bpf_dsq_peek)) {			\
		___p = scx_bpf_dsq_peek(dsq);				\
		if (___p)						\
			*(value) = BPF_CORE_READ(___p, field);		\
	} else {							\
		if (!bpf_iter_scx_dsq_new(&___it, dsq, 0))		\
			___p = bpf_iter_scx_dsq_next(&___it);		\
		if (___p)						\
			*(value) = BPF_CORE_READ(___p, field);		\
		bpf_iter_scx_dsq_destroy(&___it);			\
	}								\
	___p != NULL;							\
})

/* Key of the first task of a queue ordered by key; false if the queue is empty. */
static __always_inline bool k_peek_key(u64 dsq, u64 *key)
{
	return K_PEEK(dsq, scx.dsq_vtime, key);
}

/* Number of the first task of a queue; 0: the queue is empty. */
static __always_inline s32 k_peek_pid(u64 dsq)
{
	s32 pid = 0;

	return K_PEEK(dsq, pid, &pid) ? pid : 0;
}

/* The slice that the task asked for by sched_setattr(), ns; 0: none. */
static __always_inline u64 k_custom_slice(const struct task_struct *p)
{
	if (!bpf_core_field_exists(p->se.custom_slice) || !p->se.custom_slice)
		return 0;
	return p->se.slice;
}

/* Total run time, up to the kernel's last update: at ticks and switches. */
static __always_inline u64 k_ran_ns(const struct task_struct *p)
{
	return p->se.sum_exec_runtime;
}

static __always_inline bool k_is_exiting(const struct task_struct *p)
{
	return p->flags & K_PF_EXITING;
}

/*
 * A signal, a stop or the freezer is pending: the task has to run to answer. The flag TIF_SIGPENDING says the
 * same, but its bit depends on architecture and version, and is not in BTF.
 */
static __always_inline bool k_has_signal(const struct task_struct *p)
{
	const struct signal_struct *of_all = BPF_CORE_READ(p, signal);
	u64 pending = BPF_CORE_READ(p, pending.signal.sig[0]);

	if (of_all)
		pending |= BPF_CORE_READ(of_all, shared_pending.signal.sig[0]);
	return (pending & ~BPF_CORE_READ(p, blocked.sig[0])) || (BPF_CORE_READ(p, jobctl) & K_JOBCTL_PENDING);
}

static __always_inline u64 k_cgroup_id(const struct cgroup *cgrp)
{
	return cgrp->kn->id;
}

/* Id of the parent; 0 for the root. */
static __always_inline u64 k_cgroup_parent_id(const struct cgroup *cgrp)
{
	const struct cgroup_subsys_state *parent = BPF_CORE_READ(cgrp, self.parent);

	if (!parent)
		return 0;
	/* `self` is the first member of struct cgroup, and stays so: the kernel's own casts rely on it. */
	return BPF_CORE_READ((const struct cgroup *)parent, kn, id);
}

/*
 * cpu.idle of a cgroup that is being added. Older kernels report only changes, the newest pass it in the
 * arguments; reading it from the group works on both.
 */
static __always_inline bool k_cgroup_idle(const struct cgroup *cgrp)
{
	const void *states = __builtin_preserve_access_index(&cgrp->subsys);
	u64 id = bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id);
	const struct cgroup_subsys_state *css = NULL;

	if (bpf_probe_read_kernel(&css, sizeof(css), states + id * sizeof(css)) || !css)
		return false;
	/* The subsystem's state is the first member of struct task_group. */
	return BPF_CORE_READ((const struct task_group *)css, idle) != 0;
}

/* Is any CPU idle? A search for one costs several times as much as this check. */
static __always_inline bool k_any_idle(void)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool any = !bpf_cpumask_empty(idle);

	scx_bpf_put_idle_cpumask(idle);
	return any;
}

/* An idle CPU that p may use, a different one from call to call; beyond all CPUs: there is none. */
static __always_inline u32 k_any_idle_for(const struct task_struct *p)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	u32 cpu = bpf_cpumask_any_and_distribute(idle, p->cpus_ptr);

	scx_bpf_put_idle_cpumask(idle);
	return cpu;
}

/* Any CPU that p may use. */
static __always_inline u32 k_any_allowed(const struct task_struct *p)
{
	return bpf_cpumask_any_distribute(p->cpus_ptr);
}

static __always_inline s32 k_current_pid(void)
{
	return bpf_get_current_task_btf()->pid;
}

static __always_inline void k_kick_idle(s32 cpu)
{
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

static __always_inline void k_kick_preempt(s32 cpu)
{
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/*
 * Both kicks with one interrupt, where the kernel lets a program disable interrupts: in a guest each interrupt
 * is an exit, and more.
 */
static __always_inline void k_kick_preempt_and_idle(s32 here, s32 idle)
{
	unsigned long flags;

	if (bpf_ksym_exists(bpf_local_irq_save) && bpf_ksym_exists(bpf_local_irq_restore)) {
		bpf_local_irq_save(&flags);
		k_kick_idle(idle);
		k_kick_preempt(here);
		bpf_local_irq_restore(&flags);
		return;
	}
	k_kick_preempt(here);
	k_kick_idle(idle);
}

#endif
