//! Queue pairs as a wire: on each rail one reliable connection to each peer, made when it is first needed, one
//! completion queue, and one shared receive queue.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use earlybird_ffi::verbs::sys::{IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, ibv_wc};
use earlybird_ffi::verbs::{self, Verb};

use super::address::Address;
use super::code::Code;
use super::connection::{Connection, Refusal, SendRequest};
use super::device::Port;
use super::rail::Rail;
use super::registration::{self, Failed, REMOTE_ACCESS, REMOTE_ACCESS_TO_SECOND, Registered, Registrar};
use super::settings::Depths;
use super::work::WorkRequest;
use crate::error::Ranks;
use crate::fabric::net::{
    Atomicity, CellChange, Ends, JobSecret, Local, Posted, Purpose, QueueEntry, Remote, Trouble, Watched, Wire,
};
use crate::fabric::{Access, Atomic, Window};

/// How long a rank that ends waits for its last messages to arrive.
const LAST_MESSAGES: Duration = Duration::from_millis(100);

/// The queues at work. A field is dropped before those that it depends on.
#[derive(Debug)]
pub(in crate::internals::fabric) struct VerbsWire {
    /// The first one carries all but the parts of large transfers, of which the second one, if there is one, has every
    /// other.
    pub(super) first: Rail,
    second: Option<SecondRail>,
    /// The memory of each receive.
    receives: Vec<Option<Receive>>,
    /// The device has not taken a receive back.
    refused: Option<Code>,
    watched: Arc<[Watched]>,
    registrar: Registrar,
    atomicity: Atomicity,
    writes_in_order: bool,
    polls_memory: bool,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
struct Receive(verbs::Local);

// SAFETY: the address is handed to the device again and never followed.
unsafe impl Send for Receive {}

/// A device for parts of large transfers.
#[derive(Debug)]
struct SecondRail {
    rail: Rail,
    /// Where the reads behind writes put what nothing looks at.
    echo: Registered,
    /// Its device, as errors name it.
    device: String,
    /// The ranks to which it is connected.
    reached: Vec<bool>,
}

impl VerbsWire {
    /// Opens the queues of a rank on a port, and on a second one if it has that.
    pub(super) fn open(
        (rank, ranks): (u32, u32),
        (port, second): (Port, Option<Port>),
        depths: Depths,
    ) -> Result<Self, Failed> {
        let (atomicity, writes_in_order) = (port.atomicity, port.writes_in_order);
        let polls_memory = port.settings.memory_polling;
        let first = Rail::open((rank, ranks), 0, port, depths, REMOTE_ACCESS)?;
        let second = second.map(|port| SecondRail::open((rank, ranks), port, depths)).transpose()?;
        let rails = || [&first].into_iter().chain(second.as_ref().map(|second| &second.rail));
        Ok(VerbsWire {
            watched: rails().map(Rail::watched).collect::<Result<_, _>>()?,
            receives: vec![None; depths.receives],
            refused: None,
            registrar: Registrar::new(
                rank,
                first.domain().clone(),
                second.as_ref().map(|second| second.rail.domain().clone()),
            ),
            atomicity: if ranks == 1 { Atomicity::Both } else { atomicity },
            writes_in_order,
            polls_memory,
            first,
            second,
        })
    }

    fn rails(&self) -> impl Iterator<Item = &Rail> {
        [&self.first].into_iter().chain(self.second.as_ref().map(|second| &second.rail))
    }

    fn rails_mut(&mut self) -> impl Iterator<Item = &mut Rail> {
        [&mut self.first].into_iter().chain(self.second.as_mut().map(|second| &mut second.rail))
    }

    /// What the other ranks must know of this one: the address of each rail.
    pub(super) fn address(&self) -> Vec<u8> {
        self.rails().flat_map(|rail| rail.address().encode()).collect()
    }

