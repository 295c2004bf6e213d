//! Tensors that become ready one after the other, and share messages: the sums are right whatever shares a bucket, also when
//! buckets change.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::Way;
use common::barrier::Barrier;
use common::worlds::{everywhere, world};
use earlybird::{
    Absent, BucketOutcomes, BucketedAllreduce, Buckets, Config, Dtype, Error, Executor, Fire, Group, Misuse, Mover,
    Scale, World,
};

const DEADLINE: Duration = Duration::from_secs(60);

/// Small and large tensors, one of them empty.
const LENGTHS: [usize; 6] = [700_001, 3, 0, 400_000, 1, 90_000];

fn value(rank: u32, step: u64, tensor: usize, index: usize) -> f32 {
    ((u64::from(rank) * 7 + step * 3 + tensor as u64 * 5 + index as u64) % 32) as f32
}

/// Makes a step, with pauses between tensors, and checks elements of all tensors.
fn step(sum: &mut BucketedAllreduce<f32>, world: &World, step: u64, pause: Duration) {
    sum.begin().unwrap();
    for tensor in 0..LENGTHS.len() {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let me = world.rank();
        sum.tensor(tensor).unwrap().iter_mut().enumerate().for_each(|(index, x)| *x = value(me, step, tensor, index));
        sum.filled(tensor).unwrap();
    }
    let outcomes = sum.wait(DEADLINE).unwrap();
    for (tensor, length) in LENGTHS.into_iter().enumerate() {
        let found = outcomes.tensor(tensor).unwrap();
        assert_eq!(found.len(), length);
        for (index, &x) in found.iter().enumerate().step_by(7) {
            let expected: f32 = (0..world.size()).map(|rank| value(rank, step, tensor, index)).sum();
            assert!(x == expected, "step {step}, tensor {tensor}, element {index}: {x}, not {expected}");
        }
    }
    assert!(outcomes.tensor(LENGTHS.len()).is_none());
}

#[test]
fn sums_are_right_whatever_shares_a_bucket() {
    everywhere(3, DEADLINE, |world| {
        for (buckets, count) in [(Buckets::Each, 6), (Buckets::One, 1), (Buckets::Bytes(1_000_000), 3)] {
            let mut sum = world.allreduce::<f32>(&LENGTHS).buckets(buckets).build().unwrap();
            assert_eq!(sum.buckets().len(), count, "{buckets}: {:?}", sum.buckets().collect::<Vec<_>>());
            for number in 0..4 {
                step(&mut sum, &world, number, Duration::ZERO);
            }
            assert_eq!((sum.replans(), sum.predicted()), (0, None));
            sum.finish(DEADLINE).unwrap();
        }
    });
}

/// Ranks make different numbers of steps, and each leaves with what it has contributed: once, the same in all buckets.
#[test]
fn a_rank_that_leaves_gets_all_that_it_contributed() {
    for (fire, executor) in
        [(Fire::ALL, Executor::Thread), (Fire::SOLO, Executor::Thread), (Fire::SOLO, Executor::Peer)]
    {
        everywhere(3, DEADLINE, |world| {
            let (me, steps) = (world.rank(), [2, 5, 9][world.rank() as usize]);
            let of_all = world.allreduce::<f64>(&[3, 500, 7]).fire(fire).executor(executor);
            let mut sum = of_all.buckets(Buckets::Each).build().unwrap();
            let (mut entered, mut next) = (0, 1);
            let mut look = |outcomes: &BucketOutcomes<'_, f64>| {
                for outcome in outcomes.iter() {
                    assert_eq!(outcome.round(), next, "rank {me}");
                    next += 1;
                    let all: f64 = outcome.cut().contributions().map(|entry| f64::from(entry.rank + 1)).sum();
                    for tensor in 0..3 {
                        let found = outcome.tensor(tensor).unwrap();
                        assert!(found.iter().all(|&x| x == all), "tensor {tensor}: {:?}", outcome.cut());
                    }
                    entered += outcome.cut().contributions().filter(|entry| entry.rank == me).count();
                }
            };
            for _ in 0..steps {
                sum.begin().unwrap();
                for tensor in (0..3).rev() {
                    sum.tensor(tensor).unwrap().fill(f64::from(me + 1));
                    sum.filled(tensor).unwrap();
                }
                look(&sum.wait(DEADLINE).unwrap());
            }
            let mut short = true;
            loop {
                // Nothing is lost by a deadline.
                let deadline = if std::mem::replace(&mut short, false) { Duration::ZERO } else { DEADLINE };
                match sum.leave(deadline) {
                    Ok(Some(outcomes)) => look(&outcomes),
                    Ok(None) => break,
                    Err(Error::Timeout { .. }) if deadline.is_zero() => {}
                    Err(error) => panic!("rank {me}: {error}"),
                }
            }
            assert_eq!(entered, steps, "rank {me}");
        });
    }
}

