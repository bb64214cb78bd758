/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtual deadlines, after EEVDF (Stoica and Abdel-Wahab, 1995).
 *
 * Every queue has a virtual time V, the mean of its tasks' v by weight: it advances by service / total weight, and
 * moves when a task joins or leaves that is owed something or owes it. A task's virtual runtime v advances
 * by service / its weight; lag = V - v is what the task is owed (in nanoseconds at nice 0). A task has a
 * request r of CPU time and gets a deadline; the earliest deadline runs. Lag, never v, is what a task carries
 * from one queue to another, because each queue has a V of its own.
 *
 * In place of EEVDF's eligibility test (v <= V at the pick) the distance of the deadline is bounded: deadline =
 * v + min(r / weight, B). A picked task i has v_i + d_i <= v_j + d_j with 0 < d <= B for all j, so after its
 * slice it leads any waiting task by at most B + r_i / w_i, however many tasks compete (as in start-time fair
 * queuing, Goyal 1996, and borrowed virtual time, Duda 1999). With the plain r / weight a heavy task would lead
 * a light one by the light one's whole r / w. One queue ordered by one key suffices, where the test needs two.
 *
 * A bounded deadline moves along with v while the task runs, until what is left of the request is within the bound. If it stood still
 * the task would run past it, and no task that wakes up would come before the end of the request.
 */
#ifndef TANDEM_POLICY_EEVDF_H
#define TANDEM_POLICY_EEVDF_H

#include "base.h"

#define TANDEM_WEIGHT_NICE_0 1024U
/* Weight of SCHED_IDLE tasks among themselves; they have a queue of their own. */
#define TANDEM_WEIGHT_IDLE 3U
/*
 * Effective weights, the product of nice and the cgroups above, have ten more bits: 1 << 20 is a task of nice 0
 * outside of all groups.
 */
#define TANDEM_EFFECTIVE_SHIFT 10U
#define TANDEM_UNIT (1ULL << 20)
#define TANDEM_EFFECTIVE_MIN 16ULL
#define TANDEM_EFFECTIVE_MAX (1ULL << 38)
#define TANDEM_REQUEST_NS (3 * NSEC_PER_MSEC_)
#define TANDEM_REQUEST_MIN_NS (500 * NSEC_PER_USEC_)
/* A runnable task gets a slice about this often, if the shortest request allows it. */
#define TANDEM_CYCLE_NS (256 * NSEC_PER_MSEC_)
/* Request of a task that sleeps again soon. */
#define TANDEM_REQUEST_SHORT_NS (100 * NSEC_PER_USEC_)
#define TANDEM_TICK_NS (4 * NSEC_PER_MSEC_)

/* A task that has run for this long since it last slept is CPU-bound. */
#define TANDEM_CPU_BOUND_NS (8 * NSEC_PER_MSEC_)

/*
 * The base request of a queue is the request of its tasks that ask for none themselves: 3 ms, or what is set
 * for a pool of CPUs. Thresholds are parts of it.
 *
 * A task that has run for this long since it last slept will not sleep soon: 8 ms for a base of 3 ms. It is no less with a shorter one: tasks that
 * count as light, because they usually sleep before they are CPU-bound, would take each other for such a one and preempt each other.
 */
POLICY u64 long_burst_ns(u64 base_ns)
{
	return max_u64(base_ns * 8 / 3, TANDEM_CPU_BOUND_NS);
}

/* A running task is not preempted by a wake-up before it has run for this long: 0.7 ms for a base of 3 ms. */
POLICY u64 min_run_ns(u64 base_ns)
{
	return base_ns * 7 / 30;
}

/* The kernel's table of weights (nice -20 .. 19): one step of nice is 1.25 times. */
POLICY u32 weight_of_nice(s32 nice)
{
	static const u32 table[40] = {
		88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916,
		9548,  7620,  6100,  4904,  3906,  3121,  2501,  1991,  1586,  1277,
		1024,  820,   655,   526,   423,   335,   272,   215,   172,   137,
		110,   87,    70,    56,    45,    36,    29,    23,    18,    15,
	};
	u32 i = (u32)(nice + 20);

	return i < 40 ? table[i] : TANDEM_WEIGHT_NICE_0;
}

