/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Timers. One that any CPU may arm is booked first: a variable says when it fires (0: it is not armed), and the callback clears it. Who
 * changes that variable starts the timer.
 */
#ifndef TANDEM_CORE_TIMER_BPF_H
#define TANDEM_CORE_TIMER_BPF_H

#include "state.bpf.h"

/* A timer that is this late will not fire: it was lost with its CPU. */
#define TIMER_LOST_NS (250 * NSEC_PER_MSEC_)

struct one_timer {
	struct bpf_timer timer;
};

/* Does a timer that is booked for `booked_ns` fire by `at_ns`? */
static __always_inline bool timer_comes_by(u64 booked_ns, u64 at_ns, u64 now)
{
	return booked_ns && !time_before_ns(at_ns, booked_ns) && time_before_ns(now, booked_ns + TIMER_LOST_NS);
}

static __always_inline bool start_timer(struct one_timer *t, u64 at_ns, u64 now)
{
	return !bpf_timer_start(&t->timer, max_u64(sub_floor_u64(at_ns, now), 20 * NSEC_PER_USEC_), 0);
}

/*
 * A timer that was booked for `before_ns` is armed for `at_ns`. Returns false if another CPU has changed the booking meanwhile, or if the
 * kernel refuses.
 */
static __always_inline bool rebook_timer(struct one_timer *t, u64 *booked_ns, u64 before_ns, u64 at_ns, u64 now)
{
	u64 since;

	if (__sync_val_compare_and_swap(booked_ns, before_ns, at_ns) != before_ns)
		return false;
	if (!start_timer(t, at_ns, now)) {
		__sync_val_compare_and_swap(booked_ns, at_ns, 0);
		return false;
	}
	/* Another CPU may have booked it for an earlier time since, and have started it before this one did. */
	since = *booked_ns;
	if (since && since != at_ns)
		start_timer(t, since, now);
	return true;
}

#endif
