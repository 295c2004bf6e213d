//! Queue pairs as a wire: one reliable connection to each peer, made when it is first needed, one
//! completion queue, and one shared receive queue.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earlybird_ffi::verbs::sys::{IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, ibv_wc};
use earlybird_ffi::verbs::{self, Capacity, Channel, NO_COMPLETION, Queue, QueuePair, ReceiveQueue, Verb};
use rustix::event::PollFlags;

use super::address::Address;
use super::code::Code;
use super::connection::Part;
use super::connections::Connections;
use super::device::Port;
use super::events::{Broken, Events};
use super::registration::{Failed, Registered, Registrar};
use super::settings::{Depths, INLINE};
use super::work::Work;
use crate::error::Error;
use crate::fabric::Atomic;
use crate::fabric::net::{Atomicity, CellChange, Entry, Local, Posted, Purpose, Remote, Trouble, Watched, Wire};

/// How long a rank that ends waits for its last messages to arrive.
const LAST_MESSAGES: Duration = Duration::from_millis(100);

/// The queues at work. A field is dropped before those that it depends on.
pub(in crate::fabric) struct VerbsWire {
    pub(super) connections: Connections,
    pub(super) events: Events,
    /// The memory of each receive.
    receives: Vec<Option<verbs::Local>>,
    receive_queue: Arc<ReceiveQueue>,
    pub(super) queue: Arc<Queue>,
    channel: Arc<Channel>,
    entries: [ibv_wc; 16],
    read: Range<usize>,
    /// The device has not taken a receive back.
    refused: Option<Code>,
    watched: Arc<[Watched]>,
    registrar: Registrar,
    /// Bytes of a message that the device takes inline.
    most_inline: u32,
    atomicity: Atomicity,
    writes_in_order: bool,
}

impl fmt::Debug for VerbsWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsWire").field("connections", &self.connections).finish_non_exhaustive()
    }
}

// SAFETY: the addresses in `receives` are handed to the device again and never followed; those in
// `entries` are not used.
unsafe impl Send for VerbsWire {}

impl VerbsWire {
    /// Opens the queues of a rank on a port.
    pub(super) fn open((rank, ranks): (u32, u32), port: Port, depths: Depths) -> Result<Self, Failed> {
        let code = |cause: io::Error| Failed::Code(Code::of(&cause));
        let Depths { receives, sends, completions: entries } = depths;
        let entries = u32::try_from(entries).ok().filter(|&entries| entries <= port.most_entries).ok_or_else(|| {
            let most = port.most_entries;
            let cause = format!("a world of {ranks} ranks takes a completion queue of {entries} entries, and {most} are the most of the device");
            Failed::System(Error::join(rank, cause))
        })?;
        let domain = verbs::Domain::open(port.context.clone()).map_err(code)?;
        let channel = Channel::open(port.context.clone()).map_err(code)?;
        let queue = Queue::open(port.context.clone(), entries, Some(channel.clone())).map_err(code)?;
        let receive_queue = ReceiveQueue::open(domain.clone(), receives as u32).map_err(code)?;
        let descriptor = channel.descriptor().try_clone_to_owned().map_err(code)?;
        let capacity = Capacity { sends, inline: INLINE };
        // The first one tells what the device grants, and that it has reliable connections at all.
        let trial = |inline| {
            let capacity = Capacity { inline, ..capacity };
            let trial = QueuePair::open_reliable(domain.clone(), queue.clone(), &receive_queue, capacity)?;
            Ok((capacity, trial.most_inline()))
        };
        let (capacity, most_inline) = trial(INLINE).or_else(|_| trial(0)).map_err(code)?;
        let atomicity = if ranks == 1 { Atomicity::Both } else { port.atomicity };
        let writes_in_order = port.writes_in_order;
        let registrar = Registrar::new(rank, domain);
        let events = Events::new(rank, &port);
        let connections = Connections::open(rank, port, &registrar, (queue.clone(), receive_queue.clone()), capacity)?;
        Ok(VerbsWire {
            connections,
            events,
            receives: vec![None; receives],
            receive_queue,
            queue,
            channel,
            entries: [NO_COMPLETION; 16],
            read: 0..0,
            refused: None,
            watched: Arc::new([Watched { descriptor, events: PollFlags::IN.bits().cast_signed() }]),
            registrar,
            most_inline,
            atomicity,
            writes_in_order,
        })
    }

    /// What the other ranks must know of this one.
    pub(super) fn address(&self) -> &Address {
        self.connections.address()
    }

    /// # Safety
    /// As [`Connection::post`].
    unsafe fn operate(&mut self, peer: u32, number: usize, parts: &[Part]) -> Posted<Code> {
        // SAFETY: as the caller says.
        self.connections.at(peer, |connection| unsafe { connection.post(number, parts) })
    }

