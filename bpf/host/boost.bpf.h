/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A vCPU that waits comes before its turn, because it was interrupted (policy/host/boost.h).
 *
 * KVM says that it delivers an interrupt (interrupt.bpf.h). If the vCPU waits in a queue its pCPU is told its number and interrupted;
 * the dispatch that follows takes that vCPU before all others. If it sleeps it is about to be woken, and preempts. Either way it runs for
 * a millisecond, and for another one until it answers (answer.bpf.h), or as long as it does I/O all the time
 * (policy/host/io.h), eight at most. If a sibling usually answers, that one comes first on its own pCPU, too. What all this costs is
 * in the books (debt.bpf.h).
 *
 * It does not change where an interrupt goes: the kernel lets no program do that. Where two that do I/O want the same pCPU one takes the
 * place of a sibling that computes on another pCPU, if there is one. The sibling stays there until load balance moves it.
 */
#ifndef TANDEM_HOST_BOOST_BPF_H
#define TANDEM_HOST_BOOST_BPF_H

#include "answer.bpf.h"
#include "yield.bpf.h"
#include "../core/serve.bpf.h"

/* On this kernel a program that hangs in KVM may interrupt a pCPU (written by the daemon). Otherwise each pCPU looks by itself, once per millisecond. */
u32 programs_may_kick;

/* Interrupts are seen (written by the daemon). */
u32 sees_interrupts;

/* Has it had more than its share? What is owed beyond the limit of a lag is forgotten at each sleep. */
static __always_inline bool had_its_share(const struct task_state *t, const struct cpu_state *c, u64 now)
{
	return is_ahead(clock_now(c, class_index(CLASS_NORMAL), now), t->v);
}

/* May its VM be lent what a boosted turn takes, or needs it nothing? */
static __always_inline bool may_boost(s32 pid, const struct task_state *t, const struct vm_state *vm, const struct cpu_state *c, u64 now)
{
	if (room_ns(t, vm) >= TANDEM_BOOST_STEP_NS || !had_its_share(t, c, now))
		return true;
	count_task(CNT_NOT_LENT, pid);
	return false;
}

/* Does another VM's vCPU that does I/O run here? In its own turn one whose VM owes half of the usual limit is like any other that computes. */
static __always_inline bool meets_rival(const struct task_state *t, const struct cpu_state *c)
{
	struct vm_state *other = vm_state(c->side.vm);

	if (!c->curr_charged_at_ns || !other || c->side.vm == t->side.vm)
		return false;
	return c->side.turn == TURN_BOOSTED || (does_io(c->side.confidence) && other->debt_ns < (s64)TANDEM_DEBT_MAX_NS / 2);
}

/* Does it displace that one? */
static __always_inline bool displaces_rival(const struct task_state *t, const struct vm_state *vm, const struct cpu_state *c)
{
	struct vm_state *other = vm_state(c->side.vm);
	struct vm_settings *s = settings_of(t);
	struct boost_rivals rivals = {
		.debt_ns = vm->debt_ns,
		.running_debt_ns = other ? other->debt_ns : 0,
		.confidence = t->side.confidence,
		.running_confidence = c->side.confidence,
	};

	return displaces(s ? s->conflict : CONFLICT_CONFIDENCE, &rivals);
}

/* A pCPU on which a sibling computes, of those that are scanned; -1: there is none. */
COLD s32 place_of_sibling(struct task_struct *p __arg_trusted, s32 cpu)
{
	struct task_state *t = task_state(p);
	s32 found = -1;
	u32 from = scan_from(), i;

	if (!t)
		return -1;
	/* For the verifier, which also sees the timer of posted.bpf.h set up from a sleepable program. */
	bpf_rcu_read_lock();
	bpf_for(i, 0, nr_scanned()) {
		s32 other = cpu_after(from, i);
		struct cpu_state *c = cpu_state(other);

		if (other != cpu && c && c->online && c->curr_charged_at_ns && c->side.vm == t->side.vm && !c->side.boost_to &&
		    (c->side.turn == TURN_OWN || c->side.turn == TURN_PAYING) && !does_io(c->side.confidence) && k_allowed(p, other)) {
			found = other;
			break;
		}
	}
	bpf_rcu_read_unlock();
	return found;
}

/* Does a thread of no VM run here that will sleep soon? It may be the very one that serves the vCPU. */
static __always_inline bool is_served_here(const struct cpu_state *c, u64 now)
{
	return c->curr_charged_at_ns && !c->side.vm && curr_burst(c, now) < TANDEM_BOOST_STEP_NS;
}

