//! Boosts for I/O: the paper's examples, and what holds for any numbers.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_policy::answer::{answer_slot, is_voted, vote_for, votes_after, VECTORS};
use tandem_policy::boost::{
    displaces, goes_on_for_io, may_wake_fast, wake_use_left_ns, BY_CONFIDENCE, BY_DEBT, NONE,
};
use tandem_policy::debt::{
    for_others_ns, forgotten_ns, lent_ns, loan_room_ns, of_one_ns, of_others_ns, payment_ns, MAX_NS,
};
use tandem_policy::inside::{
    is_critical, is_guest_task, is_preempt_count, may_hold, CRITICAL_STEPS_MAX, NO_RESCHED_BIT,
};
use tandem_policy::io::{does_io, io_confidence, is_near_io, CONFIDENCE_MAX};
use tandem_policy::posted::{lowest_bit, posted_vector};
use tandem_policy::{answerer, boost_rivals};

const MS: u64 = 1_000_000;

/// Anubis, section 4.2: after 100 milliseconds with I/O the confidence is lost in five without.
#[test]
fn confidence_is_lost_as_in_the_paper() {
    let mut confidence = (0..100).fold(0, |confidence, _| io_confidence(confidence, 1, 1));
    assert_eq!(confidence, 100);
    for (left, io) in [(50, true), (25, true), (12, true), (6, true), (3, false)] {
        confidence = io_confidence(confidence, 0, 1);
        assert_eq!((confidence, does_io(confidence)), (left, io));
    }
}

#[test]
fn four_milliseconds_with_io_make_a_vcpu_one_that_does_io() {
    let steps: Vec<bool> = (1..=4).map(|n| does_io((0..n).fold(0, |c, _| io_confidence(c, 1, 1)))).collect();
    assert_eq!(steps, [false, false, false, true]);
}

/// A vCPU is looked at after four milliseconds, say.
#[test]
fn several_milliseconds_at_once_are_as_many_one_by_one() {
    for confidence in [0, 1, 7, 100, CONFIDENCE_MAX] {
        for points in 0..6 {
            for ticks in 0..10 {
                let with = ticks.min(points);
                let lost = (0..ticks - with).fold(confidence, |c, _| io_confidence(c, 0, 1));
                let each = (0..with).fold(lost, |c, _| io_confidence(c, 1, 1));
                assert_eq!(
                    io_confidence(confidence, points, u64::from(ticks)),
                    each,
                    "{confidence} {points} {ticks}"
                );
            }
        }
    }
    assert_eq!(io_confidence(CONFIDENCE_MAX, 0, u64::MAX), 0);
    assert!(does_io(io_confidence(0, 9, 4)), "four milliseconds with I/O");
}

#[test]
fn a_word_of_the_guest_is_believed_only_if_it_can_be_one() {
    for task in [0xffff_8880_03a4_8000, 0xff11_0001_0000_0040, 0xffff_ffff_8260_d940] {
        assert!(is_guest_task(task), "{task:x}");
    }
    for word in [0, 64, 0x0000_7fff_0000_0000, 0xffff_8880_03a4_8008, u64::MAX] {
        assert!(!is_guest_task(word), "{word:x}");
    }
    // In user mode; with a spinlock; in an interrupt that found user mode; where it has to reschedule.
    for (word, critical) in
        [(0x8000_0000, false), (0x8000_0001, true), (0x8001_0000, true), (0, false), (2, true)]
    {
        assert!(is_preempt_count(word) && is_critical(word) == critical, "{word:x}");
    }
    for word in [0x0100_0000, 0x7fff_ffff, u32::MAX] {
        assert!(!is_preempt_count(word) && !is_critical(word), "{word:x}");
    }
}

#[test]
fn a_turn_is_held_for_a_while_and_where_others_came_out_in_time() {
    assert!(!may_hold(0, 0) && !may_hold(0, 3) && may_hold(0, 4));
    assert_eq!((0..100).take_while(|steps| may_hold(*steps, 8)).count() as u32, CRITICAL_STEPS_MAX);
    assert!(is_critical(NO_RESCHED_BIT | 1));
}

#[test]
fn a_reschedule_ipi_is_io_only_near_a_device() {
    assert!(!is_near_io(0, 3 * MS), "there was no device");
    assert!(is_near_io(10 * MS, 15 * MS) && !is_near_io(10 * MS, 15 * MS + 1));
    assert!(is_near_io(10 * MS, 9 * MS), "clocks of two CPUs differ");
}

/// Host digest I: 5 ms of a neighbour's slice, 3 ms of extension, and two siblings that give up 4 ms each.
#[test]
fn what_is_lent_is_paid() {
    let (mut debt, mut credit) = (0_i64, 0_i64);
    let mut seen = Vec::new();
    for (ns, lends) in [(5 * MS, true), (3 * MS, true), (4 * MS, false), (4 * MS, false)] {
        let ns = if lends { lent_ns(ns, true, debt, MAX_NS) } else { payment_ns(ns, debt, credit) };
        let change = if lends { ns as i64 } else { -(ns as i64) };
        (debt, credit) = (debt + change, credit + change);
        seen.push(debt / MS as i64);
    }
    assert_eq!((seen, debt, credit), (vec![5, 8, 4, 0], 0, 0));
}

