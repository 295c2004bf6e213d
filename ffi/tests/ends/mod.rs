//! Connections of a device with itself, for tests of the bindings.
#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earlybird_ffi::verbs::{
    Capacity, Channel, Context, Domain, Gid, GidKind, Library, Local, Memory, NO_COMPLETION, Peer, PostError, Queue,
    QueuePair, ReceiveQueue, Remote, Request, Route, Settings, Verb, sys,
};
use sys::IBV_SEND_SIGNALED;

use crate::skipped::{Need, skipped};

pub const CELLS: usize = 64;
pub const LIMIT: Duration = Duration::from_secs(20);
const REMOTE: u32 = sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_ATOMIC;

/// A device with an active port, and the way from there to itself.
pub struct Site {
    pub domain: Arc<Domain>,
    pub route: Route,
    pub mtu: sys::ibv_mtu,
}

fn way(port: u8, attributes: &sys::ibv_port_attr, gids: &[Gid]) -> Option<Route> {
    let rank = |gid: &&Gid| match gid.kind {
        GidKind::RoceV2 if gid.bytes[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] => 0,
        GidKind::RoceV2 => 1,
        GidKind::RoceV1 => 2,
        GidKind::InfiniBand => 3,
    };
    let gid = gids.iter().min_by_key(rank)?;
    let is_local = u32::from(attributes.link_layer) == sys::IBV_LINK_LAYER_INFINIBAND;
    let gid = (!is_local).then_some((gid.bytes, gid.index));
    Some(Route { port, lid: attributes.lid, gid, service_level: 0, traffic_class: 0, hop_limit: 1 })
}

impl Site {
    pub fn of(context: &Arc<Context>) -> Option<Self> {
        for port in 1..=context.attributes().unwrap().phys_port_cnt {
            let attributes = context.port(port).unwrap();
            let route = way(port, &attributes, &context.gids(port).unwrap());
            if let (sys::IBV_PORT_ACTIVE, Some(route)) = (attributes.state, route) {
                let domain = Domain::open(context.clone()).unwrap();
                return Some(Site { domain, route, mtu: attributes.active_mtu });
            }
        }
        None
    }

    pub fn find() -> Option<Self> {
        let library = Library::load(None).inspect_err(|problem| skipped(Need::Verbs, problem)).ok()?;
        let devices = library.devices().unwrap();
        let found = devices.iter().find_map(|device| Site::of(&device.open().unwrap()));
        if found.is_none() {
            skipped(Need::Verbs, "no device with an active port here");
        }
        found
    }

    pub fn settings(&self) -> Settings {
        let (retry_count, rnr_retry, min_rnr_timer) = (6, 6, 12);
        Settings { mtu: self.mtu, timeout: 14, retry_count, rnr_retry, min_rnr_timer, outstanding_reads: 4 }
    }
}

/// Cells that peers may reach.
pub struct Cells {
    cells: NonNull<u64>,
    memory: Memory,
}

impl Cells {
    pub fn new(domain: &Arc<Domain>) -> Self {
        let cells = NonNull::from(Box::leak(Box::new([0u64; CELLS]))).cast::<u64>();
        let part = (cells.cast(), CELLS * 8);
        // SAFETY: leaked, so it stays; from here on it is only read and written as volatile.
        let memory = unsafe { Memory::register(domain.clone(), part, sys::IBV_ACCESS_LOCAL_WRITE | REMOTE).unwrap() };
        Cells { cells, memory }
    }

    pub fn at(&self, index: usize) -> *mut u64 {
        assert!(index < CELLS);
        // SAFETY: inside the leaked cells.
        unsafe { self.cells.add(index).as_ptr() }
    }

    pub fn get(&self, index: usize) -> u64 {
        // SAFETY: as above; peers may write them, so nothing is assumed about the value.
        unsafe { self.at(index).read_volatile() }
    }

