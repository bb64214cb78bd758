/* SPDX-License-Identifier: GPL-2.0-only */
/* What a vCPU is worth: its share, its capacity beside others, and whether it is preempted. */
#ifndef TANDEM_GUEST_VCPU_BPF_H
#define TANDEM_GUEST_VCPU_BPF_H

#include "steal.bpf.h"
#include "../core/spread.bpf.h"
#include "../core/turn.bpf.h"
#include "../core/tree.bpf.h"

/* Some vCPU is contended: placement is by cost. Otherwise the kernel's idle selection is best. */
u32 contended;

/* Recent share and wake-up wait, over all vCPUs (policy/guest/vcap.h). */
struct vcpu_pool pool = { .share = TANDEM_SCALE };

/* Some core is clearly slower than another: placement is by cost, too. Set by the daemon. */
u32 slow_cores;

/* Some vCPU is clearly stronger than another: active balance may pay. */
u32 uneven;

/* Some vCPUs may be better left without work (--rwc). Set by the loader. */
const volatile bool rwc_enabled = false;

/* Parts that are left out, enum part. Set by the loader. */
const volatile u32 parts_left_out = 0;

static __always_inline bool has(enum part part)
{
	return !(parts_left_out & part);
}

/* Share: the part of its pCPU's time that it gets. */
static __always_inline u32 share_of(const struct cpu_state *c, u64 now)
{
	return vcap_effective(&c->side.model, now);
}

/* A share of time as work: on a slower core it is less. */
static __always_inline u32 at_its_speed(const struct cpu_state *c, u32 share)
{
	return c->side.speed ? share * min_u64(c->side.speed, TANDEM_SCALE) / TANDEM_SCALE : share;
}

static __always_inline u32 capacity(const struct cpu_state *c, u64 now)
{
	return at_its_speed(c, share_of(c, now));
}

/* Number of other CPUs of a ring that run normal tasks. */
COLD int busy_in_ring(s32 cpu, bool stack)
{
	struct cpu_domain *d = domain_of(cpu);
	s32 at = cpu;
	u32 busy = 0, i;

	bpf_for(i, 0, MAX_RING) {
		struct cpu_state *c;

		if (!d)
			break;
		at = stack ? d->stack_next : d->core_next;
		if (at == cpu)
			break;
		c = cpu_state(at);
		if (c && c->online && c->curr_class == CLASS_NORMAL)
			busy++;
		d = domain_of(at);
	}
	return busy;
}

/* What is left of a share beside normal tasks on the same core or hardware thread. */
static __always_inline u32 beside(u32 share, s32 cpu)
{
	return uneven_cores ? share_beside_busy(share, busy_in_ring(cpu, true), busy_in_ring(cpu, false)) : share;
}

/* Capacity of a vCPU for a task, beside such tasks. */
static __always_inline u32 capacity_beside(const struct cpu_state *c, s32 cpu, u64 now)
{
	return beside(capacity(c, now), cpu);
}

/* For how long has a vCPU that has work been preempted, as far as this CPU can know? 0: it is not. */
static __always_inline u64 inactive_for(struct cpu_state *c, s32 cpu, u64 now)
{
	u32 sched_ins;

	if (is_idle(c) || !is_preempted(cpu, c, now)) {
		return 0;
	}
	/* It may have run since, and be preempted again, without a sample of its own. */
	sched_ins = sched_ins_of(cpu);
	if (!c->side.seen_inactive_ns || c->side.inactive_sched_ins != sched_ins) {
		c->side.inactive_sched_ins = sched_ins;
		c->side.seen_inactive_ns = now;
	}
	return max_u64(sub_floor_u64(now, c->side.seen_inactive_ns), 1);
}

#endif
