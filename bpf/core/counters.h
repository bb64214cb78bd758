/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Event counters of the core: number, name and meaning. They count from when the scheduler was loaded.
 * Statistics, metrics, traces and the table in docs/GUEST.md come from this list. One line each.
 */
#ifndef TANDEM_CORE_COUNTERS_H
#define TANDEM_CORE_COUNTERS_H

#define CORE_COUNTERS(X) \
	X(QUEUED, queued, "tasks put into a queue") \
	X(KEPT, kept, "tasks that went on after their request, first by deadline") \
	X(REGRANTED, regranted, "slices given back that the host had stolen") \
	X(PULLED, pulled, "tasks taken from another vCPU's queue") \
	X(PREEMPTED, preempted, "wake-up preemptions") \
	X(FLOOR, floor, "best-effort slices given only to satisfy the watchdog") \
	X(ORPHANS, orphans, "tasks taken from the queue of an offline vCPU") \
	X(DUE, due, "light tasks served by the clock on the wall, before their deadline") \
	X(THROTTLED, throttled, "tasks that had to wait for their group's quota") \
	X(UNTHROTTLED, unthrottled, "tasks that came back from there") \
	X(ON_DEBT, on_debt, "tasks that came back without quota, only to satisfy the watchdog") \
	X(GIVEN, given, "tasks handed to a lighter CPU, for fairness across CPUs") \
	X(EVENED, evened, "waiting tasks taken over from a heavier CPU") \
	X(TIMERS, timers, "slice timers armed") \
	X(FAR, far, "waiting tasks taken across last-level caches")

#endif
