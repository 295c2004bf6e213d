//! Several hosts, as network namespaces: ranks that share nothing but the network.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::hosts::Hosts;
use common::marks::Marks;
use common::{Job, PROVIDERS, libfabric, said};
use earlybird::{Error, Fire, Grace, Outcome, Reduce, World};
use earlybird_ffi::socket::Tcp;
use rustix::process::Signal;

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    match common::role() {
        Some(role) if role.starts_with("stopped ") => common::faults::leave_or_be_stopped(),
        Some(role) if role.starts_with("stalled ") => go_on_or_be_stalled(),
        Some(role) if role == JOINS => join_and_sum(),
        Some(role) if role.starts_with(CUTS) => sum_until_cut(&role),
        Some(role) if matches!(role.split(' ').count(), 3 | 4) => common::faults::rank(),
        _ => common::stress::play(),
    }
}

/// One or two ranks on each of four hosts.
const WHERE: [usize; 6] = [0, 0, 1, 2, 3, 3];

/// How long a host may be silent.
const SILENCE: Duration = Duration::from_secs(2);

fn start(hosts: &Hosts, variables: &[(&str, &str)], role: &str) -> Job {
    start_on(hosts, &WHERE, variables, role)
}

/// Starts a rank on each of these hosts.
fn start_on(hosts: &Hosts, places: &[usize], variables: &[(&str, &str)], role: &str) -> Job {
    let silence = format!("{}s", SILENCE.as_secs());
    hosts.job(places, &[&[("EARLYBIRD_SILENCE", silence.as_str())], variables].concat(), role)
}

fn four_hosts() -> Option<Hosts> {
    libfabric().and_then(|_| Hosts::new(4))
}

#[test]
fn four_hosts_agree_also_over_a_slow_line() {
    let Some(hosts) = four_hosts() else { return };
    let agree = |runs: &[&str]| common::stress::check(start(&hosts, &[], &runs.join(";")), "four hosts");
    agree(&[
        "all cut caller 24 100",
        "quorum=3 cut caller 24 100",
        "solo cut caller 3000 30",
        "all cut caller 40000 6",
    ]);
    hosts.limit(2, "40mbit");
    agree(&["all cut thread 40000 6", "quorum=3 cut thread 40000 6"]);
}

/// The ranks that are left name a rank on the lost host; those on it name a rank elsewhere.
#[test]
fn a_host_whose_cable_is_pulled_is_named() {
    for fire in ["all", "solo", "quorum=4"] {
        let Some(hosts) = four_hosts() else { return };
        let marks = Marks::make();
        let job = start(&hosts, &[], &format!("{fire} cut 30000 {}", marks.folder()));
        common::until("the world has started", || common::faults::have_started(&marks, WHERE.len() as u32));
        std::thread::sleep(Duration::from_millis(300));
        hosts.unplug(3);
        let unplugged = Instant::now();
        let ends = job.finish(Duration::from_secs(25));
        let took = unplugged.elapsed();
        assert!(took < SILENCE + Duration::from_secs(15), "{fire}: took {took:?}");
        for ((rank, host), (_, text)) in WHERE.iter().enumerate().zip(&ends) {
            assert!(said(text, "WRONG").is_empty() && !text.contains("panicked"), "{fire}, rank {rank}: {text}");
            let named: Vec<usize> = said(text, "DIED").iter().map(|peer| peer.parse().unwrap()).collect();
            let elsewhere = named.iter().all(|&peer| (WHERE[peer] == 3) != (*host == 3));
            assert!(named.len() == 1 && elsewhere, "{fire}: rank {rank} names {named:?}: {text}");
            let told = said(text, "TEXT").concat();
            let died = format!("rank {} on {} died", named[0], Hosts::host_name(WHERE[named[0]]));
            assert!(told.starts_with(&format!("rank {rank} on {}: ", Hosts::host_name(*host))), "{told}");
            assert!(told.contains(&died), "{died}: {told}");
        }
    }
}

/// Most of them were on other hosts, where connections end and processes cannot be watched.
#[test]
fn a_stopped_rank_receives_all_from_ranks_that_left() {
    let Some(hosts) = four_hosts() else { return };
    // The stopped rank must not be taken for dead meanwhile.
    let variables = [("EARLYBIRD_SILENCE", "60s")];
    common::faults::stop_while_others_leave(|role| start(&hosts, &variables, role));
}

