/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Event counters of the guest side: number, name and meaning. They count from when the scheduler was loaded.
 * Statistics, metrics, traces and the table in docs/GUEST.md come from this list. One line each.
 */
#ifndef TANDEM_GUEST_COUNTERS_H
#define TANDEM_GUEST_COUNTERS_H

#define SIDE_COUNTERS(X) \
	X(DIRECT, direct, "tasks woken straight onto an idle vCPU") \
	X(RESCUED, rescued, "tasks pulled from a vCPU that the host had preempted") \
	X(PUSHED, pushed, "running tasks moved to a stronger vCPU") \
	X(STEERED, steered, "wake-ups sent to a better vCPU than the previous one") \
	X(DECLINED, declined, "waiting tasks that a weak idle vCPU left where they are served sooner") \
	X(DROPS, drops, "sudden losses of share") \
	X(FORESEEN, foreseen, "vCPUs called because another would soon be taken by the host") \
	X(HARVESTED, harvested, "running tasks that left before their vCPU was taken") \
	X(HARVESTED_US, harvested_us, "what these gained by it, as foreseen (us)") \
	X(ABANDONED, abandoned, "such moves given up: nobody answered, or nothing was to be gained") \
	X(TAKEN_BACK, taken_back, "tasks on their way to another vCPU that were not fetched in time") \
	X(CAUGHT, caught, "CPU-bound tasks whose vCPU was taken before they had left") \
	X(STRAGGLERS, stragglers, "vCPUs found to get about a tenth of what others get") \
	X(EVICTED, evicted, "tasks sent away from a vCPU that is left without work") \
	X(HELD, held, "best-effort work interrupted for normal work on the same hardware thread") \
	X(HINTED, hinted, "wake-ups of tasks that shall answer soon by the user's word") \
	X(LEASES, leases, "threads that were given a vCPU of their own")

#endif
