/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Speed of the cores, as the daemon's probes find it (vSched, EuroSys'25, section 3.1, vcap). Steal shows which
 * part of a pCPU's time a vCPU gets. How much it does with that only counted work can show, and the scheduler
 * counts none.
 */
#ifndef TANDEM_GUEST_SPEED_BPF_H
#define TANDEM_GUEST_SPEED_BPF_H

#include "vcpu.bpf.h"

SEC("syscall")
int guest_speed(struct speed_order *order)
{
	struct cpu_state *c = cpu_state(order->cpu);

	if (!c || order->cpu >= nr_cpu_ids)
		return 0;
	c->side.speed = min_u64(order->speed, TANDEM_SCALE);
	slow_cores = order->unlike;
	return 0;
}

#endif