/// The store can be reached, but not the address on which rank 2 listens.
#[test]
fn ranks_without_a_way_between_them_are_named() {
    let Some(hosts) = four_hosts() else { return };
    let mut job = start(&hosts, &[("TEST_DEADLINE", "4")], "all cut 8000");
    job.ranks[2].kill().unwrap();
    job.ranks[2].wait().unwrap();
    let mut command = hosts.command(WHERE[2]);
    command
        .env("EARLYBIRD_STORE", format!("tcp:{}:29400", hosts.address(0)))
        .env("EARLYBIRD_SECRET", "of all these hosts");
    command.env("EARLYBIRD_PROVIDER", PROVIDERS[0]).env("EARLYBIRD_DEVICE", "lo").env("TEST_DEADLINE", "4");
    job.ranks[2] = common::start(&mut command, (2, WHERE.len() as u32), "rank", "all cut 8000");
    let started = Instant::now();
    for (rank, (_, text)) in job.finish(Duration::from_secs(20)).iter().enumerate() {
        let told = said(text, "TEXT").concat();
        let named = rank == 2 || told.contains("rank 2 on host1 came to the meeting");
        assert!(named && told.contains("cannot be reached over"), "rank {rank}: {text}");
    }
    assert!(started.elapsed() < Duration::from_secs(15), "took {:?}", started.elapsed());
}

/// Ranks know who is on their host, also where hosts have unequally many.
#[test]
fn ranks_on_a_host_find_each_other() {
    let Some(hosts) = libfabric().and_then(|_| Hosts::new(3)) else { return };
    for (places, found) in [
        (&[0, 0, 1, 2, 2, 0][..], "[[0, 1, 5], [2], [3, 4]]"),
        (&[2, 1, 0], "[[0], [1], [2]]"),
        (&[1, 1, 1], "[[0, 1, 2]]"),
    ] {
        for (rank, (_, text)) in start_on(&hosts, places, &[], JOINS).finish(Duration::from_secs(30)).iter().enumerate()
        {
            assert_eq!(said(text, "HOSTS"), [found], "rank {rank}: {text}");
            assert!(said(text, "SUM").len() == 1, "rank {rank}: {text}");
            // The lowest rank of a host sends for all.
            let is_agent = !places[..rank].contains(&places[rank]);
            let sends = said(text, "MESSAGES") != ["0"];
            assert_eq!(sends, is_agent && found.contains("], ["), "rank {rank}: {text}");
        }
    }
}

/// The role of a rank that joins and makes one round.
const JOINS: &str = "joins";

fn join_and_sum() {
    match World::from_env() {
        Ok(world) => {
            let mut sum = [world.rank() + 1];
            world.all_reduce(&mut sum, Reduce::Sum, Duration::from_secs(20)).unwrap();
            println!("\nHOSTS {:?}", world.hosts());
            println!("\nMESSAGES {}", world.traffic().messages);
            println!("\nSUM {}", sum[0]);
        }
        Err(error) => println!("\nTEXT {error}"),
    }
}

/// As docs/guides/sites.md has it.
const RULES: &str = "
    table inet ranks {
      chain input {
        type filter hook input priority filter; policy drop;
        iif lo accept
        ct state established,related accept
        ip saddr 10.77.0.0/24 tcp dport { 20000-29999, 31000-31999 } accept
      }
    }";

/// With the ports that a site has chosen, and without.
#[test]
fn ranks_join_through_a_firewall() {
    let Some(hosts) = libfabric().and_then(|_| Hosts::new(2)) else { return };
    if !(0..2).all(|host| hosts.has_firewall(host, RULES)) {
        return;
    }
    let chosen =
        [("FI_TCP_PORT_LOW_RANGE", "31000"), ("FI_TCP_PORT_HIGH_RANGE", "31999"), ("EARLYBIRD_DEADLINE", "3s")];
    for (variables, reach_each_other) in [(&chosen[..], true), (&chosen[2..], false)] {
        for (rank, (_, text)) in
            start_on(&hosts, &[0, 1], variables, JOINS).finish(Duration::from_secs(60)).iter().enumerate()
        {
            match reach_each_other {
                true => assert_eq!(said(text, "SUM"), ["3"], "rank {rank}: {text}"),
                false => {
                    let told = said(text, "TEXT").concat();
                    assert!(told.contains("cannot be reached over tcp;ofi_rxm"), "rank {rank}: {text}");
                    assert!(told.contains("does no firewall stand between them?"), "rank {rank}: {text}");
                }
            }
        }
    }
}

