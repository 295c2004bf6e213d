//! Real processes over shared memory, under stress.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::Way;
use common::stress::Run;
use common::tier::by_tier;
use earlybird::{Executor, Mover};

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    common::stress::play();
}

fn stress(ranks: u32, fire: &str, how: (Mover, Executor), length: usize, steps: u64) -> Vec<String> {
    common::stress::stress(Way::Shm, ranks, Run { fire, how, length, steps })
}

const CUT: (Mover, Executor) = (Mover::Cut, Executor::Caller);
const EXECUTORS: [Executor; 3] = [Executor::Caller, Executor::Thread, Executor::Peer];

#[test]
fn thirty_two_processes_share_memory() {
    let steps = by_tier(100, 2000);
    for fire in ["all", "solo", "quorum=16"] {
        stress(32, fire, CUT, 24, steps);
        stress(32, fire, (Mover::Tree, Executor::Peer), 24, steps);
    }
}

#[test]
fn every_executor() {
    for executor in EXECUTORS {
        for fire in ["solo", "quorum=4"] {
            stress(8, fire, (Mover::Tree, executor), 24, by_tier(200, 500));
            stress(8, fire, (Mover::Tree, executor), 20_000, 40);
            stress(8, fire, (Mover::Cut, executor), 20_000, 40);
        }
    }
}

/// The same program on the same contributions gives the same bits under every executor.
#[test]
fn executors_agree_to_the_bit() {
    for (ranks, length, steps) in [(8, 24, by_tier(200, 500)), (7, 24, by_tier(100, 300)), (8, 20_000, 40)] {
        // Synchronous: which contributions a round has does not depend on time.
        let run = |executor| stress(ranks, "all", (Mover::Tree, executor), length, steps);
        let digests = EXECUTORS.map(run);
        assert!(!digests[0].is_empty() && digests.windows(2).all(|pair| pair[0] == pair[1]), "{ranks} ranks, {length}");
    }
}

#[test]
fn odd_worlds() {
    let steps = by_tier(100, 300);
    for &ranks in by_tier(&[3, 7, 33][..], &[3, 5, 6, 7, 33]) {
        for fire in ["all", "solo", "quorum=3"] {
            stress(ranks, fire, CUT, 24, steps);
            stress(ranks, fire, (Mover::Tree, Executor::Peer), 24, steps);
        }
    }
}

#[test]
fn large_data_in_segments() {
    for fire in ["all", "solo", "quorum=2"] {
        stress(3, fire, CUT, 40_000, 60);
        stress(3, fire, (Mover::Tree, Executor::Caller), 40_000, 60);
    }
    stress(33, "quorum=20", CUT, 40_000, 12);
}
