/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Proactive migration (ivh, intra-VM harvesting): a CPU-bound task leaves a vCPU that the host is about to
 * preempt (policy/guest/ivh.h, policy/guest/phase.h).
 *
 * A timer of the source vCPU fires a little before the predicted end of its active period. It claims a target,
 * and kicks it if it is idle. Whether the target answers shows whether it runs; if it does not, another one may
 * replace it. If a target's preemption period is known, its state is known without asking; where there is such
 * a target none is kicked, and the timer fires when it is time to leave. Just before the end the task is
 * migrated, if the target has answered, or is known to be scheduled in sooner than the source would be. The
 * task then waits in the target's queue, reserved for the target. If the target does not pull it in time, any
 * running vCPU takes it, first of all the source. A switch to another task shortly before the timer is used
 * instead of it. After several attempts without a running target, the task goes to a vCPU in order to learn its
 * preemption period.
 *
 * Every step has a timeout. Claims expire by time, whichever CPU made them; a timer that is late (the vCPU was
 * preempted all the same) only cleans up; a task that sleeps, or is not alone any more, ends the attempt.
 */
#ifndef TANDEM_GUEST_IVH_BPF_H
#define TANDEM_GUEST_IVH_BPF_H

#include "ivh_target.bpf.h"

enum ivh_stage {
	IVH_NONE,
	IVH_CALLING,	/* the timer is armed to claim and kick a target */
	IVH_LEAVING,	/* the task is migrated when it is switched out */
	IVH_PUSHING,	/* a stronger vCPU was kicked; the timer is armed for its answer */
	IVH_SCOUTING,	/* the timer is armed only to take a sample */
	IVH_WATCHING,	/* the task has left; the timer is armed to check whether it was pulled */
};

/* Set by the loader. */
const volatile bool ivh_enabled;

/* Sized to the number of possible CPUs when the object is loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct one_timer);
} ivh_timers SEC(".maps");

static __always_inline void arm_ivh(struct cpu_state *c, s32 cpu, u64 at_ns, u64 now)
{
	u32 key = cpu;
	struct one_timer *t = bpf_map_lookup_elem(&ivh_timers, &key);

	c->side.ivh_at_ns = at_ns;
	if (t)
		bpf_timer_start(&t->timer, max_u64(sub_floor_u64(at_ns, now), SLICE_SLACK_NS), BPF_F_TIMER_CPU_PIN);
}

static __always_inline u64 margin_of(const struct cpu_state *c)
{
	return ivh_margin_ns(&c->side.phase, c->side.ivh_late_ns, c->side.ivh_latency_ns, c->side.ivh_early_ns);
}

/* When the target was expected to run the task that waits for it. */
static __always_inline u64 expected_at_ns(const struct cpu_state *target)
{
	return target->side.reserved_until_ns - TANDEM_IVH_LATE_NS;
}

static __always_inline void end_ivh(struct cpu_state *c, s32 cpu)
{
	if (c->side.ivh_to >= 0)
		release_claim(c->side.ivh_to, cpu);
	c->side.ivh_to = -1;
	c->side.ivh_stage = IVH_NONE;
}

static __always_inline void abandon(struct cpu_state *c, s32 cpu)
{
	count(c, CNT_ABANDONED);
	c->side.ivh_vain++;
	end_ivh(c, cpu);
}

/* The vCPU was preempted before its task had left. */
static __always_inline void leave_earlier(struct cpu_state *c)
{
	c->side.ivh_early_ns = ivh_caught(c->side.ivh_early_ns, &c->side.phase.on);
}

/* The vCPU was preempted in the middle of the switch. */
static __always_inline void caught_leaving(struct cpu_state *c, u64 took_ns)
{
	leave_earlier(c);
	c->side.ivh_risk = ivh_risk(c->side.ivh_risk, true);
	count_of(c, CNT_CAUGHT, took_ns);
}

/*
 * The task is migrated when it is switched out, which is now. A target that is preempted is kicked at the same
 * time: it then runs the task as soon as it is scheduled in. A kick only after the task is in its queue would
 * not come if this vCPU is preempted just before.
 */
