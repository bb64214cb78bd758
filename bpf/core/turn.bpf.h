/* SPDX-License-Identifier: GPL-2.0-only */
/* A task's slice on its CPU: its place in the queue, its start, and its length. */
#ifndef TANDEM_CORE_TURN_BPF_H
#define TANDEM_CORE_TURN_BPF_H

#include "throttle.bpf.h"
#include "slice.bpf.h"

/* Slice of a lone task: the tick checks for other tasks; a pass through dispatch would only cost time. */
#define ALONE_SLICE_NS (100 * NSEC_PER_MSEC_)

/*
 * A task that waits, or would wait, for longer than this is served by wall-clock deadline (anti-starvation).
 * The limit is shorter for tasks that the machine waits for: one that was preempted in an RCU read section, and
 * kernel threads, unless they are nice. The kernel's own patience with a reader is 500 ms
 * (CONFIG_RCU_BOOST_DELAY), and the reader may need more than one slice.
 */
static __always_inline u64 longest_wait_ns(const struct task_struct *p)
{
	return watchdog_ns / (k_reads_rcu(p) || (k_is_kthread(p) && k_nice(p) <= 0) ? 200 : 8);
}

/* Put a task that has joined cpu's queue where its deadline belongs. */
static __always_inline void put_in_order(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
					 u64 now, u64 enq_flags)
{
	u32 i = class_index(t->class);
	/* Virtual time wraps. */
	u64 ahead = time_before_ns(c->clock[i], t->deadline) ? t->deadline - c->clock[i] : 0, due;
	/* Tasks that are heavy only for a moment do not make others wait for seconds. */
	u64 weight = max_u64(c->cpu_bound_weight, t->weight), most_ns = longest_wait_ns(p);

	t->queued_at_ns = now;
	waits_at(cpu);
	if (c->curr_class != CLASS_NONE)
		scales_matter(now);
	if (t->class == CLASS_NORMAL && waits_too_long(ahead, weight, 8 * most_ns)) {
		due = now + most_ns;
		c->late_weight = weight;
		t->was_late = 1;
		k_insert_ordered(p, late_queue_of(cpu), remaining(t), due, enq_flags);
		if (!c->late_due_ns || time_before_ns(due, c->late_due_ns))
			c->late_due_ns = due;
		return;
	}
	k_insert_ordered(p, queue_of(cpu, t->class), remaining(t), t->deadline, enq_flags);
}

/* When is the first task of the late queue due? A CPU may have found that queue empty just before the kernel put a task there. */
static __always_inline void look_at_late(struct cpu_state *c, s32 cpu)
{
	u64 first;

	c->late_due_ns = k_peek_key(late_queue_of(cpu), &first) ? first : 0;
}

/* Take the first task of the late queue. */
static __always_inline bool take_late(struct cpu_state *c, s32 cpu)
{
	bool taken = k_take(late_queue_of(cpu));

	look_at_late(c, cpu);
	return taken;
}

/* Has it waited for this CPU for too long, whatever its deadline? */
static __always_inline bool is_overdue(const struct task_struct *p, const struct task_state *t, u64 now)
{
	return sub_floor_u64(now, t->queued_at_ns) > longest_wait_ns(p);
}

/* Tasks that are put back into the order by deadline at a time. */
#define ORDERLY_LOOK 32

/* The weight because of which tasks would have had to wait for too long is gone: they are served by deadline again. */
COLD int late_no_more(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);
	u64 queue = late_queue_of(cpu), now = k_now();
	struct task_struct *p;

	if (!c)
		return 0;
	c->scanned = 0;
	c->late_weight = c->cpu_bound_weight;
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_struct *task;
		struct task_state *t;

		if (c->scanned++ >= ORDERLY_LOOK)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		t = task_state(task);
		if (t && !is_overdue(task, t, now)) {
			scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, t->deadline);
			scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, queue_of(cpu, CLASS_NORMAL), 0);
		}
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	look_at_late(c, cpu);
	return 0;
}

/* How often to search for tasks that have waited for too long, and how many to check at a time. */
#define OVERDUE_EVERY_NS (1000 * NSEC_PER_MSEC_)
#define OVERDUE_LOOK 256

/*
 * The wait of a task was estimated when it was queued. Weights change: a task that has waited for too long all
 * the same is served by wall-clock deadline now. Such tasks may be at either end of the queue: with the latest
 * deadlines, or passed over again and again by newcomers. Called from dispatch.
 */
COLD int rescue_overdue(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now(), end;
	struct task_struct *p;

	if (!c)
		return 0;
	c->overdue_at_ns = now;
	if (!c->late_due_ns)
		look_at_late(c, cpu);
	c->scanned = 0;
	bpf_rcu_read_lock();
	/* From one end this time, from the other next time. */
	end = now / OVERDUE_EVERY_NS & 1 ? SCX_DSQ_ITER_REV : 0;
	bpf_for_each(scx_dsq, p, queue_of(cpu, CLASS_NORMAL), end) {
		struct task_struct *task;
		struct task_state *t;

		if (c->scanned++ >= OVERDUE_LOOK)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		t = task_state(task);
		if (t && is_overdue(task, t, now)) {
			t->was_late = 1;
			c->late_due_ns = now;
			c->late_weight = max_u64(c->cpu_bound_weight, t->weight);
			scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, now);
			scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, late_queue_of(cpu), 0);
		}
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/*
 * May it run without a tick while it is alone? Not one that has to make room for others (best-effort), nor one whose quota the
 * tick checks.
 */