#[test]
fn nothing_is_lent_before_the_share_is_used_up_nor_beyond_the_limit() {
    assert_eq!(lent_ns(MS, false, 0, MAX_NS), 0);
    assert_eq!(lent_ns(MS, true, (MAX_NS - MS / 2) as i64, MAX_NS), MS / 2);
    assert_eq!(lent_ns(MS, true, 2 * MAX_NS as i64, MAX_NS), 0);
    assert_eq!(lent_ns(MS, true, -5, MAX_NS), MS, "who is owed something may still borrow up to the limit");
}

#[test]
fn only_debts_are_paid_and_only_to_who_is_owed_something() {
    assert_eq!(payment_ns(MS, 5 * MS as i64, 0), 0);
    assert_eq!(payment_ns(MS, 0, 5 * MS as i64), 0);
    assert_eq!(payment_ns(MS, -3, 5 * MS as i64), 0);
    assert_eq!(payment_ns(2 * MS, MS as i64, 3), 3);
}

/// Who runs for a millisecond beside three others of its weight would have had a quarter of it anyway.
#[test]
fn only_the_part_of_others_is_borrowed() {
    assert_eq!(of_others_ns(1000, 1024, 4096), 750);
    assert_eq!(for_others_ns(750, 1024, 4096), 1000);
    // Of that one of three that wait has a third, and one that waits alone all.
    assert_eq!(of_one_ns(750, 1 << 20, 1 << 20, 4 << 20), 249);
    assert_eq!(
        (of_one_ns(750, 3 << 20, 1 << 20, 4 << 20), of_one_ns(750, 5 << 20, 1 << 20, 4 << 20)),
        (750, 750)
    );
    assert_eq!((of_others_ns(MS, 5, 5), of_others_ns(MS, 5, 0), for_others_ns(MS, 5, 5)), (0, 0, 0));
}

#[test]
fn half_of_a_debt_is_forgotten_in_44_seconds() {
    let left = (0..44).fold(64 * MS as i64, |debt, _| debt - forgotten_ns(debt, 1));
    assert!((31..33).contains(&(left / MS as i64)), "{left}");
    assert_eq!(forgotten_ns(-6400, 1), -100, "a credit likewise");
    assert_eq!((forgotten_ns(6400, 1_000_000), forgotten_ns(0, 5)), (6400, 0));
}

/// Each policy has a case in which it, and no other, changes who runs.
#[test]
fn each_policy_chooses_by_something_else() {
    let rivals = |confidence, debt_ns, running_confidence, running_debt_ns| boost_rivals {
        confidence,
        debt_ns,
        running_confidence,
        running_debt_ns,
    };
    let who = |rivals| [BY_CONFIDENCE, BY_DEBT, NONE].map(|policy| displaces(policy, &rivals));
    assert_eq!(who(rivals(9, 50, 5, 10)), [true, false, false]);
    assert_eq!(who(rivals(5, 10, 9, 50)), [false, true, false]);
    assert_eq!(who(rivals(9, 10, 5, 50)), [true, true, false], "only without any the running one goes on");
    assert_eq!(who(rivals(5, 10, 5, 10)), [false; 3], "of two that are equal the running one goes on");
    assert!(!displaces(99, &rivals(9, 10, 5, 50)));
}

#[test]
fn a_turn_is_extended_for_io_within_eight_milliseconds_and_the_limit() {
    assert!(goes_on_for_io(true, 7 * MS, MS) && !goes_on_for_io(false, 0, MAX_NS));
    assert!(!goes_on_for_io(true, 8 * MS, MAX_NS) && !goes_on_for_io(true, 0, MS - 1));
}

/// A server: what it receives is answered, what was sent is not. Packets that come while another one is answered count against it, now and then.
#[test]
fn which_interrupts_are_answered_is_learned() {
    let votes = |pattern: &[bool], n: usize| {
        pattern.iter().cycle().take(n).fold(0, |votes, answered| votes_after(votes, *answered))
    };
    assert!(!is_voted(votes(&[true], 3)) && is_voted(votes(&[true], 4)));
    assert!(is_voted(votes(&[true, true, false], 60)) && !is_voted(votes(&[true, false, false], 60)));
    let known = votes(&[true], 1000);
    let lost = (0..).find(|n| !is_voted((0..*n).fold(known, |votes, _| votes_after(votes, false))));
    assert_eq!(lost, Some(5), "what it was a thousand interrupts ago does not count");
}

