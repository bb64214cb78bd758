/* SPDX-License-Identifier: GPL-2.0-only */
/* The callbacks that are the same on any side, for its ops table, and what a side's init begins with. */
#ifndef TANDEM_CORE_OPS_BPF_H
#define TANDEM_CORE_OPS_BPF_H

#include "dump.bpf.h"
#include "higher.bpf.h"
#include "life.bpf.h"
#include "tree_ops.bpf.h"

/* The watchdog's limit is the longest that a task may wait for in any case (watchdog_ns). */
#define CORE_OPS \
	.runnable		= (void *)core_runnable, \
	.quiescent		= (void *)core_quiescent, \
	.set_weight		= (void *)core_set_weight, \
	.cpu_release		= (void *)core_cpu_release, \
	.cpu_online		= (void *)core_cpu_online, \
	.cpu_offline		= (void *)core_cpu_offline, \
	.init_task		= (void *)core_init_task, \
	.enable			= (void *)core_enable, \
	.disable		= (void *)core_disable, \
	.core_sched_before	= (void *)core_core_sched_before, \
	.cgroup_init		= (void *)core_cgroup_init, \
	.cgroup_exit		= (void *)core_cgroup_exit, \
	.cgroup_move		= (void *)core_cgroup_move, \
	.cgroup_set_weight	= (void *)core_cgroup_set_weight, \
	.cgroup_set_bandwidth	= (void *)core_cgroup_set_bandwidth, \
	.cgroup_set_idle	= (void *)core_cgroup_set_idle, \
	.dump			= (void *)core_dump, \
	.dump_cpu		= (void *)core_dump_cpu, \
	.dump_task		= (void *)core_dump_task, \
	.exit			= (void *)core_exit, \
	.flags			= SCX_OPS_ENQ_LAST | SCX_OPS_KEEP_BUILTIN_IDLE, \
	.timeout_ms		= 20000

/* Timers, and each CPU's record and queues. */
static __noinline s32 core_init(u64 now)
{
	s32 err;
	u32 i;

	err = groups_init();
	if (!err)
		err = throttle_init();
	if (!err)
		err = slices_init();
	if (err) {
		scx_bpf_error("cannot set up timers: error %d", err);
		return err;
	}
	bpf_for(i, 0, nr_cpu_ids) {
		err = core_init_cpu(i, now);
		if (err) {
			scx_bpf_error("cannot create the queues of CPU %d: error %d", i, err);
			return err;
		}
	}
	return 0;
}

#endif
