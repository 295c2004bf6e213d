//! Two hosts, each with an RDMA device, and a cable between them: rounds of ranks on both.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use common::faults::has_reported;
use common::guests::{Guests, ranks_of};
use common::marks::Marks;
use common::stress::{check, have_same_bits};
use common::{Job, rdma_objects, role, said, sent_packets, until, wait_at_most};
use earlybird::{Config, Executor, Mover, World};

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match role() {
        Some(role) if role.starts_with(HOLDS) => common::faults::hold_an_outcome(&role[HOLDS.len()..]),
        Some(role) if role == JOINS => {
            match World::with(&Config { deadline: NOTICED, ..Config::from_env().unwrap() }) {
                Ok(_) => println!("\nENDED well"),
                Err(error) => println!("\nTEXT {error}"),
            }
        }
        Some(role) if role == RELAYS => relay(),
        _ => common::stress::play(),
    }
}

/// How the role of a rank begins that makes rounds until something fails.
const HOLDS: &str = "holds ";

/// The role of a rank that takes part in a collective, as `auto` carries it out.
const RELAYS: &str = "relays";

fn relay() {
    let world = World::with(&Config { deadline: PATIENCE, ..Config::from_env().unwrap() }).unwrap();
    let mut sum = world.allreduce::<u32>(&[1000]).build().unwrap();
    assert_eq!(sum.path(), "relayed");
    for _ in 0..20 {
        sum.contribution().unwrap().fill(1);
        sum.arrive().unwrap();
        assert!(sum.wait(PATIENCE).unwrap().newest().iter().all(|&x| x == world.size()));
    }
    sum.finish(PATIENCE).unwrap();
    println!("\nQUEUES {}", world.reached().queue_pairs);
}

/// The role of a rank that only joins.
const JOINS: &str = "joins";

/// Two ranks on each host. Sums are exact, and floats have the same bits on all ranks of both: by a network of all ranks, and
/// where agents relay.
#[test]
fn four_ranks_on_two_hosts() {
    let Some(mut guests) = Guests::find(29400) else { return };
    const CASES: [(usize, u64); 3] = [(24, 40), (1024, 30), (8192, 20)];
    let rules = ["all", "solo", "majority", "quorum=3"].into_iter();
    let ways = [(Mover::Cut, Executor::Caller), (Mover::Tree, Executor::Thread)];
    for (fire, (mover, executor)) in rules.flat_map(|fire| ways.map(|way| (fire, way))) {
        let started = Instant::now();
        guests.share_memory(mover == Mover::Tree);
        let role = |(length, steps)| format!("{fire} {mover} {executor} {length} {steps}");
        let digests = check(guests.start(&CASES.map(role).join(";")), fire);
        for ((length, _), digests) in CASES.into_iter().zip(digests) {
            let told = guests.exchange(&format!("{fire}-{mover}-{length}"), &digests.join(","));
            let told: Vec<Vec<String>> = told.iter().map(|one| one.split(',').map(str::to_owned).collect()).collect();
            assert!(have_same_bits(&told), "{fire}, {length} elements: the hosts saw different bits");
        }
        println!("{fire} {mover}: {:.1?}", started.elapsed());
    }
}

/// Agents alone have queue pairs, one to each other host.
#[test]
fn agents_alone_have_queue_pairs() {
    let Some(mut guests) = Guests::find(29900) else { return };
    guests.share_memory(true);
    let ends = guests.start(RELAYS).finish(PATIENCE);
    for (rank, (status, text)) in ranks_of(guests.host).zip(&ends) {
        assert!(status.success(), "rank {rank}: {text}");
        let of_agent = u32::from(rank == ranks_of(guests.host).start);
        assert_eq!(said(text, "QUEUES").concat(), of_agent.to_string(), "rank {rank}: {text}");
    }
}

/// How long a rank waits for one round: longer than any rank may take to learn that others are gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// In which all ranks learn that: several times what a rank may be silent for, and what devices try.
const NOTICED: Duration = Duration::from_secs(25);

/// Ranks that make rounds, and have begun.
fn begin(guests: &mut Guests, (fire, length): (&str, usize)) -> (Job, Marks) {
    let marks = Marks::at(&guests.make_folder(&format!("{}-{fire}-{length}", guests.next_port())));
    let role = format!("{HOLDS}{fire} cut {} {} {length} 60", PATIENCE.as_millis(), marks.folder());
    let job = guests.start(&role);
    until("all ranks have started", || common::faults::have_started(&marks, guests.ranks()));
    std::thread::sleep(Duration::from_secs(1));
    guests.meet(&format!("{}-begun", guests.next_port()));
    (job, marks)
}

/// Checks that no sum was wrong, nor changed afterwards.
fn check_sums(ends: &[(ExitStatus, String)]) {
    for (_, text) in ends {
        assert!(said(text, "WRONG").is_empty() && !text.contains("panicked"), "{ends:?}");
    }
}

/// How the rig names a cable, and its devices.
const FIRST_CABLE: (&str, &str) = ("", "rxe0");
const SECOND_CABLE: (&str, &str) = ("1", "rxe1");

