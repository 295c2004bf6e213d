//! Queues that hold as little as they may, or too little, and what a device reports by itself. The test holds the lock of
//! an engine, so that no thread reads its completion queue.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use earlybird_ffi::verbs::sys::IBV_EVENT_QP_ACCESS_ERR;
use earlybird_ffi::verbs::{Event, Library, NO_COMPLETION};

use super::opening::VerbsFabric;
use super::settings::{Depths, LEAST_SENDS};
use super::stranger_tests::{World, library, names};
use super::work::WorkRequest;
use crate::config::{Patience, VerbsSettings};
use crate::error::Error;
use crate::fabric::net::stepping_tests::PATIENCE;
use crate::fabric::net::{self, Local, Purpose, Wire};
use crate::fabric::{Access, At, Change, Fabric, Posted, Signal};

/// Receives for each peer, as few as they may be.
const RECEIVES: usize = 16;

fn world(library: &Library, ranks: u32, depths: impl Fn(u32) -> Depths + Sync) -> World {
    let (linger, silence) = (Duration::from_millis(200), Duration::from_secs(3));
    let patience = Patience { silence, linger };
    let settings = VerbsSettings { patience, ..VerbsSettings::default() };
    let until = Instant::now() + PATIENCE;
    let ranks = net::in_this_process(ranks, |rank, gather| {
        VerbsFabric::join_with(Some(depths(rank)), library, &settings, (rank, ranks), until, gather)
    });
    World::of(ranks.unwrap().into_iter().map(|rank| rank.0).collect())
}

fn smallest(ranks: u32) -> Depths {
    Depths::of(RECEIVES * net::peers(ranks), LEAST_SENDS as u32, ranks)
}

