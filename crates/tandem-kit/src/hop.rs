//! `hop`: a CPU-bound thread that is told the period in which the host preempts its two CPUs, measures where in the
//! period that happens, and migrates itself to the other CPU just before. It shows the upper bound of what proactive
//! migration can gain with the kernel's own way of migrating a running thread (`sched_setaffinity`): no scheduler has
//! to predict anything, and no timer has to fire. Intervals in which it migrates itself alternate with intervals in
//! which the scheduler places it.

use anyhow::{ensure, Context, Result};
use clap::Parser;
use serde_json::{json, Value};

use crate::arguments::{self, CpuList};
use crate::counted_work::{between_looks, work};
use crate::histogram::Histogram;
use crate::sys;

/// Length of an interval of one kind, seconds.
const TURN_S: f64 = 0.5;
/// Periods for which it stays on a CPU to learn when that CPU is preempted.
const LEARN_PERIODS: u64 = 60;
/// Minimum number of preemptions that this takes.
const LEARN_LEAST: usize = 10;
/// A gap longer than this part (1/8) of a period is a preemption interval. A preemption that is off the prediction by
/// more than this part does not belong to the pattern.
const PART: u64 = 8;

/// Arguments of `hop`.
#[derive(Parser)]
pub struct Args {
    /// The two CPUs
    #[arg(long, default_value = "0,1")]
    cpus: CpuList,
    /// Duration in seconds, half of it with migrations; learning comes before
    #[arg(long, default_value = "4", value_parser = arguments::seconds)]
    secs: f64,
    /// Period of the preemptions of both CPUs, in microseconds
    #[arg(long, value_parser = arguments::microseconds)]
    period_us: f64,
    /// How long before a preemption it migrates, in microseconds
    #[arg(long, value_parser = arguments::microseconds)]
    lead_us: f64,
}

/// Preemption pattern of a CPU: one preemption in every period.
#[derive(Debug, Clone, Copy)]
struct Rhythm {
    period_ns: u64,
    /// Time of one preemption.
    taken_ns: u64,
}

impl Rhythm {
    /// From the times of preemptions: takes the one that is nearest to all others, modulo the period. `None` if there
    /// are too few.
    fn learn(taken_ns: &[u64], period_ns: u64) -> Option<Self> {
        if taken_ns.len() < LEARN_LEAST {
            return None;
        }
        let around = |at: u64| -> u64 {
            let rhythm = Self { period_ns, taken_ns: at };
            taken_ns.iter().map(|&other| rhythm.off_ns(other).unsigned_abs()).sum()
        };
        taken_ns.iter().copied().min_by_key(|&at| around(at)).map(|taken_ns| Self { period_ns, taken_ns })
    }

    /// Time since the last predicted preemption: less than a period.
    fn since_ns(&self, at_ns: u64) -> u64 {
        (at_ns as i64 - self.taken_ns as i64).rem_euclid(self.period_ns as i64) as u64
    }

    /// Offset of a time from the nearest predicted preemption; positive: later.
    fn off_ns(&self, at_ns: u64) -> i64 {
        let since = self.since_ns(at_ns) as i64;
        if since > (self.period_ns / 2) as i64 {
            since - self.period_ns as i64
        } else {
            since
        }
    }

    /// Corrects the phase after a preemption, by an eighth of the offset. Outliers are ignored.
    fn follow(&mut self, at_ns: u64) {
        let off = self.off_ns(at_ns);
        if off.unsigned_abs() <= self.period_ns / PART {
            self.taken_ns = at_ns.saturating_add_signed(off / 8 - off);
        }
    }

    /// The first predicted preemption after a time.
    fn next_ns(&self, after_ns: u64) -> u64 {
        after_ns + (self.period_ns - self.since_ns(after_ns))
    }
}

/// Work done in the intervals of one kind.
#[derive(Default)]
struct Done {
    work: u64,
    spent_ns: u64,
}

impl Done {
    fn per_s(&self) -> f64 {
        self.work as f64 * 1e9 / self.spent_ns.max(1) as f64
    }
}

/// The thread, its two CPUs, and statistics of its migrations.
struct Hopper {
    cpus: [usize; 2],
    rhythms: [Rhythm; 2],
    chunk: u64,
    lead_ns: u64,
    /// Index of the CPU on which it runs.
    on: usize,
    /// Time from the decision to migrate until it runs on the other CPU.
    moves: Histogram,
    /// Number of preemptions that came before it had migrated.
    caught: u64,
}

pub fn run(args: &Args) -> Result<Value> {
    let cpus: [usize; 2] = match args.cpus.0[..] {
        [first, second] if first != second => [first, second],
        _ => anyhow::bail!("--cpus must name two different CPUs"),
    };
    let (period_ns, lead_ns) = ((args.period_us * 1e3) as u64, (args.lead_us * 1e3) as u64);
    ensure!(
        (1_000_000..=1_000_000_000).contains(&period_ns) && lead_ns <= period_ns / 2,
        "--period-us must lie between 1000 and 1000000, --lead-us be at most half of it"
    );
    let chunk = between_looks();
    let rhythms = [learn(cpus[0], period_ns, chunk)?, learn(cpus[1], period_ns, chunk)?];
    let mut hopper = Hopper { cpus, rhythms, chunk, lead_ns, on: 1, moves: Histogram::new(), caught: 0 };
    let (mut staying, mut moving) = (Done::default(), Done::default());
    let pairs = (args.secs / (2.0 * TURN_S)).ceil() as u64;
    for pair in 0..pairs {
        // The order alternates, so that drift hits both alike.
        for moves in [pair % 2 == 1, pair % 2 == 0] {
            if moves {
                hopper.moving(&mut moving)?;
            } else {
                hopper.staying(&mut staying)?;
            }
        }
    }
    Ok(json!({
        "workload": "hop",
        "secs": args.secs,
        "period_us": args.period_us,
        "lead_us": args.lead_us,
        "stay_work_per_s": staying.per_s().round(),
        "hop_work_per_s": moving.per_s().round(),
        "gain": moving.per_s() / staying.per_s().max(1.0),
        "moves": hopper.moves.count(),
        "caught": hopper.caught,
        "move_us": hopper.moves.summary_us(),
    }))
}