static __always_inline void let_go(struct cpu_state *c, s32 cpu, u64 gain_ns, u64 now)
{
	struct cpu_state *target = cpu_state(c->side.ivh_to);

	c->side.ivh_gain_ns = gain_ns;
	c->side.ivh_stage = IVH_LEAVING;
	if (target && is_idle(target)) {
		struct forecast f = phase_forecast(&target->side.phase, now);

		if (f.known && f.preempted_for_ns) {
			k_kick_preempt_and_idle(cpu, c->side.ivh_to);
			return;
		}
	}
	k_kick_preempt(cpu);
}

/* The end of the active period is near. Does the task leave? */
static __always_inline void leave_now(struct cpu_state *c, s32 cpu, u64 now)
{
	struct cpu_state *target = cpu_state(c->side.ivh_to);
	u64 gain = target && may_be_target(target) ? gain_at(cpu, c->side.ivh_to, now) : 0;

	if (gain || c->side.ivh_learn >= 0)
		let_go(c, cpu, gain, now);
	else
		abandon(c, cpu);
}

/* End the reservation: any running vCPU may take the task. Returns whether the task waited in the target's queue. */
static __always_inline bool give_up(struct cpu_state *c, s32 cpu)
{
	struct cpu_state *target = cpu_state(c->side.ivh_to);
	bool waits = target && c->side.ivh_pid == target->side.awaited_pid && k_waiting(queue_of(c->side.ivh_to, CLASS_NORMAL));

	if (target) {
		target->side.reserved_until_ns = 0;
		if (target->side.awaited_pid == c->side.ivh_pid)
			target->side.awaited_pid = 0;
	}
	end_ivh(c, cpu);
	return waits;
}

/* The same. If it did, this CPU takes the task, unless it has something else to do. */
static __always_inline bool take_back(struct cpu_state *c, s32 cpu)
{
	bool waits = give_up(c, cpu);

	if (waits && is_idle(c))
		k_kick_idle(cpu);
	return waits;
}

/* The target has not pulled the task: the source runs again, and takes it. */
static __always_inline void look_after(struct cpu_state *c, s32 cpu)
{
	struct cpu_state *target = cpu_state(c->side.ivh_to);
	bool expected = target && target->side.reserved_until_ns;
	u64 late_ns = expected ? sub_floor_u64(k_now(), expected_at_ns(target)) : 0;

	if (!take_back(c, cpu) || !expected)
		return;
	c->side.ivh_cost_ns = ivh_cost_ns(c->side.ivh_cost_ns, late_ns);
	c->side.ivh_risk = ivh_risk(c->side.ivh_risk, true);
}

