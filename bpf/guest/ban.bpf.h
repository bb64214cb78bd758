/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vCPUs that are left without work: stragglers, spare vCPUs of a stack, and vCPUs that were parked, by the
 * operator or by the vCPU limit (policy/guest/rwc.h, policy/guest/vcpu_limit.h).
 *
 * A ban is a bit in the vCPU's record. Placement, pulling and load balance check it. A task that waits or runs
 * there when the ban begins is migrated, if it may run elsewhere. Nothing is written to the kernel, so nothing
 * has to be undone: the bans end with the scheduler.
 */
#ifndef TANDEM_GUEST_BAN_BPF_H
#define TANDEM_GUEST_BAN_BPF_H

#include "vcpu.bpf.h"

/* Number of banned vCPUs. */
u32 nr_banned;

/* Tasks that are migrated at a time. */
#define SEND_AWAY 32

/* Does another vCPU of its stack run a normal task? */
static __always_inline bool stack_busy(s32 cpu)
{
	return rwc_enabled && uneven_cores && busy_in_ring(cpu, true) > 0;
}

/* May SCHED_IDLE tasks run on this vCPU now? */
static __always_inline bool best_effort_allowed(const struct cpu_state *c, s32 cpu)
{
	return takes_best_effort(c->side.bans, stack_busy(cpu));
}

/* May SCHED_IDLE tasks that are already there go on? On a parked vCPU only tasks that may run nowhere else are left. */
static __always_inline bool best_effort_stays(const struct cpu_state *c, s32 cpu)
{
	return c->side.parked ? !stack_busy(cpu) : best_effort_allowed(c, cpu);
}

/* May a task of this class run here, if it could run elsewhere? */
static __always_inline bool allowed_here(u32 class, const struct cpu_state *c, s32 cpu)
{
	return class == CLASS_BEST_EFFORT ? best_effort_allowed(c, cpu) : takes_normal(c->side.bans);
}

static __always_inline bool waits_best_effort(s32 cpu)
{
	return k_waiting(queue_of(cpu, CLASS_BEST_EFFORT));
}

/* `cpu` has started or stopped running a normal task: the other vCPUs of its stack make room, or may go on. */
COLD int stack_changed(u32 cpu, u32 busy)
{
	struct cpu_domain *d = domain_of(cpu);
	struct cpu_state *own = cpu_state(cpu);
	s32 at = cpu;
	u32 i;

	bpf_for(i, 0, MAX_RING) {
		struct cpu_state *c;

		if (!d || !own)
			break;
		at = d->stack_next;
		if (at == (s32)cpu)
			break;
		c = cpu_state(at);
		if (c && c->online && busy && c->curr_class == CLASS_BEST_EFFORT) {
			count(own, CNT_HELD);
			k_kick_preempt(at);
		} else if (c && c->online && !busy && is_idle(c) && waits_best_effort(at)) {
			k_kick_idle(at);
		}
		d = domain_of(at);
	}
	return 0;
}

/*
 * Is `cpu` a spare vCPU: does another one of its stack, with a lower number, neither straggler nor parked, do
 * the stack's work?
 */
COLD int is_spare(u32 cpu)
{
	struct cpu_domain *d = domain_of(cpu);
	s32 at = cpu;
	u32 i;

	bpf_for(i, 0, MAX_RING) {
		struct cpu_state *c;

		if (!d)
			break;
		at = d->stack_next;
		if (at == (s32)cpu)
			break;
		c = cpu_state(at);
		if (c && c->online && at < (s32)cpu && !(c->side.bans & (TANDEM_BAN_STRAGGLER | TANDEM_BAN_EMPTY)))
			return 1;
		d = domain_of(at);
	}
	return 0;
}

/* For how long a decision has held; before the first one, for long enough to decide anew. */
static __always_inline u64 decided_for_ns(u64 at_ns, u64 now)
{
	return at_ns ? sub_floor_u64(now, at_ns) : TANDEM_BAN_HOLD_NS;
}

