/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The capacity of a vCPU: its share of a pCPU and the length of its preemption intervals, measured from steal
 * while the vCPU has work. (vSched, EuroSys'25, section 3.1, has capacity and activity probers. This is what
 * passive observation gives of them; an idle vCPU is kept busy by a SCHED_IDLE prober in user space.)
 *
 * There are two estimators of the share, because the use of a vCPU decides what steal can show. Both are
 * unbiased for a host whose decisions do not depend on when the guest wakes up. Mixing them into one ratio of
 * times would be biased:
 *
 * - Busy for long: share = 1 - steal / time, over a window of fixed length that starts at the wake-up and
 *   includes the wait for the pCPU. A window that the vCPU does not fill is discarded: a short run right after
 *   a wake-up lies in an active period, and would look uninterrupted.
 * - Busy for short moments: share = wake-ups served at once / wake-ups. (Arrivals see time averages.) Counting
 *   the waits as time instead would make a vCPU look the worse, the less it is used.
 */
#ifndef TANDEM_POLICY_VCAP_H
#define TANDEM_POLICY_VCAP_H

#include "../base.h"

/* Shortest window of busy time, in ns. A plain number, so that bindings of this header contain it, too. */
#define TANDEM_WINDOW_NS 12000000ULL
/* A wake-up that waits for less than this found its pCPU free: exits and timer work of the host take as long. */
#define TANDEM_INACTIVE_MIN_NS (300 * NSEC_PER_USEC_)
/*
 * Shorter preemption intervals are not counted. (Of irregular ones with a mean of 2 ms every seventh is below
 * 0.3 ms.)
 */
#define TANDEM_PREEMPTION_MIN_NS (100 * NSEC_PER_USEC_)
/* An estimate that was not refreshed for this long is stale, */
#define TANDEM_STALE_NS (3000 * NSEC_PER_MSEC_)
/* and one that says that a vCPU is weak still keeps running tasks from migrating there for this long. */
#define TANDEM_OLD_NS (30000 * NSEC_PER_MSEC_)
/* The deviation of samples is unknown until there are two. This is assumed. */
#define TANDEM_DEV_SUPPOSED 128U
/* The steady mean is over this many samples. */
#define TANDEM_STEADY_SAMPLES 8U
/*
 * Windows this far below the average, this many in a row, are a drop: what is known of other vCPUs is stale.
 * One window is not a drop: with irregular preemption and two preemption intervals per window on average, every
 * seventh window is that low by chance. Where windows differ by so much anyway, it takes more of them.
 */
#define TANDEM_DROP_SHARE 300U
#define TANDEM_DROP_WINDOWS 2U
#define TANDEM_DROP_DOUBTFUL 4U
/* Below this share a vCPU counts as contended (5-8 % steal is ordinary noise). */
#define TANDEM_CONTENDED_SHARE 860U

/* Short wake-ups per sample. */
#define TANDEM_ARRIVALS 16U
/* Confidence is counted in parts of a sample: this is a whole one. */
#define TANDEM_ONE_SAMPLE 256U
/* What is known of a vCPU weighs half as much after this time, compared with the pool, */
#define TANDEM_DOUBT_NS (1000 * NSEC_PER_MSEC_)
/* and the pool weighs this much at least and at most, and this many times as much for waits. */
#define TANDEM_PRIOR_LEAST (TANDEM_ONE_SAMPLE / 4)
#define TANDEM_PRIOR_MOST (16 * TANDEM_ONE_SAMPLE)
#define TANDEM_PRIOR_WAITS 8U
/* The pool is a mean over 1 << this samples. */
#define TANDEM_POOL_SHIFT 5
/* The mean wait is over this many waits. */
#define TANDEM_WAITS_KNOWN 32U
/* After this many wake-ups soon after a sleep, their own mean is used. */
#define TANDEM_SOON_KNOWN 4U
/* No preemption interval counts for longer than this. */
#define TANDEM_INACTIVE_MAX_NS (200 * NSEC_PER_MSEC_)

/* Preemption intervals are counted by length in buckets, four per doubling, from TANDEM_PREEMPTION_MIN_NS on. */
#define TANDEM_PREEMPTION_BUCKETS 48U

