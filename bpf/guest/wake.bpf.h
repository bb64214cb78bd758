/* SPDX-License-Identifier: GPL-2.0-only */
/* A task wakes up, or has had its turn: where it goes, and who is told. */
#ifndef TANDEM_GUEST_WAKE_BPF_H
#define TANDEM_GUEST_WAKE_BPF_H

#include "balance.bpf.h"
#include "dedicate.bpf.h"

/* Places are chosen by cost; otherwise by the kernel's idle selection alone. A loader's setting. */
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
		 * Straight to the local queue only where the vCPU is sure to
		 * come: from there nobody could take the task back.
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
	/* Who waits there already would be passed over by a direct insertion, and so would a quota. */
	if (idle && t && c && !is_fault_target(p) && !waiting_normal(cpu, c) &&
	    !(nr_limits && exhausted(t->group, k_now()))) {
		count_task(CNT_DIRECT, p->pid);
		k_insert_local(p, c->base_request_ns, 0);
	}
	return cpu;
}

/*
 * Tell an idle CPU that something worth its while is about to wait in cpu's
 * queue. Does the task take that CPU from whoever runs there? Nobody is told then.
 */
static __always_inline bool announce(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
				     u64 enq_flags, u64 now)
{
	u64 burst, deadline;
	s32 idle;

	if (is_idle(c)) {
		/* One that a task is sent to when it wakes up is woken by the kernel; a kick would be one more interrupt, here. */
		if (!(enq_flags & SCX_ENQ_WAKEUP) || cpu != scx_bpf_task_cpu(p))
			k_kick_idle(cpu);
		return false;
	}
	/* Without a tick nobody would look whether who runs there has got company. */
	if (c->endless || (t->class == CLASS_NORMAL && c->curr_class == CLASS_BEST_EFFORT))
		return true;
	if (!dedicate_enabled && !k_is_pinned(p) && k_any_idle()) {
		/* Somebody idle may take it over; whether that is wise is decided there. */
		idle = uneven || uneven_cores || nr_banned || nr_llcs > 1 ? helper_for(p, cpu) : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle >= 0 && idle != cpu) {
			k_kick_idle(idle);
			return false;
		}
	}
	if (!(enq_flags & SCX_ENQ_WAKEUP) || t->class != c->curr_class || k_is_batch(p))
		return false;
	/* Those who all sleep soon shall not interrupt each other for being a little shorter. */
	burst = curr_burst(c, now);
	deadline = burst >= long_burst_ns(c->base_request_ns) ? t->deadline : t->v + deadline_distance(t->request_ns, t->weight, t->base_ns);
	if (!wakeup_preempts(deadline, c->curr_deadline, curr_lead(c, now), sub_floor_u64(now, c->curr_since_ns), burst,
			     c->base_request_ns))
		return false;
	count_task(CNT_PREEMPTED, p->pid);
	return true;
}

/*
 * A task that preempts whoever runs on this very CPU, and comes before all who
 * wait there, need not go through the queue: the switch follows at once, and
 * neither an interrupt that this CPU sends to itself nor another look at the
 * queue is needed for it. On any other CPU somebody has to be able to take it
 * back, should the host have taken that CPU meanwhile.
 */
static __always_inline bool takes_over(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu)
{
	u64 first;

	if (cpu != (s32)bpf_get_smp_processor_id() || cpu != scx_bpf_task_cpu(p) || c->curr_pid != k_current_pid() ||
	    t->class != CLASS_NORMAL || c->side.bans || c->late_due_ns || k_waiting(SCX_DSQ_LOCAL))
		return false;
	return !k_peek_key(queue_of(cpu, CLASS_NORMAL), &first) || time_before_ns(t->deadline, first);
}

/*
 * A thread of the kernel that serves one CPU: others wait for it, so that it runs at once when it wakes up. Unless it has had
 * more than its share already: some compute (ksmd, khugepaged, workers that encrypt), and before two of them that take the
 * CPU from each other nobody else would come.
 */
static __always_inline bool serves_at_once(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
					   u64 enq_flags, u64 now)
{
	if (!k_is_kthread(p) || p->nr_cpus_allowed != 1 || !(enq_flags & SCX_ENQ_WAKEUP) || t->mean_burst_ns > c->base_request_ns)
		return false;
	rejoin(p, t, cpu, now);
	return !time_before_ns(clock_now(c, class_index(t->class), now), t->v);
}

void BPF_STRUCT_OPS(guest_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = task_state(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu);
	bool preempts;
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
	/* Those that are still on this CPU the others will find. */
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
	if (nr_limits && may_throttle(p)) {
		u32 limit = exhausted(t->group, now);

		if (limit) {
			t->push_to = -1;
			throttle(p, t, limit, now, enq_flags);
			return;
		}
	}
	if (t->push_to >= 0) {
		if (k_allowed(p, t->push_to) && !k_is_pinned(p))
			cpu = t->push_to;
		t->push_to = -1;
	} else if (!dedicate_enabled && !(enq_flags & SCX_ENQ_WAKEUP) && queue_cpu(t) == cpu) {
		cpu = give_away(p, t, c, cpu, now);
	}
	c = cpu_state(cpu);
	if (!c)
		return;
	if (queue_cpu(t) == cpu)
		reweigh(t, c);
	else
		rejoin(p, t, cpu, now);
	if (request_done(t))
		renew_request(t, c);
	count_task(CNT_QUEUED, p->pid);
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
