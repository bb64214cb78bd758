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
 * model is looked at only while some vCPU is contended.
 *
 * Invariants. Waiting tasks sit in per-vCPU user queues; a local queue holds
 * at most the task that runs next. A task is charged for the time it ran, not
 * for what the host stole meanwhile. SCHED_IDLE is true best effort, but for
 * a sliver that keeps the kernel's watchdog quiet.
 *
 * Sources: vSched (EuroSys'25) for the aim; sched_ext for the means.
 *
 * Not here yet: cgroup weights and quotas (the daemon refuses to load where
 * they are in use), slices below the tick, prediction of preemptions.
 */
#include "balance.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

/* Slice of a task without company. */
#define ALONE_SLICE_NS (100 * NSEC_PER_MSEC_)

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

	if (contended && t) {
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
	/* Who waits there already would be passed over by a direct insertion. */
	if (idle && t && !is_fault_target(p) && !k_waiting(queue_of(cpu, CLASS_NORMAL))) {
		c = cpu_state(cpu);
		if (c)
			count(c, CNT_DIRECT);
		k_insert_local(p, base_request_ns, 0);
	}
	return cpu;
}

/* Tell a CPU that something worth its while waits in cpu's queue. */
static __always_inline void announce(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu,
				     u64 enq_flags)
{
	u64 now = k_now();
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
		idle = uneven ? helper_for(p, cpu) : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle >= 0 && idle != cpu) {
			k_kick_idle(idle);
			return;
		}
	}
	if ((enq_flags & SCX_ENQ_WAKEUP) && t->class == c->curr_class && !k_is_batch(p) &&
	    wakeup_preempts(t->deadline, c->curr_deadline, sub_floor_u64(now, c->curr_since_ns))) {
		count(c, CNT_PREEMPTED);
		k_kick_preempt(cpu);
	}
}