struct vcpu_model {
	u64 demand_ns;		/* of the open window */
	u64 stolen_ns;		/* of the open window */
	u64 updated_ns;		/* when the last sample was taken; 0: stale */
	u64 inactive_mean_ns;	/* mean preemption interval */
	u64 inactive_events;
	u64 preempted_ns;		/* sum of all preemption intervals */
	u32 preemptions[TANDEM_PREEMPTION_BUCKETS];	/* how many of each length */
	u64 wait_mean_ns;	/* mean wait of a wake-up for the pCPU; wake-ups served at once count */
	u64 woken_soon_ns;	/* mean wait of wake-ups soon after the vCPU slept */
	u64 woken_ns;		/* when it was last woken; 0: never */
	u32 waits_known;	/* what wait_mean_ns rests on, TANDEM_ONE_SAMPLE per wait that counts in full */
	u32 arrivals;		/* wake-ups since the last sample */
	u32 delayed;		/* of these, how many had to wait for the pCPU */
	u32 soon;		/* how many were soon after the vCPU slept */
	u32 share;		/* 0..1024 */
	u32 steady_share;	/* the same over more samples */
	u32 share_dev;		/* mean deviation of samples from that */
	u32 samples;
	u32 low;		/* windows in a row that were far below the average */
	u32 low_below;		/* the average before the first of them */
};

/* Outcome of an observation, a bit set. */
#define VCAP_SAMPLED 1U
#define VCAP_DROPPED 2U

/* Bucket of a length: four per doubling. */
POLICY u32 preemption_bucket(u64 preemption_ns)
{
	u64 limit = TANDEM_PREEMPTION_MIN_NS;
	u32 bucket = 0, i;

	for (i = 0; i < TANDEM_PREEMPTION_BUCKETS / 4 - 1; i++) {
		if (preemption_ns < 2 * limit)
			break;
		limit *= 2;
		bucket += 4;
	}
	if (preemption_ns <= limit)
		return bucket;
	return bucket + (u32)min_u64((preemption_ns - limit) * 4 / limit, 3);
}

/*
 * The vCPU was preempted for `preempted_ns` in all, in as many intervals as it was scheduled in again (`returns`;
 * 0 or 1: one, as far as is known). Between two samples there may be several intervals; their sum and number
 * are exact, the single lengths are not.
 */
POLICY void vcap_preemptions(struct vcpu_model *m, u64 preempted_ns, u32 sched_ins)
{
	u64 most = preempted_ns / TANDEM_PREEMPTION_MIN_NS, each;
	u32 times = (u32)min_u64(max_u64(sched_ins, 1), most), bucket;

	if (!times)
		return;
	each = preempted_ns / times;
	bucket = preemption_bucket(each);
	m->preempted_ns += preempted_ns;
	if (bucket < TANDEM_PREEMPTION_BUCKETS)
		m->preemptions[bucket] += times;
	each = min_u64(each, TANDEM_INACTIVE_MAX_NS);
	m->inactive_mean_ns = m->inactive_events ? ewma_u64(m->inactive_mean_ns, each, 2) : each;
	m->inactive_events += times;
}

/*
 * Length of a window: long enough to contain a whole period of the host, and so long that the wait at its start
 * alone can never fill it.
 */
POLICY u64 vcap_window_ns(const struct vcpu_model *m)
{
	return TANDEM_WINDOW_NS + 2 * m->inactive_mean_ns;
}

/*
 * Is this window one too many that is far below the average? Only windows count: so few wake-ups as a sample of them has do not show that the
 * host changed. By chance alone such a sample is far off every few seconds.
 */
POLICY bool vcap_drops(struct vcpu_model *m, u32 sample)
{
	if (!m->low)
		m->low_below = m->steady_share;
	m->low = m->samples && sample + TANDEM_DROP_SHARE < m->low_below ? m->low + 1 : 0;
	if (m->low < (m->share_dev < TANDEM_DROP_SHARE / 2 ? TANDEM_DROP_WINDOWS : TANDEM_DROP_DOUBTFUL))
		return false;
	m->low = 0;
	return true;
}

POLICY u32 vcap_sample(struct vcpu_model *m, u64 now_ns, u32 sample)
{
	u32 off = sample > m->steady_share ? sample - m->steady_share : m->steady_share - sample;
	u32 n = (u32)min_u64(m->samples + 1, TANDEM_STEADY_SAMPLES);
	bool known;

	/* A stale estimate is replaced; otherwise old and new weigh one half each. */
	known = m->samples && m->updated_ns;
	m->share = known ? (u32)ewma_u64(m->share, sample, 1) : sample;
	/* The first samples weigh the same: otherwise the very first would dominate for the next eight. */
	m->steady_share = known ? (m->steady_share * (n - 1) + sample) / n : sample;
	m->share_dev = m->samples ? (m->share_dev * (n - 1) + off) / n : TANDEM_DEV_SUPPOSED;
	m->samples++;
	m->updated_ns = now_ns;
	m->demand_ns = 0;
	m->stolen_ns = 0;
	m->arrivals = 0;
	m->delayed = 0;
	return VCAP_SAMPLED;
}

