/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Event counters of the core: number, name and meaning. They count from when the scheduler was loaded.
 * Statistics, metrics, traces and the tables in docs/GUEST.md and docs/HOST.md come from this list. One line each.
 */
#ifndef TANDEM_CORE_COUNTERS_H
#define TANDEM_CORE_COUNTERS_H

#define CORE_COUNTERS(X) \
	X(QUEUED, queued, "tasks put into a queue") \
	X(KEPT, kept, "tasks that kept running after their request, with the earliest deadline") \
	X(REGRANTED, regranted, "slices that had ended early (by steal, a timer, the tick) and went on, because no other task came first") \
	X(PULLED, pulled, "tasks pulled from another CPU's queue") \
	X(PREEMPTED, preempted, "wake-up preemptions") \
	X(FLOOR, floor, "SCHED_IDLE slices granted only to satisfy the watchdog") \
	X(ORPHANS, orphans, "tasks pulled from the queue of an offline CPU") \
	X(DUE, due, "light tasks served by wall-clock deadline, before their virtual one") \
	X(THROTTLED, throttled, "tasks that were throttled by their group's quota") \
	X(UNTHROTTLED, unthrottled, "tasks that were unthrottled") \
	X(UNENFORCED, unenforced, "quotas set for cgroups that have no record of their own: they are not enforced") \
	X(STALL_GRANTS, stall_grants, "tasks that were unthrottled without quota, only to satisfy the watchdog") \
	X(LB_PUSHED, lb_pushed, "tasks pushed to a CPU with less load by load balance") \
	X(LB_PULLED, lb_pulled, "waiting tasks pulled from a CPU with more load by load balance") \
	X(TIMERS, timers, "slice timers armed") \
	X(FAR, far, "waiting tasks pulled across last-level caches")

#endif