    /// Posts a receive, again or for the first time.
    fn post_receive(&mut self, number: usize) -> Result<(), Code> {
        let Some(Some(to)) = self.receives.get(number) else { return Ok(()) };
        // SAFETY: as the caller of `receive` says: until the entry was read or the wire has ended, the
        // memory lives and nothing uses it.
        unsafe { self.receive_queue.post(*to, Work::Receive { number }.encode()) }.map_err(|cause| Code::of(&cause))
    }

    /// Reads the completion queue.
    fn fill(&mut self) -> Result<(), Code> {
        if self.read.is_empty() {
            self.read = 0..self.queue.poll(&mut self.entries).map_err(|cause| Code::of(&cause))?;
        }
        Ok(())
    }

    /// What a completion means for those above; `None` if nothing.
    fn process(&mut self, completion: &ibv_wc) -> Option<Entry> {
        let failed = completion.status != IBV_WC_SUCCESS;
        let reason = || self.queue.status_text(completion.status);
        match Work::decode(completion.wr_id)? {
            Work::Receive { number } if failed => Some(Entry::Failed { number, reason: reason() }),
            Work::Receive { number } if completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM => {
                self.refused = self.post_receive(number).err().or(self.refused);
                Some(verbs::immediate(completion).map_or(Entry::Nothing, |data| Entry::Landed(u64::from(data))))
            }
            Work::Receive { number } => Some(Entry::Done { number, len: completion.byte_len as usize }),
            Work::Operation { number, peer, posted } => {
                Some(match self.connections.complete(peer, posted, failed.then_some(reason)) {
                    None => Entry::Done { number, len: 0 },
                    Some(reason) => Entry::Failed { number, reason: reason.to_owned() },
                })
            }
            Work::Unsignaled { peer, posted } => {
                let reason = self.connections.complete(peer, posted, failed.then_some(reason))?;
                Some(Entry::Unreachable { peer, reason: reason.to_owned() })
            }
            Work::HelloSent { buffer } => {
                self.connections.hello_is_sent(buffer);
                None
            }
            Work::Hello { buffer } => {
                let len = if failed { 0 } else { completion.byte_len as usize };
                self.refused = self.connections.hear(buffer, len).err().or(self.refused);
                None
            }
        }
    }

    /// What an event means for those above.
    pub(super) fn explain(&mut self, (broken, reason): (Broken, String)) -> Trouble {
        let peer = match broken {
            Broken::Device => None,
            Broken::Connection(pair) => self.connections.fail(pair, &reason),
        };
        Trouble { peer, reason }
    }

    /// Waits until the last messages have arrived.
    fn drain(&mut self) {
        self.connections.flush();
        let until = Instant::now() + LAST_MESSAGES;
        while !self.connections.are_idle() && Instant::now() < until && self.fill().is_ok() {
            while self.next().is_some() {}
            std::thread::yield_now();
        }
    }
}

impl Wire for VerbsWire {
    const FABRIC: &'static str = "verbs";
    const LIBRARY: &'static str = "libibverbs";

    type Error = Code;
    type Memory = Registered;
    type Registrar = Registrar;

    /// A reliable connection carries requests out in order (InfiniBand specification 1.4, section 10.8.3.3).
    const IN_ORDER: bool = true;

    fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    fn allocate(registrar: &Registrar, bytes: usize, purpose: Purpose) -> Result<Registered, Failed> {
        registrar.allocate(bytes, purpose)
    }

    fn insert(&mut self, address: &[u8]) -> Result<(), Code> {
        let unknown = Code::System(rustix::io::Errno::PROTO.raw_os_error());
        self.connections.insert(Address::decode(address).ok_or(unknown)?);
        Ok(())
    }

    unsafe fn receive(&mut self, to: Local<'_, Registered>, number: usize) -> Result<(), Code> {
        self.receives[number] = Some(to.memory.local(to.offset, to.len));
        self.post_receive(number)
    }

