/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interrupts that hardware delivers to a vCPU which was preempted (posted interrupts of a device that is passed through, AVIC): KVM runs no
 * code for them, and nobody is told. So once per millisecond each pCPU on which others wait looks at what is posted for the first few of
 * those. A vCPU for which something is comes forward as if KVM had been asked.
 *
 * It was tested by posting in a simulator, never on hardware. The daemon switches it on where hardware may do so (doctor says whether).
 */
#ifndef TANDEM_HOST_POSTED_BPF_H
#define TANDEM_HOST_POSTED_BPF_H

#include "interrupt.bpf.h"
#include "../core/timer.bpf.h"

/* enum posted_by (written by the daemon). */
u32 posted_by;

/* How often a pCPU looks: the paper's tick. */
#define POSTED_EVERY_NS NSEC_PER_MSEC_
/* At so many of the vCPUs that wait there. */
#define POSTED_LOOK 8

/* Sized to the number of possible CPUs when the object is loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct one_timer);
} posted_timers SEC(".maps");

/* Vector of a device's interrupt that is posted for a vCPU; 0: there is none. */
static __always_inline u32 vector_posted_for(struct kvm_vcpu___tandem *vcpu)
{
	u32 timer = kvm_timer_vector(kvm_apic_of(vcpu)), word, vector;
	unsigned long words[KVM_POSTED_WORDS] = {};

	if (posted_by == POSTED_BY_AMD)
		kvm_posted_amd(vcpu, words);
	else
		kvm_posted_intel(vcpu, words);
	for (word = 0; word < KVM_POSTED_WORDS; word++) {
		vector = posted_vector(words[word], word, KVM_FIRST_SYSTEM_VECTOR___TANDEM, timer);
		if (vector)
			return vector;
	}
	return 0;
}

/* Is something posted for the vCPU that a waiting thread runs? Not looked at again once it was found. */
COLD int look_at_posted(s32 tid, u64 now)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_state *t;
	struct vm_state *vm;
	u32 vector = 0;

	if (!p)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(p);
	vm = t && !t->side.interrupted ? vm_of(t) : NULL;
	if (vm)
		vector = vector_posted_for((struct kvm_vcpu___tandem *)t->side.vcpu);
	if (vm && vector) {
		count_task(CNT_POSTED, p->pid);
		device_interrupts(p, t, vm, vector, now);
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return 0;
}

/* At those that wait in a queue. */
COLD int look_for_posted(u64 queue, u64 now)
{
	struct cpu_state *own = cpu_state(bpf_get_smp_processor_id());
	struct task_struct *p;

	if (!own)
		return 0;
	own->scanned = 0;
	/* For the verifier, which also sees the timer set up from a sleepable program. */
	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, queue, 0) {
		if (own->scanned++ >= POSTED_LOOK)
			break;
		look_at_posted(p->pid, now);
	}
	bpf_rcu_read_unlock();
	return 0;
}

static int posted_timer_fires(void *map, u32 *key, struct one_timer *timer)
{
	struct cpu_state *c = cpu_state(*key);
	u64 now = k_now();

	if (!c)
		return 0;
	c->side.posted_at_ns = 0;
	if (!posted_by || !c->online || !may_wait(c, CLASS_NORMAL))
		return 0;
	look_for_posted(queue_of(*key, CLASS_NORMAL), now);
	c->side.posted_at_ns = now + POSTED_EVERY_NS;
	bpf_timer_start(&timer->timer, POSTED_EVERY_NS, BPF_F_TIMER_CPU_PIN);
	return 0;
}

/* A task begins to run, or goes on. Others may wait, and then this pCPU looks from now on. Call it on that pCPU. */
static __always_inline void looks_for_posted(struct cpu_state *c, u32 cpu, u64 now)
{
	struct one_timer *timer;

	if (!posted_by || !may_wait(c, CLASS_NORMAL) || timer_comes_by(c->side.posted_at_ns, now + POSTED_EVERY_NS, now))
		return;
	timer = bpf_map_lookup_elem(&posted_timers, &cpu);
	if (!timer)
		return;
	c->side.posted_at_ns = now + POSTED_EVERY_NS;
	bpf_timer_start(&timer->timer, POSTED_EVERY_NS, BPF_F_TIMER_CPU_PIN);
}

static __noinline s32 posted_init(void)
{
	u32 cpu;

	bpf_for(cpu, 0, nr_cpu_ids) {
		struct one_timer *timer = bpf_map_lookup_elem(&posted_timers, &cpu);

		if (!timer)
			return -EINVAL;
		bpf_timer_init(&timer->timer, &posted_timers, K_CLOCK_MONOTONIC);
		bpf_timer_set_callback(&timer->timer, posted_timer_fires);
	}
	return 0;
}

#endif
