/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The guest scheduler: a fair scheduler that knows that its CPUs are vCPUs.
 *
 * Idea. A guest kernel assumes that its CPUs are equal, always run and respond at
 * once. On an overcommitted host none of this holds: one vCPU gets all of its
 * pCPU, its neighbour a third; each is preempted for milliseconds at a time; an
 * idle one may take that long to wake up. This scheduler measures what every vCPU
 * really gets and acts on it:
 *
 *   measure   steal and preemption intervals, from the hypervisor's page    observe.bpf.h
 *   model     share, mean preemption interval, period of each vCPU          policy/guest/vcap.h, phase.h
 *   policy    where a task is done first, which vCPU to pull from           policy/guest/place.h
 *             when a running task leaves its vCPU                           policy/guest/ivh.h
 *             which vCPUs are better left without work                      policy/guest/rwc.h
 *   action    wake-up placement, pulling, migration                         wake, place, balance,
 *                                                                           ivh, ban
 *
 * On equal, uncontended vCPUs it is an ordinary fair scheduler (virtual deadlines,
 * policy/eevdf.h) with the kernel's own idle selection. The cost model is evaluated
 * only while some vCPU is contended or banned, or where a probe found that some
 * share a core or a hardware thread and others do not, or that some are slower.
 *
 * Invariants. Waiting tasks sit in per-vCPU user DSQs; a local DSQ holds at most
 * the task that runs next. A task is charged for the time it ran, without steal.
 * SCHED_IDLE tasks and cpu.idle groups run only where no normal task wants the CPU,
 * except for a minimum that keeps the kernel's watchdog quiet. Fairness, cgroups,
 * quotas and slices are the core's (bpf/core); this file says when they act.
 *
 * Sources: vSched (EuroSys'25) for the aim and the names of its parts (bvs is
 * placement here, ivh proactive migration, rwc bans); sched_ext for the means.
 *
 * What it does not do: look into the host. A task that runs when its vCPU is
 * preempted without a prediction stands still until the vCPU is scheduled in again.
 */
#include "balance.bpf.h"
#include "live.bpf.h"
#include "observe.bpf.h"
#include "park.bpf.h"
#include "side.bpf.h"
#include "speed.bpf.h"
#include "wake.bpf.h"
#include "../core/ops.bpf.h"
#include "../core/run.bpf.h"
#include "../core/serve.bpf.h"

/* Another rule by which a running task leaves its vCPU; the simulator defines one for comparison. */
#ifndef target_of_variant
#define target_of_variant(p, t, c, cpu, now) ((s32)-1)
#endif

char _license[] SEC("license") = "GPL";

/* Does prev go on, or does the first task of the queue run? Charges prev. */
static __always_inline bool keep(struct task_struct *prev, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	if (t->push_to >= 0 || t->run_cpu != cpu || !k_allowed(prev, cpu))
		return false;
	charge(prev, t, c, cpu, now);
	turn_ended(c, now);
	admission_done(t);
	if (out_of_quota(prev, t, now))
		return false;
	if (leaves_for_ivh(prev, t, c, cpu, now) || evicted(prev, t, c))
		return false;
	if (t->class == CLASS_BEST_EFFORT && (waiting_normal(cpu, c) || !best_effort_stays(c, cpu)))
		return false;
	return is_first(prev, t, c, cpu);
}

void BPF_STRUCT_OPS(guest_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *c = cpu_state(cpu);
	bool kept = false, best_effort = false;
	struct task_state *t = NULL;
	u64 now = k_now();

	if (!c)
		return;
	k_learn_migration();
	k_learn_reading();
	if (is_idle(c))
		answer_call(c, cpu, now);
	watch_for_offline(c, cpu, now);
	if (c->throttled_limit)
		look_after_throttled(now);
	if (serve_overdue(c, cpu, now))
		return;
	if (prev && k_wants_to_run(prev))
		t = task_state(prev);
	if (t) {
		kept = keep(prev, t, c, cpu, now);
		best_effort = t->class == CLASS_BEST_EFFORT;
	}
	if (c->pull_from >= 0)
		pull_for_balance(cpu);
	unthrottle_next(c, cpu);
	if (c->side.bans)
		clear_queues(c, cpu);
	if (!kept && (k_take(queue_of(cpu, CLASS_NORMAL)) || (c->late_due_ns && take_late(c, cpu))))
		return;
	nobody_waits_at(cpu, c);
	/* The own queue is empty, or prev comes first. Is there a task to pull? */
	if (!dedicate_enabled && (!kept || best_effort) && take_normal(cpu))
		return;
	if (!kept && best_effort_stays(c, cpu) &&
	    ((may_wait(c, CLASS_BEST_EFFORT) && k_take(queue_of(cpu, CLASS_BEST_EFFORT))) || (!c->side.parked && take_best_effort(cpu))))
		return;
	/* No other task: prev goes on, unless it is to be migrated, has to make room, or its quota is used up. */
	if (!t || t->push_to >= 0 || (best_effort && !best_effort_stays(c, cpu)) ||
	    (!kept && out_of_quota(prev, t, now)) || waits_in_local_dsq())
		return;
	if (kept)
		count(c, CNT_KEPT);
	goes_on(prev, t, c, cpu, now);
}

