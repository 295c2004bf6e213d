//! What a process can do to a world that it is no rank of, and a rank with a key that it was not given. The stranger has
//! queue pairs of its own at the same device, and knows the numbers of a rank's.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use earlybird_ffi::verbs::sys::{IBV_SEND_SIGNALED, IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS, ibv_wc_status};
use earlybird_ffi::verbs::{
    self, AddressHandle, Capacity, Domain, Library, NO_COMPLETION, Queue, QueuePair, ReceiveQueue, Request, Route,
    Settings, Verb,
};

use super::address::Address;
use super::device::{self, Port};
use super::handshake::{End, Hello};
use super::hellos::Hellos;
use super::opening::VerbsFabric;
use super::registration::{REMOTE_ACCESS, Registered, Registrar};
use super::settings;
use super::wire::VerbsWire;
use super::work::WorkRequest;
use crate::config::VerbsSettings;
use crate::error::Error;
use crate::fabric::net::stepping_tests::{self, PATIENCE};
use crate::fabric::net::{JobSecret, PeerInfo, Purpose, Registered as _};
use crate::fabric::{Access, At, Atomic, Change, Key, Posted, Region, Signal};
use crate::seal::Secret;
use crate::skipped::{Need, skipped};

/// Bytes that a stranger tries to read or write.
const LEN: usize = 64;

/// The library, if there is a device with an active port; says so if not.
pub(super) fn library() -> Option<Library> {
    let library = super::library().inspect_err(|problem| skipped(Need::Verbs, problem)).ok()?;
    let found = device::devices(&library).is_ok_and(|ports| ports.iter().any(|port| port.active));
    if !found {
        skipped(Need::Verbs, "no RDMA device has an active port here");
    }
    found.then_some(library)
}

pub(super) type World = stepping_tests::World<VerbsWire>;

fn world(library: &Library, ranks: u32, settings: &VerbsSettings) -> World {
    let ranks = VerbsFabric::in_this_process(library, settings, ranks, Instant::now() + PATIENCE).unwrap();
    World::of(ranks.into_iter().map(|rank| rank.0).collect())
}

/// Memory of rank 0, filled with a byte, and its key.
fn share(world: &mut World, access: Access, byte: u8) -> (Region, Key) {
    let region = world.ends[0].register(LEN, access).unwrap();
    world.ends[0].window(region).unwrap().write(0, &[byte; LEN]);
    (region, world.ends[0].key(region))
}

fn bytes_of(world: &World, region: Region) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    world.ends[0].window(region).unwrap().read(0, &mut bytes);
    bytes
}

/// Puts and atomics of rank 1 at rank 0, each of which has to take effect once.
fn works(world: &mut World) {
    const ROUNDS: u64 = 40;
    let region = world.ends[0].register(LEN, Access::ReadWrite).unwrap();
    let key = world.ends[0].key(region);
    let far = world.ends[1].import(0, key).unwrap();
    let near = world.ends[1].register(LEN, Access::Local).unwrap();
    let until = Instant::now() + PATIENCE;
    for round in 1..=ROUNDS {
        let signal = Signal { at: At { region: far, offset: 0 }, change: Change::Add(1), awaited: true };
        let (from, to) = (At { region: near, offset: 8 }, At { region: far, offset: 8 });
        if world.ends[1].put(from, to, 48, Some(signal), round).unwrap() == Posted::Pending {
            while world.ends[1].poll().unwrap().is_none() {
                assert!(Instant::now() < until, "put {round} never completed");
            }
        }
        assert_eq!(world.ends[0].window(region).unwrap().cell(0).load(Ordering::Acquire), round);
    }
}

/// A process with a queue pair of its own, which knows what a rank has told the others.
struct Stranger {
    port: Port,
    domain: Arc<Domain>,
    queue: Arc<Queue>,
    receive_queue: Arc<ReceiveQueue>,
    registrar: Registrar,
    memory: Registered,
}

