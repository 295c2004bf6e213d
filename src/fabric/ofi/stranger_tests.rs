//! What an endpoint that is not part of a world can do to it, over `tcp;ofi_rxm`, where any process
//! that knows an address can connect.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use earlybird_ffi::ofi::{
    self, Code, Domain, InfoList, Library, Local, NO_COMPLETION, Queue, Remote, Sign, Wanted, sys,
};
use parking_lot::Mutex;

use super::door;
use super::opening::OfiFabric;
use super::probe;
use super::wire::OfiWire;
use crate::config::OfiSettings;
use crate::fabric::net::stepping_tests::{self, PATIENCE};
use crate::fabric::net::{
    Content, Event, IN_SLOT, ImmediateData, JobSecret, Location, MOST_GUESSES, Message, PeerInfo,
};
use crate::fabric::{Access, At, Atomic, Change, Fabric, Key, Posted, Signal};
use crate::skipped::{Need, skipped};

const PROVIDER: &str = "tcp;ofi_rxm";

/// Bytes that a stranger tries to read or write.
const LEN: usize = 64;

pub(super) fn library() -> Option<Library> {
    Library::load(None).inspect_err(|problem| skipped(Need::Libfabric, problem)).ok()
}

pub(super) type World = stepping_tests::World<OfiWire>;

impl World {
    pub(super) fn new(library: &Library) -> Self {
        let settings = OfiSettings { provider: Some(PROVIDER.to_owned()), ..OfiSettings::default() };
        let ranks = OfiFabric::in_this_process(library, &settings, 2, Instant::now() + PATIENCE).unwrap();
        World::of(ranks.into_iter().map(|rank| rank.0).collect())
    }

    /// A world whose rank 1 has a device with at most `cq_data` bytes of immediate data.
    fn with_a_lesser_device(library: &Library, cq_data: u32) -> Self {
        let settings = OfiSettings { provider: Some(PROVIDER.to_owned()), ..OfiSettings::default() };
        World::telling(library, &settings, |info| {
            info.header_slots = info.header_slots.filter(|_| cq_data as usize >= ImmediateData::BYTES);
            info.cq_data = cq_data;
        })
    }

    /// A world whose rank 1 tells something else of itself than it is.
    pub(super) fn telling(library: &Library, settings: &OfiSettings, change: impl Fn(&mut PeerInfo) + Sync) -> Self {
        let (infos, all_told, change) = (Mutex::new(vec![Vec::new(); 2]), Barrier::new(2), &change);
        let join = &|rank: u32| {
            OfiFabric::join(library, settings, (rank, 2), Instant::now() + PATIENCE, |info| {
                let mut info = PeerInfo::decode(info).unwrap();
                if rank == 1 {
                    change(&mut info);
                }
                infos.lock()[rank as usize] = info.encode();
                all_told.wait();
                Ok(infos.lock().clone())
            })
        };
        let ranks = std::thread::scope(|scope| {
            let joining = [0, 1].map(|rank| scope.spawn(move || join(rank)));
            joining.map(|thread| thread.join().unwrap().unwrap().0)
        });
        World::of(ranks.into())
    }

    /// Messages that rank 0 has dropped.
    fn strangers(&self) -> u64 {
        self.ranks[0].shared().lock().strangers.messages
    }

    /// Memory of rank 0, filled with a byte: its key and the provider's remote address.
    fn share(&mut self, access: Access, byte: u8) -> (u64, u64) {
        let region = self.ends[0].register(LEN, access).unwrap();
        self.ends[0].window(region).unwrap().write(0, &[byte; LEN]);
        let Key([_, _, key, base]) = self.ends[0].key(region);
        (key, base)
    }

