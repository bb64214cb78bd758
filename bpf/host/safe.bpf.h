/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Out of quota: where a vCPU's thread stops, and who of a VM need not.
 *
 * A thread that is throttled wherever it happens to be may hold a lock in the kernel (of the memory map, of KVM's page tables), and then
 * all that want it wait for a period. The kernel's own scheduler has the same fault up to 6.17. Three places are known to be free of locks:
 * where KVM hands over to pending work before it enters the guest, the way from the guest's exit to the exit's handling, which is where
 * a preemptible kernel switches, and where a halted vCPU waits. Elsewhere the vCPU goes on, on debt, in short slices, until it comes by one of them.
 *
 * The VMM's other threads do the VM's I/O. They go on while its vCPUs pay, unless they compute. A group owes about its quota of one period at
 * most, and one shortest run on each pCPU (TANDEM_QUOTA_RUN_MIN_NS); of that the VMM's threads may cause half. After a period that did not pay
 * for them they are throttled, too. Whoever has no loan is throttled wherever it is.
 *
 * What it does not know: a vCPU that handles pending work may hold locks in there (memory reclaim, work of other kernel parts), and one that has left
 * to its VMM by a fast exit in the system calls that it makes until KVM runs it again.
 */
#ifndef TANDEM_HOST_SAFE_BPF_H
#define TANDEM_HOST_SAFE_BPF_H

#include "vm.bpf.h"
#include "../core/quota.bpf.h"

/* enum safe_points, as found by the daemon (written by it). 0: vCPUs are throttled anywhere. */
u32 safe_points;

/*
 * The current thread holds no kernel lock from now on, or may hold one again. Where no group has a quota nobody asks, and exits are
 * frequent: what was noted before the set of quotas changed is not believed.
 */
static __always_inline int is_safe(bool safe)
{
	struct task_state *t = nr_limits ? current_state() : NULL;

	if (t)
		t->side.safe = safe ? limits_generation : 0;
	return 0;
}

SEC("?fentry/xfer_to_guest_mode_handle_work")
int BPF_PROG(host_work_begins, void *vcpu)
{
	return is_safe(true);
}

SEC("?fexit/xfer_to_guest_mode_handle_work")
int BPF_PROG(host_work_ends, void *vcpu, int result)
{
	return is_safe(false);
}

/* It has nothing to do, and waits to be woken: where it is woken it may be stopped as well. */
SEC("?fentry/kvm_vcpu_block")
int BPF_PROG(host_block_begins, void *vcpu)
{
	return is_safe(true);
}

SEC("?fexit/kvm_vcpu_block")
int BPF_PROG(host_block_ends, void *vcpu, int result)
{
	return is_safe(false);
}

SEC("?tp_btf/kvm_exit")
int BPF_PROG(host_vcpu_exits, void *vcpu, u32 isa)
{
	return is_safe(true);
}

SEC("?fentry/vmx_handle_exit")
int BPF_PROG(host_handles_vmx)
{
	return is_safe(false);
}

SEC("?fentry/svm_handle_exit")
int BPF_PROG(host_handles_svm)
{
	return is_safe(false);
}

SEC("?fentry/tdx_handle_exit")
int BPF_PROG(host_handles_tdx)
{
	return is_safe(false);
}

/* For how long at most a vCPU goes on without quota until it is looked at again, and a thread of the VMM. */
#define VCPU_DEBT_NS (100 * NSEC_PER_USEC_)
#define VMM_DEBT_NS NSEC_PER_MSEC_

/* A thread of the VMM that has run for so long since it slept computes, and is lent nothing. */
#define VMM_BURST_MOST_NS (4 * NSEC_PER_MSEC_)
/* The parts of a quota that may be owed: by vCPUs on their way to a safe point, and by the VMM's threads. */
#define VCPU_DEBT_PART 1
#define VMM_DEBT_PART 2

/*
 * For how long may a task of a group go on without quota, by all quotas at or above the group? 0: it may not. The VMM's threads have less room than
 * the vCPUs, and none in a period that begins with a debt after one in which they had a loan: otherwise they alone could use up each period's
 * quota before any vCPU gets some. Every pCPU may ask at the same time, before any of them is charged.
 */
COLD u64 loan_ns(u32 group, bool of_vmm, u64 now)
{
	u32 limit = limit_of(group), i;
	u64 least = of_vmm ? VMM_DEBT_NS : VCPU_DEBT_NS;

	bpf_for(i, 0, MAX_DEPTH) {
		struct group_state *g;

		if (!limit)
			break;
		g = group_state(limit);
		if (!g)
			break;
		roll_period(g, now);
		if (of_vmm && g->lends_none)
			return 0;
		least = min_u64(least, quota_loan_ns(g->pool_ns, g->quota_ns, of_vmm ? VMM_DEBT_PART : VCPU_DEBT_PART, nr_cpu_ids));
		if (of_vmm && least && !g->lent)
			g->lent = 1;
		limit = limit_above(g);
	}
	return least;
}

/* For how long may p go on although its group has no quota left? 0: it has to wait. */
static __always_inline u64 debt_ns(const struct task_struct *p, struct task_state *t, u64 now)
{
	u32 tgid = p->tgid;

	/* It waits where it was found to be safe: that holds, whatever quotas have come and gone meanwhile. */
	if (t->throttled_at_ns && t->side.safe)
		return 0;
	/* A mark that does not hold any more must not seem to, once the vCPU is throttled. */
	if (t->side.safe != limits_generation)
		t->side.safe = 0;
	if (is_vcpu(t))
		return safe_points && t->side.safe != limits_generation && vm_uses(t, VM_SAFE_POINTS) ? loan_ns(t->group, false, now) : 0;
	if (t->burst_ns >= VMM_BURST_MOST_NS || !bpf_map_lookup_elem(&vmms, &tgid))
		return 0;
	return loan_ns(t->group, true, now);
}

#endif
