//! Two hosts, each with an RDMA device, and a cable between them: rounds of ranks on both.
#![cfg(feature = "internals")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Instant;

use common::guests::Guests;
use common::stress::{check, have_same_bits};
use earlybird::{Executor, Mover};

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    common::stress::play();
}

/// Two ranks on each host. Sums are exact, and floats have the same bits on all ranks of both.
#[test]
fn four_ranks_on_two_hosts() {
    let Some(mut guests) = Guests::find(29400) else { return };
    for fire in ["all", "solo", "majority", "quorum=3"] {
        for (length, steps) in [(24, 40), (1024, 30), (8192, 20)] {
            let started = Instant::now();
            let role = format!("{fire} {} {} {length} {steps}", Mover::Cut, Executor::Caller);
            let what = format!("{fire}, {length} elements");
            let digests = check(guests.start(&role), &what).join(",");
            let told = guests.exchange(&format!("{fire}-{length}"), &digests);
            let told: Vec<Vec<String>> = told.iter().map(|one| one.split(',').map(str::to_owned).collect()).collect();
            assert!(have_same_bits(&told), "{what}: the hosts saw different bits");
            println!("{what}, {steps} steps: {:.1?}", started.elapsed());
        }
    }
}