/* Real service -> virtual time, for an effective weight or a sum of them. Service up to 4 hours. */
POLICY u64 virtual_ns(u64 service_ns, u64 weight)
{
	return (service_ns << 20) / (weight ? weight : 1);
}

/* Virtual time -> CPU time at a weight (effective, at most 2^38). Beyond 2^45 virtual ns it saturates. */
POLICY u64 real_ns(u64 virt_ns, u64 weight)
{
	virt_ns = min_u64(virt_ns, 1ULL << 45);
	weight = min_u64(weight, TANDEM_EFFECTIVE_MAX);
	/* The product must not wrap. What is shifted out first is below 1 / 60000 of it. */
	if (virt_ns >> 36)
		return (virt_ns >> 20) * weight;
	if (weight >> 28)
		return (virt_ns * (weight >> 12)) >> 8;
	return (virt_ns * weight) >> 20;
}

/*
 * The request of a task: the base, and less for a task that is so light beside the others on its CPU
 * (`queue_weight` of `queue_tasks`, itself included) that it would get a slice less than once per
 * TANDEM_CYCLE_NS. The time between two slices is the slice over the share: with a whole slice, a task of
 * weight 15 beside heavy ones would legally wait for tens of seconds. Not all tasks lighter than the mean get a
 * shorter request: switches cost.
 */
POLICY u64 request_ns(u64 base_ns, u64 weight, u64 queue_weight, u32 queue_tasks)
{
	u64 share, turn;

	if (weight >= queue_weight / (queue_tasks ? queue_tasks : 1))
		return base_ns;
	/* In units of 1/1024: the minimum request is coarser than what this loses. */
	share = (weight << 10) / max_u64(queue_weight, 1);
	turn = TANDEM_CYCLE_NS * share >> 10;
	return min_u64(max_u64(turn, TANDEM_REQUEST_MIN_NS), base_ns);
}

/*
 * The request for which the deadline of a waking task is computed: what it usually needs until it sleeps again,
 * and a margin. A task that needs less is served sooner (the point of requests in EEVDF) and gets no more CPU
 * time for it: run time is charged all the same.
 */
POLICY u64 wake_request_ns(u64 base_ns, u64 mean_burst_ns)
{
	return min_u64(base_ns, max_u64(2 * min_u64(mean_burst_ns, 1ULL << 40), TANDEM_REQUEST_SHORT_NS));
}

/* Distance of the deadline from v. */
POLICY u64 deadline_distance(u64 remaining_ns, u64 weight, u64 base_ns)
{
	return min_u64(virtual_ns(remaining_ns, weight), base_ns);
}

/* Is the deadline of this request closer than r / weight? */
POLICY bool is_bounded(u64 request_ns, u64 weight, u64 base_ns)
{
	return virtual_ns(request_ns, weight) > base_ns;
}

/*
 * A deadline after the task has run up to `v`. `end_v`: v when the request will be done. A deadline that is not bounded stays, unless
 * the task has run past it: it needs more than was expected of it (wake_request_ns()), and would come before all others until
 * the end of the request. Of two that are equally far away the other one comes first: this task has run.
 */
POLICY u64 deadline_moved(u64 deadline, bool bounded, u64 v, u64 end_v, u64 base_ns)
{
	u64 moved = time_before_ns(end_v, v + base_ns + 1) ? end_v : v + base_ns + 1;

	return (bounded || time_before_ns(deadline, v)) && time_before_ns(deadline, moved) ? moved : deadline;
}

/*
 * Lag is carried as CPU time (ns); positive: owed to the task. That is the same under any weight and in any
 * queue. `request`: the task's own, or the queue's base request if that is more.
 */
POLICY s64 lag_limit(u64 request)
{
	return (s64)(request + TANDEM_TICK_NS);
}

/* CPU time owed to a task of virtual time v in a queue whose V is `clock`. */
POLICY s64 lag_of(u64 clock, u64 v, u64 weight, u64 request)
{
	s64 limit = lag_limit(request);

	if (time_before_ns(v, clock))
		return (s64)min_u64(real_ns(clock - v, weight), (u64)limit);
	return -(s64)min_u64(real_ns(v - clock, weight), (u64)limit);
}

/* No lag is more than this, CPU time in ns: bounds the arithmetic. */
#define TANDEM_LAG_MOST_NS (1ULL << 40)