impl Stranger {
    fn new(library: &Library) -> Self {
        let port = device::choose(library, &VerbsSettings::default(), 9).unwrap();
        let domain = Domain::open(port.context.clone()).unwrap();
        let queue = Queue::open(port.context.clone(), 1024, None).unwrap();
        let receive_queue = ReceiveQueue::open(domain.clone(), 16).unwrap();
        let registrar = Registrar::new(9, domain.clone(), None);
        let memory = registrar.allocate(LEN, Purpose::Messages).unwrap();
        Stranger { port, domain, queue, receive_queue, registrar, memory }
    }

    fn pair(&self) -> QueuePair {
        let capacity = Capacity { sends: 16, inline: 0 };
        let queues = (self.domain.clone(), self.queue.clone());
        let pair = QueuePair::open_reliable(queues.0, queues.1, &self.receive_queue, capacity).unwrap();
        pair.initialize(self.port.number, REMOTE_ACCESS).unwrap();
        pair
    }

    /// The way to any port of this device's network: the ranks are at the same one.
    fn route(&self) -> Route {
        let gid = self.port.gid.map(|gid| (gid.bytes, gid.index));
        Route { port: self.port.number, lid: self.port.lid, gid, service_level: 0, traffic_class: 0, hop_limit: 64 }
    }

    /// Points a queue pair at a rank's and makes a request, whose packets have numbers from `sequence` on. How it ends.
    fn tries(&self, number: u32, sequence: u32, verb: Verb) -> ibv_wc_status {
        let pair = self.pair();
        let settings = Settings {
            timeout: 13,
            retry_count: 2,
            ..settings::of_connection(self.port.mtu, 1, &VerbsSettings::default())
        };
        let peer = verbs::Peer { number, packet_sequence: sequence };
        pair.connect(&self.route(), peer, &settings).unwrap();
        pair.ready_to_send(sequence, &settings).unwrap();
        let len = if matches!(verb, Verb::FetchAdd { .. }) { 8 } else { LEN };
        let request = Request { id: 1, verb, local: Some(self.memory.local(0, len)), flags: IBV_SEND_SIGNALED };
        // SAFETY: the memory lives longer than the queue pair, and nothing uses it until the completion.
        unsafe { pair.post(1, |_| request) }.unwrap();
        let until = Instant::now() + PATIENCE;
        let mut entries = [NO_COMPLETION];
        while self.queue.poll(&mut entries).unwrap() == 0 {
            assert!(Instant::now() < until, "it never completed");
            std::thread::yield_now();
        }
        entries[0].status
    }
}

/// The keys are right, and the number of the queue pair. But that one is connected to another, and counts packets from a
/// number that no other was told.
#[test]
fn a_queue_pair_of_a_stranger_gets_no_answer() {
    let Some(library) = library() else { return };
    let mut world = world(&library, 2, &VerbsSettings::default());
    let (region, Key([_, _, key, base])) = share(&mut world, Access::ReadWrite, 0x42);
    let number = world.ranks[0].shared().lock().link.wire.first.connections.end_for(1).unwrap().pair;
    let stranger = Stranger::new(&library);
    let at = verbs::Remote { address: base, key: key as u32 };
    for verb in [Verb::Read(at), Verb::Write(at), Verb::WriteWithImmediate(at, 1), Verb::FetchAdd { at, add: 1 }] {
        stranger.memory.window().write(0, &[0xBD; LEN]);
        for sequence in [0, 0x55_5555, 0xAA_AAAA] {
            let status = stranger.tries(number, sequence, verb);
            assert_eq!(status, IBV_WC_RETRY_EXC_ERR, "{verb:?}: {}", stranger.queue.status_text(status));
        }
        let mut read = [0; LEN];
        stranger.memory.window().read(0, &mut read);
        assert_eq!(read, [0xBD; LEN], "{verb:?} reads");
        assert_eq!(bytes_of(&world, region), [0x42; LEN], "{verb:?} writes");
    }
    works(&mut world);
    world.end();
}

