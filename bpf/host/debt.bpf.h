/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The books of what boosts cost (policy/host/debt.h): an account for each VM, and one for all others. That has what those lose and gain who wait
 * behind the first one, what VMs owe, or are owed, that have ended, and what is forgotten. Each entry is in two accounts, so that the sum of all
 * is 0 between any two entries.
 */
#ifndef TANDEM_HOST_DEBT_BPF_H
#define TANDEM_HOST_DEBT_BPF_H

#include "inside.bpf.h"

/* Limit of the debt of a task's VM. */
static __always_inline u64 debt_limit_ns(const struct task_state *t)
{
	struct vm_settings *s = settings_of(t);

	return s && s->debt_max_ns ? s->debt_max_ns : TANDEM_DEBT_MAX_NS;
}

/* What may still be lent to it. */
static __always_inline u64 room_ns(const struct task_state *t, const struct vm_state *vm)
{
	return loan_room_ns(vm->debt_ns, debt_limit_ns(t));
}

/* Account of a VM (its number plus 1), or of the others (0). What ended VMs had is the others'. */
static __always_inline s64 *account_of(u32 number)
{
	struct vm_state *vm = vm_state(number);

	return vm && vm->kvm ? &vm->debt_ns : &others_debt_ns;
}

/* `borrower` has `ns` of what `lender` had a right to. */
static __always_inline void book(u32 borrower, u32 lender, s64 ns)
{
	s64 *owes = account_of(borrower), *is_owed = account_of(lender);

	__sync_fetch_and_add(owes, ns);
	__sync_fetch_and_sub(is_owed, ns);
}

/* `borrower` has `ns` of what those had a right to who wait: `of_lender_ns` of it of the first, the rest of the others. */
static __always_inline void book_waiting(u32 borrower, u32 lender, s64 ns, s64 of_lender_ns)
{
	book(borrower, lender, of_lender_ns);
	if (ns != of_lender_ns)
		book(borrower, 0, ns - of_lender_ns);
}

/* Once per second a part of what a VM owes, or is owed, goes to the account of the others: theirs is that of all, and so about nothing. */
static __always_inline void forgets(u32 number, struct vm_state *vm, u64 now)
{
	u64 since = vm->aged_at_ns, seconds = sub_floor_u64(now, since) / TANDEM_DEBT_FORGOTTEN_NS;
	s64 ns;

	if (!seconds || __sync_val_compare_and_swap(&vm->aged_at_ns, since, now) != since)
		return;
	ns = since ? forgotten_ns(vm->debt_ns, seconds) : 0;
	if (ns)
		book(number, 0, -ns);
}

/* The VM of the first task that waits for a pCPU, 0 for a task of no VM; NO_LENDER: nobody waits. Its weight is in first_weight. Call it on that pCPU. */
COLD u32 vm_of_first(s32 cpu)
{
	s32 pid = k_peek_pid(queue_of(cpu, CLASS_NORMAL));
	struct task_struct *p = pid ? bpf_task_from_pid(pid) : NULL;
	struct cpu_state *c = cpu_state(cpu);
	struct task_state *t;
	u32 vm = NO_LENDER;

	if (!p)
		return NO_LENDER;
	bpf_rcu_read_lock();
	t = task_state(p);
	if (t && c) {
		vm = vm_of(t) ? t->side.vm : 0;
		c->side.first_weight = t->weight;
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return vm;
}

/* A vCPU has run for so long: its confidence changes with each millisecond of run time. */
static __always_inline void looks_at_io(struct task_state *t, struct vm_state *vm, u64 service_ns)
{
	u32 points = t->side.io_points, more = points - t->side.io_seen;
	u64 ticks;

	t->side.unlooked_ns += service_ns;
	if (t->side.unlooked_ns < TANDEM_IO_TICK_NS)
		return;
	ticks = t->side.unlooked_ns / TANDEM_IO_TICK_NS;
	t->side.unlooked_ns -= ticks * TANDEM_IO_TICK_NS;
	t->side.io_seen = points;
	t->side.had_io = more != 0;
	t->side.confidence = io_confidence(t->side.confidence, more, ticks);
	shows_page(t, vm);
}

/* Does it do I/O, by what is known now? */
static __always_inline bool is_at_io(const struct task_state *t)
{
	return t->side.io_points != t->side.io_seen || t->side.had_io || does_io(t->side.confidence);
}

/*
 * What a vCPU that does no I/O pays, having run for so long, ns: to the VM whose turn comes next here, if that is owed something. What the others are
 * owed, any that waits may have.
 */
static __always_inline u64 pays_ns(const struct task_state *t, struct vm_state *vm, struct cpu_state *c, s32 cpu, u64 service_ns)
{
	u64 ns, to_first_ns, weight = c->weight[1];
	u32 to = vm_of_first(cpu);

	if (to == NO_LENDER || to == t->side.vm)
		return 0;
	if (*account_of(to) >= 0)
		to = 0;
	ns = payment_ns(of_others_ns(service_ns, t->weight, weight), vm->debt_ns, -*account_of(to));
	if (!ns)
		return 0;
	to_first_ns = to ? of_one_ns(ns, c->side.first_weight, t->weight, weight) : ns;
	book_waiting(t->side.vm, to, -(s64)ns, -(s64)to_first_ns);
	__sync_fetch_and_add(&vm->repaid_ns, ns);
	if (c->side.turn != TURN_PAYING) {
		c->side.turn = TURN_PAYING;
		count(c, CNT_PAID);
	}
	return for_others_ns(ns, t->weight, weight);
}

/* A vCPU has run: how much of it is charged? (side_charge_ns()) */
COLD u64 charge_vcpu_ns(struct task_state *t __arg_nonnull, s32 cpu, u64 service_ns)
{
	struct cpu_state *c = cpu_state(cpu);
	struct vm_state *vm = vm_of(t);
	u64 ns, weight;

	if (!c || !vm)
		return service_ns;
	looks_at_io(t, vm, service_ns);
	c->side.confidence = t->side.confidence;
	if (vm->debt_ns)
		forgets(t->side.vm, vm, k_now());
	if (c->side.turn == TURN_WOKEN) {
		__sync_fetch_and_add(&vm->wake_used_ns, service_ns);
		return service_ns;
	}
	if (c->side.turn == TURN_BOOSTED) {
		/* Of tasks of no VM nothing is borrowed: they would hardly ever be there to be paid. */
		if (c->side.lender == NO_LENDER || !c->side.lender || c->side.lender == t->side.vm)
			return service_ns;
		weight = c->weight[1];
		ns = lent_ns(of_others_ns(service_ns, t->weight, weight), is_ahead(*(volatile u64 *)&c->clock[1], t->v), vm->debt_ns,
			     debt_limit_ns(t));
		if (!ns)
			return service_ns;
		book_waiting(t->side.vm, c->side.lender, ns, of_one_ns(ns, c->side.lender_weight, t->weight, weight));
		__sync_fetch_and_add(&vm->borrowed_ns, ns);
		return sub_floor_u64(service_ns, for_others_ns(ns, t->weight, weight));
	}
	if (is_at_io(t) || vm->debt_ns <= 0 || t->class != CLASS_NORMAL || c->tasks[1] <= 1)
		return service_ns;
	return service_ns + pays_ns(t, vm, c, cpu, service_ns);
}

#endif
