/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Observes the virtual machines of a KVM host: what each vCPU got, what it waited for, and who ran instead.
 *
 * Idea. A guest knows that time was stolen, not by whom; the host's own figures know threads, not vCPUs. KVM knows both. Its run
 * call tells which thread runs which vCPU (whatever the VMM, and whatever it calls its threads); the scheduler's tracepoints tell
 * when each ran, waited and slept; KVM's interrupt controller tells when there was something to answer.
 *
 *   who         kvm_arch_vcpu_ioctl_run(), kvm_sched_in() and kvm_exit: the current thread runs this vCPU of this VM; threads of the same
 *               process are its emulator's; kernel threads named vhost-PID are those of its devices
 *   ran         sched_switch
 *   was ready   from sched_wakeup, or from a switch away from it while it was runnable, until it runs (what the kernel counts
 *               as run delay, /proc/PID/schedstat; VMware's CPU ready)
 *   instead     each CPU remembers its last switches; who ran there during a wait is read off these
 *   answered    from the first interrupt that __apic_accept_irq() accepts for a vCPU which does not run until that runs; of a device's, if the
 *               vCPU waits for a CPU, also whether another task began to run there in between
 *   left        kvm_exit, by class of reason; the dearest of all, since exits are frequent, and attached only where somebody reads it
 *
 * This is a program of its own. It needs no sched_ext and works beside any scheduler, so that one instrument measures all of them.
 *
 * What it does not see: interrupts that hardware delivers itself to a vCPU which was preempted (posted interrupts, IPI
 * virtualisation, AVIC), and all that happens in a guest. It changes nothing: it writes to its own maps only.
 */
#define BPF_NO_KFUNC_PROTOTYPES
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "kvm.bpf.h"
#include "observe.h"

char _license[] SEC("license") = "GPL";

/* From include/linux/sched.h: a preprocessor constant. */
#define PF_KTHREAD___TANDEM 0x00200000
#define PF_EXITING___TANDEM 0x00000004
/* How often a guest's steal time is read, ns. */
#define STEAL_EVERY_NS 100000000ULL
/* How often the exits of a running vCPU are put into its record: 100 ms with 250 ticks per second. */
#define BOOK_EVERY_JIFFIES 25

/* Threads of VMs, by thread id. The loader makes this and the next map as large as the kernel's limit of threads asks for. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct thread_record);
} threads SEC(".maps");

/* Thread id of a vCPU, by KVM's record. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u32);
} vcpus SEC(".maps");

/* Processes that have a vCPU. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	/* Pairs of 300 VMs with each other, three times over. Room is taken only for those that there are. */
	__uint(max_entries, 262144);
	__type(key, struct taken_key);
	__type(value, u64);
} taken SEC(".maps");

/* A stretch of time in which one task ran on a CPU. */
struct stretch {
	u64 from_ns;
	u32 by;			/* as in struct taken_key */
};

/* What a CPU remembers. */
struct cpu_record {
	u32 next;		/* the oldest stretch; the newest is the one before it */
	struct stretch stretches[TAKEN_RUNS];
	u32 of_vm;		/* the current task belongs to a VM */
	u64 vcpu;		/* that the current task runs; 0: none, or it is not known yet */
	u32 exits[NR_EXIT_CLASSES];	/* of this vCPU, not yet in its record: there are too many of them to look that up each time */
	u64 booked_at;		/* jiffies when they were last put there */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_record);
} cpus SEC(".maps");

u64 troubles[NR_TROUBLES];

/* For what a record is made of when it is made: too large for the stack. */
static const struct thread_record new_record;

static __always_inline u64 now_ns(void)
{
	return bpf_ktime_get_ns();
}

static __always_inline void trouble(enum observer_trouble which)
{
	__sync_fetch_and_add(&troubles[which], 1);
}

static __always_inline void note_time(struct time_histogram *h, u64 ns)
{
	u64 us = ns / 1000;
	u32 bucket = 0, i;

	/* Position of the highest bit, without a loop. */
	for (i = 16; i; i >>= 1) {
		if (us >> i) {
			us >>= i;
			bucket += i;
		}
	}
	bucket += us != 0;
	if (ns / 1000 >> 32 || bucket >= NR_TIME_BUCKETS)
		bucket = NR_TIME_BUCKETS - 1;
	h->count++;
	h->sum_ns += ns;
	h->buckets[bucket]++;
}

