//! What preempts the vCPUs, as the running scheduler has measured it: what `--gate` says after a trial.

use crate::model::VcpuFacts;
use tandem_probe::neighbours::{Neighbours, Seen};

/// Schedule-ins that are no further apart than this part of a period count as simultaneous.
const TOGETHER: f64 = 0.1;

/// What preempts them, as far as is known.
pub(crate) fn neighbours(facts: &[VcpuFacts]) -> Neighbours {
    let known: Vec<&VcpuFacts> =
        facts.iter().filter(|fact| fact.online && fact.bans == 0 && fact.age_ms.is_some()).collect();
    let seen = |fact: &&VcpuFacts| Seen {
        share: fact.steady_share,
        preemption_ms: fact.inactive_mean_us / 1e3,
        active_ms: fact.rhythm_ms.map_or(0.0, |(on, _)| on),
        even: fact.rhythm_ms.is_some(),
        at_once: served_at_once(fact),
    };
    Neighbours::of(&known.iter().map(seen).collect::<Vec<_>>(), return_at_once(&known))
}

/// Part of the wake-ups that was served at once, from the mean wait. A wake-up at a random moment of a preemption
/// interval waits for half of it if all have the same length, and for all of it if lengths are exponential.
fn served_at_once(fact: &VcpuFacts) -> Option<f64> {
    let rest_us = if fact.rhythm_ms.is_some() { fact.inactive_mean_us / 2.0 } else { fact.inactive_mean_us };
    fact.woken_wait_us.filter(|_| rest_us > 0.0).map(|wait_us| (1.0 - wait_us / rest_us).clamp(0.0, 1.0))
}

/// Are all vCPUs scheduled in at the same moment of a common period? None: fewer than two have a
/// preemption period.
fn return_at_once(known: &[&VcpuFacts]) -> Option<bool> {
    let rhythms: Vec<(f64, f64)> = known
        .iter()
        .filter_map(|fact| fact.rhythm_ms.map(|(on, off)| (on + off, fact.scheduled_in_ns as f64 / 1e6)))
        .collect();
    let (&(period, first), others) = rhythms.split_first().filter(|(_, others)| !others.is_empty())?;
    let together = |&(other_period, at): &(f64, f64)| {
        let off = (at - first).rem_euclid(period);
        (other_period - period).abs() < TOGETHER * period && off.min(period - off) < TOGETHER * period
    };
    Some(others.iter().all(together))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(share: f64, rhythm_ms: Option<(f64, f64)>, returned_ms: u64) -> VcpuFacts {
        VcpuFacts {
            online: true,
            steady_share: share,
            inactive_mean_us: rhythm_ms.map_or(8e3, |(_, off)| off * 1e3),
            age_ms: Some(10.0),
            rhythm_ms,
            scheduled_in_ns: returned_ms * 1_000_000,
            ..VcpuFacts::default()
        }
    }

    fn waits(wait_ms: f64, of: VcpuFacts) -> VcpuFacts {
        VcpuFacts { woken_wait_us: Some(wait_ms * 1e3), ..of }
    }

    #[test]
    fn a_quota_is_told_from_turns() {
        let limited = Some((25.0, 75.0));
        let at_once = [fact(0.25, limited, 1000), fact(0.25, limited, 902)];
        assert_eq!(neighbours(&at_once), Neighbours::Quota);
        let in_turn = [fact(0.25, limited, 1000), fact(0.25, limited, 950)];
        assert_eq!(neighbours(&in_turn), Neighbours::Regular);
    }

    #[test]
    fn a_fair_host_is_told_by_how_long_those_wait_who_wake_a_vcpu() {
        let (irregular, even) = (fact(0.5, None, 0), fact(0.5, Some((8.0, 8.0)), 0));
        let all_wait = waits(7.5, irregular.clone());
        assert_eq!(
            neighbours(&[all_wait.clone(), all_wait]),
            Neighbours::Fair,
            "the neighbour's slice ends first"
        );
        let nobody_waits = waits(0.1, irregular.clone());
        assert_eq!(neighbours(&[nobody_waits]), Neighbours::Fair, "who has slept preempts");
        assert_eq!(
            neighbours(&[waits(4.0, irregular.clone())]),
            Neighbours::Irregular,
            "every second one does"
        );
        assert_eq!(neighbours(&[waits(2.0, even)]), Neighbours::Regular);
        assert_eq!(neighbours(&[irregular]), Neighbours::Irregular, "nobody has woken it");
    }

    #[test]
    fn where_nothing_is_known_nobody_is_there() {
        assert_eq!(neighbours(&[]), Neighbours::None);
        assert_eq!(neighbours(&[VcpuFacts { age_ms: None, ..fact(0.1, None, 0) }]), Neighbours::None);
    }
}