    pub fn set(&self, index: usize, value: u64) {
        // SAFETY: as above; the tests set only cells that no request uses then.
        unsafe { self.at(index).write_volatile(value) };
    }

    pub fn local(&self, index: usize, cells: u32) -> Option<Local> {
        assert!(index + cells as usize <= CELLS);
        Some(Local { base: self.at(index).cast(), len: 8 * cells, key: self.memory.local_key() })
    }

    pub fn remote(&self, index: usize) -> Remote {
        Remote { address: self.at(index) as u64, key: self.memory.remote_key() }
    }
}

/// One end of a connection, with queues of its own.
pub struct End {
    pub cells: Cells,
    pub channel: Arc<Channel>,
    pub queue: Arc<Queue>,
    pub receives: Arc<ReceiveQueue>,
    pub pair: QueuePair,
}

pub const CAPACITY: Capacity = Capacity { sends: 16, inline: 32 };

impl End {
    pub fn new(site: &Site) -> Self {
        End::with_completions(site, 256)
    }

    /// With a completion queue of so many entries.
    pub fn with_completions(site: &Site, entries: u32) -> Self {
        let (domain, context) = (&site.domain, site.domain.context());
        let channel = Channel::open(context.clone()).unwrap();
        let queue = Queue::open(context.clone(), entries, Some(channel.clone())).unwrap();
        let receives = ReceiveQueue::open(domain.clone(), 16).unwrap();
        let pair = QueuePair::open_reliable(domain.clone(), queue.clone(), &receives, CAPACITY).unwrap();
        assert!(pair.most_inline() >= CAPACITY.inline);
        pair.initialize(site.route.port, REMOTE).unwrap();
        End { cells: Cells::new(domain), channel, queue, receives, pair }
    }

    pub fn connect(&self, site: &Site, number: u32, (own, others): (u32, u32)) {
        let peer = Peer { number, packet_sequence: others };
        self.pair.connect(&site.route, peer, &site.settings()).unwrap();
        self.pair.ready_to_send(own, &site.settings()).unwrap();
    }

    pub fn two(site: &Site) -> (Self, Self) {
        let (a, b) = (End::new(site), End::new(site));
        a.connect(site, b.pair.number(), (7, 0xff_ffff));
        b.connect(site, a.pair.number(), (0xff_ffff, 7));
        (a, b)
    }

    pub fn post(&self, requests: &[Request]) -> Result<(), PostError> {
        // SAFETY: they name leaked cells, which are registered and left alone meanwhile.
        unsafe { self.pair.post(requests.len(), |index| requests[index]) }
    }

    /// Posts one request and waits for its success.
    pub fn carry_out(&self, verb: Verb, local: Option<Local>, flags: u32) {
        self.post(&[Request { id: 11, verb, local, flags: flags | IBV_SEND_SIGNALED }]).unwrap();
        let done = next(&self.queue);
        assert_eq!((done.wr_id, done.status), (11, sys::IBV_WC_SUCCESS), "{verb:?}");
    }

    pub fn receive(&self, index: usize, cells: u32, id: u64) {
        // SAFETY: leaked cells, which are registered; the tests use them after the completion.
        unsafe { self.receives.post(self.cells.local(index, cells).unwrap(), id).unwrap() };
    }
}

pub fn try_next(queue: &Queue) -> Option<sys::ibv_wc> {
    let mut one = [NO_COMPLETION];
    (queue.poll(&mut one).unwrap() == 1).then_some(one[0])
}

pub fn next(queue: &Queue) -> sys::ibv_wc {
    let since = Instant::now();
    loop {
        if let Some(completion) = try_next(queue) {
            return completion;
        }
        assert!(since.elapsed() < LIMIT, "no completion came");
        std::thread::yield_now();
    }
}

pub fn is_ready(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let mut polled = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one, as is said.
    unsafe { libc::poll(&raw mut polled, 1, limit.as_millis() as i32) > 0 }
}