static int ivh_due(void *map, u32 *key, struct one_timer *timer)
{
	struct cpu_state *c = cpu_state(*key), *target;
	u64 now = k_now(), margin;
	s32 cpu = *key;

	if (!c || !c->online)
		return 0;
	if (is_idle(c)) {
		observe(c, cpu, now, WAS_CALLED);
		c->side.answered_at_ns = now;
	}
	if (c->side.ivh_stage == IVH_NONE || c->side.ivh_stage == IVH_LEAVING)
		return 0;
	if (c->side.ivh_stage == IVH_WATCHING) {
		look_after(c, cpu);
		return 0;
	}
	if (!is_idle(c)) {
		/* Its lateness shows where a preemption interval ended. */
		c->side.scan_due_ns = c->side.ivh_at_ns;
		observe(c, cpu, now, WAS_BUSY);
	}
	if (c->curr_class != CLASS_NORMAL || c->curr_pid != c->side.ivh_pid || c->tasks[1] > 1 ||
	    c->side.ivh_stage == IVH_SCOUTING) {
		end_ivh(c, cpu);
		return 0;
	}
	if (c->side.ivh_stage == IVH_PUSHING) {
		target = cpu_state(c->side.ivh_to);
		if (target && answered(target) && is_idle(target) && time_before_ns(now, c->side.ivh_end_ns))
			let_go(c, cpu, 0, now);
		else
			end_ivh(c, cpu);
		return 0;
	}
	if (time_before_ns(c->side.ivh_began_ns, c->side.phase.scheduled_in_ns) || !time_before_ns(now, c->side.ivh_end_ns)) {
		/* The vCPU was preempted before the timer fired. */
		leave_earlier(c);
		count_of(c, CNT_CAUGHT, sub_floor_u64(now, c->side.ivh_at_ns));
		end_ivh(c, cpu);
		return 0;
	}
	margin = margin_of(c);
	c->side.ivh_late_ns = ivh_latency_ns(c->side.ivh_late_ns, sub_floor_u64(now, c->side.ivh_at_ns));
	c->side.ivh_fired_ns = now;
	if (!time_before_ns(now + margin + SLICE_SLACK_NS, c->side.ivh_end_ns)) {
		if (c->side.ivh_to >= 0)
			leave_now(c, cpu, now);
		else if (call_target(*key, c->side.ivh_pid))
			let_go(c, cpu, c->side.ivh_gain_ns, now);
		else
			abandon(c, cpu);
		return 0;
	}
	target = cpu_state(c->side.ivh_to);
	if ((!target || !answered(target)) && c->side.ivh_tries < TANDEM_IVH_TRIES) {
		c->side.ivh_tries++;
		call_target(*key, c->side.ivh_pid);
		if (time_before_ns(now + TANDEM_IVH_ANSWER_NS + margin, c->side.ivh_end_ns)) {
			arm_ivh(c, cpu, now + TANDEM_IVH_ANSWER_NS, now);
			return 0;
		}
	}
	if (c->side.ivh_to < 0) {
		c->side.ivh_vain++;
		end_ivh(c, cpu);
		return 0;
	}
	arm_ivh(c, cpu, c->side.ivh_end_ns - margin, now);
	return 0;
}

/*
 * A CPU-bound task runs here alone: when will the vCPU be preempted? Call it on that CPU, when the task's slice
 * begins and at its ticks.
 */
static __always_inline void foresee(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	struct forecast f;
	u64 lead, margin;
	u32 prospect;

	if (!ivh_enabled || c->side.ivh_stage != IVH_NONE || !phase_even(&c->side.phase))
		return;
	if (t->class != CLASS_NORMAL || c->tasks[1] > 1 || max_u64(t->burst_ns, t->mean_burst_ns) < TANDEM_IVH_BURST_NS)
		return;
	if (k_is_pinned(p) || !c->online || (c->side.ivh_ask_at_ns && time_before_ns(now, c->side.ivh_ask_at_ns)))
		return;
	f = phase_forecast(&c->side.phase, now);
	margin = margin_of(c);
	/*
	 * A task that runs here again after its timer was due can still leave, as long as the switch takes no
	 * longer.
	 */
	if (!f.known || f.active_for_ns <= loss_of(c))
		return;
	c->side.ivh_began_ns = now;
	c->side.ivh_end_ns = now + f.active_for_ns;
	prospect = prospect_of(cpu, p->pid, now);
	c->side.ivh_learn = -1;
	if (prospect != PROSPECT_KNOWN && c->side.ivh_vain >= TANDEM_IVH_VAIN && has(PART_LEARNING))
		c->side.ivh_learn = one_to_learn(cpu, p->pid, now);
	if (c->side.ivh_learn >= 0)
		prospect = PROSPECT_KNOWN;
	if (prospect == PROSPECT_NONE) {
		c->side.ivh_vain++;
		c->side.ivh_ask_at_ns = now + f.active_for_ns / 2;
		c->side.ivh_risk = ivh_forgotten(c->side.ivh_risk);
		c->side.ivh_late_ns = ivh_forgotten(c->side.ivh_late_ns);
		c->side.ivh_latency_ns = ivh_forgotten(c->side.ivh_latency_ns);
		c->side.ivh_early_ns = ivh_forgotten(c->side.ivh_early_ns);
		c->side.ivh_cost_ns = ivh_forgotten(c->side.ivh_cost_ns);
		return;
	}
	lead = prospect == PROSPECT_KNOWN ? margin
					  : ivh_lead_ns(&c->side.phase, c->side.ivh_late_ns, c->side.ivh_latency_ns,
							    c->side.ivh_early_ns);
	c->side.ivh_pid = p->pid;
	c->side.ivh_to = -1;
	c->side.ivh_tries = 0;
	c->side.ivh_stage = IVH_CALLING;
	arm_ivh(c, cpu, f.active_for_ns > lead ? c->side.ivh_end_ns - lead : now, now);
}

