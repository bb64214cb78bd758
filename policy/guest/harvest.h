/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Leaving a vCPU before the host takes it away (vSched, EuroSys'25, section
 * 3.3: ivh, intra-VM harvesting).
 *
 * A task that runs when its vCPU is taken stands still until that comes back;
 * nobody can move it meanwhile. Where the rhythm of the vCPU is known
 * (policy/guest/phase.h), the task leaves just before, for a vCPU that is idle, or
 * does best-effort work, and that serves it sooner than its own would be back.
 *
 *     stay      left ............ away ............ left again
 *     move      left - margin, wait, cost, then the target's own active time
 *
 * The gain is what the target does of it before the own vCPU would be back,
 * less what leaving early loses, here and, if need be, there. What leaving
 * takes is learned. No gain, no move. The paper moves after 2 ms
 * of running, whatever the rhythm; the simulator has that for comparison.
 */
#ifndef TANDEM_POLICY_HARVEST_H
#define TANDEM_POLICY_HARVEST_H

#include "phase.h"

/*
 * From when the target is there until the task runs on it, before that was ever
 * measured. On hardware it is some microseconds; where interrupts are emulated,
 * a millisecond.
 */
#define TANDEM_HARVEST_COST_NS (300 * NSEC_PER_USEC_)
/* Rhythms are this exact at best. */
#define TANDEM_HARVEST_MARGIN_NS (200 * NSEC_PER_USEC_)
/* From when its timer fires until the task is switched out, before that was ever measured; and at most. */
#define TANDEM_HARVEST_LATENCY_NS (150 * NSEC_PER_USEC_)
#define TANDEM_HARVEST_LATENCY_MAX_NS (3 * NSEC_PER_MSEC_)
/* A target may have this much to do before the task that comes: less than one turn of a CPU-bound task. */
#define TANDEM_HARVEST_BUSY_NS (3 * NSEC_PER_MSEC_)
/* A target that was called has this long to answer before another is called; and so many are called at most. */
#define TANDEM_HARVEST_ANSWER_NS (400 * NSEC_PER_USEC_)
#define TANDEM_HARVEST_TRIES 3U
/* A target that is later than this has been mistaken; then whoever is there takes the task. */
#define TANDEM_HARVEST_LATE_NS (1500 * NSEC_PER_USEC_)
/* Whoever is to leave within this time does so with a switch that takes place anyhow. */
#define TANDEM_HARVEST_SWITCH_NS (600 * NSEC_PER_USEC_)
/* Only who has run for this long since it slept is worth it (paper: 2 ms). */
#define TANDEM_HARVEST_BURST_NS (2 * NSEC_PER_MSEC_)
/* Least gain. */
#define TANDEM_HARVEST_GAIN_NS (300 * NSEC_PER_USEC_)
/*
 * Where the target has to be left again, or will be taken, an absence must be so many times as long as what leaving takes.
 * That is measured as time; a move also costs work: timers, interrupts, a cold cache. Where hypervisors are emulated leaving
 * takes about 3 ms, and moves have lost where absences were 2 and 4 ms long, and gained from 16 ms on. On hardware, where it
 * takes a tenth of that, nothing is ruled out.
 */
#define TANDEM_HARVEST_PAYS 2U

/*
 * A vCPU that was taken before its task had left teaches to leave earlier: what
 * the guest can measure of an absence begins after its true beginning, and
 * nobody tells by how much. `early_ns` is what it has learned.
 */
#define TANDEM_HARVEST_EARLIER_NS (200 * NSEC_PER_USEC_)
/* What holds a task up for longer than this would have held it up earlier, too: a host that is itself a guest. */
#define TANDEM_HARVEST_EARLY_MAX_NS (1 * NSEC_PER_MSEC_)

/* So many that left in time make good for one that was caught. */
#define TANDEM_HARVEST_IN_TIME 16U

POLICY u64 harvest_left_in_time(u64 early_ns)
{
	return sub_floor_u64(early_ns, TANDEM_HARVEST_EARLIER_NS / TANDEM_HARVEST_IN_TIME);
}

/* It was taken before its task had left. */
POLICY u64 harvest_caught(u64 early_ns, const struct rhythm_length *on)
{
	return min_u64(early_ns + TANDEM_HARVEST_EARLIER_NS, min_u64(on->mean_ns / 4, TANDEM_HARVEST_EARLY_MAX_NS));
}

/* What it takes to the timer, or from there to the switch, on average: interrupts may be late by a millisecond. */
POLICY u64 harvest_latency_ns(u64 latency_ns, u64 late_ns)
{
	late_ns = min_u64(late_ns, TANDEM_HARVEST_LATENCY_MAX_NS);
	return latency_ns ? ewma_u64(latency_ns, late_ns, 3) : late_ns;
}

/*
 * What a move cost that arrived `late_ns` after the target was there, on average.
 * A target that was not there all the same counts with all that was lost by it.
 */
POLICY u64 harvest_cost_ns(u64 cost_ns, u64 late_ns)
{
	return ewma_u64(cost_ns ? cost_ns : TANDEM_HARVEST_COST_NS, min_u64(late_ns, TANDEM_PHASE_MAX_NS), 4);
}