/// The role of ranks of which one loses a connection.
const CUTS: &str = "cuts ";

/// Makes sums until one fails. Rank 2 cuts one of its connections to the host at the address that its role has.
fn sum_until_cut(role: &str) {
    let host: IpAddr = role[CUTS.len()..].parse().unwrap();
    let world = World::from_env().unwrap();
    let mut sum = vec![1.0f32; 10_000];
    let until = Instant::now() + Duration::from_secs(30);
    for turn in 0.. {
        // Rank 2 may have made the first one, and cut, before another rank has made it.
        if let Err(error) = world.all_reduce(&mut sum, Reduce::Max, Duration::from_secs(20)) {
            return println!("\nTEXT {error}");
        }
        if turn == 0 && world.rank() == 2 {
            let is_there = |socket: &Tcp| socket.there.is_some_and(|there| there.ip() == host);
            assert!((0..200).filter_map(Tcp::of).find(is_there).unwrap().cut());
        }
        if Instant::now() >= until {
            return;
        }
    }
}

/// A connection is lost, and the processes at both ends run, as ranks on their hosts see: each is a member of the network.
#[test]
fn a_rank_that_its_neighbour_sees_is_not_called_dead() {
    let Some(hosts) = libfabric().and_then(|_| Hosts::new(2)) else { return };
    let job = start_on(&hosts, &[0, 0, 1, 1], &[common::LEVELS_1], &format!("{CUTS}{}", hosts.address(0)));
    let ends = job.finish(Duration::from_secs(60));
    let mut named = 0;
    for (rank, (status, text)) in ends.iter().enumerate() {
        assert!(status.success() && !text.contains("died"), "rank {rank}: {status}: {text}");
        let told = said(text, "TEXT").concat();
        assert!(
            told.contains("its process runs, as rank ") && told.contains("on its host sees"),
            "rank {rank}: {text}"
        );
        named += u32::from(told.contains("the transport to rank "));
    }
    assert_eq!(named, 4, "{ends:?}");
}

/// How much later a host has an interface than its rank has started.
const LATE: Duration = Duration::from_secs(2);

/// A host that has only its loopback interface when its rank starts, as a pod may, gets another one soon. The rank waits
/// for that, whether it is rank 0, at which the others meet, or another one.
#[test]
fn a_rank_waits_for_the_interface_of_its_host() {
    for late in [1, 0] {
        let Some(hosts) = libfabric().and_then(|_| Hosts::new(2)) else { return };
        hosts.set_interface(late, false);
        let job = start_on(&hosts, &[0, 1], &[("EARLYBIRD_PROVIDER", ""), ("EARLYBIRD_DEADLINE", "20s")], JOINS);
        std::thread::sleep(LATE);
        hosts.set_interface(late, true);
        for (rank, (status, text)) in job.finish(Duration::from_secs(30)).iter().enumerate() {
            assert!(status.success() && said(text, "SUM") == ["3"], "host {late} is late, rank {rank}: {text}");
        }
    }
}

/// No other interface comes up: each rank is told which host has none, in time. Where ranks meet in a folder all are; at a
/// port the rank itself is, and the others miss it.
#[test]
fn a_host_without_an_interface_is_named() {
    let deadline = Duration::from_secs(4);
    let folder = common::folder::Folder::new();
    for meets_in_a_folder in [true, false] {
        let Some(hosts) = libfabric().and_then(|_| Hosts::new(2)) else { return };
        hosts.set_interface(1, false);
        let store = format!("file:{}", folder.file("meeting"));
        let port = format!("tcp:{}:29400", hosts.address(0));
        let store = if meets_in_a_folder { &store } else { &port };
        let seconds = format!("{}s", deadline.as_secs());
        let variables =
            [("EARLYBIRD_PROVIDER", ""), ("EARLYBIRD_DEADLINE", seconds.as_str()), ("EARLYBIRD_STORE", store.as_str())];
        let started = Instant::now();
        let ends = start_on(&hosts, &[0, 1], &variables, JOINS).finish(Duration::from_secs(20));
        let took = started.elapsed();
        assert!(took > deadline / 2 && took < deadline + Duration::from_secs(4), "took {took:?}");
        for (rank, (_, text)) in ends.iter().enumerate() {
            let told = said(text, "TEXT").concat();
            let expected = match (meets_in_a_folder, rank) {
                (true, _) => {
                    "libfabric not by rank 1 (on host1: it has tcp;ofi_rxm on lo only, which leads to no other host; "
                }
                (false, 0) => "rank 1 did not come within 4s",
                (false, _) => "(this rank has tcp;ofi_rxm on lo only, which leads to no other host)",
            };
            assert!(told.contains(expected), "rank {rank}: {text}");
        }
    }
}

