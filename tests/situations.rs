//! Situations in which libraries of this kind have failed, as their users tell in public. They held here, and are to hold.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::time::Duration;

use common::hosts::Hosts;
use common::tier::by_tier;
use common::worlds::everywhere;
use common::{Job, PROVIDERS, Way, libfabric, role};
use earlybird::{Config, Element, Fire, Grace, Reduce, World};

const DEADLINE: Duration = Duration::from_secs(60);

/// Values at which reductions of floats differ, by their bits.
const SPECIAL: [u32; 8] = [
    0x8000_0000, // -0
    0x0000_0000, // 0
    0x7FC0_0001, // NaN
    0xFF80_0000, // -inf
    0x7F80_0000, // inf
    0x0000_0001, // the least above 0
    0x7F7F_FFFF, // the greatest
    0xBF80_0000, // -1
];

/// Ranks of a world. Each triple of special values comes together somewhere.
const RANKS: u32 = 3;

fn special(rank: u32) -> Vec<f32> {
    let of = |index: usize| f32::from_bits(SPECIAL[index / SPECIAL.len().pow(rank) % SPECIAL.len()]);
    (0..SPECIAL.len().pow(RANKS)).map(of).collect()
}

/// What IEEE 754 says of a sum in the order of ranks. A NaN's payload is not promised.
fn check_sums(sums: &[f32]) {
    let given: Vec<Vec<f32>> = (0..RANKS).map(special).collect();
    for (index, &sum) in sums.iter().enumerate() {
        let exact = given[0][index] + given[1][index] + given[2][index];
        let same = exact.to_bits() == sum.to_bits() || (exact.is_nan() && sum.is_nan());
        assert!(same, "{index}: {sum:?} instead of {exact:?}");
    }
}

fn all_have_the_same_bits<T: Element>(world: &World, data: &[T]) {
    let mine: &[u8] = bytemuck::cast_slice(data);
    let mut all = vec![0; mine.len() * world.size() as usize];
    world.all_gather(mine, &mut all, DEADLINE).unwrap();
    assert!(all.chunks_exact(mine.len()).all(|theirs| theirs == mine), "ranks have other bits");
}

#[test]
fn special_values_have_the_same_bits_on_all_ranks() {
    everywhere(RANKS, DEADLINE, |world| {
        let mine = special(world.rank());
        for reduce in [Reduce::Sum, Reduce::Min, Reduce::Max] {
            let mut data = mine.clone();
            world.all_reduce(&mut data, reduce, DEADLINE).unwrap();
            all_have_the_same_bits(&world, &data);
            if reduce == Reduce::Sum {
                check_sums(&data);
            } else {
                let is_nan = |index: usize| (0..RANKS).any(|rank| special(rank)[index].is_nan());
                assert!(data.iter().enumerate().all(|(index, x)| x.is_nan() == is_nan(index)), "{reduce:?}");
            }
            for fire in [Fire::ALL, Fire::quorum(2)] {
                let mut partial =
                    world.allreduce::<f32>(&[mine.len()]).reduce(reduce).fire(fire).grace(Grace::NONE).build().unwrap();
                partial.contribution().unwrap().copy_from_slice(&mine);
                partial.arrive().unwrap();
                let data = partial.wait(DEADLINE).unwrap().into_iter().next().unwrap().data().to_vec();
                if fire == Fire::ALL && reduce == Reduce::Sum {
                    check_sums(&data);
                }
                all_have_the_same_bits(&world, &data);
                partial.finish(DEADLINE).unwrap();
            }
        }
    });
}

/// Descriptors and threads of this process, and the mappings of its memory.
fn resources() -> [usize; 3] {
    let entries = |folder: &str| fs::read_dir(folder).unwrap().count();
    let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), mappings]
}

fn ends_well(job: Job) {
    for (rank, (status, text)) in job.finish(Duration::from_secs(300)).into_iter().enumerate() {
        assert!(status.success(), "rank {rank}: {status}\n{text}");
    }
}

