/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is a vCPU. KVM says it: whoever calls its run function runs a vCPU, whatever the VMM and whatever the thread is called.
 * The key of a VM is KVM's record of it.
 */
#ifndef TANDEM_HOST_VM_BPF_H
#define TANDEM_HOST_VM_BPF_H

#include "records.bpf.h"
#include "kvm.bpf.h"

/*
 * The deadline of a thread that is no vCPU (the emulator's, vhost's, ssh, libvirtd) is no further away than this, ns of
 * virtual time. It is earlier than that of a vCPU that was queued at the same time: within its weight such a thread is
 * served first. Its request is as long as any other's, since several of them on one pCPU would only take it from each
 * other. A vCPU that wakes up and usually sleeps soon is like them (is_prompt()).
 */
#define NEAR_DEADLINE_NS (700 * NSEC_PER_USEC_)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm_state);
} vms SEC(".maps");

/* Written by the daemon, also while the scheduler runs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm_settings);
} settings SEC(".maps");

/* Number of a VM's record plus 1, by KVM's record of it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_VMS);
	__type(key, u64);
	__type(value, u32);
} vm_numbers SEC(".maps");

/* Number of VMs of a process, by that of the process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_VMS);
	__type(key, u32);
	__type(value, u32);
} vmms SEC(".maps");

/* Where the search for a free record begins. */
u32 next_vm;

/* What tasks of no VM owe, and what VMs owed that have ended; negative: what they are owed (policy/host/debt.h; atomic). */
s64 others_debt_ns;

/* VMs that have ended. A thread for whose VM there was no record tries again after the next one. */
u32 ended_vms;

/* A VM has ended, or another one has its record now. */
static __always_inline void closes_account(struct vm_state *vm)
{
	s64 debt_ns = vm->debt_ns ? __sync_lock_test_and_set(&vm->debt_ns, 0) : 0;

	if (debt_ns)
		__sync_fetch_and_add(&others_debt_ns, debt_ns);
	vm->borrowed_ns = 0;
	vm->repaid_ns = 0;
	vm->device_at_ns = 0;
	vm->asked_tid = 0;
	vm->wake_used_ns = 0;
	vm->aged_at_ns = 0;
	vm->misread = 0;
	__builtin_memset(vm->pages, 0, sizeof(vm->pages));
}

static __always_inline struct vm_state *vm_state(u32 vm)
{
	u32 key = vm - 1;

	return vm ? bpf_map_lookup_elem(&vms, &key) : NULL;
}

/* The VM whose vCPU a task runs; NULL: none, or that VM is gone. */
static __always_inline struct vm_state *vm_of(const struct task_state *t)
{
	struct vm_state *vm = vm_state(t->side.vm);

	return vm && vm->generation == t->side.generation ? vm : NULL;
}

static __always_inline bool is_vcpu(const struct task_state *t)
{
	return vm_of(t);
}

/* Settings of a task's VM; NULL: those of any other. */
static __always_inline struct vm_settings *settings_of(const struct task_state *t)
{
	u32 key = t->side.vm - 1;
	struct vm_settings *s = t->side.vm ? bpf_map_lookup_elem(&settings, &key) : NULL;

	return s && s->valid && s->generation == t->side.generation ? s : NULL;
}

/* Is a technique in use for a task's VM? */
static __always_inline bool vm_uses(const struct task_state *t, enum vm_technique technique)
{
	struct vm_settings *s = settings_of(t);

	return !((s ? s->off : VM_OFF_BY_DEFAULT) & technique);
}

/* Does it usually sleep before it counts as CPU-bound, so that it is served first when it wakes up? */
static __always_inline bool is_prompt(const struct task_state *t)
{
	return is_light(t->mean_burst_ns) && vm_uses(t, VM_PROMPT);
}

static __always_inline u32 *vcpus_at(struct vm_state *vm, s32 cpu)
{
	return &vm->at[cpu & (MAX_PLACES - 1)];
}

/* Siblings of a vCPU that run or wait on this pCPU, itself not counted. */
static __always_inline u32 siblings_at(const struct task_state *t, s32 cpu)
{
	struct vm_state *vm = vm_of(t);
	u32 n;

	if (!vm)
		return 0;
	n = *vcpus_at(vm, cpu);
	return n - (n && t->side.place && (s32)(u32)t->side.place - 1 == cpu);
}

