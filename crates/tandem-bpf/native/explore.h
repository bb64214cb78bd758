/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For the explorer of interleavings: before each atomic operation, and before each kernel call with an effect
 * that other CPUs may see, another CPU may continue instead of this one.
 */
#ifndef TANDEM_SIM_EXPLORE_H
#define TANDEM_SIM_EXPLORE_H

/* Before `what` in `where`. */
void sim_switch_point(const char *where, const char *what);

/* A macro is not expanded inside of its own expansion, so the function is called. */
#define AFTER_SWITCH(what, call) ({ sim_switch_point(__func__, what); call; })

#define __sync_fetch_and_add(...) AFTER_SWITCH("__sync_fetch_and_add", __sync_fetch_and_add(__VA_ARGS__))
#define __sync_fetch_and_sub(...) AFTER_SWITCH("__sync_fetch_and_sub", __sync_fetch_and_sub(__VA_ARGS__))
#define __sync_fetch_and_or(...) AFTER_SWITCH("__sync_fetch_and_or", __sync_fetch_and_or(__VA_ARGS__))
#define __sync_fetch_and_and(...) AFTER_SWITCH("__sync_fetch_and_and", __sync_fetch_and_and(__VA_ARGS__))
#define __sync_val_compare_and_swap(...) AFTER_SWITCH("__sync_val_compare_and_swap", __sync_val_compare_and_swap(__VA_ARGS__))
#define __sync_lock_test_and_set(...) AFTER_SWITCH("__sync_lock_test_and_set", __sync_lock_test_and_set(__VA_ARGS__))

#define bpf_map_lookup_elem(...) AFTER_SWITCH("bpf_map_lookup_elem", bpf_map_lookup_elem(__VA_ARGS__))
#define bpf_task_from_pid(...) AFTER_SWITCH("bpf_task_from_pid", bpf_task_from_pid(__VA_ARGS__))
#define bpf_timer_start(...) AFTER_SWITCH("bpf_timer_start", bpf_timer_start(__VA_ARGS__))
#define bpf_iter_scx_dsq_next(...) AFTER_SWITCH("bpf_iter_scx_dsq_next", bpf_iter_scx_dsq_next(__VA_ARGS__))
#define scx_bpf_dsq_nr_queued(...) AFTER_SWITCH("scx_bpf_dsq_nr_queued", scx_bpf_dsq_nr_queued(__VA_ARGS__))
#define scx_bpf_dsq_peek(...) AFTER_SWITCH("scx_bpf_dsq_peek", scx_bpf_dsq_peek(__VA_ARGS__))
#define scx_bpf_dsq_move_to_local___v2___compat(...) AFTER_SWITCH("scx_bpf_dsq_move_to_local___v2___compat", scx_bpf_dsq_move_to_local___v2___compat(__VA_ARGS__))
#define scx_bpf_dsq_move_vtime___new(...) AFTER_SWITCH("scx_bpf_dsq_move_vtime___new", scx_bpf_dsq_move_vtime___new(__VA_ARGS__))
#define scx_bpf_kick_cpu(...) AFTER_SWITCH("scx_bpf_kick_cpu", scx_bpf_kick_cpu(__VA_ARGS__))

#endif
