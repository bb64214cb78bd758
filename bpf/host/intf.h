/* SPDX-License-Identifier: GPL-2.0-only */
/* Data that only the host side and its daemon share. */
#ifndef TANDEM_HOST_INTF_H
#define TANDEM_HOST_INTF_H

#include "../../policy/base.h"
#include "../../policy/host/answer.h"
#include "../../policy/host/away.h"
#include "../../policy/host/boost.h"
#include "../../policy/host/debt.h"
#include "../../policy/host/inside.h"
#include "../../policy/host/io.h"
#include "../../policy/host/posted.h"
#include "counters.h"

/* VMs that have a record of their own; the vCPUs of further ones are scheduled as any other thread. */
#define MAX_VMS 1024
/* pCPUs for which siblings are counted; a power of two. On larger hosts several pCPUs share a count. */
#define MAX_PLACES 1024

/* vCPUs of a VM of which the daemon is told where their guest reads its steal time; a power of two. */
#define KNOWN_PAGES 8

/* The host side's part of a pCPU's record. */
struct side_cpu {
	s32 yield_to;		/* task that runs next here, because the current one yielded to it; 0: none */
	u32 yields_in_row;	/* turns here that were yielded, one after another */
	u64 yield_ns;		/* for how long it may: what is left of the current one's request; for the task whose yield_cpu is this one */
	u64 away_since_ns;	/* a higher class has this pCPU since then; 0: none has */
	u64 left_idle_ns;	/* it is idle no longer since then, and no task of ours has run yet; 0: one has, or it is idle */
	u64 share_at_ns;	/* when `share` was last updated */
	u32 share;		/* what higher classes leave of this pCPU, of TANDEM_SCALE (policy/host/away.h) */
	u32 pull_first;		/* pCPU plus 1 whose waiting task this idle one was kicked for; 0: none (any CPU) */
	u32 light_next;		/* a task that usually sleeps soon has been chosen to run next (any CPU) */
	s32 boost_to;		/* vCPU that waits and was interrupted: it comes next here; 0: none (atomic, any CPU) */
	s32 forward_to;		/* sibling to which the current vCPU has sent an IPI, and which waited then; 0: none */
	u32 forwards;		/* yield_to stands for such a one */
	u32 boosts_in_row;	/* turns here before their time, and extensions of such, one after another */
	/* The current task. */
	u32 vm;			/* its VM: side_task.vm */
	u32 turn;		/* enum turn: why it runs */
	u32 lender;		/* whom a boosted one passes over: a VM's number plus 1, 0: tasks of no VM, NO_LENDER: nobody */
	u64 lender_weight;	/* weight of the task that is passed over */
	u32 confidence;		/* side_task.confidence, for those that want this pCPU */
	u64 turn_since_ns;	/* when it began to run, or was boosted */
	u32 displaced_vm;	/* VM of the task that ran before it and was runnable when it stopped; 0: of none */
	u64 displaced_weight;	/* and its weight */
	u64 first_weight;	/* weight of the task that vm_of_first() has found */
	u32 held;		/* steps for which its turn went on because its guest was in a critical section */
	u32 unused;
	u64 posted_at_ns;	/* when this pCPU looks for posted interrupts next; 0: it does not */
};

/* Why a task runs. */
enum turn {
	TURN_OWN,		/* it was its turn */
	TURN_BOOSTED,		/* for I/O */
	TURN_WOKEN,		/* it was woken, within its VM's budget */
	TURN_PAYING,		/* it was its turn, and it pays of its VM's debt */
};

#define NO_LENDER (~0U)

/* The host side's part of a task's record. */
struct side_task {
	u64 vcpu;		/* KVM's record of the vCPU that it runs; 0: none */
	u32 vm;			/* number of its VM plus 1; 0: none */
	u32 generation;		/* of that VM's record */
	u64 place;		/* where it is counted in its VM's record: place_of(); 0: nowhere (atomic, any CPU) */
	s32 yield_cpu;		/* pCPU whose time was given to it by a directed yield; -1: none */
	u32 safe;		/* limits_generation: it is where it holds no kernel lock, and may be throttled */
	u32 on_debt;		/* it goes on without quota */
	u32 elsewhere;		/* switches to it since KVM last said that it runs its vCPU */
	u32 io_points;		/* events of I/O for its vCPU (atomic, any CPU) */
	u32 io_seen;		/* of them when it was looked at last */
	u32 step_points;	/* io_points when its boosted step began */
	u32 had_io;		/* there was some in the last millisecond that was looked at */
	u32 confidence;		/* policy/host/io.h */
	u32 interrupted;	/* it was interrupted for I/O since it last ran (any CPU) */
	u32 comes_next;		/* enum turn: why it runs out of turn when it runs next; TURN_OWN: it does not (any CPU) */
	u64 unlooked_ns;	/* run time since it was looked at last */
	/* answer.bpf.h. Hints, which any CPU writes. */
	u8 votes[TANDEM_ANSWER_VECTORS];	/* by vector: its interrupts are answered */
	struct answerer answerer;	/* who answers them */
	u32 slot;		/* of its last interrupt's vector, in votes */
	u32 asked;		/* that one is not answered yet */
	u32 owes_answer;	/* it is to answer an interrupt, its own or a sibling's, in this turn or the next */
	u32 held_votes;		/* turns since the last one that did not come out of a critical section (critical.bpf.h) */
	u64 io_task;		/* the guest's current task when its vCPU last wrote to a device; 0: not known */
	u32 kicked;		/* it has written to a device in this turn */
};

