/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Proactive migration: a task leaves a vCPU before the host preempts it (ivh, intra-VM harvesting, of vSched,
 * EuroSys'25, section 3.3).
 *
 * A task that is running when its vCPU is preempted stands still until the vCPU is scheduled in again; it
 * cannot be migrated meanwhile. Where the preemption period of the vCPU is known (policy/guest/phase.h), the
 * task is migrated just before, to a vCPU that is idle or runs SCHED_IDLE tasks, and that serves the task
 * before its own vCPU would be scheduled in.
 *
 *     stay      active ............ preempted ............ active again
 *     move      active - margin, wait, cost, then the target's own active period
 *
 * The gain is what the target does of the task before its own vCPU would be scheduled in, less what leaving
 * early loses on the source and, where necessary, on the target. What leaving takes is learned. Without a gain
 * the task stays. The paper migrates after 2 ms of running, whatever the preemption pattern; the simulator has
 * that for comparison.
 */
#ifndef TANDEM_POLICY_IVH_H
#define TANDEM_POLICY_IVH_H

#include "phase.h"

/*
 * From when the target runs until the task runs on it, before that was ever measured. On hardware it is some
 * microseconds; where interrupts are emulated, a millisecond.
 */
#define TANDEM_IVH_COST_NS (300 * NSEC_PER_USEC_)
/* Predictions are this exact at best. */
#define TANDEM_IVH_MARGIN_NS (200 * NSEC_PER_USEC_)
/* From when the timer fires until the task is switched out: before that was ever measured, and at most. */
#define TANDEM_IVH_LATENCY_NS (150 * NSEC_PER_USEC_)
#define TANDEM_IVH_LATENCY_MAX_NS (3 * NSEC_PER_MSEC_)
/* A target may have this much work queued ahead of the task: less than one slice of a CPU-bound task. */
#define TANDEM_IVH_BUSY_NS (3 * NSEC_PER_MSEC_)
/* A kicked target has this long to answer before another one is kicked. This many are kicked at most. */
#define TANDEM_IVH_ANSWER_NS (400 * NSEC_PER_USEC_)
#define TANDEM_IVH_TRIES 3U
/* A target that is later than this was mispredicted. Any running vCPU then takes the task. */
#define TANDEM_IVH_LATE_NS (1500 * NSEC_PER_USEC_)
/* A task that is to leave within this time leaves with any switch that takes place anyway. */
#define TANDEM_IVH_SWITCH_NS (600 * NSEC_PER_USEC_)
/* Only a task that has run for this long since it slept is migrated (paper: 2 ms). */
#define TANDEM_IVH_BURST_NS (2 * NSEC_PER_MSEC_)
/* Minimum gain. */
#define TANDEM_IVH_GAIN_NS (300 * NSEC_PER_USEC_)
/*
 * Where the target has to be left again, or will be preempted, a preemption interval must be this many times as long
 * as what leaving takes. That is measured as time, but a migration also costs work: timers, interrupts, a cold
 * cache. Where hypervisors are emulated leaving takes about 3 ms, and migrations have lost at preemption intervals
 * of 2 and 4 ms, and gained from 16 ms on. On hardware, where it takes a tenth of that, nothing is ruled out.
 */
#define TANDEM_IVH_PAYS 2U

/*
 * A vCPU that was preempted before its task had left teaches to leave earlier: the preemption interval that the
 * guest measures begins after the true one, by an unknown time. `early_ns` is what was learned.
 */
#define TANDEM_IVH_EARLIER_NS (200 * NSEC_PER_USEC_)
/*
 * Leaving still earlier does not help: a delay that exceeds this would delay that, too (a host that is itself a
 * guest).
 */
#define TANDEM_IVH_EARLY_MAX_NS (1 * NSEC_PER_MSEC_)

/* This many migrations in time make up for one vCPU that was preempted first. */
#define TANDEM_IVH_IN_TIME 16U

POLICY u64 ivh_left_in_time(u64 early_ns)
{
	return sub_floor_u64(early_ns, TANDEM_IVH_EARLIER_NS / TANDEM_IVH_IN_TIME);
}

/* The vCPU was preempted before its task had left. */
POLICY u64 ivh_caught(u64 early_ns, const struct rhythm_length *on)
{
	return min_u64(early_ns + TANDEM_IVH_EARLIER_NS, min_u64(on->mean_ns / 4, TANDEM_IVH_EARLY_MAX_NS));
}

/* Mean delay of the timer, or from the timer to the switch: interrupts may be late by a millisecond. */
POLICY u64 ivh_latency_ns(u64 latency_ns, u64 late_ns)
{
	late_ns = min_u64(late_ns, TANDEM_IVH_LATENCY_MAX_NS);
	return latency_ns ? ewma_u64(latency_ns, late_ns, 3) : late_ns;
}

/*
 * Mean cost of a migration, when the task ran `late_ns` after the target was scheduled in. A target that did
 * not run after all counts with all that was lost by it.
 */
POLICY u64 ivh_cost_ns(u64 cost_ns, u64 late_ns)
{
	return ewma_u64(cost_ns ? cost_ns : TANDEM_IVH_COST_NS, min_u64(late_ns, TANDEM_PHASE_MAX_NS), 4);
}

/*
 * Where leaving is not worth it, nothing more is learned of its cost, and that may have changed. So what was
 * learned decays until one more migration is tried. This is called two or three times in every active period,
 * so half is left after some seventy periods, and vain attempts cost next to nothing.
 */
POLICY u64 ivh_forgotten(u64 learned)
{
	return learned - (learned + 255) / 256;
}

/*
 * What leaving takes of an active period: the task stops when the timer fires, and it leaves before the
 * predicted end by a safety margin. The delay of the timer is not lost: the task runs meanwhile.
 */
POLICY u64 ivh_loss_ns(const struct vcpu_phase *p, u64 latency_ns, u64 early_ns)
{
	u64 loss = TANDEM_IVH_MARGIN_NS + phase_doubt_ns(p) + min_u64(early_ns, TANDEM_PHASE_MAX_NS);

	loss += latency_ns ? min_u64(latency_ns, TANDEM_IVH_LATENCY_MAX_NS) : TANDEM_IVH_LATENCY_NS;
	return min_u64(loss, p->on.mean_ns / 2);
}

/* How long before the predicted end the timer for a migration is due. It fires `late_ns` late on average. */
POLICY u64 ivh_margin_ns(const struct vcpu_phase *p, u64 late_ns, u64 latency_ns, u64 early_ns)
{
	u64 margin = ivh_loss_ns(p, latency_ns, early_ns) + min_u64(late_ns, TANDEM_IVH_LATENCY_MAX_NS);

	return min_u64(margin, p->on.mean_ns * 5 / 8);
}

/* How long before the predicted end the first target is kicked. */
POLICY u64 ivh_lead_ns(const struct vcpu_phase *p, u64 late_ns, u64 latency_ns, u64 early_ns)
{
	u64 lead = ivh_margin_ns(p, late_ns, latency_ns, early_ns) + TANDEM_IVH_TRIES * TANDEM_IVH_ANSWER_NS;

	return min_u64(lead, p->on.mean_ns * 3 / 4);
}

/*
 * How often a migration fails, on average, in parts of TANDEM_SCALE. A vCPU that is preempted in the middle of
 * the switch holds the locks that the target needs for pulling the task: both stand still. A target that is not
 * scheduled in is as bad. The task loses more than by staying.
 */
POLICY u32 ivh_risk(u32 risk, bool failed)
{
	return ewma_u64(risk, failed ? TANDEM_SCALE : 0, 3);
}

/*
 * A vCPU without work does not show when it is preempted, and out of phase it never runs when it is kicked. Its
 * preemption period is learned by sending a task there. Where the share is no worse than here that costs one
 * migration, at the end of an active period, and is done no more often than this. A preemption period is known
 * after some five periods, or there is none.
 */
#define TANDEM_IVH_LEARN_NS (2000 * NSEC_PER_MSEC_)
/*
 * Where one of many vCPUs always runs when it is kicked, nothing need be learned. This many attempts in a row
 * must have failed.
 */
#define TANDEM_IVH_VAIN 3U

/* `since_ns`: since a task was last sent there to learn. */
POLICY bool ivh_learns(u32 own_share, u32 share, u64 since_ns)
{
	return since_ns >= TANDEM_IVH_LEARN_NS && (u64)share + share / 8 >= own_share;
}

struct ivh_view {
	u64 left_ns;	/* until the task's own vCPU is preempted */
	u64 away_ns;	/* for how long it is preempted */
	u64 margin_ns;	/* the task stops this long before; at most left_ns */
	u64 wait_ns;	/* after that, until the target runs */
	u64 stay_ns;	/* for how long it runs then */
	u64 cost_ns;	/* from then until the task runs on it: the migration */
	u64 queue_ns;	/* and work queued ahead of the task there */
	u32 risk;	/* that the migration fails: parts of TANDEM_SCALE, at most that */
	bool taken;	/* the target is preempted now and then, too, at unknown times */
};

/*
 * What the target does before the task's own vCPU would be scheduled in, less what is lost. 0: no gain. A
 * target that is itself preempted about then, or before, has to be left in time again. With two vCPUs out of
 * phase that is half of all migrations: of every active period a margin and the cost are lost, and where that
 * is more than half of it, staying is better.
 */
POLICY u64 ivh_gain_ns(const struct ivh_view *v)
{
	u64 margin = min_u64(v->margin_ns, v->left_ns), cost = v->cost_ns + v->queue_ns;
	u64 open = sub_floor_u64(margin + v->away_ns, v->wait_ns);
	u64 served = sub_floor_u64(min_u64(open, v->stay_ns), cost), gain;
	bool again = v->stay_ns < open + v->margin_ns;

	if ((again || v->taken) && v->away_ns < TANDEM_IVH_PAYS * (v->cost_ns + v->margin_ns))
		return 0;
	if (again)
		served = sub_floor_u64(served, v->margin_ns);
	gain = sub_floor_u64(served, margin) / TANDEM_SCALE * (TANDEM_SCALE - min_u64(v->risk, TANDEM_SCALE));
	gain = sub_floor_u64(gain, v->away_ns / TANDEM_SCALE * v->risk);
	return gain >= TANDEM_IVH_GAIN_NS + v->away_ns / 16 ? gain : 0;
}

#endif
