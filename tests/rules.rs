//! Every choice of a collective through the public API, over every fabric, a thread for each rank.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use earlybird::rule::drawn;
use earlybird::{
    Absent, Allreduce, Element, Entry, Error, Executor, Fire, Grace, Mover, Part, Reduce, Scale, World, bf16, f16,
};

const DEADLINE: Duration = Duration::from_secs(20);
const MOVERS: [Mover; 2] = [Mover::Cut, Mover::Tree];

/// Runs `body` as every rank of a world, over every fabric.
fn world(ranks: u32, body: impl Fn(World) + Sync) {
    common::worlds::everywhere(ranks, DEADLINE, body);
}

fn hand_in<T: Element>(sum: &mut Allreduce<T>, value: T) {
    sum.contribution().unwrap().fill(value);
    sum.arrive().unwrap();
}

#[test]
fn majority_fires_with_the_drawn_rank_and_not_before() {
    for mover in MOVERS {
        for ranks in [3, 40] {
            world(ranks, |world| {
                // Over a network other arrivals may be seen after that of the drawn rank, and the last of them closes.
                let far = world.provider().is_some();
                let (fire, grace) = (Fire::majority(5), if far { Grace::Fixed(DEADLINE) } else { Grace::NONE });
                let mut sum = world.allreduce::<u64>(&[3]).fire(fire).grace(grace).mover(mover).build().unwrap();
                for round in 1..=10 {
                    let drawn = drawn(5, round, ranks);
                    if world.rank() == drawn {
                        world.barrier(DEADLINE).unwrap();
                        hand_in(&mut sum, 1);
                    } else {
                        hand_in(&mut sum, 1);
                        assert!(sum.try_wait().unwrap().is_none(), "round {round} before rank {drawn}");
                        world.barrier(DEADLINE).unwrap();
                    }
                    let initiator = {
                        let outcomes = sum.wait(DEADLINE).unwrap();
                        let outcome = outcomes.newest();
                        assert_eq!((outcome.round(), outcome.data()[0]), (round, u64::from(ranks)));
                        assert_eq!(outcome.fresh().len(), ranks);
                        outcome.initiator().unwrap()
                    };
                    // A rank that waits closes the round if the drawn one is held up between its arrival and that.
                    let closed_for_it = initiator == world.rank() && sum.stats().closed_for_others > 0;
                    let mine = initiator == world.rank() && initiator != drawn;
                    assert!(far || !mine || closed_for_it, "rank {initiator} fired for {drawn}");
                }
                world.barrier(DEADLINE).unwrap();
                // The drawn rank may have left before; then the next one stands in.
                if world.rank() == 0 {
                    for _ in 0..5 {
                        hand_in(&mut sum, 1);
                        drop(sum.wait(DEADLINE).unwrap());
                    }
                }
                sum.finish(DEADLINE).unwrap();
            });
        }
    }
}

#[test]
fn a_deadline_closes_a_round_that_others_miss() {
    for mover in MOVERS {
        for length in [4, 100_000] {
            world(2, |world| {
                let fire = Fire::deadline(Duration::from_millis(5));
                let mut sum = world.allreduce::<u64>(&[length]).fire(fire).mover(mover).build().unwrap();
                if world.rank() == 0 {
                    hand_in(&mut sum, 1);
                    {
                        let outcome = sum.wait(DEADLINE).unwrap().newest();
                        assert_eq!((outcome.data()[0], outcome.fresh().len()), (1, 1));
                    }
                    assert_eq!(sum.stats().deadlines_expired, 1);
                    world.barrier(DEADLINE).unwrap();
                } else {
                    world.barrier(DEADLINE).unwrap();
                    hand_in(&mut sum, 10);
                    assert_eq!(sum.wait(DEADLINE).unwrap().newest().round(), 1);
                    assert_eq!(sum.stats().late, 1);
                }
                world.barrier(DEADLINE).unwrap();
                hand_in(&mut sum, 100);
                let newest = sum.wait(DEADLINE).unwrap().newest().data()[length - 1];
                // Both arrived well within the time, unless the machine was busy.
                assert!(newest == 210 || newest == 110, "{newest}");
                // A round in which a rank leaves may close before the other one looks, too.
                world.barrier(DEADLINE).unwrap();
                sum.finish(DEADLINE).unwrap();
            });
        }
    }
}