/* The vCPU was busy for `elapsed_ns`. Of these the host stole `stolen_ns`, in `returns` preemption intervals. */
POLICY u32 vcap_busy(struct vcpu_model *m, u64 now_ns, u64 elapsed_ns, u64 stolen_ns, u32 sched_ins)
{
	u32 sample, dropped;

	stolen_ns = min_u64(stolen_ns, elapsed_ns);
	vcap_preemptions(m, stolen_ns, sched_ins);
	m->demand_ns += elapsed_ns;
	m->stolen_ns += stolen_ns;
	if (m->demand_ns < vcap_window_ns(m))
		return 0;
	sample = (u32)((m->demand_ns - m->stolen_ns) * TANDEM_SCALE / m->demand_ns);
	dropped = vcap_drops(m, sample) ? VCAP_DROPPED : 0;
	return vcap_sample(m, now_ns, sample) | dropped;
}

POLICY bool vcap_fresh(const struct vcpu_model *m, u64 now_ns)
{
	return m->updated_ns && sub_floor_u64(now_ns, m->updated_ns) < TANDEM_STALE_NS;
}

/* Was the vCPU woken recently? Then its mean wait is known. */
POLICY bool vcap_waits_fresh(const struct vcpu_model *m, u64 now_ns)
{
	return m->woken_ns && sub_floor_u64(now_ns, m->woken_ns) < TANDEM_STALE_NS;
}

/* The mean wait as derived from share and preemption interval. */
POLICY u64 vcap_wait_by_share_ns(const struct vcpu_model *m, u64 now_ns)
{
	u32 share = vcap_fresh(m, now_ns) ? (u32)min_u64(m->share, TANDEM_SCALE) : TANDEM_SCALE;

	return m->inactive_mean_ns * (TANDEM_SCALE - share) / TANDEM_SCALE;
}

/*
 * Mean wait of a wake-up for the pCPU. It is measured at wake-ups. The share alone does not give it: under a
 * host quota a vCPU that works little is served at once, however small its share is when it works for long.
 * Without a recent wake-up the wait is derived from share and preemption interval.
 */
POLICY u64 vcap_wait_ns(const struct vcpu_model *m, u64 now_ns)
{
	return vcap_waits_fresh(m, now_ns) ? m->wait_mean_ns : vcap_wait_by_share_ns(m, now_ns);
}

/* Wake-ups further apart than this are independent: the length of a preemption interval. */
POLICY u64 wait_apart_ns(const struct vcpu_model *m)
{
	return max_u64(min_u64(m->inactive_mean_ns, TANDEM_INACTIVE_MAX_NS), NSEC_PER_MSEC_);
}

/*
 * Adds one wait to the mean; it counts for `counts` parts of TANDEM_ONE_SAMPLE. A vCPU that is woken right
 * after it slept runs because it ran a moment ago: that says nothing new, and wake-ups come in bunches. A wait
 * therefore counts by the idle time before it, up to the length of a preemption interval. The mean is then over
 * time: the expected wait of a wake-up at a random moment.
 */
POLICY void wait_learned(struct vcpu_model *m, u64 mean_ns, u64 waited_ns, u32 counts)
{
	if (!counts)
		return;
	m->wait_mean_ns = moved_u64(mean_ns, waited_ns, counts, m->waits_known + counts);
	m->waits_known = (u32)min_u64(m->waits_known + counts, (TANDEM_WAITS_KNOWN - 1) * TANDEM_ONE_SAMPLE);
}

/*
 * Mean wait of a wake-up after the vCPU slept for `idle_ns`. A vCPU that slept a moment ago was running then.
 * Whether it still owns its pCPU depends on the host. A neighbour that comes and goes by itself has hardly had
 * time to come. A neighbour that only waits for the vCPU to sleep takes the pCPU at once, and a fair host lets
 * it finish its slice (RUN_TO_PARITY): a later wake-up waits for less, and a wake-up after that slice preempts
 * the neighbour, because the host owes the vCPU what it has not used. So wake-ups soon after a sleep have a
 * mean of their own, and later ones are interpolated.
 */
