/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which vCPU answers which interrupts (policy/host/answer.h), learned from what KVM says of both. All of it are hints: vCPUs on
 * several CPUs write them without order, and what comes of an error is a boosted turn that is too short, or too long by some
 * milliseconds, which are booked as any other.
 */
#ifndef TANDEM_HOST_ANSWER_BPF_H
#define TANDEM_HOST_ANSWER_BPF_H

#include "debt.bpf.h"

static __always_inline u8 *votes_of(struct task_state *t)
{
	return &t->side.votes[t->side.slot & (TANDEM_ANSWER_VECTORS - 1)];
}

/* A device interrupts a vCPU. Whether its last interrupt was answered is known by now. */
static __always_inline void is_asked(struct task_state *t, s32 tid, struct vm_state *vm, u32 vector)
{
	u8 *votes = votes_of(t);

	if (t->side.asked)
		*votes = votes_after(*votes, false);
	t->side.slot = answer_slot(vector);
	t->side.asked = 1;
	vm->asked_tid = tid;
}

/* The vCPU `tid` answers what t was asked. */
static __always_inline void has_answer(struct task_state *t, s32 tid)
{
	u8 *votes = votes_of(t);

	t->side.asked = 0;
	*votes = votes_after(*votes, true);
	vote_for(&t->side.answerer, tid);
}

/* What a sibling was asked last is answered by a vCPU of this VM. */
COLD int answers_sibling(s32 asked_tid, u32 number, s32 tid)
{
	struct task_struct *p = bpf_task_from_pid(asked_tid);
	struct task_state *t;

	if (!p)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(p);
	if (t && t->side.vm == number && t->side.asked)
		has_answer(t, tid);
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return 0;
}

/* The current vCPU writes to a device: an answer to what it was asked itself, or to what a sibling was. */
static __always_inline void answers(struct task_state *t, s32 tid, struct vm_state *vm)
{
	s32 asked_tid = vm->asked_tid;

	t->side.owes_answer = 0;
	if (asked_tid)
		vm->asked_tid = 0;
	if (t->side.asked)
		has_answer(t, tid);
	else if (asked_tid && asked_tid != tid)
		answers_sibling(asked_tid, t->side.vm, tid);
}

/* Who will answer what t, the vCPU `tid`, was just asked? 0: nobody, or that is not known. */
static __always_inline s32 will_answer(struct task_state *t)
{
	return is_voted(*votes_of(t)) && is_voted(t->side.answerer.votes) ? t->side.answerer.tid : 0;
}

/*
 * Does another vCPU than this one, `tid`, answer what it is asked? Then it takes the interrupt, wakes a task there, and has done its part. Until its
 * VM owes half of what it may it has all the time that the answer has: how slow the guest is nobody knows.
 */
static __always_inline bool passes_on(struct task_state *t, s32 tid)
{
	struct vm_state *vm = vm_of(t);
	s32 answerer;

	if (!vm || t->side.owes_answer || vm->debt_ns <= (s64)(debt_limit_ns(t) / 2))
		return false;
	answerer = will_answer(t);
	return answerer && answerer != tid;
}

/*
 * Does its I/O go on? Until the answer, if it is the one that gives it; if it passes on what it is asked, while it is asked more. Then as long as
 * the guest runs the task that gave it, which may have more to answer: no interrupt tells of a request that came before the one before it was
 * answered. Not while the guest runs another task.
 */
static __always_inline bool io_goes_on(struct task_state *t, s32 tid)
{
	u64 task;

	if (t->side.owes_answer)
		return true;
	if (passes_on(t, tid))
		return t->side.io_points != t->side.step_points;
	task = t->side.io_task ? task_inside(t) : 0;
	if (task && task != t->side.io_task)
		return false;
	if (does_io(t->side.confidence) || (task && t->side.kicked))
		return true;
	return !is_voted(*votes_of(t)) && is_at_io(t);
}

#endif
