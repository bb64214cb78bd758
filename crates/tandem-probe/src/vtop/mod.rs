//! vtop: the topology of a machine, from the time that a cache line takes between its CPUs (vSched, EuroSys'25, section
//! 3.3).
//!
//! A full probe measures until nothing is left to learn or its time is over. A validation measures only as many pairs
//! as are needed to detect a change. Both measure as many pairs at a time as the machine allows.

pub mod classes;
pub mod evidence;
pub mod knowledge;
mod plan;
pub mod saved;
pub mod topology;

use crate::machine::{Errand, Machine, Outcome};
use crate::ProbeError;
use classes::Classes;
use knowledge::{Deduced, Knowledge, Relation};
use plan::Plan;
use topology::Topology;

/// Passes of the line in one attempt: some ten batches.
pub const PASSES: u32 = 1200;
/// Time limit of the first attempt at a pair, doubled with each further attempt, ns.
const FIRST_LIMIT_NS: u64 = 1_500_000;
/// Maximum time limit: an attempt must see several alternations of two stacked CPUs, ns.
const LONGEST_LIMIT_NS: u64 = 48_000_000;
/// Attempts after which a pair is left unknown.
const ATTEMPTS: u32 = 12;

/// Minimum number of measurements on which a class with hardly any members must rest.
const VOTES_OF_THE_LONELY: usize = 4;

/// Effort of a probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Time it took, ns.
    pub elapsed_ns: u64,
    /// Errands.
    pub errands: u32,
    /// Did it run out of time before everything was known?
    pub out_of_time: bool,
}

/// Probes everything.
///
/// # Errors
/// Fewer than two CPUs.
pub fn full(machine: &mut dyn Machine, budget_ns: u64) -> Result<(Topology, Effort), ProbeError> {
    let cpus = machine.cpus().len();
    if cpus < 2 {
        return Err(ProbeError::TooFew(cpus));
    }
    let started = machine.now_ns();
    let own_line_ns = machine.own_line_ns();
    let mut knowledge = Knowledge::new(cpus);
    let mut plan = Plan::new(cpus, machine.most_busy());
    let mut effort = Effort::default();
    let mut classes = Classes::of(&[], own_line_ns);
    let mut deduced = knowledge.deduce(&classes);
    // Deducing takes longer with more CPUs, so with many CPUs several results are collected first.
    let batch = (cpus * cpus / 1024).max(1);
    loop {
        let left = budget_ns.saturating_sub(machine.now_ns() - started);
        effort.out_of_time = left == 0;
        if left > 0 {
            for pair in plan.next(&knowledge, &classes, &deduced) {
                let limit_ns = limit(&knowledge, pair).min(left);
                machine.start(Errand { pair, passes: PASSES, limit_ns });
                effort.errands += 1;
            }
        }
        let mut ended = 0;
        while ended < batch {
            let Some(outcome) = machine.wait() else { break };
            learn(&mut knowledge, &mut plan, &outcome);
            ended += 1;
        }
        if ended == 0 {
            break;
        }
        classes = Classes::of(&knowledge.latencies(), own_line_ns);
        deduced = knowledge.deduce(&classes);
    }
    effort.elapsed_ns = machine.now_ns() - started;
    effort.out_of_time &= !plan.next(&knowledge, &classes, &deduced).is_empty();
    Ok((Topology::of(machine.cpus(), &knowledge, &classes, &deduced), effort))
}

fn limit(knowledge: &Knowledge, pair: (usize, usize)) -> u64 {
    let attempts = knowledge.pair(pair.0, pair.1).map_or(0, |evidence| evidence.attempts());
    (FIRST_LIMIT_NS << attempts.min(8)).min(LONGEST_LIMIT_NS)
}

fn learn(knowledge: &mut Knowledge, plan: &mut Plan, outcome: &Outcome) {
    let (i, j) = outcome.pair;
    knowledge.pair_mut(i, j).add(outcome);
    plan.done(i, j);
}

/// Result of a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All measurements were as expected.
    Holds,
    /// Some pair is nearer or further apart than it was.
    Changed,
    /// No measurement contradicts, but some are missing.
    Open,
}

/// Checks whether a topology still holds.
pub fn validate(machine: &mut dyn Machine, known: &Topology, budget_ns: u64) -> (Verdict, Effort) {
    let started = machine.now_ns();
    let mut knowledge = Knowledge::new(machine.cpus().len());
    let mut questions = known.questions(machine.cpus());
    let mut busy = vec![false; machine.cpus().len()];
    let most_busy = machine.most_busy().max(2);
    let mut effort = Effort::default();
    let mut verdict = Verdict::Holds;
    loop {
        let left = budget_ns.saturating_sub(machine.now_ns() - started);
        let mut waiting = Vec::new();
        for question in std::mem::take(&mut questions) {
            let (i, j) = question.pair;
            if left == 0 || busy[i] || busy[j] || plan::room(&busy, most_busy) < 2 {
                waiting.push(question);
                continue;
            }
            busy[i] = true;
            busy[j] = true;
            let first =
                if question.stacked { LONGEST_LIMIT_NS / 2 } else { limit(&knowledge, question.pair) };
            machine.start(Errand { pair: question.pair, passes: PASSES, limit_ns: first.min(left) });
            effort.errands += 1;
        }
        questions = waiting;
        let Some(outcome) = machine.wait() else { break };
        let (i, j) = outcome.pair;
        busy[i] = false;
        busy[j] = false;
        let evidence = knowledge.pair_mut(i, j);
        evidence.add(&outcome);
        match known.agrees(machine.cpus(), (i, j), evidence) {
            Some(true) => {}
            // A contradiction may be a disturbance: it is measured again before it is believed.
            Some(false) if evidence.attempts() >= 3 => verdict = Verdict::Changed,
            _ if evidence.attempts() < ATTEMPTS / 2 => questions.push(known.question(machine.cpus(), (i, j))),
            _ => {
                if verdict == Verdict::Holds {
                    verdict = Verdict::Open;
                }
            }
        }
        if verdict == Verdict::Changed {
            questions.clear();
        }
    }
    if !questions.is_empty() && verdict == Verdict::Holds {
        verdict = Verdict::Open;
        effort.out_of_time = true;
    }
    effort.elapsed_ns = machine.now_ns() - started;
    (verdict, effort)
}

/// A latency that is closer than this factor to a limit between classes is not clear.
const CLEAR: f64 = 1.12;

/// Is there something left to measure about a pair?
fn is_open(
    knowledge: &Knowledge,
    classes: &Classes,
    deduced: &Deduced,
    full: &[bool],
    i: usize,
    j: usize,
) -> bool {
    let relation = deduced.relation(i, j, full);
    let Some(evidence) = knowledge.pair(i, j) else { return !matches!(relation, Relation::Is(_)) };
    if evidence.attempts() >= ATTEMPTS {
        return false;
    }
    let Some(latency) = evidence.latency_ns() else {
        return !evidence.is_stacked() && !matches!(relation, Relation::Is(_));
    };
    // Disturbances make latencies longer: a latency that looks too long, or odd, is measured once more.
    let class = classes.class(latency);
    let lonely = deduced.has_smt() && class >= 1 && !full[i] && !full[j];
    // A class with hardly any members is more likely due to disturbances than to hardware.
    if classes.is_doubtful(class, full.len()) && evidence.votes() < VOTES_OF_THE_LONELY {
        return true;
    }
    let odd = classes.margin(latency) < CLEAR
        || relation != Relation::Is(class as knowledge::Level + 1)
        || deduced.rests_on_one(i, j);
    evidence.votes() < 2 && (lonely || odd)
}
