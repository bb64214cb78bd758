/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a guest does, read in its memory (policy/host/inside.h), where the daemon has found out at which distances.
 *
 * A vCPU's thread reads the memory of its own guest, between an exit and the next entry: at the end of a turn, and once per millisecond of run
 * time. The steal time page of each vCPU is its own, so the words read are those of the vCPU. What cannot be read (it is swapped out), or is no such word,
 * says nothing.
 */
#ifndef TANDEM_HOST_INSIDE_BPF_H
#define TANDEM_HOST_INSIDE_BPF_H

#include "vm.bpf.h"

/* Reads `size` bytes of the guest of t, in its own thread. */
static __always_inline bool read_inside(const struct task_state *t, s32 distance, void *to, u32 size)
{
	u64 page;

	/* A property change stops a running task from another CPU. There the VMM's memory is not to be had. */
	if (!distance || current_state() != t)
		return false;
	page = kvm_steal_page((struct kvm_vcpu___tandem *)t->side.vcpu);
	return page && !bpf_probe_read_user(to, size, (void *)(page + distance));
}

/* The guest's current task on this vCPU; 0: not known. */
COLD u64 task_inside(struct task_state *t __arg_nonnull)
{
	struct vm_settings *s = settings_of(t);
	struct vm_state *vm = vm_of(t);
	u64 task = 0;

	if (!s || !vm || (s->off & VM_INTROSPECT) || !read_inside(t, s->task_distance, &task, sizeof(task)))
		return 0;
	if (is_guest_task(task))
		return task;
	__sync_fetch_and_add(&vm->misread, 1);
	return 0;
}

/* Is the guest's kernel in a critical section on this vCPU? */
COLD bool is_critical_inside(struct task_state *t __arg_nonnull)
{
	struct vm_settings *s = settings_of(t);
	struct vm_state *vm = vm_of(t);
	u32 count = 0;

	if (!s || !vm || !read_inside(t, s->depth_distance, &count, sizeof(count)))
		return false;
	if (!is_preempt_count(count))
		__sync_fetch_and_add(&vm->misread, 1);
	return is_critical(count);
}

/* Where the guest of t reads its steal time, for the daemon. */
static __always_inline void shows_page(const struct task_state *t, struct vm_state *vm)
{
	struct kvm_vcpu___tandem *vcpu = (struct kvm_vcpu___tandem *)t->side.vcpu;
	struct steal_page *page = &vm->pages[kvm_vcpu_number(vcpu) & (KNOWN_PAGES - 1)];
	u64 hva = kvm_steal_page(vcpu);

	if (page->hva == hva)
		return;
	page->gpa = hva ? kvm_steal_gpa(vcpu) : 0;
	page->hva = hva;
}

#endif
