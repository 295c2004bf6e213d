//! Synchronous collectives and messages, over every fabric, with any number of ranks. `src/board/tests.rs` tries random calls
//! in random orders over a simulated network.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Mutex;
use std::time::Duration;

use common::Way;
use common::collectives::{play, symmetric};
use common::worlds::{everywhere, world};
use earlybird::{Error, Reduce, World};

const DEADLINE: Duration = Duration::from_secs(60);

fn over(way: Way) {
    for ranks in [1, 2, 3, 5] {
        world(way, ranks, DEADLINE, &|world: World| {
            play(&world);
            symmetric(&world, matches!(way, Way::Shm));
        });
    }
}

/// A rank that has left will never come: calls that need it fail at once, on all ranks.
#[test]
fn a_rank_that_has_left_is_named() {
    type Call = fn(&World) -> Result<(), Error>;
    let _alone = ALONE.lock();
    let calls: [Call; 4] = [
        |world| world.barrier(DEADLINE),
        |world| world.all_reduce(&mut [1.0f32], Reduce::Sum, DEADLINE),
        |world| world.receive(&mut [0u8], 1, 0, DEADLINE),
        |world| world.receive_any(&mut [0u8], 0, DEADLINE).map(drop),
    ];
    for call in calls {
        everywhere(2, DEADLINE, |world: World| {
            world.open_messages(DEADLINE).unwrap();
            world.all_reduce(&mut [1.0f32], Reduce::Sum, DEADLINE).unwrap();
            if world.rank() == 0 {
                let told = call(&world);
                assert!(matches!(told, Err(Error::PeerLeft { rank: 0, peer: 1, .. })), "{told:?}");
                world.abort("the test is done");
            }
        });
    }
    // It has sent and given all before.
    everywhere(3, DEADLINE, |world: World| {
        let root = 2;
        for _ in 0..20 {
            world.broadcast(&mut [1u8], root, DEADLINE).unwrap();
        }
        match world.rank() {
            0 => {
                std::thread::sleep(Duration::from_millis(100));
                world.receive(&mut [0u8; 1000], root, 0, DEADLINE).unwrap();
            }
            1 => world.open_messages(DEADLINE).unwrap(),
            _ => world.send(&[1u8; 1000], 0, 0, DEADLINE).unwrap(),
        }
    });
}

/// Tests of which only one at a time has worlds: one looks at the memory of all worlds of this process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn over_shared_memory() {
    let _alone = ALONE.lock();
    over(Way::Shm);
}

#[test]
fn over_libfabric() {
    for &provider in common::providers() {
        println!("{provider}");
        over(Way::Ofi(provider));
    }
}

#[test]
fn over_verbs() {
    if common::rdma().is_some() {
        over(Way::Verbs);
    }
}