void BPF_STRUCT_OPS(guest_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_state *t = task_state(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c;

	if (!t) {
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
	if (t->push_to >= 0) {
		if (k_allowed(p, t->push_to) && !k_is_pinned(p))
			cpu = t->push_to;
		t->push_to = -1;
	}
	c = cpu_state(cpu);
	if (!c) {
		k_insert_local(p, base_request_ns, enq_flags);
		return;
	}
	rejoin(p, t, cpu);
	if (t->used_ns >= t->request_ns)
		renew_request(t);
	count(c, CNT_QUEUED);
	k_insert_ordered(p, queue_of(cpu, t->class), sub_floor_u64(t->request_ns, t->used_ns), t->deadline, enq_flags);
	announce(p, t, c, cpu, enq_flags);
}

/* Shall prev go on, or the first of the queue run? Charges prev and, if it goes on, gives it a slice. */
static __always_inline bool keep(struct task_struct *prev, struct cpu_state *c, s32 cpu, u64 now)
{
	struct task_state *t = task_state(prev);
	u64 first;

	if (!t || t->push_to >= 0 || t->run_cpu != cpu || !k_allowed(prev, cpu))
		return false;
	charge(t, c, cpu, now);
	if (t->used_ns >= t->request_ns)
		renew_request(t);
	else if (!prev->scx.slice)
		count(c, CNT_REGRANTED);
	c->curr_deadline = t->deadline;
	if (t->class == CLASS_NORMAL) {
		if (k_peek_key(queue_of(cpu, CLASS_NORMAL), &first) && time_before_ns(first, t->deadline))
			return false;
	} else {
		if (k_waiting(queue_of(cpu, CLASS_NORMAL)))
			return false;
		if (k_peek_key(queue_of(cpu, CLASS_BEST_EFFORT), &first) && time_before_ns(first, t->deadline))
			return false;
	}
	return true;
}

void BPF_STRUCT_OPS(guest_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_state *c = cpu_state(cpu);
	struct task_state *t;
	bool kept = false, best_effort = false;
	u64 now = k_now();
	u32 waiting;

	if (!c)
		return;
	k_learn_migration();
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
	if (prev && k_wants_to_run(prev)) {
		kept = keep(prev, c, cpu, now);
		best_effort = k_is_best_effort(prev);
	}
	if (!kept && k_take(queue_of(cpu, CLASS_NORMAL)))
		return;
	/* Own queue is empty, or prev comes first in it. Is there somebody to help? */
	if ((!kept || best_effort) && take_normal(cpu, false))
		return;
	if (kept && !best_effort && contended && !k_waiting(queue_of(cpu, CLASS_NORMAL)) && take_normal(cpu, true))
		return;
	if (!kept && (k_take(queue_of(cpu, CLASS_BEST_EFFORT)) || take_best_effort(cpu)))
		return;
	if (!prev || !k_wants_to_run(prev))
		return;
	t = task_state(prev);
	if (!t || t->push_to >= 0)
		return;
	if (kept)
		count(c, CNT_KEPT);
	/*
	 * Whoever is alone gets long slices: the tick looks for company, and
	 * a trip through here every few milliseconds would only cost.
	 */
	if (kept && !k_waiting(queue_of(cpu, CLASS_NORMAL)) && !k_waiting(queue_of(cpu, CLASS_BEST_EFFORT)))
		k_set_slice(prev, ALONE_SLICE_NS);
	else
		k_set_slice(prev, max_u64(sub_floor_u64(t->request_ns, t->used_ns), TANDEM_REQUEST_MIN_NS));
}

void BPF_STRUCT_OPS(guest_tick, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p), target;
	struct task_state *t = task_state(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = k_now();

	if (!t || !c)
		return;
	observe(c, cpu, now, WAS_BUSY);
	charge(t, c, cpu, now);
	rebook_work(t, c);
	if (t->class == CLASS_BEST_EFFORT) {
		if (k_waiting(queue_of(cpu, CLASS_NORMAL)) || t->used_ns >= t->request_ns)
			k_set_slice(p, 0);
		return;
	}
	if (t->used_ns >= t->request_ns) {
		if (k_waiting(queue_of(cpu, CLASS_NORMAL)) || k_waiting(queue_of(cpu, CLASS_BEST_EFFORT))) {
			k_set_slice(p, 0);
			return;
		}
		renew_request(t);
		c->curr_deadline = t->deadline;
		if (contended && rescue_due(cpu)) {
			k_set_slice(p, 0);
			return;
		}
	}
	/* Nothing can be much stronger than a vCPU that is nearly whole. */
	if (!uneven || !push_gains(capacity(c, now), TANDEM_SCALE) || k_is_pinned(p) || now - t->pushed_at_ns < TANDEM_PUSH_REST_NS)
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
		t->mean_burst_ns = ewma_u64(t->mean_burst_ns, min_u64(t->burst_ns, TANDEM_BURST_MAX_NS), 2);
		t->burst_ns = 0;
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
	if (t->queue_cpu < 0)
		join(p, t, cpu);
	else
		rejoin(p, t, cpu);
	t->run_cpu = cpu;
	t->push_to = -1;
	t->charged_at_ns = now;
	t->charged_steal_ns = c->seen_steal_ns;
	c->curr_class = t->class;
	c->curr_deadline = t->deadline;
	c->curr_since_ns = now;
	c->curr_burst_ns = t->burst_ns;
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
		charge(t, c, cpu, now);
	}
	t->run_cpu = -1;
}

void BPF_STRUCT_OPS(guest_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_state *t = task_state(p);

	if (!t || t->queue_cpu < 0)
		return;
	leave(t);
	/* After a sleep a task asks anew. */
	t->used_ns = 0;
}

void BPF_STRUCT_OPS(guest_update_idle, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return;
	if (!idle)
		return;	/* what comes first, a task or nothing, is seen elsewhere */
	observe(c, cpu, k_now(), is_idle(c) ? WAS_WOKEN : WAS_BUSY);
	c->curr_class = CLASS_NONE;
	/*
	 * Somebody may have queued a task between the last look and now, and
	 * would have seen a busy CPU.
	 */
	if (k_waiting(queue_of(cpu, CLASS_NORMAL)))
		k_kick_idle(cpu);
}

void BPF_STRUCT_OPS(guest_set_weight, struct task_struct *p, u32 weight)
{
	struct task_state *t = task_state(p);
	struct cpu_state *c;
	u32 new_weight, class;
	u64 old;

	if (!t)
		return;
	class = k_is_best_effort(p) ? CLASS_BEST_EFFORT : CLASS_NORMAL;
	new_weight = task_weight(p, class);
	if (t->queue_cpu < 0 || class != t->class)
		return;
	c = cpu_state(t->queue_cpu);
	if (!c)
		return;
	old = t->weight;
	/* What it is owed in CPU time stays the same: lag and the rest of the request are rescaled. */
	if (time_before_ns(t->v, c->clock[class_index(class)]))
		t->v = c->clock[class_index(class)] -
		       (c->clock[class_index(class)] - t->v) * old / (new_weight ? new_weight : 1);
	t->weight = new_weight;
	__sync_fetch_and_add(&c->weight[class_index(class)], (u64)new_weight - old);
	t->deadline = t->v + virtual_ns(sub_floor_u64(t->request_ns, t->used_ns), new_weight);
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

void BPF_STRUCT_OPS(guest_cpu_online, s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || c->online)
		return;
	c->online = 1;
	c->model.updated_ns = 0;
	__sync_fetch_and_sub(&nr_offline, 1);
}

void BPF_STRUCT_OPS(guest_cpu_offline, s32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || !c->online)
		return;
	c->online = 0;
	c->curr_class = CLASS_NONE;
	__sync_fetch_and_add(&nr_offline, 1);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(guest_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_state *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->queue_cpu = -1;
	t->left_cpu = -1;
	t->run_cpu = -1;
	t->push_to = -1;
	t->weight = TANDEM_WEIGHT_NICE_0;
	t->class = CLASS_NORMAL;
	t->request_ns = base_request_ns;
	/* Nothing is known of a new task: neither a short one nor a hog. */
	t->mean_burst_ns = NSEC_PER_MSEC_;
	return 0;
}

void BPF_STRUCT_OPS(guest_disable, struct task_struct *p)
{
	struct task_state *t = task_state(p);

	if (t && t->queue_cpu >= 0)
		leave(t);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(guest_init)
{
	u64 now = k_now();
	u32 i;

	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);
		s32 err;

		if (!c)
			return -EINVAL;
		c->seen_at_ns = now;
		c->seen_steal_ns = steal_of(i);
		c->idle_floor_at_ns = now;
		c->curr_class = CLASS_NONE;
		if (!c->online)
			__sync_fetch_and_add(&nr_offline, 1);
		err = scx_bpf_create_dsq(queue_of(i, CLASS_NORMAL), -1);
		if (!err)
			err = scx_bpf_create_dsq(queue_of(i, CLASS_BEST_EFFORT), -1);
		if (err) {
			scx_bpf_error("cannot create the queues of CPU %d: error %d", i, err);
			return err;
		}
	}
	return 0;
}