#[test]
fn a_full_round_waits_for_all_and_counts_carried_contributions() {
    for mover in MOVERS {
        world(2, |world| {
            let fire = Fire::SOLO.full_every(2);
            let mut sum = world.allreduce::<u64>(&[2]).fire(fire).grace(Grace::NONE).mover(mover).build().unwrap();
            if world.rank() == 0 {
                hand_in(&mut sum, 1);
                assert_eq!(sum.wait(DEADLINE).unwrap().newest().data(), [1, 1]);
                hand_in(&mut sum, 2);
                assert!(sum.try_wait().unwrap().is_none(), "a full round without rank 1");
                world.barrier(DEADLINE).unwrap();
                let outcome = sum.wait(DEADLINE).unwrap().newest();
                assert_eq!((outcome.round(), outcome.data()), (2, &[12, 12][..]));
                assert_eq!(outcome.ages(), [(0, 0), (1, 1)]);
            } else {
                world.barrier(DEADLINE).unwrap();
                hand_in(&mut sum, 10);
                let outcomes = sum.wait(DEADLINE).unwrap();
                assert_eq!(outcomes.iter().map(|outcome| outcome.data()[0]).collect::<Vec<_>>(), [1, 12]);
            }
            world.barrier(DEADLINE).unwrap();
            sum.finish(DEADLINE).unwrap();
        });
    }
}

#[test]
fn late_contributions_are_dropped_or_decay_by_rule() {
    for mover in MOVERS {
        for absent in [Absent::Drop, Absent::Decay(0.5)] {
            world(2, |world| {
                let sum = world.allreduce::<f32>(&[5]).fire(Fire::SOLO).grace(Grace::NONE).mover(mover);
                let mut sum = sum.absent(absent).build().unwrap();
                if world.rank() == 0 {
                    for _ in 1..=3 {
                        hand_in(&mut sum, 1.0);
                        assert_eq!(sum.wait(DEADLINE).unwrap().newest().data()[0], 1.0);
                    }
                    world.barrier(DEADLINE).unwrap();
                    world.barrier(DEADLINE).unwrap();
                    hand_in(&mut sum, 1.0);
                    let newest = sum.wait(DEADLINE).unwrap().newest().data()[4];
                    // Three rounds late: an eighth of 8.
                    assert_eq!(newest, if absent == Absent::Drop { 1.0 } else { 2.0 });
                } else {
                    world.barrier(DEADLINE).unwrap();
                    hand_in(&mut sum, 8.0);
                    let seen = sum.wait(DEADLINE).unwrap().len();
                    // What is relayed over a network may be on its way to this rank.
                    assert!(seen == 3 || seen < 3 && sum.path() == "relayed", "{seen} rounds, {}", sum.path());
                    assert_eq!(sum.stats().dropped, u64::from(absent == Absent::Drop));
                    world.barrier(DEADLINE).unwrap();
                }
                world.barrier(DEADLINE).unwrap();
                sum.finish(DEADLINE).unwrap();
            });
        }
    }
}

#[test]
fn a_weighted_mean_weighs() {
    for mover in MOVERS {
        for length in [3, 60_000] {
            world(3, |world| {
                let mut mean = world.allreduce::<f32>(&[length]).scale(Scale::Weights).mover(mover).build().unwrap();
                for step in 1..=4u16 {
                    // 10 three times, 2 once and 1000 not at all; then all ranks equally.
                    let nothing = if step % 2 == 1 { f32::NAN } else { 1000.0 };
                    let (weight, value) = [(3, 10.0), (1, 2.0), (0, nothing)][world.rank() as usize];
                    if step % 2 == 1 {
                        mean.weigh(weight * step).unwrap();
                    }
                    hand_in(&mut mean, value);
                    let outcome = mean.wait(DEADLINE).unwrap().newest();
                    let expected = if step % 2 == 1 { 8.0 } else { 1012.0 / 3.0 };
                    assert_eq!(outcome.data()[length - 1], expected);
                    let entry = outcome.cut().entries().next().unwrap();
                    assert_eq!(entry.weight, if step % 2 == 1 { 3 * step } else { 1 });
                }
                mean.finish(DEADLINE).unwrap();
            });
        }
    }
    world(2, |world| {
        let mut sum = world.allreduce::<f32>(&[1]).build().unwrap();
        let error = sum.weigh(2).unwrap_err().to_string();
        assert!(error.contains("scale=weights"), "{error}");
        sum.finish(DEADLINE).unwrap();
    });
}

