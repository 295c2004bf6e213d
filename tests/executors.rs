//! Rounds that others carry out: for ranks that sleep, that compute, and that die with a claimed
//! operation.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use common::worlds::ways;
use common::{Job, Way, absence, cpu_time, role, said};
#[cfg(earlybird_faults)]
use common::{left_behind, shared_memory_files};
use earlybird::{Config, Executor, Fire, Grace, Mover, World};

const DEADLINE: Duration = Duration::from_secs(60);

/// Rounds that the others make while a rank sleeps.
const ROUNDS: u64 = 1000;

/// Elements of a KiB.
const LENGTH: usize = 128;

/// `MOVER EXECUTOR ROUNDS PATH`: rank 0 sleeps on a socket until the others have made their rounds.
#[test]
#[ignore = "played by the processes that the other tests start"]
fn sleeper() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [mover, executor, rounds, path] = words[..] else { panic!("{role}") };
    let rounds: u64 = rounds.parse().unwrap();
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let sum = world.allreduce::<u64>(&[LENGTH]).fire(Fire::SOLO).grace(Grace::NONE).depth(1024);
    let mut sum = sum.mover(mover.parse().unwrap()).executor(executor.parse().unwrap()).build().unwrap();
    let me = world.rank();
    let bell = (me == 0).then(|| UnixListener::bind(path).unwrap());
    world.barrier(DEADLINE).unwrap();
    if let Some(bell) = bell {
        let before = (sum.stats().polls, cpu_time());
        let mut woken = bell.accept().unwrap().0;
        woken.read_to_string(&mut String::new()).unwrap();
        let after = (sum.stats().polls, cpu_time());
        println!("\nPOLLS {}", after.0 - before.0);
        println!("CPU {}", (after.1 - before.1).as_nanos());
    }
    let first = absence::rounds(&mut sum, (me, 0), rounds, DEADLINE);
    if me == 0 {
        println!("\nFIRST {first}");
    }
    if me == 1 {
        drop(UnixStream::connect(path).unwrap());
    }
    sum.finish(DEADLINE).unwrap();
}

#[test]
fn a_sleeping_rank_takes_no_part_and_misses_nothing() {
    for way in ways() {
        // Over a network a rank's helper thread answers for it; sockets take a while.
        let (movers, executor, rounds) = match way {
            Way::Shm => (&["tree", "cut"][..], "peer", ROUNDS),
            Way::Ofi(_) | Way::Verbs => (&["cut"][..], "caller", ROUNDS / 10),
        };
        for mover in movers {
            sleeps(way, mover, executor, rounds);
        }
    }
}

fn sleeps(way: Way, mover: &str, executor: &str, rounds: u64) {
    let path = std::env::temp_dir().join(format!("earlybird-test-{}-{mover}", std::process::id()));
    let role = format!("{mover} {executor} {rounds} {}", path.display());
    let ends = Job::start(way, 4, "sleeper", &role).finish(DEADLINE);
    std::fs::remove_file(&path).unwrap();
    for (rank, (status, text)) in ends.iter().enumerate() {
        assert!(status.success(), "{way:?}, {mover}: rank {rank}: {text}");
    }
    let number = |key: &str| said(&ends[0].1, key)[0].parse::<u64>().unwrap();
    let (polls, used) = (number("POLLS"), number("CPU"));
    println!("{way:?}, {mover}: {polls} polls and {used} ns of processor time in {rounds} rounds");
    assert_eq!(polls, 0, "{way:?}, {mover}: the sleeper called the library");
    assert!(way != Way::Shm || used < 1_000_000, "{mover}: the sleeper used {used} ns of processor time");
    let first = number("FIRST");
    assert!(first >= rounds, "{way:?}, {mover}: it received only {first} rounds at once");
}

/// With a helper thread an arrival completes while its rank computes; with the peer executor it is
/// complete when the last `arrive` returns.
#[test]
fn rounds_complete_while_all_ranks_compute() {
    for mover in [Mover::Tree, Mover::Cut] {
        for (executor, length) in [(Executor::Thread, 100_000), (Executor::Thread, 10), (Executor::Peer, 100_000)] {
            let worlds = World::in_this_process(3, &Config::default()).unwrap();
            std::thread::scope(|scope| {
                for world in &worlds {
                    scope.spawn(move || {
                        let sum = world.allreduce::<u64>(&[length]).fire(Fire::quorum(3)).mover(mover);
                        let mut sum = sum.executor(executor).build().unwrap();
                        for round in 1..=5 {
                            sum.contribution().unwrap().fill(round);
                            sum.arrive().unwrap();
                            world.barrier(DEADLINE).unwrap();
                            // All ranks have arrived, and none waits. Checks from outside whether the round completes.
                            let until = Instant::now() + DEADLINE;
                            while !sum.is_complete().unwrap() {
                                assert!(Instant::now() < until, "{mover} {executor}: round {round} does not complete");
                                std::thread::sleep(Duration::from_micros(200));
                            }
                            world.barrier(DEADLINE).unwrap();
                            let before = sum.stats();
                            let outcomes = sum.try_wait().unwrap().expect("complete");
                            assert!(outcomes.newest().iter().all(|&x| x == 3 * round));
                            drop(outcomes);
                            let after = sum.stats();
                            let work = |stats: earlybird::collective::Stats| (stats.segments, stats.operations);
                            assert_eq!(work(after), work(before), "{mover} {executor}: test found work to do");
                        }
                        sum.finish(DEADLINE).unwrap();
                    });
                }
            });
        }
    }
}

/// Threads of this process with a name.
fn threads_named(name: &str) -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

