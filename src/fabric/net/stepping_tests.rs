//! Ranks whose events the test processes in an order of its own, over any wire that carries immediate data.
//!
//! The test holds the lock of an engine, so that no other thread processes its events. An event that the test holds
//! back has not happened for that rank.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::engine::NetEngine;
use super::fabric::NetFabric;
use super::link::Event;
use super::sequence::WINDOW;
use super::suspects::Evidence;
use super::wire::Wire;
use crate::error::Error;
use crate::fabric::{Access, At, Change, Endpoint, Fabric, Posted, RawAccess, Region, Signal};
use crate::fault::Fault;

/// Parts of a transfer.
const PARTS: usize = 3;

/// The first endpoint of a rank.
const CHANNEL: u16 = 1;

pub(in crate::internals::fabric) const PATIENCE: Duration = Duration::from_secs(60);

fn patience() -> Duration {
    Fault::patience(PATIENCE)
}

/// A world of two ranks, with an endpoint each.
pub(in crate::internals::fabric) struct World<W: Wire> {
    pub(in crate::internals::fabric) ends: Vec<Box<dyn Endpoint>>,
    pub(in crate::internals::fabric) ranks: Vec<NetFabric<W>>,
}

impl<W: Wire> World<W> {
    pub(in crate::internals::fabric) fn of(ranks: Vec<NetFabric<W>>) -> Self {
        World { ends: ranks.iter().map(|rank| rank.open(RawAccess::CRATE).unwrap()).collect(), ranks }
    }

    pub(in crate::internals::fabric) fn end(self) {
        let World { ends, ranks } = self;
        drop(ends);
        std::thread::scope(|scope| ranks.iter().for_each(|rank| _ = scope.spawn(|| rank.leave())));
    }
}

/// Makes a world.
type Make<'a, W> = &'a dyn Fn() -> World<W>;

fn at(region: Region, offset: usize) -> At {
    At { region, offset }
}

/// Bytes of a transfer of that many parts.
fn several_parts<W: Wire>(world: &World<W>) -> usize {
    PARTS * world.ranks[0].shared().lock().link.limits.part
}

/// Memory of rank 0, and how rank 1 names it.
fn share<W: Wire>(world: &mut World<W>, bytes: usize, access: Access) -> (Region, Region) {
    let own = world.ends[0].register(bytes, access).unwrap();
    let key = world.ends[0].key(own);
    (own, world.ends[1].import(0, key).unwrap())
}

/// Neither the signal of a large write nor its ack comes before the last part.
fn a_write_is_acknowledged_when_its_last_part_has_landed<W: Wire>(make: Make<W>) {
    let mut world = make();
    let len = several_parts(&world);
    let (own, far) = share(&mut world, len + size_of::<u64>(), Access::Write);
    let near = world.ends[1].register(len, Access::Local).unwrap();
    let window = world.ends[0].window(own).unwrap();
    let cell = window.cell(len / size_of::<u64>());
    let signal = Signal { at: at(far, len), change: Change::Set(7), awaited: true };

    let mut engine = world.ranks[0].shared().lock();
    assert!(engine.link.uses_immediate, "this provider carries immediate data");
    let put = world.ends[1].put(at(near, 0), at(far, 0), len, Some(signal), 1);
    assert_eq!(put.unwrap(), Posted::Pending);
    let (until, mut landed) = (Instant::now() + patience(), Vec::new());
    while landed.len() < PARTS {
        engine.link.poll().unwrap();
        while let Some(event) = engine.link.next() {
            match event {
                Event::Landed(_) => landed.push(event),
                other => engine.process(other),
            }
        }
        engine.ack_all();
        assert_eq!(world.ends[1].poll().unwrap(), None, "acknowledged, and nothing has landed");
        assert!(Instant::now() < until, "{} parts never came", PARTS - landed.len());
    }
    // Every ack that was sent by now has arrived.
    for _ in 0..1000 {
        assert_eq!(world.ends[1].poll().unwrap(), None, "acknowledged, and nothing has landed");
    }
    let last = landed.pop();
    for event in landed {
        engine.process(event);
        assert_eq!(cell.load(Ordering::Acquire), 0, "signalled before the last part has landed");
    }
    last.into_iter().for_each(|event| engine.process(event));
    assert_eq!(cell.load(Ordering::Acquire), 7);
    engine.ack_all();
    drop(engine);
    while world.ends[1].poll().unwrap().is_none() {
        assert!(Instant::now() < until, "the write never completed");
    }
    world.end();
}