/// The last rank computes longer than the others, which wait for it. All ranks are told the same times.
#[test]
fn entries_say_how_long_ranks_computed_and_waited() {
    let (long, steps) = (Duration::from_millis(20), 5);
    for (mover, length) in MOVERS.into_iter().flat_map(|mover| [(mover, 2), (mover, 100_000)]) {
        for fire in [Fire::ALL, Fire::quorum(3)] {
            world(3, |world| {
                let mut sum = world.allreduce::<u64>(&[length]).fire(fire).mover(mover).build().unwrap();
                let mut told = Vec::new();
                for _ in 0..steps {
                    std::thread::sleep(if world.rank() == 2 { long } else { Duration::from_millis(2) });
                    hand_in(&mut sum, 1);
                    let outcomes = sum.wait(DEADLINE).unwrap();
                    let times = |entry: Entry| [entry.computed(), entry.waited()];
                    told.push(outcomes.newest().cut().entries().map(times).collect::<Vec<_>>());
                }
                sum.finish(DEADLINE).unwrap();
                for (round, entries) in told.iter().enumerate() {
                    let [_, _, slow] = entries.as_slice() else { panic!("{entries:?} in round {round}") };
                    assert_eq!(slow[0].is_some(), round > 0, "round {round} by {mover}");
                    assert!(slow[0].is_none_or(|computed| computed > long - long / 30), "{entries:?}");
                    assert!(round < 2 || entries.iter().all(|times| times[1].is_some()), "{entries:?}");
                }
                let nanoseconds = |time: &Option<Duration>| time.map_or(u64::MAX, |time| time.as_nanos() as u64);
                let mine: Vec<u64> = told.iter().flatten().flatten().map(nanoseconds).collect();
                let mut all = vec![0; 3 * mine.len()];
                world.all_gather(&mine, &mut all, DEADLINE).unwrap();
                assert!(all.chunks(mine.len()).all(|theirs| theirs == mine), "{told:?}");
            });
        }
    }
}

/// The last rank takes ten times as long as the others. They stop waiting for it. The simulator shows that all ranks
/// choose the same.
#[test]
fn a_quorum_that_the_collective_chooses_leaves_out_a_slow_rank() {
    for mover in MOVERS {
        world(4, |world| {
            let mut sum = world.allreduce::<u64>(&[2]).fire(Fire::AUTO).mover(mover).build().unwrap();
            let is_slow = world.rank() == 3;
            assert_eq!(sum.stats().quorum, 4);
            let (mut chosen, mut contributions) = (Vec::new(), 0);
            for _ in 0..if is_slow { 12 } else { 60 } {
                std::thread::sleep(Duration::from_millis(if is_slow { 30 } else { 3 }));
                hand_in(&mut sum, 1);
                let outcomes = sum.wait(DEADLINE).unwrap();
                contributions += outcomes.iter().map(|outcome| outcome.data()[0]).sum::<u64>();
                drop(outcomes);
                chosen.push(sum.stats().quorum);
            }
            while let Some(outcomes) = sum.leave(DEADLINE).unwrap() {
                contributions += outcomes.iter().map(|outcome| outcome.data()[0]).sum::<u64>();
            }
            // On a busy machine others may seem late, too.
            assert!(is_slow || chosen[5..40].iter().any(|&quorum| quorum < 4), "{mover}: {chosen:?}");
            let mut sums = [0; 4];
            world.all_gather(&[contributions], &mut sums, DEADLINE).unwrap();
            assert!(sums.contains(&(3 * 60 + 12)), "{sums:?}");
        });
    }
}