/* The host side's part of a cgroup's record. */
struct side_group {
	u32 unused;
};

/* Where a vCPU's guest reads its steal time; 0: it does not. */
struct steal_page {
	u64 hva;		/* in the memory of the VMM */
	u64 gpa;		/* in that of the guest */
};

/* A VM. */
struct vm_state {
	u64 kvm;		/* KVM's record of it; 0: this one is free (atomic) */
	u32 pid;		/* process of its VMM */
	u32 generation;		/* how many VMs have had this record */
	u32 vcpus;		/* threads that run a vCPU (atomic) */
	s32 asked_tid;		/* thread of the vCPU that was interrupted last; 0: that was answered (any CPU) */
	s64 debt_ns;		/* policy/host/debt.h; negative: a credit (atomic) */
	u64 borrowed_ns;	/* all that was lent to it (atomic) */
	u64 repaid_ns;		/* all that it has paid (atomic) */
	u64 device_at_ns;	/* last event of a device; 0: there was none (any CPU) */
	u64 wake_used_ns;	/* of its budget for wake-ups, at wake_at_ns (atomic) */
	u64 wake_at_ns;
	u64 aged_at_ns;		/* when a part of debt_ns was forgotten last (atomic) */
	u64 misread;		/* words of its memory that were not what they should have been (atomic) */
	struct steal_page pages[KNOWN_PAGES];	/* by the numbers of vCPUs */
	u32 at[MAX_PLACES];	/* vCPUs in the queue of each pCPU, running or waiting (atomic) */
};

/* Techniques that a VM can do without. */
enum vm_technique {
	VM_APART = 1,		/* siblings are kept apart */
	VM_YIELD = 2,		/* directed yield */
	VM_SAFE_POINTS = 4,	/* out of quota, a vCPU stops only where it holds no lock */
	VM_PROMPT = 8,		/* a vCPU that wakes up and usually sleeps soon comes before one that computes */
	VM_BOOST = 16,		/* a vCPU that does I/O comes before its turn, and its VM pays for what is beyond its share */
	VM_FORWARD = 32,	/* a sibling that waits and is sent an IPI runs next on the sender's pCPU */
	VM_FAST_WAKEUP = 64,	/* a vCPU that is woken comes before its turn, within a budget */
	VM_INTROSPECT = 128,	/* the guest's current task tells that I/O is over */
	VM_CRITICAL = 256,	/* a turn does not end in a critical section of the guest's kernel */
	VM_OFF_BY_DEFAULT = VM_FORWARD | VM_CRITICAL,
};

/* Settings of a VM, written by the daemon. They hold only for the VM that had the record when they were written. */
struct vm_settings {
	u32 generation;
	u32 valid;
	u32 off;		/* enum vm_technique */
	u32 conflict;		/* enum boost_conflict */
	u64 request_ns;		/* request of its vCPUs; 0: as any other */
	u64 debt_max_ns;	/* limit of its debt; 0: by its weight */
	u64 wake_budget_ns;	/* budget for wake-ups; 0: as any other */
	s32 task_distance;	/* from where the guest reads its steal time to the address of its current task; 0: not known */
	s32 depth_distance;	/* and to its preemption count, bytes */
};

/* Whose hardware posts interrupts past KVM (posted.bpf.h). */
enum posted_by {
	POSTED_BY_NONE,
	POSTED_BY_INTEL,
	POSTED_BY_AMD,
};

/* Where a vCPU's thread may be found to hold no kernel lock (main.bpf.c, safe.bpf.h). */
enum safe_points {
	SAFE_BEFORE_ENTRY = 1,	/* pending work before the guest is entered */
	SAFE_AFTER_EXIT = 2,	/* between exit and the exit's handling */
};

#define TANDEM_SIDE_INTF
#include "../core/intf.h"

#endif
