/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Throttled tasks: they wait for their group's quota.
 *
 * They wait in a DSQ of their group, so that the kernel finds them there at exits, moves and changes of any
 * kind. They are unthrottled one by one when a task of the group stops running, and a few at a time by a timer
 * at the start of a period: as many as there is quota for, so that a group with a thousand tasks does not flood
 * the CPUs' queues.
 *
 * They are ordered by waiting time, shifted by lag. Without the time a task could wait forever; without the
 * shift weights would not count.
 */
#ifndef TANDEM_CORE_THROTTLE_BPF_H
#define TANDEM_CORE_THROTTLE_BPF_H

#include "fair.bpf.h"
#include "look.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct one_timer);
} quota_timer SEC(".maps");

u64 throttled_groups[NR_GROUP_WORDS];
u64 quota_timer_at_ns;	/* when the armed timer fires; 0: not armed */

/* With more throttled tasks than this in a group slices are short, or the last task would wait for too long. */
#define MANY_THROTTLED 32
/* When a quota has been lifted this many tasks are unthrottled at a time: each is moved with interrupts off. */
#define LIFTED_MOST 256
/* The timer fires again this soon while there is quota and tasks wait. */
#define UNTHROTTLE_AGAIN_NS (500 * NSEC_PER_USEC_)

/*
 * The kernel does not tell a scheduler that a throttled task has got a signal, or is to stop or freeze. So
 * tasks are checked for that, this often and this many of each throttled queue: the kernel's own throttling
 * lets them answer at the end of the period.
 */
#define SIGNALS_EVERY_NS (100 * NSEC_PER_MSEC_)
#define SIGNALS_LOOK 256

COLD int quota_timer_by(u64 at_ns, u64 now)
{
	struct one_timer *t;
	u32 zero = 0, i;

	t = bpf_map_lookup_elem(&quota_timer, &zero);
	if (!t)
		return 0;
	/* Try again if another CPU has just armed it for later. */
	bpf_for(i, 0, 4) {
		u64 armed = quota_timer_at_ns;

		if (timer_comes_by(armed, at_ns, now) || rebook_timer(t, &quota_timer_at_ns, armed, at_ns, now))
			break;
	}
	return 0;
}

/*
 * May a task be throttled? Not one that is exiting or has a signal to answer, and none that others may wait
 * for: one that the kernel has pinned for a moment, one in an RCU read section, or a kernel thread.
 */
static __always_inline bool may_throttle(const struct task_struct *p)
{
	return !k_is_exiting(p) && !k_is_kthread(p) && !k_has_signal(p) && !k_migration_disabled(p) && !k_reads_rcu(p);
}

/* The group for whose quota p has to wait now; 0: it may run. */
static __always_inline u32 out_of_quota(const struct task_struct *p, struct task_state *t, u64 now)
{
	u32 limit;

	if (!nr_limits || !limit_of(t->group) || !may_throttle(p))
		return 0;
	limit = exhausted(t->group, now);
	return limit && !side_debt_ns(p, t, now) ? limit : 0;
}

/* An unthrottled task has had its slice, or does not want it any more. */
static __always_inline void admission_done(struct task_state *t)
{
	u32 limit = t->admitted ? __sync_lock_test_and_set(&t->admitted, 0) : 0;
	struct group_state *g = limit ? group_state(limit) : NULL;

	if (g)
		__sync_fetch_and_sub(&g->admitted, 1);
}

/* Before the task is moved: it may have had its slice, and be gone, before anything else is done here. */
static __always_inline void admit(struct task_state *t, u32 limit)
{
	struct group_state *g = group_state(limit);

	if (!g)
		return;
	__sync_fetch_and_add(&g->admitted, 1);
	if (__sync_val_compare_and_swap(&t->admitted, 0, limit))
		__sync_fetch_and_sub(&g->admitted, 1);
	/* core_disable() has looked before it was set, and readmitted() does not find a task that has ended. */
	if (t->ended)
		admission_done(t);
}

static __always_inline void wake_throttled(u32 limit, u64 now)
{
	struct group_state *g = group_state(limit);

	if (!g)
		return;
	set_group_bit(throttled_groups, limit, true);
	quota_timer_by(min_u64(g->period_start_ns + g->period_ns, now + SIGNALS_EVERY_NS), now);
}

/*
 * The kernel puts a task into the queue only after enqueue() has returned. If the timer checks the queue in
 * between, on another CPU, it finds no task and does not fire again. Therefore the CPU that throttled the task
 * checks once more, at its next opportunity: by then the task is there.
 */