#[test]
fn several_tensors_have_one_cut() {
    for mover in MOVERS {
        world(3, |world| {
            let mut sum = world.allreduce::<f32>(&[3, 0, 5000]).mover(mover).build().unwrap();
            let rank = world.rank() as f32;
            for step in 0..3 {
                if step == 1 {
                    sum.arrive_with(&[&[rank; 3], &[], &[10.0 * rank; 5000]]).unwrap();
                } else {
                    sum.tensor(0).unwrap().fill(rank);
                    sum.tensor(2).unwrap().fill(10.0 * rank);
                    sum.arrive().unwrap();
                }
                let outcome = sum.wait(DEADLINE).unwrap().newest();
                assert_eq!(outcome.tensor(0), Some(&[3.0; 3][..]));
                assert_eq!(outcome.tensor(1), Some(&[][..]));
                assert_eq!(outcome.tensor(2), Some(&[30.0; 5000][..]));
                assert_eq!(outcome.tensor(3), None);
            }
            assert!(sum.tensor(3).unwrap_err().to_string().contains("no tensor"));
            let error = sum.arrive_with(&[&[0.0; 3], &[], &[0.0; 4999]]).unwrap_err();
            assert!(error.to_string().contains("as many and as long"), "{error}");
            sum.finish(DEADLINE).unwrap();
        });
    }
}

#[test]
fn data_copied_in_pieces_is_whole() {
    // Neither the tensors nor the contribution end where a segment does; there are several pieces.
    let lengths = [100_001, 7, 300_003];
    for executor in [Executor::Caller, Executor::Thread, Executor::Peer] {
        for fire in [Fire::ALL, Fire::SOLO] {
            world(3, |world| {
                let sum = world.allreduce::<u32>(&lengths).fire(fire).executor(executor);
                let mut sum = sum.build().unwrap();
                let own = |index: usize, rank: u32, round: u64| (index as u32).wrapping_mul(7 + rank) ^ round as u32;
                let mut target = 1;
                for step in 0..20 {
                    let first: Vec<u32> = (0..lengths[0]).map(|index| own(index, world.rank(), target)).collect();
                    let rest = |from: usize, length| -> Vec<u32> {
                        (from..from + length).map(|index| own(index, world.rank(), target)).collect()
                    };
                    let (second, third) = (rest(lengths[0], lengths[1]), rest(lengths[0] + lengths[1], lengths[2]));
                    if (step + world.rank()) % 4 == 0 {
                        std::thread::sleep(Duration::from_millis(3));
                    }
                    sum.arrive_with(&[&first, &second, &third]).unwrap();
                    for outcome in sum.wait(DEADLINE).unwrap() {
                        let made = |entry: Entry| (entry.rank, outcome.round() - entry.age);
                        let from: Vec<_> = outcome.cut().contributions().map(made).collect();
                        for (index, &element) in outcome.data().iter().enumerate() {
                            let values = from.iter().map(|&(rank, round)| own(index, rank, round));
                            assert_eq!(element, values.fold(0, u32::wrapping_add), "element {index} of {from:?}");
                        }
                        target = outcome.round() + 1;
                    }
                }
                sum.finish(DEADLINE).unwrap();
            });
        }
    }
}

#[test]
fn a_rank_that_was_away_catches_up_with_a_sum() {
    world(2, |world| {
        let mut sum = world.allreduce::<f16>(&[4]).fire(Fire::SOLO).grace(Grace::NONE).build().unwrap();
        if world.rank() == 0 {
            for value in [2048.0, 1.0, 1.0] {
                hand_in(&mut sum, f16::from_f32(value));
                drop(sum.wait(DEADLINE).unwrap());
            }
            world.barrier(DEADLINE).unwrap();
        } else {
            world.barrier(DEADLINE).unwrap();
            hand_in(&mut sum, f16::ZERO);
            let missed = sum.wait(DEADLINE).unwrap();
            assert_eq!(missed.len(), 3);
            let mut all = [f16::ZERO; 4];
            missed.sum_into(&mut all).unwrap();
            assert_eq!(all.map(f16::to_f32), [2050.0; 4], "rounded once");
            assert!(missed.sum_into(&mut all[1..]).is_err());
        }
        world.barrier(DEADLINE).unwrap();
        sum.finish(DEADLINE).unwrap();
    });
}

