//! libfabric's endpoint with the memory that its operations need: message buffers, and a context
//! for each operation in flight.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use earlybird_ffi::ofi::{Code, Endpoint, Info, NO_COMPLETION, Remote, Watched, sys};

use super::header_slots::{self, HeaderSlots, ImmediateData, SLOT_BYTES};
use super::limits::Limits;
use super::message::{Header, MOST_DATA, MOST_HEADER};
use super::registration::{Failed, Purpose, Registered, Registrar};
use super::shares::{Pool, peers};
use crate::fabric::memory::check_memory;
use crate::fabric::{Access, Window};

/// Message buffers for incoming messages.
const RECEIVE_BUFFERS: usize = 128;

/// Message buffers for outgoing messages, unless the world has more peers.
const SEND_BUFFERS: usize = 64;

/// Buffers of each peer's share that are reserved for uncounted messages, which wait for no other.
const RESERVED: usize = 1;

/// Bytes of a message buffer: a message, rounded up to a cache line.
const BUFFER_BYTES: usize = (MOST_HEADER + MOST_DATA).next_multiple_of(64);

/// The offset of the header that write `number` carries. Headers lie behind the buffer of injected
/// messages, which has the index of the first transfer's context.
fn header_at(first_transfer: usize, number: usize) -> usize {
    (first_transfer + 1) * BUFFER_BYTES + number * SLOT_BYTES
}

/// What has happened to an operation, or at a peer.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A message arrived: its buffer and length.
    Message(usize, usize),
    /// A message was sent, and its buffer is free again.
    Sent,
    /// A part of this transfer, to or from this peer, has completed.
    Moved(u32, u32),
    /// A peer's write with this immediate data landed here.
    Landed(u64),
    /// An operation to this peer failed; the transfer, if it was part of one; and the reason.
    Failed(u32, Option<u32>, String),
    /// An event of no interest.
    Nothing,
}

/// Memory that libfabric may use for an operation until it completes (`FI_CONTEXT2`).
#[repr(C, align(64))]
struct Context(sys::fi_context2);

/// The purpose of an operation in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Operation {
    peer: u32,
    transfer: u32,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the peer.
    Out,
    /// To the peer, with this immediate data.
    OutWithImmediate(u64),
    /// From the peer.
    In,
}

/// The endpoint at work.
pub(super) struct Wire {
    endpoint: Arc<Endpoint>,
    registrar: Registrar,
    /// Where peers write headers; `None` if writes carry none. Peers may write it, unlike the
    /// message buffers, so it is memory of its own. It is declared before the buffers: a
    /// registration keeps the endpoint alive, and the endpoint may use the buffers.
    header_slots: Option<Registered>,
    buffers: Registered,
    /// Contexts of receive buffers first, then of send buffers, then of transfers. libfabric holds
    /// their addresses, so they never move.
    contexts: Box<[Context]>,
    operations: Vec<Operation>,
    sending: Pool,
    moving: Pool,
    /// The first context of a transfer, and the buffer for injected messages behind the others.
    first_transfer: usize,
    pub(super) limits: Limits,
    /// Bytes of immediate data that a peer's write can bring.
    cq_data: usize,
    /// Whether writes carry immediate data, and whether it has a tag: for this rank alone until
    /// [`Wire::agree`].
    pub(super) uses_immediate: bool,
    pub(super) tags_immediate: bool,
    entries: [sys::fi_cq_data_entry; 16],
    read: std::ops::Range<usize>,
    failed: Option<Event>,
    /// What to sleep on, and the provider's change count at which that was read, if it is known.
    watched: Arc<[Watched]>,
    changes: Option<u64>,
}

// SAFETY: the addresses in `entries` are compared and never followed.
unsafe impl Send for Wire {}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Whether an operation was posted; `false` if the provider or this rank has no free resource now.
pub(super) type Posted = Result<bool, Code>;

fn posted(result: Result<(), Code>) -> Posted {
    match result {
        Ok(()) => Ok(true),
        Err(Code::AGAIN) => Ok(false),
        Err(code) => Err(code),
    }
}

