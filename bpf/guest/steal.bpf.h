/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the hypervisor reports: steal, and whether a vCPU runs at this moment.
 *
 * On KVM both are in the steal time page of each vCPU, live. `steal` is the run delay of the vCPU thread on the
 * host (exact whenever the vCPU runs, because it is written at every entry). `preempted` is set when the vCPU
 * loses its pCPU. An idle vCPU also has `preempted` set, so the flag means a preemption only if the vCPU has
 * work. `version` goes up by two each time the host schedules the vCPU in.
 *
 * Elsewhere steal comes from the kernel's accounting (one tick late), and preemption from a heartbeat: a busy
 * vCPU that shows no sign of life for more than two ticks. Where the kernel accounts no steal either, because
 * the hypervisor does not report it, a busy vCPU's ticks are late by the time for which it was preempted:
 * steal_guessed().
 */
#ifndef TANDEM_GUEST_STEAL_BPF_H
#define TANDEM_GUEST_STEAL_BPF_H

#include "records.bpf.h"

extern const struct kvm_steal_time steal_time __ksym __weak;
extern const struct kernel_cpustat kernel_cpustat __ksym __weak;

/* Set by the daemon when CPUID says that the hypervisor offers the page. */
const volatile bool kvm_steal_page = false;
/* Set by the daemon: steal may be estimated where it is not reported. */
const volatile bool steal_may_be_guessed = false;

/* The hypervisor offers the page, but the kernel has not told it where: it was never written. */
u32 steal_page_unused;
/* Steal is not reported. */
u32 steal_untold;

/* Disabled interrupts make a tick late, too, but hardly by more than this. */
#define GUESS_LATE_NS NSEC_PER_MSEC_

/* Regular distance of two ticks; until it is known that of the slowest kernel (HZ=100). */
u64 tick_ns = 10 * NSEC_PER_MSEC_;

/* Jiffies, which the kernel counts by the clock however late its ticks are, tell how long one is. */
#define TICK_JIFFIES 32
u64 first_jiffies;
u64 first_jiffies_at_ns;
u32 tick_known;

COLD int learn_tick(u64 now)
{
	u64 jiffies_now = k_jiffies(), passed = jiffies_now - first_jiffies;

	if (!first_jiffies_at_ns) {
		first_jiffies = jiffies_now;
		first_jiffies_at_ns = now;
	} else if (passed >= TICK_JIFFIES) {
		tick_ns = tick_length_ns(sub_floor_u64(now, first_jiffies_at_ns) / passed);
		tick_known = 1;
	}
	return 0;
}

static __always_inline bool page_used(void)
{
	return kvm_steal_page && !steal_page_unused && bpf_ksym_exists(&steal_time);
}

/* Steal as the kernel accounts it. */
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

/* How often the host has scheduled a vCPU in; wraps. 0: it is not reported. */
static __always_inline u32 sched_ins_of(s32 cpu)
{
	if (page_used()) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st ? st->version >> 1 : 0;
	}
	return 0;
}

/*
 * A tick came `late_ns` too late: the vCPU was preempted. The preemption began at any moment since the tick
 * before, half a tick before this tick was due on average. Preemptions between two ticks are not observed; the
 * same mean counts them with those that are. That is good enough to estimate shares, not to charge tasks.
 */
static __always_inline u64 steal_guessed(u64 late_ns, u64 elapsed_ns)
{
	return late_ns < GUESS_LATE_NS ? 0 : min_u64(late_ns + tick_ns / 2, elapsed_ns);
}

/* Where does steal come from? Asked once, when the scheduler is loaded: each vCPU has run by then. */
static __always_inline void find_steal_source(void)
{
	bool lives = false, accounted = false;
	u32 i;

	bpf_for(i, 0, nr_cpu_ids) {
		lives |= sched_ins_of(i) != 0;
		accounted |= steal_accounted(i) != 0;
	}
	steal_page_unused = kvm_steal_page && !lives;
	steal_untold = steal_may_be_guessed && !page_used() && !accounted;
}

/* Is a vCPU that has work preempted right now? */
static __always_inline bool is_preempted(s32 cpu, const struct cpu_state *c, u64 now)
{
	if (page_used()) {
		const struct kvm_steal_time *st = bpf_per_cpu_ptr(&steal_time, cpu);

		return st && st->preempted;
	}
	/* Where a task runs without ticks there is nothing to go by. */
	return c->curr_class != CLASS_NONE && !c->endless && now - c->side.seen_at_ns > tick_ns * 9 / 4;
}

#endif