/// Stays on a CPU until its preemption pattern is known.
fn learn(cpu: usize, period_ns: u64, chunk: u64) -> Result<Rhythm> {
    sys::pin_to_cpu(cpu).with_context(|| format!("cannot run on CPU {cpu}"))?;
    let mut taken_ns = Vec::new();
    let mut last_ns = sys::now_ns();
    let end_ns = last_ns + LEARN_PERIODS * period_ns;
    while last_ns < end_ns {
        work(chunk);
        let now_ns = sys::now_ns();
        if now_ns - last_ns > period_ns / PART {
            taken_ns.push(last_ns);
        }
        last_ns = now_ns;
    }
    Rhythm::learn(&taken_ns, period_ns).with_context(|| {
        let times = taken_ns.len();
        format!("CPU {cpu} was taken {times} times in {LEARN_PERIODS} periods: there is no rhythm to go by")
    })
}

impl Hopper {
    /// An interval in which the scheduler places it.
    fn staying(&mut self, done: &mut Done) -> Result<()> {
        sys::pin_to_cpus(&self.cpus)?;
        let start_ns = sys::now_ns();
        let mut now_ns = start_ns;
        while now_ns < start_ns + (TURN_S * 1e9) as u64 {
            work(self.chunk);
            done.work += self.chunk;
            now_ns = sys::now_ns();
        }
        done.spent_ns += now_ns - start_ns;
        Ok(())
    }

    /// An interval in which it migrates itself before a CPU is preempted.
    fn moving(&mut self, done: &mut Done) -> Result<()> {
        let start_ns = sys::now_ns();
        let mut last_ns = self.go_over(start_ns)?;
        let mut leave_ns = self.leaves_ns(last_ns);
        while last_ns < start_ns + (TURN_S * 1e9) as u64 {
            work(self.chunk);
            done.work += self.chunk;
            let now_ns = sys::now_ns();
            if now_ns - last_ns > self.rhythms[self.on].period_ns / PART {
                self.caught += 1;
                self.rhythms[self.on].follow(last_ns);
                leave_ns = self.leaves_ns(now_ns);
            }
            last_ns = now_ns;
            if now_ns >= leave_ns {
                last_ns = self.go_over(now_ns)?;
                leave_ns = self.leaves_ns(last_ns);
            }
        }
        done.spent_ns += last_ns - start_ns;
        Ok(())
    }

    /// Migrates to the other CPU. Returns the time at which it runs there.
    fn go_over(&mut self, now_ns: u64) -> Result<u64> {
        self.on = 1 - self.on;
        sys::pin_to_cpu(self.cpus[self.on])?;
        let there_ns = sys::now_ns();
        self.moves.record(there_ns - now_ns);
        Ok(there_ns)
    }

    /// When to leave the current CPU. If a preemption is less than `lead_ns` away, it waits for the one after that.
    fn leaves_ns(&self, now_ns: u64) -> u64 {
        self.rhythms[self.on].next_ns(now_ns + self.lead_ns) - self.lead_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_rhythm_is_learned_in_spite_of_strays_and_followed() {
        let mut taken: Vec<u64> = (0..20).map(|k| 5 * MS + k * 16 * MS + k % 3 * MS / 10).collect();
        taken.extend([11 * MS, 40 * MS, 90 * MS]);
        let mut rhythm = Rhythm::learn(&taken, 16 * MS).unwrap();
        assert!(rhythm.off_ns(5 * MS + MS / 10).unsigned_abs() <= MS / 10);
        assert!(rhythm.next_ns(400 * MS).abs_diff(405 * MS) <= MS / 5);
        for k in 30..80 {
            rhythm.follow(6 * MS + k * 16 * MS);
            rhythm.follow(11 * MS + k * 16 * MS);
        }
        assert!(rhythm.next_ns(1600 * MS).abs_diff(1606 * MS) <= MS / 10);
        assert!(Rhythm::learn(&[], 16 * MS).is_none());
    }

    #[test]
    fn two_cpus_are_needed_and_a_lead_within_the_period() {
        for (line, what) in [
            ("hop --cpus 0 --period-us 16000 --lead-us 2000", "two different CPUs"),
            ("hop --cpus 0,0 --period-us 16000 --lead-us 2000", "two different CPUs"),
            ("hop --period-us 16000 --lead-us 9000", "at most half"),
            ("hop --period-us 16 --lead-us 2", "between 1000"),
        ] {
            let error = run(&Args::parse_from(line.split(' '))).unwrap_err().to_string();
            assert!(error.contains(what), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn the_next_one_is_ahead_and_on_the_rhythm(period in MS..1_000 * MS, taken in 0..10_000 * MS, after in 0..10_000 * MS) {
            let rhythm = Rhythm { period_ns: period, taken_ns: taken };
            let next = rhythm.next_ns(after);
            prop_assert!(next > after && next <= after + period);
            prop_assert_eq!(rhythm.off_ns(next), 0);
            prop_assert!(rhythm.off_ns(after).unsigned_abs() <= period / 2 + 1);
        }
    }
}
