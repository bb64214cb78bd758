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
 * more than two ticks. Where the kernel accounts for none either, because the
 * hypervisor tells nothing or the kernel does not listen (no-steal-acc), a
 * busy vCPU's ticks are late by what it was absent: steal_guessed().
 */
#ifndef TANDEM_GUEST_STEAL_BPF_H
#define TANDEM_GUEST_STEAL_BPF_H

#include "records.bpf.h"

extern const struct kvm_steal_time steal_time __ksym __weak;
extern const struct kernel_cpustat kernel_cpustat __ksym __weak;

/* Set by the daemon when CPUID says that the hypervisor offers the page. */
const volatile bool kvm_steal_page = false;
/* Set by the daemon: steal may be guessed where nobody tells it. */
const volatile bool steal_may_be_guessed = false;

/* The hypervisor offers the page, but the kernel has not told it where: nothing was ever written there. */
u32 steal_page_unused;
/* Nobody tells steal. */
u32 steal_untold;

/* Interrupts that are off for a while make a tick late, too, but hardly by more than this. */
#define GUESS_LATE_NS NSEC_PER_MSEC_

/* Shortest time between two ticks that was seen, their regular distance; at first that of the slowest kernel (HZ=100). */
u64 tick_ns = 10 * NSEC_PER_MSEC_;

static __always_inline bool page_used(void)
{
	return kvm_steal_page && !steal_page_unused && bpf_ksym_exists(&steal_time);
}

/* As the kernel accounts for it. */
static __always_inline u64 steal_accounted(s32 cpu)
{
	const struct kernel_cpustat *ks;

	if (!bpf_ksym_exists(&kernel_cpustat))
		return 0;
	ks = bpf_per_cpu_ptr(&kernel_cpustat, cpu);
	return ks ? ks->cpustat[CPUTIME_STEAL] : 0;
}

static __always_inline u64 steal_of(s32 cpu)
{
	if (page_used()) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st ? st->steal : 0;
	}
	return steal_accounted(cpu);
}

/* How often the host has let a vCPU run again; wraps. 0: it does not tell. */
static __always_inline u32 returns_of(s32 cpu)
{
	if (page_used()) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st ? st->version >> 1 : 0;
	}
	return 0;
}

/*
 * A tick came `late_ns` too late: the vCPU was absent. The absence began at any moment since the tick before that, half a
 * tick earlier on average. Absences between two ticks are not seen; by the same mean they are counted with those that are.
 * That is good enough for telling what vCPUs get, not for charging tasks.
 */
static __always_inline u64 steal_guessed(u64 late_ns, u64 elapsed_ns)
{
	return late_ns < GUESS_LATE_NS ? 0 : min_u64(late_ns + tick_ns / 2, elapsed_ns);
}

/* Whom does steal come from? Once, when the scheduler is loaded: each vCPU has run by then. */
static __always_inline void find_steal_source(void)
{
	bool lives = false, accounted = false;
	u32 i;

	bpf_for(i, 0, nr_cpu_ids) {
		lives |= returns_of(i) != 0;
		accounted |= steal_accounted(i) != 0;
	}
	steal_page_unused = kvm_steal_page && !lives;
	steal_untold = steal_may_be_guessed && !page_used() && !accounted;
}

/* Is a vCPU that has work off its pCPU right now? */
static __always_inline bool off_pcpu(s32 cpu, const struct cpu_state *c, u64 now)
{
	if (page_used()) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st && st->preempted;
	}
	return c->curr_class != CLASS_NONE && now - c->side.seen_at_ns > tick_ns * 9 / 4;
}

#endif