/*
 * The task may be switched out now, and was to leave soon: this switch will do. A task that makes room for a
 * short one would otherwise run again too late for its timer.
 */
static __always_inline void leave_with_this_switch(struct cpu_state *c, s32 cpu, u64 now)
{
	if (c->side.ivh_stage != IVH_CALLING || time_before_ns(now + TANDEM_IVH_SWITCH_NS, c->side.ivh_at_ns) ||
	    !time_before_ns(now, c->side.ivh_end_ns) || !call_target(cpu, c->side.ivh_pid))
		return;
	c->side.ivh_fired_ns = now;
	c->side.ivh_stage = IVH_LEAVING;
}

/* The task is being switched out, and is still runnable. Does it leave? */
static __always_inline bool leaves_for_ivh(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
					       u64 now)
{
	struct cpu_state *target;
	struct forecast f;
	u64 wait = 0;

	if (c->side.ivh_pid == p->pid)
		leave_with_this_switch(c, cpu, now);
	if (c->side.ivh_stage != IVH_LEAVING)
		return false;
	target = cpu_state(c->side.ivh_to);
	if (!target || c->side.ivh_pid != p->pid || !time_before_ns(now, c->side.ivh_end_ns) ||
	    !may_be_target(target) || !k_allowed(p, c->side.ivh_to)) {
		/* The timer did fire, and it was too late all the same. */
		if (c->side.ivh_pid == p->pid && !time_before_ns(now, c->side.ivh_end_ns))
			leave_earlier(c);
		abandon(c, cpu);
		return false;
	}
	f = phase_forecast(&target->side.phase, now);
	if (f.known)
		wait = f.preempted_for_ns;
	else if (!answered(target))
		wait = target->side.model.inactive_mean_ns;
	t->push_to = c->side.ivh_to;
	target->side.awaited_pid = p->pid;
	target->side.reserved_until_ns = now + wait + TANDEM_IVH_LATE_NS;
	c->side.ivh_stage = IVH_WATCHING;
	c->side.departs_at_ns = now;
	/*
	 * This vCPU cannot check on the task before it is scheduled in again; and if the task comes back to it,
	 * the timer has other work.
	 */
	arm_ivh(c, cpu, max_u64(target->side.reserved_until_ns, c->side.ivh_end_ns + c->side.phase.off.mean_ns), now);
	return true;
}

/*
 * The switch is complete, and nothing of the task is left here: only now can another vCPU run it. If this vCPU
 * was preempted in the middle of that, the task stood still as if it had not been migrated.
 */
static __always_inline void departed(struct cpu_state *c, s32 cpu, u64 now)
{
	u64 took_ns = sub_floor_u64(now, c->side.departs_at_ns);

	if (!c->side.departs_at_ns)
		return;
	c->side.departs_at_ns = 0;
	if (took_ns > c->side.phase.off.mean_ns / 2) {
		caught_leaving(c, took_ns);
		/* Then this vCPU has just been scheduled in. */
		if (c->side.ivh_stage == IVH_WATCHING)
			take_back(c, cpu);
		return;
	}
	c->side.ivh_early_ns = ivh_left_in_time(c->side.ivh_early_ns);
	c->side.ivh_vain = 0;
	if (c->side.ivh_gain_ns)
		c->side.ivh_latency_ns = ivh_latency_ns(c->side.ivh_latency_ns, sub_floor_u64(now, c->side.ivh_fired_ns));
	count_of(c, c->side.ivh_gain_ns ? CNT_MIGRATED_EARLY : CNT_PUSHED, sub_floor_u64(c->side.ivh_end_ns, now));
	c->counters[CNT_MIGRATED_EARLY_US] += c->side.ivh_gain_ns / NSEC_PER_USEC_;
}

/*
 * p begins to run here: if it was migrated here, the migration is complete. So it is if p has come back to its
 * source.
 */
