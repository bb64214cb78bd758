/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Load balance, for fairness across CPUs (policy/balance.h): a CPU with less weight pulls waiting tasks from
 * the one with most, as far as that evens them out. Where a move would only reverse the imbalance, it asks for
 * a task instead.
 */
#ifndef TANDEM_CORE_SPREAD_BPF_H
#define TANDEM_CORE_SPREAD_BPF_H

#include "fair.bpf.h"
#include "look.bpf.h"

/* Waiting tasks that are checked at a time. */
#define EVEN_LOOK 8

static __always_inline u32 capacity_left(const struct cpu_state *c, u64 now)
{
	return left_by_light(side_capacity(c, now), c->light_share);
}

/*
 * `cpu` looks at another CPU. What it finds goes into its record: the verifier does not track values in maps,
 * so it need not follow each combination of them through every iteration of the loop.
 */
COLD int scan_at(u32 cpu, u32 other, u64 now)
{
	struct cpu_state *own = cpu_state(cpu), *c = cpu_state(other);
	struct surroundings *s;
	u64 load, excess, vtime;
	bool too_many;

	if (!own || !c || !c->online)
		return 0;
	s = &own->look;
	too_many = c->cpu_bound_tasks > side_cpu_bound_allowance(c, now);
	load = load_of(c->cpu_bound_weight, capacity_left(c, now));
	/*
	 * A CPU that has more load only because of a single task is no measure: the task cannot use more than
	 * one CPU.
	 */
	if (too_many || load <= s->own_load) {
		s->loads += load;
		s->measures++;
	}
	vtime = vtime_now(c, now);
	if (c->vtime_known && (!s->any_vtime || time_before_ns(s->furthest, vtime))) {
		s->furthest = vtime;
		s->any_vtime = 1;
	}
	s->longest_ns = max_u64(s->longest_ns, longest_cpu_bound_ns(c, now));
	if (!too_many)
		return 0;
	excess = excess_weight(c->cpu_bound_weight, capacity_left(c, now), s->own_weight, capacity_left(own, now));
	if (far_apart(cpu, other))
		excess = far_excess(excess, c->cpu_bound_weight);
	if (excess > s->excess) {
		s->excess = excess;
		s->heaviest = other;
	}
	if (excess && c->vtime_known && (s->slowest < 0 || time_before_ns(vtime, s->slow_vtime))) {
		s->slow_excess = excess;
		s->slow_vtime = vtime;
		s->slowest = other;
	}
	return 0;
}

static __always_inline void scan_others(struct cpu_state *own, u32 cpu, u64 now)
{
	struct surroundings *s = &own->look;
	u32 from = scan_from(), i;

	__builtin_memset(s, 0, sizeof(*s));
	s->heaviest = -1;
	s->slowest = -1;
	s->longest_ns = longest_cpu_bound_ns(own, now);
	s->own_load = load_of(own->cpu_bound_weight, capacity_left(own, now));
	s->own_weight = own->cpu_bound_weight;
	bpf_for(i, 0, nr_scanned()) {
		u32 other = cpu_after(from, i);

		if (other != cpu)
			scan_at(cpu, other, now);
	}
}

/* A request that is not repeated has lapsed. */
static __always_inline bool asked(const struct cpu_state *c, u64 now)
{
	return c->give_to >= 0 && now - c->give_asked_ns < 2 * TANDEM_BALANCE_NS;
}

/* Ask the CPU with the least global virtual time to push a task to `cpu`, unless a CPU that is further ahead has asked it. */
static __always_inline void ask_for_turn(const struct surroundings *s, s32 cpu, u64 vtime, u64 now)
{
	struct cpu_state *from = cpu_state(s->slowest);
	u64 ahead = time_before_ns(s->slow_vtime, vtime) ? vtime - s->slow_vtime : 0;

	if (!from || (!ahead && settles_itself(s->slow_excess, from->cpu_bound_weight)))
		return;
	if (asked(from, now) && from->give_to != cpu && from->give_behind >= ahead)
		return;
	from->give_excess = s->slow_excess;
	from->give_behind = ahead;
	from->give_asked_ns = now;
	from->give_to = cpu;
}

/*
 * Scan for CPUs that are too heavy. Returns whether there is something to pull; then `cpu` has to go through
 * dispatch.
 */
