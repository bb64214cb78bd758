/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The host scheduler: a fair scheduler that knows which threads are vCPUs.
 *
 * Idea. A KVM host schedules vCPU threads as if they were tasks. It stacks two vCPUs of a VM on one pCPU, it throttles one where it
 * holds a lock that others wait for, and under sched_ext a vCPU that yields to a sibling yields to nobody. This scheduler knows from
 * KVM itself who is a vCPU and of which VM.
 *
 *   who       the thread that calls KVM's run function                     vm.bpf.h
 *   place     apart from siblings, while another pCPU is as good           place.bpf.h
 *   prompt    a vCPU that sleeps often, before one that computes           policy/eevdf.h
 *   yield     to the sibling that KVM names, on the yielder's own time     yield.bpf.h
 *   I/O       a vCPU that is interrupted comes first, and its VM pays      boost.bpf.h, debt.bpf.h
 *   inside    what the guest runs, read in its memory                      inside.bpf.h, critical.bpf.h
 *   quota     a vCPU out of quota stops where it holds no kernel lock      safe.bpf.h
 *   RT, DL    what higher classes take of a pCPU makes it weaker           policy/host/away.h
 *   order     by virtual deadline within hierarchical weights and quotas   bpf/core
 *   others    emulator, vhost and all other threads have an earlier deadline than vCPUs, and so come first within their weight
 *
 * What it does not do: ask anything of guests.
 */
#include "side.bpf.h"
#include "place.bpf.h"
#include "boost.bpf.h"
#include "critical.bpf.h"
#include "posted.bpf.h"
#include "../core/ops.bpf.h"
#include "../core/run.bpf.h"
#include "../core/serve.bpf.h"
#include "../core/wakeup.bpf.h"

char _license[] SEC("license") = "GPL";

s32 BPF_STRUCT_OPS(host_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_state *t = task_state(p);
	struct cpu_state *c;
	bool idle = false;
	s32 cpu;

	cpu = k_any_idle() ? scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle) : prev_cpu;
	c = cpu_state(cpu);
	if (!idle) {
		/* No other pCPU would pull a light task from where a real-time task leaves little. */
		if ((wake_flags & SCX_WAKE_FORK) || (c && has_little_left(c, k_now())))
			cpu = lightest_cpu(p, cpu);
		return t && siblings_at(t, cpu) ? unstacked(p, t, cpu) : cpu;
	}
	/* A direct insertion would pass over tasks that wait there already, and over a quota. */
	if (t && c && !waiting_normal(cpu, c) && !(nr_limits && exhausted(t->group, k_now()))) {
		count_task(CNT_DIRECT, p->pid);
		k_insert_local(p, c->base_request_ns, 0);
	}
	return cpu;
}

/* What becomes of a task that is queued. */
enum fate {
	RUNS_SOON,	/* on an idle pCPU */
	PREEMPTS,	/* the current task */
	WAITS,
};

/*
 * Does a prompt task that has joined the queue, whose V was `clock`, come before one that computes there, and before
 * all that wait?
 */
static __always_inline bool comes_promptly(const struct task_state *t, const struct cpu_state *c, s32 cpu, u64 clock)
{
	return t->class == CLASS_NORMAL && !t->patient && is_prompt(t) && comes_first(t, c, cpu, SCX_DSQ_LOCAL_ON | cpu) &&
	       prompt_preempts(clock, t->v, side_wake_request_ns(t), t->weight, c->curr_base_ns, c->curr_weight);
}

/*
 * As in the guest: does p preempt the current task of `cpu`? (`prompt`: one that computes, whatever the deadlines.)
 * Otherwise an idle pCPU that may pull it is kicked.
 */
