/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Compiles a policy unchanged for this machine instead of for BPF: helpers and kfuncs become functions that the
 * simulator supplies, struct_ops become plain functions in a plain table, and queries of the running kernel's
 * types are answered by the types that we compile with.
 *
 * Nothing here decides anything. A kernel function that the policy calls and the simulator does not supply
 * makes loading the image fail, by name.
 */
#ifndef TANDEM_SIM_SHIM_H
#define TANDEM_SIM_SHIM_H

#define BPF_NO_PRESERVE_ACCESS_INDEX
#define __builtin_preserve_access_index(x) (x)
/* Of fields the offset is queried (kind 0), or whether they exist; of types only that. */
#define __builtin_preserve_field_info(field, kind) ((kind) ? 1 : (u64)&(field))
#define __builtin_preserve_type_info(type, kind) 1
#define __builtin_btf_type_id(type, kind) 0

/* Before the headers that use it: constants are those that we compile with. */
#define BPF_NO_KFUNC_PROTOTYPES
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#undef bpf_core_enum_value
#undef bpf_core_enum_value_exists
#define bpf_core_enum_value(type, value) ((u64)(value))
#define bpf_core_enum_value_exists(type, value) 1

#include <scx/common.bpf.h>

#undef BPF_STRUCT_OPS
#undef BPF_STRUCT_OPS_SLEEPABLE
#define BPF_STRUCT_OPS(name, args...) name(args)
#define BPF_STRUCT_OPS_SLEEPABLE(name, args...) name(args)

#undef SCX_OPS_DEFINE
#define SCX_OPS_DEFINE(name, ...) struct sched_ext_ops sim_ops = { __VA_ARGS__ }

/* As in the kernel's iterator, `i` keeps its last value. */
#undef bpf_for
#define bpf_for(i, start, end)								\
	for (s64 ___at = (s64)(start), ___end = (s64)(end);				\
	     ___at < ___end && (((i) = ___at), 1); ___at++)

/* A task's DSQ is the simulator's. */
u64 sim_dsq_of(const struct task_struct *p);
#define k_dsq_of(p) sim_dsq_of(p)

#ifdef SIM_EXPLORE
#include "explore.h"
#endif

#endif
