/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a guest does, as its own memory says (Anubis, SoCC'23, "Introspection").
 *
 * A Linux guest that reads its steal time tells KVM where that is: in the per-CPU area of each vCPU, in which the kernel also keeps its
 * current task, and how often preemption is disabled. How far these are from the steal time depends on how the guest's kernel was
 * built. The daemon finds it out (crates/tandem-host/src/inside); here is what words read at such a distance mean. Any word may be there: the guest may
 * have booted another kernel, its memory may be encrypted, it may lie.
 */
#ifndef TANDEM_POLICY_HOST_INSIDE_H
#define TANDEM_POLICY_HOST_INSIDE_H

#include "answer.h"

/* A turn does not end in a critical section of the guest's kernel: it goes on for so long at a time ... */
#define TANDEM_CRITICAL_STEP_NS (100 * NSEC_PER_USEC_)
/* ... and so many times. */
#define TANDEM_CRITICAL_STEPS_MAX 2

/* Addresses of the kernel are above this, with page tables of 4 levels or 5 (Documentation/arch/x86/x86_64/mm.rst). */
#define K_KERNEL_FROM 0xff00000000000000ULL
/* Tasks are aligned to a cache line. */
#define K_TASK_ALIGN 64

/* Bits of the preemption count (include/linux/preempt.h): how often preemption is disabled, soft and hard interrupts, NMIs. */
#define K_PREEMPT_BITS 0x000000ff
#define K_SOFTIRQ_BITS 0x0000ff00
#define K_HARDIRQ_BITS 0x000f0000
#define K_NMI_BITS 0x00f00000
/* Set on x86 while the kernel need not reschedule. */
#define K_NO_RESCHED_BIT 0x80000000

/* Can this be the address of a task in the guest? */
POLICY bool is_guest_task(u64 word)
{
	return word >= K_KERNEL_FROM && !(word & (K_TASK_ALIGN - 1));
}

/* Can this be a preemption count? */
POLICY bool is_preempt_count(u32 word)
{
	return !(word & ~(u32)(K_PREEMPT_BITS | K_SOFTIRQ_BITS | K_HARDIRQ_BITS | K_NMI_BITS | K_NO_RESCHED_BIT));
}

/* Is the guest's kernel where no other task could run: does it hold a spinlock, or handle an interrupt? */
POLICY bool is_critical(u32 preempt_count)
{
	return is_preempt_count(preempt_count) && (preempt_count & ~(u32)K_NO_RESCHED_BIT);
}

/*
 * May a turn that is over go on, because the guest is in a critical section? `steps`: those it had. `votes`: turns since the last one that did not come
 * out of a critical section in time, as votes_after() counts them. One that waits there for a sibling that is preempted never does, nor a guest
 * that polls while it is idle.
 */
POLICY bool may_hold(u32 steps, u32 votes)
{
	return is_voted(votes) && steps < TANDEM_CRITICAL_STEPS_MAX;
}

#endif
