//! The libfabric of this machine.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "opens an endpoint")]

mod common;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::barrier::Barrier;
use common::{PROVIDERS, libfabric, until};
use earlybird::fabric::ofi::{Device, OfiFabric, Progress, devices};
use earlybird::fabric::{Access, At, Change, Fabric, Key, Posted, RawAccess, Signal};
use earlybird::{Error, OfiSettings, Result};

#[test]
fn providers_are_found_with_what_they_can_do() {
    let Some(library) = libfabric() else { return };
    let devices = devices(&library).unwrap();
    for device in &devices {
        println!("{device:?}");
    }
    let of = |provider: &str| -> Vec<&Device> {
        let found: Vec<_> = devices.iter().filter(|device| device.provider == provider).collect();
        assert!(!found.is_empty(), "no {provider} in {devices:?}");
        found
    };
    let remote = |device: &&Device| device.ordered_writes > 0 && device.remote_cq_data >= 4 && device.most_bytes > 0;
    for provider in PROVIDERS {
        assert!(of(provider).iter().all(|device| remote(device) && device.atomics), "{provider}");
    }
    // Of these only sockets runs operations by itself that wait for a counter.
    assert!(of("sockets").iter().all(|device| device.triggers && device.remote_counters));
    assert!(of("tcp;ofi_rxm").iter().all(|device| !device.triggers && !device.remote_counters));
    assert!(of("sockets").iter().all(|device| device.trigger_budget().is_some_and(|budget| budget > 100)));
    assert!(of("tcp;ofi_rxm").iter().all(|device| device.trigger_budget().is_none()));
    assert!(of("shm").iter().all(|device| device.progress == Progress::Manual));
    assert_eq!([Progress::Automatic, Progress::Manual].map(Progress::name), ["automatic", "manual"]);
    let names: std::collections::BTreeSet<_> = devices.iter().map(|it| (&it.provider, &it.device)).collect();
    assert_eq!(names.len(), devices.len(), "each device once");
}

#[test]
fn errors_have_a_text() {
    let Some(library) = libfabric() else { return };
    assert_eq!(library.error_text(-11), library.error_text(11));
    assert!(library.error_text(-61).contains("No data"), "{}", library.error_text(-61));
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kilobytes = common::said(&status, "VmRSS:").concat();
    kilobytes.trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Does the same on all ranks at once.
fn together(world: &[OfiFabric], play: impl Fn(&OfiFabric) + Sync) {
    let play = &play;
    std::thread::scope(|scope| world.iter().for_each(|fabric| _ = scope.spawn(move || play(fabric))));
}

/// Both ranks close a collective while one of its writes is in flight: its memory is freed when the write is over.
#[test]
fn memory_of_a_write_that_outlasts_its_collective_is_freed() {
    const BYTES: usize = 32 << 20;
    const TURNS: usize = 16;
    let Some(library) = libfabric() else { return };
    let settings = OfiSettings { provider: Some(PROVIDERS[0].to_owned()), ..OfiSettings::default() };
    let deadline = Instant::now() + Duration::from_secs(60);
    let world = OfiFabric::in_this_process(&library, &settings, 2, deadline).unwrap();
    // SAFETY: all ranks open the same endpoints in the same order; no rank looks at the bytes.
    let access = unsafe { RawAccess::promise() };
    let before = resident();
    let play = |fabric: &OfiFabric| {
        for _ in 0..TURNS {
            let mut end = fabric.open(access).unwrap();
            let own = end.register(BYTES, Access::Write).unwrap();
            let keys = fabric.exchange("keys", &end.key(own).encode(), deadline).unwrap();
            if fabric.rank() == 0 {
                let theirs = end.import(1, Key::decode(&keys[1]).unwrap()).unwrap();
                let at = |region, offset| At { region, offset };
                let signal = Signal { at: at(theirs, BYTES - 8), change: Change::Add(1), awaited: false };
                end.put(at(own, 0), at(theirs, 0), BYTES - 8, Some(signal), 1).unwrap();
            }
            drop(end);
            fabric.exchange("turn", &[], deadline).unwrap();
        }
    };
    together(&world, play);
    until("most of the memory is given back", || resident() < before + TURNS * BYTES / 4);
    world.iter().for_each(|fabric| fabric.health("test").unwrap());
    // A rank that leaves alone would wait for the other.
    together(&world, OfiFabric::leave);
}

/// A rank that has left serves the others until they leave, for as long as its settings say.
#[test]
fn a_rank_that_leaves_serves_the_others() {
    const RANKS: u32 = 2;
    let Some(library) = libfabric() else { return };
    let settings = OfiSettings { provider: Some(PROVIDERS[0].to_owned()), ..OfiSettings::default() };
    let deadline = Instant::now() + Duration::from_secs(60);
    let world = OfiFabric::in_this_process(&library, &settings, RANKS, deadline).unwrap();
    // SAFETY: both ranks open the same endpoint; the bytes are read by an operation, while no rank changes them.
    let access = unsafe { RawAccess::promise() };
    let gone = &Barrier::new(RANKS.into());
    let play = |fabric: &OfiFabric| {
        let mut end = fabric.open(access).unwrap();
        let own = end.register(4096, Access::Read).unwrap();
        let keys = fabric.exchange("keys", &end.key(own).encode(), deadline).unwrap();
        let theirs = end.import(1 - fabric.rank(), Key::decode(&keys[1 - fabric.rank() as usize]).unwrap()).unwrap();
        gone.wait();
        if fabric.rank() == 1 {
            // Longer than a rank takes to end that waits for no other.
            std::thread::sleep(Duration::from_millis(2500));
            let at = |region| At { region, offset: 0 };
            let posted = end.read(at(theirs), at(own), 4096, 1).unwrap();
            until("the peer's memory is read", || posted != Posted::Pending || end.poll().unwrap().is_some());
            drop(end);
        }
        fabric.leave();
    };
    together(&world, play);
}

/// Rank 2 comes to the meeting and then does nothing. Rank 0 gives up and tells rank 1, which would wait longer.
#[test]
fn a_rank_that_gives_up_joining_says_why() {
    let Some(library) = libfabric() else { return };
    let settings = OfiSettings { provider: Some(PROVIDERS[0].to_owned()), ..OfiSettings::default() };
    let cards = Mutex::new(vec![Vec::new(); 3]);
    let (all_told, the_end) = (Barrier::new(3), Barrier::new(3));
    let join = &|rank: u32| -> Result<()> {
        let until = Instant::now() + Duration::from_secs(if rank == 0 { 5 } else { 60 });
        let joined = OfiFabric::join(&library, &settings, (rank, 3), until, |card| {
            cards.lock().unwrap()[rank as usize] = card.to_vec();
            all_told.wait();
            if rank == 2 {
                the_end.wait();
                return Err(Error::Config("it goes no further".to_owned()));
            }
            Ok(cards.lock().unwrap().clone())
        });
        if rank != 2 {
            the_end.wait();
        }
        joined.map(drop)
    };
    let [first, second, _] = std::thread::scope(|scope| {
        let joining = [0, 1, 2].map(|rank| scope.spawn(move || join(rank)));
        joining.map(|thread| thread.join().unwrap().unwrap_err())
    });
    assert!(first.to_string().contains("rank 2 came to the meeting and cannot be reached"), "{first}");
    assert!(matches!(&second, Error::Aborted { by: 0, reason, .. } if *reason == first.to_string()), "{second}");
}