/* A vCPU that waits, or is on its way into a queue, was interrupted, for I/O: does it come next, and where? */
static __always_inline void asks_to_come(struct task_struct *p, struct task_state *t, struct vm_state *vm, bool on_its_way, u64 now)
{
	s32 cpu = queue_cpu(t), other;
	struct cpu_state *c = cpu_state(cpu);

	if (!c || !c->online || c->side.away_since_ns || t->class != CLASS_NORMAL || !(on_its_way || waits_where_counted(p, t)))
		return;
	if (!may_boost(p->pid, t, vm, c, now))
		return;
	if (meets_rival(t, c)) {
		count_task(CNT_CONFLICTS, p->pid);
		other = k_is_pinned(p) ? -1 : place_of_sibling(p, cpu);
		if (other >= 0)
			cpu = other;
		else if (!displaces_rival(t, vm, c))
			return;
		c = cpu_state(cpu);
		if (!c)
			return;
	}
	/* Another one comes next already; its own interrupt was first. */
	if (__sync_val_compare_and_swap(&c->side.boost_to, 0, p->pid))
		return;
	if (programs_may_kick && !is_served_here(c, now))
		k_kick_preempt(cpu);
}

/* Whom does a vCPU of this VM that comes before its turn pass over? Nobody, if none of another VM waits. */
static __always_inline void passes_over(struct cpu_state *c, s32 cpu, u32 vm)
{
	if (c->side.displaced_vm && c->side.displaced_vm != vm) {
		c->side.lender = c->side.displaced_vm;
		c->side.lender_weight = c->side.displaced_weight;
		return;
	}
	c->side.lender = may_wait(c, CLASS_NORMAL) ? vm_of_first(cpu) : NO_LENDER;
	c->side.lender_weight = c->side.first_weight;
	if (c->side.lender == vm)
		c->side.lender = NO_LENDER;
}

/* The vCPU that was interrupted is taken, before all others that wait. Returns whether a task was dispatched. It may run, sleep or wait elsewhere by now. */
COLD bool serve_boosted(s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu), *by = mover();
	struct task_struct *to;
	struct task_state *t;
	bool taken = false;
	s32 pid, from;

	if (!c || !by)
		return false;
	pid = __sync_lock_test_and_set(&c->side.boost_to, 0);
	/* Others have waited for long enough. */
	if (c->side.boosts_in_row >= TANDEM_BOOSTS_IN_ROW_MAX)
		return false;
	to = pid ? bpf_task_from_pid(pid) : NULL;
	if (!to)
		return false;
	bpf_rcu_read_lock();
	t = task_state(to);
	if (!t || !t->side.interrupted || t->run_cpu >= 0 || t->throttled_at_ns || t->class != CLASS_NORMAL ||
	    !may_run_at(to, t, cpu) || !waits_where_counted(to, t))
		goto out;
	from = queue_cpu(t);
	taken = take_out_of_order(to, t, by, cpu);
	if (taken && t->was_late) {
		t->side.comes_next = TURN_BOOSTED;
		if (from != cpu)
			count(c, CNT_SWAPPED);
	}
out:
	bpf_rcu_read_unlock();
	bpf_task_release(to);
	return taken;
}

/* Does the budget of its VM allow a vCPU that was woken to come before its turn? */
static __always_inline bool wakes_fast(struct task_state *t, struct vm_state *vm, u64 now)
{
	struct vm_settings *s = settings_of(t);
	u64 budget_ns = s && s->wake_budget_ns ? s->wake_budget_ns : TANDEM_WAKE_BUDGET_NS;
	u64 since = vm->wake_at_ns, used = vm->wake_used_ns, left;

	left = wake_use_left_ns(used, sub_floor_u64(now, since), budget_ns);
	/* Two pCPUs may forget at the same time: the second one finds that the first has. */
	if (left != used && __sync_val_compare_and_swap(&vm->wake_at_ns, since, now) == since)
		__sync_fetch_and_sub(&vm->wake_used_ns, used - left);
	return may_wake_fast(left, budget_ns);
}

/* p, which was woken and would wait behind the current task of its pCPU: does it run next all the same, and why? */
static __always_inline u32 out_of_turn(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 enq_flags, u64 now)
{
	struct vm_state *vm = vm_of(t);

	if (!vm || !(enq_flags & SCX_ENQ_WAKEUP) || c->side.boosts_in_row >= TANDEM_BOOSTS_IN_ROW_MAX || t->class != CLASS_NORMAL ||
	    c->curr_class != CLASS_NORMAL || c->side.yield_to || cpu != scx_bpf_task_cpu(p) || !c->online || c->side.away_since_ns ||
	    c->late_due_ns || k_waiting(SCX_DSQ_LOCAL_ON | cpu))
		return TURN_OWN;
	if (t->side.interrupted && vm_uses(t, VM_BOOST)) {
		if (!may_boost(p->pid, t, vm, c, now))
			return TURN_OWN;
		if (!meets_rival(t, c))
			return TURN_BOOSTED;
		count_task(CNT_CONFLICTS, p->pid);
		return displaces_rival(t, vm, c) ? TURN_BOOSTED : TURN_OWN;
	}
	if (!vm_uses(t, VM_FAST_WAKEUP) || had_its_share(t, c, now))
		return TURN_OWN;
	if ((c->side.turn == TURN_BOOSTED || c->side.turn == TURN_WOKEN) && sub_floor_u64(now, c->side.turn_since_ns) < TANDEM_BOOST_UNDISTURBED_NS)
		return TURN_OWN;
	return wakes_fast(t, vm, now) ? TURN_WOKEN : TURN_OWN;
}

