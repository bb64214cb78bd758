/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Records what the scheduler does, for `tandem guest trace` and `tandem host trace`. Off, it costs a check of a flag.
 *
 * Each decision is recorded where it is counted, so that the trace shows what the statistics sum up. Which task
 * runs where, and when the host preempted the CPU, is recorded as well. Records that find no room are dropped
 * and counted.
 */
#ifndef TANDEM_CORE_TRACE_BPF_H
#define TANDEM_CORE_TRACE_BPF_H

#include "kernel.bpf.h"
#include "intf.h"

/* A trace is being taken. Written by the daemon, also while the scheduler runs. */
u32 tracing;

/* Records for which there was no room. */
u64 nr_untraced;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TRACE_BYTES);
} trace_events SEC(".maps");

/* `kind`: enum counter, or enum trace_kind. */
COLD int record_event(u32 kind, s32 pid, u64 value)
{
	struct task_struct *p = pid > 0 ? bpf_task_from_pid(pid) : NULL;
	struct trace_record event = {
		.at_ns = bpf_ktime_get_ns(),
		.value = value,
		.cpu = bpf_get_smp_processor_id(),
		.kind = kind,
		.pid = pid,
	};

	if (p) {
		__builtin_memcpy(event.comm, p->comm, sizeof(event.comm));
		bpf_task_release(p);
	}
	/* No wake-up: otherwise the reader would be the main thing in the trace. */
	if (bpf_ringbuf_output(&trace_events, &event, sizeof(event), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&nr_untraced, 1);
	return 0;
}

static __always_inline void trace(u32 kind, s32 pid, u64 value)
{
	if (tracing)
		record_event(kind, pid, value);
}

#endif
