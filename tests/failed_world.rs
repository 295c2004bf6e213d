//! A world that has failed stays failed, in every call, and each call says why.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::worlds::{everywhere, ways};
use common::{Job, role, said};
use earlybird::{Allreduce, Buckets, Config, Error, ErrorKind, Executor, Fire, Reduce, Result, World};
use rustix::process::{Signal, getpid, kill_process};

const DEADLINE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

type Call<'a> = (&'static str, Box<dyn FnMut() -> Result<()> + 'a>);

/// Collectives in each state that a call may find them in.
struct Handles {
    world: World,
    /// Nothing is handed in.
    idle: Allreduce<u32>,
    /// An arrival whose outcome is there.
    arrived: Allreduce<u32>,
    /// An arrival that waits for the others.
    waiting: Allreduce<u32>,
    /// An outcome is held.
    held: Allreduce<u32>,
    /// The last arrival is handed in.
    leaving: Allreduce<u32>,
}

impl Handles {
    fn new(world: World, executor: Executor) -> Self {
        world.open_messages(DEADLINE).unwrap();
        world.all_reduce(&mut [1u32], Reduce::Sum, DEADLINE).unwrap();
        let make = |fire| world.allreduce::<u32>(&[4]).fire(fire).executor(executor).build().unwrap();
        let [idle, mut arrived, mut held] = [(); 3].map(|()| make(Fire::SOLO));
        let [mut waiting, mut leaving] = [(); 2].map(|()| make(Fire::ALL));
        world.barrier(DEADLINE).unwrap();
        held.arrive().unwrap();
        held.wait(DEADLINE).unwrap().keep();
        arrived.arrive().unwrap();
        if world.rank() == 0 {
            waiting.arrive().unwrap();
            let told = leaving.finish(MOMENT);
            assert!(matches!(told, Err(Error::Timeout { .. })), "{told:?}");
        }
        world.barrier(DEADLINE).unwrap();
        Handles { world, idle, arrived, waiting, held, leaving }
    }

    /// All calls of all of them, in an order that reaches each.
    fn calls(&mut self) -> Vec<Call<'_>> {
        let Handles { world, idle, arrived, waiting, held, leaving } = self;
        let world = &*world;
        let other = 1 - world.rank();
        let mut calls: Vec<Call<'_>> = vec![
            ("barrier", Box::new(|| world.barrier(DEADLINE))),
            ("all_reduce", Box::new(|| world.all_reduce(&mut [1u32], Reduce::Sum, DEADLINE))),
            ("broadcast", Box::new(|| world.broadcast(&mut [1u32], 0, DEADLINE))),
            ("send", Box::new(move || world.send(&[1u32], other, 0, DEADLINE))),
            ("receive", Box::new(move || world.receive(&mut [1u32], other, 0, DEADLINE))),
            ("open_messages", Box::new(|| world.open_messages(DEADLINE))),
            ("symmetric_memory", Box::new(|| world.symmetric_memory(8, DEADLINE).map(drop))),
            ("build", Box::new(|| world.allreduce::<u32>(&[1]).build().map(drop))),
            ("build buckets", Box::new(|| world.allreduce::<u32>(&[1]).buckets(Buckets::One).build().map(drop))),
        ];
        for (name, handle) in [("idle", idle), ("held", held)] {
            calls.push((
                name,
                Box::new(move || {
                    let arrived = handle.arrive();
                    let finished = handle.finish(DEADLINE);
                    let kinds = [&arrived, &finished].map(|told| told.as_ref().err().map(Error::kind));
                    assert_eq!(kinds[0], kinds[1], "{name}");
                    arrived
                }),
            ));
        }
        for (name, handle) in [("arrived", arrived), ("waiting", waiting)] {
            calls.push((
                name,
                Box::new(move || {
                    let waited = handle.wait(DEADLINE).map(drop);
                    let tested = handle.try_wait().map(drop);
                    let completed = handle.is_complete().map(drop);
                    let finished = handle.finish(DEADLINE);
                    let again = handle.wait(DEADLINE).map(drop);
                    let kinds = [&waited, &tested, &completed, &finished, &again]
                        .map(|told| told.as_ref().err().map(Error::kind));
                    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{name}: {kinds:?}");
                    waited
                }),
            ));
        }
        calls.push(("leaving", Box::new(move || leaving.finish(DEADLINE))));
        calls
    }
}

fn walk(handles: &mut Handles, kind: ErrorKind) {
    // The failure may still be on its way.
    while handles.world.barrier(DEADLINE).is_ok() {}
    for turn in 0..2 {
        for (name, mut call) in handles.calls() {
            match call() {
                Err(error) if error.kind() == kind => {}
                told => panic!("turn {turn}, {name}: {told:?}"),
            }
        }
    }
}

#[test]
fn an_aborted_world_stays_aborted() {
    for executor in [Executor::Caller, Executor::Thread] {
        everywhere(2, DEADLINE, |world| {
            let mut handles = Handles::new(world, executor);
            if handles.world.rank() == 1 {
                handles.world.abort("a test");
            }
            walk(&mut handles, ErrorKind::Aborted);
        });
    }
}

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let executor = role().unwrap().parse().unwrap();
    let world = World::with(&Config { deadline: DEADLINE, ..Config::from_env().unwrap() }).unwrap();
    let mut handles = Handles::new(world, executor);
    if handles.world.rank() == 1 {
        kill_process(getpid(), Signal::KILL).unwrap();
    }
    walk(&mut handles, ErrorKind::PeerDied);
    println!("\nWALKED");
}

#[test]
fn a_world_that_lost_a_rank_stays_lost() {
    for way in ways().into_iter().filter(|way| way.outlives_kills()) {
        for executor in ["caller", "thread"] {
            let ends = Job::start(way, 2, "rank", executor).finish(DEADLINE);
            assert_eq!(said(&ends[0].1, "WALKED").len(), 1, "{way:?}, {executor}: {}", ends[0].1);
        }
    }
}
