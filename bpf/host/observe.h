/* SPDX-License-Identifier: GPL-2.0-only */
/* What the observer of a KVM host and its daemon share: one layout, read by both. */
#ifndef TANDEM_HOST_OBSERVE_H
#define TANDEM_HOST_OBSERVE_H

#include "../../policy/base.h"

/* What a thread of a virtual machine does. */
enum thread_kind {
	THREAD_VCPU = 1,	/* runs a vCPU */
	THREAD_VMM = 2,		/* another thread of the VMM's process: emulation, I/O, migration */
	THREAD_VHOST = 3,	/* a kernel thread that serves the VM's devices */
};

/* Why a vCPU left the guest, as an operator thinks of it; the processors' own codes differ. */
enum exit_class {
	EXIT_HALT,		/* it has nothing to do */
	EXIT_INTERRUPT,		/* an interrupt of the host: a device, the timer, a kick */
	EXIT_WINDOW,		/* the guest can take an interrupt now */
	EXIT_MSR,		/* a register of the model: timer and interrupt controller, mostly */
	EXIT_IO,		/* a port */
	EXIT_MEMORY,		/* a page that is not mapped, or a device's memory */
	EXIT_CPUID,
	EXIT_HYPERCALL,
	EXIT_PAUSE,		/* it spins */
	EXIT_APIC,		/* an access to a virtualised interrupt controller, an IPI that could not be delivered */
	EXIT_OTHER,
	NR_EXIT_CLASSES,
};

/* Histogram of times: bucket i counts times below 2^i us and not below 2^(i-1) us; the last one all that are longer. */
#define NR_TIME_BUCKETS 24

struct time_histogram {
	u64 count;
	u64 sum_ns;
	u64 buckets[NR_TIME_BUCKETS];
};

/* A thread of a VM. All times and counts grow from when it was first seen. */
struct thread_record {
	u64 vcpu;		/* KVM's record of it; 0: not a vCPU */
	u32 tgid;		/* process of the VMM, which names the VM here */
	u32 kind;		/* enum thread_kind */
	s32 index;		/* which vCPU */
	u32 gone;		/* it has ended, or runs another vCPU: may be removed once it was read */
	u64 first_seen_ns;

	u64 running_since_ns;	/* 0: it is not on a CPU */
	u64 ready_since_ns;	/* 0: it does not wait for a CPU */
	u64 interrupted_ns;	/* first interrupt since it last ran; 0: none */
	u64 device_ns;		/* first one of a device, while it waited for a CPU; 0: none */

	u64 run_ns;		/* on a CPU, in the guest or outside */
	u64 ready_ns;		/* runnable, and waiting for a CPU ("CPU ready"): the kernel's run delay, where it counts that */
	u64 delay_seen_ns;	/* run delay at the last switch away from it, plus 1; 0: none was seen yet */
	u64 waited_since_ns;	/* waits since then, as seen here and counted in ready_ns */
	u64 preemptions;	/* it lost its CPU although it had work */
	u64 wakeups;		/* it became runnable */
	u64 interrupts;		/* accepted for it */
	u64 interrupts_off;	/* ... while it was not running */
	u64 passed_over;	/* of those of a device that found it waiting: another task began to run before it */
	u64 polls_won;		/* halts that ended while KVM still polled */
	u64 exits[NR_EXIT_CLASSES];

	u64 steal_ns;		/* as its guest reads it; 0 as well: it does not ask */
	u64 steal_seen_ns;	/* what it read last */
	u64 steal_read_ns;	/* when that was read; 0: not yet */

	struct time_histogram ready;		/* one wait for a CPU each */
	struct time_histogram to_run;		/* from the interrupt to running */
	struct time_histogram device_to_run;	/* from the interrupt of a device that found it waiting */
};

/* Who ran while a VM's vCPUs waited. */
struct taken_key {
	u32 from;		/* process of the VM that waited */
	u32 by;			/* process of the VM that ran; TAKEN_OTHER, TAKEN_UNKNOWN */
};

#define TAKEN_OTHER 0		/* a task of no VM */
#define TAKEN_UNKNOWN 1		/* too long ago to tell: more than TAKEN_RUNS switches; idle, or an interrupt */

/* Switches of a CPU that are remembered. A power of two. */
#define TAKEN_RUNS 16

/* Things that should not happen, counted over all CPUs. */
enum observer_trouble {
	TROUBLE_THREADS_FULL,	/* a thread could not be remembered: the map was too small */
	TROUBLE_TAKEN_FULL,	/* likewise, of who took whose time */
	NR_TROUBLES,
};

#endif
