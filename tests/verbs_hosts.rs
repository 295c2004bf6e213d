//! Two hosts, each with an RDMA device, and a cable between them: rounds of ranks on both.
#![cfg(feature = "internals")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use common::guests::{Guests, ranks_of};
use common::marks::Marks;
use common::stress::{check, have_same_bits};
use common::{rdma_objects, role, said, until};
use earlybird::{Executor, Mover};

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match role() {
        Some(role) if role.starts_with(HOLDS) => common::faults::hold_an_outcome(&role[HOLDS.len()..]),
        _ => common::stress::play(),
    }
}

/// How the role of a rank begins that makes rounds until something fails.
const HOLDS: &str = "holds ";

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

/// How long a rank waits for one round: longer than any rank may take to learn that others are gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// In which all ranks learn that: several times what a rank may be silent for, and what devices try.
const NOTICED: Duration = Duration::from_secs(25);

/// Ranks make rounds until `disturb` has gone on in both guests. Then each names a rank of the other host, and no sum was
/// wrong, nor changed afterwards. Nothing is left of them. Returns what this host's ranks say of their failure.
fn separate(guests: &mut Guests, (fire, length): (&str, usize), disturb: impl Fn(&Guests)) -> Vec<String> {
    let before = rdma_objects();
    let name = format!("{}-{fire}-{length}", guests.next_port());
    let marks = Marks::at(&guests.make_folder(&name));
    let role = format!("{HOLDS}{fire} cut {} {} {length} 60", PATIENCE.as_millis(), marks.folder());
    let job = guests.start(&role);
    until("all ranks have started", || common::faults::have_started(&marks, guests.ranks()));
    std::thread::sleep(Duration::from_secs(1));
    guests.meet(&format!("{name}-runs"));
    disturb(guests);
    let disturbed = Instant::now();
    let ends = job.finish(PATIENCE);
    let took = disturbed.elapsed();
    let failure = |(rank, (_, text)): (u32, &(ExitStatus, String))| {
        assert!(said(text, "WRONG").is_empty() && !text.contains("panicked"), "{fire}, rank {rank}: {text}");
        let named: Vec<u32> = said(text, "DIED").iter().map(|peer| peer.parse().unwrap()).collect();
        let elsewhere = named.iter().all(|peer| !ranks_of(guests.host).contains(peer));
        assert!(named.len() == 1 && elsewhere, "{fire}: rank {rank} names {named:?}: {text}");
        said(text, "TEXT").concat()
    };
    let failures: Vec<String> = ranks_of(guests.host).zip(&ends).map(failure).collect();
    println!("{fire}, {length} elements: all ended after {took:.1?}: {failures:#?}");
    assert!(took < NOTICED, "{fire}: took {took:?}");
    until("a world that was cut leaves nothing", || rdma_objects() == before);
    guests.meet(&format!("{name}-over"));
    failures
}

/// The cable is cut within rounds, and plugged in again.
#[test]
fn ranks_behind_a_cut_cable_are_named() {
    let Some(mut guests) = Guests::find(29500) else { return };
    for case in [("all", 8192), ("solo", 24), ("quorum=3", 1024)] {
        separate(&mut guests, case, |guests| guests.cable("off"));
        guests.cable("on");
    }
    check(guests.start("all cut caller 1024 10"), "after the cable was plugged in again");
}
