/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The only door to KVM: its structures, and what of them is read.
 *
 * KVM is a module. The kernel's header that this is compiled with has no KVM in it, so the few fields that are read are declared
 * here and found by name in the module's own type information when the object is loaded. A field that has moved between
 * kernels has two declarations; which of them holds is asked for by field, never by version. The scheduler is also loaded while there is no KVM:
 * what its own programs read, and not only those that hang in KVM, asks whether the field is there at all.
 */
#ifndef TANDEM_HOST_KVM_BPF_H
#define TANDEM_HOST_KVM_BPF_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kvm___tandem {
	pid_t userspace_pid;
};

struct gfn_to_hva_cache___tandem {
	unsigned long hva;
};

struct kvm_lapic___tandem;

struct kvm_vcpu_arch___tandem {
	struct kvm_lapic___tandem *apic;
	struct {
		u64 msr_val;
		struct gfn_to_hva_cache___tandem cache;
	} st;
};

struct preempt_notifier___tandem {
	void *ops;
};

struct kvm_vcpu___tandem {
	struct kvm___tandem *kvm;
	struct preempt_notifier___tandem preempt_notifier;
	int vcpu_id;
	struct pid *pid;	/* of the thread that ran it last */
	bool preempted;
	bool wants_to_run;	/* its thread is in KVM's run function; since 6.11 */
	struct kvm_vcpu_arch___tandem arch;
};

struct kvm_lapic___tandem {
	struct kvm_vcpu___tandem *vcpu;
	void *regs;
};

/* AMD. The vCPU is the first member (KVM asserts it when it is built). The code had 32 bits and a second word before it had 64. */
struct vmcb_control_area___tandem {
	u64 exit_code;
};

struct vmcb___tandem {
	struct vmcb_control_area___tandem control;
};

struct vcpu_svm___tandem {
	struct kvm_vcpu___tandem vcpu;
	struct vmcb___tandem *vmcb;
};

/* What Intel's processors post interrupts in: 256 bits, one for each vector. (In words of 32 bits, or of 64: the same on x86.) */
struct pi_desc___tandem {
	unsigned long pir[4];
};

/* Intel, likewise. */
union vmx_exit_reason___tandem {
	u32 full;
};

struct vcpu_vmx___tandem {
	struct kvm_vcpu___tandem vcpu;
	union vmx_exit_reason___tandem exit_reason;
	struct pi_desc___tandem pi_desc;
};

/* Since 6.15 this and the reason are in a part that VMX and TDX share. */
struct vcpu_vt___tandem {
	union vmx_exit_reason___tandem exit_reason;
	struct pi_desc___tandem pi_desc;
};

struct vcpu_vmx___shared {
	struct kvm_vcpu___tandem vcpu;
	struct vcpu_vt___tandem vt;
};

#pragma clang attribute pop

/* From arch/x86/include/uapi/asm/kvm.h and kvm_para.h: preprocessor constants, so absent from type information. */
#define KVM_ISA_VMX___TANDEM 1
#define KVM_ISA_SVM___TANDEM 2
#define KVM_MSR_ENABLED___TANDEM 1
#define KVM_STEAL_FLAGS___TANDEM 63ULL
/* Arguments of kvm_mmio and kvm_pio. */
#define KVM_TRACE_MMIO_WRITE___TANDEM 2
#define KVM_PIO_OUT___TANDEM 1
/* Ports of interrupt controllers, timers, keyboard and clock. */
#define KVM_PIO_LEGACY_END___TANDEM 0x100
/* Register of a local APIC that says which vector its timer has. */
#define KVM_APIC_LVTT___TANDEM 0x320
/* Its interrupt request register: eight words of 32 bits, one every 16 bytes. */
#define KVM_APIC_IRR___TANDEM 0x200
/* From arch/x86/include/asm/apicdef.h: interrupts of fixed and of lowest priority have a vector. */
#define KVM_APIC_DM_LOWEST___TANDEM 0x100
/* From arch/x86/include/asm/irq_vectors.h: the first of those that Linux guests have for themselves. */
#define KVM_FIRST_SYSTEM_VECTOR___TANDEM 0xec
/* Local APICs, I/O APICs and HPETs are in this range of addresses. */
#define KVM_APICS_FROM___TANDEM 0xfec00000ULL
#define KVM_APICS_TO___TANDEM 0xff000000ULL

/* Why the guest was left, as the processor says; ~0: not to be had. */
static __always_inline u32 kvm_exit_code(struct kvm_vcpu___tandem *vcpu, u32 isa)
{
	if (isa == KVM_ISA_SVM___TANDEM) {
		struct vmcb___tandem *vmcb = BPF_CORE_READ((struct vcpu_svm___tandem *)vcpu, vmcb);

		/* The low word, whatever the width: x86 is little-endian. */
		return vmcb ? (u32)BPF_CORE_READ(vmcb, control.exit_code) : ~0U;
	}
	if (bpf_core_field_exists(((struct vcpu_vmx___tandem *)0)->exit_reason))
		return BPF_CORE_READ((struct vcpu_vmx___tandem *)vcpu, exit_reason.full);
	if (bpf_core_field_exists(((struct vcpu_vmx___shared *)0)->vt.exit_reason))
		return BPF_CORE_READ((struct vcpu_vmx___shared *)vcpu, vt.exit_reason.full);
	return ~0U;
}

