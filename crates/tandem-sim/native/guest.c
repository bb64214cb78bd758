/* SPDX-License-Identifier: GPL-2.0-only */
/* The guest scheduler, compiled for the simulator; and what its daemon does when it loads it. */
#include "shim.h"
#include "../../../bpf/guest/main.bpf.c"
#include "exports.h"

void sim_set_up_cpu(u32 cpu, u32 llc, s32 core_next, s32 stack_next)
{
	struct cpu_domain *d = bpf_map_lookup_elem(&domains, &cpu);
	struct cpu_state *c = bpf_map_lookup_elem(&cpus, &cpu);

	if (c)
		c->online = true;
	if (!d)
		return;
	d->llc = llc;
	d->core_next = core_next;
	d->stack_next = stack_next;
}

void sim_set_up(u32 cpu_ids, bool page, u64 request_ns, bool timers, u64 watchdog, u32 llcs, bool uneven_rings,
		u32 injected)
{
	*(volatile u32 *)&nr_cpu_ids = cpu_ids;
	*(volatile bool *)&kvm_steal_page = page;
	*(volatile u64 *)&base_request_ns = request_ns;
	*(volatile bool *)&slice_timers_enabled = timers;
	*(volatile u64 *)&watchdog_ns = watchdog;
	*(volatile u32 *)&fault = injected;
	nr_llcs = llcs;
	uneven_cores = uneven_rings;
}

void sim_set_techniques(u32 harvest, bool bvs, bool rwc, bool dedicate, u32 left_out)
{
	*(volatile u32 *)&parts_left_out = left_out;
	*(volatile u32 *)&harvest_mode = harvest;
	*(volatile bool *)&bvs_enabled = bvs;
	*(volatile bool *)&rwc_enabled = rwc;
	*(volatile bool *)&dedicate_enabled = dedicate;
}

/* Sum of a counter over all CPUs. */
u64 sim_counter(u32 id)
{
	u64 sum = 0;
	u32 cpu;

	for (cpu = 0; cpu < nr_cpu_ids && id < NR_COUNTERS; cpu++) {
		struct cpu_state *c = bpf_map_lookup_elem(&cpus, &cpu);

		if (c)
			sum += c->counters[id];
	}
	return sum;
}