/// Where the type of elements is known at run time only, tensors are bytes, and a caller that cannot hold a borrow keeps
/// outcomes until it releases them.
#[test]
fn bytes_and_outcomes_that_are_kept() {
    everywhere(2, DEADLINE, |world| {
        let of_all = world.allreduce_bytes(Dtype::F32, &[3, 500, 7]).fire(Fire::SOLO);
        let mut sum = of_all.buckets(Buckets::Each).build().unwrap();
        for _ in 0..3 {
            sum.begin().unwrap();
            for (tensor, length) in [3, 500, 7].into_iter().enumerate() {
                let bytes = sum.tensor(tensor).unwrap();
                assert_eq!(bytes.len(), 4 * length);
                bytes.chunks_exact_mut(4).for_each(|chunk| chunk.copy_from_slice(&1f32.to_ne_bytes()));
                sum.filled(tensor).unwrap();
            }
            let rounds = sum.wait(DEADLINE).unwrap().keep().unwrap();
            let (first, newest) = rounds.into_inner();
            for round in first..=newest {
                let kept = sum.kept(round).unwrap();
                let all = kept.cut().contributions().count() as f32;
                assert_eq!(kept.round(), round);
                assert!((0..3).all(|tensor| kept.tensor(tensor).unwrap().chunks(4).all(|x| x == all.to_ne_bytes())));
            }
            assert!(sum.kept(newest + 1).is_none());
            sum.release_up_to(newest);
            assert!((first..=newest).all(|round| sum.kept(round).is_none()));
        }
        sum.finish(DEADLINE).unwrap();
    });
}

/// What a wait has found in a bucket is the caller's, whatever it calls before it gets it: others do not write there.
#[test]
fn outcomes_that_are_there_are_not_released_before_they_are_handed_out() {
    let turn = Barrier::new(2);
    world(Way::Shm, 2, DEADLINE, &|world| {
        let me = world.rank();
        let of_all = world.allreduce::<f32>(&[10, 20]).fire(Fire::SOLO).depth(2);
        let mut sum = of_all.buckets(Buckets::Each).build().unwrap();
        let step = |sum: &mut BucketedAllreduce<f32>, value: f32| {
            sum.begin().unwrap();
            for tensor in 0..2 {
                sum.tensor(tensor).unwrap().fill(value);
                sum.filled(tensor).unwrap();
            }
        };
        if me == 1 {
            step(&mut sum, 0.5);
            drop(sum.wait_bucket(1, DEADLINE).unwrap());
            let calls: [fn(&mut BucketedAllreduce<f32>); 2] =
                [|sum| assert!(sum.kept(1).is_none()), |sum| sum.release_up_to(u64::MAX)];
            calls.iter().for_each(|call| call(&mut sum));
            let held = sum.wait_bucket(0, DEADLINE).unwrap();
            let before = held.newest().data().to_vec();
            turn.wait();
            // Rank 0 makes as many rounds as it can without this one.
            turn.wait();
            assert_eq!(held.newest().data(), before);
        } else {
            turn.wait();
            for value in 1..10 {
                step(&mut sum, value as f32);
                if sum.wait(Duration::from_millis(200)).is_err() {
                    break;
                }
            }
            turn.wait();
        }
        world.abort("the test is done");
    });
    let world = World::in_this_process(1, &Config::default()).unwrap().remove(0);
    let mut none = world.allreduce::<f32>(&[]).buckets(Buckets::Each).build().unwrap();
    assert!(none.kept(7).is_none());
    none.finish(DEADLINE).unwrap();
}