/// One rank is away while the other makes more rounds than a rank may have unreleased, and hands in once or never.
#[test]
fn a_rank_that_leaves_can_take_all_that_it_missed() {
    for (mover, hands_in) in MOVERS.into_iter().flat_map(|mover| [(mover, true), (mover, false)]) {
        world(2, |world| {
            let sum = world.allreduce::<u64>(&[1000]).fire(Fire::SOLO).grace(Grace::NONE).depth(2).mover(mover);
            let mut sum = sum.build().unwrap();
            if world.rank() == 0 {
                for _ in 0..2 {
                    hand_in(&mut sum, 1);
                    drop(sum.wait(DEADLINE).unwrap());
                }
                world.barrier(DEADLINE).unwrap();
                hand_in(&mut sum, 1);
                drop(sum.wait(DEADLINE).unwrap());
                return sum.finish(DEADLINE).unwrap();
            }
            world.barrier(DEADLINE).unwrap();
            if hands_in {
                hand_in(&mut sum, 100);
            }
            let (mut rounds, mut total, mut own, mut has_left) = (0, 0, 0, false);
            while let Some(outcomes) = sum.leave(DEADLINE).unwrap() {
                for outcome in outcomes {
                    assert!(!has_left && outcome.round() == rounds + 1, "{} after {rounds}", outcome.round());
                    rounds += 1;
                    total += outcome.data()[0];
                    assert!(outcome.iter().all(|x| *x == outcome.data()[0]));
                    own += outcome.own().filter(|entry| entry.part != Part::Leaving).count();
                    has_left = outcome.own().any(|entry| entry.part == Part::Leaving);
                }
            }
            // The other one may leave before it has made its third round, or after that.
            assert!(has_left && rounds >= 3, "{rounds} rounds");
            assert_eq!((own, total / 100), if hands_in { (1, 1) } else { (0, 0) });
            assert!((2..=3).contains(&(total % 100)), "{total}");
            assert!(sum.leave(DEADLINE).unwrap().is_none() && sum.contribution().is_err());
            sum.finish(DEADLINE).unwrap();
        });
    }
}

/// A rank that applies one outcome after the other makes room for the others with each.
#[test]
fn outcomes_are_released_one_by_one() {
    for (mover, kept) in MOVERS.into_iter().flat_map(|mover| [(mover, true), (mover, false)]) {
        world(2, |world| {
            let sum = world.allreduce::<u64>(&[1000]).fire(Fire::SOLO).grace(Grace::NONE).depth(2).mover(mover);
            let mut sum = sum.build().unwrap();
            if world.rank() == 0 {
                for value in [1, 2] {
                    hand_in(&mut sum, value);
                    drop(sum.wait(DEADLINE).unwrap());
                }
                world.barrier(DEADLINE).unwrap();
                hand_in(&mut sum, 3);
                let early = sum.wait(Duration::from_millis(50));
                assert!(matches!(&early, Err(Error::Timeout { missing, .. }) if missing.0 == [1]), "{early:?}");
                drop(early);
                world.barrier(DEADLINE).unwrap();
                assert_eq!(sum.wait(DEADLINE).unwrap().newest().data()[0], 3);
                world.barrier(DEADLINE).unwrap();
            } else {
                world.barrier(DEADLINE).unwrap();
                hand_in(&mut sum, 0);
                let outcomes = sum.wait(DEADLINE).unwrap();
                assert_eq!(outcomes.len(), 2);
                world.barrier(DEADLINE).unwrap();
                if kept {
                    assert_eq!(outcomes.keep(), 1..=2);
                    sum.release_up_to(1);
                    world.barrier(DEADLINE).unwrap();
                    assert!(sum.kept(1).is_none());
                    assert!(sum.kept(2).unwrap().iter().all(|x| *x == 2));
                    sum.release_up_to(1);
                    assert!(sum.kept(2).is_some());
                    sum.release();
                    assert!(sum.kept(2).is_none());
                } else {
                    let mut outcomes = outcomes.into_iter();
                    assert_eq!(outcomes.next().unwrap().round(), 1);
                    let second = outcomes.next().unwrap();
                    world.barrier(DEADLINE).unwrap();
                    assert!(second.iter().all(|x| *x == 2) && second.round() == 2);
                }
            }
            sum.finish(DEADLINE).unwrap();
        });
    }
}

