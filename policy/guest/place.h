/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task should run: where all are done earliest.
 *
 * A vCPU that looks idle may be the slowest choice of all: its pCPU can be
 * taken for many milliseconds, and nobody in the guest can see that before
 * the vCPU is woken. The cost of a vCPU is therefore
 *
 *     expected absence + (work queued there + work of this task + delay of the others) / share
 *
 * that is, when this task is done, and by how much those who are there already
 * are done later because of it. By the first alone two long tasks share the
 * vCPU that is there, where each takes twice as long, rather than let one wait
 * for a vCPU that is absent half of the time; what that would do is lost.
 *
 * where the expected absence of an idle vCPU is what those who woke it have had
 * to wait on average (policy/guest/vcap.h), less or more if it slept only a moment ago, and
 * that of one known to be inactive now is the mean absence less the time that
 * has passed. One that works, at best effort too, is there; the longer it has
 * been, the sooner it will be taken, and instead of its share that is reckoned
 * with. Work is the mean run time between two sleeps; of tasks already there, what
 * they get of the vCPU before this one is done (policy/work.h). Where the rhythm of the vCPU is known (policy/guest/phase.h)
 * it replaces the chances: the task waits for as long as the vCPU will be away,
 * and work that fits before it is taken again is done at full speed.
 *
 * This is vSched's bvs (EuroSys'25, section 3.2) as one number instead of a list
 * of cases: a vCPU of low latency that is idle, or does best-effort work and has
 * come back of late or will soon, costs least; a busy one costs what is queued
 * there, however fast it is. On a slower core (vSched's vcap tells that from a
 * smaller share) all work takes longer. The formula is ours.
 */
#ifndef TANDEM_POLICY_PLACE_H
#define TANDEM_POLICY_PLACE_H

#include "../distance.h"
#include "vcap.h"
#include "../work.h"

/* A task that ran this long without sleeping is CPU-bound. */
#define TANDEM_HOG_NS (24 * NSEC_PER_MSEC_)
/* Moving a running task must gain a quarter at least, and not happen more often than this. */
#define TANDEM_PUSH_GAIN_NUM 5U
#define TANDEM_PUSH_GAIN_DEN 4U
#define TANDEM_PUSH_REST_NS (40 * NSEC_PER_MSEC_)

/*
 * Waits are reckoned with twice their mean. The mean hides that most who wake a
 * vCPU do not wait at all and some wait for very long, and these are the tail
 * that whoever asks for a short answer suffers from.
 */
#define TANDEM_WAIT_CAUTION 2U
/*
 * A vCPU that has just been woken by an interrupt, and is asked where the task shall go that this wakes, is there: the
 * task need not wait. But it will sleep there, and what wakes it the next time (its timer, the same device) wakes it there.
 */
#define TANDEM_WAIT_AGAIN 1U

struct place_view {
	u64 queued_work;	/* of those who run or wait there, policy/work.h */
	u32 nr_tasks;		/* how many they are */
	u64 inactive_mean_ns;
	u64 inactive_for_ns;	/* since when it is known to be inactive; 0: it is not */
	u64 wait_ns;		/* of those who wake it, on average */
	u64 active_for_ns;	/* foreseen: until it is taken away; 0: it is away */
	u64 absent_for_ns;	/* foreseen: until it is back; 0: it is there */
	u64 active_mean_ns;	/* foreseen: how long it stays then */
	u64 there_for_ns;	/* since it came back last, without a pause; 0: not known */
	u32 share;		/* 0..1024 */
	u32 speed;		/* of its core, parts of TANDEM_SCALE of the fastest; 0: as fast */
	bool idle;
	bool here;		/* whoever asks runs there: on its pCPU now, if idle since an interrupt woke it */
	bool foreseen;		/* its rhythm is known */
};

/*
 * The work that a place is looked for: what the task usually does between two
 * sleeps. Of one that asks for a shorter request than others, not more than that:
 * it wants an answer soon, not to be done soon.
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
 * What absences cost work that begins now, on average. A vCPU that has just come back stays for the longest time; one that
 * has been there for long is soon taken. By share alone both would be the same.
 */
POLICY u64 place_taken_ns(const struct place_view *c, u64 work_ns)
{
	u64 stays = c->inactive_mean_ns * c->share / (TANDEM_SCALE - c->share);
	u64 left = max_u64(max_u64(sub_floor_u64(stays, c->there_for_ns), stays / 2), 1);

	return c->inactive_mean_ns * work_ns / left;
}

POLICY u64 place_cost_ns(const struct place_view *c, u64 work_ns)
{
	u64 share = c->share ? c->share : 1, absence = 0;
	u64 waits_for = held_up_ns(c->queued_work, work_ns), done = waits_for + work_ns, work;

	work = done + holds_up_ns(waits_for, c->nr_tasks, work_ns);
	if (c->speed) {
		done = place_drain_ns(done, c->speed);
		work = place_drain_ns(work, c->speed);
	}
	if (c->foreseen) {
		/* What fits before it is taken again needs no share. */
		if (done <= (c->active_for_ns ? c->active_for_ns : c->active_mean_ns))
			return c->absent_for_ns + work;
		return c->absent_for_ns + work * TANDEM_SCALE / share;
	}
	if (c->inactive_for_ns)
		absence = max_u64(sub_floor_u64(c->inactive_mean_ns, c->inactive_for_ns), c->inactive_mean_ns / 4);
	else if (c->idle)
		absence = (c->here ? TANDEM_WAIT_AGAIN : TANDEM_WAIT_CAUTION) * c->wait_ns;
	if (!absence && c->there_for_ns && c->inactive_mean_ns && share < TANDEM_SCALE)
		return work + place_taken_ns(c, min_u64(work, 1ULL << 30));
	return absence + work * TANDEM_SCALE / share;
}

/* Should a CPU-bound task leave a vCPU of share `from` for an idle one of share `to`? */
POLICY bool push_gains(u32 from, u32 to)
{
	return (u64)to * TANDEM_PUSH_GAIN_DEN > (u64)from * TANDEM_PUSH_GAIN_NUM;
}

struct pull_view {
	u32 waiting;		/* tasks that wait at the source */
	u32 from_share, to_share;
	u64 source_burst_ns;	/* for how long the task that the source runs has not slept */
	u64 drain_ns;		/* until the source has served one turn of everybody there */
	bool source_inactive;	/* preempted by the host right now, or asleep and not answering */
	bool far;		/* source and taker have no cache in common */
};

/*
 * May a vCPU with nothing to do take a waiting task from another? Across caches
 * only if that saves more than it costs. Otherwise an equal or better one:
 * always. A much weaker one only where waiting is worse: the source is not
 * running at all, many wait there, or it is shared by CPU-bound tasks, which
 * gain throughput even from a fraction of a pCPU. That it has had no pause for
 * long is no reason: a client and its servers leave it none, and each of them
 * that goes to a weak vCPU holds up the others.
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
	return v->waiting > 3 || v->source_burst_ns >= TANDEM_HOG_NS;
}

#endif
