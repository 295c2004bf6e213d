//! Broadcasts in worlds whose ranks are all in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::World;
use crate::config::{Config, FabricChoice};
use crate::error::{Error, Result};
use crate::fabric::shm::ShmFabric;
use crate::fabric::{Endpoint, Fabric, RawAccess, sealed};
use crate::fault::Fault;
use crate::model::HwConfig;

const DEADLINE: Duration = Duration::from_secs(20);

/// A rank that a test holds in each broadcast, before it reads from the root.
#[derive(Debug)]
struct Slow {
    fabric: ShmFabric,
    hold: Arc<Hold>,
}

#[derive(Debug, Default)]
struct Hold {
    has_come: AtomicBool,
    is_over: AtomicBool,
}

impl sealed::Sealed for Slow {}

impl Fabric for Slow {
    fn name(&self) -> &'static str {
        self.fabric.name()
    }

    fn rank(&self) -> u32 {
        self.fabric.rank()
    }

    fn ranks(&self) -> u32 {
        self.fabric.ranks()
    }

    fn hosts(&self) -> Vec<u32> {
        self.fabric.hosts()
    }

    fn neighbours(&self) -> u32 {
        self.fabric.neighbours()
    }

    fn open(&self, access: RawAccess) -> Result<Box<dyn Endpoint>> {
        self.fabric.open(access)
    }

    fn exchange(&self, operation: &'static str, mine: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let given = self.fabric.exchange(operation, mine, deadline);
        if operation == "broadcast" {
            self.hold.has_come.store(true, Ordering::Release);
            while !self.hold.is_over.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        given
    }

    fn health(&self, operation: &'static str) -> Result<()> {
        self.fabric.health(operation)
    }

    fn look_for_dead(&self, operation: &'static str) -> Result<()> {
        self.fabric.look_for_dead(operation)
    }

    fn abort(&self, reason: &str) {
        self.fabric.abort(reason);
    }

    fn leave(&self) {
        self.fabric.leave();
    }
}

fn different_lengths_are_an_error() {
    let config = Config { fabric: FabricChoice::Shm, ..Config::default() };
    let (worlds, fault) = (World::in_this_process(2, &config).unwrap(), Fault::chosen());
    let play = |world: &World| {
        let mut data = vec![1u64; 4 + world.rank() as usize];
        Fault::passed_on(fault, || world.broadcast(&mut data, 0, DEADLINE))
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = worlds.iter().map(|world| scope.spawn(move || play(world))).collect();
        for rank in ranks {
            let told = rank.join().unwrap();
            assert!(matches!(told, Err(Error::Mismatch { what: "the length in bytes", .. })), "{told:?}");
        }
    });
}

fn the_root_returns_when_all_ranks_have_read() {
    let parameters = HwConfig::load(None).unwrap().of("shm", None).unwrap();
    let config = Config { deadline: DEADLINE, ..Config::default() };
    let world = |fabric: Arc<dyn Fabric>| World::new(fabric, parameters.clone(), &config, "a test");
    let [zero, one]: [ShmFabric; 2] = ShmFabric::in_this_process(2).unwrap().try_into().unwrap();
    let hold = Arc::new(Hold::default());
    let (root, reader) = (world(Arc::new(zero)), world(Arc::new(Slow { fabric: one, hold: hold.clone() })));
    let fault = Fault::chosen();
    let play = |world: &World, mut data: [u64; 4]| {
        Fault::passed_on(fault, || world.broadcast(&mut data, 0, DEADLINE)).map(|()| data)
    };
    thread::scope(|scope| {
        let reading = scope.spawn(|| play(&reader, [0; 4]));
        let sending = scope.spawn(|| play(&root, [7; 4]));
        while !hold.has_come.load(Ordering::Acquire) && !reading.is_finished() {
            thread::yield_now();
        }
        // The root must not return however long the hold lasts; with a fault it gets the time to.
        let long = if fault.is_some() { Duration::from_secs(5) } else { Duration::from_millis(100) };
        let since = Instant::now();
        while !sending.is_finished() && since.elapsed() < long {
            thread::sleep(Duration::from_millis(1));
        }
        let is_early = sending.is_finished();
        hold.is_over.store(true, Ordering::Release);
        let told = [reading, sending].map(|rank| rank.join().unwrap().unwrap());
        assert!(!is_early, "the root has returned before rank 1 has read anything");
        assert_eq!(told, [[7; 4]; 2]);
    });
}

/// Of any length, from any root, and more of them than a world has endpoints.
#[test]
fn broadcasts_copy_what_does_not_fit_into_a_chunk() {
    let config = Config { fabric: FabricChoice::Shm, ..Config::default() };
    let worlds = World::in_this_process(3, &config).unwrap();
    let play = |world: &World| {
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
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = worlds.iter().map(|world| scope.spawn(move || play(world))).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

fn all() {
    different_lengths_are_an_error();
    the_root_returns_when_all_ranks_have_read();
}

#[test]
fn broadcasts_compare_and_wait() {
    all();
}

#[cfg(feature = "faults")]
#[test]
fn every_fault_is_found() {
    let unseen = Fault::unseen(crate::fault::Suite::Broadcasts.faults(), RawAccess::CRATE, all);
    assert!(unseen.is_empty(), "unseen: {unseen:?}");
}
