/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a boost costs, and who pays (Anubis, SoCC'23, "Debts").
 *
 * A boosted vCPU is charged as any other until it has had its share. What it runs beyond that is a loan: its v stands still, its VM
 * owes the time, and the VMs that waited have it as a credit. vCPUs of a VM with debts that do no I/O pay: where one of a VM with a
 * credit waits beside it, such a vCPU is charged twice for what it runs, so that it comes later by as much, and the same amount goes off
 * the debt and off the credits. Of those that wait the first one is known, which loses and gains what its weight says; the others have an
 * account in common. So at any moment the sum of all debts is the sum of all credits, to the nanosecond. (In the paper the debt is the
 * unfinished slice of the victim and nobody has a credit; the published code changes it from several CPUs without a lock.)
 *
 * A VM whose debt has reached its limit is not boosted beyond its share until some of it is paid: what a guest can take by pretending to do I/O is
 * that much, once.
 */
#ifndef TANDEM_POLICY_HOST_DEBT_H
#define TANDEM_POLICY_HOST_DEBT_H

#include "../base.h"

/* The limit of a VM of weight 100; of others in proportion to their weights. (None in the paper, 100 s in the published code.) */
#define TANDEM_DEBT_MAX_NS (100 * NSEC_PER_MSEC_)
/* A loan, or a payment, is never more than this at a time: bounds what a clock that is wrong can do. */
#define TANDEM_DEBT_STEP_MAX_NS (32 * NSEC_PER_MSEC_)

/*
 * What is neither paid nor claimed is forgotten: one part in so many of a debt, and of a credit, per second. Otherwise a VM whose creditor sleeps
 * could never be lent anything again. A guest that does nothing but borrow gains a 64,000th of a pCPU by it for each
 * millisecond of its limit.
 */
#define TANDEM_DEBT_FORGOTTEN_PART 64
#define TANDEM_DEBT_FORGOTTEN_NS (1000 * NSEC_PER_MSEC_)

/* What may still be lent to a VM with this debt (negative: a credit), ns. */
POLICY u64 loan_room_ns(s64 debt_ns, u64 limit_ns)
{
	u64 limit = min_u64(limit_ns, 1ULL << 40);

	if (debt_ns < 0)
		return limit;
	return sub_floor_u64(limit, (u64)debt_ns);
}

/* The part of `service_ns` that is lent: nothing before the vCPU has had its share (`ahead`), and no more than there is room for. */
POLICY u64 lent_ns(u64 service_ns, bool ahead, s64 debt_ns, u64 limit_ns)
{
	if (!ahead)
		return 0;
	return min_u64(min_u64(service_ns, TANDEM_DEBT_STEP_MAX_NS), loan_room_ns(debt_ns, limit_ns));
}

/* What a vCPU that has run for `service_ns` pays of its VM's debt to one that is owed `credit_ns` (both above 0, or nothing is paid). */
POLICY u64 payment_ns(u64 service_ns, s64 debt_ns, s64 credit_ns)
{
	if (debt_ns <= 0 || credit_ns <= 0)
		return 0;
	return min_u64(min_u64(service_ns, TANDEM_DEBT_STEP_MAX_NS), min_u64((u64)debt_ns, (u64)credit_ns));
}

/*
 * What others lose while a task of `weight`, one of `total` in its queue, runs for so long without being charged: what it would have had of that time
 * anyway it takes from nobody. `ns` up to a quarter of an hour.
 */
POLICY u64 of_others_ns(u64 ns, u64 weight, u64 total)
{
	u64 part = total > weight ? ((total - weight) >> 10) * TANDEM_SCALE / max_u64(total >> 10, 1) : 0;

	return min_u64(ns, 1ULL << 40) * min_u64(part, TANDEM_SCALE) / TANDEM_SCALE;
}

/* What of that one of the others loses, which has this weight. */
POLICY u64 of_one_ns(u64 ns, u64 weight_of_one, u64 weight, u64 total)
{
	u64 others = total > weight ? total - weight : 0, part;

	part = weight_of_one < others ? (weight_of_one >> 10) * TANDEM_SCALE / max_u64(others >> 10, 1) : TANDEM_SCALE;
	return min_u64(ns, 1ULL << 40) * min_u64(part, TANDEM_SCALE) / TANDEM_SCALE;
}

/* And the other way round: for how long it has to be charged, so that others gain so much. 0: there are none. */
POLICY u64 for_others_ns(u64 ns, u64 weight, u64 total)
{
	u64 part = total > weight ? ((total - weight) >> 10) * TANDEM_SCALE / max_u64(total >> 10, 1) : 0;

	return part ? min_u64(ns, 1ULL << 40) * TANDEM_SCALE / min_u64(part, TANDEM_SCALE) : 0;
}

/* How much of a debt (or of a credit, negative) is forgotten after `seconds`. */
POLICY s64 forgotten_ns(s64 debt_ns, u64 seconds)
{
	u64 size = debt_ns < 0 ? -(u64)debt_ns : (u64)debt_ns, part;

	part = size / TANDEM_DEBT_FORGOTTEN_PART * min_u64(seconds, TANDEM_DEBT_FORGOTTEN_PART);
	return debt_ns < 0 ? -(s64)part : (s64)part;
}

#endif