/// With pauses between tensors, sending early pays: buckets change, and the sums stay right.
#[test]
fn buckets_follow_from_measurements_and_are_the_same_on_all_ranks() {
    let plans = everywhere(2, DEADLINE, |world| {
        let mut sum = world.allreduce::<f32>(&LENGTHS).buckets(Buckets::Measured).build().unwrap();
        assert_eq!((sum.buckets().len(), sum.predicted()), (1, None));
        for number in 0..12 {
            step(&mut sum, &world, number, Duration::from_millis(1));
        }
        assert!(sum.predicted().is_some_and(|end| end > Duration::from_millis(6)), "{:?}", sum.predicted());
        let plan: Vec<_> = sum.buckets().collect();
        let replans = sum.replans();
        sum.finish(DEADLINE).unwrap();
        (plan, replans)
    });
    for ranks in &plans {
        println!("{ranks:?}");
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{ranks:?}");
        assert_eq!(ranks[0].1, u64::from(ranks[0].0.len() > 1), "{ranks:?}");
    }
    // Where a message takes next to nothing, one may be as good: that depends on the machine.
    assert!(plans.iter().any(|ranks| ranks[0].1 == 1), "{plans:?}");
}

/// Under a partial rule: each outcome has exactly the contributions of its cut, in all tensors, and no contribution is lost
/// or enters twice.
#[test]
fn buckets_of_a_round_have_one_cut() {
    const STEPS: u64 = 25;
    let value = |rank: u32, target: u64, tensor: usize| (u64::from(rank) * 7 + target * 3 + tensor as u64 * 5) as f64;
    let rules = ["solo", "quorum=2", "majority", "solo,full=4"];
    let choices = [Buckets::Each, Buckets::Bytes(4_000), Buckets::Measured, Buckets::One];
    for (rule, buckets) in rules.into_iter().zip(choices) {
        let fire: Fire = rule.parse().unwrap();
        let worlds = everywhere(3, DEADLINE, |world| {
            let lengths = [301, 3, 0, 700, 1];
            let mut sum = world.allreduce::<f64>(&lengths).fire(fire).buckets(buckets).build().unwrap();
            let (me, mut newest, mut entered) = (world.rank(), 0, Vec::new());
            for step in 0..STEPS {
                if (step + u64::from(me)) % 4 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
                sum.begin().unwrap();
                for tensor in 0..lengths.len() {
                    sum.tensor(tensor).unwrap().fill(value(me, newest + 1, tensor));
                    sum.filled(tensor).unwrap();
                }
                let outcomes = sum.wait(DEADLINE).unwrap();
                for outcome in outcomes.iter() {
                    let (round, cut) = (outcome.round(), outcome.cut());
                    assert_eq!((round, cut.round()), (newest + 1, newest + 1), "{rule}");
                    let parts: Vec<(u32, u64)> =
                        cut.contributions().map(|entry| (entry.rank, round - entry.age)).collect();
                    for (tensor, length) in lengths.into_iter().enumerate() {
                        let expected: f64 = parts.iter().map(|&(rank, target)| value(rank, target, tensor)).sum();
                        let found = outcome.tensor(tensor).unwrap();
                        assert!(
                            found.len() == length && found.iter().all(|&x| x == expected),
                            "{rule}: {round}, {cut:?}"
                        );
                    }
                    entered.extend(parts);
                    newest = round;
                }
                assert_eq!(outcomes.len(), outcomes.iter().count());
            }
            sum.finish(DEADLINE).unwrap();
            entered
        });
        for ranks in worlds {
            println!("{rule}: ranks saw {:?} contributions", ranks.iter().map(Vec::len).collect::<Vec<_>>());
            for entered in &ranks {
                let mut distinct = entered.clone();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!(distinct.len(), entered.len(), "{rule}: a contribution entered twice");
            }
            // The rank that made its last step in the newest round has seen all before it.
            let most = ranks.iter().map(Vec::len).max().unwrap_or(0) as u64;
            assert!(most >= STEPS, "{rule}: {most} contributions in {STEPS} steps");
        }
    }
}

