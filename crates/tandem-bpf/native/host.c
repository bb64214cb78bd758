/* SPDX-License-Identifier: GPL-2.0-only */
/* The host scheduler, compiled for the simulator, and what its daemon and KVM's hooks do. */
#include "shim.h"
#include "../../../bpf/host/main.bpf.c"
#include "exports.h"
#include "common.h"

void sim_set_up_cpu(u32 cpu, u32 llc, s32 core_next, s32 stack_next, u32 speed)
{
	struct cpu_domain *d = bpf_map_lookup_elem(&domains, &cpu);
	struct cpu_state *c = cpu_state(cpu);

	if (c)
		c->online = true;
	if (!d)
		return;
	d->llc = llc;
	d->core_next = cpu;
	d->stack_next = cpu;
}

/* A host has neither a page nor faults. */
void sim_set_up(u32 cpu_ids, bool page, u64 request_ns, bool timers, u64 watchdog, u32 llcs, bool uneven_rings,
		u32 injected)
{
	*(volatile u32 *)&nr_cpu_ids = cpu_ids;
	*(volatile u64 *)&base_request_ns = request_ns;
	*(volatile bool *)&slice_timers_enabled = timers;
	*(volatile u64 *)&watchdog_ns = watchdog;
	safe_points = SAFE_BEFORE_ENTRY | SAFE_AFTER_EXIT;
	nr_llcs = llcs;
}

/* What every VM does without; the rest is the guest's. */
void sim_set_techniques(u32 ivh, bool bvs, bool rwc, bool dedicate, u32 left_out)
{
	u32 vm;

	for (vm = 0; vm < MAX_VMS; vm++) {
		struct vm_settings *s = bpf_map_lookup_elem(&settings, &vm);

		if (!s)
			return;
		s->valid = left_out != 0;
		s->off = left_out;
	}
}

/* KVM's run function, called by this task for a vCPU of this VM. */
void sim_runs_vcpu(struct task_struct *p, u64 kvm, u64 vcpu, u32 pid)
{
	struct task_state *t = task_state(p);

	if (t)
		vcpu_of_vm(t, p->pid, vcpu, kvm, pid);
}

/* It is where it holds no kernel lock, or not. */
void sim_set_safe(struct task_struct *p, bool safe)
{
	struct task_state *t = task_state(p);

	if (t)
		t->side.safe = safe ? limits_generation : 0;
}