/* Where a vCPU is counted: the number of its VM and the pCPU plus 1, in one word. */
static __always_inline u64 place_of(u32 vm, s32 cpu)
{
	return (u64)vm << 48 | (u32)(cpu + 1);
}

/* Whatever has become of that VM: only so the sums stay exact, when records change hands. */
static __always_inline void give_back_place(u64 place)
{
	struct vm_state *vm = vm_state(place >> 48);

	if (vm)
		__sync_fetch_and_sub(vcpus_at(vm, (s32)(u32)place - 1), 1);
}

static __always_inline void leave_place(struct task_state *t)
{
	u64 place = t->side.place ? __sync_lock_test_and_set(&t->side.place, 0) : 0;

	if (place)
		give_back_place(place);
}

static __always_inline void take_place(struct task_state *t, s32 cpu)
{
	/* Read once: the task may end meanwhile. */
	u32 number = *(volatile u32 *)&t->side.vm;
	struct vm_state *vm = vm_state(number);
	u64 before;

	if (!vm || vm->generation != t->side.generation)
		return;
	__sync_fetch_and_add(vcpus_at(vm, cpu), 1);
	before = __sync_lock_test_and_set(&t->side.place, place_of(number, cpu));
	if (before)
		give_back_place(before);
	/* It may have ended, or have stopped being a vCPU of that VM, before its place was set. */
	if (t->ended || t->side.vm != number)
		leave_place(t);
}

/* A record for a VM that was not known. Returns its number plus 1; 0: there is no room. */
COLD u32 add_vm(u64 kvm, u32 pid)
{
	u32 from = next_vm, i, number, *known, one = 1;

	bpf_for(i, 0, MAX_VMS) {
		struct vm_state *vm;

		number = (from + i) % MAX_VMS + 1;
		vm = vm_state(number);
		if (!vm || vm->kvm || __sync_val_compare_and_swap(&vm->kvm, 0, kvm))
			continue;
		next_vm = number % MAX_VMS;
		vm->pid = pid;
		/* A real-time thread ends without a word to this scheduler. */
		vm->vcpus = 0;
		closes_account(vm);
		if (bpf_map_update_elem(&vm_numbers, &kvm, &number, BPF_NOEXIST)) {
			/* Another of its vCPUs was faster. */
			vm->pid = 0;
			__sync_lock_test_and_set(&vm->kvm, 0);
			known = bpf_map_lookup_elem(&vm_numbers, &kvm);
			return known ? *known : 0;
		}
		if (bpf_map_update_elem(&vmms, &pid, &one, BPF_NOEXIST)) {
			known = bpf_map_lookup_elem(&vmms, &pid);
			if (known)
				__sync_fetch_and_add(known, 1);
		}
		return number;
	}
	return 0;
}

/* A task stops being a vCPU of the VM that it was one of. */
static __always_inline void leaves_vm(struct task_state *t)
{
	struct vm_state *vm = vm_of(t);

	leave_place(t);
	t->side.vm = 0;
	t->side.elsewhere = 0;
	if (vm)
		__sync_fetch_and_sub(&vm->vcpus, 1);
}

/* Task `tid` of process `pid` runs this vCPU of this VM. */
static __always_inline void vcpu_of_vm(struct task_state *t, s32 tid, u64 vcpu, u64 kvm, u32 pid)
{
	u32 *number = bpf_map_lookup_elem(&vm_numbers, &kvm), found;
	struct vm_state *vm;
	struct cpu_state *c;
	s32 cpu;

	if (!number && !t->side.vm && t->side.vcpu == vcpu && t->side.generation == ended_vms)
		return;
	found = number ? *number : add_vm(kvm, pid);
	vm = vm_state(found);
	if (vm && t->side.vm == found && t->side.generation == vm->generation) {
		t->side.vcpu = vcpu;
		return;
	}
	leaves_vm(t);
	t->side.vcpu = vcpu;
	t->side.safe = 0;
	t->side.io_seen = t->side.io_points;
	t->side.had_io = 0;
	t->side.confidence = 0;
	t->side.interrupted = 0;
	t->side.asked = 0;
	t->side.owes_answer = 0;
	t->side.answerer.votes = 0;
	t->side.io_task = 0;
	t->side.kicked = 0;
	t->side.held_votes = 0;
	t->side.comes_next = TURN_OWN;
	t->side.generation = vm ? vm->generation : ended_vms;
	/* The record is believed only with its generation. */
	barrier();
	t->side.vm = vm ? found : 0;
	if (!vm)
		return;
	__sync_fetch_and_add(&vm->vcpus, 1);
	count_task(CNT_VCPUS, tid);
	/* It may run for hours before it is queued anew. */
	cpu = queue_cpu(t);
	c = cpu_state(cpu);
	if (!c)
		return;
	if (!t->custom)
		t->base_ns = c->base_request_ns;
	take_place(t, cpu);
	if (queue_cpu(t) != cpu)
		leave_place(t);
}

