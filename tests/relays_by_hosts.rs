//! Partial collectives in worlds of several hosts with several ranks: real processes whose agents relay for their hosts.
//! Hosts are network namespaces.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::process::{Output, Stdio};
use std::time::Duration;

use common::hosts::Hosts;
use common::marks::Marks;
use common::relaying::{GOES_ON, HAS_ROUNDS, READY, STOPPED, join};
use common::stress::{Run, check};
use common::tier::{by_tier, is_deep};
use common::{faults, libfabric, role, said, until};
use earlybird::{Config, Executor, Fire, Mover, World};
use rustix::process::Signal;

const DEADLINE: Duration = Duration::from_secs(120);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match role().as_deref() {
        Some(role) if role.starts_with("counted ") => count(role),
        Some("busy") => common::relaying::stay_away(),
        Some(role) if role.starts_with("without ") => {
            common::relaying::make_rounds_without(role.trim_start_matches("without "));
        }
        Some("leaves first") => leave_in_order(),
        Some("orders") => common::relaying::wait_in_different_orders(),
        Some(role) if role.starts_with("fault ") => faults::play_and_report(role.trim_start_matches("fault ")),
        _ => common::stress::play(),
    }
}

fn hosts(places: &[usize]) -> Option<Hosts> {
    libfabric().and_then(|_| Hosts::new(1 + places.iter().max().unwrap()))
}

/// As many ranks on each host, and unequally many, in a row and not.
const PLACES: [&[usize]; 3] = [&[0, 0, 1, 1], &[0, 1, 0, 2, 1, 0], &[0, 0, 0, 1, 2, 2, 2, 2, 2]];

/// `counted FIRE ROUNDS`: rounds of 8 bytes, by pairs of hosts.
fn count(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    let [_, fire, rounds] = words[..] else { panic!("{role}") };
    let world = join("[ofi]\nstar_total = \"0\"\nradix = 2\n", |_| {});
    let fire: Fire = fire.parse().unwrap();
    let mut sum = world.allreduce::<u64>(&[1]).fire(fire).build().unwrap();
    assert_eq!((sum.path(), sum.executor()), ("relayed", Executor::Thread));
    let (mut arrivals, mut newest, before) = (0u64, 0, world.traffic());
    let rounds: u64 = rounds.parse().unwrap();
    while newest < rounds {
        sum.contribution().unwrap()[0] = 1;
        sum.arrive().unwrap();
        arrivals += 1;
        let outcomes = sum.wait(DEADLINE).unwrap();
        newest = outcomes.newest().round();
        for outcome in outcomes {
            assert_eq!(outcome.data(), [outcome.cut().contributions().count() as u64]);
        }
    }
    let sent = world.traffic().messages - before.messages;
    println!("\nSENT {sent} {arrivals} {newest}");
    sum.finish(DEADLINE).unwrap();
}

/// The lower the rank, the fewer steps it makes. No contribution is lost.
fn leave_in_order() {
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    for fire in [Fire::ALL, Fire::SOLO, Fire::quorum(2)] {
        let mut sum = world.allreduce::<u64>(&[10]).fire(fire).build().unwrap();
        let mut entered = 0;
        let steps = 5 + 10 * u64::from(world.rank());
        for _ in 0..steps {
            sum.contribution().unwrap().fill(1);
            sum.arrive().unwrap();
            for outcome in sum.wait(DEADLINE).unwrap() {
                let contributions = outcome.cut().contributions();
                entered += contributions.clone().filter(|entry| entry.rank == world.rank()).count() as u64;
                assert!(outcome.data().iter().all(|&x| x == contributions.clone().count() as u64));
            }
        }
        assert!(steps - entered <= 1, "{fire}: {entered} of {steps} have entered");
        sum.finish(DEADLINE).unwrap();
    }
}

/// By pairs, an agent sends for *all* one message to each partner, of which it has log2 H at most. Other rules take as many
/// to tell that a round has fired, and a report of each arrival at most. No other rank sends any.
#[test]
fn agents_send_what_their_hosts_need_and_others_nothing() {
    let rounds = by_tier(200u64, 1000);
    let four_by_four: Vec<usize> = (0..16).map(|rank| rank / 4).collect();
    let eight_by_two: Vec<usize> = (0..16).map(|rank| rank / 2).collect();
    for (places, of_all) in [(&four_by_four[..], 8), (&eight_by_two, 24), (PLACES[2], 4)] {
        let Some(hosts) = hosts(places) else { return };
        let count = 1 + *places.iter().max().unwrap() as u64;
        let hops = u64::from(u64::BITS - (count - 1).leading_zeros());
        for fire in by_tier(vec!["all", "quorum=3"], vec!["all", "solo", "quorum=3", "majority"]) {
            let ends = hosts.job(places, &[], &format!("counted {fire} {rounds}")).finish(DEADLINE);
            let told = ends.iter().enumerate().map(|(rank, (status, text))| {
                assert!(status.success(), "{places:?}, {fire}, rank {rank}: {text}");
                let told = said(text, "SENT").concat();
                told.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<u64>>()
            });
            let told: Vec<Vec<u64>> = told.collect();
            let messages: u64 = told.iter().map(|told| told[0]).sum();
            println!("{places:?}, {fire}: {messages} messages in {} rounds", told[0][2]);
            if fire == "all" {
                assert_eq!(messages, of_all * rounds, "{places:?}: {told:?}");
            }
            for (rank, sent) in told.iter().map(|told| told[0]).enumerate() {
                let is_agent = places[..rank].iter().all(|place| *place != places[rank]);
                let here = (0..places.len()).filter(|&other| places[other] == places[rank]);
                let arrivals: u64 = here.map(|rank| told[rank][1]).sum();
                // It may have begun the next round, too.
                let most = match fire {
                    "all" => hops * rounds,
                    _ => 2 * hops * (told[rank][2] + 1) + arrivals,
                };
                assert_eq!(sent > 0, is_agent, "{places:?}, {fire}, rank {rank}");
                assert!(
                    sent <= most,
                    "{places:?}, {fire}, rank {rank} sent {sent} messages, at most {most} are needed"
                );
            }
        }
    }
}