static __always_inline enum fate announce(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 enq_flags, bool prompt,
					  u64 now)
{
	struct cpu_state *other;
	s32 idle;

	if (begins_anew(p, t, c, cpu, enq_flags))
		return RUNS_SOON;
	if (is_idle(c) && !taken_when_idle(c, now)) {
		if (!(enq_flags & SCX_ENQ_WAKEUP) || cpu != scx_bpf_task_cpu(p))
			k_kick_idle(cpu);
		return RUNS_SOON;
	}
	if (c->endless || (t->class == CLASS_NORMAL && c->curr_class == CLASS_BEST_EFFORT))
		return PREEMPTS;
	if (!k_is_pinned(p) && k_any_idle()) {
		idle = idle_for(p, t, c, cpu);
		other = cpu_state(idle);
		if (other) {
			/* On a large host it would not find the task by itself. */
			if (idle != cpu)
				other->side.pull_first = cpu + 1;
			k_kick_idle(idle);
			return RUNS_SOON;
		}
	}
	/* A new task is not woken up, but whoever started it waits. EEVDF lets it preempt, too. */
	if (!k_ran_ns(p))
		enq_flags |= SCX_ENQ_WAKEUP;
	/* A vCPU that does I/O sleeps for a moment many times per request, and each time a CPU-bound one begins to run. */
	return preempts_current(p, t, c, enq_flags, true, prompt, now) ? PREEMPTS : WAITS;
}

/*
 * May a task that preempts the current one of another pCPU go to its local DSQ? The kernel interrupts that pCPU then: no kick, for which this
 * one would have to interrupt itself first, and no pass through dispatch there. Others cannot pull it from there, which in a guest
 * matters: a vCPU may be preempted for long. Not while a higher class has that pCPU.
 */
static __always_inline bool takes_over_there(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu)
{
	if (cpu != scx_bpf_task_cpu(p) || !c->online || c->side.away_since_ns)
		return false;
	return comes_first(t, c, cpu, SCX_DSQ_LOCAL_ON | cpu);
}

/*
 * Does a task that waits in this queue wait behind one that runs alone, and will not sleep soon? The slice of such a one has no
 * end, and what is left of its request would last until the next tick. Not if the one that begins to wait has run here until now: then
 * another one is about to run, and ends its own slice.
 */
static __always_inline bool waits_behind_lone(const struct task_state *t, const struct cpu_state *c, u64 now)
{
	return slice_timers_enabled && c->curr_charged_at_ns && !c->run_until_ns && t->class == c->curr_class &&
	       curr_burst(c, now) >= long_burst_ns(c->base_request_ns);
}

/* Then the slice of that one ends with its request. Returns false where only a look at the queue can see to it: timers are set on their own CPU. */
static __always_inline bool ends_with_request(struct cpu_state *c, s32 cpu, u64 now)
{
	if (cpu != (s32)bpf_get_smp_processor_id() || c->curr_pid != k_current_pid())
		return false;
	end_turn_at(c, cpu, now + curr_remaining_ns(c, now), now);
	return c->timer_at_ns != 0;
}

/* p passes by the queues, and the current task of its CPU gives way. */
static __always_inline void runs_next(struct task_struct *p, const struct task_state *t, struct cpu_state *c, u64 slice_ns, u64 enq_flags)
{
	c->side.light_next = is_light(t->mean_burst_ns);
	k_insert_local(p, slice_ns, enq_flags | SCX_ENQ_PREEMPT);
}