/// Steps are saved after a round that carries nothing, and go on from there with other buckets.
#[test]
fn buckets_go_on_from_a_checkpoint() {
    everywhere(3, DEADLINE, |world| {
        let build = || world.allreduce::<f64>(&[5, 7]).fire(Fire::SOLO.full_every(4));
        // Adds ones until a round is over, and returns what was saved after it.
        let go_on = |mut sum: BucketedAllreduce<f64>, first: u64, last: u64| {
            let (mut newest, mut saved) = (first, None);
            while newest < last {
                sum.begin().unwrap();
                for tensor in [0, 1] {
                    sum.tensor(tensor).unwrap().fill(1.0);
                    sum.filled(tensor).unwrap();
                }
                for outcome in sum.wait(DEADLINE).unwrap().iter() {
                    newest += 1;
                    let entries = outcome.cut().contributions().count() as f64;
                    let is_right = |tensor| outcome.tensor(tensor).unwrap().iter().all(|&x| x == entries);
                    assert!(outcome.round() == newest && is_right(0) && is_right(1));
                    if newest % 4 == 0 {
                        saved = Some(outcome.checkpoint().unwrap());
                    } else {
                        assert!(outcome.cut().fresh().len() == 3 || outcome.checkpoint().is_err());
                    }
                }
            }
            sum.finish(DEADLINE).unwrap();
            saved
        };
        let saved = go_on(build().buckets(Buckets::Each).build().unwrap(), 0, 8).unwrap();
        assert_eq!((saved.round(), saved.model::<f64>().is_none()), (8, true));
        let restored = build().restore(&saved).buckets(Buckets::One).build().unwrap();
        assert_eq!(go_on(restored, 8, 12).map(|saved| saved.round()), Some(12));
        let other = world.allreduce::<f64>(&[12]).restore(&saved).buckets(Buckets::One).build();
        assert!(other.is_err_and(|error| error.to_string().contains("its tensor 0 is 5")));
    });
}

/// Buckets that are waited for one by one, and tensors in another order.
#[test]
fn a_bucket_is_waited_for_alone() {
    world(Way::Shm, 2, DEADLINE, &|world| {
        let mut sum = world.allreduce::<f32>(&[2, 3, 4]).buckets(Buckets::Each).build().unwrap();
        for _ in 0..3 {
            sum.begin().unwrap();
            for tensor in [2, 0, 1] {
                sum.tensor(tensor).unwrap().fill(tensor as f32);
                sum.filled(tensor).unwrap();
            }
            for bucket in [1, 0] {
                let outcomes = sum.wait_bucket(bucket, DEADLINE).unwrap();
                assert!(outcomes.newest().iter().all(|&x| x == 2.0 * bucket as f32));
            }
            let rest = sum.wait(DEADLINE).unwrap();
            assert!(rest.tensor(0).is_none() && rest.tensor(2) == Some(&[4.0; 4][..]));
        }
        sum.finish(DEADLINE).unwrap();
    });
}

/// A wait that took too long is called again, and nothing is lost.
#[test]
fn a_timeout_loses_nothing() {
    let turn = Barrier::new(2);
    world(Way::Shm, 2, DEADLINE, &|world| {
        let mut sum = world.allreduce::<f32>(&[1, 1]).buckets(Buckets::Each).build().unwrap();
        let fill = |sum: &mut BucketedAllreduce<f32>, tensor: usize| {
            sum.tensor(tensor).unwrap().fill(5.0);
            sum.filled(tensor).unwrap();
        };
        sum.begin().unwrap();
        fill(&mut sum, 0);
        if world.rank() == 0 {
            fill(&mut sum, 1);
            let waited = sum.wait(Duration::from_millis(20)).map(|_| ());
            assert!(matches!(&waited, Err(Error::Timeout { missing, .. }) if missing.0 == [1]), "{waited:?}");
            turn.wait();
        } else {
            turn.wait();
            fill(&mut sum, 1);
        }
        let outcomes = sum.wait(DEADLINE).unwrap();
        assert_eq!([0, 1].map(|tensor| outcomes.tensor(tensor).unwrap()[0]), [10.0, 10.0]);
        drop(outcomes);
        sum.finish(DEADLINE).unwrap();
    });
}

