/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Event counters of the host side: number, name and meaning. They count from when the scheduler was loaded.
 * Statistics, metrics, traces and the table in docs/HOST.md come from this list. One line each.
 */
#ifndef TANDEM_HOST_COUNTERS_H
#define TANDEM_HOST_COUNTERS_H

#define SIDE_COUNTERS(X) \
	X(DIRECT, direct, "tasks woken straight onto an idle pCPU") \
	X(UNSTACKED, unstacked, "vCPUs placed or migrated away from a pCPU that a sibling of the same VM is on") \
	X(YIELDS, yields, "directed yields that KVM asked for") \
	X(YIELDED, yielded, "directed yields whose target ran next on the yielder's pCPU") \
	X(BROKEN, broken, "directed yields that were claimed and not kept; must be 0") \
	X(ON_DEBT, on_debt, "slices without quota: of a vCPU that may hold a kernel lock, or of a VMM") \
	X(VCPUS, vcpus_found, "threads found to run a vCPU")

#endif
