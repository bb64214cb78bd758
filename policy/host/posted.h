/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interrupts that hardware posts for a vCPU: one bit for each vector, until the vCPU is entered and takes them.
 */
#ifndef TANDEM_POLICY_HOST_POSTED_H
#define TANDEM_POLICY_HOST_POSTED_H

#include "../base.h"

/* Vectors below are the processor's exceptions. */
#define K_VECTORS_FROM 32

/* Lowest bit that is set, 0 to 63; 64: none is. (BPF has no instruction for it.) */
POLICY u32 lowest_bit(u64 bits)
{
	u32 at = 0, half;

	if (!bits)
		return 64;
	for (half = 32; half; half /= 2) {
		if (bits << (64 - half))
			continue;
		at += half;
		bits >>= half;
	}
	return at;
}

/*
 * The first vector of a device among 64 that are posted, `bits` of those from 64 times `word` on; 0: there is none. `end`: those from there on
 * are the guest's own; `timer`: that of the vCPU's timer.
 */
POLICY u32 posted_vector(u64 bits, u32 word, u32 end, u32 timer)
{
	u32 vector;

	word &= 3;
	if (!word)
		bits &= ~0ULL << K_VECTORS_FROM;
	if (timer / 64 == word)
		bits &= ~(1ULL << (timer & 63));
	vector = 64 * word + lowest_bit(bits);
	return bits && vector < end ? vector : 0;
}

#endif