static __always_inline struct thread_record *add_thread(u32 tid, u32 tgid, u32 kind, u64 now)
{
	struct thread_record *r;

	if (bpf_map_update_elem(&threads, &tid, &new_record, BPF_NOEXIST)) {
		r = bpf_map_lookup_elem(&threads, &tid);
		if (!r) {
			trouble(TROUBLE_THREADS_FULL);
			return NULL;
		}
		return r;
	}
	r = bpf_map_lookup_elem(&threads, &tid);
	if (!r)
		return NULL;
	r->tgid = tgid;
	r->kind = kind;
	r->index = -1;
	r->first_seen_ns = now;
	return r;
}

/* Process of the VMM whose devices a kernel thread serves, from its name (vhost-PID); 0: none. */
static __always_inline u32 vhost_owner(const struct task_struct *p)
{
	char name[16] = {};
	u32 owner = 0, i;

	if (bpf_probe_read_kernel(name, sizeof(name), &p->comm))
		return 0;
	if (name[0] != 'v' || name[1] != 'h' || name[2] != 'o' || name[3] != 's' || name[4] != 't' || name[5] != '-')
		return 0;
	for (i = 6; i < sizeof(name); i++) {
		if (name[i] < '0' || name[i] > '9')
			break;
		owner = owner * 10 + (name[i] - '0');
	}
	return owner;
}

/* The record of a task that belongs to a VM; made if it was seen for the first time. */
static __always_inline struct thread_record *record_of(const struct task_struct *p, u64 now)
{
	u32 tid = p->pid, tgid = p->tgid, kind = THREAD_VMM;
	struct thread_record *r;

	if (!tid)
		return NULL;
	r = bpf_map_lookup_elem(&threads, &tid);
	if (r)
		return r->gone ? NULL : r;
	if (p->flags & PF_KTHREAD___TANDEM) {
		tgid = vhost_owner(p);
		kind = THREAD_VHOST;
		/* The name has the number of the thread that set the device up, which is the process's as a rule. */
		if (tgid && !bpf_map_lookup_elem(&vms, &tgid)) {
			r = bpf_map_lookup_elem(&threads, &tgid);
			tgid = r ? r->tgid : 0;
		}
	}
	/* Nothing would remove the record of a thread that has ended: it would be that of the next one with its number. */
	if (!tgid || p->flags & PF_EXITING___TANDEM || !bpf_map_lookup_elem(&vms, &tgid))
		return NULL;
	return add_thread(tid, tgid, kind, now);
}

/* vCPUs of `from` have waited for `ns` while `by` ran. */
static __always_inline void takes(u32 from, u32 by, u64 ns)
{
	struct taken_key key = { .from = from, .by = by };
	u64 *sum = bpf_map_lookup_elem(&taken, &key);

	if (sum)
		__sync_fetch_and_add(sum, ns);
	else if (bpf_map_update_elem(&taken, &key, &ns, BPF_NOEXIST))
		trouble(TROUBLE_TAKEN_FULL);
}

/* Whoever ran on this CPU in a wait that ends now has taken that time from a VM. */
static __always_inline void blame(struct cpu_record *h, u32 from, u64 since_ns, u64 now)
{
	u64 until = now;
	u32 i;

	for (i = 1; i <= TAKEN_RUNS && until > since_ns; i++) {
		struct stretch *s = &h->stretches[(h->next - i) % TAKEN_RUNS];
		u64 begin = s->from_ns > since_ns ? s->from_ns : since_ns;

		if (!s->from_ns)
			break;
		if (until > begin)
			takes(from, s->by, until - begin);
		until = begin;
	}
	if (until > since_ns)
		takes(from, TAKEN_UNKNOWN, until - since_ns);
}

/* Current is the vCPU's thread that is about to be left, or left the guest: its VMM's memory can be read. */
static __always_inline void read_steal(struct thread_record *r, u64 now)
{
	struct kvm_vcpu___tandem *vcpu = (void *)r->vcpu;
	u64 page, steal;

	if (!vcpu || now - r->steal_read_ns < STEAL_EVERY_NS)
		return;
	page = kvm_steal_page(vcpu);
	if (!page || bpf_probe_read_user(&steal, sizeof(steal), (void *)page))
		return;
	/* A guest begins at 0 again when it reboots, and can write anything there: no more counts than time has passed. */
	if (r->steal_read_ns && steal > r->steal_seen_ns) {
		u64 most = now - r->steal_read_ns + STEAL_EVERY_NS;

		r->steal_ns += steal - r->steal_seen_ns < most ? steal - r->steal_seen_ns : most;
	}
	r->steal_seen_ns = steal;
	r->steal_read_ns = now;
}