void BPF_STRUCT_OPS(host_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = task_state(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu);
	enum fate fate;
	bool apart = false;
	u64 clock, now;
	s64 owed_ns;
	u32 limit, why;

	if (!t || !c || (is_leaving() && cpu != (s32)bpf_get_smp_processor_id())) {
		k_insert_local(p, base_request_ns, enq_flags);
		return;
	}
	now = k_now();
	if (t->side.comes_next)
		t->side.comes_next = TURN_OWN;
	/* The next turn may have been yielded to another task: that is dispatch's to keep. */
	if (!c->side.yield_to && serves_at_once(p, t, c, cpu, enq_flags, now)) {
		runs_next(p, t, c, c->base_request_ns, enq_flags);
		return;
	}
	t->throttled_at_ns = 0;
	limit = out_of_quota(p, t, now);
	if (limit) {
		t->push_to = -1;
		throttle(p, t, limit, now, enq_flags);
		return;
	}
	if (!(enq_flags & SCX_ENQ_WAKEUP) && queue_cpu(t) == cpu && !begins_anew(p, t, c, cpu, enq_flags)) {
		s32 to = push_task(p, t, c, cpu, now);

		if (to == cpu && !k_is_pinned(p) && siblings_at(t, cpu)) {
			to = unstacked(p, t, cpu);
			apart = true;
		}
		cpu = to;
	}
	c = cpu_state(cpu);
	if (!c)
		return;
	/*
	 * Before it joins: what the current task has run since its last charge it has run without this one, and V moves
	 * towards it.
	 */
	clock = clock_now(c, class_index(CLASS_NORMAL), now);
	owed_ns = t->owed_ns;
	lines_up(p, t, c, cpu, now);
	/* What others have missed is made up for only where load balance moves a task. */
	if (apart)
		t->owed_ns = owed_ns;
	/* Nothing is known of a new task: a program that forks all the time would leave nothing to one that computes. */
	fate = announce(p, t, c, cpu, enq_flags, k_ran_ns(p) && comes_promptly(t, c, cpu, clock), now);
	if (fate == PREEMPTS && !c->side.yield_to && (takes_over(p, t, c, cpu) || takes_over_there(p, t, c, cpu))) {
		runs_next(p, t, c, remaining(t), enq_flags);
		return;
	}
	why = fate == RUNS_SOON ? TURN_OWN : out_of_turn(p, t, c, cpu, enq_flags, now);
	if (why) {
		t->side.comes_next = why;
		t->was_late = 1;
		runs_next(p, t, c, remaining(t), enq_flags);
		return;
	}
	put_in_order(p, t, c, cpu, now, enq_flags);
	if (fate != RUNS_SOON)
		was_missed(p, t, cpu, enq_flags, now);
	/* The last task there may have gone to sleep meanwhile, and that pCPU looked into its queue before the kernel put p there. */
	if (fate == WAITS && cpu != scx_bpf_task_cpu(p))
		k_kick_idle(cpu);
	if (fate == PREEMPTS || (fate == WAITS && waits_behind_lone(t, c, now) && !ends_with_request(c, cpu, now)))
		k_kick_preempt(cpu);
}

/* Shall prev go on, or the first of the queue run? Charges prev. */
static __always_inline bool keep(struct task_struct *prev, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	if (t->run_cpu != cpu || !k_allowed(prev, cpu))
		return false;
	charge(prev, t, c, cpu, now);
	turn_ended(c, now);
	admission_done(t);
	if (out_of_quota(prev, t, now))
		return false;
	if (t->class == CLASS_BEST_EFFORT && waiting_normal(cpu, c))
		return false;
	return is_first(prev, t, c, cpu);
}

void BPF_STRUCT_OPS(host_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *c = cpu_state(cpu);
	struct task_state *t = NULL;
	u64 now = k_now();
	bool kept = false;

	if (!c)
		return;
	k_learn_migration();
	k_learn_reading();
	watch_for_offline(c, cpu, now);
	if (c->throttled_limit)
		look_after_throttled(now);
	if (c->side.forward_to)
		claim_forward(cpu, c->curr_pid);
	/* A claim is for the next turn, which is no longer than a request: who is overdue comes after it. */
	if (c->side.yield_to && serve_yielded(cpu)) {
		c->side.yields_in_row++;
		return;
	}
	c->side.yields_in_row = 0;
	if (serve_overdue(c, cpu, now))
		return;
	if (prev && k_wants_to_run(prev))
		t = task_state(prev);
	if (c->side.boost_to && ((t && holds(prev, t, c, cpu, now)) || serve_boosted(cpu)))
		return;
	if (t)
		kept = keep(prev, t, c, cpu, now);
	if (t && !kept && (extends(prev, t, c, cpu, now) || holds(prev, t, c, cpu, now)))
		return;
	if (c->pull_from >= 0)
		pull_for_balance(cpu);
	unthrottle_next(c, cpu);
	if (!kept && (k_take(queue_of(cpu, CLASS_NORMAL)) || (c->late_due_ns && take_late(c, cpu))))
		return;
	nobody_waits_at(cpu, c);
	if ((!kept || t->class == CLASS_BEST_EFFORT) && take_normal(cpu, c))
		return;
	if (!kept && ((may_wait(c, CLASS_BEST_EFFORT) && k_take(queue_of(cpu, CLASS_BEST_EFFORT))) || take_best_effort(cpu)))
		return;
	if (!t || (!kept && out_of_quota(prev, t, now)) || waits_in_local_dsq())
		return;
	if (kept)
		count(c, CNT_KEPT);
	own_turn_goes_on(c, now);
	goes_on(prev, t, c, cpu, now);
	looks_soon(c, cpu, now);
	looks_for_posted(c, cpu, now);
}