/// A step of ones, without a look at what comes of it.
fn hand_in(sum: &mut BucketedAllreduce<f32>) {
    sum.begin().unwrap();
    for tensor in 0..sum.lengths().len() {
        std::thread::sleep(Duration::from_millis(1));
        sum.tensor(tensor).unwrap().fill(1.0);
        sum.filled(tensor).unwrap();
    }
}

/// Those that go on keep their buckets, and the rank that left waits for none of their plans.
#[test]
fn a_rank_leaves_before_the_others_plan() {
    for fire in ["all", "solo", "quorum=2"] {
        let fire: Fire = fire.parse().unwrap();
        // One rank leaves in the middle, another one just before the plan.
        for last_step in [5, 10] {
            let worlds = everywhere(3, DEADLINE, |world| {
                let lengths = [200_000, 3, 100_000];
                let mut sum = world.allreduce::<f32>(&lengths).fire(fire).buckets(Buckets::Measured).build().unwrap();
                for _ in 0..if world.rank() == 1 { last_step } else { 25 } {
                    hand_in(&mut sum);
                    let outcomes = sum.wait(DEADLINE).unwrap();
                    for outcome in outcomes.iter() {
                        let count = outcome.cut().contributions().count() as f32;
                        assert!((0..3).all(|tensor| outcome.tensor(tensor).unwrap().iter().all(|&x| x == count)));
                    }
                }
                sum.finish(DEADLINE).unwrap();
                sum.replans()
            });
            // Of synchronous ranks none has planned yet when one leaves.
            let planned = worlds.iter().flatten().any(|&replans| replans > 0);
            assert!(!(planned && fire.is_synchronous()), "{fire}, {last_step}: {worlds:?}");
        }
    }
}

/// A rank that comes late to a plan: the others call `begin` again.
#[test]
fn a_plan_that_took_too_long_is_made_later() {
    let turn = Barrier::new(2);
    for rule in ["all", "solo,full=10"] {
        let fire: Fire = rule.parse().unwrap();
        world(Way::Shm, 2, Duration::from_millis(1500), &|world| {
            let mut sum = world.allreduce::<f32>(&[3000, 3]).fire(fire).buckets(Buckets::Measured).build().unwrap();
            let mut newest = 0;
            while newest < 10 {
                hand_in(&mut sum);
                newest = sum.wait(DEADLINE).unwrap().iter().last().unwrap().round();
            }
            if world.rank() == 0 {
                let begun = sum.begin();
                assert!(matches!(&begun, Err(Error::Timeout { missing, .. }) if missing.0 == [1]), "{rule}: {begun:?}");
            }
            turn.wait();
            for _ in 0..5 {
                hand_in(&mut sum);
                drop(sum.wait(DEADLINE).unwrap());
            }
            assert!(sum.predicted().is_some(), "{rule}: it has not planned");
            sum.finish(DEADLINE).unwrap();
        });
    }
}

/// What cannot be made leaves the world as it was.
#[test]
fn a_world_outlives_buckets_that_cannot_be_made() {
    world(Way::Shm, 2, DEADLINE, &|world| {
        for buckets in [Buckets::Each, Buckets::Bytes(16)] {
            let made = world.allreduce::<f32>(&[8, 1 << 45]).buckets(buckets).build();
            assert!(matches!(&made, Err(Error::Memory { .. } | Error::Aborted { .. })), "{made:?}");
        }
        let mut sum = world.allreduce::<f32>(&[1, 1]).buckets(Buckets::Each).build().unwrap();
        hand_in(&mut sum);
        assert_eq!(sum.wait(DEADLINE).unwrap().tensor(0).unwrap(), [2.0]);
        sum.finish(DEADLINE).unwrap();
    });
}

