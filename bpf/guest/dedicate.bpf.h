/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One vCPU per thread (policy/guest/dedicate.h): the lease of each vCPU, and the placement of a thread that
 * wakes up. There is no pulling, no load balance and no active balance in this mode. Kernel threads, which
 * belong to no application, are placed as always.
 */
#ifndef TANDEM_GUEST_DEDICATE_BPF_H
#define TANDEM_GUEST_DEDICATE_BPF_H

#include "ban.bpf.h"

/* Every thread has a vCPU of its own, while they last. Set by the loader. */
const volatile bool dedicate_enabled = false;

/* Does the thread `pid` own `cpu`? */
static __always_inline bool owns(const struct cpu_state *c, s32 pid)
{
	return c->side.owner_pid == pid;
}

static __always_inline void renew_lease(struct cpu_state *c, s32 pid, u64 now)
{
	if (dedicate_enabled && owns(c, pid))
		c->side.owner_seen_ns = now;
}

/* The thread ends, or leaves the scheduler. */
static __always_inline void end_lease(struct task_state *t, s32 pid)
{
	struct cpu_state *c = t->side.home >= 0 ? cpu_state(t->side.home) : NULL;

	if (c)
		__sync_val_compare_and_swap(&c->side.owner_pid, pid, 0);
	t->side.home = -1;
}

/* Take the lease of a free vCPU. The thread whose exchange of the owner succeeds has it. */
static __always_inline bool take_lease(struct cpu_state *c, s32 pid, u64 now)
{
	s32 owner = c->side.owner_pid;

	if (!lease_over(owner, c->side.owner_seen_ns, owner && c->curr_pid == owner && !is_idle(c), now))
		return false;
	if (__sync_val_compare_and_swap(&c->side.owner_pid, owner, pid) != owner)
		return false;
	c->side.owner_seen_ns = now;
	return true;
}

/* Where p goes: to its own vCPU, else to a free one, else to the one with the fewest tasks. */
COLD s32 own_vcpu(struct task_struct *p __arg_trusted, struct task_state *t __arg_nonnull, s32 prev_cpu)
{
	struct cpu_state *c;
	u32 fewest = ~0U, from, i;
	u64 now = k_now();
	s32 to = prev_cpu;

	c = t->side.home >= 0 ? cpu_state(t->side.home) : NULL;
	if (c && owns(c, p->pid) && c->online && !c->side.bans && k_allowed(p, t->side.home))
		return t->side.home;
	end_lease(t, p->pid);
	from = nr_cpu_ids <= MAX_LOOK ? prev_cpu : scan_from();
	bpf_for(i, 0, nr_candidates()) {
		u32 cpu = candidate(p, from, i);

		c = cpu_state(cpu);
		if (!c || !c->online || c->side.bans || !k_allowed(p, cpu))
			continue;
		if (take_lease(c, p->pid, now)) {
			t->side.home = cpu;
			count_task(CNT_LEASES, p->pid);
			return cpu;
		}
		if (c->tasks[1] < fewest) {
			fewest = c->tasks[1];
			to = cpu;
		}
	}
	return to;
}

#endif