/*
 * For how long does a task run before a tick lets one with an earlier deadline run instead? With timers a slice of the usual length ends on
 * time, and a task that did not preempt when it woke up waits for that. (Measured with a barrier program in two VMs on two pCPUs: ticks ended
 * 310 slices per second, a fifth of all switches, and there were 0.88 times as many rounds.)
 */
static __always_inline u64 tick_preempts_after_ns(const struct cpu_state *c)
{
	u64 least = min_run_ns(c->base_request_ns);

	return slice_timers_enabled ? max_u64(least, min_u64(c->base_request_ns, TANDEM_REQUEST_NS)) : least;
}

void BPF_STRUCT_OPS(host_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now();

	if (!t || !c)
		return;
	if (c->throttled_limit)
		look_after_throttled(now);
	charge_at_tick(p, t, c, cpu, now);
	ends_at_tick(p, t, c, cpu, now, tick_preempts_after_ns(c), true, true);
}

void BPF_STRUCT_OPS(host_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now();

	if (!t || !c)
		return;
	side_cpu_back(c, now);
	if (c->side.pull_first)
		c->side.pull_first = 0;
	if (c->side.light_next)
		c->side.light_next = 0;
	looks_for_vcpu(t, c);
	turn_begins(p, t, c, cpu, now);
	turn_lasts(p, t, c, cpu, now);
	yield_served(p, t, c, cpu, now);
	turn_of_vcpu(p, t, c, cpu, now);
	looks_soon(c, cpu, now);
	looks_for_posted(c, cpu, now);
	if (t->side.on_debt) {
		t->side.on_debt = 0;
		count(c, CNT_ON_DEBT);
	}
}

void BPF_STRUCT_OPS(host_stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);

	if (!t || !c)
		return;
	/* A property change stops a running task from another CPU: its clock is not exact here. */
	if (cpu == bpf_get_smp_processor_id())
		turn_pauses(p, t, c, cpu, k_now());
	turn_ends(p, t, c, runnable);
	turn_of_vcpu_ends(t, c, runnable);
}

void BPF_STRUCT_OPS(host_update_idle, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return;
	if (!idle) {
		leaves_idle(c, k_now());
		return;
	}
	side_cpu_back(c, k_now());
	c->side.light_next = 0;
	c->curr_class = CLASS_NONE;
	rests(c, cpu);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(host_init)
{
	u64 now = k_now();
	s32 err = core_init(now);
	u32 i;

	if (!err)
		err = posted_init();
	if (err)
		return err;
	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (!c)
			return -EINVAL;
		c->side.share = TANDEM_SCALE;
		c->side.share_at_ns = now;
	}
	return 0;
}

SCX_OPS_DEFINE(tandem_host, CORE_OPS,
	       .select_cpu		= (void *)host_select_cpu,
	       .enqueue			= (void *)host_enqueue,
	       .dispatch		= (void *)host_dispatch,
	       .tick			= (void *)host_tick,
	       .running			= (void *)host_running,
	       .stopping		= (void *)host_stopping,
	       .update_idle		= (void *)host_update_idle,
	       .yield			= (void *)host_yield,
	       .init			= (void *)host_init,
	       .name			= "tandem_host");
