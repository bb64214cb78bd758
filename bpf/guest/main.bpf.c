/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The guest scheduler: a fair scheduler that knows that its CPUs are vCPUs.
 *
 * Idea. A guest kernel believes that its CPUs are equal, always there and
 * answer at once. On an overcommitted host none of this holds: one vCPU gets
 * all of its pCPU, its neighbour a third; each is absent for milliseconds at
 * a time; an idle one may take that long to wake. This scheduler measures
 * what every vCPU really gets and acts on it:
 *
 *   measure   steal and absences from the hypervisor's page    vcpu.bpf.h
 *   model     share, mean absence, activity of each vCPU       policy/vcap.h
 *   policy    where a task is done first, whom to relieve      policy/place.h
 *   action    wake-up placement, pulling, moving               place, balance
 *
 * On equal, undisturbed vCPUs it is an ordinary fair scheduler (virtual
 * deadlines, policy/eevdf.h) with the kernel's own idle selection; the cost
 * model is looked at only while some vCPU is contended, or where it was probed
 * that some share a core or a hardware thread that others do not.
 *
 * Invariants. Waiting tasks sit in per-vCPU user queues; a local queue holds
 * at most the task that runs next. A task is charged for the time it ran, not
 * for what the host stole meanwhile. SCHED_IDLE and cpu.idle groups are true
 * best effort, but for a sliver that keeps the kernel's watchdog quiet.
 * Fairness, cgroups, quotas and slices are the core's (bpf/core); this file
 * says when they act.
 *
 * Sources: vSched (EuroSys'25) for the aim; sched_ext for the means.
 *
 * Not here yet: prediction of preemptions.
 */
#include "balance.bpf.h"
#include "dump_ops.bpf.h"
#include "live.bpf.h"
#include "tree_ops.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

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

	if ((contended || uneven_cores) && t) {
		cpu = cheapest_cpu(p, t, prev_cpu);
		idle = scx_bpf_test_and_clear_cpu_idle(cpu);
		if (cpu != prev_cpu) {
			c = cpu_state(cpu);
			if (c)
				count(c, CNT_STEERED);
		}
		/*
		 * Straight to the local queue only where the vCPU is sure to
		 * come: from there nobody could take the task back.
		 */
		c = cpu_state(cpu);
		if (idle && (!c || capacity(c, k_now()) < TANDEM_CONTENDED_SHARE))
			return cpu;
	} else {
		cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	}
	if (!idle && (wake_flags & SCX_WAKE_FORK) && !contended)
		cpu = lightest_cpu(p, cpu);
	c = cpu_state(cpu);
	/* Who waits there already would be passed over by a direct insertion, and so would a quota. */
	if (idle && t && c && !is_fault_target(p) && !waiting_normal(cpu, c) &&
	    !(nr_limits && exhausted(t->group, k_now()))) {
		count(c, CNT_DIRECT);
		k_insert_local(p, base_request_ns, 0);
	}
	return cpu;
}

/* Tell a CPU that something worth its while waits in cpu's queue. */
static __always_inline void announce(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
				     u64 enq_flags)
{
	u64 now = k_now(), burst, deadline;
	s32 idle;

	if (is_idle(c)) {
		k_kick_idle(cpu);
		return;
	}
	if (t->class == CLASS_NORMAL && c->curr_class == CLASS_BEST_EFFORT) {
		k_kick_preempt(cpu);
		return;
	}
	if (!k_is_pinned(p)) {
		/* Somebody idle may take it over; whether that is wise is decided there. */
		idle = uneven || uneven_cores || nr_llcs > 1 ? helper_for(p, cpu) : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle >= 0 && idle != cpu) {
			k_kick_idle(idle);
			return;
		}
	}
	if (!(enq_flags & SCX_ENQ_WAKEUP) || t->class != c->curr_class || k_is_batch(p))
		return;
	/* Those who all sleep soon shall not interrupt each other for being a little shorter. */
	burst = curr_burst(c, now);
	deadline = burst >= TANDEM_LONG_BURST_NS ? t->deadline : t->v + deadline_distance(t->request_ns, t->weight, t->base_ns);
	if (wakeup_preempts(deadline, c->curr_deadline, curr_lead(c, now), sub_floor_u64(now, c->curr_since_ns),
			    burst)) {
		count(c, CNT_PREEMPTED);
		k_kick_preempt(cpu);
	}
}

