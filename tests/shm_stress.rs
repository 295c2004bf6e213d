//! Real processes over shared memory: random delays, uneven step counts, integers exact, floats the
//! same bits everywhere.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{Job, role, said, shared_memory_files};
use earlybird::{Config, Executor, Fire, Mover, World};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const DEADLINE: Duration = Duration::from_secs(120);

/// What rank `rank` contributes for round `target`: known to all, so that all can check.
fn value(rank: u32, target: u64, index: usize) -> u64 {
    (u64::from(rank) << 32 | target).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index as u64)
}

fn as_float(bits: u64) -> f32 {
    (bits >> 40) as f32 / 1000.0
}

/// `FIRE MOVER EXECUTOR LENGTH STEPS`: plays one rank of a stress run; prints digests of what it received.
#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ');
    let fire: Fire = words.next().unwrap().parse().unwrap();
    let mover: Mover = words.next().unwrap().parse().unwrap();
    let executor: Executor = words.next().unwrap().parse().unwrap();
    let length: usize = words.next().unwrap().parse().unwrap();
    let steps: u64 = words.next().unwrap().parse().unwrap();
    let world = World::from_env(&Config { deadline: DEADLINE, ..Config::default() }).unwrap();
    let me = world.rank();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(u64::from(me));
    let mut sums = world.allreduce::<u64>(&[length]).fire(fire).mover(mover).executor(executor).build().unwrap();
    // Uneven: the last rank makes about half as many steps as the first.
    let steps = steps - steps / 2 * u64::from(me) / u64::from(world.size());
    let (mut newest, mut newest_float) = (0, 0);
    let mut digest = 0u64;
    let mut digests = Vec::new();
    let mut entered = 0;
    let pause = |rng: &mut Xoshiro256PlusPlus| {
        if rng.random_range(0..8) == 0 {
            std::thread::sleep(Duration::from_micros(rng.random_range(1..400)));
        }
    };
    for _ in 0..steps {
        pause(&mut rng);
        for (index, x) in sums.contribution().unwrap().iter_mut().enumerate() {
            *x = value(me, newest + 1, index);
        }
        sums.arrive().unwrap();
        for outcome in sums.wait(DEADLINE).unwrap() {
            newest = outcome.round();
            let cut = outcome.cut();
            for (index, &x) in outcome.data().iter().enumerate() {
                let expected = cut
                    .contributions()
                    .fold(0u64, |sum, entry| sum.wrapping_add(value(entry.rank, newest - entry.age, index)));
                assert_eq!(x, expected, "round {newest}, element {index}, {cut:?}");
            }
            entered += cut.contributions().filter(|entry| entry.rank == me).count() as u64;
        }
    }
    // What was carried last has not been seen to enter; it does before `finish` returns.
    assert!(steps - entered <= 1, "rank {me} made {steps} contributions and saw {entered} of them");
    sums.finish(DEADLINE).unwrap();

    let mut floats = world.allreduce::<f32>(&[length]).fire(fire).mover(mover).executor(executor).build().unwrap();
    for _ in 0..steps {
        pause(&mut rng);
        for (index, x) in floats.contribution().unwrap().iter_mut().enumerate() {
            *x = as_float(value(me, newest_float + 1, index));
        }
        floats.arrive().unwrap();
        for outcome in floats.wait(DEADLINE).unwrap() {
            newest_float = outcome.round();
            for x in outcome.data() {
                digest = digest.rotate_left(5) ^ u64::from(x.to_bits());
            }
            // Every receiver of a round received all rounds before it: the digest is of all.
            digests.push(digest);
        }
    }
    floats.finish(DEADLINE).unwrap();
    println!(
        "\nDIGESTS {}",
        digests.iter().step_by(7).map(|digest| format!("{digest:x}")).collect::<Vec<_>>().join(",")
    );
}

/// Returns digests of all rounds, as the rank that saw the most of them has them.
fn stress(ranks: u32, fire: &str, (mover, executor): (Mover, Executor), length: usize, steps: u64) -> Vec<String> {
    let before = shared_memory_files();
    let ends = Job::start(ranks, "rank", &format!("{fire} {mover} {executor} {length} {steps}")).finish(DEADLINE);
    for (rank, (status, text)) in ends.iter().enumerate() {
        assert!(status.success(), "{fire}, {ranks} ranks: rank {rank}: {text}");
    }
    let digests: Vec<Vec<String>> =
        ends.iter().map(|(_, text)| said(text, "DIGESTS").concat().split(',').map(str::to_owned).collect()).collect();
    let longest = digests.iter().max_by_key(|list| list.len()).unwrap();
    for (rank, list) in digests.iter().enumerate() {
        let same = list.iter().zip(longest).all(|(a, b)| a == b);
        assert!(same && !list.is_empty(), "{fire}, {ranks} ranks: rank {rank} saw other bits");
    }
    assert_eq!(shared_memory_files(), before, "something was left behind");
    longest.clone()
}

const CUT: (Mover, Executor) = (Mover::Cut, Executor::Caller);
const EXECUTORS: [Executor; 3] = [Executor::Caller, Executor::Thread, Executor::Peer];

#[test]
fn thirty_two_processes_make_two_thousand_rounds() {
    for fire in ["all", "solo", "quorum=16"] {
        stress(32, fire, CUT, 24, 2000);
        stress(32, fire, (Mover::Tree, Executor::Peer), 24, 2000);
    }
}

#[test]
fn every_executor() {
    for executor in EXECUTORS {
        for fire in ["solo", "quorum=4"] {
            stress(8, fire, (Mover::Tree, executor), 24, 500);
            stress(8, fire, (Mover::Tree, executor), 20_000, 40);
            stress(8, fire, (Mover::Cut, executor), 20_000, 40);
        }
    }
}

/// The same program on the same contributions gives the same bits, whoever runs it.
#[test]
fn executors_agree_to_the_bit() {
    for (ranks, length, steps) in [(8, 24, 500), (7, 24, 300), (8, 20_000, 40)] {
        // Synchronous: which contributions a round has does not depend on time.
        let run = |executor| stress(ranks, "all", (Mover::Tree, executor), length, steps);
        let digests = EXECUTORS.map(run);
        assert!(!digests[0].is_empty() && digests.windows(2).all(|pair| pair[0] == pair[1]), "{ranks} ranks, {length}");
    }
}

#[test]
fn odd_worlds() {
    for ranks in [3, 5, 6, 7, 33] {
        for fire in ["all", "solo", "quorum=3"] {
            stress(ranks, fire, CUT, 24, 300);
            stress(ranks, fire, (Mover::Tree, Executor::Peer), 24, 300);
        }
    }
}

#[test]
fn large_data_in_segments() {
    for fire in ["all", "solo", "quorum=2"] {
        stress(3, fire, CUT, 40_000, 60);
        stress(3, fire, (Mover::Tree, Executor::Caller), 40_000, 60);
    }
    stress(33, "quorum=20", CUT, 40_000, 12);
}
