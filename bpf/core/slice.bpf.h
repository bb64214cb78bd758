/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Slices that end on time, not at the next tick.
 *
 * The kernel checks slices once per tick, 4 ms at HZ=250. Each CPU has a timer of its own, armed by that CPU
 * only, and only while the end of the current slice matters: another task waits, or a quota runs out. A timer
 * that is pending for an earlier moment is left alone and checks again when it fires; otherwise every switch
 * would reprogram the hardware, which in a guest is an exit.
 */
#ifndef TANDEM_CORE_SLICE_BPF_H
#define TANDEM_CORE_SLICE_BPF_H

#include "fair.bpf.h"

/* Lateness beyond this is a preemption interval of the vCPU, which is not compensated. */
#define SLICE_LATE_MAX_NS (400 * NSEC_PER_USEC_)

/* Sized to the number of possible CPUs when the object is loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct one_timer);
} slice_timers SEC(".maps");

/* Off: slices end at ticks, and quotas are overrun by as much. */
const volatile bool slice_timers_enabled = true;

static __always_inline void arm_slice(struct one_timer *t, struct cpu_state *c, u64 now)
{
	u64 ahead = sub_floor_u64(sub_floor_u64(c->run_until_ns, now), c->timer_late_ns);

	c->timer_at_ns = now + max_u64(ahead, SLICE_SLACK_NS);
	count(c, CNT_TIMERS);
	bpf_timer_start(&t->timer, c->timer_at_ns - now, BPF_F_TIMER_CPU_PIN);
}

/* The slice of the current task ends at `until`. Call it on that CPU. */
static __always_inline void end_turn_at(struct cpu_state *c, u32 cpu, u64 until, u64 now)
{
	struct one_timer *t;

	c->run_until_ns = until;
	if (!slice_timers_enabled || !c->online)
		return;
	if (c->timer_at_ns && !time_before_ns(until, c->timer_at_ns + SLICE_SLACK_NS))
		return;
	t = bpf_map_lookup_elem(&slice_timers, &cpu);
	if (t)
		arm_slice(t, c, now);
}

static int slice_expired(void *map, u32 *key, struct one_timer *t)
{
	struct cpu_state *c = cpu_state(*key);
	u64 now = k_now();

	if (!c || !c->timer_at_ns)
		return 0;
	c->timer_at_ns = 0;
	if (!c->run_until_ns || !c->online)
		return 0;
	if (time_before_ns(now + SLICE_SLACK_NS + c->timer_late_ns, c->run_until_ns)) {
		arm_slice(t, c, now);
		return 0;
	}
	c->slice_due_ns = c->run_until_ns;
	c->run_until_ns = 0;
	k_kick_preempt(*key);
	return 0;
}

/*
 * A slice has ended. If the timer ended it, the timer fires earlier next time by as much as it is late on
 * average, interrupt and switch included: the mean slice is as long as it should be.
 */
static __always_inline void turn_ended(struct cpu_state *c, u64 now)
{
	u64 due = c->slice_due_ns, early, late;

	if (!due)
		return;
	c->slice_due_ns = 0;
	late = sub_floor_u64(now, due);
	early = sub_floor_u64(due, now);
	if (late < SLICE_LATE_MAX_NS)
		c->timer_late_ns = min_u64(sub_floor_u64(c->timer_late_ns + late / 8, early / 8), SLICE_LATE_MAX_NS);
}

static __noinline s32 slices_init(void)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpu_ids) {
		struct one_timer *t = bpf_map_lookup_elem(&slice_timers, &cpu);

		if (!t)
			return -EINVAL;
		bpf_timer_init(&t->timer, &slice_timers, K_CLOCK_MONOTONIC);
		bpf_timer_set_callback(&t->timer, slice_expired);
	}
	return 0;
}

#endif
