//! Worlds of some of a world's ranks: in one process over every fabric, and by processes on several hosts.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::hosts::Hosts;
use common::{Job, Way, libfabric, role};
use earlybird::{Config, Error, Fire, Reduce, World};

const DEADLINE: Duration = Duration::from_secs(30);

/// The ranks of `world` in the order of a group, as its members tell.
fn members(world: &World, group: &World) -> Vec<u32> {
    let mut all = vec![0; group.size() as usize];
    group.all_gather(&[world.rank()], &mut all, DEADLINE).unwrap();
    all
}

#[test]
fn groups_have_the_ranks_of_a_color_in_the_order_of_keys() {
    common::worlds::everywhere(5, DEADLINE, |world| {
        let rank = world.rank();
        let halves = world.split(rank % 2, -(rank as i32)).unwrap();
        let expected = [vec![4, 2, 0], vec![3, 1]][rank as usize % 2].clone();
        assert_eq!(members(&world, &halves), expected);
        assert_eq!(expected[halves.rank() as usize], rank);
        assert_eq!((halves.fabric_name(), halves.provider()), (world.fabric_name(), world.provider()));
        // Of the same key; all in one; each alone.
        assert_eq!(members(&world, &world.split(u32::MAX, 7).unwrap()), [0, 1, 2, 3, 4]);
        let alone = world.split(rank, i32::MIN).unwrap();
        assert_eq!((alone.rank(), alone.size()), (0, 1));
        // A group can be split, too.
        let part = halves.split(u32::from(halves.rank() == 0), 0).unwrap();
        assert_eq!(part.size(), if halves.rank() == 0 { 1 } else { halves.size() - 1 });
        // Each goes on while the other does.
        let mut sum = halves.allreduce::<u64>(&[3]).fire(Fire::quorum(1)).build().unwrap();
        for _ in 0..5 {
            sum.contribution().unwrap().fill(1);
            sum.arrive().unwrap();
            sum.wait(DEADLINE).unwrap();
            let mut ones = [1];
            world.all_reduce(&mut ones, Reduce::Sum, DEADLINE).unwrap();
            assert_eq!(ones, [5]);
        }
        sum.finish(DEADLINE).unwrap();
    });
}

#[test]
fn a_group_outlives_its_world_and_fails_alone() {
    common::worlds::everywhere(4, DEADLINE, |world| {
        let (rank, group) = (world.rank(), world.split(world.rank() / 2, 0).unwrap());
        // Nothing of a failed group is a failure of the others.
        if rank == 0 {
            group.abort("as this test wants");
        }
        if rank / 2 == 0 {
            let error = group.barrier(DEADLINE).unwrap_err();
            assert!(matches!(error, Error::Aborted { by: 0, .. }), "{error}");
        }
        world.barrier(DEADLINE).unwrap();
        drop(world);
        if rank / 2 == 1 {
            group.barrier(DEADLINE).unwrap();
        }
    });
}

#[test]
fn a_rank_that_does_not_split_is_named() {
    common::worlds::everywhere(3, Duration::from_secs(5), |world| match world.rank() {
        1 => std::thread::sleep(Duration::from_secs(6)),
        _ => {
            let error = world.split(0, 0).unwrap_err();
            assert!(matches!(&error, Error::Timeout { missing, .. } if missing.0 == [1]), "{error}");
        }
    });
    common::worlds::everywhere(3, DEADLINE, |world| match world.rank() {
        1 => {
            let error = world.barrier(DEADLINE).unwrap_err();
            assert!(error.to_string().contains("the call is barrier here and another call on rank 0"), "{error}");
        }
        _ => {
            let error = world.split(0, 0).unwrap_err();
            assert!(error.to_string().contains("the call is split here and another call on rank 1"), "{error}");
        }
    });
}

/// The host of each rank.
const WHERE: [usize; 4] = [0, 1, 0, 1];

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let _ = role().unwrap();
    let config = Config { deadline: DEADLINE, ..Config::from_env().unwrap() };
    let world = World::with(&config).unwrap();
    let host = WHERE[world.rank() as usize];
    // Groups of one kind and of the other, in one call.
    let is_first_host = u32::from(host != 0);
    for (color, fabric) in
        [(host as u32, "shm"), (world.rank() / 2, "ofi"), (is_first_host * (1 + world.rank()), "shm")]
    {
        let group = world.split(color, 0).unwrap();
        assert_eq!(group.fabric_name(), fabric, "{color}");
        let mut ones = [1];
        group.all_reduce(&mut ones, Reduce::Sum, DEADLINE).unwrap();
        assert_eq!(ones, [group.size()]);
    }
    let groups = world.split(u32::from(world.rank() == 3), 0).unwrap();
    assert_eq!(groups.fabric_name(), if world.rank() == 3 { "shm" } else { "ofi" });
    assert_eq!(members(&world, &groups), if world.rank() == 3 { vec![3] } else { vec![0, 1, 2] });
}

#[test]
fn ranks_of_a_host_share_memory_and_others_a_network() {
    let Some(hosts) = libfabric().and_then(|_| Hosts::new(2)) else { return };
    ends_well(hosts.job(&WHERE, &[], "split"));
}

#[test]
fn processes_of_one_machine_split_their_world() {
    ends_well(Job::start(Way::Shm, 5, "processes", "split"));
}

#[test]
#[ignore = "played by the processes that the other tests start"]
fn processes() {
    let _ = role().unwrap();
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    for turn in 0..20 {
        let group = world.split(world.rank() % 2, turn).unwrap();
        assert_eq!(members(&world, &group), [vec![0, 2, 4], vec![1, 3]][world.rank() as usize % 2]);
    }
}

fn ends_well(job: Job) {
    for (rank, (status, text)) in job.finish(Duration::from_secs(120)).into_iter().enumerate() {
        assert!(status.success(), "rank {rank}: {status}\n{text}");
    }
}
