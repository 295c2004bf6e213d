//! Synchronous collectives in worlds whose ranks are all in this process.

use std::thread;
use std::time::Duration;

use super::World;
use crate::config::{Config, FabricChoice};
use crate::error::Error;
use crate::reduce::Reduce;

const DEADLINE: Duration = Duration::from_secs(20);

fn worlds(ranks: u32) -> Vec<World> {
    World::in_this_process(ranks, &Config { fabric: FabricChoice::Shm, ..Config::default() }).unwrap()
}

fn on_all(worlds: &[World], play: impl Fn(&World) + Sync) {
    thread::scope(|scope| {
        let ranks: Vec<_> = worlds.iter().map(|world| scope.spawn(|| play(world))).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

#[test]
fn different_lengths_are_an_error() {
    on_all(&worlds(2), |world| {
        let mut data = vec![1u64; 4 + world.rank() as usize];
        let told = world.broadcast(&mut data, 0, DEADLINE).and_then(|()| world.broadcast(&mut data, 1, DEADLINE));
        // A rank that is told only later sees that the world was aborted.
        assert!(matches!(told, Err(Error::Mismatch { .. } | Error::Aborted { .. })), "{told:?}");
    });
}

/// Of any length, from any root, and more of them than a world has endpoints.
#[test]
fn broadcasts_copy_what_does_not_fit_into_a_step() {
    on_all(&worlds(3), |world| {
        for (turn, length) in [0, 1, 64 << 10, (64 << 10) + 1, 4 << 20, (9 << 20) + 3, 5].into_iter().enumerate() {
            let root = turn as u32 % 3;
            let value = |index: usize| (index * 7 + turn) as u8;
            let mut data: Vec<u8> =
                (0..length).map(|index| if world.rank() == root { value(index) } else { 0 }).collect();
            world.broadcast(&mut data, root, DEADLINE).unwrap();
            assert!(data.iter().enumerate().all(|(index, &x)| x == value(index)), "{length} bytes of rank {root}");
        }
        for turn in 0..5_000u64 {
            let mut data = [if world.rank() == 0 { turn } else { 0 }];
            world.broadcast(&mut data, 0, DEADLINE).unwrap();
            assert_eq!(data, [turn]);
        }
    });
}

/// Memory does not keep its world; it can be read as long as a rank has it.
#[test]
fn symmetric_memory_outlives_its_world() {
    let worlds = worlds(2);
    thread::scope(|scope| {
        for world in worlds {
            scope.spawn(move || {
                let mut memory = world.symmetric_memory(100_000, DEADLINE).unwrap();
                memory.as_mut_slice::<u64>().unwrap().fill(1);
                memory.all_reduce::<u64>(0..12_500, Reduce::Sum, DEADLINE).unwrap();
                drop(world);
                assert_eq!(memory.as_slice::<u64>().unwrap(), [2; 12_500]);
                let told = memory.all_reduce::<u64>(0..12_500, Reduce::Sum, DEADLINE);
                assert!(matches!(told, Err(Error::Usage { .. })), "{told:?}");
            });
        }
    });
}

/// Threads of rank 0 have made memories in another order than rank 1: two that are not each other's would be reduced.
#[test]
fn symmetric_memories_of_other_numbers_are_an_error() {
    let worlds = worlds(2);
    worlds[0].inner.symmetric.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    on_all(&worlds, |world| {
        let told = world.symmetric_memory(100, DEADLINE);
        assert!(matches!(&told, Err(Error::Mismatch { what, .. }) if what.contains("number")), "{told:?}");
        // Nothing was made, and the ranks are in step.
        world.barrier(DEADLINE).unwrap();
    });
}

/// A rank that does not come: others may still read the memory, so it is lent no more.
#[test]
fn symmetric_memory_is_not_lent_after_a_failure() {
    on_all(&worlds(2), |world| {
        let mut memory = world.symmetric_memory(100_000, DEADLINE).unwrap();
        // The boards are opened.
        world.all_reduce(&mut [1.0f32], Reduce::Sum, DEADLINE).unwrap();
        if world.rank() == 0 {
            let told = memory.all_reduce::<u64>(0..12_500, Reduce::Sum, Duration::from_millis(20));
            assert!(matches!(told, Err(Error::Timeout { .. })), "{told:?}");
            assert!(matches!(memory.as_mut_slice::<u64>(), Err(Error::Usage { .. })));
        }
    });
}

/// A call that was refused because another thread makes one has lent nothing.
#[test]
fn symmetric_memory_goes_on_after_a_refusal() {
    on_all(&worlds(2), |world| {
        let mut memory = world.symmetric_memory(100_000, DEADLINE).unwrap();
        memory.as_mut_slice::<u64>().unwrap().fill(1);
        let mut all_reduce = || memory.all_reduce::<u64>(0..12_500, Reduce::Sum, DEADLINE);
        all_reduce().unwrap();
        if world.rank() == 0 {
            thread::scope(|scope| {
                // Rank 1 sends when this rank was refused once.
                let other = scope.spawn(|| world.broadcast(&mut [0u8], 1, DEADLINE));
                while !world.inner.boards.is_locked() {
                    thread::yield_now();
                }
                assert!(matches!(all_reduce(), Err(Error::Usage { .. })));
                world.barrier(DEADLINE).unwrap();
                other.join().unwrap().unwrap();
            });
        } else {
            world.barrier(DEADLINE).unwrap();
            world.broadcast(&mut [0u8], 1, DEADLINE).unwrap();
        }
        all_reduce().unwrap();
        assert_eq!(memory.as_slice::<u64>().unwrap(), [4; 12_500]);
    });
}

/// A call that could not begin has lent nothing.
#[test]
fn symmetric_memory_is_lent_by_calls_that_began_only() {
    on_all(&worlds(2), |world| {
        let mut memory = world.symmetric_memory(100_000, DEADLINE).unwrap();
        // The boards are opened.
        world.all_reduce(&mut [1.0f32], Reduce::Sum, DEADLINE).unwrap();
        if world.rank() == 0 {
            let late = world.all_reduce(&mut [1.0f32], Reduce::Sum, Duration::from_millis(20));
            assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
            for range in [0..12_500, 0..1] {
                let told = memory.all_reduce::<u64>(range, Reduce::Sum, DEADLINE);
                assert!(matches!(told, Err(Error::Usage { .. })), "{told:?}");
                memory.as_mut_slice::<u64>().unwrap().fill(1);
            }
        }
    });
}

/// Also where data goes through boards, ranks must mean the same memory and the same place.
#[test]
fn places_in_symmetric_memory_are_compared() {
    const ALL: usize = 12_500;
    // What each rank says. The last ones: a few bytes, and many.
    for said in [[(0, 0..4), (0, 1..5)], [(0, 0..4), (1, 0..4)], [(0, 0..4), (0, 0..ALL)]] {
        on_all(&worlds(2), |world| {
            let mut memories = [0, 1].map(|_| world.symmetric_memory(8 * ALL, DEADLINE).unwrap());
            let (memory, range) = said[world.rank() as usize].clone();
            let told = memories[memory].all_reduce::<u64>(range, Reduce::Sum, DEADLINE);
            assert!(matches!(told, Err(Error::Mismatch { .. } | Error::Aborted { .. })), "{told:?}");
        });
    }
}

/// Nothing is done: the same world can be used.
#[test]
fn lengths_that_do_not_fit_are_refused() {
    on_all(&worlds(2), |world| {
        let is_refused = |told: crate::Result<()>| assert!(matches!(told, Err(Error::Usage { .. })), "{told:?}");
        let (four, mut three, mut all) = ([1u32; 4], [0u32; 3], [0u32; 8]);
        is_refused(world.all_gather(&four, &mut three, DEADLINE));
        is_refused(world.broadcast(&mut all, 2, DEADLINE));
        is_refused(world.all_to_all(&four, &mut three, DEADLINE));
        is_refused(world.all_to_all_of((&four, &[4]), (&mut three, &[3, 0]), DEADLINE));
        is_refused(world.scatter(if world.rank() == 0 { None } else { Some(&four) }, &mut three, 0, DEADLINE));
        is_refused(world.gather(&four, if world.rank() == 0 { None } else { Some(&mut all) }, 0, DEADLINE));
        world.all_gather(&four, &mut all, DEADLINE).unwrap();
        assert_eq!(all, [1; 8]);
    });
}

/// The error names the rank that did not come, and later calls fail.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let worlds = worlds(3);
    on_all(&worlds, |world| world.all_reduce(&mut [1.0f32], crate::Reduce::Sum, DEADLINE).unwrap());
    on_all(&worlds[..2], |world| {
        let told = world.all_reduce(&mut [1.0f32], crate::Reduce::Sum, Duration::from_millis(50));
        let Err(Error::Timeout { missing, together: true, .. }) = told else { panic!("{told:?}") };
        // On a busy machine the other one may come late, too.
        assert!(missing.0.contains(&2) && !missing.0.contains(&world.rank()), "{missing}");
        let again = world.all_reduce(&mut [1.0f32], crate::Reduce::Sum, DEADLINE);
        assert!(matches!(again, Err(Error::Usage { .. })), "{again:?}");
    });
}

#[test]
fn messages_pass_between_threads() {
    let worlds = worlds(3);
    on_all(&worlds, |world| {
        let (me, ranks) = (world.rank(), world.size());
        let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let long = vec![u64::from(me); 300_000];
        world.open_messages(DEADLINE).unwrap();
        // All send to the next one, and none receives before it has sent: two threads of a rank do that.
        thread::scope(|scope| {
            scope.spawn(|| world.send(&long, next, 7, DEADLINE).unwrap());
            let mut data = vec![0u64; 300_000];
            world.receive(&mut data, before, 7, DEADLINE).unwrap();
            assert!(data.iter().all(|&value| value == u64::from(before)));
        });
        if me == 0 {
            let mut from = [0, 1].map(|_| {
                let mut data = [0u32];
                let rank = world.receive_any(&mut data, 1, DEADLINE).unwrap();
                assert_eq!(data, [rank]);
                rank
            });
            from.sort_unstable();
            assert_eq!(from, [1, 2]);
        } else {
            world.send(&[me], 0, 1, DEADLINE).unwrap();
        }
        let told = world.receive(&mut [0u8], next, 9, Duration::from_millis(20));
        assert!(matches!(told, Err(Error::Timeout { together: false, .. })), "{told:?}");
        world.barrier(DEADLINE).unwrap();
        world.send(&[me as u8], before, 9, DEADLINE).unwrap();
        let mut data = [9u8];
        world.receive(&mut data, next, 9, DEADLINE).unwrap();
        assert_eq!(data, [next as u8]);
    });
}

/// More than there are channels, while one stays open.
#[test]
fn a_world_makes_any_number_of_collectives() {
    on_all(&worlds(2), |world| {
        let mut kept = world.allreduce::<u32>(&[1]).build().unwrap();
        for turn in 0..4_200 {
            let mut sum = world.allreduce::<u32>(&[1]).build().unwrap();
            if turn % 600 == 0 {
                sum.contribution().unwrap()[0] = turn;
                sum.arrive().unwrap();
                assert_eq!(sum.wait(DEADLINE).unwrap().newest()[0], 2 * turn);
            }
            sum.finish(DEADLINE).unwrap();
        }
        kept.contribution().unwrap()[0] = 1;
        kept.arrive().unwrap();
        assert_eq!(kept.wait(DEADLINE).unwrap().newest()[0], 2);
        kept.finish(DEADLINE).unwrap();
    });
}

/// A rank that closes waits for the others, and cannot while something of its world is left.
#[test]
fn a_world_closes_when_all_ranks_do() {
    let worlds = worlds(2);
    thread::scope(|scope| {
        for world in worlds {
            scope.spawn(move || {
                let sum = world.allreduce::<f32>(&[1]).build().unwrap();
                let other = world.clone();
                let refused = other.close(DEADLINE).unwrap_err();
                assert!(refused.to_string().contains("finish and drop them first"), "{refused}");
                let mut sum = sum;
                sum.finish(DEADLINE).unwrap();
                drop(sum);
                if world.rank() == 0 {
                    thread::sleep(Duration::from_millis(20));
                }
                world.close(DEADLINE).unwrap();
            });
        }
    });
}

#[test]
fn a_world_that_one_rank_does_not_close_names_that_rank() {
    let mut worlds = worlds(2);
    let (one, _other) = (worlds.remove(0), worlds.remove(0));
    let error = one.close(Duration::from_millis(20)).unwrap_err();
    assert!(matches!(&error, Error::Timeout { missing, .. } if missing.0 == [1]), "{error}");
}
