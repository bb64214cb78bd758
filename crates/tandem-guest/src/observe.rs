//! What the scheduler would do with the vCPUs as they were probed, decided by the very code that would decide.

use std::fmt;
use tandem_policy::{place, rwc, straggler_view, vcap, vcpu_model, SCALE};
use tandem_probe::neighbours::Neighbours;

/// A vCPU as probed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probed {
    /// Its number.
    pub cpu: usize,
    /// Share of a pCPU that it gets when it wants to run, 0 to 1; none: not known, which counts as a whole pCPU.
    pub share: Option<f64>,
    /// Mean preemption interval, milliseconds.
    pub preemption_ms: f64,
}

/// What would be done with a vCPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It takes all tasks.
    InUse,
    /// SCHED_IDLE tasks only (`--rwc`): it gets about a tenth of what others get.
    Straggler,
    /// No work (`--rwc`): another vCPU works on the same hardware thread.
    SpareOf(usize),
}

/// All that would be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Each vCPU, the mean wait of its wake-ups in milliseconds, and what would be done with it.
    pub vcpus: Vec<(Probed, f64, Verdict)>,
    /// What preempts the vCPUs; none: not probed.
    pub neighbours: Option<Neighbours>,
    /// Would wake-ups be placed by cost (some vCPU is contended, or shares a core or hardware thread)?
    pub places_by_cost: bool,
    /// Would CPU-bound tasks be migrated to stronger vCPUs?
    pub moves_to_stronger: bool,
}

/// A share as the policy keeps it.
fn scaled(share: Option<f64>) -> u32 {
    (share.unwrap_or(1.0).clamp(0.0, 1.0) * f64::from(SCALE)).round() as u32
}

/// Which techniques pay beside such neighbours, in words.
pub fn what_pays(neighbours: Neighbours) -> &'static str {
    match neighbours {
        Neighbours::None => "nothing is to be gained but by threads that share a core",
        Neighbours::Fair => "placement on wake-up gains little; --ivh gains nothing: the end of a slice is not predictable",
        Neighbours::Quota => "placement gains little, because all vCPUs are throttled at once; a larger quota would help, or fewer threads",
        Neighbours::Regular => {
            "placement on wake-up pays; for CPU-bound tasks --ivh where a migration takes less than half of a preemption interval"
        }
        Neighbours::Irregular => "placement on wake-up pays; --ivh cannot predict anything",
    }
}

