/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the hypervisor says: steal, and whether a vCPU runs at this moment.
 *
 * On KVM both stand in the paravirtual page of each vCPU, live: `steal` is
 * the run delay of the vCPU thread on the host (exact whenever the vCPU runs,
 * for it is written at every entry), `preempted` is set when the vCPU loses
 * its pCPU. An idle vCPU also has `preempted` set, so nobody may take the
 * flag for inactivity without asking whether the vCPU had work. `version`
 * goes up by two each time the host lets the vCPU run again.
 * Elsewhere steal comes from the kernel's accounting (one tick late) and
 * inactivity from a heartbeat: a busy vCPU that shows no sign of life for
 * more than two ticks.
 */
#ifndef TANDEM_CORE_STEAL_BPF_H
#define TANDEM_CORE_STEAL_BPF_H

#include "state.bpf.h"

extern const struct kvm_steal_time steal_time __ksym __weak;
extern const struct kernel_cpustat kernel_cpustat __ksym __weak;

/* Set by the daemon when CPUID says that the page is in use. */
const volatile bool kvm_steal_page = false;

#define HEARTBEAT_LOST_NS (9 * NSEC_PER_MSEC_)

static __always_inline u64 steal_of(s32 cpu)
{
	if (kvm_steal_page && bpf_ksym_exists(&steal_time)) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st ? st->steal : 0;
	}
	if (bpf_ksym_exists(&kernel_cpustat)) {
		const struct kernel_cpustat *ks = bpf_per_cpu_ptr(&kernel_cpustat, cpu);

		return ks ? ks->cpustat[CPUTIME_STEAL] : 0;
	}
	return 0;
}

/* How often the host has let a vCPU run again; wraps. 0: it does not tell. */
static __always_inline u32 returns_of(s32 cpu)
{
	if (kvm_steal_page && bpf_ksym_exists(&steal_time)) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st ? st->version >> 1 : 0;
	}
	return 0;
}

/* Is a vCPU that has work off its pCPU right now? */
static __always_inline bool off_pcpu(s32 cpu, const struct cpu_state *c, u64 now)
{
	if (kvm_steal_page && bpf_ksym_exists(&steal_time)) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st && st->preempted;
	}
	return c->curr_class != CLASS_NONE && now - c->seen_at_ns > HEARTBEAT_LOST_NS;
}

#endif
