/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Scanning other CPUs without visiting all of them.
 *
 * On a machine with few CPUs a scan visits all. On a large one each scan visits PART_LOOK CPUs, the next scan
 * of the same CPU visits the next ones, and so on around the ring; an idle CPU and any allowed one from the
 * kernel's masks are added. Waiting tasks are not left to chance: a bit map names the CPUs in whose queues
 * tasks may wait, so that an idle CPU finds them wherever they are.
 */
#ifndef TANDEM_CORE_LOOK_BPF_H
#define TANDEM_CORE_LOOK_BPF_H

#include "state.bpf.h"

/* Up to this many CPUs a scan visits all. */
#define MAX_LOOK 16
/* With more it visits this many at a time, */
#define PART_LOOK 8
/* and this many from the kernel's masks. */
#define MASK_LOOKS 2

/* CPUs that a scan visits, without those from masks. */
static __always_inline u32 nr_scanned(void)
{
	return nr_cpu_ids <= MAX_LOOK ? nr_cpu_ids : PART_LOOK;
}

/* The same with those from masks. */
static __always_inline u32 nr_candidates(void)
{
	return nr_cpu_ids <= MAX_LOOK ? nr_cpu_ids : PART_LOOK + MASK_LOOKS;
}

/* First CPU of a scan from here: the one after the last of the scan before. On a small machine always the first CPU. */
static __always_inline u32 scan_from(void)
{
	struct cpu_state *own = nr_cpu_ids > MAX_LOOK ? cpu_state(bpf_get_smp_processor_id()) : NULL;
	u32 from;

	if (!own)
		return 0;
	from = own->scan_from;
	own->scan_from = cpu_after(from, PART_LOOK);
	return from;
}

/* Candidate number `i` of a scan for a CPU that p may use; beyond all CPUs if a mask has none. */
static __always_inline u32 candidate(const struct task_struct *p, u32 from, u32 i)
{
	if (i < nr_scanned())
		return cpu_after(from, i);
	return i & 1 ? k_any_allowed(p) : k_any_idle_for(p);
}

/* 64 CPUs, on a cache line of their own. */
struct waiting_word {
	u64 waiting;
	u64 gone;		/* CPUs that went offline, or are about to, while the scheduler is loaded */
	u64 unused[TANDEM_CACHE_LINE / sizeof(u64) - 2];
};

/* The kernel's largest NR_CPUS. A power of two. */
#define NR_WAITING_WORDS (8192 / 64)

/*
 * CPUs in whose queues tasks may wait. A bit is set before a task is put there, and cleared by a CPU that finds
 * no task counted there.
 */
struct waiting_word waiting_cpus[NR_WAITING_WORDS];

static __always_inline struct waiting_word *word_of(u32 cpu)
{
	return &waiting_cpus[cpu / 64 & (NR_WAITING_WORDS - 1)];
}

/* A task that is counted at `cpu` is about to wait there. */
static __always_inline void waits_at(u32 cpu)
{
	u64 *word = &word_of(cpu)->waiting, bit = 1ULL << (cpu & 63);

	if (!(*word & bit))
		__sync_fetch_and_or(word, bit);
}

/* No task was found waiting at `cpu`. A task that comes meanwhile has been counted before its bit is set. */
static __always_inline void nobody_waits_at(u32 cpu, const struct cpu_state *c)
{
	u64 *word = &word_of(cpu)->waiting, bit = 1ULL << (cpu & 63);

	if (!(*word & bit) || may_wait(c, CLASS_NORMAL) || may_wait(c, CLASS_BEST_EFFORT))
		return;
	__sync_fetch_and_and(word, ~bit);
	if (may_wait(c, CLASS_NORMAL) || may_wait(c, CLASS_BEST_EFFORT))
		__sync_fetch_and_or(word, bit);
}

static __always_inline void cpu_is_gone(u32 cpu, bool gone)
{
	u64 bit = 1ULL << (cpu & 63);

	if (gone)
		__sync_fetch_and_or(&word_of(cpu)->gone, bit);
	else
		__sync_fetch_and_and(&word_of(cpu)->gone, ~bit);
}

/* Distance from `cpu` to `other` around the ring; the way back to itself is the longest. */
static __always_inline u32 ring_distance(u32 cpu, u32 other)
{
	return other > cpu ? other - cpu : other + nr_cpu_ids - cpu;
}

/*
 * The first CPU after `at`, around the ring from `cpu`, at which tasks may wait; -1: none before `cpu` itself.
 * `gone`: only CPUs that have gone offline.
 */
COLD s32 next_waiting(u32 cpu, u32 at, bool gone)
{
	u32 words = (nr_cpu_ids + 63) / 64, first = cpu_after(at, 1), word = first / 64, i;

	bpf_for(i, 0, words + 1) {
		struct waiting_word *w = word_of(word * 64);
		u64 cpus = gone ? w->waiting & w->gone : w->waiting;
		u32 found;

		/* The scan ends in the word in which it begins. */
		if (i == 0)
			cpus &= ~0ULL << (first & 63);
		if (cpus) {
			found = word * 64 + __builtin_ctzll(cpus);
			if (found >= nr_cpu_ids || found == cpu || (at != cpu && ring_distance(cpu, found) <= ring_distance(cpu, at)))
				return -1;
			return found;
		}
		word = word + 1 < words ? word + 1 : 0;
	}
	return -1;
}

/* Where the last walk of a kind ended. The compiler knows that a kind is in range, and drops the test that the verifier wants to see. */
static __always_inline u32 *walk_of(struct cpu_state *own, enum walk walk)
{
	u64 kind = walk;

	barrier_var(kind);
	if (kind >= NR_WALKS)
		kind = WALK_NEAR;
	barrier_var(kind);
	return &own->walk_at[kind];
}

/*
 * Where a walk of this CPU over those at which tasks may wait begins: where its last one of this kind ended, because many may
 * have only tasks that must not run here, or none that it is for.
 */
static __always_inline s32 walk_begins(struct cpu_state *own, enum walk walk, s32 cpu)
{
	u32 *ended = walk_of(own, walk), at = *ended;

	*ended = 0;
	return at ? (s32)at - 1 : cpu;
}

/* It has visited MAX_LOOK of them without success, and this one last. */
static __always_inline void walk_ends(struct cpu_state *own, enum walk walk, s32 at)
{
	*walk_of(own, walk) = at + 1;
}

#endif
