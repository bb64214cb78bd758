/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Integer types and saturating arithmetic for all decisions.
 *
 * Headers in this folder hold decisions only. They take integers and small structs and return a decision. They
 * know nothing of maps, helpers, kernel types or I/O. The same text is compiled into BPF, into a simulator and
 * natively for the unit and property tests.
 */
#ifndef TANDEM_POLICY_BASE_H
#define TANDEM_POLICY_BASE_H

#ifndef __VMLINUX_H__
#include <stdbool.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
#endif

#ifdef __BPF__
#define POLICY static __always_inline
/*
 * Large functions. In BPF they are global: the verifier checks them once, not for each caller. They return a
 * number and accept NULL.
 */
#define POLICY_LARGE __attribute__((weak, noinline))
#else
#define POLICY static inline
#define POLICY_LARGE static inline
#endif

#define NSEC_PER_USEC_ 1000ULL
#define NSEC_PER_MSEC_ 1000000ULL

/* Shares and capacities are fixed point: 1024 is one whole pCPU of the best speed observed. */
#define TANDEM_SCALE 1024U

/* Order of two wrapping 64-bit times, as time_before64() in the kernel. */
POLICY bool time_before_ns(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

POLICY u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

POLICY u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

/* Regular distance of a kernel's ticks, from a rough measurement of it: HZ is 100, 250, 300 or 1000. */
POLICY u64 tick_length_ns(u64 measured_ns)
{
	if (measured_ns > 7 * NSEC_PER_MSEC_)
		return 10 * NSEC_PER_MSEC_;
	if (measured_ns > 3650 * NSEC_PER_USEC_)
		return 4 * NSEC_PER_MSEC_;
	return measured_ns > 2 * NSEC_PER_MSEC_ ? 10 * NSEC_PER_MSEC_ / 3 : NSEC_PER_MSEC_;
}

/* a - b, never below zero. */
POLICY u64 sub_floor_u64(u64 a, u64 b)
{
	return a > b ? a - b : 0;
}

POLICY s64 clamp_s64(s64 x, s64 lo, s64 hi)
{
	return x < lo ? lo : x > hi ? hi : x;
}

/* Moves `from` towards `to` by `part` of `whole`. `whole` is not 0; the difference times `part` has to fit. */
POLICY u64 moved_u64(u64 from, u64 to, u64 part, u64 whole)
{
	if (to >= from)
		return from + (to - from) * part / whole;
	return from - (from - to) * part / whole;
}

/* Exponential average with weight 1/2^shift for the new sample. */
POLICY u64 ewma_u64(u64 old, u64 sample, u32 shift)
{
	if (sample >= old)
		return old + ((sample - old) >> (shift & 31));
	return old - ((old - sample) >> (shift & 31));
}

#endif