void BPF_STRUCT_OPS(guest_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p), target;
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now();
	bool best_effort;

	if (!t || !c)
		return;
	/*
	 * A CPU without ticks (nohz_full) has one a second, which another CPU takes for it: that says nothing about when
	 * the vCPU was preempted.
	 */
	if (c->endless)
		c->side.tick_at_ns = 0;
	else
		expect_tick(c, now);
	if (c->throttled_limit)
		look_after_throttled(now);
	if (cpu == bpf_get_smp_processor_id())
		observe(c, cpu, now, WAS_BUSY);
	charge_at_tick(p, t, c, cpu, now);
	renew_lease(c, p->pid, now);
	best_effort = t->class == CLASS_BEST_EFFORT;
	if (ends_at_tick(p, t, c, cpu, now, min_run_ns(c->base_request_ns), !dedicate_enabled && !c->side.bans,
			 !best_effort || (!c->side.parked && best_effort_allowed(c, cpu))) || best_effort || dedicate_enabled ||
	    cpu != bpf_get_smp_processor_id())
		return;
	/* Its vCPU has been banned, and the kick that was to say so ended no slice: one that is alone would stay for 100 ms. */
	if (evicted(p, t, c)) {
		k_set_slice(p, 0);
		return;
	}
	foresee(p, t, c, cpu, now);
	scout(c, cpu, now);
	target = target_of_variant(p, t, c, cpu, now);
	if (target >= 0) {
		t->push_to = target;
		count(c, CNT_MIGRATED_EARLY);
		k_set_slice(p, 0);
		return;
	}
	/* No vCPU can be much stronger than one that has nearly all of its pCPU. */
	if (!(uneven || uneven_cores) || !push_gains(capacity_beside(c, cpu, now), TANDEM_SCALE))
		return;
	if (k_is_pinned(p) || now - t->side.pushed_at_ns < TANDEM_PUSH_REST_NS)
		return;
	target = stronger_idle_cpu(p, cpu);
	if (target < 0)
		return;
	t->side.pushed_at_ns = now;
	if (!pushes_at_once(p, c, cpu, target, now))
		return;
	t->push_to = target;
	count(c, CNT_PUSHED);
	k_set_slice(p, 0);
}

void BPF_STRUCT_OPS(guest_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now();
	u32 was;

	if (!t || !c)
		return;
	observe(c, cpu, now, what_was(c, now));
	ivh_arrived(p, c, cpu, now);
	departed(c, cpu, now);
	was = turn_begins(p, t, c, cpu, now);
	renew_lease(c, p->pid, now);
	if (rwc_enabled && uneven_cores && (was == CLASS_NORMAL) != (t->class == CLASS_NORMAL))
		stack_changed(cpu, t->class == CLASS_NORMAL);
	turn_lasts(p, t, c, cpu, now);
	if (!dedicate_enabled && cpu == bpf_get_smp_processor_id())
		foresee(p, t, c, cpu, now);
}

void BPF_STRUCT_OPS(guest_stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);

	if (!t || !c)
		return;
	/* A property change stops a running task from another CPU: its clock and steal are not exact here. */
	if (cpu == bpf_get_smp_processor_id()) {
		u64 now = k_now(), steal_ns = c->side.seen_steal_ns;

		observe(c, cpu, now, WAS_BUSY);
		turn_pauses(p, t, c, cpu, now);
		ivh_left(t, c, cpu, c->side.seen_steal_ns - steal_ns >= TANDEM_PHASE_MIN_NS);
		renew_lease(c, p->pid, now);
	}
	turn_ends(p, t, c, runnable);
}

void BPF_STRUCT_OPS(guest_update_idle, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now();
	bool normal;

	/* What follows idle, a task or nothing, is observed elsewhere. */
	if (!c || !idle)
		return;
	observe(c, cpu, now, what_was(c, now));
	/* An idle CPU has no ticks that could be late. */
	if (steal_untold)
		c->side.tick_at_ns = 0;
	phase_idle(&c->side.phase);
	if (c->side.parked && !c->side.emptied_ns)
		c->side.emptied_ns = max_u64(sub_floor_u64(now, c->side.parked_at_ns), 1);
	normal = c->curr_class == CLASS_NORMAL;
	c->curr_class = CLASS_NONE;
	departed(c, cpu, now);
	if (normal && rwc_enabled && uneven_cores)
		stack_changed(cpu, false);
	rests(c, cpu);
}

bool BPF_STRUCT_OPS(guest_yield, struct task_struct *from, struct task_struct *to)
{
	return forfeits_request(from);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(guest_init)
{
	u64 now = k_now();
	s32 err = core_init(now);
	u32 i;

	if (err)
		return err;
	err = ivh_init();
	if (err) {
		scx_bpf_error("cannot set up the timers of ivh: error %d", err);
		return err;
	}
	find_steal_source();
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (!c)
			return -EINVAL;
		c->side.ivh_to = -1;
		c->side.seen_at_ns = now;
		c->side.seen_steal_ns = steal_of(i);
		c->side.seen_sched_ins = sched_ins_of(i);
	}
	return 0;
}

SCX_OPS_DEFINE(tandem_guest, CORE_OPS,
	       .select_cpu		= (void *)guest_select_cpu,
	       .enqueue			= (void *)guest_enqueue,
	       .dispatch		= (void *)guest_dispatch,
	       .tick			= (void *)guest_tick,
	       .running			= (void *)guest_running,
	       .stopping		= (void *)guest_stopping,
	       .update_idle		= (void *)guest_update_idle,
	       .yield			= (void *)guest_yield,
	       .init			= (void *)guest_init,
	       .name			= "tandem_guest");