static __always_inline void ivh_arrived(struct task_struct *p, struct cpu_state *c, s32 cpu, u64 now)
{
	struct cpu_state *from;
	s32 by;

	if (c->side.ivh_stage == IVH_WATCHING && c->side.ivh_pid == p->pid)
		give_up(c, cpu);
	if (!c->side.claim || c->side.awaited_pid != p->pid)
		return;
	by = (s32)(u16)c->side.claim - 1;
	from = cpu_state(by);
	if (from && from->side.ivh_stage == IVH_WATCHING && from->side.ivh_pid == p->pid) {
		u64 late_ns = sub_floor_u64(now, expected_at_ns(c));

		from->side.ivh_stage = IVH_NONE;
		from->side.ivh_risk = ivh_risk(from->side.ivh_risk, false);
		if (c->side.reserved_until_ns)
			from->side.ivh_cost_ns = ivh_cost_ns(from->side.ivh_cost_ns, late_ns);
	}
	c->side.awaited_pid = 0;
	c->side.reserved_until_ns = 0;
	c->side.claim = 0;
}

/*
 * A task stops here. The attempt that the timer was armed for is over; or the task is being migrated, and the
 * vCPU was preempted in the middle of that: then this vCPU has just been scheduled in, and the task stays.
 */
static __always_inline void ivh_left(struct task_state *t, struct cpu_state *c, s32 cpu, bool taken)
{
	struct cpu_state *target;

	if (c->side.ivh_stage == IVH_NONE || (c->side.ivh_stage == IVH_WATCHING && !(taken && t->push_to >= 0)))
		return;
	if (c->side.ivh_stage == IVH_WATCHING) {
		t->push_to = -1;
		target = cpu_state(c->side.ivh_to);
		if (target)
			target->side.reserved_until_ns = 0;
		c->side.departs_at_ns = 0;
		caught_leaving(c, 0);
	}
	end_ivh(c, cpu);
}

/*
 * A vCPU whose share is clearly larger has been found idle. Does the task go there at once? Only if that vCPU
 * runs: an uncontended one always does; others are kicked, and the timer checks whether they answer. Where the
 * preemption period of this vCPU is known, proactive migration makes use of both.
 */
static __always_inline bool pushes_at_once(struct task_struct *p, struct cpu_state *c, s32 cpu, s32 to, u64 now)
{
	struct cpu_state *target = cpu_state(to);

	if (!target)
		return false;
	if (!ivh_enabled || share_of(target, now) >= TANDEM_CONTENDED_SHARE)
		return true;
	if (phase_even(&c->side.phase) || c->side.ivh_stage != IVH_NONE)
		return false;
	if (!is_idle(target))
		return !is_preempted(to, target, now);
	if (!call(target, to, cpu, now + 2 * TANDEM_TICK_NS, now))
		return false;
	c->side.ivh_to = to;
	c->side.ivh_pid = p->pid;
	c->side.ivh_end_ns = now + TANDEM_TICK_NS;
	c->side.ivh_stage = IVH_PUSHING;
	arm_ivh(c, cpu, now + TANDEM_IVH_ANSWER_NS, now);
	return false;
}

/* The end of a preemption interval was not observed: take a sample at another time than that of the tick. */
static __always_inline void scout(struct cpu_state *c, s32 cpu, u64 now)
{
	if (!ivh_enabled || c->side.ivh_stage != IVH_NONE || !phase_wants_scouts(&c->side.phase))
		return;
	c->side.ivh_to = -1;
	c->side.ivh_stage = IVH_SCOUTING;
	arm_ivh(c, cpu, now + (1 + c->side.phase.inexact % 3) * TANDEM_TICK_NS / 4, now);
}

static __noinline s32 ivh_init(void)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpu_ids) {
		struct one_timer *t = bpf_map_lookup_elem(&ivh_timers, &cpu);

		if (!t)
			return -EINVAL;
		bpf_timer_init(&t->timer, &ivh_timers, K_CLOCK_MONOTONIC);
		bpf_timer_set_callback(&t->timer, ivh_due);
	}
	return 0;
}

#endif