/// Decides. `stacks`: groups of vCPUs that share a hardware thread.
pub fn observe(vcpus: &[Probed], stacks: &[Vec<usize>], neighbours: Option<Neighbours>) -> Observation {
    let shares: Vec<u32> = vcpus.iter().map(|vcpu| scaled(vcpu.share)).collect();
    let sum: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    let straggler = |at: usize| {
        rwc::is_straggler(&straggler_view {
            others_sum: sum - u64::from(shares[at]),
            others: u32::try_from(vcpus.len() - 1).unwrap_or(u32::MAX),
            share: shares[at],
            // It was probed at length; a scheduler would wait for as many samples.
            samples: u32::MAX,
            fresh: vcpus[at].share.is_some(),
            banned: false,
            since_ns: u64::MAX,
        })
    };
    let stragglers: Vec<bool> = (0..vcpus.len()).map(straggler).collect();
    let is_straggler =
        |cpu: usize| vcpus.iter().zip(&stragglers).any(|(vcpu, straggler)| vcpu.cpu == cpu && *straggler);
    let spare_of = |cpu: usize| {
        let stack = stacks.iter().find(|stack| stack.contains(&cpu))?;
        stack.iter().copied().find(|other| *other < cpu && !is_straggler(*other))
    };
    let verdict = |at: usize| match (stragglers[at], spare_of(vcpus[at].cpu)) {
        (true, _) => Verdict::Straggler,
        (false, Some(other)) => Verdict::SpareOf(other),
        (false, None) => Verdict::InUse,
    };
    let wait_ms = |at: usize| {
        let model = vcpu_model {
            share: shares[at],
            inactive_mean_ns: (vcpus[at].preemption_ms.clamp(0.0, 1e6) * 1e6) as u64,
            updated_ns: 1,
            samples: 1,
            ..vcpu_model::default()
        };
        vcap::vcap_wait_ns(&model, 1) as f64 / 1e6
    };
    let least = shares.iter().copied().min().unwrap_or(SCALE);
    let most = shares.iter().copied().max().unwrap_or(SCALE);
    Observation {
        vcpus: (0..vcpus.len()).map(|at| (vcpus[at], wait_ms(at), verdict(at))).collect(),
        neighbours,
        places_by_cost: least < tandem_policy::CONTENDED_SHARE || !stacks.is_empty(),
        moves_to_stronger: place::push_gains(least, most),
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (vcpu, wait_ms, verdict) in &self.vcpus {
            write!(f, "vCPU {:<3} ", vcpu.cpu)?;
            match vcpu.share {
                Some(share) => write!(f, "share {:5.1} %  ", share * 100.0)?,
                None => write!(f, "share unknown  ")?,
            }
            write!(f, "preempted for {:6.2} ms  mean wait {wait_ms:6.2} ms", vcpu.preemption_ms)?;
            match verdict {
                Verdict::InUse => writeln!(f)?,
                Verdict::Straggler => writeln!(f, "  with --rwc: SCHED_IDLE only, a straggler")?,
                Verdict::SpareOf(other) => {
                    writeln!(f, "  with --rwc: empty, on the hardware thread of vCPU {other}")?;
                }
            }
        }
        if let Some(neighbours) = self.neighbours {
            writeln!(f, "{neighbours}: {}", what_pays(neighbours))?;
        }
        let placement = if self.places_by_cost {
            "a task that wakes up would go where it is done first by these figures"
        } else {
            "a task that wakes up would go where the kernel sends it: no vCPU is contended"
        };
        writeln!(f, "{placement}")?;
        write!(
            f,
            "{}",
            if self.moves_to_stronger {
                "a CPU-bound task would be moved to a stronger vCPU as soon as one is idle"
            } else {
                "a CPU-bound task would stay where it is: no vCPU is clearly stronger than another"
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn probed(cpu: usize, share: f64) -> Probed {
        Probed { cpu, share: Some(share), preemption_ms: 8.0 }
    }

    #[test]
    fn a_straggler_and_a_stack_are_told() {
        let vcpus = [probed(0, 1.0), probed(1, 0.05), probed(2, 0.5), probed(3, 0.5)];
        let seen = observe(&vcpus, &[vec![2, 3]], Some(Neighbours::Regular));
        let verdicts: Vec<Verdict> = seen.vcpus.iter().map(|(_, _, verdict)| *verdict).collect();
        assert_eq!(verdicts, [Verdict::InUse, Verdict::Straggler, Verdict::InUse, Verdict::SpareOf(2)]);
        assert!(seen.places_by_cost && seen.moves_to_stronger);
        assert!((seen.vcpus[2].1 - 4.0).abs() < 0.1, "half of a preemption of 8 ms: {}", seen.vcpus[2].1);
        let words = seen.to_string();
        assert!(words.contains("on the hardware thread of vCPU 2"));
        assert!(words.contains("at regular times") && words.contains("for CPU-bound tasks --ivh"), "{words}");
    }

    #[test]
    fn where_nothing_is_wrong_nothing_would_be_done() {
        let seen = observe(&[probed(0, 1.0), probed(1, 0.97)], &[], None);
        assert!(!seen.places_by_cost && !seen.moves_to_stronger);
        assert!(seen.vcpus.iter().all(|(_, _, verdict)| *verdict == Verdict::InUse));
    }

    proptest! {
        #[test]
        fn somebody_always_works(shares in prop::collection::vec(0.0..1.0f64, 1..16), stacked in any::<bool>()) {
            let vcpus: Vec<Probed> = shares.iter().enumerate().map(|(cpu, share)| probed(cpu, *share)).collect();
            let stacks = if stacked { vec![(0..vcpus.len()).collect()] } else { Vec::new() };
            let seen = observe(&vcpus, &stacks, None);
            prop_assert!(seen.vcpus.iter().any(|(_, _, verdict)| *verdict == Verdict::InUse));
        }
    }
}
