//! Real processes over RDMA verbs, under stress.
#![cfg(feature = "internals")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::stress::Run;
use common::{Way, rdma};
use earlybird::{Executor, Mover};

const MOVERS: [Mover; 2] = [Mover::Cut, Mover::Tree];

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    common::stress::play();
}

/// Runs of so many ranks, elements and steps, under each rule.
fn stress(executor: Executor, cases: &[(u32, usize, u64)]) {
    if rdma().is_none() {
        return;
    }
    for (fire, mover) in
        ["all", "solo", "quorum=2", "majority"].into_iter().flat_map(|fire| MOVERS.map(|it| (fire, it)))
    {
        for &(ranks, length, steps) in cases {
            let started = std::time::Instant::now();
            let run = Run { fire, how: (mover, executor), length, steps };
            common::stress::stress(Way::Verbs, ranks, run);
            let took = started.elapsed();
            println!("{run}, {ranks} ranks: {took:.1?}");
        }
    }
}

#[test]
fn small_rounds() {
    stress(Executor::Caller, &[(4, 1, 200), (4, 24, 200), (2, 24, 200)]);
}

#[test]
fn rounds_of_a_few_packets() {
    stress(Executor::Caller, &[(4, 1024, 200), (2, 1500, 200)]);
}

/// 64 KiB.
#[test]
fn rounds_of_many_packets() {
    stress(Executor::Caller, &[(4, 8192, 200)]);
}

/// 4 MiB.
#[test]
fn large_rounds() {
    stress(Executor::Caller, &[(4, 512 << 10, 3)]);
}

#[test]
fn rounds_with_a_helper_thread() {
    stress(Executor::Thread, &[(3, 24, 100), (3, 8192, 40)]);
}

#[test]
fn eight_ranks() {
    stress(Executor::Caller, &[(8, 24, 60)]);
}
