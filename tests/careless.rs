//! A rank that writes where it must not, in the memory that ranks share, can spoil the others' results and end their job. It
//! makes no rank break memory, panic or hang: each call ends by its deadline.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::tier::by_tier;
use common::{Job, Way, role};
use earlybird::{Buckets, Config, Executor, Fire, Group, Reduce, Result, World};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{SeekFrom, seek};

const RANKS: u32 = 3;

/// Of each call.
const DEADLINE: Duration = Duration::from_secs(1);

/// Of the world: of joining, and of making collectives.
const SETTING_UP: Duration = Duration::from_secs(20);

/// How much later a call may end on a busy machine.
const LATE: Duration = Duration::from_secs(10);

/// The memory file of this process's world.
fn memory() -> File {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_memory = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:earlybird"))
    };
    let path = files.into_iter().find(is_memory).expect("a world in shared memory");
    File::options().read(true).write(true).open(path).unwrap()
}

/// The parts of a file that are there.
fn parts(file: &File) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = 0;
    while let Ok(from) = seek(file, SeekFrom::Data(at)) {
        let to = seek(file, SeekFrom::Hole(from)).unwrap();
        // A rank may give a part back between the two.
        if from < to {
            parts.push((from, to));
        }
        at = to;
    }
    parts
}

/// Changes words of the memory, at all places alike: half of them at the beginning, where all that ranks agree on lies.
fn scribble(seed: u64, goes_on: &AtomicBool) {
    let (file, mut random) = (memory(), StdRng::seed_from_u64(seed));
    while goes_on.load(Ordering::Relaxed) {
        let parts = parts(&file);
        for _ in 0..20 {
            let (from, to) = if random.random() { parts[0] } else { parts[random.random_range(0..parts.len())] };
            let at = random.random_range(from / 8..to / 8) * 8;
            let mut word = [0; 8];
            file.read_exact_at(&mut word, at).unwrap();
            let now = u64::from_le_bytes(word);
            let new = match random.random_range(0..5) {
                0 => random.random(),
                1 => random.random_range(0..4),
                2 => u64::MAX,
                3 => now ^ 1 << random.random_range(0..64),
                _ => now.wrapping_add(random.random_range(0..3)).wrapping_sub(1),
            };
            file.write_all_at(&new.to_le_bytes(), at).unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..3000)));
    }
}

fn in_time<R>(what: &str, call: impl FnOnce() -> Result<R>) -> Result<R> {
    ends_by(DEADLINE, what, call)
}

fn ends_by<R>(deadline: Duration, what: &str, call: impl FnOnce() -> Result<R>) -> Result<R> {
    let start = Instant::now();
    let result = call();
    assert!(start.elapsed() < deadline + LATE, "{what} took {:?}", start.elapsed());
    result
}

/// Ends the scribbling, also if this thread panics.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Makes collectives of every kind until one fails, for a moment at most. Says when the first ones are built.
fn work(world: &World, executor: Executor, are_built: &AtomicBool) -> Result<()> {
    let until = Instant::now() + Duration::from_millis(700);
    while Instant::now() < until {
        let make = |fire| move || world.allreduce::<u64>(&[100, 7]).fire(fire).executor(executor).build();
        let mut partial = ends_by(SETTING_UP, "build", make(Fire::SOLO))?;
        let mut all = ends_by(SETTING_UP, "build", make(Fire::ALL))?;
        let of_arrivals = world.allreduce::<f64>(&[40]).group(Group::Arrivals(RANKS)).memory(&[0.0; 40]);
        let mut arrivals = ends_by(SETTING_UP, "build of groups", || of_arrivals.executor(executor).build())?;
        let of_all = world.allreduce::<f64>(&[30, 60]).executor(executor).buckets(Buckets::Measured);
        let mut buckets = ends_by(SETTING_UP, "build of buckets", || of_all.build())?;
        are_built.store(true, Ordering::Relaxed);
        for _ in 0..20 {
            for sum in [&mut partial, &mut all] {
                sum.contribution()?.fill(1);
                sum.arrive()?;
                in_time("wait", || sum.wait(DEADLINE).map(drop))?;
            }
            arrivals.contribution()?.fill(1.0);
            arrivals.arrive()?;
            in_time("wait for a group", || arrivals.wait(DEADLINE).map(drop))?;
            let mut data = [1u32; 3000];
            in_time("all_reduce", || world.all_reduce(&mut data, Reduce::Sum, DEADLINE))?;
            in_time("barrier", || world.barrier(DEADLINE))?;
            let (next, before) = ((world.rank() + 1) % RANKS, (world.rank() + RANKS - 1) % RANKS);
            for tag in 0..2 {
                in_time("send", || world.send(&data[..20], next, tag, DEADLINE))?;
            }
            in_time("receive", || world.receive(&mut data[..20], before, 1, DEADLINE))?;
            in_time("receive_any", || world.receive_any(&mut data[..20], 0, DEADLINE).map(drop))?;
            ends_by(SETTING_UP, "begin", || buckets.begin())?;
            for tensor in 0..2 {
                buckets.tensor(tensor)?.fill(1.0);
                buckets.filled(tensor)?;
            }
            in_time("wait for buckets", || buckets.wait(DEADLINE).map(drop))?;
        }
        in_time("finish of buckets", || buckets.finish(DEADLINE))?;
        for sum in [&mut partial, &mut all] {
            in_time("finish", || sum.finish(DEADLINE))?;
        }
        in_time("finish of groups", || arrivals.finish(DEADLINE))?;
    }
    Ok(())
}

#[test]
#[ignore = "played by the processes that the other test starts"]
fn rank() {
    let seed: u64 = role().unwrap().parse().unwrap();
    let config = Config { deadline: SETTING_UP, ..Config::from_env().unwrap() };
    // Rank 0 may have joined a little earlier, and scribbles already.
    let Ok(world) = World::with(&config) else { return };
    let executor = [Executor::Caller, Executor::Thread, Executor::Peer][seed as usize % 3];
    // With some seeds nothing is written before there are collectives: it would spoil how ranks meet for these.
    let (goes_on, begins) = (AtomicBool::new(true), AtomicBool::new(seed.is_multiple_of(4)));
    std::thread::scope(|scope| {
        if world.rank() == 0 {
            scope.spawn(|| {
                while !begins.load(Ordering::Relaxed) && goes_on.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                scribble(seed, &goes_on);
            });
        }
        let _stops = Stops(&goes_on);
        println!("{:?}", work(&world, executor, &begins));
    });
}

#[test]
fn a_careless_rank_makes_no_rank_break_memory_panic_or_hang() {
    let first: u64 = std::env::var("TEST_SEED").map_or(0, |seed| seed.parse().unwrap());
    let seeds: Vec<u64> = (first..first + by_tier(12, 500)).collect();
    let mut failures = Vec::new();
    for some in seeds.chunks(3) {
        let check = |seed: &u64| {
            let job = Job::start(Way::Shm, RANKS, "rank", &seed.to_string());
            let ends = job.finish(Duration::from_secs(60)).into_iter().enumerate();
            let failed = ends.filter(|(_, (status, _))| !status.success());
            failed.map(|(rank, (status, text))| format!("TEST_SEED={seed}: rank {rank}: {status}: {text}")).collect()
        };
        std::thread::scope(|scope| {
            let checks: Vec<_> = some.iter().map(|seed| scope.spawn(move || -> Vec<String> { check(seed) })).collect();
            failures.extend(checks.into_iter().flat_map(|check| check.join().unwrap()));
        });
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
