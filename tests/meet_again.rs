//! A job makes one world after the other, and has several at once.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use common::tier::by_tier;
use common::{Job, Way, libfabric, role, start, unique};
use earlybird::{Config, Reduce, World};

const DEADLINE: Duration = Duration::from_secs(60);

const RANKS: u32 = 6;

/// Two worlds are made with nothing in between, so that a rank comes to the second meeting while others may still be in the
/// first one.
#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let count: u32 = role().unwrap().parse().unwrap();
    let config = Config { deadline: DEADLINE, ..Config::from_env().unwrap() };
    for turn in 0..count / 2 {
        let make =
            |which| World::with(&config).unwrap_or_else(|error| panic!("the {which} world of turn {turn}: {error}"));
        let worlds = ["first", "second"].map(make);
        for world in worlds {
            let mut sum = [turn * world.rank()];
            world.all_reduce(&mut sum, Reduce::Sum, DEADLINE).unwrap();
            assert_eq!(sum, [turn * (0..RANKS).sum::<u32>()]);
        }
    }
}

fn run(way: Way, store: &str) {
    let count = by_tier(20, 200).to_string();
    let begin = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(way.variables()).env("EARLYBIRD_STORE", store);
        start(&mut command, (rank, RANKS), "rank", &count)
    };
    let job = Job { ranks: (0..RANKS).map(begin).collect() };
    for (rank, (status, text)) in job.finish(Duration::from_secs(300)).into_iter().enumerate() {
        assert!(status.success(), "rank {rank}: {status}\n{text}");
    }
}

#[test]
fn worlds_of_one_job_over_shared_memory() {
    run(Way::Shm, &format!("unix:{}", unique()));
}

#[test]
fn worlds_of_one_job_over_tcp() {
    if libfabric().is_some() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        run(Way::Ofi("tcp;ofi_rxm"), &format!("tcp:{free}"));
    }
}