/* Is the thread that KVM switches in with this vCPU about to run it? KVM loads a vCPU for other system calls as well. */
static __always_inline bool kvm_is_in_run(struct kvm_vcpu___tandem *vcpu)
{
	return !bpf_core_field_exists(vcpu->wants_to_run) || BPF_CORE_READ(vcpu, wants_to_run);
}

/* Number of the thread that ran this vCPU last; 0: none has. */
static __always_inline s32 kvm_tid_of(struct kvm_vcpu___tandem *vcpu)
{
	struct pid *pid = bpf_core_field_exists(vcpu->pid) ? BPF_CORE_READ(vcpu, pid) : NULL;

	return pid ? BPF_CORE_READ(pid, numbers[0].nr) : 0;
}

/* Registers of a local APIC. */
static __always_inline void *kvm_apic_regs(struct kvm_lapic___tandem *apic)
{
	return apic && bpf_core_field_exists(apic->regs) ? BPF_CORE_READ(apic, regs) : NULL;
}

/* Local APIC of a vCPU, if KVM emulates it. */
static __always_inline struct kvm_lapic___tandem *kvm_apic_of(struct kvm_vcpu___tandem *vcpu)
{
	return bpf_core_field_exists(vcpu->arch.apic) ? BPF_CORE_READ(vcpu, arch.apic) : NULL;
}

/* Number of a vCPU in its VM. */
static __always_inline u32 kvm_vcpu_number(struct kvm_vcpu___tandem *vcpu)
{
	return bpf_core_field_exists(vcpu->vcpu_id) ? BPF_CORE_READ(vcpu, vcpu_id) : 0;
}

/* Vector of a local APIC's timer. */
static __always_inline u32 kvm_timer_vector(struct kvm_lapic___tandem *apic)
{
	void *regs = kvm_apic_regs(apic);
	u32 lvtt = 0;

	if (!regs || bpf_probe_read_kernel(&lvtt, sizeof(lvtt), regs + KVM_APIC_LVTT___TANDEM))
		return 0;
	return lvtt & 0xff;
}

/* Has an interrupt that is delivered in this way a vector? */
static __always_inline bool kvm_has_vector(int delivery_mode)
{
	return !(delivery_mode & ~KVM_APIC_DM_LOWEST___TANDEM);
}

/* Is an interrupt of this vector a device's? Not the vCPU's own timer's, nor one that Linux guests have for themselves. */
static __always_inline bool kvm_is_of_device(u32 vector, u32 timer)
{
	return vector < KVM_FIRST_SYSTEM_VECTOR___TANDEM && vector != timer;
}

/* Where a vCPU's preempt notifier is in its record. */
static __always_inline u64 kvm_notifier_offset(void)
{
	return bpf_core_field_offset(struct kvm_vcpu___tandem, preempt_notifier);
}

/* Where in the VMM's memory the guest reads its steal time; 0: the guest does not ask for it. */
static __always_inline u64 kvm_steal_page(struct kvm_vcpu___tandem *vcpu)
{
	if (!bpf_core_field_exists(vcpu->arch.st.msr_val) || !bpf_core_field_exists(vcpu->arch.st.cache.hva) ||
	    !(BPF_CORE_READ(vcpu, arch.st.msr_val) & KVM_MSR_ENABLED___TANDEM))
		return 0;
	return BPF_CORE_READ(vcpu, arch.st.cache.hva);
}

/* And where in the guest's own. */
static __always_inline u64 kvm_steal_gpa(struct kvm_vcpu___tandem *vcpu)
{
	return bpf_core_field_exists(vcpu->arch.st.msr_val) ? BPF_CORE_READ(vcpu, arch.st.msr_val) & ~KVM_STEAL_FLAGS___TANDEM : 0;
}

/* Words of 64 vectors. */
#define KVM_POSTED_WORDS 4

/* What Intel's hardware has posted for a vCPU, without KVM. */
static __always_inline void kvm_posted_intel(struct kvm_vcpu___tandem *vcpu, unsigned long words[KVM_POSTED_WORDS])
{
	unsigned long pir[KVM_POSTED_WORDS] = {};

	if (bpf_core_field_exists(((struct vcpu_vmx___tandem *)0)->pi_desc))
		BPF_CORE_READ_INTO(&pir, (struct vcpu_vmx___tandem *)vcpu, pi_desc.pir);
	else if (bpf_core_field_exists(((struct vcpu_vmx___shared *)0)->vt.pi_desc))
		BPF_CORE_READ_INTO(&pir, (struct vcpu_vmx___shared *)vcpu, vt.pi_desc.pir);
	__builtin_memcpy(words, pir, sizeof(pir));
}

/* And AMD's: into the registers of the local APIC. What is requested there is no longer so once the guest was entered. */
static __always_inline void kvm_posted_amd(struct kvm_vcpu___tandem *vcpu, unsigned long words[KVM_POSTED_WORDS])
{
	u32 irr[KVM_POSTED_WORDS * 8] = {};
	void *regs = kvm_apic_regs(kvm_apic_of(vcpu));
	u32 at;

	if (!regs || bpf_probe_read_kernel(irr, sizeof(irr), regs + KVM_APIC_IRR___TANDEM))
		return;
	for (at = 0; at < KVM_POSTED_WORDS; at++)
		words[at] = (u64)irr[8 * at + 4] << 32 | irr[8 * at];
}

#endif
