//! Cells that a device changes, over `sockets`, whose own thread stands for a device.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::stranger_tests::{World, library};
use crate::config::OfiSettings;
use crate::fabric::net::stepping_tests::PATIENCE;
use crate::fabric::net::{Atomicity, Wire};
use crate::fabric::{Access, At, Atomic, Change, Endpoint, Fabric, Posted, Signal};

const WORD: usize = size_of::<u64>();

fn settings() -> OfiSettings {
    OfiSettings { provider: Some("sockets".to_owned()), device_atomics: Some(true), ..OfiSettings::default() }
}

fn agents(world: &World) -> [Atomicity; 2] {
    [0, 1].map(|rank| world.ranks[rank].shared().lock().link.wire.atomicity())
}

/// Waits for an operation that was posted; returns what it fetched.
fn complete(end: &mut Box<dyn Endpoint>, posted: Posted) -> u64 {
    let until = Instant::now() + PATIENCE;
    loop {
        match posted {
            Posted::Done(value) => return value,
            Posted::Pending => {}
        }
        if let Some(completion) = end.poll().unwrap() {
            return completion.value;
        }
        assert!(Instant::now() < until, "it never completed");
    }
}

/// No thread of the home processes anything: the test has the lock of its engine.
#[test]
fn a_change_needs_no_thread_of_the_home() {
    let Some(library) = library() else { return };
    let mut world = World::telling(&library, &settings(), |_| {});
    assert_eq!(agents(&world), [Atomicity::Device; 2]);
    assert!(world.ranks.iter().all(|rank| !rank.changes_by_processor()));
    let own = world.ends[0].register(4096, Access::Write).unwrap();
    let key = world.ends[0].key(own);
    let far = world.ends[1].import(0, key).unwrap();
    let near = world.ends[1].register(4096, Access::Local).unwrap();
    let window = world.ends[0].window(own).unwrap().clone();
    world.ends[1].window(near).unwrap().write(0, &[7; 2048]);
    let at = |region, cell: usize| At { region, offset: cell * WORD };

    let home = world.ranks[0].shared().lock();
    let end = &mut world.ends[1];
    for number in 1..=100 {
        // Behind data of its cache line, and elsewhere.
        for (to, len, cell) in [(8, 56, 15), (64, 1000, 1)] {
            let signal = |change| Some(Signal { at: at(far, cell), change, awaited: true });
            let posted = end.put(at(near, 0), at(far, to), len, signal(Change::Set(number)), number).unwrap();
            complete(end, posted);
            assert_eq!(window.cell(cell).load(Ordering::Acquire), number);
            let mut landed = vec![0; len];
            window.read(to * WORD, &mut landed);
            assert!(landed.iter().all(|&byte| byte == 7), "{landed:?}");
            window.write(to * WORD, &vec![0; len]);
        }
        let add = Signal { at: at(far, 2), change: Change::Add(3), awaited: true };
        let posted = end.signal(add, number).unwrap();
        complete(end, posted);
        let posted = end.atomic(at(far, 2), Atomic::FetchAdd(1), number).unwrap();
        assert_eq!(complete(end, posted), 4 * number - 1);
        let (expect, new) = (number - 1 + number % 2, number);
        let posted = end.atomic(at(far, 3), Atomic::CompareSwap { expect, new }, number).unwrap();
        // Of two in a row, one finds what it expects.
        assert_eq!(complete(end, posted), number - 1);
        let is_new = expect == number - 1;
        assert_eq!(window.cell(3).load(Ordering::Acquire), if is_new { number } else { number - 1 });
        window.cell(3).store(number, Ordering::Release);
        let posted = end.atomic(at(far, 2), Atomic::FetchAdd(0), number).unwrap();
        assert_eq!(complete(end, posted), 4 * number);
    }
    drop(home);
    world.end();
}

#[test]
fn a_signal_follows_all_parts_of_its_data() {
    let Some(library) = library() else { return };
    let mut world = World::telling(&library, &settings(), |_| {});
    let len = 5 * world.ranks[1].shared().lock().link.limits.part / 2;
    let own = world.ends[0].register(len + WORD, Access::Write).unwrap();
    let key = world.ends[0].key(own);
    let far = world.ends[1].import(0, key).unwrap();
    let near = world.ends[1].register(len, Access::Local).unwrap();
    let window = world.ends[0].window(own).unwrap().clone();
    for number in 1..=20u8 {
        world.ends[1].window(near).unwrap().write(0, &vec![number; len]);
        let cell = At { region: far, offset: len };
        let signal = Signal { at: cell, change: Change::Add(1), awaited: true };
        let (from, to) = (At { region: near, offset: 0 }, At { region: far, offset: 0 });
        let posted = world.ends[1].put(from, to, len, Some(signal), 1).unwrap();
        let until = Instant::now() + PATIENCE;
        while window.cell(len / WORD).load(Ordering::Acquire) < u64::from(number) {
            assert!(Instant::now() < until, "no signal came");
        }
        let mut landed = vec![0; len];
        window.read(0, &mut landed);
        assert!(landed.iter().all(|&byte| byte == number), "{number}");
        complete(&mut world.ends[1], posted);
    }
    world.end();
}

#[test]
fn ranks_of_which_one_has_no_such_device_use_messages() {
    let Some(library) = library() else { return };
    let mut world = World::telling(&library, &settings(), |info| info.by_device = false);
    assert_eq!(agents(&world), [Atomicity::Processor; 2]);
    assert!(world.ranks.iter().all(Fabric::changes_by_processor));
    world.works();
    world.end();
}