COLD int ask_for_task(u32 cpu)
{
	struct cpu_state *own = cpu_state(cpu), *from;
	u64 now = k_now(), excess, vtime;
	struct surroundings *s;
	bool gives_all;

	if (!own)
		return false;
	s = &own->look;
	scan_others(own, cpu, now);
	gives_all = own->curr_class == CLASS_NORMAL && own->cpu_bound_tasks <= 1 && s->own_load * s->measures >= s->loads;
	if (own->curr_class != CLASS_NORMAL || !own->cpu_bound_tasks) {
		own->vtime_known = false;
	} else if (s->any_vtime) {
		vtime = own->vtime_known ? vtime_caught_up(own->vtime, s->furthest, gives_all, own->cpu_bound_weight, s->longest_ns) :
					  s->furthest;
		/* A CPU that had no CPU-bound tasks has missed nothing. */
		own->vtime = vtime;
		own->vtime_known = true;
	} else {
		own->vtime_known = true;
	}
	vtime = vtime_now(own, now);
	if (s->slowest >= 0 && own->vtime_known && !gives_all)
		ask_for_turn(s, cpu, vtime, now);

	/* An imbalance must show in two scans in a row: wake-ups come and go. */
	excess = min_u64(s->excess, own->seen_excess);
	own->seen_excess = s->excess;
	from = cpu_state(s->heaviest);
	if (s->heaviest < 0 || !from || !excess || (gives_all && excess <= own->cpu_bound_weight / 2))
		return false;
	if (own->vtime_known && from->vtime_known && time_before_ns(vtime, vtime_now(from, now)) &&
	    settles_itself(excess, from->cpu_bound_weight))
		return false;
	own->pull_excess = excess;
	own->pull_from = s->heaviest;
	return true;
}

/*
 * The CPU that executes this: its record says where a task is being moved, and what to retract if it is not (move_*).
 * With core scheduling it may be another one than that whose queues these are, and which may move a task itself
 * meanwhile.
 */
static __always_inline struct cpu_state *mover(void)
{
	return cpu_state(bpf_get_smp_processor_id());
}

/* A waiting task joins the queue of `cpu`, to be moved there. */
static __always_inline void join_to_move(struct task_struct *p, struct task_state *t, struct cpu_state *by, s32 cpu)
{
	rejoin(p, t, cpu, k_now());
	by->move_key = t->deadline;
	by->move_queue = queue_of(cpu, t->class);
	by->move_stake = t->stake;
	waits_at(cpu);
}

/*
 * If moving a waiting task to `cpu` makes the imbalance smaller, it joins the queue there, and its weight is
 * returned. One that has begun to run since it was found is left as it is. A function apart from the loop that
 * calls it: otherwise the verifier would follow each of its paths through every iteration.
 */
COLD u64 pull_task(s32 pid, s32 cpu, u64 excess)
{
	struct task_struct *task = bpf_task_from_pid(pid);
	struct cpu_state *by = mover();
	struct task_state *t;
	u64 weight = 0;

	if (!task)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(task);
	if (t && t->cpu_bound_stake && t->stake && t->run_cpu < 0 && queue_cpu(t) != cpu && move_improves(t->weight, excess) &&
	    !k_is_pinned(task) && k_allowed(task, cpu) && side_may_move(t, queue_cpu(t), cpu, true)) {
		if (by)
			join_to_move(task, t, by, cpu);
		weight = t->weight;
	}
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return weight;
}

/* It could not be moved after all. */
COLD int not_taken_over(s32 pid)
{
	struct task_struct *task = bpf_task_from_pid(pid);
	struct cpu_state *by = mover();
	struct task_state *t;

	if (!task)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(task);
	if (t && by)
		retract(t, by->move_stake);
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return 0;
}

/*
 * A task that waits for `from` joins the queue of `to`, to be moved there at once: its v on the old clock would
 * put it anywhere in the new order, and tasks that are not counted at a CPU are not looked for there. Returns
 * whether it may be moved.
 */
COLD u32 join_elsewhere(s32 pid, s32 from, s32 to)
{
	struct task_struct *task = bpf_task_from_pid(pid);
	struct cpu_state *by = mover();
	struct task_state *t;
	u32 joined = 0;

	if (!task)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(task);
	if (t && by && t->stake && t->run_cpu < 0 && queue_cpu(t) == from && from != to && k_allowed(task, to)) {
		join_to_move(task, t, by, to);
		joined = queue_cpu(t) == to;
	}
	bpf_rcu_read_unlock();
	bpf_task_release(task);
	return joined;
}

