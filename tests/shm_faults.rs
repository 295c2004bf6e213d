//! Processes that die or freeze: everybody else gets an error that names them, nothing is ever
//! wrong, nothing is left behind.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

use common::{Job, role, said, shared_memory_files};
use earlybird::{Config, Error, Fire, Mover, World};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::Signal;

/// Within which everybody must notice.
const DEADLINE: Duration = Duration::from_secs(10);

/// Plays a rank that goes on until something fails, and says what failed; checks every sum.
#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let patience = Duration::from_millis(words[2].parse().unwrap());
    let error = match play(words[0].parse().unwrap(), words[1].parse().unwrap(), patience) {
        Err(error) => error,
        Ok(()) => return println!("\nENDED well"),
    };
    match &error {
        Error::PeerDied { peer, .. } => println!("\nDIED {peer}"),
        Error::Timeout { missing, .. } => println!("\nTIMEOUT {missing}"),
        other => println!("\nOTHER {other}"),
    }
    println!("TEXT {error}");
}

fn play(fire: Fire, mover: Mover, patience: Duration) -> Result<(), Error> {
    let world = World::from_env(&Config { deadline: DEADLINE, ..Config::default() })?;
    let mut sum = world.allreduce::<u64>(&[3000]).fire(fire).mover(mover).build()?;
    let started = Instant::now();
    let mut newest = 0;
    println!("\nSTARTED");
    while started.elapsed() < Duration::from_secs(60) {
        let mine = u64::from(world.rank() + 1) * 1000 + newest + 1;
        sum.contribution()?.fill(mine);
        sum.arrive()?;
        for outcome in sum.wait(patience)? {
            newest = outcome.round();
            let expected: u64 =
                outcome.cut().contributions().map(|entry| u64::from(entry.rank + 1) * 1000 + newest - entry.age).sum();
            if outcome.data().iter().any(|&x| x != expected) {
                println!("\nWRONG round {newest}");
            }
        }
    }
    sum.finish(patience)
}

/// One hundred times: a rank is killed at a random moment, from joining to full flight.
#[test]
fn a_killed_rank_is_named_by_everybody() {
    let before = shared_memory_files();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(9);
    for turn in 0..100 {
        let ranks = [2, 3, 5][turn % 3];
        let fire = ["all", "solo", "quorum=2"][turn / 3 % 3];
        let mover = ["cut", "tree"][turn / 9 % 2];
        let mut job = Job::start(ranks, "rank", &format!("{fire} {mover} 8000"));
        let victim = rng.random_range(0..ranks) as usize;
        std::thread::sleep(Duration::from_micros(rng.random_range(0..60_000)));
        let killed = Instant::now();
        job.ranks[victim].kill().unwrap();
        let ends = job.finish(Duration::from_secs(20));
        assert!(killed.elapsed() < DEADLINE + Duration::from_secs(5), "turn {turn}: took {:?}", killed.elapsed());
        for (rank, (_, text)) in ends.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            assert!(said(text, "WRONG").is_empty() && !text.contains("panicked"), "turn {turn}, rank {rank}: {text}");
            let joined = !said(text, "STARTED").is_empty();
            let named = said(text, "DIED") == [victim.to_string()]
                // Before the world stands there is nobody to watch: the meeting says who did not come.
                || (!joined && (said(text, "TEXT").concat().contains(&format!("rank {victim} "))
                    || said(text, "TEXT").concat().contains(&format!("rank {victim}:"))));
            assert!(named, "turn {turn} ({fire}, {mover}): rank {rank} of {ranks} does not name {victim}: {text}");
        }
    }
    assert_eq!(shared_memory_files(), before, "something was left behind");
}

/// Frozen for less than the others' patience: late success. For more: an error that names it.
#[test]
fn a_frozen_rank_is_late_or_named() {
    for (fire, patience, frozen, succeeds) in [
        ("all cut", 8000, 500, true),
        ("all cut", 300, 2000, false),
        ("solo cut", 8000, 500, true),
        ("quorum=3 cut", 300, 2000, false),
        ("all tree", 300, 2000, false),
        ("quorum=3 tree", 300, 2000, false),
    ] {
        let mut job = Job::start(3, "rank", &format!("{fire} {patience}"));
        std::thread::sleep(Duration::from_millis(300));
        job.signal(1, Signal::STOP);
        std::thread::sleep(Duration::from_millis(frozen));
        job.signal(1, Signal::CONT);
        std::thread::sleep(Duration::from_millis(200));
        let alive: Vec<bool> = job.ranks.iter_mut().map(|rank| rank.try_wait().unwrap().is_none()).collect();
        if succeeds {
            assert_eq!(alive, [true; 3], "{fire}: all go on");
        }
        job.ranks.iter_mut().for_each(|rank| rank.kill().unwrap());
        let ends = job.finish(Duration::from_secs(20));
        for (rank, (_, text)) in ends.iter().enumerate() {
            assert!(said(text, "WRONG").is_empty() && !text.contains("panicked"), "{fire}, rank {rank}: {text}");
            if !succeeds && rank != 1 {
                // The first to lose patience says whom it waited for, and the others hear of it.
                assert!(said(text, "TEXT").concat().contains("waiting for rank 1"), "{fire}, rank {rank}: {text}");
            }
        }
    }
}