/* Is a vCPU that is a straggler by its share to be left to SCHED_IDLE tasks? `others_idle`: some other vCPU is idle. */
static __always_inline bool keeps_others_waiting(struct cpu_state *c, s32 cpu, bool others_idle, u64 now)
{
	bool banned = c->side.bans & TANDEM_BAN_STRAGGLER;

	if (now - c->side.delayed_others_at_ns >= TANDEM_HOLDS_UP_EVERY_NS &&
	    (banned || c->curr_class == CLASS_NORMAL || waiting_normal(cpu, c))) {
		c->side.delayed_others_at_ns = now;
		c->side.delayed_others = delayed_others(c->side.delayed_others, others_idle);
	}
	return holds_others_up(c->side.delayed_others, banned, decided_for_ns(c->side.banned_at_ns, now), c->side.trials_failed);
}

/*
 * A function apart from the loop that calls it: otherwise the verifier would follow each of its paths through
 * every iteration.
 */
COLD u32 decided_bans(u32 cpu, u64 now)
{
	struct cpu_state *c = cpu_state(cpu), *own = cpu_state(bpf_get_smp_processor_id());
	struct straggler_view view = { 0 };
	struct review *r;
	u32 bans;

	if (!c || !own)
		return 0;
	r = &own->side.review;
	bans = 0;
	view.fresh = vcap_fresh(&c->side.model, now);
	view.others_sum = r->shares - (view.fresh ? c->side.model.share : 0);
	view.others = r->counted - (view.fresh ? 1 : 0);
	view.share = c->side.model.share;
	view.samples = c->side.model.samples;
	view.banned = c->side.straggles;
	view.since_ns = decided_for_ns(c->side.straggles_at_ns, now);
	if (is_straggler(&view) != !!c->side.straggles) {
		c->side.straggles = !c->side.straggles;
		c->side.straggles_at_ns = now;
		/* Until the other vCPUs show that they do not wait for it. */
		c->side.delayed_others = TANDEM_HOLDS_UP;
	}
	if (c->side.straggles && keeps_others_waiting(c, cpu, r->idle, now))
		bans |= TANDEM_BAN_STRAGGLER;
	if (uneven_cores && is_spare(cpu))
		bans |= TANDEM_BAN_STACKED;
	return bans;
}

/* A vCPU gets more bans, or some are lifted. Several CPUs may do so at the same time: each counts it if its own bans are the first, or the last. */
static __always_inline void add_bans(struct cpu_state *c, u32 bans)
{
	if (bans && !__sync_fetch_and_or(&c->side.bans, bans))
		__sync_fetch_and_add(&nr_banned, 1);
}

static __always_inline void lift_bans(struct cpu_state *c, u32 bans)
{
	u32 old = __sync_fetch_and_and(&c->side.bans, ~bans);

	if (old && !(old & ~bans))
		__sync_fetch_and_sub(&nr_banned, 1);
}

/* Set the bans of `cpu`, apart from those of parked vCPUs: these may be parked and given back meanwhile. Returns whether it may be used. */
COLD u32 ban(u32 cpu, u32 bans, u64 now)
{
	struct cpu_state *c = cpu_state(cpu);
	u32 old;

	if (!c)
		return 0;
	old = c->side.bans;
	add_bans(c, bans);
	lift_bans(c, ~(bans | TANDEM_BAN_EMPTY));
	if ((bans ^ old) & TANDEM_BAN_STRAGGLER) {
		if (bans & TANDEM_BAN_STRAGGLER) {
			if (c->side.banned_at_ns)
				c->side.trials_failed = trials_failed(c->side.trials_failed, sub_floor_u64(now, c->side.banned_at_ns));
			count_task(CNT_STRAGGLERS, 0);
		}
		c->side.banned_at_ns = now;
	}
	if (bans & ~old && c->tasks[1] + c->tasks[0])
		k_kick_preempt(cpu);
	return !c->side.bans;
}

