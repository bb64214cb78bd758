/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement: the vCPU on which all tasks, the new one and those queued there, are done earliest.
 *
 * A vCPU that looks idle may be the slowest choice of all: its pCPU can be taken for many milliseconds, and
 * nothing in the guest shows that before the vCPU is woken. The cost of a vCPU is therefore
 *
 *     expected_wait + (queued_work_ahead + own_burst + delay_of_others) / share
 *
 * It says when this task is done, and by how much the tasks queued there are done later because of it. Without
 * the delay of others, two long tasks would share the running vCPU, where each takes twice as long, rather than
 * let one wait for a vCPU that is preempted half of the time, and the time of that vCPU would be lost.
 *
 * - expected_wait of an idle vCPU is the mean measured wait of wake-ups (policy/guest/vcap.h), less or more if
 *   it slept only a moment ago. If the vCPU is known to be preempted now, it is what is left of the mean
 *   preemption interval.
 * - A vCPU that executes anything, even SCHED_IDLE, is running now. The longer it has been running, the sooner
 *   it will be preempted, and that is used instead of its share.
 * - own_burst is the mean run time between two sleeps. queued_work_ahead is what the tasks queued there get of
 *   the vCPU before this one is done (policy/work.h).
 * - If the preemption period of the vCPU is known (policy/guest/phase.h), it replaces the probabilities: the
 *   task waits for as long as the vCPU stays preempted, and work that fits before the next preemption is done
 *   at full speed.
 *
 * This is vSched's bvs (EuroSys'25, section 3.2) as one number instead of a list of cases: a vCPU of low
 * latency that is idle, or runs SCHED_IDLE tasks and was scheduled in recently or will be soon, costs least; a
 * busy vCPU costs what is queued there, however fast it is. On a slower core (vSched's vcap tells that from a
 * smaller share) all work takes longer. The formula is ours.
 */
#ifndef TANDEM_POLICY_PLACE_H
#define TANDEM_POLICY_PLACE_H

#include "../distance.h"
#include "vcap.h"
#include "../work.h"

/* A task that ran this long without sleeping is CPU-bound. */
#define TANDEM_PULL_BURST_NS (24 * NSEC_PER_MSEC_)
/* Active balance: migrating a running task must gain a quarter at least, and not happen more often than this. */
#define TANDEM_PUSH_GAIN_NUM 5U
#define TANDEM_PUSH_GAIN_DEN 4U
#define TANDEM_PUSH_REST_NS (40 * NSEC_PER_MSEC_)

/*
 * Waits count twice their mean. The mean hides that most wake-ups of a vCPU do not wait at all and some wait
 * for very long: these are the tail that latency-sensitive tasks suffer from.
 */
#define TANDEM_WAIT_CAUTION 2U
/*
 * A vCPU that an interrupt has just woken, and on which the wake-up of the task takes place, is running: the
 * task need not wait. But it will sleep there, and what wakes it the next time (its timer, the same device)
 * wakes it there.
 */
#define TANDEM_WAIT_AGAIN 1U

struct place_view {
	u64 queued_work;	/* of tasks that run or wait there, policy/work.h */
	u32 nr_tasks;		/* number of these tasks */
	u64 inactive_mean_ns;
	u64 inactive_for_ns;	/* for how long it is known to be preempted; 0: it is not */
	u64 wait_ns;		/* mean wait of wake-ups */
	u64 active_for_ns;	/* predicted: until it is preempted; 0: it is preempted */
	u64 preempted_for_ns;	/* predicted: until it is scheduled in; 0: it is running */
	u64 active_mean_ns;	/* predicted: for how long it is active then */
	u64 on_cpu_for_ns;	/* since its last schedule-in, uninterrupted; 0: not known */
	u32 share;		/* 0..1024 */
	u32 speed;		/* of its core, parts of TANDEM_SCALE of the fastest; 0: as fast */
	bool idle;
	bool here;		/* the caller runs there; if idle, an interrupt has just woken it and it is running */
	bool predicted;		/* its preemption period is known */
};

/*
 * The work for which a place is searched: the usual run time of the task between two sleeps. For a task with a
 * shorter request than others no more than that request: it is latency-sensitive, and is to be served soon, not
 * to be done soon.
 */