fn a_read_completes_with_its_last_part<W: Wire>(make: Make<W>) {
    let mut world = make();
    let len = several_parts(&world);
    let (_, far) = share(&mut world, len, Access::Read);
    let near = world.ends[1].register(len, Access::Local).unwrap();

    let mut engine = world.ranks[1].shared().lock();
    assert_eq!(engine.read(CHANNEL, at(far, 0), at(near, 0), len, 1).unwrap(), Posted::Pending);
    let (until, mut moved) = (Instant::now() + patience(), Vec::new());
    while moved.len() < PARTS {
        engine.link.poll().unwrap();
        while let Some(event) = engine.link.next() {
            match event {
                Event::Moved(..) => moved.push(event),
                other => engine.process(other),
            }
        }
        assert_eq!(world.ends[0].poll().unwrap(), None);
        assert!(Instant::now() < until, "{} parts never came", PARTS - moved.len());
    }
    let last = moved.pop();
    for event in moved {
        engine.process(event);
        assert_eq!(engine.completion(CHANNEL).unwrap(), None, "completed before the last part is here");
    }
    last.into_iter().for_each(|event| engine.process(event));
    assert_eq!(engine.completion(CHANNEL).unwrap().map(|completion| completion.token), Some(1));
    drop(engine);
    world.end();
}

