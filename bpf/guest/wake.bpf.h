/* SPDX-License-Identifier: GPL-2.0-only */
/* Where a task goes that wakes up or has had its slice, and which CPU is kicked. */
#ifndef TANDEM_GUEST_WAKE_BPF_H
#define TANDEM_GUEST_WAKE_BPF_H

#include "balance.bpf.h"
#include "dedicate.bpf.h"
#include "../core/wakeup.bpf.h"

/* Placement by cost (bvs); otherwise by the kernel's idle selection alone. Set by the loader. */
const volatile bool bvs_enabled = true;

const volatile u32 fault = FAULT_NONE;

static __always_inline bool is_fault_target(const struct task_struct *p)
{
	return fault != FAULT_NONE && !bpf_strncmp(p->comm, 12, "tandem-fault");
}

s32 BPF_STRUCT_OPS(guest_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_state *t = task_state(p);
	struct cpu_state *c;
	bool idle = false;
	s32 cpu;

	if (dedicate_enabled && t && !k_is_kthread(p)) {
		cpu = own_vcpu(p, t, prev_cpu);
		idle = scx_bpf_test_and_clear_cpu_idle(cpu);
	} else if (bvs_enabled && (contended || uneven_cores || slow_cores || nr_banned) && t) {
		cpu = cheapest_cpu(p, t, prev_cpu);
		idle = scx_bpf_test_and_clear_cpu_idle(cpu);
		if (cpu != prev_cpu)
			count_task(CNT_STEERED, p->pid);
		/*
		 * Insert directly into the local DSQ only where the vCPU is sure to run: no other vCPU could
		 * pull the task from there.
		 */
		c = cpu_state(cpu);
		if (idle && (!c || believed_share(c, k_now(), vcap_prior(&c->side.model, &pool)) < TANDEM_CONTENDED_SHARE))
			return cpu;
	} else {
		cpu = k_any_idle() ? scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle) : prev_cpu;
		c = nr_banned ? cpu_state(cpu) : NULL;
		if (c && t && !allowed_here(t->class, c, cpu)) {
			s32 to = refuge(p->pid);

			if (to >= 0) {
				cpu = to;
				idle = scx_bpf_test_and_clear_cpu_idle(cpu);
			}
		}
	}
	if (!dedicate_enabled && !idle && (wake_flags & SCX_WAKE_FORK) && !contended)
		cpu = lightest_cpu(p, cpu);
	c = cpu_state(cpu);
	/* A direct insertion would pass over tasks that wait there already, and over a quota. */
	if (idle && t && c && !is_fault_target(p) && !waiting_normal(cpu, c) &&
	    !(nr_limits && exhausted(t->group, k_now()))) {
		count_task(CNT_DIRECT, p->pid);
		k_insert_local(p, c->base_request_ns, 0);
	}
	return cpu;
}

/*
 * Kick an idle CPU if a task that is worth pulling is about to wait in cpu's queue. Returns whether the task
 * preempts the one that runs on `cpu`; then no idle CPU is kicked.
 */
static __always_inline bool announce(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
				     u64 enq_flags, u64 now)
{
	s32 idle;

	if (begins_anew(p, t, c, cpu, enq_flags))
		return false;
	if (is_idle(c)) {
		/*
		 * An idle CPU that a waking task is sent to is woken by the kernel; a kick would be one more
		 * interrupt, on this CPU.
		 */
		if (!(enq_flags & SCX_ENQ_WAKEUP) || cpu != scx_bpf_task_cpu(p))
			k_kick_idle(cpu);
		return false;
	}
	/* Without a tick nothing would check whether the running task is still alone. */
	if (c->endless || (t->class == CLASS_NORMAL && c->curr_class == CLASS_BEST_EFFORT))
		return true;
	if (!dedicate_enabled && !k_is_pinned(p) && k_any_idle()) {
		/* An idle CPU may pull it; whether that is wise is decided there. */
		idle = uneven || uneven_cores || nr_banned || nr_llcs > 1 ? helper_for(p, cpu) : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle >= 0 && idle != cpu) {
			k_kick_idle(idle);
			return false;
		}
	}
	return preempts_current(p, t, c, enq_flags, false, false, now);
}

void BPF_STRUCT_OPS(guest_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = task_state(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu);
	bool preempts;
	u32 limit;
	u64 now;

	if (!t || !c) {
		k_insert_local(p, base_request_ns, enq_flags);
		return;
	}
	if (is_fault_target(p)) {
		if (fault == FAULT_ERROR)
			scx_bpf_error("fault injected: %s[%d]", p->comm, p->pid);
		return;
	}
	/* Tasks that stay on this CPU are found by the others. */
	if (is_leaving() && cpu != (s32)bpf_get_smp_processor_id()) {
		k_insert_local(p, base_request_ns, enq_flags);
		return;
	}
	now = k_now();
	if (serves_at_once(p, t, c, cpu, enq_flags, now)) {
		k_insert_local(p, c->base_request_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	t->throttled_at_ns = 0;
	limit = out_of_quota(p, t, now);
	if (limit) {
		t->push_to = -1;
		throttle(p, t, limit, now, enq_flags);
		return;
	}
	if (t->push_to >= 0) {
		if (k_allowed(p, t->push_to) && !k_is_pinned(p))
			cpu = t->push_to;
		t->push_to = -1;
	} else if (!dedicate_enabled && !(enq_flags & SCX_ENQ_WAKEUP) && queue_cpu(t) == cpu && !begins_anew(p, t, c, cpu, enq_flags)) {
		cpu = push_task(p, t, c, cpu, now);
	}
	c = cpu_state(cpu);
	if (!c) {
		k_insert_local(p, base_request_ns, enq_flags);
		return;
	}
	lines_up(p, t, c, cpu, now);
	preempts = announce(p, t, c, cpu, enq_flags, now);
	if (preempts && takes_over(p, t, c, cpu)) {
		k_insert_local(p, remaining(t), enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	put_in_order(p, t, c, cpu, now, enq_flags);
	if (preempts)
		k_kick_preempt(cpu);
}

#endif