    /// Posts something by the first rail. It takes nothing to a peer that the second rail does not reach yet: a rank that
    /// one rail does not reach is known when the world is joined, as one that no rail reaches.
    #[inline]
    fn at(&mut self, peer: u32, post: impl FnOnce(&mut Connection) -> Result<(), Refusal>) -> Posted<Code> {
        if let Some(second) = &mut self.second
            && !second.reached[peer as usize]
        {
            // Both handshakes at a time.
            let first = self.first.connections.reach(peer)?;
            if !second.reach(peer)? || !first {
                return Ok(false);
            }
        }
        self.first.at(peer, post)
    }

    /// # Safety
    /// As [`Connection::post`].
    unsafe fn operate(&mut self, peer: u32, number: usize, parts: &[SendRequest]) -> Posted<Code> {
        // SAFETY: as the caller says.
        self.at(peer, |connection| unsafe { connection.post(number, parts) })
    }

    /// Posts a receive, again or for the first time.
    fn post_receive(&mut self, number: usize) -> Result<(), Code> {
        let Some(Some(Receive(to))) = self.receives.get(number) else { return Ok(()) };
        // SAFETY: as the caller of `receive` says: until the entry was read or the wire has ended, the
        // memory lives and nothing uses it.
        unsafe { self.first.post_receive(*to, number) }
    }

    /// What a completion of the first rail means for those above; `None` if nothing.
    fn process(&mut self, completion: &ibv_wc) -> Option<QueueEntry> {
        let failed = completion.status != IBV_WC_SUCCESS;
        match WorkRequest::decode(completion.wr_id)? {
            WorkRequest::Receive { number } if failed => {
                Some(QueueEntry::Failed { number, reason: self.first.queue.status_text(completion.status) })
            }
            WorkRequest::Receive { number } if completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM => {
                self.refused = self.post_receive(number).err().or(self.refused);
                Some(
                    verbs::immediate(completion)
                        .map_or(QueueEntry::Nothing, |data| QueueEntry::Landed(u64::from(data))),
                )
            }
            WorkRequest::Receive { number } => Some(QueueEntry::Done { number, len: completion.byte_len as usize }),
            work => {
                let (entry, refused) = self.first.process(work, completion);
                self.refused = refused.or(self.refused);
                entry
            }
        }
    }

    /// The next entry of what was read that means something to those above.
    fn take_next(&mut self) -> Option<QueueEntry> {
        while let Some(completion) = self.first.next() {
            if let Some(entry) = self.process(&completion) {
                return Some(entry);
            }
        }
        let rail = &mut self.second.as_mut()?.rail;
        while let Some(completion) = rail.next() {
            let Some(work) = WorkRequest::decode(completion.wr_id) else { continue };
            let (entry, refused) = rail.process(work, &completion);
            self.refused = refused.or(self.refused);
            if entry.is_some() {
                return entry;
            }
        }
        None
    }

    /// Waits until the last messages have arrived.
    fn drain(&mut self) {
        self.rails_mut().for_each(|rail| rail.connections.flush());
        let until = Instant::now() + LAST_MESSAGES;
        let are_idle = |wire: &Self| wire.rails().all(|rail| rail.connections.are_idle());
        while !are_idle(self) && Instant::now() < until && self.rails_mut().all(|rail| rail.fill().is_ok()) {
            while self.next().is_some() {}
            std::thread::yield_now();
        }
    }
}

impl SecondRail {
    /// Opens the queues of a rank on a port, by which no messages come.
    fn open((rank, ranks): (u32, u32), port: Port, depths: Depths) -> Result<Self, Failed> {
        let device = port.device.clone();
        let depths = Depths::of(1, depths.sends, ranks);
        let rail = Rail::open((rank, ranks), 1, port, depths, REMOTE_ACCESS_TO_SECOND)?;
        let echo = Registrar::new(rank, rail.domain().clone(), None).allocate(1, Purpose::Messages)?;
        // A rank has nothing for itself.
        let reached = (0..ranks).map(|peer| peer == rank).collect();
        Ok(SecondRail { rail, echo, device, reached })
    }

    /// Whether it is connected to a peer; begins the handshake if there is none yet.
    fn reach(&mut self, peer: u32) -> Posted<Code> {
        let reached = self.rail.connections.reach(peer)?;
        self.reached[peer as usize] = reached;
        Ok(reached)
    }

