//! The public API over every fabric, with a thread for each rank.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use earlybird::{Config, Error, Fire, Grace, Scale, World};

const DEADLINE: Duration = Duration::from_secs(20);

/// Runs `body` as every rank of a world, over every fabric, and returns the results by world.
fn world<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Vec<Vec<R>> {
    common::worlds::everywhere(ranks, DEADLINE, body)
}

#[test]
fn synchronous_sums_of_every_size() {
    for ranks in [1, 2, 3, 5, 8, 33] {
        for length in [0, 1, 7, 1000, 70_000] {
            world(ranks, |world| {
                let mut sum = world.allreduce::<u64>(&[length]).build().unwrap();
                for step in 1..=5u64 {
                    let rank = u64::from(world.rank());
                    let mine = sum.contribution().unwrap();
                    mine.iter_mut().enumerate().for_each(|(i, x)| *x = rank * step + i as u64);
                    sum.arrive().unwrap();
                    let p = u64::from(ranks);
                    let outcomes = sum.wait(DEADLINE).unwrap();
                    assert_eq!(outcomes.len(), 1);
                    let outcome = outcomes.newest();
                    assert_eq!(outcome.round(), step);
                    assert_eq!(outcome.data().len(), length);
                    let expected = |i: usize| p * (p - 1) / 2 * step + p * i as u64;
                    assert!(outcome.iter().enumerate().all(|(i, &x)| x == expected(i)));
                }
                sum.finish(DEADLINE).unwrap();
            });
        }
    }
}

#[test]
fn late_ranks_are_carried_and_receive_what_they_missed() {
    for length in [10, 100_000] {
        world(3, |world| {
            let mut sum = world.allreduce::<f64>(&[length]).fire(Fire::quorum(2)).grace(Grace::NONE).build().unwrap();
            let late = world.rank() == 2;
            let mut total = 0.0;
            let mut contribute = |sum: &mut earlybird::Allreduce<f64>, value: f64| {
                sum.contribution().unwrap().fill(value);
                sum.arrive().unwrap();
                let mut rounds = Vec::new();
                for outcome in sum.wait(DEADLINE).unwrap() {
                    total += outcome.data()[length - 1];
                    rounds.push((
                        outcome.round(),
                        outcome.fresh().len(),
                        outcome.carried().len(),
                        outcome.rounds_late(2),
                    ));
                }
                rounds
            };
            if late {
                // The others make three rounds without it.
                world.barrier(DEADLINE).unwrap();
                let missed = contribute(&mut sum, 100.0);
                assert_eq!(missed.iter().map(|r| r.0).collect::<Vec<_>>(), [1, 2, 3]);
                assert_eq!(missed[2].3, 3, "three rounds late");
                assert_eq!(sum.stats().late, 1);
            } else {
                for step in 1..=3 {
                    let seen = contribute(&mut sum, f64::from(step));
                    assert_eq!(seen, [(u64::try_from(step).unwrap(), 2, 0, u64::try_from(step).unwrap())]);
                }
                world.barrier(DEADLINE).unwrap();
            }
            world.barrier(DEADLINE).unwrap();
            // All three make the fourth round, with the carried contribution.
            if late {
                std::thread::sleep(Duration::from_millis(20));
            }
            contribute(&mut sum, 10.0);
            sum.finish(DEADLINE).unwrap();
            assert!(total > 0.0);
        });
    }
}

#[test]
fn scales_divide() {
    world(4, |world| {
        let mut mean = world.allreduce::<f32>(&[2, 3]).scale(Scale::World).build().unwrap();
        mean.contribution().unwrap().fill(world.rank() as f32);
        mean.arrive().unwrap();
        assert_eq!(&*mean.wait(DEADLINE).unwrap().newest(), &[1.5; 5]);
        assert_eq!(mean.lengths(), [2, 3]);
        mean.finish(DEADLINE).unwrap();
    });
}

#[test]
fn broadcast_and_barrier() {
    for length in [0, 1, 100_001] {
        world(3, |world| {
            let mut data = vec![world.rank() as f32; length];
            world.broadcast(&mut data, 2, DEADLINE).unwrap();
            assert!(data.iter().all(|&x| x == 2.0));
            world.barrier(DEADLINE).unwrap();
        });
    }
}

