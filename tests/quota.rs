//! Ranks that get a part of a processor: programs of all kinds, one after the other, and none fails or waits for ever.
//!
//! A quota stops all ranks in the middle of whatever they do, for tens of milliseconds, ten times a second.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
#[path = "common/program.rs"]
mod program;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::groups::{Group, Limit};
use common::tier::is_deep;
use common::{Job, Way, libfabric, role};
use earlybird::{Config, Reduce, World};
use program::{Player, Program, Random};
use rand::{RngExt, SeedableRng};

/// Longer than any call takes at a quota of 10 %.
const PATIENCE: Duration = Duration::from_secs(40);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let role = role().unwrap();
    let [seconds, seed] = role.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let world = World::with(&Config { deadline: PATIENCE, ..Config::from_env().unwrap() }).unwrap();
    let (began, does, mut programs) = (Instant::now(), Mutex::default(), 0u32);
    let mut common = Random::seed_from_u64(seed);
    let own = Random::seed_from_u64(seed ^ (u64::from(world.rank()) + 1) << 40);
    let mut player = Player { random: own, hurries: 0, patience: PATIENCE, returned: &|| (), does: &does };
    loop {
        let mut goes_on = [u32::from(began.elapsed().as_secs() < seconds)];
        world.all_reduce(&mut goes_on, Reduce::Min, PATIENCE).unwrap();
        if goes_on == [0] {
            break;
        }
        let program = Program::drawn(&mut common, world.size());
        println!("{program:?}");
        player.hurries = program.hurries;
        player.play(&program, &world);
        programs += 1;
    }
    println!("PROGRAMS {programs}");
}

fn run(way: Way, ranks: u32, percent: u32, seconds: u64, seed: u64) {
    let Some(group) = Group::new(Limit::Processor(percent)) else { return };
    let job = Job::start(way, ranks, "rank", &format!("{seconds} {seed}"));
    job.pids().into_iter().for_each(|pid| group.hold(pid));
    let ends = job.finish(Duration::from_secs(seconds) + 3 * PATIENCE);
    let what = format!("{way:?}, {ranks} ranks, {percent} %, seed {seed}");
    for (rank, (status, text)) in ends.iter().enumerate() {
        assert!(status.success(), "{what}, rank {rank}: {status}\n{}", tail(text));
    }
    println!("{what}: {} programs", common::said(&ends[0].1, "PROGRAMS")[0]);
}

fn tail(text: &str) -> &str {
    let from = text.len().saturating_sub(3000);
    &text[(from..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(from)..]
}

/// Three short runs in the deep tier. The long tier, which TEST_LONG=1 chooses, has `long` runs of ten seconds.
fn runs(way: Way, long: u64) {
    if !is_deep() {
        return;
    }
    let (count, seconds) =
        if std::env::var_os("TEST_LONG").is_some_and(|value| value == "1") { (long, 10) } else { (3, 5) };
    for seed in 0..count {
        let ranks = Random::seed_from_u64(seed).random_range(3..=6);
        run(way, ranks, [10, 20, 40][seed as usize % 3], seconds, seed);
    }
}

#[test]
fn no_quota_lets_ranks_wait_for_ever_over_shared_memory() {
    runs(Way::Shm, 60);
}

#[test]
fn no_quota_lets_ranks_wait_for_ever_over_tcp() {
    if libfabric().is_some() {
        runs(Way::Ofi("tcp;ofi_rxm"), 20);
    }
}