    /// The ranks that it does not reach, if the first rail waits for some.
    fn lack(&self) -> Option<String> {
        let unreached = (0..).zip(&self.reached).filter(|(_, reached)| !**reached);
        let unreached = Ranks(unreached.map(|(peer, _)| peer).collect());
        (!unreached.0.is_empty()).then(|| format!("{} has no connection to {unreached}", self.device))
    }

    /// Writes to a peer.
    ///
    /// # Safety
    /// As [`Wire::write`].
    unsafe fn write(&mut self, peer: u32, (from, to): Ends<'_, Registered>, number: usize) -> Posted<Code> {
        // A device acknowledges a write that may still be on its way to memory, and what announces it goes by the other
        // device. A read of the last byte passes no write before it (PCI Express Base Specification, section 2.4.1).
        let last = Remote { address: to.address + (from.len as u64).saturating_sub(1), ..to };
        let write =
            SendRequest::new(Verb::Write(remote_of_second(to)), from.memory.local_of_second(from.offset, from.len));
        let read = SendRequest::new(Verb::Read(remote_of_second(last)), self.echo.local(0, 1));
        // SAFETY: as the caller says; the echo lives as long as the rail, and nothing uses it.
        self.rail.at(peer, |connection| unsafe { connection.post(number, &[write, read]) })
    }

    /// Reads from a peer.
    ///
    /// # Safety
    /// As [`Wire::read`].
    unsafe fn read(&mut self, peer: u32, (to, from): Ends<'_, Registered>, number: usize) -> Posted<Code> {
        let part = SendRequest::new(Verb::Read(remote_of_second(from)), to.memory.local_of_second(to.offset, to.len));
        // SAFETY: as the caller says.
        self.rail.at(peer, |connection| unsafe { connection.post(number, &[part]) })
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

    fn register(registrar: &Registrar, window: Window, access: Access) -> Result<Registered, Failed> {
        registrar.register(window, Purpose::Operations(access))
    }

    fn insert(&mut self, address: &[u8]) -> Result<(), Code> {
        let unknown = Code::System(rustix::io::Errno::PROTO.raw_os_error());
        let mut addresses = Address::decode_all(address).ok_or(unknown)?.into_iter();
        for rail in self.rails_mut() {
            rail.connections.insert(addresses.next().ok_or(unknown)?);
        }
        addresses.next().map_or(Ok(()), |_| Err(unknown))
    }

    fn queue_pairs(&self) -> u32 {
        self.rails().map(|rail| rail.connections.made()).sum()
    }

    fn keep_secret(&mut self, secret: JobSecret) {
        self.rails_mut().for_each(|rail| rail.connections.keep_secret(secret));
    }

    unsafe fn receive(&mut self, to: Local<'_, Registered>, number: usize) -> Result<(), Code> {
        self.receives[number] = Some(Receive(to.memory.local(to.offset, to.len)));
        self.post_receive(number)
    }

    unsafe fn send(&mut self, peer: u32, from: Local<'_, Registered>, number: usize) -> Posted<Code> {
        let from = from.memory.local(from.offset, from.len);
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &[SendRequest::new(Verb::Send, from)]) }
    }

    fn most_injected(&self) -> usize {
        self.first.most_inline() as usize
    }

    fn inject(&mut self, peer: u32, message: &[u8]) -> Posted<Code> {
        let base = std::ptr::NonNull::from(message).cast();
        // The device looks at no key of what is inline.
        let message = verbs::Local { base: base.as_ptr(), len: message.len() as u32, key: 0 };
        self.at(peer, |connection| connection.inject(message))
    }