/*
 * The lag, against those who are in a queue of weight `others`, that becomes `lag` when the task has joined and V has
 * moved towards it (clock_shift()): as inflated by PLACE_LAG in the kernel. And the lag against those who stay, when a
 * task leaves that has `lag` among all.
 */
POLICY s64 lag_against(s64 lag, u64 weight, u64 others)
{
	u64 size = lag < 0 ? (u64)-lag : (u64)lag;

	if (others)
		size += min_u64(real_ns(virtual_ns(size, others), weight), TANDEM_LAG_MOST_NS);
	return lag < 0 ? -(s64)size : (s64)size;
}

/*
 * A lag against those who are in a queue, within what it may be when a task joins: its limit is that among all (see
 * clock_shift()).
 */
POLICY s64 lag_on_join(s64 lag, u64 weight, u64 others, u64 request)
{
	s64 limit = lag_against(lag_limit(request), weight, others);

	return clamp_s64(lag, -limit, limit);
}

/* Virtual time of a task of this lag (at most twice TANDEM_LAG_MOST_NS) in a queue whose V is `clock`. */
POLICY u64 v_of(u64 clock, s64 lag, u64 weight)
{
	/* Signed division is not available in BPF: work on the magnitude. */
	u64 size = virtual_ns(lag < 0 ? (u64)-lag : (u64)lag, weight);

	return lag < 0 ? clock + size : clock - size;
}

/*
 * How far V advances while a task that is alone gains `gained`. What it is owed by tasks that have ended it takes
 * first. Otherwise it would keep its credit for ever, and come before each task that wakes up.
 */
POLICY u64 progress_alone(u64 clock, u64 v, u64 gained)
{
	return time_before_ns(v, clock) ? sub_floor_u64(gained, clock - v) : gained;
}

/*
 * How far V moves when a task of this lag leaves tasks of this `weight` behind; with -lag, when it joins, and they
 * weigh so much with it. V is the mean of their v by weight, as in EEVDF: what they are owed in all is nothing. A task
 * that leaves with a debt pays it while it sleeps (lag_after_sleep()). If V stood still those who stay would be owed it
 * for ever, and each task that wakes up would wait until they have got it. The lag among all is limited, on both ways
 * alike. If it were the lag against the others, a task that naps would be forgiven something each time: what it owes
 * against those who stay is more than it owes among all.
 */
POLICY u64 clock_shift(s64 lag, u64 weight)
{
	u64 size = weight ? virtual_ns(lag < 0 ? (u64)-lag : (u64)lag, weight) : 0;

	return lag < 0 ? -size : size;
}

/*
 * Keeps V where the mean can be. Several CPUs move V, weights change and lags
 * are clamped, so that it drifts. A task from elsewhere would be placed as far
 * ahead or behind. `longest_ns`: the longest request and bound B of a deadline
 * in the queue. The picked task has nearly the smallest v: no task comes before
 * it by more than B. It is owed no more than the limit of its lag, or what all
 * of the `tasks` (up to 65536) owe in all, each as much as that limit. A bound
 * that the mean can exceed would hold V behind the tasks: each is taken to owe
 * more than it does, V goes back as it leaves, and one that waits is never
 * served. `weight`: of the picked task, `total`: of all.
 */
POLICY u64 clock_anchored(u64 clock, u64 picked_v, u64 weight, u64 longest_ns, u32 tasks, u64 total)
{
	u64 limit = (u64)lag_limit(longest_ns), owed = min_u64(tasks, 1U << 16) * limit;
	u64 most = max_u64(virtual_ns(owed, total), virtual_ns(limit, weight));
	u64 latest = picked_v + 2 * longest_ns + most, earliest = picked_v - longest_ns;

	if (time_before_ns(clock, earliest))
		return earliest;
	return time_before_ns(latest, clock) ? latest : clock;
}

/*
 * A change of weight. What is owed in CPU time stays the same; its virtual size does not. It is limited here as
 * everywhere: a group that goes from one thread to a thousand multiplies it by a thousand.
 */
POLICY u64 v_reweighted(u64 clock, u64 v, u64 old_weight, u64 new_weight, u64 request)
{
	return v_of(clock, lag_of(clock, v, old_weight, request), new_weight);
}

