//! Handles whose elements have a type that is known at run time only, outcomes that are kept without a borrow, and the
//! descriptor that says when there are some.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::Way;
use common::barrier::Barrier;
use common::worlds::{everywhere, world};
use earlybird::{Allreduce, Dtype, Error, ErrorKind, Executor, Fire, Group, Mover, Scale, World};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

const DEADLINE: Duration = Duration::from_secs(60);

/// Whether a descriptor is readable within some time.
fn is_readable(sum: &Allreduce<u8>, within: Duration) -> bool {
    let mut waited = [PollFd::from_borrowed_fd(sum.completion().unwrap(), PollFlags::IN)];
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    poll(&mut waited, Some(&within)).unwrap() == 1
}

fn arrive(sum: &mut Allreduce<u8>, value: f64) {
    for bytes in sum.contribution().unwrap().as_chunks_mut().0 {
        *bytes = value.to_ne_bytes();
    }
    sum.arrive().unwrap();
}

fn elements(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes| f64::from_ne_bytes(*bytes)).collect()
}

#[test]
fn every_type_is_summed_as_its_elements_are() {
    everywhere(3, DEADLINE, |world| {
        for dtype in Dtype::EVERY {
            let mut sum = world.allreduce_bytes(dtype, &[2, 5]).build().unwrap();
            assert_eq!((sum.dtype(), sum.lengths()), (dtype, &[2, 5][..]));
            assert_eq!(sum.contribution().unwrap().len(), 7 * dtype.size());
            // One, as each type has it.
            let one: &[u8] = match dtype {
                Dtype::F32 => &1f32.to_ne_bytes(),
                Dtype::F64 => &1f64.to_ne_bytes(),
                Dtype::F16 => &0x3C00u16.to_ne_bytes(),
                Dtype::Bf16 => &0x3F80u16.to_ne_bytes(),
                Dtype::I32 | Dtype::U32 => &1u32.to_ne_bytes(),
                Dtype::I64 | Dtype::U64 => &1u64.to_ne_bytes(),
                Dtype::I16 => &1i16.to_ne_bytes(),
                Dtype::I8 | Dtype::U8 | Dtype::Bool => &[1],
                other => panic!("{other:?} has no one here"),
            };
            let three: &[u8] = match dtype {
                Dtype::F32 => &3f32.to_ne_bytes(),
                Dtype::F64 => &3f64.to_ne_bytes(),
                Dtype::F16 => &0x4200u16.to_ne_bytes(),
                Dtype::Bf16 => &0x4040u16.to_ne_bytes(),
                Dtype::I32 | Dtype::U32 => &3u32.to_ne_bytes(),
                Dtype::I64 | Dtype::U64 => &3u64.to_ne_bytes(),
                Dtype::I16 => &3i16.to_ne_bytes(),
                Dtype::I8 | Dtype::U8 => &[3],
                Dtype::Bool => &[1],
                other => panic!("{other:?} has no three here"),
            };
            let [first, second] = [one.repeat(2), one.repeat(5)];
            sum.arrive_with(&[&first, &second]).unwrap();
            let outcomes = sum.wait(DEADLINE).unwrap();
            assert_eq!(outcomes.newest().data(), three.repeat(7));
            assert_eq!(outcomes.newest().tensor(1).unwrap(), three.repeat(5));
            drop(outcomes);
            sum.finish(DEADLINE).unwrap();
        }
    });
}

#[test]
fn outcomes_are_kept_until_they_are_released() {
    let turn = Barrier::new(2);
    everywhere(2, DEADLINE, |world| {
        let mut sum = world.allreduce_bytes(Dtype::F64, &[3]).fire(Fire::SOLO).build().unwrap();
        if world.rank() == 0 {
            for step in 1..=3 {
                arrive(&mut sum, f64::from(step));
                drop(sum.wait(DEADLINE).unwrap());
            }
        }
        turn.wait();
        if world.rank() == 1 {
            assert!(sum.kept(1).is_none());
            arrive(&mut sum, 10.0);
            let rounds = sum.wait(DEADLINE).unwrap().keep();
            assert_eq!(*rounds.start(), 1);
            assert!(*rounds.end() >= 3);
            for _ in 0..2 {
                let kept = |round| elements(sum.kept(round).unwrap().data());
                assert_eq!([1, 2, 3].map(kept), [vec![1.0; 3], vec![2.0; 3], vec![3.0; 3]]);
            }
            assert!(sum.kept(0).is_none() && sum.kept(*rounds.end() + 1).is_none());
            sum.release();
            assert!(sum.kept(1).is_none());
        }
        sum.finish(DEADLINE).unwrap();
    });
}

#[test]
fn a_descriptor_says_when_there_is_something_to_take() {
    let turn = Barrier::new(2);
    everywhere(2, DEADLINE, |world| {
        let build = |mover, executor| {
            world.allreduce_bytes(Dtype::F64, &[1000]).mover(mover).executor(executor).build().unwrap()
        };
        // Under the tree mover ranks may need this one also when its outcome is there.
        for mover in [Mover::Auto, Mover::Tree] {
            let mut sum = build(mover, Executor::Thread);
            assert!(!is_readable(&sum, Duration::ZERO));
            for step in 0..20 {
                if world.rank() == 0 {
                    arrive(&mut sum, 1.0);
                    assert!(sum.try_wait().unwrap().is_none());
                    assert!(!is_readable(&sum, Duration::ZERO), "the other rank has not arrived");
                    turn.wait();
                } else {
                    turn.wait();
                    arrive(&mut sum, 2.0);
                }
                let rounds = loop {
                    assert!(is_readable(&sum, DEADLINE), "{mover}: step {step}");
                    if let Some(outcomes) = sum.try_wait().unwrap() {
                        break outcomes.keep();
                    }
                };
                assert_eq!(elements(sum.kept(*rounds.end()).unwrap().data()), [3.0; 1000]);
                assert!(!is_readable(&sum, Duration::ZERO), "nothing is left to take");
                turn.wait();
            }
            sum.finish(DEADLINE).unwrap();
        }
        let mut sum = build(Mover::Auto, Executor::Caller);
        assert!(sum.completion().is_err_and(|error| error.to_string().contains("executor=thread")));
        sum.finish(DEADLINE).unwrap();
    });
}

#[test]
fn models_are_bytes_too_and_have_to_fit() {
    world(Way::Shm, 2, DEADLINE, &|world: World| {
        let model = 5f64.to_ne_bytes().repeat(3);
        let build = || world.allreduce_bytes(Dtype::F64, &[3]).group(Group::Butterfly(2));
        let mut models = build().memory(&model).build().unwrap();
        arrive(&mut models, 2.0);
        let rounds = models.wait(DEADLINE).unwrap().keep();
        assert_eq!(elements(models.kept(*rounds.end()).unwrap().data()), [7.0; 3]);
        models.finish(DEADLINE).unwrap();
        let short = build().memory(&model[1..]).build();
        let error = short.unwrap_err();
        assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("as long as all tensors"), "{error}");
        let weighed = world.allreduce_bytes(Dtype::I32, &[3]).scale(Scale::World).build();
        assert!(matches!(&weighed, Err(Error::Usage { .. })), "{weighed:?}");
    });
}
