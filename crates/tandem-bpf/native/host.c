/* SPDX-License-Identifier: GPL-2.0-only */
/* The host scheduler, compiled for the simulator, and what its daemon and KVM's hooks do. */
#include "shim.h"
#include "../../../bpf/host/main.bpf.c"
#include "exports.h"
#include "common.h"

void sim_set_up_cpu(u32 cpu, u32 llc, s32 core_next, s32 stack_next, s32 llc_next, u32 speed, bool tickless)
{
	struct cpu_domain *d = bpf_map_lookup_elem(&domains, &cpu);
	struct cpu_state *c = cpu_state(cpu);

	if (c) {
		c->online = true;
		c->tickless = tickless;
	}
	if (!d)
		return;
	d->llc = llc;
	d->core_next = cpu;
	d->stack_next = cpu;
	d->llc_next = llc_next;
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
	sees_vcpus_come = 1;
	sees_interrupts = 1;
	programs_may_kick = 1;
	nr_llcs = llcs;
}

#define SIM_VMS 4096
#define SIM_VCPUS 65536

/* What of the per-CPU area of a guest is read. */
static struct guest_area {
	u64 steal;
	u64 task;
	u32 preempt_count;
	u32 unused;
} guest_areas[SIM_VCPUS];

/* What every VM does without; the rest is the guest's. */
void sim_set_techniques(u32 ivh, bool bvs, bool rwc, bool dedicate, u32 left_out)
{
	u32 vm;

	for (vm = 0; vm < MAX_VMS; vm++) {
		struct vm_settings *s = bpf_map_lookup_elem(&settings, &vm);

		if (!s)
			return;
		s->valid = 1;
		s->off = left_out ? left_out : VM_OFF_BY_DEFAULT;
		s->task_distance = offsetof(struct guest_area, task);
		s->depth_distance = offsetof(struct guest_area, preempt_count);
	}
}

/* KVM's records of VMs and their vCPUs: what of them is read. */
static struct kvm___tandem kvms[SIM_VMS];
static struct vcpu_vmx___tandem vmx[SIM_VCPUS];
static struct kvm_lapic___tandem kvm_lapics[SIM_VCPUS];
static struct {
	struct pid pid;
	struct upid number;
} kvm_pids[SIM_VCPUS];

/* The current thread enters KVM's run function for this vCPU of this VM. Returns whether there are records for them. */
bool sim_runs_vcpu(u32 vm, u32 vcpu)
{
	struct kvm_vcpu___tandem *v;
	u64 ctx[1];

	if (vm >= SIM_VMS || vcpu >= SIM_VCPUS)
		return false;
	v = &vmx[vcpu].vcpu;
	v->kvm = &kvms[vm];
	v->vcpu_id = vcpu;
	v->wants_to_run = true;
	v->arch.st.msr_val = KVM_MSR_ENABLED___TANDEM;
	v->arch.st.cache.hva = (u64)&guest_areas[vcpu];
	kvm_pids[vcpu].pid.numbers[0].nr = k_current_pid();
	v->pid = &kvm_pids[vcpu].pid;
	kvm_lapics[vcpu].vcpu = v;
	ctx[0] = (u64)v;
	host_vcpu_runs(ctx);
	return true;
}

/* The current thread is switched in while KVM does something else with this vCPU for it: it sets registers, say. */
void sim_sets_up_vcpu(u32 vm, u32 vcpu)
{
	struct kvm_vcpu___tandem *v = &vmx[vcpu % SIM_VCPUS].vcpu;
	u64 ctx[1] = { (u64)&v->preempt_notifier };

	v->kvm = &kvms[vm % SIM_VMS];
	v->wants_to_run = false;
	host_vcpu_comes(ctx);
}

/* The current thread, in KVM's run function for this vCPU, has been switched in. */
void sim_vcpu_comes(u32 vcpu)
{
	u64 ctx[1] = { (u64)&vmx[vcpu % SIM_VCPUS].vcpu.preempt_notifier };

	host_vcpu_comes(ctx);
}

/* The vCPU of the current thread leaves its guest. */
void sim_vcpu_exits(u32 vcpu)
{
	u64 ctx[2] = { (u64)&vmx[vcpu % SIM_VCPUS].vcpu, KVM_ISA_SVM___TANDEM };

	host_vcpu_exits(ctx);
}

/* The reason of its exit is being handled. */
void sim_handles_exit(void)
{
	u64 ctx[1] = { 0 };

	host_handles_svm(ctx);
}

/* KVM accepts an interrupt for this vCPU. The current thread sends it. */
void sim_interrupt(u32 vcpu, u32 vector)
{
	u64 ctx[3] = { (u64)&kvm_lapics[vcpu % SIM_VCPUS], 0, vector };

	host_interrupt(ctx);
}

/* The vCPU of the current thread writes to a device. */
void sim_kick(void)
{
	u64 ctx[1] = { 0 };

	host_kick(ctx);
}

/* The guest's current task on this vCPU, and its preemption count. */
void sim_guest_runs(u32 vcpu, u64 task, u32 preempt_count)
{
	guest_areas[vcpu % SIM_VCPUS].task = task;
	guest_areas[vcpu % SIM_VCPUS].preempt_count = preempt_count;
}

/* Hardware posts an interrupt for this vCPU, and KVM is not told. Or, with `taken`, the vCPU has taken it. */
void sim_posts(u32 vcpu, u32 vector, bool taken)
{
	u64 bit = 1ULL << (vector & 63);
	unsigned long *word = &vmx[vcpu % SIM_VCPUS].pi_desc.pir[vector / 64 & 3];

	posted_by = POSTED_BY_INTEL;
	*word = taken ? *word & ~bit : *word | bit;
}

/* What a VM owes, ns; without a number, the tasks of no VM. */
s64 sim_debt_of(u32 vm)
{
	u64 key = (u64)&kvms[vm % SIM_VMS];
	u32 *number = bpf_map_lookup_elem(&vm_numbers, &key);

	return *account_of(number ? *number : 0);
}

/* All debts, less all credits: nothing. */
s64 sim_sum_of_debts(void)
{
	s64 sum = others_debt_ns;
	u32 number;

	for (number = 1; number <= MAX_VMS; number++) {
		struct vm_state *vm = vm_state(number);

		if (!vm)
			break;
		sum += vm->debt_ns;
	}
	return sum;
}

/* A setting that is the same for all VMs. */
void sim_set_conflict(u32 conflict)
{
	u32 vm;

	for (vm = 0; vm < MAX_VMS; vm++) {
		struct vm_settings *s = bpf_map_lookup_elem(&settings, &vm);

		if (!s)
			return;
		s->valid = 1;
		s->conflict = conflict;
	}
}

/* KVM destroys a VM. */
void sim_vm_ends(u32 vm)
{
	u64 ctx[1] = { (u64)&kvms[vm % SIM_VMS] };

	host_vm_ends(ctx);
}

/* VMs that have a vCPU counted on some pCPU; with none runnable there must be none. */
u64 sim_left_of_vms(void)
{
	u64 left = 0;
	u32 number, i;

	for (number = 1; number <= MAX_VMS; number++) {
		struct vm_state *vm = vm_state(number);
		bool counted = false;

		if (!vm)
			break;
		for (i = 0; i < MAX_PLACES; i++)
			counted |= vm->at[i] != 0;
		left += counted;
	}
	return left;
}
