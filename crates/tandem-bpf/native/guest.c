/* SPDX-License-Identifier: GPL-2.0-only */
/* The guest scheduler, compiled for the simulator, and what its daemon does on loading. */
#include "shim.h"

struct task_struct;
struct task_state;
struct cpu_state;
static s32 anybody_idle(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now);
#define target_of_variant anybody_idle

#include "../../../bpf/guest/main.bpf.c"
#include "exports.h"
#include "common.h"

/* How a running task leaves a vCPU that the host is about to preempt. */
enum ivh_mode {
	IVH_OFF = 0,
	IVH_AWARE = 1,	/* `--ivh` */
	IVH_UNAWARE = 2,	/* below */
};

static u32 ivh_mode;

/*
 * The paper's variant without knowledge of the host (vSched, section 5.4): after 2 ms of running a task
 * migrates to any vCPU that seems idle.
 */
static s32 anybody_idle(struct task_struct *p, struct task_state *t, struct cpu_state *c, s32 cpu, u64 now)
{
	u32 i;

	if (ivh_mode != IVH_UNAWARE || !c->side.model.inactive_events || c->tasks[1] > 1 || k_is_pinned(p) ||
	    now - c->curr_since_ns < TANDEM_IVH_BURST_NS)
		return -1;
	bpf_for(i, 1, nr_cpu_ids) {
		u32 other = cpu_after(cpu, i);
		struct cpu_state *target = cpu_state(other);

		if (target && target->online && !target->side.bans && target->curr_class != CLASS_NORMAL && !target->tasks[1] &&
		    k_allowed(p, other))
			return other;
	}
	return -1;
}

void sim_set_up_cpu(u32 cpu, u32 llc, s32 core_next, s32 stack_next, s32 llc_next, u32 speed, bool tickless)
{
	struct cpu_domain *d = bpf_map_lookup_elem(&domains, &cpu);
	struct cpu_state *c = cpu_state(cpu);

	if (c) {
		c->online = true;
		c->tickless = tickless;
		c->side.speed = speed;
	}
	if (speed < TANDEM_SCALE)
		slow_cores = 1;
	if (!d)
		return;
	d->llc = llc;
	d->core_next = core_next;
	d->stack_next = stack_next;
	d->llc_next = llc_next;
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

void sim_set_techniques(u32 ivh, bool bvs, bool rwc, bool dedicate, u32 left_out)
{
	*(volatile u32 *)&parts_left_out = left_out;
	ivh_mode = ivh;
	*(volatile bool *)&ivh_enabled = ivh == IVH_AWARE;
	*(volatile bool *)&bvs_enabled = bvs;
	*(volatile bool *)&rwc_enabled = rwc;
	*(volatile bool *)&dedicate_enabled = dedicate;
}

/* The operator, or the vCPU limit, takes a vCPU out of use or gives it back. Returns an error of `enum park_error`. */
u32 sim_park(u32 cpu, bool take, bool limit)
{
	struct park_query query = {
		.cpu = cpu,
		.what = take ? PARK_TAKE : PARK_GIVE_BACK,
		.by = limit ? TANDEM_PARKED_BY_LIMIT : TANDEM_PARKED_BY_OPERATOR,
	};

	guest_park(&query);
	return query.error;
}

/* Bans of a vCPU, and in the upper half the number of banned vCPUs that the scheduler believes in. */
u64 sim_bans(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	return (u64)nr_banned << 32 | (c ? c->side.bans : 0);
}

/* For how long a vCPU had work, steal included, and for how long it was preempted meanwhile. */
u64 sim_wanted_ns(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	return c ? c->side.wanted_ns : 0;
}

u64 sim_stolen_ns(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	return c ? c->side.stolen_ns : 0;
}