/// The stalled rank. It is the home of no round before the fifth.
const STALLED: usize = 3;

/// Rounds that the others make without it.
const DEPTH: u32 = 3;

/// Elements of 16 MiB.
const ELEMENTS: usize = 2 << 20;

fn contribution(rank: u32, round: u64) -> u64 {
    u64::from(rank + 1) * 1000 + round
}

fn check(outcome: &Outcome<'_, u64>) {
    let round = outcome.round();
    let expected = outcome.cut().contributions().map(|entry| contribution(entry.rank, round - entry.age)).sum::<u64>();
    assert!(outcome.data().iter().all(|&x| x == expected), "round {round}: {:?}", outcome.cut());
}

/// Three of four ranks make rounds while the fourth is stopped, as many as it may be behind; then it continues.
fn go_on_or_be_stalled() {
    let (marks, patience) = (Marks::of_role(), Duration::from_secs(30));
    let world = World::from_env().unwrap();
    let me = world.rank();
    let sum = world.allreduce::<u64>(&[ELEMENTS]).fire(Fire::quorum(3)).grace(Grace::NONE).depth(DEPTH);
    let mut sum = sum.build().unwrap();
    assert_eq!(sum.path(), "segmented");
    world.barrier(patience).unwrap();
    marks.set(&format!("ready-{me}"));
    marks.wait("stalled");
    if me as usize == STALLED {
        sum.contribution().unwrap().fill(contribution(me, 1));
        sum.arrive().unwrap();
        let outcomes = sum.wait(patience).unwrap();
        assert!(outcomes.len() >= DEPTH as usize);
        outcomes.into_iter().for_each(|outcome| check(&outcome));
    } else {
        for round in 1..=u64::from(DEPTH) {
            sum.contribution().unwrap().fill(contribution(me, round));
            sum.arrive().unwrap();
            let outcomes = sum.wait(patience).unwrap();
            assert_eq!(outcomes.len(), 1);
            outcomes.into_iter().for_each(|outcome| check(&outcome));
        }
        // The ring is full of outcomes that the stalled rank has not released.
        sum.contribution().unwrap().fill(contribution(me, u64::from(DEPTH) + 1));
        sum.arrive().unwrap();
        let early = sum.wait(Duration::from_millis(200)).map(|outcomes| outcomes.len());
        assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
        marks.set(&format!("done-{me}"));
        sum.wait(patience).unwrap().into_iter().for_each(|outcome| check(&outcome));
    }
    sum.finish(patience).unwrap();
}

/// A rank reads nothing for a while, so messages to it have to wait; messages to the others do not.
#[test]
fn a_stalled_receiver_delays_no_other_rank() {
    let Some(hosts) = four_hosts() else { return };
    (0..4).for_each(|host| hosts.buffer_little(host));
    let marks = Marks::make();
    // Small segments make many writes.
    let parameters = format!("{}/parameters.toml", marks.folder());
    std::fs::write(&parameters, "[ofi.\"tcp;ofi_rxm\"]\nsegment = \"64K\"\n").unwrap();
    let variables = [("EARLYBIRD_SILENCE", "60s"), ("EARLYBIRD_HW_CONFIG", parameters.as_str())];
    let mut job = start_on(&hosts, &[0, 1, 2, 3], &variables, &format!("stalled {}", marks.folder()));
    (0..4).for_each(|rank| job.wait_for_mark(rank, (&marks, &format!("ready-{rank}"))));
    job.stop(STALLED);
    marks.set("stalled");
    (0..STALLED).for_each(|rank| job.wait_for_mark(rank, (&marks, &format!("done-{rank}"))));
    job.signal(STALLED, Signal::CONT);
    let ends = job.finish(Duration::from_secs(60));
    assert!(ends.iter().all(|(status, _)| status.success()), "{ends:?}");
}