#[test]
fn ranks_that_disagree_are_told_both_values() {
    let errors = world(3, |world| {
        let depth = if world.rank() == 1 { 4 } else { 8 };
        let error = world.allreduce::<f32>(&[10]).fire(Fire::SOLO).depth(depth).build().unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        error.to_string()
    });
    assert!(
        errors.iter().flatten().all(|error| error.contains("depth") && error.contains('4') && error.contains('8')),
        "{errors:?}"
    );
    let errors = world(2, |world| {
        if world.rank() == 0 {
            world.allreduce::<f32>(&[10]).build().unwrap_err().to_string()
        } else {
            world.allreduce::<f64>(&[10]).fire(Fire::quorum(9)).build().unwrap_err().to_string()
        }
    });
    assert!(errors.iter().flatten().all(|error| error.contains("quorum=9 can never be reached by 2")), "{errors:?}");
}

#[test]
fn a_missing_rank_is_named_within_the_deadline() {
    let deadline = Duration::from_secs(4);
    common::worlds::everywhere(3, deadline, |world| {
        if world.rank() == 1 {
            std::thread::sleep(deadline + Duration::from_millis(500));
            return;
        }
        let error = world.allreduce::<f32>(&[10]).build().unwrap_err();
        assert!(matches!(&error, Error::Timeout { missing, together: true, .. } if missing.0 == [1]), "{error}");
        let again = world.allreduce::<f32>(&[10]).build().unwrap_err().to_string();
        assert!(again.contains("start a new world"), "{again}");
    });
    world(2, |world| {
        let mut sum = world.allreduce::<f32>(&[10]).build().unwrap();
        if world.rank() == 0 {
            sum.arrive().unwrap();
            let error = sum.wait(Duration::from_millis(30)).unwrap_err();
            assert!(matches!(&error, Error::Timeout { missing, together: false, .. } if missing.0 == [1]), "{error}");
            assert!(sum.try_wait().unwrap().is_none());
        }
        world.barrier(DEADLINE).unwrap();
        if world.rank() == 1 {
            sum.arrive().unwrap();
        }
        // After a timeout the wait can continue.
        assert_eq!(sum.wait(DEADLINE).unwrap().newest().round(), 1);
        sum.finish(DEADLINE).unwrap();
    });
}

#[test]
fn calls_out_of_order_are_refused() {
    let world = World::in_this_process(1, &Config::default()).unwrap().remove(0);
    let mut sum = world.allreduce::<f32>(&[1]).build().unwrap();
    assert!(matches!(sum.wait(DEADLINE), Err(Error::Usage { .. })));
    sum.arrive().unwrap();
    assert!(matches!(sum.arrive(), Err(Error::Usage { .. })));
    sum.finish(DEADLINE).unwrap();
    sum.finish(DEADLINE).unwrap();
    assert!(matches!(sum.arrive(), Err(Error::Usage { .. })));
    assert!(matches!(sum.contribution(), Err(Error::Usage { .. })));
    assert!(world.allreduce::<i64>(&[1]).scale(Scale::World).build().is_err());
    assert!(world.allreduce::<i64>(&[1]).depth(0).build().is_err());
    assert!(world.allreduce::<i64>(&[usize::MAX, 1]).build().is_err());
    assert!(world.allreduce::<i64>(&[usize::MAX / 8]).build().is_err());
    let error = world.allreduce::<f32>(&[1 << 38]).fire(Fire::SOLO).build().unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    assert!(world.broadcast(&mut [0u64], 1, DEADLINE).is_err());
}

