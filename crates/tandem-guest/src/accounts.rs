//! The kernel's accounts of the time of each CPU, under any scheduler.
//!
//! They do not say how much work was done. Delayed ticks count as stolen as a whole, so that `user` of
//! `/proc/stat` misses much of what runs between preemption intervals (of a CPU-bound thread with
//! preemption intervals of 4 ms, anything from 1 % to all of it was observed). Run time contains steal. And
//! steal does not tell whether a running task was preempted, or an idle CPU was woken while the host had
//! its pCPU: a task that waits there has not begun to run, and has run delay instead. Of the latter kind
//! there can be no more than the CPU was idle, and no more than tasks waited; that much is assumed.

use std::collections::BTreeMap;
use tandem_probe::core::PROC_STAT_UNIT_NS;

/// One CPU since the boot, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Tasks had it, steal included (`/proc/schedstat`).
    pub(crate) ran_ns: u64,
    /// Runnable tasks waited for it (likewise).
    pub(crate) waited_ns: u64,
    /// The host took it (`/proc/stat`).
    pub(crate) stolen_ns: u64,
    /// It had nothing to do (likewise).
    pub(crate) idle_ns: u64,
}

/// All CPUs that are online, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Accounts(BTreeMap<usize, Times>);

/// Differences between two readings, nanoseconds; sums over the CPUs that are in both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Tasks had a CPU that was running.
    pub(crate) worked_ns: u64,
    /// Tasks waited for a CPU, or had one that was preempted.
    pub(crate) lost_ns: u64,
    /// The host took from CPUs, whether tasks suffered or not.
    pub(crate) stolen_ns: u64,
}

impl Accounts {
    /// The accounts as of now; none: the kernel does not keep them.
    pub(crate) fn read() -> Option<Self> {
        let schedstat = std::fs::read_to_string("/proc/schedstat").ok()?;
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        Some(Self::parse(&schedstat, &stat))
    }

    fn parse(schedstat: &str, stat: &str) -> Self {
        let mut cpus: BTreeMap<usize, Times> = BTreeMap::new();
        for (cpu, numbers) in lines_of_cpus(schedstat) {
            let [ran_ns, waited_ns] = [6, 7].map(|at| numbers.get(at).copied().unwrap_or(0));
            cpus.insert(cpu, Times { ran_ns, waited_ns, ..Times::default() });
        }
        for (cpu, numbers) in lines_of_cpus(stat) {
            if let Some(times) = cpus.get_mut(&cpu) {
                // user nice system idle iowait irq softirq steal, see proc_stat(5).
                let ns = |at: usize| numbers.get(at).map_or(0, |time| time.saturating_mul(PROC_STAT_UNIT_NS));
                times.idle_ns = ns(3).saturating_add(ns(4));
                times.stolen_ns = ns(7);
            }
        }
        Self(cpus)
    }

    pub(crate) fn since(&self, earlier: &Self) -> Seen {
        let mut seen = Seen::default();
        for (cpu, now) in &self.0 {
            let Some(before) = earlier.0.get(cpu) else { continue };
            let ran_ns = now.ran_ns.saturating_sub(before.ran_ns);
            let waited_ns = now.waited_ns.saturating_sub(before.waited_ns);
            let stolen_ns = now.stolen_ns.saturating_sub(before.stolen_ns);
            let idle_ns = now.idle_ns.saturating_sub(before.idle_ns);
            let from_tasks_ns = (stolen_ns - stolen_ns.min(idle_ns).min(waited_ns)).min(ran_ns);
            seen.worked_ns = seen.worked_ns.saturating_add(ran_ns - from_tasks_ns);
            seen.lost_ns = seen.lost_ns.saturating_add(waited_ns).saturating_add(from_tasks_ns);
            seen.stolen_ns = seen.stolen_ns.saturating_add(stolen_ns);
        }
        seen
    }
}

impl FromIterator<(usize, Times)> for Accounts {
    fn from_iter<I: IntoIterator<Item = (usize, Times)>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

/// Run delay of all CPUs together since the boot, nanoseconds; none: the kernel does not keep it.
pub(crate) fn waited_of_all_ns() -> Option<u64> {
    let schedstat = std::fs::read_to_string("/proc/schedstat").ok()?;
    Some(Accounts::parse(&schedstat, "").0.values().map(|times| times.waited_ns).fold(0, u64::saturating_add))
}

/// Lines `cpu<N> <numbers>`: the form of both files (Documentation/scheduler/sched-stats, proc_stat(5)).
fn lines_of_cpus(text: &str) -> impl Iterator<Item = (usize, Vec<u64>)> + '_ {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        Some((cpu, words.map(|word| word.parse().unwrap_or(0)).collect()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(times: Times) -> Seen {
        Accounts::from_iter([(0, times)]).since(&Accounts::from_iter([(0, Times::default())]))
    }

    #[test]
    fn the_kernels_lines_are_read() {
        let schedstat =
            "version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 100 20 3\ndomain0 MC 3 0\ncpu1 0 0 0 0 0 0 50 5 1\n";
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 7\n";
        let first = Times { ran_ns: 100, waited_ns: 20, stolen_ns: 80_000_000, idle_ns: 90_000_000 };
        let second = Times { ran_ns: 50, waited_ns: 5, stolen_ns: 0, idle_ns: 0 };
        assert_eq!(Accounts::parse(schedstat, stat), Accounts::from_iter([(0, first), (1, second)]));
    }

    #[test]
    fn steal_from_a_cpu_bound_task_is_lost() {
        let seen = seen(Times { ran_ns: 1000, waited_ns: 0, stolen_ns: 400, idle_ns: 0 });
        assert_eq!(seen, Seen { worked_ns: 600, lost_ns: 400, stolen_ns: 400 });
    }

    #[test]
    fn steal_of_an_idle_cpu_is_lost_once_by_who_waits_for_it() {
        let seen = seen(Times { ran_ns: 100, waited_ns: 300, stolen_ns: 300, idle_ns: 900 });
        assert_eq!(seen, Seen { worked_ns: 100, lost_ns: 300, stolen_ns: 300 });
    }

    #[test]
    fn waiting_for_a_cpu_that_is_never_idle_is_not_waiting_for_the_host() {
        let seen = seen(Times { ran_ns: 1000, waited_ns: 2000, stolen_ns: 500, idle_ns: 0 });
        assert_eq!(seen, Seen { worked_ns: 500, lost_ns: 2500, stolen_ns: 500 });
    }

    #[test]
    fn a_cpu_that_was_not_there_before_says_nothing() {
        let now = Accounts::from_iter([(3, Times { ran_ns: 7, ..Times::default() })]);
        assert_eq!(now.since(&Accounts::default()), Seen::default());
    }

    proptest! {
        #[test]
        fn any_text_is_read(schedstat in "\\PC*", stat in "\\PC*") {
            Accounts::parse(&schedstat, &stat);
        }

        #[test]
        fn work_and_loss_are_made_of_what_tasks_had_and_waited_for(
            ran_ns in 0..1u64 << 62, waited_ns in 0..1u64 << 62, stolen_ns in any::<u64>(), idle_ns in any::<u64>(),
        ) {
            let seen = seen(Times { ran_ns, waited_ns, stolen_ns, idle_ns });
            prop_assert_eq!(seen.worked_ns + seen.lost_ns, ran_ns + waited_ns);
            prop_assert!(seen.lost_ns >= waited_ns);
        }
    }
}