POLICY u64 place_work_ns(u64 mean_burst_ns, u64 request_ns, u64 ordinary_request_ns)
{
	u64 work = request_ns < ordinary_request_ns ? min_u64(mean_burst_ns, request_ns) : mean_burst_ns;

	return max_u64(work, TANDEM_MOVE_COST_NS);
}

/* Time until a vCPU of that share has done this work. */
POLICY u64 place_drain_ns(u64 work_ns, u32 share)
{
	return min_u64(work_ns, 1ULL << 50) * TANDEM_SCALE / (share ? share : 1);
}

/*
 * Mean delay of work that begins now by preemptions. A vCPU that was just scheduled in keeps its pCPU for the
 * longest time; one that has been running for long is soon preempted. By share alone both would be the same.
 */
POLICY u64 place_taken_ns(const struct place_view *c, u64 work_ns)
{
	u64 stays = c->inactive_mean_ns * c->share / (TANDEM_SCALE - c->share);
	u64 left = max_u64(max_u64(sub_floor_u64(stays, c->on_cpu_for_ns), stays / 2), 1);

	return c->inactive_mean_ns * work_ns / left;
}

POLICY u64 place_cost_ns(const struct place_view *c, u64 work_ns)
{
	u64 share = c->share ? c->share : 1, preemption = 0;
	u64 waits_for = delayed_others_ns(c->queued_work, work_ns), done = waits_for + work_ns, work;

	work = done + delays_others_ns(waits_for, c->nr_tasks, work_ns);
	if (c->speed) {
		done = place_drain_ns(done, c->speed);
		work = place_drain_ns(work, c->speed);
	}
	if (c->predicted) {
		/* Work that fits before the next preemption needs no share. */
		if (done <= (c->active_for_ns ? c->active_for_ns : c->active_mean_ns))
			return c->preempted_for_ns + work;
		return c->preempted_for_ns + work * TANDEM_SCALE / share;
	}
	if (c->inactive_for_ns)
		preemption = max_u64(sub_floor_u64(c->inactive_mean_ns, c->inactive_for_ns), c->inactive_mean_ns / 4);
	else if (c->idle)
		preemption = (c->here ? TANDEM_WAIT_AGAIN : TANDEM_WAIT_CAUTION) * c->wait_ns;
	if (!preemption && c->on_cpu_for_ns && c->inactive_mean_ns && share < TANDEM_SCALE)
		return work + place_taken_ns(c, min_u64(work, 1ULL << 30));
	return preemption + work * TANDEM_SCALE / share;
}

/* Should a CPU-bound task leave a vCPU of share `from` for an idle one of share `to`? */
POLICY bool push_gains(u32 from, u32 to)
{
	return (u64)to * TANDEM_PUSH_GAIN_DEN > (u64)from * TANDEM_PUSH_GAIN_NUM;
}

struct pull_view {
	u32 waiting;		/* tasks that wait at the source */
	u32 from_share, to_share;
	u64 source_burst_ns;	/* run time of the source's current task since it slept */
	u64 drain_ns;		/* until the source has served one slice of each task there */
	bool source_inactive;	/* preempted by the host right now, or asleep and not answering */
	bool far;		/* source and target have no cache in common */
};

/*
 * May an idle vCPU pull a waiting task from another one? Across caches only if that saves more than it costs.
 * Otherwise an equal or better vCPU: always. A much weaker one only where waiting is worse: the source is
 * preempted, many tasks wait there, or CPU-bound tasks share it, which gain throughput even from a fraction of
 * a pCPU. That the source has had no pause for long is no reason: a client and its servers leave it none, and
 * each of them that moves to a weak vCPU delays the others.
 */
POLICY bool pull_helps(const struct pull_view *v)
{
	if (!v->waiting)
		return false;
	if (v->far && !v->source_inactive && !worth_going_far(v->drain_ns))
		return false;
	if (!push_gains(v->to_share, v->from_share))
		return true;
	if (v->source_inactive)
		return true;
	return v->waiting > 3 || v->source_burst_ns >= TANDEM_PULL_BURST_NS;
}

#endif