/// A connected rank whose key is wrong, or allows less than it wants: its device tells it so, and it gives the world up
/// with an error that names the owner. The memory stays as it was, and no rank waits for ever.
#[test]
fn a_wrong_key_fails_the_world_and_writes_nothing() {
    const RANKS: u32 = 3;
    const ALLOWED: u32 = 48;
    let Some(library) = library() else { return };
    let mut settings = VerbsSettings::default();
    settings.patience.linger = Duration::from_millis(200);
    for case in ["another key", "memory that may be read"] {
        for add in [false, true] {
            let mut world = world(&library, RANKS, &settings);
            let (region, Key([what, bytes, key, base])) = share(&mut world, Access::ReadWrite, 0x42);
            let (read_only, Key([only_read, _, read_key, read_base])) = share(&mut world, Access::Read, 0x42);
            let forged = match case {
                "another key" => Key([what, bytes, key ^ 0xF00, base]),
                _ => Key([only_read & ((1 << ALLOWED) - 1) | what >> ALLOWED << ALLOWED, bytes, read_key, read_base]),
            };
            let far = world.ends[1].import(0, forged).unwrap();
            let near = world.ends[1].register(LEN, Access::Local).unwrap();
            world.ends[1].window(near).unwrap().write(0, &[0xBD; LEN]);
            let at = |region| At { region, offset: 0 };
            let posted = match add {
                true => world.ends[1].atomic(at(far), Atomic::FetchAdd(1), 1),
                false => world.ends[1].put(at(near), at(far), LEN, None, 1),
            };
            assert_eq!(posted.unwrap(), Posted::Pending);
            let until = Instant::now() + PATIENCE;
            let mut errors = vec![None; RANKS as usize];
            while errors.iter().any(Option::is_none) {
                for (rank, error) in errors.iter_mut().enumerate() {
                    let ended = world.ends[rank].poll();
                    assert!(!matches!(ended, Ok(Some(_))), "rank {rank}: it completes");
                    *error = error.take().or(ended.err().map(|error| (error.to_string(), names(&error))));
                }
                assert!(Instant::now() < until, "{case}: not all ranks hear of it: {errors:?}");
            }
            println!("{case}, {}: {errors:?}", if add { "an atomic" } else { "a put" });
            let named: Vec<Option<u32>> = errors.into_iter().map(|error| error.and_then(|(_, named)| named)).collect();
            assert_eq!(named[1], Some(0), "{case}");
            // Rank 2 hears first from one end of the connection that failed, and each names the other.
            assert!(named[0].is_some() && matches!(named[2], Some(0 | 1)), "{case}: {named:?}");
            assert_eq!([region, read_only].map(|region| bytes_of(&world, region)), [[0x42; LEN]; 2], "{case}");
            world.end();
        }
    }
}

/// The rank that an error of a failed world names.
pub(super) fn names(error: &Error) -> Option<u32> {
    match error {
        Error::PeerDied { peer, .. } | Error::Aborted { by: peer, .. } => Some(*peer),
        _ => None,
    }
}

/// The datagrams of a process that was introduced as rank 1 of two.
struct Introduced {
    stranger: Stranger,
    hellos: Hellos,
    own: Address,
    handle: AddressHandle,
}

impl Introduced {
    fn new(library: &Library) -> Self {
        let stranger = Stranger::new(library);
        let (port, queue_key) = (&stranger.port, 7);
        let hellos = Hellos::open(&stranger.registrar, &stranger.queue, (port.number, queue_key)).unwrap();
        let gid = port.gid.map_or([0; 16], |gid| gid.bytes);
        let datagrams = hellos.number();
        let own = Address { lid: port.lid, gid, mtu: port.mtu, outstanding_reads: 1, datagrams, queue_key };
        let handle = AddressHandle::open(stranger.domain.clone(), &stranger.route()).unwrap();
        Introduced { stranger, hellos, own, handle }
    }

    /// Says hello to rank 0 under this seal.
    fn says(&mut self, theirs: &Address, hello: &Hello, to: u32, secret: &JobSecret) {
        self.hellos.send((&self.handle, theirs), to, hello, secret).unwrap();
    }

