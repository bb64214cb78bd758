//! The host's decisions.
#![allow(missing_docs)]

use proptest::prelude::*;
use tandem_policy::away::share_left;
use tandem_policy::SCALE;

const MS: u64 = 1_000_000;

#[test]
fn half_of_the_way_in_32_ms() {
    assert_eq!(share_left(SCALE, true, 0), SCALE);
    assert_eq!(share_left(SCALE, true, 32 * MS), SCALE / 2);
    assert_eq!(share_left(SCALE, true, 16 * MS), SCALE * 3 / 4);
    assert_eq!(share_left(SCALE, true, 64 * MS), SCALE / 4);
    assert_eq!(share_left(0, false, 32 * MS), SCALE / 2);
    assert_eq!((share_left(SCALE, true, u64::MAX), share_left(0, false, u64::MAX)), (0, SCALE));
}

#[test]
fn a_neighbour_that_takes_half_leaves_half() {
    let mut share = SCALE;
    for _ in 0..200 {
        share = share_left(share_left(share, true, 5 * MS), false, 5 * MS);
    }
    assert!((480..=550).contains(&share), "{share}");
}

proptest! {
    #[test]
    fn it_moves_towards_what_happens_and_stays_in_range(share in 0u32..5000, away: bool, ns in 0u64..1_000_000_000, more in 0u64..1_000_000_000) {
        let (one, other) = (share_left(share, away, ns), share_left(share, away, ns + more));
        prop_assert!(one <= SCALE && other <= SCALE);
        let towards = if away { other <= one } else { other >= one };
        prop_assert!(towards, "{} after {}", other, one);
    }
}
