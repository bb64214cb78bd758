/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Claims: a vCPU is reserved for a task that is about to be migrated there, and asked whether it runs. A claim
 * expires by time, whichever CPU made it. An idle vCPU whose preemption period is not known is kicked; its
 * answer shows that it is on its pCPU.
 */
#ifndef TANDEM_GUEST_CLAIM_BPF_H
#define TANDEM_GUEST_CLAIM_BPF_H

#include "observe.bpf.h"

/* Are the tasks that wait here reserved for this CPU? */
static __always_inline bool reserved(const struct cpu_state *c, u64 now)
{
	return c->side.reserved_until_ns && time_before_ns(now, c->side.reserved_until_ns);
}

/* A claim: its expiry in units of 1024 ns, and the CPU that made it. */
#define CLAIM_CPU_BITS 16
#define CLAIM_UNIT_SHIFT 10

static __always_inline u64 claim_of(s32 cpu, u64 until_ns)
{
	return (until_ns >> CLAIM_UNIT_SHIFT) << CLAIM_CPU_BITS | (u16)(cpu + 1);
}

static __always_inline bool claimed(const struct cpu_state *c, u64 now)
{
	u64 claim = c->side.claim;

	return claim && now >> CLAIM_UNIT_SHIFT < claim >> CLAIM_CPU_BITS;
}

static __always_inline bool claimed_by(const struct cpu_state *c, s32 cpu)
{
	return (u16)c->side.claim == (u16)(cpu + 1);
}

static __always_inline bool claim(struct cpu_state *target, s32 cpu, u64 until_ns, u64 now)
{
	u64 old = target->side.claim;

	if (claimed(target, now) && !claimed_by(target, cpu))
		return false;
	return __sync_val_compare_and_swap(&target->side.claim, old, claim_of(cpu, until_ns)) == old;
}

static __always_inline void release_claim(s32 target, s32 cpu)
{
	struct cpu_state *c = cpu_state(target);
	u64 old = c ? c->side.claim : 0;

	if (old && claimed_by(c, cpu))
		__sync_val_compare_and_swap(&c->side.claim, old, 0);
}

/* For this long after its timer or a kick has woken it, a CPU counts as awake for that reason. */
#define SEEN_AWAKE_NS (200 * NSEC_PER_USEC_)

static __always_inline enum vcpu_was what_was(const struct cpu_state *c, u64 now)
{
	if (!is_idle(c))
		return WAS_BUSY;
	return claimed(c, now) || now - c->side.answered_at_ns < SEEN_AWAKE_NS ? WAS_CALLED : WAS_WOKEN;
}

/* An idle CPU has been woken. If it was kicked for a claim, this is its answer. */
static __always_inline void answer_call(struct cpu_state *c, s32 cpu, u64 now)
{
	if (!claimed(c, now))
		return;
	observe(c, cpu, now, WAS_CALLED);
	c->side.answered_at_ns = now;
}

/* Is this vCPU's preemption period known? */
static __always_inline bool rhythm_known(const struct cpu_state *c, u64 now)
{
	struct forecast f = phase_forecast(&c->side.phase, now);

	return f.known;
}

static __always_inline bool answered(const struct cpu_state *target)
{
	return target->side.answered_at_ns && !time_before_ns(target->side.answered_at_ns, target->side.called_at_ns);
}

/* Claim a target, and kick it if it is idle and it is not known whether it runs: its wake-up is the answer. */
static __always_inline bool call(struct cpu_state *target, s32 to, s32 cpu, u64 until_ns, u64 now)
{
	if (!claim(target, cpu, until_ns, now))
		return false;
	target->side.called_at_ns = now;
	target->side.answered_at_ns = 0;
	if (is_idle(target) && !rhythm_known(target, now))
		k_kick_idle(to);
	return true;
}

#endif