    /// The next hello, if one comes in this time.
    fn hears(&mut self, secret: &JobSecret, at_most: Duration) -> Option<Hello> {
        let until = Instant::now() + at_most;
        let mut entries = [NO_COMPLETION];
        while Instant::now() < until {
            if self.stranger.queue.poll(&mut entries).unwrap() == 0 {
                std::thread::yield_now();
                continue;
            }
            assert_eq!(entries[0].status, IBV_WC_SUCCESS);
            match WorkRequest::decode(entries[0].wr_id) {
                Some(WorkRequest::Hello { buffer }) => {
                    let hello = self.hellos.received((buffer, entries[0].byte_len as usize), 1, secret);
                    self.hellos.post_receive(buffer).unwrap();
                    return Some(hello.unwrap());
                }
                Some(WorkRequest::HelloSent { buffer }) => self.hellos.sent(buffer),
                other => panic!("{other:?}"),
            }
        }
        None
    }
}

/// Only a hello under the seal of a rank, for this rank and this rail, connects to it. What a process hears at the meeting
/// does not let it seal.
#[test]
fn a_hello_without_its_seal_connects_nothing() {
    let Some(library) = library() else { return };
    let mut introduced = Introduced::new(&library);
    let pair = introduced.stranger.pair();
    let (tell, told) = std::sync::mpsc::channel();
    let own = introduced.own;
    let join = || {
        let mut settings = VerbsSettings::default();
        settings.patience.linger = Duration::from_millis(200);
        VerbsFabric::join(&library, &settings, (0, 2), Instant::now() + Duration::from_secs(15), |info| {
            let mut other = PeerInfo::decode(info).unwrap();
            let theirs = Address::decode(&other.address).unwrap();
            other.address = own.encode();
            let introductions = vec![info.to_vec(), other.encode()];
            tell.send((theirs, introductions.clone())).unwrap();
            Ok(introductions)
        })
    };
    std::thread::scope(|scope| {
        let joining = scope.spawn(join);
        let (theirs, introductions) = told.recv().unwrap();
        let agreed = |meeting: &[u8]| JobSecret::agreed(&Secret::of(meeting), &introductions);
        let (secret, guessed) = (agreed(b"earlybird"), agreed(b"guessed"));
        let first = introduced.hears(&secret, PATIENCE).unwrap();
        assert_eq!((first.from, first.rail, first.connected, first.ready), (0, 0, false, false));
        let end = End { pair: pair.number(), sequence: 5 };
        let right = Hello { from: 1, rail: 0, end, connected: true, ready: false };
        introduced.says(&theirs, &right, 0, &guessed);
        // What this rank has said itself, and what it was to hear elsewhere.
        introduced.says(&theirs, &first, 1, &secret);
        introduced.says(&theirs, &right, 2, &secret);
        introduced.says(&theirs, &Hello { rail: 1, ..right }, 0, &secret);
        // Of the rank itself, and of one that the world does not have.
        [0, 2, u32::MAX].iter().for_each(|&from| introduced.says(&theirs, &Hello { from, ..right }, 0, &secret));
        let until = Instant::now() + Duration::from_secs(2);
        let mut heard = 0;
        while Instant::now() < until {
            let hello = introduced.hears(&secret, Duration::from_millis(100));
            heard += u32::from(hello.is_some());
            assert!(!hello.is_some_and(|hello| hello.connected || hello.ready), "{hello:?}: it has connected");
        }
        assert!(heard > 0, "it says hello until it is answered");
        introduced.says(&theirs, &right, 0, &secret);
        let until = Instant::now() + PATIENCE;
        while !introduced.hears(&secret, Duration::from_millis(100)).is_some_and(|hello| hello.connected) {
            assert!(Instant::now() < until, "the right seal connects");
        }
        let error = joining.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("rank 1 came to the meeting and cannot be reached"), "{error}");
    });
}

/// The engine with puts and signals by messages, as over devices without atomics.
#[test]
fn nothing_completes_before_its_data_is_processed() {
    let Some(library) = library() else { return };
    let settings = VerbsSettings { device_atomics: Some(false), ..VerbsSettings::default() };
    stepping_tests::over_devices(&|| world(&library, 2, &settings));
}
