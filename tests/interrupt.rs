//! Waits end when the program asks for it. One function for a process, so this is a program of its own.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::cell::Cell;
use std::time::Duration;

use common::barrier::Barrier;
use common::worlds::everywhere;
use earlybird::{BucketedAllreduce, Buckets, Error, Executor, Fire, Reduce, World, interrupt_when};

const DEADLINE: Duration = Duration::from_secs(60);

type Call = fn(&World) -> Result<(), Error>;

/// Calls that cannot be made again: the world is aborted.
const ABORTING: [Call; 3] = [
    |world| world.barrier(DEADLINE),
    |world| world.all_reduce(&mut [1.0f32], Reduce::Sum, DEADLINE),
    |world| world.symmetric_memory(100, DEADLINE).map(drop),
];

thread_local! {
    /// This rank has something else to do.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

fn interrupted<R>(call: impl FnOnce() -> Result<R, Error>) {
    ASKED.set(true);
    let told = call().err();
    ASKED.set(false);
    assert!(matches!(told, Some(Error::Interrupted { rank: 0, .. })), "{told:?}");
}

/// Lets rank 1 go on when it is dropped, also by a panic.
struct Done<'a>(&'a Barrier);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Rank 0 waits in a call, and rank 1 does not come.
fn wait(call: impl Fn(&World) + Sync) {
    let done = Barrier::new(2);
    everywhere(2, DEADLINE, |world: World| {
        world.open_messages(DEADLINE).unwrap();
        world.all_reduce(&mut [1.0f32], Reduce::Sum, DEADLINE).unwrap();
        let done = Done(&done);
        if world.rank() == 0 {
            call(&world);
        }
        drop(done);
        world.abort("the test is done");
    });
}

#[test]
fn waits_end_when_they_are_interrupted() {
    assert!(interrupt_when(|| ASKED.get()));
    assert!(!interrupt_when(|| true), "only the first one counts");
    for is_open in [false, true] {
        for aborting in ABORTING {
            // The other rank need not wait until its deadline, and does not go on as if rank 0 had come.
            let done = Barrier::new(2);
            everywhere(2, DEADLINE, |world: World| {
                if is_open {
                    world.open_messages(DEADLINE).unwrap();
                    world.all_reduce(&mut [1.0f32], Reduce::Sum, DEADLINE).unwrap();
                }
                let done = Done(&done);
                if world.rank() == 0 {
                    interrupted(|| aborting(&world));
                }
                drop(done);
                if world.rank() == 1 {
                    // Over a network what rank 0 gave may come before it says that it does not go on.
                    let told = aborting(&world).and_then(|()| world.barrier(DEADLINE));
                    assert!(matches!(told, Err(Error::Aborted { rank: 1, by: 0, .. })), "{told:?}");
                }
            });
        }
    }
    // Nothing of the message has moved, so the call can be repeated.
    wait(|world| {
        for _ in 0..2 {
            interrupted(|| world.receive(&mut [0u8], 1, 0, DEADLINE));
            interrupted(|| world.receive_any(&mut [0u8], 0, DEADLINE));
        }
    });
    // A wait for several buckets is one of many short waits.
    let is_interrupted = Barrier::new(2);
    everywhere(2, DEADLINE, |world: World| {
        let of_all = world.allreduce::<f32>(&[3, 4]).executor(Executor::Caller);
        let mut sum = of_all.buckets(Buckets::Each).build().unwrap();
        let hand_in = |sum: &mut BucketedAllreduce<f32>| {
            sum.begin().unwrap();
            (0..2).for_each(|tensor| sum.filled(tensor).unwrap());
        };
        let done = Done(&is_interrupted);
        if world.rank() == 0 {
            hand_in(&mut sum);
            interrupted(|| sum.wait(DEADLINE).map(drop));
        }
        drop(done);
        if world.rank() == 1 {
            hand_in(&mut sum);
        }
        drop(sum.wait(DEADLINE).unwrap());
        sum.finish(DEADLINE).unwrap();
    });
    for executor in [Executor::Caller, Executor::Thread] {
        let is_interrupted = Barrier::new(2);
        everywhere(2, DEADLINE, |world: World| {
            let mut sum = world.allreduce::<f32>(&[3]).fire(Fire::ALL).executor(executor).build().unwrap();
            sum.contribution().unwrap().fill(1.0);
            let done = Done(&is_interrupted);
            if world.rank() == 0 {
                sum.arrive().unwrap();
                interrupted(|| sum.wait(DEADLINE).map(drop));
            }
            drop(done);
            if world.rank() == 1 {
                sum.arrive().unwrap();
            }
            assert_eq!(sum.wait(DEADLINE).unwrap().newest().data(), [2.0; 3]);
            sum.finish(DEADLINE).unwrap();
        });
    }
}