void BPF_STRUCT_OPS(guest_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = task_state(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu);
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
	/* Threads that serve one CPU: others wait for them. */
	if (k_is_kthread(p) && p->nr_cpus_allowed == 1) {
		k_insert_local(p, base_request_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	/* Those that are still on this CPU the others will find. */
	if (is_leaving() && cpu != (s32)bpf_get_smp_processor_id()) {
		k_insert_local(p, base_request_ns, enq_flags);
		return;
	}
	now = k_now();
	t->parked_at_ns = 0;
	if (nr_limits && may_park(p)) {
		u32 limit = exhausted(t->group, now);

		if (limit) {
			t->push_to = -1;
			park(p, t, limit, now, enq_flags);
			return;
		}
	}
	if (t->push_to >= 0) {
		if (k_allowed(p, t->push_to) && !k_is_pinned(p))
			cpu = t->push_to;
		t->push_to = -1;
	} else if (!(enq_flags & SCX_ENQ_WAKEUP) && queue_cpu(t) == cpu) {
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
	count(c, CNT_QUEUED);
	put_in_order(p, t, c, cpu, now, enq_flags);
	announce(p, t, c, cpu, enq_flags);
}

/* Shall prev go on, or the first of the queue run? Charges prev. */
static __always_inline bool keep(struct task_struct *prev, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u64 first;

	if (t->push_to >= 0 || t->run_cpu != cpu || !k_allowed(prev, cpu))
		return false;
	charge(prev, t, c, cpu, now);
	admission_done(t);
	if (nr_limits && may_park(prev) && exhausted(t->group, now))
		return false;
	reweigh(t, c);
	if (request_done(t))
		renew_request(t, c);
	else if (!prev->scx.slice)
		count(c, CNT_REGRANTED);
	c->curr_deadline = t->deadline;
	if (t->class == CLASS_NORMAL) {
		if (k_peek_key(queue_of(cpu, CLASS_NORMAL), &first) && time_before_ns(first, t->deadline))
			return false;
	} else {
		if (waiting_normal(cpu, c))
			return false;
		if (k_peek_key(queue_of(cpu, CLASS_BEST_EFFORT), &first) && time_before_ns(first, t->deadline))
			return false;
	}
	return true;
}

void BPF_STRUCT_OPS(guest_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *c = cpu_state(cpu);
	bool kept = false, best_effort = false;
	struct task_state *t = NULL;
	u64 now = k_now();
	u32 waiting;

	if (!c)
		return;
	k_learn_migration();
	watch_for_leavers(c, cpu, now);
	if (nr_offline && take_orphan(cpu))
		return;
	waiting = k_waiting(queue_of(cpu, CLASS_BEST_EFFORT));
	if (waiting && idle_floor_due(now, c->idle_floor_at_ns, waiting, watchdog_ns)) {
		c->idle_floor_at_ns = now;
		if (k_take(queue_of(cpu, CLASS_BEST_EFFORT))) {
			count(c, CNT_FLOOR);
			return;
		}
	}
	if (now - c->overdue_at_ns > OVERDUE_EVERY_NS)
		rescue_overdue(cpu);
	if (c->late_due_ns && c->hog_weight < c->late_weight / 2)
		late_no_more(cpu);
	if (c->late_due_ns && !time_before_ns(now, c->late_due_ns) && take_late(c, cpu)) {
		count(c, CNT_DUE);
		return;
	}
	if (prev && k_wants_to_run(prev))
		t = task_state(prev);
	if (t) {
		kept = keep(prev, t, c, cpu, now);
		best_effort = t->class == CLASS_BEST_EFFORT;
	}
	if (c->pull_from >= 0)
		even_out(cpu);
	if (c->unpark_limit) {
		u32 limit = c->unpark_limit;

		c->unpark_limit = 0;
		unpark(limit, cpu, 1);
	}
	if (!kept && (k_take(queue_of(cpu, CLASS_NORMAL)) || (c->late_due_ns && take_late(c, cpu))))
		return;
	/* Own queue is empty, or prev comes first in it. Is there somebody to help? */
	if ((!kept || best_effort) && take_normal(cpu, false))
		return;
	if (kept && !best_effort && contended && !waiting_normal(cpu, c) && take_normal(cpu, true))
		return;
	if (!kept && (k_take(queue_of(cpu, CLASS_BEST_EFFORT)) || take_best_effort(cpu)))
		return;
	/* Nobody else: prev goes on, unless it has to go elsewhere or its quota is used up. */
	if (!t || t->push_to >= 0 || (!kept && nr_limits && may_park(prev) && exhausted(t->group, now)))
		return;
	if (kept)
		count(c, CNT_KEPT);
	take_turn(prev, t, c, cpu, now);
}

void BPF_STRUCT_OPS(guest_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p), target;
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now(), first;
	bool company;

	if (!t || !c)
		return;
	observe(c, cpu, now, WAS_BUSY);
	charge(p, t, c, cpu, now);
	rebook_work(t, c);
	reweigh(t, c);
	if (balance_tick(c, cpu, now))
		k_set_slice(p, 0);
	if (nr_limits && may_park(p) && exhausted(t->group, now)) {
		k_set_slice(p, 0);
		return;
	}
	company = waiting_normal(cpu, c);
	if (t->class == CLASS_BEST_EFFORT) {
		if (company || request_done(t))
			k_set_slice(p, 0);
		return;
	}
	if (company && now - c->curr_since_ns >= TANDEM_MIN_RUN_NS && k_peek_key(queue_of(cpu, CLASS_NORMAL), &first) &&
	    time_before_ns(first, t->deadline)) {
		k_set_slice(p, 0);
		return;
	}
	company = company || k_waiting(queue_of(cpu, CLASS_BEST_EFFORT));
	if (request_done(t)) {
		if (company) {
			k_set_slice(p, 0);
			return;
		}
		renew_request(t, c);
		c->curr_deadline = t->deadline;
		if (contended && rescue_due(cpu)) {
			k_set_slice(p, 0);
			return;
		}
	} else if (company && !c->run_until_ns) {
		/* It has got company since its turn began: from now on the turn's end matters. */
		end_turn_at(c, cpu, now + remaining(t), now);
	}
	/* Nothing can be much stronger than a vCPU that is nearly whole. */
	if (!(uneven || uneven_cores) || !push_gains(capacity_beside(c, cpu, now), TANDEM_SCALE))
		return;
	if (k_is_pinned(p) || now - t->pushed_at_ns < TANDEM_PUSH_REST_NS)
		return;
	target = stronger_idle_cpu(p, cpu);
	if (target < 0)
		return;
	t->push_to = target;
	t->pushed_at_ns = now;
	count(c, CNT_PUSHED);
	k_set_slice(p, 0);
}

void BPF_STRUCT_OPS(guest_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = task_state(p);

	if (t) {
		group_runnable(p, t);
		t->mean_burst_ns = ewma_u64(t->mean_burst_ns, min_u64(t->burst_ns, TANDEM_BURST_MAX_NS), 2);
		t->burst_ns = 0;
		t->runnable_at_ns = k_now();
	}
}

void BPF_STRUCT_OPS(guest_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now();

	if (!t || !c)
		return;
	observe(c, cpu, now, is_idle(c) ? WAS_WOKEN : WAS_BUSY);
	if (queue_cpu(t) == cpu)
		reweigh(t, c);
	else
		rejoin(p, t, cpu, now);
	/*
	 * Whoever is served by the clock on the wall is no measure for the
	 * others, and who is alone none at all: its debt would be forgotten
	 * before those come back whom it owes.
	 */
	if (!t->was_late && c->tasks[class_index(t->class)] > 1)
		c->clock[class_index(t->class)] =
			clock_anchored(c->clock[class_index(t->class)], t->v, t->request_ns, t->weight, t->base_ns);
	t->was_late = 0;
	t->run_cpu = cpu;
	t->push_to = -1;
	t->parked_at_ns = 0;
	t->charged_at_ns = now;
	t->charged_steal_ns = c->seen_steal_ns;
	c->curr_class = t->class;
	c->curr_deadline = t->deadline;
	c->curr_since_ns = now;
	c->curr_charged_at_ns = now;
	c->curr_v = t->v;
	c->curr_weight = t->weight;
	c->curr_burst_ns = t->burst_ns;
	quota_running(t, true);
	/* Without timers the slice that it was queued with will do: ticks are all that looks at it. */
	if ((slice_timers_enabled || nr_limits) && cpu == bpf_get_smp_processor_id())
		take_turn(p, t, c, cpu, now);
}

void BPF_STRUCT_OPS(guest_stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);

	if (!t || !c)
		return;
	/* Property changes stop a running task from another CPU: its clock and steal are not exact here. */
	if (cpu == bpf_get_smp_processor_id()) {
		u64 now = k_now();

		observe(c, cpu, now, WAS_BUSY);
		charge(p, t, c, cpu, now);
		turn_ended(c, now);
	}
	t->run_cpu = -1;
	c->curr_charged_at_ns = 0;
	c->run_until_ns = 0;
	if (t->run_limit || t->admitted)
		c->unpark_limit = t->admitted ? t->admitted : t->run_limit;
	admission_done(t);
	quota_running(t, false);
}

void BPF_STRUCT_OPS(guest_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	group_quiescent(t);
	admission_done(t);
	if (!t->stake)
		return;
	leave(t, k_now());
	/* After a sleep a task asks anew. */
	t->used_ns = 0;
	t->owed_ns >>= 1;
}

void BPF_STRUCT_OPS(guest_update_idle, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	/* What comes after being idle, a task or nothing, is seen elsewhere. */
	if (!c || !idle)
		return;
	observe(c, cpu, k_now(), is_idle(c) ? WAS_WOKEN : WAS_BUSY);
	c->curr_class = CLASS_NONE;
	rest_from_balancing(c);
	/* Somebody may have queued a task between the last look and now, and would have seen a busy CPU. */
	if (c->online && waiting_normal(cpu, c))
		k_kick_idle(cpu);
}

/* The kernel takes a task off its queue to change its weight; this is for one that is in ours all the same. */
void BPF_STRUCT_OPS(guest_set_weight, struct task_struct *p, u32 weight)
{
	struct task_state *t = task_state(p);

	if (!t || !t->stake)
		return;
	leave(t, k_now());
	join(p, t, t->left_cpu, k_now());
}

bool BPF_STRUCT_OPS(guest_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_state *t = task_state(from);

	/* The rest of the request is given up: the deadline moves behind the next one. */
	if (t) {
		t->used_ns = t->request_ns;
		k_set_slice(from, 0);
	}
	return false;
}

void BPF_STRUCT_OPS(guest_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	struct cpu_state *c = cpu_state(cpu);

	/* A higher class took the CPU: busy, but not with us. */
	if (c)
		c->curr_class = CLASS_NORMAL;
	scx_bpf_reenqueue_local();
}

s32 BPF_STRUCT_OPS_SLEEPABLE(guest_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_state *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->left_cpu = -1;
	t->run_cpu = -1;
	t->push_to = -1;
	t->weight = TANDEM_UNIT;
	t->class = CLASS_NORMAL;
	t->charged_ran_ns = k_ran_ns(p);
	t->request_ns = base_request_ns;
	t->base_ns = base_request_ns;
	t->group = cgroups_enabled && bpf_core_field_exists(args->cgroup) && args->cgroup ? group_of(args->cgroup)
											  : ROOT_GROUP;
	/* Nothing is known of a new task: neither a short one nor a hog. */
	t->mean_burst_ns = NSEC_PER_MSEC_;
	return 0;
}

void BPF_STRUCT_OPS(guest_disable, struct task_struct *p)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	group_quiescent(t);
	admission_done(t);
	if (t->stake)
		leave(t, k_now());
}

