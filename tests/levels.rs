//! Worlds of several hosts in two levels: ranks of a host share memory, and their agents go to the network. Hosts are
//! network namespaces.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

use common::hosts::Hosts;
use common::marks::Marks;
use common::tier::by_tier;
use common::{libfabric, said};
use earlybird::{Dtype, Error, Reduce, World};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let Some(role) = common::role() else { return };
    let world = World::from_env().unwrap();
    let joined = world.traffic();
    match &role[..] {
        "differs" => {
            let means = world.hosts()[1].contains(&world.rank());
            let reduce = if means { Reduce::Mean } else { Reduce::Sum };
            let error = world.all_reduce(&mut [1f32], reduce, DEADLINE).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. } | Error::Aborted { .. }), "{error}");
            println!("\nTEXT {error}");
            return;
        }
        "collectives" => {
            let mut nothing: [u8; 0] = [];
            world.all_reduce_bytes(Dtype::F16, &mut nothing, Reduce::Sum, DEADLINE).unwrap();
            world.all_reduce_bytes(Dtype::F32, &mut nothing, Reduce::Mean, DEADLINE).unwrap();
            common::collectives::play(&world);
            common::collectives::symmetric(&world, false);
        }
        "counted" => {
            let mut data = [world.rank()];
            world.all_reduce(&mut data, Reduce::Sum, DEADLINE).unwrap();
            println!("\nJOINED {}", joined.messages);
            println!("\nSENT {}", world.traffic().messages);
        }
        sums if sums.starts_with("sums ") => loop {
            let mut data = vec![1u32; 1000];
            match world.all_reduce(&mut data, Reduce::Sum, DEADLINE) {
                Ok(()) => assert!(data.iter().all(|&sum| sum == world.size())),
                Err(error) => {
                    println!("\nTEXT {error}");
                    return;
                }
            }
            Marks::of_role().set(&format!("summed-{}", world.rank()));
        },
        "misses one" if world.rank() == 3 => std::thread::sleep(Duration::from_secs(3)),
        "misses one" => {
            let started = Instant::now();
            println!("\nTEXT {}", world.barrier(Duration::from_secs(1)).unwrap_err());
            assert!(started.elapsed() < Duration::from_secs(3));
        }
        other => panic!("{other}"),
    }
    if role != "misses one" {
        world.close(DEADLINE).unwrap();
    }
}

fn hosts(count: usize) -> Option<Hosts> {
    libfabric().and_then(|_| Hosts::new(count))
}

/// As many ranks on each host, and unequally many, in a row and not.
const PLACES: [&[usize]; 3] = [&[0, 0, 1, 1], &[0, 1, 0, 2, 1, 0], &[0, 0, 0, 1, 2, 2, 2, 2, 2]];

#[test]
fn collectives_give_the_same_in_two_levels() {
    for places in PLACES {
        let Some(hosts) = hosts(1 + places.iter().max().unwrap()) else { return };
        for (rank, (status, text)) in hosts.job(places, &[], "collectives").finish(DEADLINE).iter().enumerate() {
            assert!(status.success(), "{places:?}, rank {rank}: {text}");
        }
    }
}

/// The calls of the ranks of each host are alike, and what agents exchange is, too.
#[test]
fn hosts_that_reduce_differently_are_told_so() {
    let Some(hosts) = hosts(2) else { return };
    let ends = hosts.job(&[0, 0, 1, 1], &[], "differs").finish(DEADLINE);
    let named = |(_, text): &(_, String)| said(text, "TEXT").concat().contains("all_reduce (mean of f32)");
    assert!(ends.iter().all(|(status, _)| status.success()) && ends.iter().any(named), "{ends:?}");
}

#[test]
fn agents_send_little_and_others_nothing() {
    for places in PLACES {
        let count = 1 + places.iter().max().unwrap();
        let Some(hosts) = hosts(count) else { return };
        for (rank, (status, text)) in hosts.job(places, &[], "counted").finish(DEADLINE).iter().enumerate() {
            assert!(status.success(), "{places:?}, rank {rank}: {text}");
            let number = |key: &str| said(text, key).concat().parse::<usize>().unwrap();
            let is_agent = places[..rank].iter().all(|place| *place != places[rank]);
            println!("{places:?}, rank {rank}, agent {is_agent}: {} {}", number("JOINED"), number("SENT"));
            assert_eq!(number("SENT") > 0, is_agent, "{places:?}, rank {rank}");
        }
    }
}

/// An agent or another rank, on the host of rank 0 or elsewhere: each that is left names it, whatever host it is on.
#[test]
fn a_rank_that_is_killed_is_named_on_every_host() {
    let places = [0, 0, 1, 1, 2];
    // The agent of the second host, and another rank of it.
    for victim in by_tier(2..4, 0..places.len()) {
        let Some(hosts) = hosts(3) else { return };
        let marks = Marks::make();
        let mut job = hosts.job(&places, &[], &format!("sums {}", marks.folder()));
        for rank in 0..places.len() {
            job.wait_for_mark(rank, (&marks, &format!("summed-{rank}")));
        }
        let killed = Instant::now();
        job.ranks[victim].kill().unwrap();
        job.wait_for_end(victim);
        let ends = job.finish(DEADLINE);
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(25), "{victim} was killed, took {took:?}: {ends:?}");
        for (rank, (_, text)) in ends.iter().enumerate().filter(|&(rank, _)| rank != victim) {
            let told = said(text, "TEXT").concat();
            let died = format!("rank {victim} on {} died", Hosts::host_name(places[victim]));
            assert!(told.contains(&died), "{victim} was killed, rank {rank}: {text}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_on_every_host() {
    let Some(hosts) = hosts(2) else { return };
    let ends = hosts.job(&[0, 0, 1, 1], &[], "misses one").finish(DEADLINE);
    for (rank, (status, text)) in ends.iter().enumerate().take(3) {
        assert!(
            status.success() && said(text, "TEXT").concat().contains("waiting for rank 3 on host1"),
            "rank {rank}: {text}"
        );
    }
}
