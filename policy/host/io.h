/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Does a vCPU do I/O? (Anubis, SoCC'23, "IO Points" and "Confidence Points".)
 *
 * Events that only I/O causes give a vCPU points: an interrupt of a device, a kick of one, a reschedule IPI soon after either in
 * its VM. For each millisecond that the vCPU runs its confidence grows by one if there was a new point, and halves if there was
 * none. From a threshold on the vCPU does I/O, also in a millisecond without any. The halving is what ends it: from the top to
 * below the threshold takes six milliseconds.
 *
 * A reschedule IPI alone is no I/O: threads of a parallel program wake each other all the time. (The published code counts every one.)
 */
#ifndef TANDEM_POLICY_HOST_IO_H
#define TANDEM_POLICY_HOST_IO_H

#include "../base.h"

/* From so much confidence on a vCPU does I/O (the paper's example). */
#define TANDEM_IO_THRESHOLD 4
/* There is no more confidence than this. The paper knows no such bound, and what was earned in an hour would last for longer. */
#define TANDEM_IO_CONFIDENCE_MAX 128
/* Run time after which a vCPU is looked at again: the paper's tick. */
#define TANDEM_IO_TICK_NS NSEC_PER_MSEC_
/* For so long after an event of a device a reschedule IPI in the same VM belongs to it (4.8 ms in the published code). */
#define TANDEM_IO_NEAR_NS (5 * NSEC_PER_MSEC_)

/*
 * Confidence after `ticks` milliseconds of run time with so many new points. A vCPU is looked at when it is charged, for several milliseconds at a
 * time: as many of them as there are points had one, at most, and they are taken to be the last.
 */
POLICY u32 io_confidence(u32 confidence, u32 points, u64 ticks)
{
	u64 with = min_u64(points, ticks), without = ticks - with;

	confidence = without >= 32 ? 0 : confidence >> without;
	return (u32)min_u64(confidence + with, max_u64(confidence, TANDEM_IO_CONFIDENCE_MAX));
}

/* Does a vCPU of this confidence do I/O? */
POLICY bool does_io(u32 confidence)
{
	return confidence >= TANDEM_IO_THRESHOLD;
}

/* Is a reschedule IPI part of the I/O whose last event was at `device_at_ns` (0: there was none)? */
POLICY bool is_near_io(u64 device_at_ns, u64 now_ns)
{
	return device_at_ns && sub_floor_u64(now_ns, device_at_ns) <= TANDEM_IO_NEAR_NS;
}

#endif