/* On SMT siblings with different cookies: who is behind by more goes first. */
bool BPF_STRUCT_OPS(guest_core_sched_before, struct task_struct *a, struct task_struct *b)
{
	struct task_state *ta = task_state(a), *tb = task_state(b);
	struct cpu_state *ca, *cb;

	if (!ta || !tb || !ta->stake || !tb->stake)
		return a->scx.runnable_at < b->scx.runnable_at;
	ca = cpu_state(queue_cpu(ta));
	cb = cpu_state(queue_cpu(tb));
	if (!ca || !cb)
		return false;
	return time_before_ns(ta->v - ca->clock[class_index(ta->class)], tb->v - cb->clock[class_index(tb->class)]);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(guest_init)
{
	u64 now = k_now();
	s32 err;
	u32 i;

	err = groups_init();
	if (!err)
		err = backlog_init();
	if (!err)
		err = slices_init();
	if (err) {
		scx_bpf_error("cannot set up timers: error %d", err);
		return err;
	}

	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (!c)
			return -EINVAL;
		c->give_to = -1;
		c->pull_from = -1;
		c->seen_at_ns = now;
		c->seen_steal_ns = steal_of(i);
		c->seen_returns = returns_of(i);
		c->idle_floor_at_ns = now;
		c->curr_class = CLASS_NONE;
		if (!c->online)
			__sync_fetch_and_add(&nr_offline, 1);
		err = scx_bpf_create_dsq(queue_of(i, CLASS_NORMAL), -1);
		if (!err)
			err = scx_bpf_create_dsq(late_queue_of(i), -1);
		if (!err)
			err = scx_bpf_create_dsq(queue_of(i, CLASS_BEST_EFFORT), -1);
		if (err) {
			scx_bpf_error("cannot create the queues of CPU %d: error %d", i, err);
			return err;
		}
	}
	return 0;
}

