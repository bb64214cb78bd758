/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A turn does not end where the guest's kernel holds a spinlock or handles an interrupt (policy/host/inside.h).
 *
 * Its siblings would spin for that lock, or wait for the answer to an IPI, until it has its next turn. So a turn that is over goes on for a tenth
 * of a millisecond, and for another one, if the guest's preemption count is not 0 then. If it still is not, the vCPU's turns end wherever they
 * end until a few of them have ended outside of critical sections.
 *
 * Off by default. A vCPU that spins for a lock, or for the answer to an IPI, has preemption disabled as well: it cannot be told from one that holds
 * a lock, and a longer turn helps the sibling that it waits for least of all.
 *
 * What it does not see: a task that is woken and preempts runs at once. Where that is decided, on another CPU, the guest's memory is not to be had.
 */
#ifndef TANDEM_HOST_CRITICAL_BPF_H
#define TANDEM_HOST_CRITICAL_BPF_H

#include "inside.bpf.h"
#include "../core/serve.bpf.h"

/*
 * The turn of prev is over. Does it go on for a moment, because its guest's kernel is in a critical section? Siblings may spin for what it holds
 * there. It is charged for that as for the rest of its turn.
 */
static __always_inline bool holds(struct task_struct *prev, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	struct vm_settings *s = settings_of(t);

	if (!s || !s->depth_distance || (s->off & VM_CRITICAL) || !slice_timers_enabled ||
	    t->run_cpu != cpu || t->class != CLASS_NORMAL || !k_allowed(prev, cpu) || waits_in_local_dsq() || out_of_quota(prev, t, now))
		return false;
	if (!is_critical_inside(t)) {
		t->side.held_votes = votes_after(t->side.held_votes, true);
		return false;
	}
	if (c->side.held == TANDEM_CRITICAL_STEPS_MAX)
		t->side.held_votes = 0;
	if (!may_hold(c->side.held, t->side.held_votes))
		return false;
	turn_ended(c, now);
	c->side.held++;
	count(c, CNT_HELD);
	k_set_slice(prev, TANDEM_CRITICAL_STEP_NS);
	end_turn_at(c, cpu, now + TANDEM_CRITICAL_STEP_NS, now);
	return true;
}

#endif