/// What a rank does that the other tests start.
#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let config = Config { deadline: DEADLINE, ..Config::from_env().unwrap() };
    match role().unwrap().as_str() {
        "many" => make_and_finish_many(&config),
        "sum" => sum(&World::with(&config).unwrap()),
        "long" => sum_of_more_than_4_gib(&World::with(&config).unwrap()),
        other => panic!("{other}"),
    }
}

/// The same again and again takes no more than before.
fn make_and_finish_many(config: &Config) {
    let world = World::with(config).unwrap();
    let turn = |count: u32| {
        for turn in 0..count {
            let fire = [Fire::ALL, Fire::quorum(1), Fire::SOLO][turn as usize % 3];
            let mut sum = world.allreduce::<f32>(&[5000]).fire(fire).build().unwrap();
            sum.contribution().unwrap().fill(1.0);
            sum.arrive().unwrap();
            sum.wait(DEADLINE).unwrap();
            sum.finish(DEADLINE).unwrap();
            drop(sum);
            let group = world.split(turn % 2, 0).unwrap();
            group.barrier(DEADLINE).unwrap();
        }
        // Those of the others have ended, too.
        world.barrier(DEADLINE).unwrap();
        resources()
    };
    turn(12);
    let before = turn(12);
    let after = turn(by_tier(30, 300));
    let grown = before.iter().zip(after).any(|(before, after)| after > before + 8);
    assert!(!grown, "descriptors, threads and mappings: {before:?}, and {after:?} later");
}

fn sum(world: &World) {
    let mut data = vec![world.rank(); 3000];
    world.all_reduce(&mut data, Reduce::Sum, DEADLINE).unwrap();
    let expected = (0..world.size()).sum::<u32>();
    assert!(data.iter().all(|&x| x == expected));
    let quorum = world.size().div_ceil(2);
    let mut partial = world.allreduce::<u32>(&[100]).fire(Fire::quorum(quorum)).build().unwrap();
    let mut total = 0;
    for _ in 0..10 {
        partial.contribution().unwrap().fill(1);
        partial.arrive().unwrap();
        total += partial.wait(DEADLINE).unwrap().into_iter().map(|outcome| outcome.fresh().len()).sum::<u32>();
    }
    assert!(total >= quorum, "{total}");
    partial.finish(DEADLINE).unwrap();
}

#[test]
fn making_and_finishing_takes_no_more_each_time() {
    ends_well(Job::start(Way::Shm, 3, "rank", "many"));
    if libfabric().is_some() {
        ends_well(Job::start(Way::Ofi(PROVIDERS[0]), 3, "rank", "many"));
    }
}

#[test]
fn a_hundred_ranks_on_a_few_cores() {
    ends_well(Job::start(Way::Shm, by_tier(40, 100), "rank", "sum"));
}

#[test]
fn hosts_that_have_ipv6_alone() {
    let Some(hosts) = libfabric().and_then(|_| Hosts::with_ipv6(3)) else { return };
    ends_well(hosts.job(&[0, 1, 2], &[], "sum"));
}

/// Sizes that no 32-bit number holds. It takes 17 GiB.
#[test]
#[ignore = "takes 17 GiB of memory: `cargo test --all-features --test situations -- --ignored more_than_4_gib`"]
fn more_than_4_gib() {
    ends_well(Job::start(Way::Shm, 2, "rank", "long"));
}

fn sum_of_more_than_4_gib(world: &World) {
    let elements = (4 << 30) + 5;
    let value = |rank: u32, index: usize| (index as u8).wrapping_mul(7).wrapping_add(rank as u8);
    let mut data: Vec<u8> = (0..elements).map(|index| value(world.rank(), index)).collect();
    world.all_reduce(&mut data, Reduce::Sum, Duration::from_secs(250)).unwrap();
    let expected = |index| (0..world.size()).fold(0u8, |sum, rank| sum.wrapping_add(value(rank, index)));
    assert!(data.iter().enumerate().all(|(index, &x)| x == expected(index)));
}
