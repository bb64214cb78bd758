/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * vCPUs taken out of use and back, by the operator (balloons of vCPUs without hotplug) or by the vCPU limit.
 * The daemon says which. The ban does the rest: a running task leaves at once, waiting tasks are migrated, no
 * new task is placed there. Tasks that may run nowhere else stay, and are reported.
 */
#ifndef TANDEM_GUEST_PARK_BPF_H
#define TANDEM_GUEST_PARK_BPF_H

#include "ban.bpf.h"

/* Number of vCPUs besides `cpu` that are in use. */
COLD u32 others_in_use(u32 cpu)
{
	u32 others = 0, i;

	bpf_for(i, 0, nr_cpu_ids) {
		struct cpu_state *c = cpu_state(i);

		if (c && i != cpu && c->online && !c->side.parked)
			others++;
	}
	return others;
}

SEC("syscall")
int guest_park(struct park_query *q)
{
	struct cpu_state *c = cpu_state(q->cpu);
	u32 by = q->by & (TANDEM_PARKED_BY_OPERATOR | TANDEM_PARKED_BY_LIMIT);

	q->error = PARK_NO_CPU;
	/* One that has gone offline is given back, so that it is in use when it comes again. */
	if (q->cpu >= nr_cpu_ids || !c || !(c->online || (q->what == PARK_GIVE_BACK && c->side.parked & by)))
		return 0;
	q->error = PARK_LAST;
	if (q->what == PARK_TAKE && !c->side.parked && !others_in_use(q->cpu))
		return 0;
	q->error = PARK_DONE;
	q->was = c->side.parked;
	if (q->what == PARK_TAKE && !(c->side.parked & by)) {
		if (!c->side.parked) {
			c->side.parked_at_ns = k_now();
			c->side.emptied_ns = is_idle(c);
		}
		c->side.parked |= by;
		add_bans(c, bans_of_parked(by));
		k_kick_preempt(q->cpu);
	} else if (q->what == PARK_GIVE_BACK && c->side.parked & by) {
		c->side.parked &= ~by;
		lift_bans(c, bans_of_parked(by));
		if (c->online)
			k_kick_idle(q->cpu);
	}
	/* Not its sums: they include migrated tasks until these run elsewhere. */
	q->left = !is_idle(c) + waiting_normal(q->cpu, c) + k_waiting(queue_of(q->cpu, CLASS_BEST_EFFORT));
	q->emptied_ns = c->side.emptied_ns;
	return 0;
}

#endif
