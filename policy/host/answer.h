/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When I/O is over: with the answer.
 *
 * What a device's interrupt starts usually ends with a write to a device: a request is answered, the next block is asked for. How long
 * that takes depends on the program, and a turn of fixed length ends in the middle of it. So it is learned which of a vCPU's
 * interrupts are answered, by their vectors: each that is answered before the next one is a vote for its vector, each that is not
 * is one against it. (What a network device says of packets that it has sent is answered by nothing.) Likewise it is learned which vCPU
 * answers: the one that was interrupted, or a sibling on which the program that is woken runs.
 *
 * The Anubis paper looks at the guest's current task instead, and takes a reschedule IPI for the sign that a sibling goes on. A task
 * that is woken is not the current one before the guest's scheduler has chosen it, and a guest that preempts lazily (the default
 * of Linux since 7.0) sends no IPI to a CPU that computes: the task is found at that CPU's next tick.
 */
#ifndef TANDEM_POLICY_HOST_ANSWER_H
#define TANDEM_POLICY_HOST_ANSWER_H

#include "../base.h"

/* Vectors of a vCPU that are told apart; a power of two. A vCPU of Linux has a handful of them, one after another. */
#define TANDEM_ANSWER_VECTORS 16
/* There are no more votes than this: the last few interrupts count. */
#define TANDEM_ANSWER_VOTES_MAX 8
/* So many votes decide. */
#define TANDEM_ANSWER_VOTES_ENOUGH 4

/* Who answers a vCPU's interrupts. */
struct answerer {
	s32 tid;	/* thread of that vCPU; 0: not known */
	u32 votes;
};

/* Which of the votes are this vector's? */
POLICY u32 answer_slot(u32 vector)
{
	return vector & (TANDEM_ANSWER_VECTORS - 1);
}

/* Votes after another one. */
POLICY u32 votes_after(u32 votes, bool favour)
{
	if (favour)
		return (u32)min_u64((u64)votes + 1, TANDEM_ANSWER_VOTES_MAX);
	return votes ? votes - 1 : 0;
}

/* Do they decide? */
POLICY bool is_voted(u32 votes)
{
	return votes >= TANDEM_ANSWER_VOTES_ENOUGH;
}

/* An interrupt was answered by this thread: the one that answers most of them is found (Boyer and Moore's majority vote). */
POLICY void vote_for(struct answerer *answerer, s32 tid)
{
	if (!answerer->votes)
		answerer->tid = tid;
	answerer->votes = votes_after(answerer->votes, answerer->tid == tid);
}

#endif
