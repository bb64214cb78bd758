/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One vCPU per thread ("Large-vCPU VMs": many more vCPUs than pCPUs, and the host decides which thread runs).
 *
 * A vCPU belongs to the first thread that claims it, for as long as this thread runs now and then. While vCPUs
 * last every thread has one: there is no load balance and no pulling, and no thread ever waits for another
 * inside of the guest. Further threads share the least loaded vCPUs.
 *
 * Threads that sleep for long would use up the vCPUs of threads that work: a system has a hundred such threads.
 * Ownership is therefore a lease. Every slice renews it, and it ends some time after the last one.
 */
#ifndef TANDEM_POLICY_DEDICATE_H
#define TANDEM_POLICY_DEDICATE_H

#include "../base.h"

/* A vCPU is free this long after its owner's last slice. */
#define TANDEM_LEASE_NS (500 * NSEC_PER_MSEC_)

/* May another thread become the owner? `owner` 0: there is none. */
POLICY bool lease_over(s32 owner, u64 renewed_ns, bool running, u64 now_ns)
{
	return !owner || (!running && sub_floor_u64(now_ns, renewed_ns) > TANDEM_LEASE_NS);
}

#endif
