//! The same seed gives the same bytes, when run again and on any number of threads.
#![allow(missing_docs)]

use tandem_sim::runner;
use tandem_sim::scenario::Scenario;

/// Servers, barriers, a pipeline and CPU-bound threads in two guests, under the kernel's schedulers and under Tandem.
fn scenario() -> Scenario {
    let arms = "[[arm]]\nname = \"eevdf\"\nguest = { scheduler = \"eevdf\" }\n\
                [[arm]]\nname = \"cfs\"\nguest = { scheduler = \"cfs\" }\n\
                [[arm]]\nname = \"tandem\"\nguest = { scheduler = \"tandem\" }\n";
    let metrics: String = ["latency", "rounds", "requests", "cpus", "migrations"]
        .iter()
        .map(|what| format!("[[metric]]\nname = \"{what}\"\nworkload = \"*\"\nwhat = \"{what}\"\n"))
        .collect();
    let text = runner::mixed_load(4).replace("duration_s = 10.0", "duration_s = 2.5") + arms + &metrics;
    Scenario::parse(&text, "determinism").unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let scenario = scenario();
    // `{:?}` prints the shortest digits that read back as the same number: equal text means equal numbers, bit for bit.
    let bytes = |threads| format!("{:?}", runner::run(&scenario, 4, threads, &|_, _| {}).unwrap());
    let one = bytes(1);
    assert!(one.contains("figures: [Some("), "{one}");
    for threads in [1, 2, 3, 16] {
        assert_eq!(bytes(threads), one, "{threads} threads");
    }
}

#[test]
fn another_seed_gives_other_bytes() {
    let scenario = scenario();
    let tandem = scenario.with(&scenario.arms()[2]);
    assert_ne!(runner::one(&tandem, 1).unwrap(), runner::one(&tandem, 2).unwrap());
}