    /// Sends more messages and writes from rank 1 to rank 0 than can be in flight at once; none may
    /// be lost, and none be taken for a stranger's.
    pub(super) fn works(&mut self) {
        let before = self.strangers();
        let region = self.ends[0].register(LEN, Access::Write).unwrap();
        let key = self.ends[0].key(region);
        let far = self.ends[1].import(0, key).unwrap();
        let near = self.ends[1].register(LEN, Access::Local).unwrap();
        let until = Instant::now() + PATIENCE;
        for round in 1..=200 {
            let signal = Signal { at: At { region: far, offset: 0 }, change: Change::Set(round), awaited: true };
            let (from, to) = (At { region: near, offset: 0 }, At { region: far, offset: 8 });
            // In a message, and by a write that carries a header.
            let len = if round % 2 == 0 { 8 } else { 48 };
            if self.ends[1].put(from, to, len, Some(signal), round).unwrap() == Posted::Pending {
                while self.ends[1].poll().unwrap().is_none() {
                    assert!(Instant::now() < until, "put {round} never completed");
                }
            }
            assert_eq!(self.ends[0].window(region).unwrap().cell(0).load(Ordering::Acquire), round);
        }
        assert_eq!(self.strangers(), before);
    }
}

/// A process that knows the address of rank 0, and nothing else.
struct Stranger {
    list: InfoList,
    domain: Arc<Domain>,
    address: Vec<u8>,
}

impl Stranger {
    fn new(library: &Library, world: &World) -> Self {
        let provider = std::ffi::CString::new(PROVIDER).unwrap();
        let wanted = Wanted { provider: Some(provider), threading: sys::FI_THREAD_SAFE, ..probe::needed() };
        let list = library.info(&wanted).unwrap();
        let info = list.iter().next().unwrap();
        let domain = Domain::open(ofi::Fabric::open(library, info).unwrap(), info).unwrap();
        let address = world.ranks[0].shared().lock().link.wire.endpoint.name().unwrap();
        // What a stranger can do that has connected all the same.
        door::open(door::internet_address(&address).unwrap());
        Stranger { domain, address, list }
    }

    /// A new endpoint, because a refused operation ends its connection; and the number of rank 0
    /// there.
    fn endpoint(&self) -> (Arc<ofi::Endpoint>, u64) {
        let queue = Queue::open(self.domain.clone(), 64, Sign::None).unwrap();
        let endpoint = ofi::Endpoint::open(self.domain.clone(), self.list.iter().next().unwrap(), queue, 2).unwrap();
        let peer = endpoint.insert(&self.address).unwrap();
        (endpoint, peer)
    }

    /// Tries a one-sided operation. Returns its local memory, first filled with a byte, after
    /// completion; `None` if the operation was refused.
    fn tries(
        &self,
        byte: u8,
        post: impl Fn(&ofi::Endpoint, Local, u64, *mut c_void) -> Result<(), Code>,
    ) -> Option<[u8; LEN]> {
        let (endpoint, peer) = self.endpoint();
        // Never freed: an operation that has not completed may still use it.
        let near = Box::into_raw(Box::new([byte; LEN]));
        let context = Box::into_raw(Box::new(sys::fi_context2 { internal: [ptr::null_mut(); 8] }));
        let local = Local { base: near.cast(), len: LEN, descriptor: ptr::null_mut() };
        let until = Instant::now() + PATIENCE;
        loop {
            match post(&endpoint, local, peer, context.cast()) {
                Ok(()) => break,
                // It has to connect first.
                Err(Code::AGAIN) => _ = endpoint.queue().read(&mut []),
                Err(code) => panic!("{code:?}"),
            }
            assert!(Instant::now() < until, "it never connected");
        }
        loop {
            match endpoint.queue().read(&mut [NO_COMPLETION; 4]) {
                // SAFETY: the operation has completed, so nothing writes there any more.
                Ok(_) => return Some(unsafe { near.read() }),
                Err(Code::AVAILABLE) => return None,
                Err(Code::AGAIN) => assert!(Instant::now() < until, "it never completed"),
                Err(code) => panic!("{code:?}"),
            }
        }
    }

    /// Sends messages, each of which must be counted as a stranger's.
    fn sends(&self, world: &World, messages: &[Vec<u8>]) {
        let (endpoint, peer) = self.endpoint();
        let counted = world.strangers() + messages.len() as u64;
        let until = Instant::now() + PATIENCE;
        let spin = || {
            _ = endpoint.queue().read(&mut []);
            assert!(Instant::now() < until, "{} strangers were counted, not {counted}", world.strangers());
        };
        for message in messages {
            while let Err(code) = endpoint.inject(message, peer) {
                assert_eq!(code, Code::AGAIN);
                spin();
            }
        }
        while world.strangers() < counted {
            spin();
        }
    }