/*
 * A debt (negative lag) is paid off while other tasks are served: `progress` is how far V has advanced since the task
 * left the queue (DELAY_DEQUEUE in the kernel). V goes back if another one leaves with a debt: then it is further ahead
 * of those who stay.
 */
POLICY s64 lag_after_sleep(s64 lag, s64 progress, u64 weight)
{
	u64 paid;

	if (lag >= 0)
		return lag;
	if (progress <= 0)
		return lag - (s64)min_u64(real_ns((u64)-progress, weight), TANDEM_LAG_MOST_NS);
	paid = real_ns((u64)progress, weight);
	return paid >= (u64)-lag ? 0 : lag + (s64)paid;
}

/*
 * Anti-starvation. The kernel's watchdog ejects any scheduler that lets a runnable task wait for its time limit,
 * even where the weights entitle other tasks to that. A task that would wait for longer than an eighth of the limit
 * is therefore also served by wall-clock deadline. `ahead_ns`: how far the deadline of the task lies ahead of V.
 */
POLICY bool waits_too_long(u64 ahead_ns, u64 queue_weight, u64 watchdog_ns)
{
	return real_ns(ahead_ns, queue_weight) > watchdog_ns / 8;
}

/* Has a task had more than its share? (EEVDF calls it not eligible.) */
POLICY bool is_ahead(u64 clock, u64 v)
{
	return time_before_ns(clock, v);
}

/*
 * Does a waking task preempt the current one? Not before the current task has run for a moment, unless it has
 * had more than its share (`curr_lead`: how far it is ahead of V; EEVDF calls it not eligible) and will not
 * soon sleep by itself (`curr_burst_ns`: run time since it last slept). `base_ns`: base request of the queue.
 */
POLICY bool wakeup_preempts(u64 wakee_deadline, u64 curr_deadline, s64 curr_lead, u64 curr_ran_ns, u64 curr_burst_ns,
			    u64 base_ns)
{
	if (!time_before_ns(wakee_deadline, curr_deadline))
		return false;
	return curr_ran_ns >= min_run_ns(base_ns) || (curr_lead > 0 && curr_burst_ns >= long_burst_ns(base_ns));
}

/*
 * Does a waking task that is owed so much preempt the current one, which is `curr_lead` ahead of V, however shortly that
 * one has run? A heavy task that naps would wait for a while after each nap, and what it is owed beyond the limit of its
 * lag is forgotten. (EEVDF keeps none that is ahead. A whole request is at stake here, so switches are few.) `request_ns`:
 * its own, or the base request of the queue if that is longer.
 */
POLICY bool owed_preempts(s64 owed_ns, s64 curr_lead, u64 request_ns)
{
	return curr_lead > 0 && owed_ns >= (s64)request_ns;
}

/*
 * Does a waking task that usually sleeps soon, and needs `need_ns` until then,
 * preempt one that computes, whatever both are owed? If it has not had more than
 * its share, and if what it needs is no more of its share than the other's base
 * request is of the other's: a light one does not preempt a heavy one.
 */
POLICY bool prompt_preempts(u64 clock, u64 v, u64 need_ns, u64 weight, u64 curr_base_ns, u64 curr_weight)
{
	return !is_ahead(clock, v) && virtual_ns(need_ns, weight) <= virtual_ns(curr_base_ns, curr_weight);
}

/*
 * SCHED_IDLE tasks get nothing while normal tasks want the CPU, except this (anti-starvation): the kernel's
 * watchdog ejects any scheduler that lets a runnable task wait for its time limit. One short slice per interval
 * (TANDEM_REQUEST_MIN_NS at most) keeps `waiting` SCHED_IDLE tasks within a quarter of it; with so many that this would be more than one in
 * 20 ms, within half of it. (Where slices end at ticks each takes a tick, and so does the normal task's between two of them: then two thousand and a
 * half are too many.)
 */
POLICY bool idle_floor_due(u64 now_ns, u64 last_ns, u32 waiting, u64 watchdog_ns)
{
	u32 tasks = waiting ? waiting : 1;
	u64 rarest = min_u64(20 * NSEC_PER_MSEC_, watchdog_ns / 2 / tasks);

	return waiting && now_ns - last_ns >= max_u64(watchdog_ns / 4 / tasks, rarest);
}

#endif