POLICY u64 vcap_wait_after_ns(const struct vcpu_model *m, u64 now_ns, u64 idle_ns)
{
	u64 wait_ns = vcap_wait_ns(m, now_ns), apart_ns = wait_apart_ns(m);

	if (m->soon < TANDEM_SOON_KNOWN || idle_ns >= apart_ns)
		return wait_ns;
	return moved_u64(m->woken_soon_ns, wait_ns, idle_ns, apart_ns);
}

/*
 * The vCPU was woken after `idle_ns` and waited for `waited_ns` until it was scheduled in. Interrupts that woke
 * it and left no trace in the guest may have added their own waits, so no more than one mean preemption
 * interval goes into the new window. They stay in the mean wait, which is too long by that. With each counted
 * apart the mean is right, but short requests were answered later: their p95 was 1.6 instead of 0.6 of EEVDF's
 * with preemption intervals of 8 ms on one vCPU, and 1.8 instead of 1.0 on both (lab, six runs each). The
 * longest waits determine that p95.
 */
POLICY u32 vcap_arrive(struct vcpu_model *m, u64 now_ns, u64 idle_ns, u64 waited_ns)
{
	u64 wait_ns = m->inactive_events ? min_u64(waited_ns, m->inactive_mean_ns) : 0, apart_ns = wait_apart_ns(m);
	u64 counted_ns = min_u64(waited_ns, TANDEM_INACTIVE_MAX_NS);
	u32 counts = (u32)(min_u64(idle_ns, apart_ns) * TANDEM_ONE_SAMPLE / apart_ns);

	/* An initial or stale mean counts as one wait. */
	if (!vcap_waits_fresh(m, now_ns))
		m->waits_known = TANDEM_ONE_SAMPLE;
	wait_learned(m, vcap_wait_ns(m, now_ns), counted_ns, counts);
	if (idle_ns < apart_ns / 4) {
		m->woken_soon_ns = m->soon ? ewma_u64(m->woken_soon_ns, counted_ns, 3) : counted_ns;
		m->soon += m->soon < TANDEM_SOON_KNOWN;
	}
	m->woken_ns = now_ns;
	m->demand_ns = wait_ns;
	m->stolen_ns = wait_ns;
	m->arrivals++;
	if (waited_ns >= TANDEM_INACTIVE_MIN_NS) {
		m->delayed++;
	}
	if (m->arrivals < TANDEM_ARRIVALS)
		return 0;
	return vcap_sample(m, now_ns, (m->arrivals - m->delayed) * TANDEM_SCALE / m->arrivals);
}

/*
 * The vCPU was kicked at a moment that was chosen by its predicted schedule-in. Such a wake-up says nothing
 * about its share, and no window begins with it.
 */
POLICY void vcap_called(struct vcpu_model *m)
{
	m->demand_ns = 0;
	m->stolen_ns = 0;
}

/* Capacity for decisions. Fails open: an unknown vCPU counts as ordinary. */
POLICY u32 vcap_effective(const struct vcpu_model *m, u64 now_ns)
{
	return vcap_fresh(m, now_ns) ? (m->share ? m->share : 1) : TANDEM_SCALE;
}

/* The pool: what all vCPUs of a guest have in common. */
struct vcpu_pool {
	u64 wait_ns;		/* mean wait of wake-ups */
	u32 share;		/* mean, 0..1024 */
	u32 variance;		/* of the steady shares of single vCPUs around that mean, in squares of 1/1024 */
};

/*
 * The estimate for one vCPU beside the pool. A few samples differ by chance, and a vCPU that is not used
 * because it once looked bad would never be tried again. Where the host places all vCPUs of a guest freely they
 * are alike, and some would stay idle while tasks queue at others. So what was measured of the vCPU counts by
 * the number of its samples (`known`) and by their age, and the pool counts as `prior`. Both are in parts of
 * TANDEM_ONE_SAMPLE; prior is 1 or more.
 */
POLICY u64 vcap_believed(u64 own, u64 pool, u32 known, u32 prior, u64 age_ns)
{
	/* Half of `known` is left after TANDEM_DOUBT_NS. */
	u64 doubt = TANDEM_DOUBT_NS >> 20, now_known = known * doubt / (doubt + (min_u64(age_ns, TANDEM_OLD_NS) >> 20));

	own = min_u64(own, 1ULL << 40);
	pool = min_u64(pool, 1ULL << 40);
	return (own * now_known + pool * prior) / (now_known + max_u64(prior, 1));
}