void BPF_STRUCT_OPS(guest_dump_cpu, struct scx_dump_ctx *dctx, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || (idle && !k_waiting(queue_of(cpu, CLASS_NORMAL))))
		return;
	scx_bpf_dump("tandem: share=%u/1024 absence_us=%llu class=%u waiting=%u best_effort=%u weight=%llu\n",
		     c->model.share, c->model.inactive_mean_ns / 1000, c->curr_class,
		     k_waiting(queue_of(cpu, CLASS_NORMAL)), k_waiting(queue_of(cpu, CLASS_BEST_EFFORT)), c->weight[1]);
}

void BPF_STRUCT_OPS(guest_dump_task, struct scx_dump_ctx *dctx, struct task_struct *p)
{
	struct task_state *t = task_state(p);

	if (t)
		scx_bpf_dump("tandem: class=%u queue=%d run=%d v=%llu deadline=%llu used_us=%llu request_us=%llu\n",
			     t->class, t->queue_cpu, t->run_cpu, t->v, t->deadline, t->used_ns / 1000,
			     t->request_ns / 1000);
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
	       .dump_cpu		= (void *)guest_dump_cpu,
	       .dump_task		= (void *)guest_dump_task,
	       .init			= (void *)guest_init,
	       .exit			= (void *)guest_exit,
	       .flags			= SCX_OPS_ENQ_LAST | SCX_OPS_KEEP_BUILTIN_IDLE,
	       .timeout_ms		= 20000,
	       .name			= "tandem_guest");
