/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Event counters of the guest side: number, name and meaning. They count from when the scheduler was loaded.
 * Statistics, metrics, traces and the table in docs/GUEST.md come from this list. One line each.
 */
#ifndef TANDEM_GUEST_COUNTERS_H
#define TANDEM_GUEST_COUNTERS_H

#define SIDE_COUNTERS(X) \
	X(DIRECT, direct, "tasks woken straight onto an idle vCPU") \
	X(RESCUED, rescued, "tasks pulled from a preempted vCPU") \
	X(PUSHED, pushed, "running tasks moved to a stronger vCPU") \
	X(STEERED, steered, "wake-ups sent to a better vCPU than the previous one") \
	X(DECLINED, declined, "waiting tasks that a weak idle vCPU did not pull because they run sooner where they are") \
	X(DROPS, drops, "sudden drops of a vCPU's share") \
	X(PREDICTED, predicted, "vCPUs kicked because another would soon be preempted") \
	X(MIGRATED_EARLY, migrated_early, "running tasks that migrated before their vCPU was preempted") \
	X(MIGRATED_EARLY_US, migrated_early_us, "what these gained by it, as predicted (us)") \
	X(ABANDONED, abandoned, "such migrations given up: the target did not answer, or nothing was to be gained") \
	X(TAKEN_BACK, taken_back, "tasks on their way to another vCPU that were not pulled in time") \
	X(CAUGHT, caught, "CPU-bound tasks whose vCPU was preempted before they had migrated") \
	X(STRAGGLERS, stragglers, "vCPUs found to get about a tenth of what others get") \
	X(EVICTED, evicted, "tasks moved off a vCPU that is left without work") \
	X(HELD, held, "SCHED_IDLE tasks preempted for normal tasks on the same hardware thread") \
	X(HINTED, hinted, "wake-ups of tasks that the user marked as latency-sensitive") \
	X(LEASES, leases, "threads that were given a vCPU of their own")

#endif
