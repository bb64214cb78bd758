/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One vCPU per thread ("Large-vCPU VMs": many more vCPUs than pCPUs, and the
 * host decides who runs).
 *
 * A vCPU belongs to the thread that came first, for as long as that runs now
 * and then. While vCPUs last every thread has one: nobody is balanced, nobody
 * is taken from anybody, no thread ever waits for another inside of the guest.
 * Threads beyond that share the least loaded vCPUs.
 *
 * Threads that sleep for long would use up the vCPUs of those that work: a
 * system has a hundred such threads. Ownership is therefore a lease, which
 * every turn renews and which ends some time after the last one.
 */
#ifndef TANDEM_POLICY_DEDICATE_H
#define TANDEM_POLICY_DEDICATE_H

#include "../base.h"

/* So long after its owner's last turn a vCPU is free. */
#define TANDEM_LEASE_NS (500 * NSEC_PER_MSEC_)

/* May somebody else become the owner? `owner`: 0 is nobody. */
POLICY bool lease_over(s32 owner, u64 renewed_ns, bool running, u64 now_ns)
{
	return !owner || (!running && sub_floor_u64(now_ns, renewed_ns) > TANDEM_LEASE_NS);
}

#endif