trait Number: Element {
    fn of(value: u32) -> Self;
}

macro_rules! numbers {
    ($($type:ty: $make:expr),*) => {
        $(impl Number for $type {
            fn of(value: u32) -> Self {
                $make(value)
            }
        })*
    };
}

numbers!(
    f32: |x| x as f32, f64: f64::from, f16: |x| f16::from_f32(x as f32), bf16: |x| bf16::from_f32(x as f32),
    i32: |x| x as i32, i64: i64::from, u32: |x| x, u64: u64::from
);

fn reductions<T: Number>(world: &World, mover: Mover) {
    let (rank, ranks) = (world.rank(), world.size());
    // At 40,000 elements the data is split among the ranks.
    for length in [0, 1, 129, 40_000] {
        for (reduce, expected) in [
            (Reduce::Sum, (0..ranks).map(|rank| rank + 1).sum()),
            (Reduce::Min, 1),
            (Reduce::Max, ranks),
            (Reduce::Prod, (1..=ranks).product()),
        ] {
            let mut all = world.allreduce::<T>(&[length]).reduce(reduce).mover(mover).build().unwrap();
            for _ in 0..3 {
                hand_in(&mut all, T::of(rank + 1));
                let outcome = all.wait(DEADLINE).unwrap().newest();
                assert_eq!(outcome.data(), vec![T::of(expected); length], "{} {reduce}", T::DTYPE);
            }
            all.finish(DEADLINE).unwrap();
        }
    }
}

#[test]
fn every_type_and_every_reduction() {
    for ranks in [1, 2, 5] {
        for mover in MOVERS {
            world(ranks, |world| {
                reductions::<f32>(&world, mover);
                reductions::<f64>(&world, mover);
                reductions::<f16>(&world, mover);
                reductions::<bf16>(&world, mover);
                reductions::<i32>(&world, mover);
                reductions::<i64>(&world, mover);
                reductions::<u32>(&world, mover);
                reductions::<u64>(&world, mover);
            });
        }
    }
}

/// 2048 + 1 + 1 + 1 is 2048 if every step is rounded to 16 bits, and 2052 (ties to even) if only the result is.
#[test]
fn half_precision_is_rounded_once() {
    for mover in MOVERS {
        for length in [3, 100_000] {
            world(4, |world| {
                let mut sum = world.allreduce::<f16>(&[length]).mover(mover).build().unwrap();
                hand_in(&mut sum, f16::from_f32(if world.rank() == 0 { 2048.0 } else { 1.0 }));
                assert_eq!(sum.wait(DEADLINE).unwrap().newest().data()[length - 1].to_f32(), 2052.0);
                sum.finish(DEADLINE).unwrap();
            });
        }
    }
}

#[test]
fn invalid_choices_are_named() {
    world(2, |world| {
        let refused = |error: Error, words: &str| {
            assert!(error.to_string().contains(words), "{error}");
        };
        let fire = |fire| world.allreduce::<f32>(&[1]).fire(fire).build().unwrap_err();
        refused(fire(Fire::quorum(0)), "quorum of 0");
        refused(fire(Fire::quorum(3)), "never be reached");
        refused(fire(Fire::deadline(Duration::ZERO)), "deadline of 0");
        refused(fire(Fire::deadline(Duration::from_secs(100_000))), "longer than");
        refused(fire(Fire::SOLO.full_every(1)), "full=1");
        refused(fire(Fire::ALL.full_every(4)), "omit full=K");
        let integers = || world.allreduce::<i64>(&[1]);
        refused(integers().reduce(Reduce::Mean).build().unwrap_err(), "reduce=sum and a scale");
        refused(integers().scale(Scale::World).build().unwrap_err(), "scale=sum");
        refused(integers().absent(Absent::Decay(0.5)).build().unwrap_err(), "decay");
        let floats = || world.allreduce::<f32>(&[1]);
        refused(floats().absent(Absent::Decay(0.0)).build().unwrap_err(), "decay of 0");
        refused(floats().absent(Absent::Decay(f32::NAN)).build().unwrap_err(), "decay of NaN");
        refused(floats().reduce(Reduce::Max).scale(Scale::Contributions).build().unwrap_err(), "scale=sum");
    });
}
