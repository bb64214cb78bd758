//! vtop: the topology of a machine, from how long a cache line takes between its CPUs
//! (vSched, EuroSys'25, section 3.3).
//!
//! A full probe measures until nothing is left to learn or its time is over; a validation asks only as
//! many pairs as would show a change. Both keep as many pairs busy at a time as the machine allows.

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
/// First limit of an attempt; doubled with each that shows nothing. ns.
const FIRST_LIMIT_NS: u64 = 1_500_000;
/// An attempt that sees two CPUs take turns needs some of these. ns.
const LONGEST_LIMIT_NS: u64 = 48_000_000;
/// Attempts after which a pair is left unknown.
const ATTEMPTS: u32 = 12;

/// Latencies on which a class with hardly any members must rest.
const VOTES_OF_THE_LONELY: usize = 4;

/// What a probe did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Time it took, ns.
    pub elapsed_ns: u64,
    /// Errands.
    pub errands: u32,
    /// Did the time run out before everything was known?
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
    // Conclusions cost more the more CPUs there are; with many, some results are collected first.
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

/// What a validation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All answers were as expected.
    Holds,
    /// Some pair is nearer or further apart than it was.
    Changed,
    /// No answer contradicts, but some are missing.
    Open,
}

/// Asks whether a topology still holds.
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
            // A disturbed answer is asked for again before it is believed.
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

/// Closer to a limit between classes than this factor a latency does not count as clear.
const CLEAR: f64 = 1.12;

/// Is there something left to ask about a pair?
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
    // Disturbances make latencies longer: what looks too far, or odd, is asked once more.
    let class = classes.class(latency);
    let lonely = deduced.has_smt() && class >= 1 && !full[i] && !full[j];
    // A class of its own, though, is more likely made of disturbances than of hardware.
    if classes.is_doubtful(class, full.len()) && evidence.votes() < VOTES_OF_THE_LONELY {
        return true;
    }
    let odd = classes.margin(latency) < CLEAR
        || relation != Relation::Is(class as knowledge::Level + 1)
        || deduced.rests_on_one(i, j);
    evidence.votes() < 2 && (lonely || odd)
}
