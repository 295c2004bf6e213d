//! Real processes over RDMA verbs, under stress.
#![cfg(earlybird_internals)]
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

/// Runs of so many ranks, with so many elements and steps each, under each rule: by the same processes one after the
/// other, because to join takes longer than most runs.
fn stress(executor: Executor, ranks: u32, cases: &[(usize, u64)]) {
    if rdma().is_none() {
        return;
    }
    for fire in ["all", "solo", "quorum=2", "majority"] {
        let of_mover =
            |mover| cases.iter().map(move |&(length, steps)| Run { fire, how: (mover, executor), length, steps });
        let runs: Vec<Run<'_>> = MOVERS.into_iter().flat_map(of_mover).collect();
        let started = std::time::Instant::now();
        common::stress::stress_in_turn(Way::Verbs, ranks, &runs);
        println!("{fire}, {executor}, {ranks} ranks, {} runs: {:.1?}", runs.len(), started.elapsed());
    }
}

#[test]
fn small_rounds() {
    stress(Executor::Caller, 4, &[(1, 200), (24, 200)]);
}

#[test]
fn rounds_of_a_few_packets_to_64_kib() {
    stress(Executor::Caller, 4, &[(1024, 200), (8192, 200)]);
}

/// 4 MiB.
#[test]
fn large_rounds() {
    stress(Executor::Caller, 4, &[(512 << 10, 3)]);
}

#[test]
fn rounds_of_two_ranks() {
    stress(Executor::Caller, 2, &[(24, 200), (1500, 200)]);
}

#[test]
fn rounds_with_a_helper_thread() {
    stress(Executor::Thread, 3, &[(24, 100), (8192, 40)]);
}

#[test]
fn eight_ranks() {
    stress(Executor::Caller, 8, &[(24, 60)]);
}