#[test]
fn calls_that_mean_nothing_are_refused() {
    fn misuse<T: std::fmt::Debug>(result: earlybird::Result<T>) -> Misuse {
        match result {
            Err(Error::Usage { problem, .. }) => problem,
            other => panic!("{other:?}"),
        }
    }
    fn problem<T: std::fmt::Debug>(result: earlybird::Result<T>) -> &'static str {
        misuse(result).text()
    }
    world(Way::Shm, 2, DEADLINE, &|world| {
        let build = || world.allreduce::<f32>(&[2, 2]);
        assert!(
            problem(build().fire(Fire::SOLO).mover(Mover::Tree).buckets(Buckets::One).build()).contains("tree mover")
        );
        let empty = misuse(build().buckets(Buckets::Bytes(0)).build());
        assert!(matches!(empty, Misuse::Choice(text) if text.contains("a byte or more")));
        assert!(problem(build().memory(&[0.0; 4]).buckets(Buckets::One).build()).contains("models"));
        let grouped = build().group(Group::Butterfly(2)).memory(&[0.0; 4]).absent(Absent::Hold);
        assert!(problem(grouped.buckets(Buckets::One).build()).contains("models"));
        assert!(problem(build().scale(Scale::Weights).buckets(Buckets::One).build()).contains("weights"));
        assert!(problem(build().executor(Executor::Provider).buckets(Buckets::One).build()).contains("provider"));
        let different = if world.rank() == 0 { Buckets::Each } else { Buckets::Measured };
        let different = build().buckets(different).build();
        assert!(matches!(&different, Err(Error::Mismatch { what: "buckets", .. })), "{different:?}");

        let mut sum = build().buckets(Buckets::Each).build().unwrap();
        assert!(problem(sum.tensor(0).map(|_| ())).contains("begin"));
        assert!(problem(sum.wait(DEADLINE).map(|_| ())).contains("begin"));
        sum.begin().unwrap();
        assert!(matches!(misuse(sum.begin()), Misuse::Order(text) if text.contains("wait")));
        assert!(matches!(misuse(sum.filled(2)), Misuse::Argument(text) if text.contains("no tensor")));
        assert!(problem(sum.wait_bucket(0, DEADLINE).map(|_| ())).contains("not handed in"));
        assert!(problem(sum.wait_bucket(2, DEADLINE).map(|_| ())).contains("no bucket"));
        sum.filled(0).unwrap();
        assert!(problem(sum.tensor(0).map(|_| ())).contains("filled already"));
        assert!(problem(sum.wait(DEADLINE).map(|_| ())).contains("not all tensors"));
        assert!(problem(sum.finish(DEADLINE)).contains("not all tensors"));
        // Also when nothing is left to wait for.
        drop(sum.wait_bucket(0, DEADLINE).unwrap());
        assert!(problem(sum.finish(DEADLINE)).contains("not all tensors"));
        sum.filled(1).unwrap();
        drop(sum.wait(DEADLINE).unwrap());
        sum.finish(DEADLINE).unwrap();
        assert!(matches!(misuse(sum.begin()), Misuse::Finished(_)));
        assert!(problem(build().preset(earlybird::Preset::MgWfbp).build()).contains("Buckets::Measured"));
        build().preset(earlybird::Preset::MgWfbp).buckets(Buckets::Each).build().unwrap().finish(DEADLINE).unwrap();
    });
    let record = Some(std::env::temp_dir().join(common::unique()));
    let config = earlybird::Config { deadline: DEADLINE, record, ..earlybird::Config::default() };
    for world in World::in_this_process(1, &config).unwrap() {
        let build = || world.allreduce::<f32>(&[2, 2]);
        assert!(
            problem(build().fire(Fire::SOLO).buckets(Buckets::Measured).build())
                .contains("neither recorded nor replayed")
        );
        build().buckets(Buckets::Measured).build().unwrap().finish(DEADLINE).unwrap();
    }
}