    unsafe fn send(&mut self, peer: u32, from: Local<'_, Registered>, number: usize) -> Posted<Code> {
        let from = from.memory.local(from.offset, from.len);
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &[Part::new(Verb::Send, from)]) }
    }

    fn most_injected(&self) -> usize {
        self.most_inline as usize
    }

    fn inject(&mut self, peer: u32, message: &[u8]) -> Posted<Code> {
        let base = std::ptr::NonNull::from(message).cast();
        // The device looks at no key of what is inline.
        let message = verbs::Local { base: base.as_ptr(), len: message.len() as u32, key: 0 };
        self.connections.at(peer, |connection| connection.inject(message))
    }

    unsafe fn write(
        &mut self,
        peer: u32,
        from: Local<'_, Registered>,
        to: Remote,
        immediate: Option<u64>,
        number: usize,
    ) -> Posted<Code> {
        let to = remote(to);
        let verb = immediate.map_or(Verb::Write(to), |data| Verb::WriteWithImmediate(to, data as u32));
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &[Part::new(verb, from.memory.local(from.offset, from.len))]) }
    }

    unsafe fn write_both(
        &mut self,
        peer: u32,
        places: [(Local<'_, Registered>, Remote); 2],
        immediate: u64,
        number: usize,
    ) -> Posted<Code> {
        // The second write lands after the first one: a reliable connection carries requests out in
        // order (InfiniBand specification 1.4, section 10.8.3.3).
        let [first, second] = places.map(|(from, to)| (from.memory.local(from.offset, from.len), remote(to)));
        let last = Verb::WriteWithImmediate(second.1, immediate as u32);
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &[Part::new(Verb::Write(first.1), first.0), Part::new(last, second.0)]) }
    }

    fn atomicity(&self) -> Atomicity {
        self.atomicity
    }

    fn writes_in_order(&self) -> bool {
        self.writes_in_order
    }

    fn forgo_order(&mut self) {
        self.writes_in_order = false;
    }

    fn forgo_atomics(&mut self) {
        self.atomicity = Atomicity::Processor;
    }

    unsafe fn change(
        &mut self,
        peer: u32,
        data: Option<(Local<'_, Registered>, Remote)>,
        (cell, change): (Remote, CellChange),
        word: Local<'_, Registered>,
        immediate: Option<u64>,
        number: usize,
    ) -> Posted<Code> {
        let (cell, word) = (remote(cell), word.memory.local(word.offset, word.len));
        let wake = immediate.map(|data| Verb::WriteWithImmediate(cell, data as u32));
        let data = data.map(|(from, to)| Part::new(Verb::Write(remote(to)), from.memory.local(from.offset, from.len)));
        let (change, wake) = match change {
            CellChange::Set(_) => (wake.unwrap_or(Verb::Write(cell)), None),
            // An atomic that changes nothing might still undo what the home sets meanwhile.
            CellChange::Atomic(Atomic::FetchAdd(0)) => (Verb::Read(cell), wake),
            CellChange::Atomic(Atomic::FetchAdd(add)) => (Verb::FetchAdd { at: cell, add }, wake),
            CellChange::Atomic(Atomic::CompareSwap { expect: expected, new }) => {
                (Verb::CompareSwap { at: cell, expected, new }, wake)
            }
        };
        let change = Part::new(change, word);
        // No fence: devices carry out the writes and atomics of a connection in order, and a rank
        // that is woken too early looks again after a heartbeat. A fenced request that Soft-RoCE has
        // to send again waits for ever, if an atomic behind it was sent, too (Linux 6.1).
        let wake = wake.map(|verb| Part { verb, local: None });
        let mut parts = [change; 3];
        let mut count = 0;
        for part in [data, Some(change), wake].into_iter().flatten() {
            parts[count] = part;
            count += 1;
        }
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &parts[..count]) }
    }

    unsafe fn read(&mut self, peer: u32, to: Local<'_, Registered>, from: Remote, number: usize) -> Posted<Code> {
        let to = to.memory.local(to.offset, to.len);
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &[Part::new(Verb::Read(remote(from)), to)]) }
    }

    fn poll(&mut self) -> Result<(), Code> {
        if let Some(code) = self.refused.take() {
            return Err(code);
        }
        self.connections.say_hellos();
        self.fill()
    }

    fn next(&mut self) -> Option<Entry> {
        loop {
            let completion = self.entries[self.read.next()?];
            if let Some(entry) = self.process(&completion) {
                return Some(entry);
            }
        }
    }

    fn trouble(&mut self) -> Option<Trouble> {
        let event = self.events.next()?;
        Some(self.explain(event))
    }

    fn ailment(&self) -> Option<String> {
        self.events.port_down()
    }

    fn may_sleep(&mut self) -> Option<Arc<[Watched]>> {
        self.channel.drain().ok()?;
        self.queue.arm(false).ok()?;
        // What was there before is announced by no event.
        self.fill().ok()?;
        self.read.is_empty().then(|| self.watched.clone())
    }

    fn end(&mut self, _in_flight: bool) -> bool {
        self.drain();
        // The device refuses an operation on memory that is not registered any more, and a queue pair
        // that ends gives up what is in flight.
        true
    }

    fn text(&self, code: Code) -> String {
        code.to_string()
    }
}

fn remote(Remote { address, key }: Remote) -> verbs::Remote {
    // Keys of this fabric have 32 bits.
    verbs::Remote { address, key: key as u32 }
}