/// Messages of no meaning to rank 0, until its device takes no more, or the send queue.
fn flood(world: &World, from: u32) {
    for _ in 0..40 {
        while world.ranks[from as usize].shared().lock().link.wire.inject(0, &[0; 32]).unwrap() {}
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Each rank posts more puts to its neighbour than the queues hold, and all land.
#[test]
fn a_storm_of_puts_over_the_smallest_queues() {
    const RANKS: usize = 3;
    const PUTS: u64 = 300;
    let Some(library) = library() else { return };
    let mut world = world(&library, RANKS as u32, |_| smallest(RANKS as u32));
    let own: Vec<_> = world.ends.iter_mut().map(|end| end.register(4096, Access::ReadWrite).unwrap()).collect();
    let keys: Vec<_> = world.ends.iter().zip(&own).map(|(end, &own)| end.key(own)).collect();
    let far: Vec<_> = (0..RANKS)
        .map(|rank| {
            let next = (rank + 1) % RANKS;
            world.ends[rank].import(next as u32, keys[next]).unwrap()
        })
        .collect();
    let mut done = [0; RANKS];
    for number in 0..PUTS {
        for rank in 0..RANKS {
            let signal = Signal { at: At { region: far[rank], offset: 0 }, change: Change::Add(1), awaited: true };
            let (from, to) = (At { region: own[rank], offset: 2048 }, At { region: far[rank], offset: 1024 });
            let posted = world.ends[rank].put(from, to, 512, Some(signal), number).unwrap();
            done[rank] += u64::from(posted != Posted::Pending);
        }
    }
    let until = Instant::now() + PATIENCE;
    while done != [PUTS; RANKS] {
        for (end, done) in world.ends.iter_mut().zip(&mut done) {
            *done += u64::from(end.poll().unwrap().is_some());
        }
        assert!(Instant::now() < until, "{done:?} of {PUTS} puts completed");
    }
    for (end, &own) in world.ends.iter().zip(&own) {
        assert_eq!(end.window(own).unwrap().cell(0).load(Ordering::Acquire), PUTS);
    }
    for rank in &world.ranks {
        assert_eq!(rank.shared().lock().link.wire.trouble(), None);
    }
    world.end();
}

/// All that can complete at a rank completes, and it reads nothing meanwhile: its receives, and each send queue, which
/// fails when it is full. The completion queue has an entry for all of it.
#[test]
fn the_completion_queue_holds_all_that_can_complete() {
    const RANKS: u32 = 3;
    let Some(library) = library() else { return };
    let depths = smallest(RANKS);
    let world = world(&library, RANKS, |_| depths);
    let mut engine = world.ranks[0].shared().lock();
    (1..RANKS).for_each(|peer| flood(&world, peer));
    let wire = &mut engine.link.wire;
    let memory = wire.registrar().allocate(64, Purpose::Messages).unwrap();
    for peer in 0..RANKS {
        let message = || Local { memory: &memory, offset: 0, len: 64 };
        // SAFETY: the memory lives longer than the queue pairs are able to send, and nothing else uses it.
        while unsafe { wire.send(peer, message(), depths.receives) }.unwrap() {}
    }
    wire.first.connections.break_all();
    std::thread::sleep(Duration::from_millis(500));
    let (mut receives, mut sends) = (0, [0; RANKS as usize]);
    let mut entries = [NO_COMPLETION];
    while wire.first.queue.poll(&mut entries).unwrap() > 0 {
        match WorkRequest::decode(entries[0].wr_id).unwrap() {
            WorkRequest::Receive { .. } => receives += 1,
            WorkRequest::Operation { peer, .. } | WorkRequest::Unsignaled { peer, .. } => sends[peer as usize] += 1,
            WorkRequest::Hello { .. } | WorkRequest::HelloSent { .. } => {}
        }
    }
    println!("{receives} receives of {}, {sends:?} sends of {}", depths.receives, depths.sends);
    assert_eq!(receives, depths.receives, "the receive queue was not empty, or held more");
    // To itself it has sent nothing before.
    assert_eq!(sends[0], depths.sends);
    assert!(sends.iter().all(|&sends| sends > depths.sends / 4 && sends <= depths.sends), "{sends:?}");
    assert_eq!(wire.trouble(), None);
    drop(engine);
    world.end();
    drop(memory);
}

/// Calls until each rank's world has failed.
fn errors(world: &World) -> Vec<Error> {
    let until = Instant::now() + PATIENCE;
    let error = |rank: &dyn Fabric| loop {
        match rank.check_peers("test") {
            Err(error) => break error,
            Ok(()) => assert!(Instant::now() < until, "no error comes"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    world.ranks.iter().map(|rank| error(rank)).collect()
}

/// A rank that has lost completions would wait for what they tell, or name the other rank, which lives.
#[test]
fn an_overrun_of_the_completion_queue_fails_the_world() {
    let Some(library) = library() else { return };
    let usual = Depths::in_world(128, None, 2);
    let world = world(&library, 2, |rank| if rank == 0 { Depths { completions: 8, ..usual } } else { usual });
    let engine = world.ranks[0].shared().lock();
    flood(&world, 1);
    drop(engine);
    let errors = errors(&world);
    println!("{errors:?}");
    let is_told = |cause: &str| cause.starts_with("libibverbs: ") && cause.ends_with(" reports: CQ error");
    assert!(matches!(&errors[0], Error::Transport { rank: 0, peer: None, cause, .. } if is_told(cause)), "{errors:?}");
    assert_eq!(names(&errors[1]), Some(0), "{errors:?}");
    world.end();
}

/// Soft-RoCE has no event of a connection alone, so the test has one of its own.
#[test]
fn an_event_of_a_connection_names_its_peer() {
    let Some(library) = library() else { return };
    let world = world(&library, 3, |_| Depths::in_world(128, None, 3));
    let mut engine = world.ranks[0].shared().lock();
    let wire = &mut engine.link.wire;
    let (kind, text) = (IBV_EVENT_QP_ACCESS_ERR, "access error".to_owned());
    let queue_pair = wire.first.connections.end_for(2).map(|end| end.pair);
    let broken = wire.first.events.take(&Event { kind, text: text.clone(), queue_pair, port: None }).unwrap();
    let trouble = wire.first.explain((broken, text));
    assert_eq!(trouble.peer, Some(2));
    engine.take_trouble(trouble);
    drop(engine);
    let errors = errors(&world);
    println!("{errors:?}");
    let is_told = |how: &str| how == "libibverbs: access error";
    assert!(matches!(&errors[0], Error::PeerDied { rank: 0, peer: 2, how, .. } if is_told(how)), "{errors:?}");
    assert_eq!(names(&errors[1]), Some(2), "{errors:?}");
    assert!(names(&errors[2]).is_some(), "{errors:?}");
    world.end();
}