    fn rails(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    unsafe fn write(
        &mut self,
        (peer, rail): (u32, usize),
        (from, to): Ends<'_, Registered>,
        immediate: Option<u64>,
        number: usize,
    ) -> Posted<Code> {
        if let (Some(second), 1, None) = (&mut self.second, rail, immediate) {
            // SAFETY: as the caller says.
            return unsafe { second.write(peer, (from, to), number) };
        }
        let to = remote(to);
        let verb = immediate.map_or(Verb::Write(to), |data| Verb::WriteWithImmediate(to, data as u32));
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &[SendRequest::new(verb, from.memory.local(from.offset, from.len))]) }
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
        unsafe {
            self.operate(
                peer,
                number,
                &[SendRequest::new(Verb::Write(first.1), first.0), SendRequest::new(last, second.0)],
            )
        }
    }

    fn atomicity(&self) -> Atomicity {
        self.atomicity
    }

    fn writes_in_order(&self) -> bool {
        self.writes_in_order
    }

    fn polls_memory(&self) -> bool {
        self.polls_memory
    }

    fn forgo_order(&mut self) {
        self.writes_in_order = false;
    }

    fn forgo_rails(&mut self) {
        self.second.iter_mut().for_each(|second| second.reached.fill(true));
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
        let data =
            data.map(|(from, to)| SendRequest::new(Verb::Write(remote(to)), from.memory.local(from.offset, from.len)));
        let (change, wake) = match change {
            CellChange::Set(_) => (wake.unwrap_or(Verb::Write(cell)), None),
            // An atomic that changes nothing might still undo what the home sets meanwhile.
            CellChange::Atomic(Atomic::FetchAdd(0)) => (Verb::Read(cell), wake),
            CellChange::Atomic(Atomic::FetchAdd(add)) => (Verb::FetchAdd { at: cell, add }, wake),
            CellChange::Atomic(Atomic::CompareSwap { expect: expected, new }) => {
                (Verb::CompareSwap { at: cell, expected, new }, wake)
            }
        };
        let change = SendRequest::new(change, word);
        // No fence: devices carry out the writes and atomics of a connection in order, and a rank
        // that is woken too early looks again after a heartbeat. A fenced request that Soft-RoCE has
        // to send again waits for ever, if an atomic behind it was sent, too (Linux 6.1).
        let wake = wake.map(|verb| SendRequest { verb, local: None });
        // SAFETY: as the caller says.
        unsafe {
            match (data, wake) {
                (None, None) => self.operate(peer, number, &[change]),
                (Some(data), None) => self.operate(peer, number, &[data, change]),
                (None, Some(wake)) => self.operate(peer, number, &[change, wake]),
                (Some(data), Some(wake)) => self.operate(peer, number, &[data, change, wake]),
            }
        }
    }

    unsafe fn read(
        &mut self,
        (peer, rail): (u32, usize),
        (to, from): Ends<'_, Registered>,
        number: usize,
    ) -> Posted<Code> {
        if let (Some(second), 1) = (&mut self.second, rail) {
            // SAFETY: as the caller says.
            return unsafe { second.read(peer, (to, from), number) };
        }
        let to = to.memory.local(to.offset, to.len);
        // SAFETY: as the caller says.
        unsafe { self.operate(peer, number, &[SendRequest::new(Verb::Read(remote(from)), to)]) }
    }

    fn poll(&mut self) -> Result<(), Code> {
        if let Some(code) = self.refused.take() {
            return Err(code);
        }
        self.rails_mut().try_for_each(Rail::poll)
    }

    #[inline]
    fn next(&mut self) -> Option<QueueEntry> {
        if self.rails().all(Rail::was_read) {
            return None;
        }
        self.take_next()
    }

    fn trouble(&mut self) -> Option<Trouble> {
        self.rails_mut().find_map(|rail| {
            let event = rail.events.next()?;
            Some(rail.explain(event))
        })
    }

    fn device_fault(&self) -> Option<String> {
        let lack = self.second.as_ref().and_then(SecondRail::lack);
        let all: Vec<String> = self.rails().filter_map(|rail| rail.events.port_down()).chain(lack).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn may_sleep(&mut self) -> Option<Arc<[Watched]>> {
        let may = self.rails_mut().all(Rail::may_sleep);
        may.then(|| self.watched.clone())
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
    verbs::Remote { address, key: registration::keys(key).0 }
}

fn remote_of_second(Remote { address, key }: Remote) -> verbs::Remote {
    verbs::Remote { address, key: registration::keys(key).1 }
}
