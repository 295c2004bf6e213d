//! Real processes over the providers of libfabric that run on any machine: every collective, under
//! stress and with ranks that are killed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{PROVIDERS, Way, libfabric};
use earlybird::{Executor, Mover};

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match common::role().is_some_and(|role| role.split(' ').count() == 3) {
        true => common::faults::rank(),
        false => common::stress::play(),
    }
}

/// Sums are exact, floats the same bits everywhere, in rounds that fire for each reason. `part`: of the
/// usual number of rounds, where a provider is slow.
fn stress(provider: &'static str, part: u64) {
    if libfabric().is_none() {
        return;
    }
    let stress = |fire, executor, ranks, length, steps: u64| {
        let how = (Mover::Cut, executor);
        common::stress::stress(Way::Ofi(provider), ranks, fire, how, length, (steps / part).max(6));
    };
    for fire in ["all", "solo", "quorum=2", "majority"] {
        for (ranks, length, steps) in [(2, 24, 200), (5, 24, 60), (3, 3000, 40), (3, 40_000, 10)] {
            stress(fire, Executor::Caller, ranks, length, steps);
        }
        stress(fire, Executor::Thread, 3, 3000, 40);
    }
}

#[test]
fn tcp() {
    stress(PROVIDERS[0], 1);
}

#[test]
fn sockets() {
    stress(PROVIDERS[1], 4);
}

#[test]
fn shm() {
    stress(PROVIDERS[2], 1);
}

#[test]
fn udp() {
    stress(PROVIDERS[3], 1);
}

#[test]
fn a_killed_rank_is_named_by_everybody() {
    if libfabric().is_none() {
        return;
    }
    // libfabric takes some tenths of a second to look at what there is, and a rank that is killed before
    // it was introduced is missed only when the deadline has passed.
    let window = Duration::from_millis(300)..Duration::from_millis(1500);
    for provider in PROVIDERS {
        common::faults::kill(Way::Ofi(provider), 9, &["cut"], window.clone());
    }
}
