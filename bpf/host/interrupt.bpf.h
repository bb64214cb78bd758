/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What KVM says of a VM's I/O: interrupts that it accepts for a vCPU, and what a vCPU writes to devices.
 *
 * An interrupt is told by its vector, and by who sends it. Linux has its own vectors from 0xec on: of those only the reschedule IPI
 * matters here. Any other vector is a device's, unless it is that of the vCPU's own timer. Of a guest that does not read its steal
 * time it is not known whether it is Linux: there an interrupt that a vCPU's thread sends may be any IPI, and is none of these.
 *
 *   device interrupt, kick    an event of I/O, and the VM does some
 *   reschedule IPI            one, if it is near the VM's last event of a device
 *   call-function IPI         none: its sender waits for the receiver, and yields to it. One for a single receiver may wake a task
 *                             there, and is an event if its sender owes an answer, or like a reschedule IPI if the receiver sleeps
 *
 * What it does not see: what hardware delivers without KVM (posted.bpf.h looks for that), and doorbells that are mapped into the guest.
 */
#ifndef TANDEM_HOST_INTERRUPT_BPF_H
#define TANDEM_HOST_INTERRUPT_BPF_H

#include "boost.bpf.h"

/* From arch/x86/include/asm/irq_vectors.h: the same in all Linux guests. */
#define K_RESCHEDULE_VECTOR 0xfd
#define K_CALL_SINGLE_VECTOR 0xfb

enum event {
	EVENT_NONE,
	EVENT_DEVICE,
	EVENT_RESCHEDULE,
	EVENT_CALL,
};

/* Can an interrupt of this vector be an event? */
static __always_inline bool may_matter(u32 vector)
{
	return vector < KVM_FIRST_SYSTEM_VECTOR___TANDEM || vector == K_CALL_SINGLE_VECTOR || vector == K_RESCHEDULE_VECTOR;
}

/* What an interrupt of this vector is. `by_vcpu`: the current thread runs a vCPU of the same VM; `timer`: the vector of the vCPU's timer. */
static __always_inline u32 event_of(u32 vector, bool by_vcpu, bool linux_guest, u32 timer)
{
	if (kvm_is_of_device(vector, timer))
		return by_vcpu && !linux_guest ? EVENT_NONE : EVENT_DEVICE;
	if (vector == K_CALL_SINGLE_VECTOR)
		return linux_guest ? EVENT_CALL : EVENT_NONE;
	return vector == K_RESCHEDULE_VECTOR && linux_guest ? EVENT_RESCHEDULE : EVENT_NONE;
}

/* Does it wait in a queue, and may it run? */
static __always_inline bool waits_to_run(const struct task_state *t)
{
	return t->run_cpu < 0 && queue_cpu(t) >= 0 && !t->throttled_at_ns;
}

/* Is it halted, or in the VMM? */
static __always_inline bool sleeps(const struct task_state *t)
{
	return t->run_cpu < 0 && queue_cpu(t) < 0;
}

/* Does an IPI of a sibling wake a task there? A vCPU that sleeps is called for little else: it has no TLB to flush. */
static __always_inline bool wakes_inside(const struct task_state *t, u32 event)
{
	return event == EVENT_RESCHEDULE || (event == EVENT_CALL && sleeps(t));
}

/* A vCPU has an event of I/O. */
static __always_inline void has_io(struct task_state *t, s32 pid)
{
	__sync_fetch_and_add(&t->side.io_points, 1);
	count_task(CNT_IO_EVENTS, pid);
}

/* A vCPU that does not run comes before its turn, now or when it is woken. */
static __always_inline void comes_for_io(struct task_struct *p, struct task_state *t, struct vm_state *vm, u64 now)
{
	if (t->run_cpu >= 0)
		return;
	t->side.interrupted = 1;
	if (waits_to_run(t))
		asks_to_come(p, t, vm, false, now);
}

