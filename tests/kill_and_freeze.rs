//! Ranks that are stopped, frozen, killed or terminated at random moments, over shared memory and
//! libfabric: no wrong result, no hang, the right rank named, and no file left.
//!
//! `tests/kill-and-freeze` runs any number of cases.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::ops::Range;

use common::tier::by_tier;

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// These variables have another prefix: the library refuses an `EARLYBIRD_` that it does not know.
fn asked_for() -> Range<u64> {
    let (cases, first) = (number("TEST_CASES", 200), number("TEST_SEED", 0));
    first..first.checked_add(cases).unwrap()
}

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    common::faults::rank();
}

#[test]
fn the_last_ranks_that_an_error_names_are_to_blame() {
    for (error, blamed) in [
        ("rank 1: wait: timeout after 4s, waiting for rank 2. Call again to go on waiting", &[2usize][..]),
        (
            "rank 0: wait: rank 1 aborted the job: it dropped a collective without finish, after rank 1: wait: not done \
             within 4s; waiting for ranks 0, 2, 3. Call again to go on waiting",
            &[0, 2, 3],
        ),
        ("rank 1: wait: rank 2 died (its process ended without finish); its ranks cannot go on", &[2]),
        ("rank 3: joining the world: rank 0 did not come within 10s; were all 5 started?", &[0]),
        ("a rank, no ranks at all", &[]),
    ] {
        assert_eq!(common::troubles::blamed(&format!("STARTED\nTEXT {error}\n")), blamed, "{error}");
    }
}

#[test]
fn a_few_of_each() {
    common::troubles::play(by_tier(3..10, 0..30));
}

#[test]
#[ignore = "takes a while: tests/kill-and-freeze [CASES [SEED]]"]
fn as_many_as_asked_for() {
    common::troubles::play(asked_for());
}