/// More writes with headers than there are slots: writes without credit wait, and all arrive.
fn a_rank_that_does_not_look_loses_nothing<W: Wire>(make: Make<W>) {
    // Bytes of each write: a cell and its data.
    const SLOT: usize = 64;
    const DATA: usize = SLOT - size_of::<u64>();
    let mut world = make();
    let count = 3 * WINDOW as usize;
    let (own, far) = share(&mut world, count * SLOT, Access::Write);
    let near = world.ends[1].register(count * SLOT, Access::Local).unwrap();
    let source = world.ends[1].window(near).unwrap();
    let value = |cell: usize| (cell as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let cells = count * SLOT / size_of::<u64>();
    (0..cells).for_each(|cell| source.cell(cell).store(value(cell), Ordering::Relaxed));

    let until = Instant::now() + patience();
    let stalled = world.ranks[0].shared().lock();
    for number in 0..count {
        let place = number * SLOT;
        let signal = Signal { at: at(far, place), change: Change::Set(number as u64 + 1), awaited: false };
        let (from, to) = (at(near, place + size_of::<u64>()), at(far, place + size_of::<u64>()));
        let put = world.ends[1].put(from, to, DATA, Some(signal), number as u64);
        assert_eq!(put.unwrap(), Posted::Pending);
        assert_eq!(world.ends[1].poll().unwrap(), None, "acknowledged by a rank that does not look");
    }
    drop(stalled);
    let mut done = vec![false; count];
    while done.contains(&false) {
        if let Some(completion) = world.ends[1].poll().unwrap() {
            let before = std::mem::replace(&mut done[completion.token as usize], true);
            assert!(!before, "write {} completed twice", completion.token);
        }
        assert!(Instant::now() < until, "{done:?}");
    }
    let target = world.ends[0].window(own).unwrap();
    for cell in 0..cells {
        let number = cell * size_of::<u64>() / SLOT;
        let expected = if (cell * size_of::<u64>()).is_multiple_of(SLOT) { number as u64 + 1 } else { value(cell) };
        assert_eq!(target.cell(cell).load(Ordering::Acquire), expected, "cell {cell}, of write {number}");
    }
    world.end();
}

/// More parts than a provider takes at once: `Close` and `Leave` come behind all of them.
fn a_channel_is_closed_behind_the_parts_that_wait<W: Wire>(make: Make<W>) {
    const PART: usize = 4 << 10;
    const LEN: usize = 300 * PART;
    let mut world = make();
    let (own, far) = share(&mut world, LEN, Access::Write);
    let near = world.ends[1].register(LEN, Access::Local).unwrap();
    world.ends[1].window(near).unwrap().write(0, &vec![0x42; LEN]);
    let target = world.ends[0].window(own).unwrap();
    let landed = || {
        let mut bytes = vec![0; LEN];
        target.read(0, &mut bytes);
        bytes.iter().filter(|&&byte| byte == 0x42).count()
    };
    world.ranks[1].shared().lock().link.limits.part = PART;

    let until = Instant::now() + patience();
    let mut engine = world.ranks[0].shared().lock();
    assert_eq!(world.ends[1].put(at(near, 0), at(far, 0), LEN, None, 1).unwrap(), Posted::Pending);
    drop(world.ends.pop());
    std::thread::scope(|scope| {
        scope.spawn(|| world.ranks[1].leave());
        while !engine.life.has_left(1) {
            engine.link.poll().unwrap();
            while let Some(event) = engine.link.next() {
                engine.process(event);
                let told = engine.channel(CHANNEL).closed > 0 || engine.life.has_left(1);
                assert!(!told || landed() == LEN, "closed or left with {} of {LEN} bytes", landed());
            }
            engine.ack_all();
            assert!(Instant::now() < until, "it never left: {} of {LEN} bytes are there", landed());
        }
        assert_eq!(engine.channel(CHANNEL).closed, 1, "it left before it closed");
        drop(engine);
        world.ends.clear();
        world.ranks[0].leave();
    });
}

/// A rank that has sent writes with immediate data, and closed its endpoint, neither says so before
/// the target has processed them nor leaves.
fn a_channel_is_closed_behind_writes_that_have_not_landed<W: Wire>(make: Make<W>) {
    let mut world = make();
    let len = several_parts(&world);
    let (_, far) = share(&mut world, len + size_of::<u64>(), Access::Write);
    let near = world.ends[1].register(len, Access::Local).unwrap();
    let signal = Signal { at: at(far, len), change: Change::Set(7), awaited: true };

    let (until, mut landed) = (Instant::now() + patience(), Vec::new());
    let mut engine = world.ranks[0].shared().lock();
    let put = world.ends[1].put(at(near, 0), at(far, 0), len, Some(signal), 1);
    assert_eq!(put.unwrap(), Posted::Pending);
    drop(world.ends.pop());
    let mut quiet = 0;
    while landed.len() < PARTS || quiet < 1000 {
        quiet += 1;
        engine.link.poll().unwrap();
        while let Some(event) = engine.link.next() {
            quiet = 0;
            match event {
                Event::Landed(_) => landed.push(event),
                other => engine.process(other),
            }
        }
        engine.ack_all();
        assert_eq!(engine.channel(CHANNEL).closed, 0, "closed, and nothing has landed");
        assert!(!world.ranks[1].shared().lock().has_settled());
        assert!(Instant::now() < until, "{} parts never came", PARTS - landed.len());
    }
    landed.into_iter().for_each(|event| engine.process(event));
    engine.ack_all();
    while engine.channel(CHANNEL).closed == 0 {
        engine.progress();
        assert!(Instant::now() < until, "it never closed");
    }
    assert!(world.ranks[1].shared().lock().has_settled());
    drop(engine);
    world.end();
}

/// A failed world does not wait for operations in flight.
fn a_world_that_has_failed_waits_for_no_close<W: Wire>(make: Make<W>) {
    let mut world = make();
    let len = several_parts(&world);
    let (_, far) = share(&mut world, len + size_of::<u64>(), Access::Write);
    let near = world.ends[1].register(len, Access::Local).unwrap();
    let signal = Signal { at: at(far, len), change: Change::Set(7), awaited: true };
    let stalled = world.ranks[0].shared().lock();
    let put = world.ends[1].put(at(near, 0), at(far, 0), len, Some(signal), 1);
    assert_eq!(put.unwrap(), Posted::Pending);
    drop(world.ends.pop());
    let has_settled = || world.ranks[1].shared().lock().has_settled();
    assert!(!has_settled());
    world.ranks[1].abort("a test");
    assert!(has_settled());
    drop(stalled);
    world.end();
}

/// The peer has left, answers nothing more, and is found to have ended: the read ends with an error
/// that names the peer.
fn a_read_from_a_rank_that_left_ends<W: Wire>(make: Make<W>) {
    let mut world = make();
    let (_, far) = share(&mut world, size_of::<u64>(), Access::Read);
    let near = world.ends[1].register(size_of::<u64>(), Access::Local).unwrap();
    let until = Instant::now() + patience();
    let has_left = || world.ranks[1].shared().lock().life.has_left(0);
    world.ranks[0].shared().visit().announce_leave();
    while !has_left() {
        for rank in &world.ranks {
            rank.shared().lock().progress();
        }
        assert!(Instant::now() < until, "its goodbye never came");
    }
    let stalled = world.ranks[0].shared().lock();
    assert_eq!(world.ends[1].read(at(far, 0), at(near, 0), size_of::<u64>(), 1).unwrap(), Posted::Pending);
    let error = loop {
        let mut engine = world.ranks[1].shared().lock();
        engine.suspect(0, Evidence::Unreachable("a test".to_owned()));
        engine.progress();
        drop(engine);
        match world.ends[1].poll() {
            Ok(completion) => assert!(completion.is_none(), "no rank has answered"),
            Err(error) => break error,
        }
        assert!(Instant::now() < until, "it never ended");
    };
    assert!(matches!(error, Error::PeerLeft { rank: 1, operation: "read", peer: 0, .. }), "{error}");
    drop(stalled);
    world.end();
}

/// The next event of this kind at a rank. All other events, and those of its peer, are processed.
fn next_event<W: Wire>(
    engine: &mut NetEngine<W>,
    peer: &mut NetEngine<W>,
    until: Instant,
    is_it: impl Fn(&Event) -> bool,
) -> Event {
    loop {
        peer.progress();
        engine.link.poll().unwrap();
        let mut found = None;
        while let Some(event) = engine.link.next() {
            match found.is_none() && is_it(&event) {
                true => found = Some(event),
                false => engine.process(event),
            }
        }
        if let Some(event) = found {
            return event;
        }
        assert!(Instant::now() < until, "nothing of the kind has come");
    }
}

/// A write with a header that has gone out says nothing about the peer, which may be stopped or
/// dead; the answer to a read does.
fn only_what_a_peer_answers_is_a_sign_of_life<W: Wire>(make: Make<W>) {
    const LEN: usize = 64;
    let mut world = make();
    let (_, far) = share(&mut world, 2 * LEN, Access::ReadWrite);
    let near = world.ends[1].register(LEN, Access::Local).unwrap();
    let signal = Signal { at: at(far, LEN), change: Change::Set(7), awaited: false };
    let until = Instant::now() + patience();

    let mut target = world.ranks[0].shared().lock();
    let mut engine = world.ranks[1].shared().lock();
    for answers in [false, true] {
        let posted = match answers {
            false => engine.put(CHANNEL, (at(near, 0), at(far, 0), LEN), Some(signal), 1),
            true => engine.read(CHANNEL, at(far, 0), at(near, 0), LEN, 2),
        };
        assert_eq!(posted.unwrap(), Posted::Pending);
        let moved = next_event(&mut engine, &mut target, until, |event| matches!(event, Event::Moved(..)));
        engine.life.was_heard(0);
        engine.process(moved);
        assert_eq!(engine.life.was_heard(0), answers);
    }
    drop((engine, target));
    world.end();
}

/// The writer gets a sign of life although there is nothing to acknowledge yet.
fn a_writer_is_reassured_while_its_write_lands<W: Wire>(make: Make<W>) {
    const POLLS: u32 = 1000;
    let mut world = make();
    let len = several_parts(&world);
    let (_, far) = share(&mut world, len + size_of::<u64>(), Access::Write);
    let near = world.ends[1].register(len, Access::Local).unwrap();
    let signal = Signal { at: at(far, len), change: Change::Set(7), awaited: true };
    let until = Instant::now() + patience();

    let mut target = world.ranks[0].shared().lock();
    let mut writer = world.ranks[1].shared().lock();
    let put = writer.put(CHANNEL, (at(near, 0), at(far, 0), len), Some(signal), 1);
    assert_eq!(put.unwrap(), Posted::Pending);
    let landed = next_event(&mut target, &mut writer, until, |event| matches!(event, Event::Landed(_)));
    // Let all other messages arrive.
    let mut quiet = 0;
    while quiet < POLLS {
        target.progress();
        writer.progress();
        quiet = if writer.life.was_heard(0) { 0 } else { quiet + 1 };
        assert!(Instant::now() < until, "it hears of a rank that has nothing to say");
    }
    target.reassure_senders(|_| true);
    while !writer.life.was_heard(0) {
        target.progress();
        writer.progress();
        assert!(Instant::now() < until, "it hears nothing");
    }
    assert_eq!(writer.completion(CHANNEL).unwrap(), None, "a part has not landed");
    target.process(landed);
    drop((writer, target));
    world.end();
}

/// In either order of its messages.
fn a_rank_of_a_failed_world_never_seems_to_leave_in_good_order<W: Wire>(make: Make<W>) {
    let world = make();
    let mut engine = world.ranks[0].shared().lock();
    world.ranks[1].abort("a test");
    world.ranks[1].leave();
    let (until, mut messages) = (Instant::now() + patience(), Vec::new());
    let mut quiet = 0;
    while messages.len() < 2 || quiet < 1000 {
        quiet += 1;
        engine.link.poll().unwrap();
        while let Some(event) = engine.link.next() {
            quiet = 0;
            messages.push(event);
        }
        assert!(Instant::now() < until, "it said {messages:?}");
    }
    for event in messages.into_iter().rev() {
        engine.process(event);
        assert!(engine.health("test").is_err() || !engine.life.has_left(1), "it seems to have left in good order");
    }
    let failed = engine.health("test").unwrap_err();
    assert!(matches!(&failed, Error::Aborted { by: 1, reason, .. } if reason == "a test"), "{failed}");
    drop(engine);
    world.end();
}

/// All of the suite, over a wire whose reads need the peer's process.
pub(in crate::internals::fabric) fn all<W: Wire>(make: Make<W>) {
    over_devices(make);
    a_read_from_a_rank_that_left_ends(make);
}

/// The suite over a wire whose reads a device answers, also for a rank that has left.
pub(in crate::internals::fabric) fn over_devices<W: Wire>(make: Make<W>) {
    a_write_is_acknowledged_when_its_last_part_has_landed(make);
    a_read_completes_with_its_last_part(make);
    a_rank_that_does_not_look_loses_nothing(make);
    a_channel_is_closed_behind_the_parts_that_wait(make);
    a_channel_is_closed_behind_writes_that_have_not_landed(make);
    a_world_that_has_failed_waits_for_no_close(make);
    only_what_a_peer_answers_is_a_sign_of_life(make);
    a_writer_is_reassured_while_its_write_lands(make);
    a_rank_of_a_failed_world_never_seems_to_leave_in_good_order(make);
}
