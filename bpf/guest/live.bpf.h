/* SPDX-License-Identifier: GPL-2.0-only */
/* For tests: what the scheduler assumes of a vCPU at this moment. */
#ifndef TANDEM_GUEST_LIVE_BPF_H
#define TANDEM_GUEST_LIVE_BPF_H

#include "vcpu.bpf.h"

SEC("syscall")
int guest_live(struct live_query *q)
{
	struct cpu_state *c = cpu_state(q->cpu);

	q->steal_ns = steal_of(q->cpu);
	q->off = c && is_preempted(q->cpu, c, k_now());
	return 0;
}

#endif