/// Ranks make rounds until a cable is cut. If it is the first cable, each rank names one of the other host as dead, and says
/// that its own port is down. By the first cable ranks still hear that those behind the second one run: none is called dead.
/// Nothing is left of them. The cable is plugged in again before they end: Soft-RoCE sometimes waits for packets that are on
/// their way before it ends a queue pair (Linux 6.1).
fn cut(guests: &mut Guests, case: (&str, usize), (which, device): (&str, &str)) {
    let before = rdma_objects();
    let (job, marks) = begin(guests, case);
    guests.cable(&format!("off{which}"));
    let cut = Instant::now();
    let have_failed = || ranks_of(guests.host).all(|rank| has_reported(&marks, rank));
    let in_time = wait_at_most(NOTICED, have_failed);
    println!("{case:?}: all failed after {:.1?}", cut.elapsed());
    guests.meet(&format!("{}-over", guests.next_port()));
    guests.cable(&format!("on{which}"));
    let ends = job.finish(PATIENCE);
    assert!(in_time, "{case:?}: {ends:?}");
    check_sums(&ends);
    for (_, text) in &ends {
        let (named, cause) = (said(text, "DIED"), said(text, "TEXT").concat());
        println!("{case:?}: {cause}");
        if device == SECOND_CABLE.1 {
            assert!(named.is_empty(), "{case:?}: {named:?} are called dead: {ends:?}");
            assert!(cause.contains("its process runs, as "), "{case:?}: {cause}");
            continue;
        }
        assert_eq!(named.len(), 1, "{case:?}: {named:?} are named: {ends:?}");
        let elsewhere = !ranks_of(guests.host).contains(&named[0].parse().unwrap());
        assert!(elsewhere, "{case:?}: {named:?} are named: {ends:?}");
        assert!(cause.contains(&format!("; port 1 of {device} is down at rank ")), "{case:?}: {cause}");
    }
    until("a world that was cut leaves nothing", || rdma_objects() == before);
}

/// With the cable plugged in again, a new world makes rounds.
#[test]
fn ranks_behind_a_cut_cable_are_named() {
    let Some(mut guests) = Guests::find(29500) else { return };
    for case in [("all", 8192), ("solo", 24), ("quorum=3", 1024)] {
        cut(&mut guests, case, FIRST_CABLE);
    }
    check(guests.start("all cut caller 1024 10"), "after the cable was plugged in again");
}

/// Large data goes over both cables, small data over the first one. Ranks that the second one does not reach are named, too.
#[test]
fn large_data_goes_over_both_cables() {
    let Some(mut guests) = Guests::find(29700) else { return };
    guests.use_devices("rxe0,rxe1");
    let sent = || ["rxe0", "rxe1"].map(|device| sent_packets(device).unwrap());
    for (fire, length, steps) in
        [("all", 1024, 20), ("all", 300_000, 3), ("solo", 300_000, 3), ("quorum=3", 300_000, 3)]
    {
        let before = sent();
        let what = format!("{fire}, {length} elements");
        check(guests.start(&format!("{fire} cut caller {length} {steps}")), &what);
        let [first, second] = [0, 1].map(|rail| sent()[rail] - before[rail]);
        println!("{what}: {first} and {second} packets");
        assert!(first > 0, "{what}");
        assert_eq!(second > 100, length > 1024, "{what}: {second} packets by the second device");
        guests.meet(&format!("both-{fire}-{length}"));
    }
    cut(&mut guests, ("all", 300_000), SECOND_CABLE);
}

/// A device whose packets are all lost, until this ends.
struct Losing(&'static str);

impl Losing {
    fn begin(device: &'static str) -> Self {
        let add = ["qdisc", "add", "dev", device, "root", "netem", "loss", "100%"];
        assert!(Command::new("tc").args(add).status().unwrap().success());
        Losing(device)
    }
}

impl Drop for Losing {
    fn drop(&mut self) {
        let _ = Command::new("tc").args(["qdisc", "del", "dev", self.0, "root"]).status();
    }
}

/// All that would leave by the second cable is lost, but its ports are up: no rank joins, and each host is told why.
#[test]
fn a_second_cable_that_carries_nothing_is_found_when_ranks_join() {
    let Some(mut guests) = Guests::find(29800) else { return };
    guests.use_devices("rxe0,rxe1");
    // Each host knows the addresses of the other one after that.
    check(guests.start("all cut caller 300000 2"), "both cables");
    let before = rdma_objects();
    let losing = Losing::begin("eth1");
    guests.meet("loses");
    let ends = guests.start(JOINS).finish(PATIENCE);
    guests.meet("lost");
    drop(losing);
    let causes: Vec<String> = ends.iter().map(|(_, text)| said(text, "TEXT").concat()).collect();
    println!("{causes:?}");
    assert!(causes.iter().all(|cause| !cause.is_empty()), "a rank has joined: {ends:?}");
    // A rank that the others have given up may find them gone.
    let explains = |cause: &String| {
        cause.contains("cannot be reached over RoCE v2 on two rails, RoCE v2")
            && cause.contains("; rxe1 has no connection to ranks ")
    };
    assert!(causes.iter().any(explains), "{causes:?}");
    until("a world that was not joined leaves nothing", || rdma_objects() == before);
    guests.meet("carries");
    check(guests.start("all cut caller 300000 2"), "after the second cable carried packets again");
}

/// A cable that is cut for less time than devices try delays the rounds, and fails none.
#[test]
fn a_short_cut_fails_nothing() {
    let Some(mut guests) = Guests::find(29600) else { return };
    let (job, marks) = begin(&mut guests, ("all", 1024));
    guests.cable("off");
    std::thread::sleep(Duration::from_millis(500));
    guests.cable("on");
    std::thread::sleep(Duration::from_secs(3));
    marks.set(common::faults::ENOUGH);
    let ends = job.finish(PATIENCE);
    check_sums(&ends);
    assert!(ends.iter().all(|(_, text)| said(text, "ENDED") == ["well"]), "{ends:?}");
}