/* A sibling will answer what a vCPU of this VM was asked. */
COLD int sibling_comes_for_io(s32 tid, u32 number, u64 now)
{
	struct task_struct *p = bpf_task_from_pid(tid);
	struct task_state *t;
	struct vm_state *vm;

	if (!p)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(p);
	vm = t && t->side.vm == number ? vm_of(t) : NULL;
	if (vm) {
		t->side.owes_answer = 1;
		comes_for_io(p, t, vm, now);
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return 0;
}

/* A device interrupts the vCPU that a thread runs. */
static __always_inline void device_interrupts(struct task_struct *p, struct task_state *t, struct vm_state *vm, u32 vector, u64 now)
{
	s32 tid;

	vm->device_at_ns = now;
	if (!vm_uses(t, VM_BOOST))
		return;
	has_io(t, p->pid);
	is_asked(t, p->pid, vm, vector);
	tid = will_answer(t);
	if (tid == p->pid)
		t->side.owes_answer = 1;
	comes_for_io(p, t, vm, now);
	if (tid && tid != p->pid)
		sibling_comes_for_io(tid, t->side.vm, now);
}

/* A sibling sends it an IPI that may wake a task there. */
static __always_inline void sibling_interrupts(struct task_struct *p, struct task_state *t, struct vm_state *vm, struct task_state *sender,
					       u32 event, u64 now)
{
	bool hands_on = sender->side.owes_answer;

	if (vm_uses(t, VM_BOOST) && (hands_on || (wakes_inside(t, event) && is_near_io(vm->device_at_ns, now)))) {
		has_io(t, p->pid);
		if (hands_on) {
			sender->side.owes_answer = 0;
			t->side.owes_answer = 1;
		}
		comes_for_io(p, t, vm, now);
		return;
	}
	/* Who waits for the answer to a call-function IPI yields to the receiver by itself (yield.bpf.h). */
	if (event == EVENT_RESCHEDULE && vm_uses(t, VM_FORWARD) && waits_to_run(t))
		forward_to(p);
}

/* An interrupt was accepted for a vCPU (by its record). */
static __noinline int accepted(struct kvm_lapic___tandem *apic, u32 vector)
{
	struct kvm_vcpu___tandem *vcpu = BPF_CORE_READ(apic, vcpu);
	s32 tid = vcpu ? kvm_tid_of(vcpu) : 0;
	struct task_struct *p = tid ? bpf_task_from_pid(tid) : NULL;
	struct task_state *t, *sender;
	struct vm_state *vm;
	bool by_vcpu;
	u32 event;

	if (!p)
		return 0;
	bpf_rcu_read_lock();
	t = task_state(p);
	vm = t && t->side.vcpu == (u64)vcpu ? vm_of(t) : NULL;
	if (vm) {
		sender = current_state();
		by_vcpu = sender && sender->side.vm == t->side.vm && sender->side.generation == t->side.generation;
		event = event_of(vector, by_vcpu, kvm_steal_page(vcpu) != 0, kvm_timer_vector(apic));
		if (event == EVENT_DEVICE)
			device_interrupts(p, t, vm, vector, k_now());
		else if (event && by_vcpu && sender != t)
			sibling_interrupts(p, t, vm, sender, event, k_now());
	}
	bpf_rcu_read_unlock();
	bpf_task_release(p);
	return 0;
}

SEC("?fentry/__apic_accept_irq")
int BPF_PROG(host_interrupt, void *apic, int delivery_mode, int vector)
{
	vector &= 0xff;
	/* Most are of the vCPU's own timer. */
	if (!kvm_has_vector(delivery_mode) || !may_matter(vector))
		return 0;
	return accepted(apic, vector);
}

/* The current vCPU has written to a device. */
static __always_inline int kicks(void)
{
	struct task_state *t = current_state();
	struct vm_state *vm = t ? vm_of(t) : NULL;

	if (!vm || !vm_uses(t, VM_BOOST))
		return 0;
	vm->device_at_ns = k_now();
	has_io(t, k_current_pid());
	t->side.io_task = task_inside(t);
	t->side.kicked = 1;
	answers(t, k_current_pid(), vm);
	return 0;
}

SEC("?fentry/ioeventfd_write")
int BPF_PROG(host_kick)
{
	return kicks();
}

/* Interrupt controllers, timers and what else is below port 0x100 are no devices that matter. */
SEC("?tp_btf/kvm_mmio")
int BPF_PROG(host_mmio, int type, int len, u64 gpa)
{
	if (type != KVM_TRACE_MMIO_WRITE___TANDEM || (gpa >= KVM_APICS_FROM___TANDEM && gpa < KVM_APICS_TO___TANDEM))
		return 0;
	return kicks();
}

SEC("?tp_btf/kvm_pio")
int BPF_PROG(host_pio, u32 rw, u32 port)
{
	return rw == KVM_PIO_OUT___TANDEM && port >= KVM_PIO_LEGACY_END___TANDEM ? kicks() : 0;
}

#endif
