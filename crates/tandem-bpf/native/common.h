/* SPDX-License-Identifier: GPL-2.0-only */
/* What the simulator reads of any side's scheduler. To be included after it. */
#ifndef TANDEM_SIM_COMMON_H
#define TANDEM_SIM_COMMON_H

#define COUNTER_NAME(id, name, text) #name,
static const char *const counter_names[] = { CORE_COUNTERS(COUNTER_NAME) SIDE_COUNTERS(COUNTER_NAME) };

static bool same(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		;
	return *a == *b;
}

/* Sum of a counter over all CPUs, by name; ~0: there is none of that name. */
u64 sim_counter(const char *name)
{
	u64 sum = 0;
	u32 cpu, id;

	for (id = 0; id < NR_COUNTERS && !same(counter_names[id], name); id++)
		;
	if (id == NR_COUNTERS)
		return ~0ULL;
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		struct cpu_state *c = cpu_state(cpu);

		if (c)
			sum += c->counters[id];
	}
	return sum;
}

/* Which sums of a CPU are not 0, a bit set; with no task runnable all of them must be. */
u64 sim_left(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return 0;
	return (c->weight[0] || c->weight[1]) << 0 | (c->tasks[0] || c->tasks[1]) << 1 | !!c->queued_work << 2 |
	       !!c->cpu_bound_weight << 3 | !!c->cpu_bound_tasks << 4;
}

/* The same for a group: tasks that it counts as running or as admitted, and its load. */
u64 sim_left_of_group(u32 group)
{
	struct group_state *g = group_state(group);
	s64 cpu_bound = 0;
	u32 i;

	for (i = 0; i < nr_load_cells(); i++) {
		struct load_cell *cell = load_cell(group, i);

		cpu_bound += cell ? cell->cpu_bound : 0;
	}
	return g ? g->running | g->admitted | sum_load(group) | (u64)cpu_bound : 0;
}

/* A task that counts as CPU-bound on a CPU, but not in its group: its siblings would share the group's whole weight among them. */
bool sim_half_counted(struct task_struct *p)
{
	const struct task_state *t = task_state(p);

	return t && t->cpu_bound_stake && !t->group_stake;
}

/* The quota that applies to a group's tasks: number of the group that has it; 0: none. */
u32 sim_limit_of(u32 group)
{
	return limit_of(group);
}

/* When the quota timer fires; 0: it is not armed. */
u64 sim_quota_timer_at(void)
{
	return quota_timer_at_ns;
}

/* When the timer of the groups' scales fires; 0: it is not armed. */
u64 sim_refresh_timer_at(void)
{
	return refresh_at_ns;
}

/* Are groups active beside the root, whose scales the next task that waits does not ask for? Then the timer has to come. */
bool sim_refresh_must_come(void)
{
	return any_group_active() && !scales_stale;
}

#endif