/*
 * Where leaving is not worth it, nothing more is learned of what it costs, and
 * that may have changed: it is forgotten by and by, until one more move is
 * tried. Asked two or three times in every active period, half is left after
 * some seventy of them, and what was tried in vain costs next to nothing.
 */
POLICY u64 harvest_forgotten(u64 learned)
{
	return learned - (learned + 255) / 256;
}

/*
 * What leaving takes of an active time: from when the timer fires the task does
 * not go on, and it leaves earlier than the foreseen end for being sure. How late
 * the timer fires is not lost: the task runs meanwhile.
 */
POLICY u64 harvest_loss_ns(const struct vcpu_phase *p, u64 latency_ns, u64 early_ns)
{
	u64 loss = TANDEM_HARVEST_MARGIN_NS + phase_doubt_ns(p) + min_u64(early_ns, TANDEM_PHASE_MAX_NS);

	loss += latency_ns ? min_u64(latency_ns, TANDEM_HARVEST_LATENCY_MAX_NS) : TANDEM_HARVEST_LATENCY_NS;
	return min_u64(loss, p->on.mean_ns / 2);
}

/* How long before the foreseen end the timer is due at which a task leaves; it is `late_ns` late on average. */
POLICY u64 harvest_margin_ns(const struct vcpu_phase *p, u64 late_ns, u64 latency_ns, u64 early_ns)
{
	u64 margin = harvest_loss_ns(p, latency_ns, early_ns) + min_u64(late_ns, TANDEM_HARVEST_LATENCY_MAX_NS);

	return min_u64(margin, p->on.mean_ns * 5 / 8);
}

/* How long before the foreseen end targets begin to be called. */
POLICY u64 harvest_lead_ns(const struct vcpu_phase *p, u64 late_ns, u64 latency_ns, u64 early_ns)
{
	u64 lead = harvest_margin_ns(p, late_ns, latency_ns, early_ns) + TANDEM_HARVEST_TRIES * TANDEM_HARVEST_ANSWER_NS;

	return min_u64(lead, p->on.mean_ns * 3 / 4);
}

/*
 * How often leaving fails: parts of TANDEM_SCALE, on average. A vCPU that is
 * taken in the middle of the switch holds the locks that the target needs for
 * fetching the task: both stand still. A target that does not come is as bad. The
 * task loses more than if it had stayed.
 */
POLICY u32 harvest_risk(u32 risk, bool failed)
{
	return ewma_u64(risk, failed ? TANDEM_SCALE : 0, 3);
}

/*
 * Of a vCPU without work nobody sees when it is taken, and out of phase it is
 * never there when it is called. Its rhythm is learned by working there: where
 * the share is no worse than here that costs one move, at the end of an active
 * period, and not more often than this. A rhythm is known after some five
 * periods, or there is none.
 */
#define TANDEM_HARVEST_LEARN_NS (2000 * NSEC_PER_MSEC_)
/* Where one of many is there whenever it is called, nothing need be learned: so often in a row none must have been. */
#define TANDEM_HARVEST_VAIN 3U

/* `since_ns`: since somebody was sent there for that last. */
POLICY bool harvest_learns(u32 own_share, u32 share, u64 since_ns)
{
	return since_ns >= TANDEM_HARVEST_LEARN_NS && (u64)share + share / 8 >= own_share;
}

struct harvest_view {
	u64 left_ns;	/* until the own vCPU is taken */
	u64 away_ns;	/* for how long */
	u64 margin_ns;	/* the task stops this long before; at most left_ns */
	u64 wait_ns;	/* after that, until the target serves */
	u64 stay_ns;	/* for how long it serves then */
	u64 cost_ns;	/* from then until the task runs on it: the move */
	u64 queue_ns;	/* and what is to be done there before */
	u32 risk;	/* that it fails: parts of TANDEM_SCALE, at most that */
	bool taken;	/* the target is taken now and then, too, though nobody knows when */
};

/*
 * What the target does before the own vCPU would be back, less what is lost; 0:
 * nothing is gained. A target that is itself taken about then, or before, has
 * to be left in time again. With two vCPUs out of phase that is half of all
 * moves: of every active period a margin and the cost are lost, and where that
 * is more than half of it, staying is better.
 */
POLICY u64 harvest_gain_ns(const struct harvest_view *v)
{
	u64 margin = min_u64(v->margin_ns, v->left_ns), cost = v->cost_ns + v->queue_ns;
	u64 open = sub_floor_u64(margin + v->away_ns, v->wait_ns);
	u64 served = sub_floor_u64(min_u64(open, v->stay_ns), cost), gain;
	bool again = v->stay_ns < open + v->margin_ns;

	if ((again || v->taken) && v->away_ns < TANDEM_HARVEST_PAYS * (v->cost_ns + v->margin_ns))
		return 0;
	if (again)
		served = sub_floor_u64(served, v->margin_ns);
	gain = sub_floor_u64(served, margin) / TANDEM_SCALE * (TANDEM_SCALE - min_u64(v->risk, TANDEM_SCALE));
	gain = sub_floor_u64(gain, v->away_ns / TANDEM_SCALE * v->risk);
	return gain >= TANDEM_HARVEST_GAIN_NS + v->away_ns / 16 ? gain : 0;
}

#endif