COLD int look_after_throttled(u64 now)
{
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());
	u32 limit;

	if (!own)
		return 0;
	limit = own->throttled_limit;
	own->throttled_limit = 0;
	if (limit && k_waiting(throttle_queue_of(limit)))
		wake_throttled(limit, now);
	return 0;
}

COLD int throttle(struct task_struct *p __arg_trusted, struct task_state *t __arg_nonnull, u32 limit, u64 now, u64 enq_flags)
{
	s32 here = bpf_get_smp_processor_id(), cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu), *own = cpu_state(here);

	if (!own || !c) {
		k_insert_local(p, TANDEM_REQUEST_MIN_NS, enq_flags);
		return 0;
	}
	leave(t, now);
	t->throttled_at_ns = now;
	count_task(CNT_THROTTLED, p->pid);
	k_insert_ordered(p, throttle_queue_of(limit), TANDEM_REQUEST_MIN_NS, now - t->lag_within, enq_flags);
	wake_throttled(limit, now);
	if (own->throttled_limit && own->throttled_limit != limit)
		look_after_throttled(now);
	own->throttled_limit = limit;
	/* Opportunities are the next tick and the next dispatch; an idle CPU has neither. */
	if (own->curr_class == CLASS_NONE)
		k_kick_idle(here);
	return 0;
}

/* What happens to a task in a throttled queue. */
enum readmission {
	GONE,		/* not available now */
	STAY,		/* there is no quota */
	GO,		/* it has joined a CPU's queue */
	UNPAID,		/* the same, without quota (anti-stall grant) */
	ELSEWHERE,	/* plus the number of the group whose quota it has to wait for instead */
};

/*
 * The decision about one task. A function apart from the loop that calls it: otherwise the verifier would
 * follow each of its paths through every iteration.
 */
COLD u64 readmit(s32 pid, s32 cpu, u32 limit, bool overdue_only)
{
	struct task_struct *task = bpf_task_from_pid(pid);
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());
	u64 now = k_now(), verdict = GONE;
	struct task_state *t;
	bool overdue, debt;
	u32 other;
	s32 to;

	if (!task)
		return GONE;
	bpf_rcu_read_lock();
	t = task_state(task);
	if (!t || !own)
		goto out;
	/*
	 * Two kinds of tasks need not wait for quota: those that have waited for too long, and those that have
	 * to exit, stop or answer a signal.
	 */
	overdue = !may_throttle(task) || quota_wait_too_long(sub_floor_u64(now, t->throttled_at_ns), watchdog_ns);
	/* A loan is taken only by who needs one. */
	other = exhausted(t->group, now);
	debt = !overdue && other && side_debt_ns(task, t, now);
	if (overdue_only && !overdue && !debt) {
		verdict = STAY;
		goto out;
	}
	if (t->stake) {
		/* Another CPU is handling it. That does not last. */
		if (!overdue)
			goto out;
		leave(t, now);
	}
	if (other && !overdue && !debt) {
		verdict = other == limit ? STAY : ELSEWHERE + (u64)other;
		goto out;
	}
	to = scx_bpf_task_cpu(task);
	if (cpu >= 0 && k_allowed(task, cpu))
		to = cpu;
	join(task, t, to, now);
	own->move_stake = t->stake;
	to = stake_cpu(own->move_stake);
	if (to < 0)
		goto out;
	admit(t, limit);
	if (k_waiting(throttle_queue_of(limit)) > MANY_THROTTLED) {
		t->request_ns = min_u64(t->request_ns, TANDEM_REQUEST_MIN_NS);
		set_deadline(t, t->request_ns);
	}
	verdict = other && overdue ? UNPAID : GO;
	own->move_slice_ns = t->request_ns;
	own->move_key = t->deadline;
	own->move_queue = queue_of(to, t->class);
	waits_at(to);
out:
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return verdict;
}

/*
 * After a task was moved back into a CPU's queue, or the move failed because another CPU has taken the task
 * meanwhile.
 */