void BPF_STRUCT_OPS(guest_exit, struct scx_exit_info *ei)
{
	UEI_RECORD(uei, ei);
}

SCX_OPS_DEFINE(tandem_guest,
	       .select_cpu		= (void *)guest_select_cpu,
	       .enqueue			= (void *)guest_enqueue,
	       .dispatch		= (void *)guest_dispatch,
	       .tick			= (void *)guest_tick,
	       .runnable		= (void *)guest_runnable,
	       .running			= (void *)guest_running,
	       .stopping		= (void *)guest_stopping,
	       .quiescent		= (void *)guest_quiescent,
	       .update_idle		= (void *)guest_update_idle,
	       .set_weight		= (void *)guest_set_weight,
	       .yield			= (void *)guest_yield,
	       .cpu_release		= (void *)guest_cpu_release,
	       .cpu_online		= (void *)guest_cpu_online,
	       .cpu_offline		= (void *)guest_cpu_offline,
	       .init_task		= (void *)guest_init_task,
	       .disable			= (void *)guest_disable,
	       .core_sched_before	= (void *)guest_core_sched_before,
	       .cgroup_init		= (void *)guest_cgroup_init,
	       .cgroup_exit		= (void *)guest_cgroup_exit,
	       .cgroup_move		= (void *)guest_cgroup_move,
	       .cgroup_set_weight	= (void *)guest_cgroup_set_weight,
	       .cgroup_set_bandwidth	= (void *)guest_cgroup_set_bandwidth,
	       .cgroup_set_idle		= (void *)guest_cgroup_set_idle,
	       .dump			= (void *)guest_dump,
	       .dump_cpu		= (void *)guest_dump_cpu,
	       .dump_task		= (void *)guest_dump_task,
	       .init			= (void *)guest_init,
	       .exit			= (void *)guest_exit,
	       .flags			= SCX_OPS_ENQ_LAST | SCX_OPS_KEEP_BUILTIN_IDLE,
	       .timeout_ms		= 20000,
	       .name			= "tandem_guest");