/*
 * p goes into the queue of `cpu`. It may have been interrupted when it was on no pCPU and in no queue any more: nobody could be told. One that is woken
 * on the pCPU of its queue has had its chance (out_of_turn()).
 */
static __always_inline void was_missed(struct task_struct *p, struct task_state *t, s32 cpu, u64 enq_flags, u64 now)
{
	struct vm_state *vm = t->side.interrupted ? vm_of(t) : NULL;

	if (vm && vm_uses(t, VM_BOOST) && !((enq_flags & SCX_ENQ_WAKEUP) && cpu == scx_bpf_task_cpu(p)))
		asks_to_come(p, t, vm, true, now);
}

/* The boosted turn of the current task ends in a moment, unless it does I/O then. Its quota may end it sooner. */
static __always_inline void step_begins(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 step_ns = passes_on(t, p->pid) ? TANDEM_BOOST_PASS_ON_NS : TANDEM_BOOST_STEP_NS;

	t->side.step_points = t->side.io_points;
	if (p->scx.slice <= step_ns)
		return;
	k_set_slice(p, step_ns);
	end_turn_at(c, cpu, now + step_ns, now);
}

/* p begins to run: why? */
static __always_inline void turn_of_vcpu(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u32 why = t->side.comes_next;

	if (why)
		t->side.comes_next = TURN_OWN;
	if (t->side.interrupted)
		t->side.interrupted = 0;
	/* Nobody is passed over. */
	if (why && !may_wait(c, CLASS_NORMAL))
		why = TURN_OWN;
	c->side.held = 0;
	c->side.vm = t->side.vm;
	c->side.turn = why;
	c->side.turn_since_ns = now;
	c->side.confidence = t->side.confidence;
	if (why) {
		passes_over(c, cpu, t->side.vm);
		c->side.boosts_in_row++;
		count(c, why == TURN_BOOSTED ? CNT_BOOSTED : CNT_WOKEN_FAST);
		step_begins(p, t, c, cpu, now);
	} else {
		c->side.boosts_in_row = 0;
	}
	c->side.displaced_vm = 0;
}

/* p stops. */
static __always_inline void turn_of_vcpu_ends(struct task_state *t, struct cpu_state *c, bool runnable)
{
	/* One that is boosted itself has passed over somebody, who now waits for the next one. */
	bool has_lender = c->side.turn == TURN_BOOSTED && c->side.lender != NO_LENDER;

	c->side.displaced_vm = !runnable ? 0 : has_lender ? c->side.lender : t->side.vm;
	c->side.displaced_weight = has_lender ? c->side.lender_weight : t->weight;
	if (t->side.owes_answer)
		t->side.owes_answer = 0;
	if (t->side.kicked)
		t->side.kicked = 0;
}

/* For how long has the current task been boosted? */
static __always_inline u64 boosted_for_ns(const struct cpu_state *c, u64 now)
{
	return c->side.turn == TURN_BOOSTED ? sub_floor_u64(now, c->side.turn_since_ns) : 0;
}

/* The turn of prev is over and another task comes first. Does prev do I/O, and go on for that? What it ran in its own turn does not count. */
static __always_inline bool extends(struct task_struct *prev, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	struct vm_state *vm = vm_of(t);

	if (!vm || !vm_uses(t, VM_BOOST) || c->side.boosts_in_row >= TANDEM_BOOSTS_IN_ROW_MAX || waits_in_local_dsq() || t->class != CLASS_NORMAL ||
	    t->run_cpu != cpu || !k_allowed(prev, cpu) ||
	    !goes_on_for_io(io_goes_on(t, prev->pid), boosted_for_ns(c, now), room_ns(t, vm)) || out_of_quota(prev, t, now))
		return false;
	if (c->side.turn != TURN_BOOSTED) {
		c->side.turn = TURN_BOOSTED;
		c->side.turn_since_ns = now;
		c->side.lender = vm_of_first(cpu);
		c->side.lender_weight = c->side.first_weight;
	}
	c->side.boosts_in_row++;
	count(c, CNT_EXTENDED);
	unthrottle_next(c, cpu);
	take_turn(prev, t, c, cpu, now);
	step_begins(prev, t, c, cpu, now);
	return true;
}

/* prev goes on because it is its turn. */
static __always_inline void own_turn_goes_on(struct cpu_state *c, u64 now)
{
	c->side.turn = TURN_OWN;
	c->side.turn_since_ns = now;
	c->side.boosts_in_row = 0;
	c->side.held = 0;
}

/* Where no program may interrupt a pCPU, each looks once per millisecond whether a vCPU that waits there was interrupted. */
static __always_inline void looks_soon(struct cpu_state *c, s32 cpu, u64 now)
{
	if (sees_interrupts && !programs_may_kick && c->run_until_ns && may_wait(c, CLASS_NORMAL) && c->run_until_ns > now + TANDEM_BOOST_STEP_NS)
		end_turn_at(c, cpu, now + TANDEM_BOOST_STEP_NS, now);
}

#endif