    fn reads(&self, (key, address): (u64, u64)) -> Option<[u8; LEN]> {
        self.tries(0, |endpoint, to, peer, context| {
            // SAFETY: this provider needs no registration of local memory, which lives for ever.
            unsafe { endpoint.read(to, Remote { peer, address, key }, context) }
        })
    }

    /// Whether it wrote there.
    fn writes(&self, (key, address): (u64, u64)) -> bool {
        // Completion means that the data has landed.
        let how = (sys::FI_DELIVERY_COMPLETE, 0);
        let written = self.tries(0xBD, |endpoint, from, peer, context| {
            // SAFETY: as above.
            unsafe { endpoint.write([(from, Remote { peer, address, key })], how, context) }
        });
        written.is_some()
    }
}

/// Neither sequential keys nor keys close to a known one work.
#[test]
fn an_endpoint_that_was_never_introduced_reads_nothing() {
    let Some(library) = library() else { return };
    let mut world = World::new(&library);
    let stranger = Stranger::new(&library, &world);
    let (key, base) = world.share(Access::ReadWrite, 0x42);
    let another = world.share(Access::ReadWrite, 0x43).0;
    let read: Vec<u64> = (0..=64).filter(|&key| stranger.reads((key, base)).is_some()).collect();
    assert!(read.is_empty(), "read with keys {read:?}");
    for near in [another.wrapping_add(1), another.wrapping_sub(1), another ^ 1 << 63, another & u64::from(u32::MAX)] {
        assert_eq!(stranger.reads((near, base)), None, "a key near another");
    }
    // With the key it can read.
    assert_eq!(stranger.reads((key, base)), Some([0x42; LEN]));
    world.end();
}

/// Even with the keys it can do only what the role of the memory allows; memory that no peer needs
/// has no key.
#[test]
fn the_provider_keeps_to_the_role_of_memory() {
    let Some(library) = library() else { return };
    let mut world = World::new(&library);
    let stranger = Stranger::new(&library, &world);
    let [local, read, write, both] =
        [Access::Local, Access::Read, Access::Write, Access::ReadWrite].map(|access| world.share(access, 0x42));
    let (full, none) = (Some([0x42; LEN]), None);
    assert_eq!([read, write, both].map(|place| stranger.reads(place)), [full, none, full]);
    assert_eq!([read, write, both].map(|place| stranger.writes(place)), [false, true, true]);
    assert_eq!(stranger.reads(both), Some([0xBD; LEN]));
    assert_eq!(local, (u64::MAX, u64::MAX), "what is local has a key");
    let slots = world.ranks[0]
        .shared()
        .lock()
        .link
        .header_slots()
        .map(|header_slots| (header_slots.key, header_slots.base))
        .unwrap();
    assert_eq!(stranger.reads(slots), None, "header slots are there to be written");
    world.end();
}