/*
 * The kernel counts run delay itself, from the moment of enqueueing, which no tracepoint shows: what was seen here is replaced by
 * that. It has the wait before this run by now.
 */
static __always_inline void as_the_kernel_counts(struct thread_record *r, struct task_struct *p)
{
	u64 delay, counted;

	if (!bpf_core_field_exists(p->sched_info.run_delay))
		return;
	delay = p->sched_info.run_delay;
	counted = r->delay_seen_ns ? delay + 1 - r->delay_seen_ns : r->waited_since_ns;
	r->delay_seen_ns = delay + 1;
	if (counted >= r->waited_since_ns) {
		r->ready_ns += counted - r->waited_since_ns;
		r->waited_since_ns = 0;
	} else {
		/* Exported totals never fall: what was seen too much is made up for by the next waits. */
		r->waited_since_ns -= counted;
	}
}

/* The exits of the vCPU that runs on a CPU go into its record. NULL: it is gone. */
static __always_inline void book_exits(struct cpu_record *c, struct thread_record *r)
{
	u32 i;

	for (i = 0; i < NR_EXIT_CLASSES; i++) {
		if (r)
			r->exits[i] += c->exits[i];
		c->exits[i] = 0;
	}
}

/* Its time on a CPU ends, if it is on one. Another CPU may have noted a later beginning. */
static __always_inline void book_run(struct thread_record *r, u64 now)
{
	if (r->running_since_ns && now > r->running_since_ns)
		r->run_ns += now - r->running_since_ns;
	r->running_since_ns = 0;
}

/* A thread has ended, or its vCPU has: nothing more is counted for it. */
static __always_inline void ends(struct thread_record *r, u64 now)
{
	book_run(r, now);
	r->ready_since_ns = 0;
	r->gone = 1;
}

/* The thread that ran this vCPU does so no more. */
static __always_inline void gives_up_vcpu(const u32 *tid, u64 key, u64 now)
{
	struct thread_record *r = tid ? bpf_map_lookup_elem(&threads, tid) : NULL;

	if (r && r->vcpu == key) {
		r->vcpu = 0;
		ends(r, now);
	}
}

/* The current task of a CPU is switched out. */
static __always_inline void switched_out(struct cpu_record *c, struct thread_record *r, struct task_struct *p, bool runnable, u64 now)
{
	as_the_kernel_counts(r, p);
	book_run(r, now);
	/* An interrupt that came while it was switched in. */
	r->interrupted_ns = 0;
	r->device_ns = 0;
	if (runnable) {
		r->preemptions++;
		r->ready_since_ns = now;
	}
	if (!c->vcpu)
		return;
	book_exits(c, r);
	read_steal(r, now);
}