/* The current thread runs this vCPU. (A global function would not take a pointer of KVM's.) */
static __noinline int becomes_vcpu(void *vcpu)
{
	struct kvm_vcpu___tandem *v = vcpu;
	struct task_state *t = task_state((struct task_struct *)bpf_get_current_task_btf());
	u64 kvm = (u64)BPF_CORE_READ(v, kvm), ids = bpf_get_current_pid_tgid();

	if (t && kvm)
		vcpu_of_vm(t, ids, (u64)vcpu, kvm, ids >> 32);
	return 0;
}

static __always_inline struct task_state *current_state(void)
{
	return task_state((struct task_struct *)bpf_get_current_task_btf());
}

/* The current thread, in KVM's run function, runs this vCPU. Another VM's vCPU may have had the same address. */
static __always_inline void runs_this(struct task_state *t, u64 vcpu)
{
	t->side.elsewhere = 0;
	if (t->side.vcpu != vcpu || !is_vcpu(t))
		becomes_vcpu((void *)vcpu);
}

SEC("?fentry/kvm_arch_vcpu_ioctl_run")
int BPF_PROG(host_vcpu_runs, void *vcpu)
{
	struct task_state *t = current_state();

	if (t) {
		/* A fast exit to the VMM passes by the exit's handling, which takes the mark away. */
		t->side.safe = 0;
		runs_this(t, (u64)vcpu);
	}
	return 0;
}

/* A vCPU that was running or asleep before this was loaded: it may not need its VMM for hours. Called when it is switched in. */
SEC("?fentry/kvm_sched_in")
int host_vcpu_comes(u64 *ctx)
{
	struct task_state *t = current_state();
	u64 notifier = 0, vcpu;

	/* As a number: the verifier takes no steps back from a pointer. */
	if (!t || bpf_get_func_arg(ctx, 0, &notifier))
		return 0;
	vcpu = notifier - kvm_notifier_offset();
	if (kvm_is_in_run((void *)vcpu))
		runs_this(t, vcpu);
	return 0;
}

/* host_vcpu_comes() is attached (written by the daemon). */
u32 sees_vcpus_come;

/* Switches to a vCPU's thread outside of KVM after which it is a thread like any other. One that emulates a device sleeps a few times. */
#define ELSEWHERE_MAX 64

/* A thread is switched in. KVM says right afterwards that it runs its vCPU, unless it does something else by now. */
static __always_inline void looks_for_vcpu(struct task_state *t, const struct cpu_state *c)
{
	if (!t->side.vm || !sees_vcpus_come || ++t->side.elsewhere <= ELSEWHERE_MAX)
		return;
	leaves_vm(t);
	t->side.vcpu = 0;
	if (!t->custom)
		t->base_ns = min_u64(NEAR_DEADLINE_NS, c->base_request_ns);
}

SEC("?fentry/kvm_arch_destroy_vm")
int BPF_PROG(host_vm_ends, void *kvm)
{
	u64 key = (u64)kvm;
	u32 *number = bpf_map_lookup_elem(&vm_numbers, &key), pid, *others;
	struct vm_state *vm = number ? vm_state(*number) : NULL;

	if (!vm)
		return 0;
	bpf_map_delete_elem(&vm_numbers, &key);
	/* Threads that were of this VM are of an older generation from now on. What they have added to sums they take off themselves. */
	__sync_fetch_and_add(&vm->generation, 1);
	__sync_fetch_and_add(&ended_vms, 1);
	pid = vm->pid;
	others = bpf_map_lookup_elem(&vmms, &pid);
	if (others && __sync_fetch_and_sub(others, 1) <= 1)
		bpf_map_delete_elem(&vmms, &pid);
	vm->pid = 0;
	__sync_lock_test_and_set(&vm->kvm, 0);
	closes_account(vm);
	return 0;
}

#endif