static __always_inline bool needs_no_tick(const struct task_state *t, const struct cpu_state *c)
{
	return c->tickless && t->class == CLASS_NORMAL && !(nr_limits && limit_of(t->group));
}

/*
 * Does a task wait in this CPU's local DSQ? Two come there past our queues, and whoever runs must make room for them:
 *
 *   one that preempts, and came while dispatch looked elsewhere: to move a task of another CPU the kernel unlocks the run queue in
 *   between. It has ended no slice, and with a new one prev would go on before it;
 *   one that was preempted while migration is disabled, as it is in a BPF program: the kernel puts it there by itself. (Traced on a
 *   KVM host with programs on events of KVM: vCPUs waited for 100 ms behind one that was taken to be alone.)
 */
static __always_inline bool waits_in_local_dsq(void)
{
	return k_waiting(SCX_DSQ_LOCAL);
}

/* Does no other task wait for this CPU? */
static __always_inline bool runs_alone(s32 cpu, const struct cpu_state *c)
{
	if (!may_wait(c, CLASS_NORMAL) && !may_wait(c, CLASS_BEST_EFFORT))
		return true;
	return !waiting_normal(cpu, c) && !waiting_best_effort(cpu, c) && !waits_in_local_dsq();
}

/* p runs from now on: how long is its slice, and does its end matter? Call it on p's CPU. */
static __always_inline void take_turn(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 turn = max_u64(remaining(t), TANDEM_QUOTA_RUN_MIN_NS), allowance = ~0ULL;

	if (nr_limits && limit_of(t->group) && may_throttle(p))
		allowance = quota_allowance(t->group, now);
	if (!allowance)
		allowance = side_debt_ns(p, t, now);
	/* A task that was unthrottled after a long wait runs for a moment without quota (anti-stall grant). */
	if (!allowance && t->admitted)
		allowance = TANDEM_QUOTA_RUN_MIN_NS;
	if (!allowance) {
		/* It waited here while other tasks used up the quota. */
		c->run_until_ns = 0;
		k_set_slice(p, 1);
		k_kick_preempt(cpu);
		return;
	}
	if (allowance == ~0ULL && runs_alone(cpu, c)) {
		c->run_until_ns = 0;
		c->endless = needs_no_tick(t, c);
		k_set_slice(p, c->endless ? SCX_SLICE_INF : ALONE_SLICE_NS);
		return;
	}
	c->endless = 0;
	/* A best-effort task runs beside normal ones only so that it does not wait for ever, and there may be many of them. */
	if (t->class == CLASS_BEST_EFFORT && waiting_normal(cpu, c))
		turn = min_u64(turn, TANDEM_REQUEST_MIN_NS);
	turn = min_u64(turn, allowance);
	k_set_slice(p, turn);
	end_turn_at(c, cpu, now + turn, now);
}

/*
 * No other task comes first: prev gets a new slice. Where the kernel may stop the tick (nohz_full) it looks at the slice only when a task
 * begins to run. So if prev needed a tick until now and needs none any more, or the other way round, its turn ends here and begins anew:
 * it comes back through enqueue (SCX_OPS_ENQ_LAST), and its CPU, which goes idle for a moment, finds it in its queue (rests()).
 * The kernel does not hand all tasks to enqueue.
 */
static __always_inline void goes_on(struct task_struct *prev, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u32 was_endless = c->endless;

	take_turn(prev, t, c, cpu, now);
	if (c->endless == was_endless)
		return;
	/* What the kernel goes by is still the same. */
	c->endless = was_endless;
	if (t->class == CLASS_NORMAL && !k_is_exiting(prev) && !k_migration_disabled(prev))
		k_set_slice(prev, 0);
}

/* Does p's turn on `cpu` begin anew, so that it stays there, and nobody else needs to know of it? */
static __always_inline bool begins_anew(const struct task_struct *p, const struct task_state *t, const struct cpu_state *c, s32 cpu, u64 enq_flags)
{
	return c->tickless && (enq_flags & SCX_ENQ_LAST) && t->class == CLASS_NORMAL && cpu == scx_bpf_task_cpu(p);
}

/* The weight that a task of this class shares a CPU with: best-effort tasks make room for normal ones, and are spread over the CPUs as well. */
static __always_inline u64 weight_beside(const struct cpu_state *c, u32 class)
{
	return c->weight[1] + (class == CLASS_BEST_EFFORT ? c->weight[0] : 0);
}

/* The CPU that p may use with the least load once p is there. For a task that has no place yet, or cannot stay where it was. */
COLD s32 lightest_cpu(struct task_struct *p __arg_trusted, s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	struct task_state *t = task_state(p);
	u64 weight = t ? t->weight : TANDEM_WEIGHT_NICE_0, now = k_now(), least;
	u32 from = scan_from(), class = t ? t->class : CLASS_NORMAL, i;

	if (!own)
		return cpu;
	least = load_of(weight_beside(own, class) + weight, side_capacity(own, now));
	bpf_for(i, 0, nr_candidates()) {
		u32 other = candidate(p, from, i);
		struct cpu_state *c = cpu_state(other);
		u64 load;

		if (!c || !c->online || !side_usable(c) || !k_allowed(p, other))
			continue;
		load = load_of(weight_beside(c, class) + weight, side_capacity(c, now));
		if (load >= least)
			continue;
		least = load;
		cpu = other;
	}
	return cpu;
}

#endif