static __always_inline void switched_in(struct cpu_record *c, struct thread_record *r, u64 now)
{
	if (r->ready_since_ns) {
		u64 waited = now > r->ready_since_ns ? now - r->ready_since_ns : 0;

		r->ready_ns += waited;
		r->waited_since_ns += waited;
		if (r->kind == THREAD_VCPU) {
			note_time(&r->ready, waited);
			if (waited)
				blame(c, r->tgid, now - waited, now);
		}
		r->ready_since_ns = 0;
	}
	if (r->interrupted_ns) {
		note_time(&r->to_run, now > r->interrupted_ns ? now - r->interrupted_ns : 0);
		r->interrupted_ns = 0;
	}
	if (r->device_ns) {
		/* Its own stretch is the newest; the one before is of the task that ran last. */
		struct stretch *s = &c->stretches[(c->next - 2) % TAKEN_RUNS];

		note_time(&r->device_to_run, now > r->device_ns ? now - r->device_ns : 0);
		r->passed_over += s->from_ns > r->device_ns && s->by != TAKEN_UNKNOWN;
		r->device_ns = 0;
	}
	r->running_since_ns = now;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(observe_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = now_ns();
	struct thread_record *r;
	struct cpu_record *c;
	struct stretch *s;
	u32 zero = 0;

	c = bpf_map_lookup_elem(&cpus, &zero);
	if (!c)
		return 0;
	r = c->of_vm ? record_of(prev, now) : NULL;
	if (r)
		switched_out(c, r, prev, preempt || !prev->__state, now);
	else if (c->vcpu)
		book_exits(c, NULL);
	c->vcpu = 0;
	s = &c->stretches[c->next++ % TAKEN_RUNS];
	s->by = next->pid ? TAKEN_OTHER : TAKEN_UNKNOWN;
	r = record_of(next, now);
	c->of_vm = r != NULL;
	if (r) {
		c->vcpu = r->vcpu;
		/* Before its own stretch begins: that is no part of what it waited for. */
		s->from_ns = now;
		s->by = r->tgid;
		switched_in(c, r, now);
	}
	s->from_ns = now;
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(observe_wakeup, struct task_struct *p)
{
	u64 now = now_ns();
	struct thread_record *r = record_of(p, now);

	/* A thread that has not left its CPU yet, and is woken while it is about to, goes on. */
	if (r && !r->running_since_ns) {
		r->wakeups++;
		if (!r->ready_since_ns)
			r->ready_since_ns = now;
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(observe_exit_of_task, struct task_struct *p)
{
	u32 tid = p->pid, tgid = p->tgid;
	struct thread_record *r = bpf_map_lookup_elem(&threads, &tid);

	if (r)
		ends(r, now_ns());
	/* The last thread of its process. */
	if (!BPF_CORE_READ(p, signal, live.counter))
		bpf_map_delete_elem(&vms, &tgid);
	return 0;
}

/* The current thread runs this vCPU. */
static __always_inline struct thread_record *runs_vcpu(struct kvm_vcpu___tandem *vcpu)
{
	u64 id = bpf_get_current_pid_tgid(), key = (u64)vcpu, now;
	u32 tid = (u32)id, tgid = id >> 32, zero = 0, one = 1, *before;
	struct thread_record *r = bpf_map_lookup_elem(&threads, &tid);
	struct cpu_record *c;

	if (r && r->vcpu == key && !r->gone)
		return r;
	now = now_ns();
	if (r && (r->kind == THREAD_VCPU || r->gone)) {
		/* It ran another vCPU before, or is a new thread with an old number: what is known is of that one. */
		bpf_map_delete_elem(&threads, &tid);
		r = NULL;
	}
	if (!r)
		r = add_thread(tid, tgid, THREAD_VCPU, now);
	if (!r)
		return NULL;
	r->kind = THREAD_VCPU;
	r->index = BPF_CORE_READ(vcpu, vcpu_id);
	r->vcpu = key;
	if (!r->running_since_ns)
		r->running_since_ns = now;
	before = bpf_map_lookup_elem(&vcpus, &key);
	if (before && *before != tid)
		gives_up_vcpu(before, key, now);
	if (bpf_map_update_elem(&vcpus, &key, &tid, BPF_ANY))
		trouble(TROUBLE_THREADS_FULL);
	if (!bpf_map_lookup_elem(&vms, &tgid) && bpf_map_update_elem(&vms, &tgid, &one, BPF_ANY))
		trouble(TROUBLE_THREADS_FULL);
	c = bpf_map_lookup_elem(&cpus, &zero);
	if (c)
		c->of_vm = 1;
	return r;
}

/* A vCPU is switched in. One that was running or asleep before this was loaded may not need its VMM for hours. */
SEC("fentry/kvm_sched_in")
int observe_comes(u64 *ctx)
{
	u64 notifier = 0, vcpu;
	u32 zero = 0;
	struct cpu_record *c = bpf_map_lookup_elem(&cpus, &zero);

	/* As a number: the verifier takes no steps back from a pointer. */
	if (!c || bpf_get_func_arg(ctx, 0, &notifier))
		return 0;
	vcpu = notifier - kvm_notifier_offset();
	if (c->vcpu != vcpu && kvm_is_in_run((void *)vcpu) && runs_vcpu((void *)vcpu))
		c->vcpu = vcpu;
	return 0;
}

/* A vCPU begins to run, for the first time or after the VMM had to do something for it. */
SEC("fentry/kvm_arch_vcpu_ioctl_run")
int BPF_PROG(observe_run, void *v)
{
	runs_vcpu(v);
	return 0;
}

SEC("fentry/kvm_arch_vcpu_destroy")
int BPF_PROG(observe_vcpu_gone, void *v)
{
	u64 key = (u64)v;

	gives_up_vcpu(bpf_map_lookup_elem(&vcpus, &key), key, now_ns());
	bpf_map_delete_elem(&vcpus, &key);
	return 0;
}

SEC("fentry/__apic_accept_irq")
int BPF_PROG(observe_interrupt, void *a, int delivery_mode, int vector)
{
	struct kvm_lapic___tandem *apic = a;
	u64 key = (u64)BPF_CORE_READ(apic, vcpu);
	u32 *tid = bpf_map_lookup_elem(&vcpus, &key);
	struct thread_record *r = tid ? bpf_map_lookup_elem(&threads, tid) : NULL;
	u64 now;

	if (!r)
		return 0;
	__sync_fetch_and_add(&r->interrupts, 1);
	if (r->running_since_ns)
		return 0;
	__sync_fetch_and_add(&r->interrupts_off, 1);
	now = now_ns();
	if (!r->interrupted_ns)
		r->interrupted_ns = now;
	/* Neither its own timer nor an IPI of Linux. */
	if (r->ready_since_ns && !r->device_ns && kvm_has_vector(delivery_mode) && kvm_is_of_device(vector & 0xff, kvm_timer_vector(apic)))
		r->device_ns = now;
	return 0;
}

static __always_inline u32 class_of_svm(u32 code)
{
	switch (code) {
	/* Since 6.15 KVM may let the processor halt by itself where nothing is pending (Idle HLT). */
	case 0x78: case 0xa6: return EXIT_HALT;
	case 0x60: case 0x61: case 0x62: return EXIT_INTERRUPT;
	case 0x64: return EXIT_WINDOW;
	case 0x7c: return EXIT_MSR;
	case 0x7b: return EXIT_IO;
	case 0x400: return EXIT_MEMORY;
	case 0x72: return EXIT_CPUID;
	case 0x81: return EXIT_HYPERCALL;
	case 0x77: return EXIT_PAUSE;
	case 0x401: case 0x402: return EXIT_APIC;
	default: return EXIT_OTHER;
	}
}

static __always_inline u32 class_of_vmx(u32 code)
{
	switch (code & 0xffff) {
	case 12: return EXIT_HALT;
	case 0: case 1: return EXIT_INTERRUPT;
	case 7: return EXIT_WINDOW;
	case 31: case 32: return EXIT_MSR;
	case 30: return EXIT_IO;
	case 48: case 49: return EXIT_MEMORY;
	case 10: return EXIT_CPUID;
	case 18: return EXIT_HYPERCALL;
	case 40: return EXIT_PAUSE;
	case 44: case 45: case 56: return EXIT_APIC;
	default: return EXIT_OTHER;
	}
}

SEC("tp_btf/kvm_exit")
int BPF_PROG(observe_exit, void *v, u32 isa)
{
	struct kvm_vcpu___tandem *vcpu = v;
	u32 zero = 0, class, code;
	u64 now;
	struct cpu_record *c = bpf_map_lookup_elem(&cpus, &zero);

	/* The verifier wants to know that it is not NULL before a field of it is read. */
	if (!vcpu || !c)
		return 0;
	if (c->vcpu != (u64)vcpu) {
		/* A vCPU that was running before this was loaded may not need its VMM for hours. */
		if (!runs_vcpu(vcpu))
			return 0;
		c->vcpu = (u64)vcpu;
	}
	code = kvm_exit_code(vcpu, isa);
	class = isa == KVM_ISA_SVM___TANDEM ? class_of_svm(code) : class_of_vmx(code);
	if (class < NR_EXIT_CLASSES)
		c->exits[class]++;
	/* A vCPU that is alone on its pCPU is not switched out for hours. */
	now = bpf_jiffies64();
	if (now - c->booked_at >= BOOK_EVERY_JIFFIES) {
		c->booked_at = now;
		book_exits(c, runs_vcpu(vcpu));
	}
	return 0;
}

/* Ends a halt, in the vCPU's own thread. */
SEC("tp_btf/kvm_vcpu_wakeup")
int BPF_PROG(observe_halt_ends, u64 ns, bool waited)
{
	u32 tid = (u32)bpf_get_current_pid_tgid();
	struct thread_record *r = bpf_map_lookup_elem(&threads, &tid);

	if (r && !waited)
		r->polls_won++;
	return 0;
}
