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
	X(VCPUS, vcpus_found, "threads found to run a vCPU") \
	X(IO_EVENTS, io_events, "events of I/O: interrupts of devices, kicks, and reschedule IPIs near them") \
	X(BOOSTED, boosted, "vCPUs that came before their turn because they were interrupted") \
	X(EXTENDED, extended, "turns of vCPUs that do I/O which went on although another task came first") \
	X(NOT_LENT, not_lent, "boosts refused because the VM's debt had reached its limit") \
	X(CONFLICTS, conflicts, "interrupted vCPUs that met another one which does I/O on their pCPU") \
	X(SWAPPED, swapped, "of these, those that ran in the place of a sibling instead") \
	X(PAID, paid, "turns in which a vCPU paid of its VM's debt") \
	X(FORWARDED, forwarded, "vCPUs that ran on the time of the sibling that had sent them an IPI") \
	X(HELD, held, "turns of vCPUs that went on for a moment because their guest's kernel was in a critical section") \
	X(POSTED, posted, "interrupts found posted for vCPUs that wait, of which KVM did not know") \
	X(WOKEN_FAST, woken_fast, "vCPUs that came before their turn because they were woken")

#endif