#[test]
fn abort_and_dropping_fail_all_ranks_at_once() {
    let errors = world(3, |world| {
        let mut sum = world.allreduce::<f32>(&[1]).build().unwrap();
        if world.rank() == 2 {
            std::thread::sleep(Duration::from_millis(50));
            world.abort("enough");
        }
        sum.arrive().and_then(|()| sum.wait(DEADLINE).map(drop)).unwrap_err().to_string()
    });
    assert!(errors.iter().flatten().all(|error| error.contains("rank 2") && error.contains("enough")), "{errors:?}");
    let errors = world(2, |world| {
        let mut sum = world.allreduce::<f32>(&[1]).build().unwrap();
        if world.rank() == 0 {
            drop(sum);
            return "dropped".to_owned();
        }
        sum.arrive().and_then(|()| sum.wait(DEADLINE).map(drop)).unwrap_err().to_string()
    });
    let told = |error: &String| error.contains("rank 0") && error.contains("without finish");
    assert!(errors.iter().all(|errors| told(&errors[1])), "{errors:?}");
}

#[test]
fn memory_is_given_back() {
    world(2, |world| {
        // Would need 8 GiB if no memory were freed; over verbs 5 GiB, and a guest has 4.
        let collectives = if world.fabric_name() == "verbs" { 30 } else { 40 };
        for _ in 0..collectives {
            let mut sum = world.allreduce::<u64>(&[1 << 20]).fire(Fire::SOLO).build().unwrap();
            sum.arrive().unwrap();
            drop(sum.wait(DEADLINE).unwrap());
            sum.finish(DEADLINE).unwrap();
        }
    });
}

/// Rank 1 takes the first round and makes no call after it has dropped the outcome. The third round may not begin before
/// that. (Over a network rank 1 first has to see that its own operations have completed, for which it needs a call.)
#[test]
fn an_outcome_is_released_when_it_is_dropped() {
    common::worlds::world(common::Way::Shm, 2, DEADLINE, &|world| {
        let mut sum = world.allreduce::<u64>(&[4]).fire(Fire::SOLO).grace(Grace::NONE).depth(2).build().unwrap();
        let step = |sum: &mut earlybird::Allreduce<u64>| {
            sum.arrive().unwrap();
            sum.wait(DEADLINE).unwrap().newest().round()
        };
        if world.rank() == 1 {
            assert_eq!(step(&mut sum), 1);
        }
        world.barrier(DEADLINE).unwrap();
        if world.rank() == 0 {
            while step(&mut sum) < 3 {}
        }
        world.barrier(DEADLINE).unwrap();
        sum.finish(DEADLINE).unwrap();
    });
}

#[test]
fn calls_after_a_late_finish_delay_no_rank() {
    static FINISHED: AtomicBool = AtomicBool::new(false);
    world(3, |world| {
        let mut sum = world.allreduce::<u64>(&[4]).fire(Fire::quorum(2)).grace(Grace::NONE).depth(2).build().unwrap();
        let step = |sum: &mut earlybird::Allreduce<u64>| {
            sum.contribution().unwrap()[0] = u64::from(FINISHED.load(Ordering::Acquire));
            sum.arrive().unwrap();
            sum.wait(DEADLINE).unwrap().newest()[0]
        };
        if world.rank() == 2 {
            FINISHED.store(false, Ordering::Release);
            world.barrier(DEADLINE).unwrap();
            world.barrier(DEADLINE).unwrap();
            sum.finish(DEADLINE).unwrap();
            FINISHED.store(true, Ordering::Release);
            sum.finish(DEADLINE).unwrap();
            assert!(sum.arrive().is_err() && sum.contribution().is_err());
            world.barrier(DEADLINE).unwrap();
        } else {
            world.barrier(DEADLINE).unwrap();
            // Two rounds without the third rank, so that its last arrival is late.
            (0..2).for_each(|_| _ = step(&mut sum));
            world.barrier(DEADLINE).unwrap();
            // It needs a round to leave with. Both ranks see in the same round that it has left.
            while step(&mut sum) == 0 {}
            world.barrier(DEADLINE).unwrap();
            (0..10).for_each(|_| _ = step(&mut sum));
            sum.finish(DEADLINE).unwrap();
        }
    });
}

#[test]
fn broadcasts_give_their_memory_back() {
    world(4, |world| {
        // Half a gigabyte if no memory were freed.
        let mut data = vec![world.rank() as f32; 1 << 20];
        for root in 0..4 {
            for _ in 0..8 {
                world.broadcast(&mut data, root, DEADLINE).unwrap();
            }
        }
    });
}