/// One thread completes what was handed in to all collectives of a world while their callers compute, whichever of them
/// ends before, and ends with the world.
#[test]
fn one_thread_serves_all_collectives_of_a_world() {
    const RANKS: u32 = 5;
    // No world of another test in this process has that many ranks.
    const NAME: &str = "earlybird 4";
    let worlds = World::in_this_process(RANKS, &Config::default()).unwrap();
    std::thread::scope(|scope| {
        for world in worlds {
            scope.spawn(move || {
                let build = |index: usize| {
                    let sum = world.allreduce::<u64>(&[[10, 100_000][index % 2]]).fire(Fire::quorum(RANKS));
                    sum.mover([Mover::Tree, Mover::Cut][index / 2 % 2]).executor(Executor::Thread).build().unwrap()
                };
                let mut sums: Vec<_> = (0..6).map(build).collect();
                for round in 1..=5 {
                    for sum in &mut sums {
                        sum.contribution().unwrap().fill(round);
                        sum.arrive().unwrap();
                    }
                    world.barrier(DEADLINE).unwrap();
                    let until = Instant::now() + DEADLINE;
                    for (index, sum) in sums.iter().enumerate() {
                        while !sum.is_complete().unwrap() {
                            assert!(Instant::now() < until, "collective {index}, round {round} does not complete");
                            std::thread::sleep(Duration::from_micros(200));
                        }
                    }
                    assert_eq!(threads_named(NAME), 1, "round {round}");
                    world.barrier(DEADLINE).unwrap();
                    for sum in &mut sums {
                        assert!(sum.wait(DEADLINE).unwrap().newest().iter().all(|&x| x == u64::from(RANKS) * round));
                    }
                    if round > 2 {
                        sums.remove(0).finish(DEADLINE).unwrap();
                    }
                }
                sums.iter_mut().for_each(|sum| sum.finish(DEADLINE).unwrap());
            });
        }
    });
    let until = Instant::now() + DEADLINE;
    while threads_named(NAME) > 0 {
        assert!(Instant::now() < until, "it does not end with its world");
        std::thread::yield_now();
    }
}

#[cfg(earlybird_faults)]
mod crashes {
    use super::*;
    use common::absence::value;
    use earlybird::Error;
    use earlybird::fault::Crash;

    /// `FIRE EXECUTOR LENGTH VICTIM PLACE AFTER`: makes rounds until a rank is dead.
    #[test]
    #[ignore = "played by the processes that the other tests start"]
    fn mortal() {
        let Some(role) = role() else { return };
        let words: Vec<&str> = role.split(' ').collect();
        let world = World::with(&Config { deadline: DEADLINE, ..Config::default() }).unwrap();
        let length: usize = words[2].parse().unwrap();
        let mut sum = world.allreduce::<u64>(&[length]).fire(words[0].parse().unwrap()).mover(Mover::Tree);
        sum = sum.executor(words[1].parse().unwrap());
        if words[3].parse() == Ok(world.rank()) {
            sum = sum.crash(Crash::EVERY[words[4].parse::<usize>().unwrap()], words[5].parse().unwrap());
        }
        let mut sum = sum.build().unwrap();
        let me = world.rank();
        let mut newest = 0;
        let mut play = || -> Result<(), Error> {
            loop {
                sum.contribution()?.fill(value(me, newest + 1));
                sum.arrive()?;
                for outcome in sum.wait(DEADLINE)? {
                    newest = outcome.round();
                    let parts = outcome.cut().contributions();
                    let expected =
                        parts.fold(0u64, |sum, entry| sum.wrapping_add(value(entry.rank, newest - entry.age)));
                    if outcome.data().iter().any(|&x| x != expected) {
                        println!("\nWRONG round {newest}: {:?}", outcome.cut());
                    }
                }
            }
        };
        match play() {
            Err(Error::PeerDied { peer, .. }) => println!("\nDIED {peer}"),
            other => println!("\nOTHER {other:?}"),
        }
        println!("\nINHERITED {}", sum.stats().inherited);
    }

    /// A rank is killed with an operation that is claimed, half done, or half signalled. The others
    /// complete the round or fail by name; no result is wrong, no rank hangs.
    #[test]
    fn others_complete_the_operations_of_a_killed_rank() {
        let (before, mut pids) = (shared_memory_files(), Vec::new());
        let mut inherited = [0; 3];
        for turn in 0..54u64 {
            let fire = ["solo", "quorum=2", "all"][turn as usize % 3];
            let place = turn as usize / 3 % 3;
            let executor = EXECUTORS[turn as usize / 9 % 3];
            let length = [64, 30_000][turn as usize / 27 % 2];
            let ranks = 3 + (turn % 2) as u32;
            let victim = (turn % u64::from(ranks)) as usize;
            let what = format!("{fire} {executor} {length} {victim} {place} {}", turn * 7 % 50);
            let job = Job::start(Way::Shm, ranks, "crashes::mortal", &what);
            pids.extend(job.pids());
            let ends = job.finish(Duration::from_secs(20));
            for (rank, (_, text)) in ends.iter().enumerate().filter(|(rank, _)| *rank != victim) {
                assert!(said(text, "WRONG").is_empty() && !text.contains("panicked"), "{what}: rank {rank}: {text}");
                assert_eq!(said(text, "DIED"), [victim.to_string()], "{what}: rank {rank}: {text}");
                inherited[place] += said(text, "INHERITED")[0].parse::<u64>().unwrap();
            }
        }
        println!("operations taken over: {inherited:?} after {:?}", Crash::EVERY);
        assert!(inherited.iter().all(|&count| count > 0), "no operation was ever taken over: {inherited:?}");
        // Ranks of other tests come and go meanwhile.
        let left = left_behind(&before, &pids);
        assert!(left.is_empty(), "something was left behind: {left:?}");
    }

    const EXECUTORS: [Executor; 3] = [Executor::Caller, Executor::Peer, Executor::Thread];
}