/// Sums are exact, and the same on all ranks, in rounds that fire for each reason; ranks leave one after the other.
#[test]
fn nothing_is_lost() {
    for places in PLACES {
        let Some(hosts) = hosts(places) else { return };
        let lengths: &[(usize, u64)] =
            if is_deep() { &[(24, 200), (3000, 60), (100_000, 10)] } else { &[(24, 40), (3000, 20)] };
        let rules = ["all", "solo", "quorum=2", "majority"].into_iter();
        let runs: Vec<Run<'_>> = rules
            .flat_map(|fire| {
                lengths.iter().flat_map(move |&(length, steps)| {
                    [Executor::Thread, Executor::Caller].map(|executor| Run {
                        fire,
                        how: (Mover::Tree, executor),
                        length,
                        steps,
                    })
                })
            })
            .collect();
        let role: Vec<String> = runs.iter().map(Run::to_string).collect();
        check(hosts.job(places, &[], &role.join(";")), &format!("{places:?}"));
    }
}

/// The agent of a host, or another rank of it, may compute while the others make their rounds.
#[test]
fn a_rank_that_computes_holds_up_no_other() {
    // Rank 0 is an agent in the first world, and not in the second.
    for places in [&[0, 0, 1, 1][..], &[0, 1, 0, 2]] {
        let Some(hosts) = hosts(places) else { return };
        let ends = hosts.job(places, &[], "busy").finish(DEADLINE);
        assert!(ends.iter().all(|(status, _)| status.success()), "{places:?}: {ends:?}");
        let first: u64 = said(&ends[0].1, "FIRST")[0].parse().unwrap();
        assert!(first >= 40, "{places:?}: it received only {first} rounds at once");
    }
}

/// A stopped process answers nothing, and no other rank needs an answer of one that is no agent.
#[test]
fn a_stopped_rank_that_is_no_agent_holds_up_no_other() {
    let (places, victim) = ([0, 0, 1, 1], 3);
    let Some(hosts) = hosts(&places) else { return };
    let marks = Marks::make();
    let mut job = hosts.job(&places, &[], &format!("without {victim} {}", marks.folder()));
    job.wait_for_mark(victim, (&marks, READY));
    job.stop(victim);
    marks.set(STOPPED);
    for rank in (0..places.len()).filter(|&rank| rank != victim) {
        job.wait_for_mark(rank, (&marks, &format!("{HAS_ROUNDS}{rank}")));
    }
    job.signal(victim, Signal::CONT);
    marks.set(GOES_ON);
    let ends = job.finish(DEADLINE);
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}

/// An agent that leaves first waits for the ranks of its host.
#[test]
fn agents_may_leave_first() {
    let places = [0, 0, 1, 1];
    let Some(hosts) = hosts(&places) else { return };
    let ends = hosts.job(&places, &[], "leaves first").finish(DEADLINE);
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}

#[test]
fn the_command_tests_itself_on_hosts() {
    let places = [0, 0, 1, 1];
    let Some(hosts) = hosts(&places) else { return };
    let store = format!("tcp:{}:29400", hosts.address(0));
    let ranks: Vec<_> = (0..places.len())
        .map(|rank| {
            let mut command = hosts.command_of(places[rank], env!("CARGO_BIN_EXE_earlybird"));
            command.args(["selftest", "--quick"]).env("EARLYBIRD_STORE", &store);
            command.env("EARLYBIRD_RANK", rank.to_string()).env("EARLYBIRD_WORLD_SIZE", places.len().to_string());
            command
                .env("EARLYBIRD_SECRET", "of this test alone")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(status.success(), "rank {rank}: {text}");
    }
}

#[test]
fn collectives_may_be_waited_for_in_any_order() {
    let Some(hosts) = hosts(PLACES[1]) else { return };
    let ends = hosts.job(PLACES[1], &[], "orders").finish(DEADLINE);
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}

/// Each rank that is left names it, whatever host it is on.
#[test]
fn a_killed_rank_is_named_on_every_host() {
    let places = [0, 0, 1, 1, 2];
    // The agent of the second host, and another rank of it.
    for victim in by_tier(2..4, 0..places.len()) {
        for fire in by_tier(&["solo"][..], &["all", "solo", "quorum=3"]) {
            let Some(hosts) = hosts(&places) else { return };
            let marks = Marks::make();
            let mut job = hosts.job(&places, &[], &format!("fault {fire} tree 60000 {}", marks.folder()));
            until("all ranks have started", || faults::have_started(&marks, places.len() as u32));
            job.ranks[victim].kill().unwrap();
            job.wait_for_end(victim);
            for (rank, (_, text)) in job.finish(DEADLINE).iter().enumerate().filter(|&(rank, _)| rank != victim) {
                assert_eq!(
                    said(text, "DIED"),
                    [victim.to_string()],
                    "{fire}, {victim} was killed, rank {rank}: {text}"
                );
            }
        }
    }
}