#[test]
fn the_vcpu_that_answers_most_is_found() {
    let found = |answers: &[i32]| {
        let mut found = answerer::default();
        answers.iter().cycle().take(60).for_each(|tid| vote_for(&mut found, *tid));
        (found.tid, is_voted(found.votes))
    };
    assert_eq!(found(&[7]), (7, true));
    assert_eq!(found(&[7, 7, 8]), (7, true));
    assert!(!found(&[7, 8]).1 && !found(&[7, 8, 9]).1, "where all of them answer nobody is expected to");
    let mut moves = answerer { tid: 7, votes: 8 };
    (0..16).for_each(|_| vote_for(&mut moves, 8));
    assert_eq!((moves.tid, is_voted(moves.votes)), (8, true), "the program has moved");
}

#[test]
fn vectors_that_follow_one_another_are_told_apart() {
    let slots: std::collections::BTreeSet<u32> = (0x21..0x21 + VECTORS).map(answer_slot).collect();
    assert_eq!(slots.len(), VECTORS as usize);
    assert!(answer_slot(u32::MAX) < VECTORS);
}

#[test]
fn the_budget_for_wake_ups_is_two_milliseconds_in_a_hundred() {
    let (budget, mut used, mut got) = (2 * MS, 0, 0);
    // Whoever takes all that it can, for ten seconds.
    for _ in 0..10_000 {
        used = wake_use_left_ns(used, MS, budget);
        if may_wake_fast(used, budget) {
            used += MS / 2;
            got += MS / 2;
        }
    }
    let most = 10_000 * MS / 100 * 2 + budget + MS / 2;
    assert!((most * 9 / 10..=most).contains(&got), "{got} of {most}");
    assert_eq!(wake_use_left_ns(50 * MS, u64::MAX, budget), 0);
}

proptest! {
    /// Whatever happens, no VM owes more than its limit, what is owed is what others are owed, and who pays what it can is
    /// even in the end.
    #[test]
    fn debts_are_credits(events in prop::collection::vec((0usize..3, 0usize..3, 0u64..60 * MS, any::<bool>(), any::<bool>()), 1..300), limit in 0u64..200 * MS) {
        let mut debts = [0_i64; 3];
        for (from, to, service, lends, ahead) in events {
            if from == to {
                continue;
            }
            if lends {
                let ns = lent_ns(service, ahead, debts[from], limit) as i64;
                prop_assert!(ns as u64 <= service && (ahead || ns == 0));
                debts[from] += ns;
                debts[to] -= ns;
            } else {
                let ns = payment_ns(service, debts[from], -debts[to]) as i64;
                prop_assert!(ns as u64 <= service);
                debts[from] -= ns;
                debts[to] += ns;
            }
            prop_assert_eq!(debts.iter().sum::<i64>(), 0);
            prop_assert!(debts.iter().all(|debt| *debt <= limit as i64));
        }
        for _ in 0..600 {
            for from in 0..3 {
                for to in 0..3 {
                    let ns = payment_ns(MS, debts[from], -debts[to]) as i64;
                    debts[from] -= ns;
                    debts[to] += ns;
                }
            }
        }
        prop_assert!(debts.iter().all(|debt| debt.unsigned_abs() < MS), "{:?}", debts);
    }

    #[test]
    fn the_lowest_bit_and_the_first_posted_vector_are_found(bits in any::<u64>(), word in 0u32..4, timer in 0u32..256) {
        prop_assert_eq!(lowest_bit(bits), bits.trailing_zeros());
        let vectors = (0..64).map(|bit| (64 * word + bit, bits >> bit & 1 == 1));
        let first = vectors.filter(|(vector, posted)| *posted && *vector >= 32 && *vector != timer).map(|(vector, _)| vector).next();
        prop_assert_eq!(posted_vector(bits, word, 0xec, timer), first.filter(|vector| *vector < 0xec).unwrap_or(0));
    }

    #[test]
    fn arithmetic_holds_for_any_numbers(a in any::<u64>(), b in any::<u64>(), c in any::<u64>(), debt in any::<i64>(), credit in any::<i64>(), io: bool) {
        prop_assert!(lent_ns(a, io, debt, b) <= a);
        prop_assert!(of_others_ns(a % (1 << 40), b, c) <= a % (1 << 40));
        let _ = for_others_ns(a, b, c);
        prop_assert!(payment_ns(a, debt, credit) <= a);
        let kept = debt.checked_sub(forgotten_ns(debt, a));
        prop_assert!(kept.is_some_and(|kept| kept.unsigned_abs() <= debt.unsigned_abs() && kept.signum() * debt.signum() >= 0));
        prop_assert!(wake_use_left_ns(a, b, c) <= a);
        prop_assert!(io_confidence((a % 200) as u32, (c % 99) as u32, b) <= CONFIDENCE_MAX.max((a % 200) as u32));
        prop_assert!(of_one_ns(a % (1 << 40), b, c, a) <= a % (1 << 40));
        let _ = (loan_room_ns(debt, a), goes_on_for_io(io, a, b), is_near_io(a, b), may_wake_fast(a, b));
        prop_assert!(votes_after(a as u32, io) <= a as u32 || io);
    }
}