COLD int readmitted(s32 pid, s32 cpu, u32 limit, u64 verdict, bool moved)
{
	struct task_struct *task = bpf_task_from_pid(pid);
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id()), *c;
	struct group_state *g = group_state(limit);
	u64 now = k_now();
	struct task_state *t;
	s32 to;

	if (!task)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(task);
	to = own ? stake_cpu(own->move_stake) : -1;
	c = cpu_state(to);
	if (!t || !c || !g || !own)
		goto out;
	if (!moved) {
		retract(t, own->move_stake);
		admission_done(t);
		goto out;
	}
	own->let_go++;
	__sync_fetch_and_add(&g->throttled_ns, sub_floor_u64(now, t->throttled_at_ns));
	t->throttled_at_ns = 0;
	count_task(verdict == UNPAID ? CNT_STALL_GRANTS : CNT_UNTHROTTLED, pid);
	if (to != cpu)
		scx_bpf_kick_cpu(to, c->curr_class == CLASS_NONE ? SCX_KICK_IDLE : SCX_KICK_PREEMPT);
out:
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return 0;
}

/* Tasks that have waited for too long are unthrottled beyond the number that may be, this many at a time. */
#define OVERDUE_MOST 32

/*
 * Unthrottle up to `most` tasks of a group, preferably on `cpu` (-1: where they were, and tasks that have to
 * answer a signal as well). Returns how many still wait.
 *
 * Unthrottled tasks wait for a CPU next, and for long if the group weighs little. If no task followed them
 * meanwhile, the last of two hundred would wait two hundred times as long: so tasks that are overdue are
 * unthrottled, too.
 */
COLD u32 unthrottle(u32 limit, s32 cpu, u32 most)
{
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());
	u64 queue = throttle_queue_of(limit);
	struct task_struct *p;

	if (!own)
		return 0;
	own->let_go = 0;
	own->stayed = 0;
	/* For the verifier, which also sees the timer set up from a sleepable program. */
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_struct *task;
		u64 verdict;
		bool moved;

		if (own->let_go >= most + OVERDUE_MOST)
			break;
		/* The iterator's task may not be passed to other functions: the verifier does not trust it. */
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		verdict = readmit(p->pid, cpu, limit, own->let_go >= most || own->stayed);
		if (verdict == STAY || verdict == GONE) {
			bpf_task_release(task);
			if (verdict == STAY && (cpu >= 0 || own->stayed++ >= SIGNALS_LOOK))
				break;
			continue;
		}
		if (verdict >= ELSEWHERE) {
			moved = scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, throttle_queue_of(verdict - ELSEWHERE), 0);
			bpf_task_release(task);
			if (!moved)
				break;
			wake_throttled(verdict - ELSEWHERE, k_now());
			continue;
		}
		scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, own->move_slice_ns);
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, own->move_key);
		moved = scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, own->move_queue, 0);
		readmitted(p->pid, cpu, limit, verdict, moved);
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return k_waiting(queue);
}

/* A new period has begun for some group, or another group's pool still holds something. */
static int quota_tick(void *map, u32 *key, struct one_timer *timer)
{
	u64 now = k_now(), next = 0;
	u32 word, bit;

	/*
	 * A full barrier: a CPU that sees the timer as armed still has set its group's bit before the bits are
	 * read below.
	 */
	__sync_lock_test_and_set(&quota_timer_at_ns, 0);
	bpf_for(word, 0, nr_group_words) {
		u64 bits = throttled_groups[word & (NR_GROUP_WORDS - 1)];

		if (!bits)
			continue;
		bpf_for(bit, 0, 64) {
			u32 group = word * 64 + bit;
			struct group_state *g;
			u64 at;

			if (!(bits >> (bit & 63) & 1))
				continue;
			g = group_state(group);
			if (!g)
				continue;
			/* A quota that has been lifted throttles no task. */
			if (!unthrottle(group, -1, g->quota_ns ? (u32)sub_floor_u64(nr_cpu_ids, g->admitted) : LIFTED_MOST)) {
				set_group_bit(throttled_groups, group, false);
				/* A task may have been throttled meanwhile. */
				if (!k_waiting(throttle_queue_of(group)))
					continue;
				set_group_bit(throttled_groups, group, true);
			}
			at = now + UNTHROTTLE_AGAIN_NS;
			if (g->quota_ns && g->pool_ns <= 0)
				at = min_u64(max_u64(at, g->period_start_ns + g->period_ns), now + SIGNALS_EVERY_NS);
			if (!next || time_before_ns(at, next))
				next = at;
		}
	}
	if (next)
		quota_timer_by(next, now);
	return 0;
}

static __always_inline s32 throttle_init(void)
{
	struct one_timer *t;
	u32 zero = 0;

	t = bpf_map_lookup_elem(&quota_timer, &zero);
	if (!t)
		return -EINVAL;
	bpf_timer_init(&t->timer, &quota_timer, K_CLOCK_MONOTONIC);
	return bpf_timer_set_callback(&t->timer, quota_tick);
}

#endif
