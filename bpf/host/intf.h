/* SPDX-License-Identifier: GPL-2.0-only */
/* Data that only the host side and its daemon share. */
#ifndef TANDEM_HOST_INTF_H
#define TANDEM_HOST_INTF_H

#include "../../policy/base.h"
#include "../../policy/host/away.h"
#include "counters.h"

/* VMs that have a record of their own; the vCPUs of further ones are scheduled as any other thread. */
#define MAX_VMS 1024
/* pCPUs for which siblings are counted; a power of two. On larger hosts several pCPUs share a count. */
#define MAX_PLACES 1024

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
	u32 unused;
};

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
};

/* The host side's part of a cgroup's record. */
struct side_group {
	u32 unused;
};

/* A VM. */
struct vm_state {
	u64 kvm;		/* KVM's record of it; 0: this one is free (atomic) */
	u32 pid;		/* process of its VMM */
	u32 generation;		/* how many VMs have had this record */
	u32 vcpus;		/* threads that run a vCPU (atomic) */
	u32 unused;
	u32 at[MAX_PLACES];	/* vCPUs in the queue of each pCPU, running or waiting (atomic) */
};

/* Techniques that a VM can do without. */
enum vm_technique {
	VM_APART = 1,		/* siblings are kept apart */
	VM_YIELD = 2,		/* directed yield */
	VM_SAFE_POINTS = 4,	/* out of quota, a vCPU stops only where it holds no lock */
	VM_PROMPT = 8,		/* a vCPU that wakes up and usually sleeps soon comes before one that computes */
};

/* Settings of a VM, written by the daemon. They hold only for the VM that had the record when they were written. */
struct vm_settings {
	u32 generation;
	u32 valid;
	u32 off;		/* enum vm_technique */
	u32 unused;
	u64 request_ns;		/* request of its vCPUs; 0: as any other */
};

/* Where a vCPU's thread may be found to hold no kernel lock (main.bpf.c, safe.bpf.h). */
enum safe_points {
	SAFE_BEFORE_ENTRY = 1,	/* pending work before the guest is entered */
	SAFE_AFTER_EXIT = 2,	/* between exit and the exit's handling */
};

#define TANDEM_SIDE_INTF
#include "../core/intf.h"

#endif