impl Wire {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        info: Info<'_>,
        (rank, ranks): (u32, u32),
        cq_data: Option<bool>,
    ) -> Result<Self, Failed> {
        let (limits, registrar) = (Limits::of(info, ranks), Registrar::new(rank, endpoint.clone()));
        let first_transfer = RECEIVE_BUFFERS + SEND_BUFFERS.max(peers(ranks)) + RESERVED * peers(ranks);
        let brings = info.domain().map_or(0, |domain| domain.cq_data_size);
        let uses_immediate = cq_data.unwrap_or(limits.cq_data) && brings >= ImmediateData::BYTES;
        let places = info.transmit().map_or(0, |transmit| transmit.iov_limit.min(transmit.rma_iov_limit));
        // Outgoing headers lie behind the message buffers; header slots for incoming ones are
        // memory of their own.
        let buffers = header_at(first_transfer, limits.moving);
        let header_slots = (uses_immediate && places >= 2).then(|| header_slots::size(ranks));
        // Both grow with the number of ranks.
        let need = (buffers + header_slots.unwrap_or(0)) as u64;
        check_memory(rank, "make message buffers", need).map_err(Failed::System)?;
        let buffers = registrar.allocate(buffers, Purpose::Messages)?;
        let slots = |bytes| registrar.allocate(bytes, Purpose::Operations(Access::Write));
        let header_slots = header_slots.map(slots).transpose()?;
        let contexts = first_transfer + limits.moving;
        let internal = || Context(sys::fi_context2 { internal: [std::ptr::null_mut(); 8] });
        let mut wire = Wire {
            registrar,
            header_slots,
            buffers,
            contexts: (0..contexts).map(|_| internal()).collect(),
            operations: vec![Operation::default(); contexts],
            sending: Pool::new(RECEIVE_BUFFERS..first_transfer, ranks),
            moving: Pool::new(first_transfer..contexts, ranks),
            first_transfer,
            limits,
            cq_data: brings,
            uses_immediate,
            tags_immediate: brings >= ImmediateData::TAGGED_BYTES,
            entries: [NO_COMPLETION; 16],
            read: 0..0,
            failed: None,
            watched: Arc::new([]),
            changes: None,
            endpoint,
        };
        for buffer in 0..RECEIVE_BUFFERS {
            wire.post_receive(buffer).map_err(Failed::Code)?;
        }
        Ok(wire)
    }

    /// Memory that libfabric may write until the endpoint ends.
    pub(super) fn windows(&self) -> impl Iterator<Item = &Window> {
        [&self.buffers].into_iter().chain(&self.header_slots).map(Registered::window)
    }

    /// Where peers write headers to this rank; `None` if writes carry none.
    pub(super) fn header_slots(&self) -> Option<HeaderSlots> {
        let (key, base) = self.header_slots.as_ref()?.key()?;
        Some(HeaderSlots { key, base })
    }

    /// Bytes of immediate data that a peer's write may bring to this rank: 0 if it is not used.
    pub(super) fn cq_data(&self) -> usize {
        if self.uses_immediate { self.cq_data } else { 0 }
    }

    /// Every rank takes at least `cq_data` bytes, and one of them no more. Devices may differ: a
    /// rank that takes no immediate data would wait for it for ever, and if some writes had a tag
    /// and others not, peers would look like strangers.
    pub(super) fn agree(&mut self, cq_data: usize) {
        self.uses_immediate &= cq_data >= ImmediateData::BYTES;
        self.tags_immediate = cq_data >= ImmediateData::TAGGED_BYTES;
    }

    /// Copies the header in a rank's slot, which the rank may overwrite afterwards.
    pub(super) fn header(&self, from: u32, number: u32) -> Option<[u8; SLOT_BYTES]> {
        let mut header = [0; SLOT_BYTES];
        self.header_slots.as_ref()?.window().read(header_slots::offset(from, number), &mut header);
        Some(header)
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    pub(super) fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    fn context(&mut self, index: usize) -> *mut c_void {
        (&raw mut self.contexts[index]).cast()
    }

    fn index(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let index = offset / size_of::<Context>();
        (offset % size_of::<Context>() == 0 && index < self.contexts.len()).then_some(index)
    }

    /// Posts a buffer for the next message.
    pub(super) fn post_receive(&mut self, buffer: usize) -> Result<(), Code> {
        let (to, context) = (self.buffers.local(buffer * BUFFER_BYTES, BUFFER_BYTES), self.context(buffer));
        // SAFETY: registered; no code reads the buffer before its completion.
        unsafe { self.endpoint.receive(to, context) }
    }

    /// The message in a buffer that was not posted again.
    pub(super) fn message(&self, buffer: usize, len: usize) -> &[u8] {
        let bytes = self.buffers.window().bytes(buffer * BUFFER_BYTES, len.min(BUFFER_BYTES));
        // SAFETY: libfabric has completed the receive, and writes there only after `post_receive`,
        // which needs this value exclusively.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len.min(BUFFER_BYTES)) }
    }

    /// Sends a header, and data that `fill` copies behind it to an offset in a window. An uncounted
    /// message may use the reserved buffers.
    pub(super) fn send(
        &mut self,
        (peer, address): (u32, u64),
        (header, counted): (&Header, bool),
        len: usize,
        fill: impl FnOnce(&Window, usize),
    ) -> Posted {
        let len = header.len() + len;
        debug_assert!(len <= BUFFER_BYTES);
        let injects = len <= self.endpoint.inject_size();
        let buffer = match injects {
            // The message is copied before the call returns, so the buffer is always free.
            true => Some(self.first_transfer),
            false => self.sending.next(peer, if counted { RESERVED } else { 0 }),
        };
        let Some(buffer) = buffer else { return Ok(false) };
        let at = buffer * BUFFER_BYTES;
        self.buffers.window().write(at, header);
        fill(self.buffers.window(), at + header.len());
        let from = self.buffers.local(at, len);
        if injects {
            // SAFETY: the buffer belongs to this value, and no other reference to it exists.
            let message = unsafe { std::slice::from_raw_parts(from.base, from.len) };
            return posted(self.endpoint.inject(message, address));
        }
        let context = self.context(buffer);
        // SAFETY: registered; the buffer is taken until the completion was read.
        let sent = posted(unsafe { self.endpoint.send(from, address, context) });
        if sent == Ok(true) {
            self.operations[buffer] = Operation { peer, transfer: 0 };
            self.sending.take(peer);
        }
        sent
    }

    /// Moves a part of a transfer between own memory and a peer's. The completion of a part without
    /// immediate data means that it lies in the peer's memory; with immediate data, only that the
    /// source was read.
    pub(super) fn transfer(
        &mut self,
        transfer: u32,
        peer: u32,
        own: (&Registered, usize, usize),
        remote: Remote,
        way: Way,
    ) -> Posted {
        let local = own.0.local(own.1, own.2);
        // SAFETY: registered memory of an endpoint that is kept until its channel is closed on all
        // ranks. By the contract of `put` and `read` the source does not change, and no other
        // access touches the target, until completion.
        self.start(transfer, peer, |wire, _, context| unsafe {
            match way {
                Way::Out => wire.endpoint.write([(local, remote)], (sys::FI_DELIVERY_COMPLETE, 0), context),
                Way::OutWithImmediate(immediate) => {
                    wire.endpoint.write([(local, remote)], (sys::FI_REMOTE_CQ_DATA, immediate), context)
                }
                Way::In => wire.endpoint.read(local, remote, context),
            }
        })
    }

    /// Moves all of a transfer to a peer in one operation, with immediate data and with a header
    /// for a slot there.
    pub(super) fn transfer_with_header(
        &mut self,
        transfer: u32,
        peer: u32,
        own: (&Registered, usize, usize),
        remote: Remote,
        (immediate, header, slot): (u64, &Header, Remote),
    ) -> Posted {
        let local = own.0.local(own.1, own.2);
        self.start(transfer, peer, |wire, number, context| {
            let at = header_at(wire.first_transfer, number);
            wire.buffers.window().write(at, header);
            let places = [(local, remote), (wire.buffers.local(at, header.len()), slot)];
            // SAFETY: as in `transfer`; the header belongs to the context, which is taken until its
            // completion was read.
            unsafe { wire.endpoint.write(places, (sys::FI_REMOTE_CQ_DATA, immediate), context) }
        })
    }

    /// Starts a one-sided operation: `post` gets its number among the transfers and its context.
    fn start(
        &mut self,
        transfer: u32,
        peer: u32,
        post: impl FnOnce(&Self, usize, *mut c_void) -> Result<(), Code>,
    ) -> Posted {
        let Some(index) = self.moving.next(peer, 0) else { return Ok(false) };
        let context = self.context(index);
        let moved = posted(post(self, index - self.first_transfer, context));
        if moved == Ok(true) {
            self.operations[index] = Operation { peer, transfer };
            self.moving.take(peer);
        }
        moved
    }

    /// Makes progress and reads completions, which [`Wire::next`] returns.
    pub(super) fn poll(&mut self) -> Result<(), Code> {
        debug_assert!(self.read.is_empty());
        match self.endpoint.queue().read(&mut self.entries) {
            Ok(count) => self.read = 0..count,
            Err(Code::AGAIN) => {}
            Err(Code::AVAILABLE) => self.failed = self.failed()?,
            Err(code) => return Err(code),
        }
        Ok(())
    }

    /// The next event that [`Wire::poll`] has read.
    pub(super) fn next(&mut self) -> Option<Event> {
        if let Some(failed) = self.failed.take() {
            return Some(failed);
        }
        let entry = self.entries[self.read.next()?];
        // Check both: some providers set the second flag on completions of the writer, too.
        let landed = sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;
        if entry.flags & landed == landed {
            return Some(Event::Landed(entry.data));
        }
        Some(match self.index(entry.op_context) {
            Some(buffer) if buffer < RECEIVE_BUFFERS => Event::Message(buffer, entry.len),
            Some(index) => self.release(index),
            None => Event::Nothing,
        })
    }

    /// An operation is over: its context is free again.
    fn release(&mut self, index: usize) -> Event {
        let Operation { transfer, peer } = self.operations[index];
        if index < self.first_transfer {
            self.sending.give_back(index, peer);
            Event::Sent
        } else {
            self.moving.give_back(index, peer);
            Event::Moved(transfer, peer)
        }
    }

    fn failed(&mut self) -> Result<Option<Event>, Code> {
        let failed = match self.endpoint.queue().failed() {
            Err(Code::AGAIN) => return Ok(None),
            failed => failed?,
        };
        Ok(match self.index(failed.context) {
            // A stranger's message may have been too long; its buffer can be posted again.
            Some(buffer) if buffer < RECEIVE_BUFFERS => {
                self.post_receive(buffer)?;
                None
            }
            Some(index) => {
                let Operation { peer, transfer } = self.operations[index];
                let moved = matches!(self.release(index), Event::Moved(..));
                Some(Event::Failed(peer, moved.then_some(transfer), failed.text))
            }
            None => None,
        })
    }

    /// Whether every message that the provider has accepted is sent.
    pub(super) fn has_sent_all(&self) -> bool {
        self.sending.is_whole()
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.has_sent_all() && self.moving.is_whole()
    }

    /// Leaves the endpoint, and all that libfabric knows of it, open until the process ends.
    pub(super) fn leak(&mut self) {
        std::mem::forget((self.endpoint.clone(), std::mem::take(&mut self.contexts)));
    }

    /// The descriptors to sleep on until there is something to read, for threads that do not hold
    /// this value; empty where the provider has none. `None` if it is not safe to sleep now.
    pub(super) fn may_sleep(&mut self) -> Option<Arc<[Watched]>> {
        let queue = self.endpoint.queue();
        let changes = queue.changes();
        if self.changes != Some(changes) {
            if self.changes.is_some() {
                queue.refresh();
            }
            self.watched = queue.watched().into();
            // A process that could not copy the descriptors may succeed the next time.
            self.changes = (!self.watched.is_empty()).then_some(changes);
        }
        // `try_wait` makes progress, which may change the list again.
        let safe = self.read.is_empty() && self.endpoint.domain().fabric().try_wait(queue).is_ok();
        (safe && queue.changes() == changes).then(|| self.watched.clone())
    }

    pub(super) fn text(&self, code: Code) -> String {
        self.endpoint.domain().fabric().library().error_text(code.0)
    }
}
