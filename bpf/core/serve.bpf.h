/* SPDX-License-Identifier: GPL-2.0-only */
/* A CPU chooses its next task: what comes before the order by deadline, and whether the current task keeps running. */
#ifndef TANDEM_CORE_SERVE_BPF_H
#define TANDEM_CORE_SERVE_BPF_H

#include "hotplug.bpf.h"
#include "spread.bpf.h"
#include "turn.bpf.h"

/*
 * Tasks that must not wait any longer, whatever their deadlines: those of CPUs that are gone, a minimum for SCHED_IDLE tasks, and
 * tasks that have reached their wall-clock deadline. Returns whether one was dispatched.
 */
static __always_inline bool serve_overdue(struct cpu_state *c, s32 cpu, u64 now)
{
	u32 waiting;

	if (nr_offline && take_orphan(cpu))
		return true;
	waiting = waiting_best_effort(cpu, c);
	if (waiting && idle_floor_due(now, c->idle_floor_at_ns, waiting, watchdog_ns)) {
		c->idle_floor_at_ns = now;
		if (k_take(queue_of(cpu, CLASS_BEST_EFFORT))) {
			count(c, CNT_FLOOR);
			return true;
		}
	}
	if (now - c->overdue_at_ns > OVERDUE_EVERY_NS)
		rescue_overdue(cpu);
	if (c->late_due_ns && c->cpu_bound_weight < c->late_weight / 2)
		late_no_more(cpu);
	if (c->late_due_ns && !time_before_ns(now, c->late_due_ns) && take_late(c, cpu)) {
		count(c, CNT_DUE);
		return true;
	}
	return false;
}

/* An idle CPU takes a best-effort task that waits for another one: from this one, or from any. */
COLD bool take_best_effort_from(s32 cpu, s32 from)
{
	struct cpu_state *own = cpu_state(cpu), *c = cpu_state(from);

	if (!own || !c || !waiting_best_effort(from, c) || !k_take(queue_of(from, CLASS_BEST_EFFORT)))
		return false;
	count(own, CNT_PULLED);
	return true;
}

COLD bool take_best_effort(s32 cpu)
{
	struct cpu_state *own = cpu_state(cpu);
	s32 from, at;
	u32 i;

	if (!own)
		return false;
	from = walk_begins(own, WALK_BEST_EFFORT, cpu);
	at = from;
	bpf_for(i, 0, MAX_LOOK) {
		at = next_waiting(from, at, false);
		if (at < 0)
			return false;
		if (at != cpu && take_best_effort_from(cpu, at))
			return true;
	}
	walk_ends(own, WALK_BEST_EFFORT, at);
	return false;
}

/* The current task may go on by its quota and its side. Has it the earliest deadline of its class? */
static __always_inline bool is_first(struct task_struct *prev, struct task_state *t, struct cpu_state *c, s32 cpu)
{
	u64 first;

	reweigh(t, c);
	if (request_done(t, c)) {
		if (t->cpu_bound_stake)
			note_request(t, c, k_now());
		renew_request(t, c);
	} else if (!prev->scx.slice) {
		count(c, CNT_REGRANTED);
	}
	move_deadline(t);
	show_deadline(t, c);
	return !k_peek_key(queue_of(cpu, t->class), &first) || !time_before_ns(first, t->deadline);
}

/*
 * A tick, after charge_at_tick(): has the current task's slice come to its end here? (If only load balance wants the CPU to look for
 * tasks, the slice ends, too, but the task probably goes on.) `preempts_after_ns`: for so long a task runs before it gives way to one
 * with an earlier deadline; `balances`: load balance may move tasks between CPUs now; `best_effort_stays`: a best-effort task may go on here
 * while no normal one waits.
 */
static __always_inline bool ends_at_tick(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now, u64 preempts_after_ns,
					 bool balances, bool best_effort_stays)
{
	bool ends = false, company;
	u64 first;

	if (balances && balance_tick(c, cpu, now))
		k_set_slice(p, 0);
	if (out_of_quota(p, t, now)) {
		k_set_slice(p, 0);
		return true;
	}
	company = waiting_normal(cpu, c);
	/* A task may have begun to wait in the very moment in which the bit was cleared. */
	if (company)
		waits_at(cpu);
	if (t->class == CLASS_BEST_EFFORT)
		ends = company || request_done(t, c) || !best_effort_stays;
	else if (company && now - c->curr_since_ns >= preempts_after_ns)
		ends = k_peek_key(queue_of(cpu, CLASS_NORMAL), &first) && time_before_ns(first, t->deadline);
	company = company || waiting_best_effort(cpu, c);
	ends = ends || (company && request_done(t, c));
	if (ends) {
		k_set_slice(p, 0);
		return true;
	}
	/* It runs alone again, and its CPU needs no tick for that (goes_on()). */
	if (!c->endless && !company && needs_no_tick(t, c)) {
		k_set_slice(p, 0);
		return true;
	}
	if (request_done(t, c)) {
		renew_request(t, c);
		show_deadline(t, c);
	} else if (company && !c->run_until_ns) {
		/*
		 * Other tasks have come since its slice began: from now on the end of the slice matters. Where another CPU takes the
		 * tick (nohz_full) it is over: timers are armed by their own CPU only.
		 */
		if (cpu != (s32)bpf_get_smp_processor_id()) {
			k_set_slice(p, 0);
			return true;
		}
		end_turn_at(c, cpu, now + remaining(t), now);
	}
	return false;
}

/* A task of a group with a quota has just stopped here: the next one of it may run. */
static __always_inline void unthrottle_next(struct cpu_state *c, s32 cpu)
{
	u32 limit = c->unthrottle_limit;

	if (!limit)
		return;
	c->unthrottle_limit = 0;
	unthrottle(limit, cpu, 1);
}

#endif
