/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which task each CPU runs, and which one before, as the kernel says at each switch: in memory that another machine can look at. A test of
 * what a host reads in its guest (crates/tandem-host/src/inside) has the guest's own word by this.
 *
 * It decides nothing. The kernel says it a moment before it switches. CPUs beyond those that have a place are left out.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct switched {
	u64 to;
	u64 from;
};

/* A page of them. */
#define PLACES 256

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PLACES);
	__type(key, u32);
	__type(value, struct switched);
} current SEC(".maps");

char _license[] SEC("license") = "GPL";

SEC("tp_btf/sched_switch")
int BPF_PROG(note_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct switched *s = bpf_map_lookup_elem(&current, &cpu);

	if (!s)
		return 0;
	s->from = (u64)prev;
	s->to = (u64)next;
	return 0;
}