/* How many samples the share rests on, in parts of TANDEM_ONE_SAMPLE. */
POLICY u32 vcap_share_known(const struct vcpu_model *m)
{
	return TANDEM_ONE_SAMPLE * (u32)min_u64(m->samples, TANDEM_STEADY_SAMPLES);
}

/*
 * Weight of the pool: the variance of samples of one vCPU over the variance between vCPUs (empirical Bayes).
 * Where vCPUs are alike, one that looks different does so by chance. The steady share of each is a mean of
 * eight samples, so that the variance between vCPUs contains an eighth of the variance of samples.
 */
POLICY u32 vcap_prior(const struct vcpu_model *m, const struct vcpu_pool *pool)
{
	/* Of a normal distribution the variance is pi / 2 times the square of the mean deviation. */
	u64 within = (u64)m->share_dev * m->share_dev * 3 / 2;
	u64 between = sub_floor_u64(pool->variance, within / TANDEM_STEADY_SAMPLES);

	return (u32)min_u64(max_u64(within * TANDEM_ONE_SAMPLE / (between + 1), TANDEM_PRIOR_LEAST), TANDEM_PRIOR_MOST);
}

/* `prior`, here and in the next function: vcap_prior(). */
POLICY u32 vcap_share_believed(const struct vcpu_model *m, u64 now_ns, const struct vcpu_pool *pool, u32 prior)
{
	u64 age_ns = sub_floor_u64(now_ns, m->updated_ns);

	if (!vcap_fresh(m, now_ns))
		return pool->share;
	return (u32)max_u64(vcap_believed(m->share, pool->share, vcap_share_known(m), prior, age_ns), 1);
}

/*
 * The same for the mean wait; `wait_ns` is the estimate of the vCPU's own model. Most wake-ups do not wait and
 * a few wait for long, so that it takes more samples.
 */
POLICY u64 vcap_wait_believed_ns(const struct vcpu_model *m, u64 now_ns, u64 wait_ns, const struct vcpu_pool *pool, u32 prior)
{
	bool waits = vcap_waits_fresh(m, now_ns);
	u64 age_ns = sub_floor_u64(now_ns, waits ? m->woken_ns : m->updated_ns);

	if (!waits && !vcap_fresh(m, now_ns))
		return pool->wait_ns;
	return vcap_believed(wait_ns, pool->wait_ns, waits ? m->waits_known : vcap_share_known(m), TANDEM_PRIOR_WAITS * prior, age_ns);
}

/* Adds the latest sample of a vCPU's share to the pool. */
POLICY void vcap_pool_share(struct vcpu_pool *pool, const struct vcpu_model *m)
{
	u32 off;

	pool->share = pool->share ? (u32)ewma_u64(pool->share, m->share, TANDEM_POOL_SHIFT) : m->share;
	off = m->steady_share > pool->share ? m->steady_share - pool->share : pool->share - m->steady_share;
	off = (u32)min_u64(off, TANDEM_SCALE);
	pool->variance = (u32)ewma_u64(pool->variance, off * off, TANDEM_POOL_SHIFT);
}

/* Adds the wait of one wake-up to the pool. */
POLICY void vcap_pool_wait(struct vcpu_pool *pool, u64 waited_ns)
{
	pool->wait_ns = ewma_u64(pool->wait_ns, min_u64(waited_ns, TANDEM_INACTIVE_MAX_NS), TANDEM_POOL_SHIFT);
}

/*
 * Bounds of the share, by both means and their deviation: the upper bound of a vCPU that a task is to leave, the
 * lower bound of a target. With irregular preemption, samples of vCPUs that are all alike differ by half, and of
 * many such vCPUs one always looks better by chance. Two vCPUs count as different if they differ by their mean
 * deviation, half of which is taken from each. For a mean over eight samples that is more than two standard errors.
 */
POLICY u32 vcap_at_best(const struct vcpu_model *m, u64 now_ns)
{
	if (!vcap_fresh(m, now_ns))
		return vcap_effective(m, now_ns);
	return (u32)min_u64(max_u64(m->share, m->steady_share) + m->share_dev / 2, TANDEM_SCALE);
}

POLICY u32 vcap_at_worst(const struct vcpu_model *m, u64 now_ns)
{
	/* An old measurement is a better guess than none: a try costs the task a wait. */
	if (!m->updated_ns || sub_floor_u64(now_ns, m->updated_ns) >= TANDEM_OLD_NS)
		return TANDEM_SCALE;
	return (u32)max_u64(sub_floor_u64(min_u64(m->share, m->steady_share), m->share_dev / 2), 1);
}

#endif