/*
 * Decide which vCPUs are banned. Called when some vCPU has a new sample. Of the vCPUs that are measured at
 * least the strongest is no straggler, and the first of a stack is no spare. If only parked vCPUs would be
 * left, no other vCPU is banned.
 */
COLD int review_bans(u64 now)
{
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());
	struct review *r;
	u32 i;

	if (!own)
		return 0;
	/*
	 * Sums in a map, which the verifier does not track; as local variables they would make each iteration a
	 * new state.
	 */
	r = &own->side.review;
	__builtin_memset(r, 0, sizeof(*r));
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (!c || !c->online || !vcap_fresh(&c->side.model, now) || c->side.parked)
			continue;
		r->shares += c->side.model.share;
		r->counted++;
		if (!c->side.bans && !c->side.straggles && is_idle(c))
			r->idle++;
	}
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		/* One that is offline keeps its bans, and is counted until they are taken back. */
		if (c && c->online && ban(i, decided_bans(i, now), now))
			r->usable++;
	}
	if (!r->usable) {
		bpf_for(i, 0, nr_cpu_ids) {
			struct cpu_state *c = cpu_state(i);

			if (c)
				lift_bans(c, ~TANDEM_BAN_EMPTY);
		}
	}
	return 0;
}

/* Where a task goes that is to leave a banned vCPU: the least weight per capacity; -1: it has to stay. */
COLD s32 refuge(s32 pid)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	u64 now = k_now(), least = ~0ULL;
	u32 from = scan_from(), i;
	s32 to = -1;

	if (!p)
		return -1;
	if (!k_is_pinned(p)) {
		bpf_for(i, 0, nr_candidates()) {
			u32 cpu = candidate(p, from, i);
			struct cpu_state *c = cpu_state(cpu);
			u64 load;

			if (!c || !c->online || c->side.bans || !k_allowed(p, cpu))
				continue;
			load = load_of(c->weight[1], capacity(c, now));
			if (load < least) {
				least = load;
				to = cpu;
			}
		}
	}
	bpf_task_release(p);
	return to;
}

/* A task waits for `cpu` that did not a moment ago. Without a tick nothing would check whether the running task is still alone. */
COLD int kick_for_waiting(s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (c && c->endless)
		k_kick_preempt(cpu);
	else
		k_kick_idle(cpu);
	return 0;
}

/* Migrate the tasks that wait in a queue of a banned vCPU and may run elsewhere. Called from dispatch. */
COLD int send_away(u32 cpu, u64 queue)
{
	struct cpu_state *own = cpu_state(cpu), *by = mover();
	struct task_struct *p;

	if (!own || !by)
		return 0;
	own->scanned = 0;
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_struct *task;
		s32 to;

		if (own->scanned++ >= SEND_AWAY)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		to = refuge(p->pid);
		if (to >= 0 && join_elsewhere(p->pid, cpu, to)) {
			scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, by->move_key);
			if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, by->move_queue, 0)) {
				count(own, CNT_EVICTED);
				kick_for_waiting(to);
			} else {
				not_taken_over(p->pid);
			}
		}
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* Clear the queues of a banned vCPU. SCHED_IDLE tasks may stay, unless the vCPU is parked. */
static __always_inline void clear_queues(struct cpu_state *c, s32 cpu)
{
	if (waiting_normal(cpu, c)) {
		send_away(cpu, queue_of(cpu, CLASS_NORMAL));
		if (c->late_due_ns)
			send_away(cpu, late_queue_of(cpu));
	}
	if (c->side.parked && waits_best_effort(cpu))
		send_away(cpu, queue_of(cpu, CLASS_BEST_EFFORT));
}

/* Does p, which runs here and is still runnable, have to leave? */
static __always_inline bool evicted(struct task_struct *p, struct task_state *t, struct cpu_state *c)
{
	s32 to;

	if (!c->side.bans || (t->class != CLASS_NORMAL && !c->side.parked))
		return false;
	to = refuge(p->pid);
	if (to < 0)
		return false;
	t->push_to = to;
	count(c, CNT_EVICTED);
	return true;
}

#endif
