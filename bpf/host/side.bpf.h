/* SPDX-License-Identifier: GPL-2.0-only */
/* The host side's answers to core/side.bpf.h. */
#ifndef TANDEM_HOST_SIDE_BPF_H
#define TANDEM_HOST_SIDE_BPF_H

#include "debt.bpf.h"
#include "safe.bpf.h"
#include "vm.bpf.h"
#include "../core/fair.bpf.h"
#include "../core/side.bpf.h"

/* A pCPU that left idle for a task of ours runs it by then. */
#define TAKEN_AFTER_NS (500 * NSEC_PER_USEC_)

/* Did a higher class take this pCPU when it was idle? The kernel says only that it is idle no longer. */
static __always_inline bool taken_when_idle(const struct cpu_state *c, u64 now)
{
	return c->side.left_idle_ns && now > c->side.left_idle_ns + TAKEN_AFTER_NS;
}

/* What higher classes leave of this pCPU, at this moment. */
static __always_inline u32 share_now(const struct cpu_state *c, u64 now)
{
	u64 since = c->side.left_idle_ns;

	if (!taken_when_idle(c, now))
		return share_left(c->side.share, c->side.away_since_ns, sub_floor_u64(now, c->side.share_at_ns));
	return share_left(share_left(c->side.share, false, sub_floor_u64(since, c->side.share_at_ns)), true, now - since);
}

static __always_inline u32 side_capacity(const struct cpu_state *c, u64 now)
{
	u32 share = share_now(c, now);

	return share ? share : 1;
}

/* With less than this left by higher classes, even a single task waits for long. */
#define LITTLE_SHARE (TANDEM_SCALE / 2)

static __always_inline bool has_little_left(const struct cpu_state *c, u64 now)
{
	return share_now(c, now) < LITTLE_SHARE;
}

static __always_inline u32 side_cpu_bound_allowance(const struct cpu_state *c, u64 now)
{
	return has_little_left(c, now) ? 0 : 1;
}

/* A heavier pCPU is not as good as one with a sibling: there it would take other VMs' time. */
static __always_inline bool side_may_move(const struct task_state *t, s32 from, s32 to, bool needed)
{
	return needed || !siblings_at(t, to) || siblings_at(t, from) || !vm_uses(t, VM_APART);
}

static __always_inline void share_changes(struct cpu_state *c, u64 away_since_ns, u64 now)
{
	c->side.share = share_now(c, now);
	c->side.share_at_ns = now;
	c->side.away_since_ns = away_since_ns;
}

/* A pCPU keeps no claim on the task that was to run next there (yield.bpf.h). */
COLD int claim_ends(s32 pid, s32 cpu);

/* A higher class has the pCPU. What was chosen to run next there is queued anew, and may go elsewhere. */
static __always_inline void side_cpu_lost(struct cpu_state *c)
{
	u64 now = k_now();

	share_changes(c, now ? now : 1, now);
	c->side.light_next = 0;
	if (c->side.yield_to) {
		claim_ends(c->side.yield_to, -1);
		c->side.yield_to = 0;
	}
}

/* The pCPU is ours again. */
static __always_inline void side_cpu_back(struct cpu_state *c, u64 now)
{
	if (c->side.away_since_ns || taken_when_idle(c, now))
		share_changes(c, 0, now);
	if (c->side.left_idle_ns)
		c->side.left_idle_ns = 0;
}

/* It is idle no longer: for a task of ours, which running() says at once, or for a higher class. */
static __always_inline void leaves_idle(struct cpu_state *c, u64 now)
{
	c->side.left_idle_ns = now;
}

static __always_inline u64 side_stolen_ns(s32 cpu)
{
	return 0;
}

static __always_inline u64 side_charge_ns(struct task_state *t, struct cpu_state *c, s32 cpu, u64 service_ns)
{
	return t->side.vm ? charge_vcpu_ns(t, cpu, service_ns) : service_ns;
}

/* Request of a vCPU on this pCPU. */
static __always_inline u64 vcpu_request_ns(const struct task_state *t, const struct cpu_state *c)
{
	struct vm_settings *s = settings_of(t);

	return s && s->request_ns ? s->request_ns : c->base_request_ns;
}

static __always_inline u64 side_request_ns(const struct task_struct *p, const struct task_state *t, const struct group_state *g,
					   const struct cpu_state *c)
{
	return is_vcpu(t) ? vcpu_request_ns(t, c) : min_u64(NEAR_DEADLINE_NS, c->base_request_ns);
}

static __always_inline u64 side_slice_ns(const struct task_state *t, const struct cpu_state *c)
{
	return t->base_ns == NEAR_DEADLINE_NS && !t->custom && !is_vcpu(t) ? c->base_request_ns : t->base_ns;
}

/* A prompt task is due soon, also if it usually runs for longer than that. */
static __always_inline u64 side_wake_request_ns(const struct task_state *t)
{
	u64 need_ns = wake_request_ns(t->base_ns, t->mean_burst_ns);

	return is_prompt(t) ? min_u64(need_ns, NEAR_DEADLINE_NS) : need_ns;
}

/* The next one has the length that is set for the VM by now. */
static __always_inline void side_request_done(struct task_state *t, const struct cpu_state *c)
{
	if (is_vcpu(t))
		t->base_ns = vcpu_request_ns(t, c);
}

static __always_inline bool side_usable(const struct cpu_state *c)
{
	return true;
}

static __always_inline u64 side_debt_ns(const struct task_struct *p, struct task_state *t, u64 now)
{
	u64 ns = debt_ns(p, t, now);

	if (ns)
		t->side.on_debt = 1;
	return ns;
}

static __always_inline void side_group_added(struct group_state *g, const struct group_state *parent)
{
}

static __always_inline void side_task_begins(struct task_state *t)
{
	t->side.yield_cpu = -1;
}

static __always_inline void side_task_ends(const struct task_struct *p, struct task_state *t)
{
	t->side.vcpu = 0;
	leaves_vm(t);
}

static __always_inline void side_joined(struct task_state *t, s32 cpu)
{
	take_place(t, cpu);
}

static __always_inline void side_left(struct task_state *t)
{
	leave_place(t);
}

static __always_inline void side_cpu_online(struct cpu_state *c)
{
	c->side.yield_to = 0;
	c->side.forward_to = 0;
	c->side.boost_to = 0;
	c->side.displaced_vm = 0;
	c->side.away_since_ns = 0;
	c->side.left_idle_ns = 0;
	c->side.share = TANDEM_SCALE;
}

static __always_inline void side_dump(void)
{
	scx_bpf_dump("tandem: next_vm=%u others_debt=%lld\n", next_vm, others_debt_ns);
}

static __always_inline void side_dump_cpu(const struct cpu_state *c)
{
	scx_bpf_dump("tandem: yield_to=%d share=%u/1024 boost_to=%d turn=%u\n", c->side.yield_to, c->side.share, c->side.boost_to,
		     c->side.turn);
}

#endif