/* Pull waiting tasks from the heavier CPU. Called from dispatch. */
COLD int pull_for_balance(u32 cpu)
{
	struct cpu_state *own = cpu_state(cpu), *by = mover(), *from;
	struct task_struct *p;
	u64 queue;

	if (!own || !by || own->pull_from < 0)
		return 0;
	/* Tasks that would wait for longest gain most. */
	from = cpu_state(own->pull_from);
	queue = from && from->late_due_ns && k_waiting(late_queue_of(own->pull_from)) ?
			late_queue_of(own->pull_from) :
			queue_of(own->pull_from, CLASS_NORMAL);
	own->pull_from = -1;
	own->scanned = 0;
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task_struct *task;
		u64 weight;

		if (own->scanned++ >= EVEN_LOOK)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		weight = pull_task(p->pid, cpu, own->pull_excess);
		if (weight) {
			own->pull_excess = sub_floor_u64(own->pull_excess, 2 * weight);
			scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, by->move_key);
			if (scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, task, by->move_queue, 0))
				count(own, CNT_LB_PULLED);
			else
				not_taken_over(p->pid);
		}
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* A task that waits beside a much heavier one does not run for long enough to be counted as CPU-bound while it runs. */
COLD int count_waiting_cpu_bound(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);
	struct task_struct *p;
	u64 now = k_now();

	if (!c)
		return 0;
	c->scanned = 0;
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue_of(cpu, CLASS_NORMAL), 0) {
		struct task_struct *task;
		struct task_state *t;

		if (c->scanned++ >= EVEN_LOOK)
			break;
		task = bpf_task_from_pid(p->pid);
		if (!task)
			continue;
		t = task_state(task);
		if (t && queue_cpu(t) == (s32)cpu)
			count_cpu_bound(t, c, cpu, now);
		bpf_task_release(task);
	}
	bpf_rcu_read_unlock();
	return 0;
}

/* Once per tick of a busy CPU. */
static __always_inline bool balance_tick(struct cpu_state *c, s32 cpu, u64 now)
{
	if (now - c->balanced_at_ns < TANDEM_BALANCE_NS)
		return false;
	c->light_share = light_share(c->light_share, c->light_ns, now - c->balanced_at_ns);
	c->light_ns = 0;
	c->balanced_at_ns = now;
	if (c->cpu_bound_tasks && c->cpu_bound_tasks < c->tasks[1])
		count_waiting_cpu_bound(cpu);
	c->lightest[1] = c->lightest[0];
	c->lightest[0] = ~0ULL;
	return ask_for_task(cpu);
}

/* The CPU goes idle. */
static __always_inline void rest_from_balancing(struct cpu_state *c)
{
	c->seen_excess = 0;
	c->vtime_known = false;
	c->give_to = -1;
}

/* p's slice on this CPU has ended, and p is still runnable. Where does it go on? */
static __always_inline s32 push_task(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	struct rotation_view view = {
		.weight = t->weight,
		.owed_ns = t->owed_ns,
		.last_weight = c->last_weight,
		.last_owed_ns = c->last_owed,
		.lightest = c->lightest[1],
		.excess = c->give_excess,
		.behind_ns = c->give_behind,
		.queue_weight = c->cpu_bound_weight,
		.longest_ns = longest_cpu_bound_ns(c, now),
		.queue_tasks = c->cpu_bound_tasks,
	};
	s32 to = c->give_to;
	bool evens_out, needed;

	if (!t->cpu_bound_stake)
		return cpu;
	c->last_weight = t->weight;
	c->last_owed = t->owed_ns;
	note_request(t, c, now);
	if (!asked(c, now))
		return cpu;
	if (matters_for_turns(t->weight, c->give_excess))
		c->lightest[0] = min_u64(c->lightest[0], t->weight);
	evens_out = move_improves(t->weight, c->give_excess);
	if (!evens_out && !rotates_away(&view))
		return cpu;
	needed = evens_out || missed_much(c->give_behind, c->cpu_bound_weight, view.longest_ns);
	if (k_is_pinned(p) || !k_allowed(p, to) || !side_may_move(t, cpu, to, needed))
		return cpu;
	c->give_to = -1;
	count_task(CNT_LB_PUSHED, p->pid);
	return to;
}

#endif
