/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a vCPU really gets: share of a pCPU and length of its absences,
 * measured from steal while the vCPU has work (vSched, EuroSys'25, section
 * 3.1: capacity and activity probers, reduced to what passive observation
 * gives; an idle vCPU is made busy by a best-effort prober in user space).
 *
 * Steal grows only while a vCPU wants to run and may not. `demand` is
 * therefore the time in which it wanted to: busy time, plus steal that
 * passed while the guest thought it idle (a wake-up that the host served late).
 * share = 1 - steal / demand. A window closes after TANDEM_WINDOW_NS of demand,
 * however long that takes.
 */
#ifndef TANDEM_POLICY_VCAP_H
#define TANDEM_POLICY_VCAP_H

#include "base.h"

/* A plain number, so that bindings of this header carry it too: 12 ms. */
#define TANDEM_WINDOW_NS 12000000ULL
/* Shorter absences are exits and timer work of the host, not preemptions. */
#define TANDEM_INACTIVE_MIN_NS (300 * NSEC_PER_USEC_)
/* An estimate that nothing refreshed for this long is no longer believed. */
#define TANDEM_STALE_NS (3000 * NSEC_PER_MSEC_)
/* A window this far below the average is news: what is known of others is old. */
#define TANDEM_DROP_SHARE 300U
/* Below this share a vCPU counts as contended (5-8 % steal is ordinary noise). */
#define TANDEM_CONTENDED_SHARE 860U

struct vcpu_model {
	u64 demand_ns;		/* of the open window */
	u64 stolen_ns;		/* of the open window */
	u64 updated_ns;		/* when the last window closed; 0: never */
	u64 inactive_mean_ns;	/* mean absence */
	u64 inactive_events;
	u32 share;		/* 0..1024 */
	u32 windows;		/* closed so far */
};

/* Outcome of an observation, a bit set. */
#define VCAP_WINDOW_CLOSED 1U
#define VCAP_DROPPED 2U

/*
 * Account `elapsed_ns` of a vCPU that was busy or idle meanwhile, of which
 * the host withheld `stolen_ns`.
 */
POLICY u32 vcap_observe(struct vcpu_model *m, u64 now_ns, u64 elapsed_ns, u64 stolen_ns, bool busy)
{
	u32 sample, out = VCAP_WINDOW_CLOSED;

	if (stolen_ns > elapsed_ns)
		stolen_ns = elapsed_ns;
	m->demand_ns += busy ? elapsed_ns : stolen_ns;
	m->stolen_ns += stolen_ns;
	if (stolen_ns >= TANDEM_INACTIVE_MIN_NS) {
		m->inactive_mean_ns = m->inactive_events ? ewma_u64(m->inactive_mean_ns, stolen_ns, 3) : stolen_ns;
		m->inactive_events++;
	}
	if (m->demand_ns < TANDEM_WINDOW_NS)
		return 0;

	sample = (u32)((m->demand_ns - m->stolen_ns) * TANDEM_SCALE / m->demand_ns);
	if (sample + TANDEM_DROP_SHARE < m->share)
		out |= VCAP_DROPPED;
	/* The first window is taken as it is; later ones weigh one half. */
	m->share = m->windows && m->updated_ns ? (u32)ewma_u64(m->share, sample, 1) : sample;
	m->windows++;
	m->updated_ns = now_ns;
	m->demand_ns = 0;
	m->stolen_ns = 0;
	return out;
}

POLICY bool vcap_fresh(const struct vcpu_model *m, u64 now_ns)
{
	return m->updated_ns && now_ns - m->updated_ns < TANDEM_STALE_NS;
}

/* Capacity to reckon with. Fails open: what is not known is ordinary. */
POLICY u32 vcap_effective(const struct vcpu_model *m, u64 now_ns)
{
	return vcap_fresh(m, now_ns) ? (m->share ? m->share : 1) : TANDEM_SCALE;
}

#endif