/// A message without the secret changes nothing, whatever it asks for.
#[test]
fn messages_without_the_secret_change_nothing_and_are_counted() {
    let Some(library) = library() else { return };
    let mut world = World::new(&library);
    let stranger = Stranger::new(&library, &world);
    let region = world.ends[0].register(LEN, Access::ReadWrite).unwrap();
    let job: JobSecret = world.ranks[0].shared().lock().secret;
    let (secret, joining) = (job.words(1, 0).word, job.joining);
    let cell = Location { region: 0, offset: 0 };
    let contents = [
        Content::Put { to: Location { region: 0, offset: 8 }, signal: Some((cell, Change::Set(666))), ack_now: true },
        Content::Landing { write_id: 1, parts: 0, signal: (cell, Change::Add(1)), ack_now: true },
        Content::Atomic { at: cell, atomic: Atomic::FetchAdd(1), id: 1 },
        Content::Exchange { turn: 2 },
        Content::Join { turn: 2 },
        Content::Abort { by: 1, last: false },
        Content::Died { rank: 1, last: true },
        Content::Close,
        Content::Leave,
        Content::Ended,
        Content::Ack,
    ];
    let mut messages = Vec::new();
    // Also with what messages carried while the ranks joined, and with what rank 0 shows to rank 1: a stranger may have heard
    // that which stands where rank 1 was.
    for secret in [0, u64::MAX, secret ^ 1, secret ^ 1 << 63, !secret, joining, job.words(0, 1).word] {
        for (content, number) in contents.into_iter().zip(1..) {
            let data = [0xEE; 8];
            let message = Message { secret, from: 1, number, ack: 1, channel: 1, len: 8, content };
            messages.push([&message.encode()[..], &data].concat());
        }
    }
    // The secret at another offset; too short for a header; all zero.
    let put = Message { secret, from: 1, number: 2, ack: 0, channel: 1, len: 0, content: contents[0] }.encode();
    messages.extend([[&put[40..48], &put[..40]].concat(), put[..47].to_vec(), vec![0; 48]]);
    // The same put in a layout with a 32-bit job number.
    let words = [0x0001_0101, 1, secret as u32, 2, 0, 0, 0, 0, 0, 0, 666, 0];
    messages.push(words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect());
    stranger.sends(&world, &messages);

    let window = world.ends[0].window(region).unwrap();
    let mut bytes = [1; LEN];
    window.read(0, &mut bytes);
    assert_eq!(bytes, [0; LEN]);
    for rank in &world.ranks {
        rank.health("a test").unwrap();
    }
    assert!(!world.ranks[0].shared().lock().life.has_left(1));
    world.works();
    world.end();
}

/// Over this provider a write of no bytes delivers immediate data without any key.
#[test]
fn a_write_without_the_tag_has_not_landed() {
    let Some(library) = library() else { return };
    let mut world = World::new(&library);
    {
        let mut engine = world.ranks[0].shared().lock();
        let (tag, other) = (engine.secret.words(1, 0).tag, engine.secret.words(0, 1).tag);
        let mut dropped = |from: u32, which: u16, tag: u32| {
            let (strangers, told) = (engine.strangers.messages, engine.peer_state());
            engine.process(Event::Landed(ImmediateData { from, which }.encode(tag)));
            assert_eq!(engine.strangers.messages, strangers + 1, "{which} of rank {from}");
            assert_eq!(engine.peer_state(), told, "{which} of rank {from}");
        };
        for tag in [tag ^ 1, tag ^ 1 << 31, !tag, other] {
            [0, 1, IN_SLOT - 1, IN_SLOT, IN_SLOT | 2].into_iter().for_each(|which| dropped(1, which, tag));
        }
        dropped(2, 1, tag);
        dropped(1, IN_SLOT | 9, tag); // no rank has written to that slot
    }
    world.works();
    world.end();
}

/// All ranks use the immediate data and tags that every device supports, whatever their own device
/// supports.
#[test]
fn ranks_with_different_devices_write_what_all_can_take() {
    let Some(library) = library() else { return };
    for (cq_data, uses_immediate, tags_immediate) in [(8, true, true), (4, true, false), (2, false, false)] {
        let mut world = World::with_a_lesser_device(&library, cq_data);
        for rank in &world.ranks {
            let engine = rank.shared().lock();
            assert_eq!(
                (engine.link.uses_immediate, engine.link.tags_immediate),
                (uses_immediate, tags_immediate),
                "{cq_data} bytes, rank {}",
                rank.rank()
            );
        }
        world.works();
        world.end();
    }
}

/// 32 bits can be guessed, but the job fails before that.
#[test]
fn a_job_does_not_let_its_tag_be_guessed() {
    let Some(library) = library() else { return };
    let world = World::new(&library);
    let mut engine = world.ranks[0].shared().lock();
    let tag = engine.secret.words(1, 0).tag;
    for guess in 1..=MOST_GUESSES {
        assert!(engine.health("test").is_ok(), "after {guess} guesses");
        engine.process(Event::Landed(ImmediateData { from: 1, which: 1 }.encode(tag.wrapping_add(guess))));
    }
    let failed = engine.health("test").unwrap_err().to_string();
    assert!(failed.contains("the transport failed") && failed.contains("a stranger guesses it"), "{failed}");
}
