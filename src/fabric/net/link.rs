//! A wire with what its operations need: message buffers, header slots, and a number for each operation in flight.
#![allow(unsafe_code)]

use super::header_slots::{self, HeaderSlots, ImmediateData, SLOT_BYTES};
use super::limits::{LEAST_SPREAD, Limits, RESERVED};
use super::message::{Content, Header, MOST_DATA, MOST_HEADER};
use super::registration::{Failed, Purpose, Registered};
use super::shares::Pool;
use super::wire::{Atomicity, CellChange, Ends, Local, Posted, QueueEntry, Remote, Wire};
use crate::fabric::memory::check_memory;
use crate::fabric::{Access, Atomic, CACHE_LINE, Reached, Traffic, Window};
use crate::rank_set::RankSet;

/// The bytes of a message buffer: a message, rounded up to a cache line.
const BUFFER_BYTES: usize = (MOST_HEADER + MOST_DATA).next_multiple_of(CACHE_LINE);

// The slot of a header also holds the words of an atomic.
const _: () = assert!(SLOT_BYTES >= 3 * size_of::<u64>());

/// Returns the offset of the header that write `number` carries. Headers lie after the buffer of injected messages,
/// which has the number of the first transfer.
fn header_at(first_transfer: usize, number: usize) -> usize {
    (first_transfer + 1) * BUFFER_BYTES + number * SLOT_BYTES
}

impl Limits {
    /// Returns the bytes of the memory of a link in a world of `ranks`, which grow with the number of ranks. The first
    /// value is for message buffers, followed by the outgoing headers. The second is for header slots, if writes can
    /// bring headers.
    pub(in crate::internals::fabric) fn memory(&self, ranks: u32) -> (usize, Option<usize>) {
        let brings_headers = self.immediate >= ImmediateData::BYTES && self.places >= 2;
        let buffers = header_at(self.first_transfer(ranks), self.moving);
        (buffers, brings_headers.then(|| header_slots::size(ranks)))
    }
}

/// What happened to an operation, or at a peer.
#[derive(Clone, Debug)]
pub(in crate::internals::fabric) enum Event {
    /// A message arrived: its buffer and length.
    Message(usize, usize),
    /// A message was sent, and its buffer is free again.
    Sent,
    /// A part of this transfer, to or from this peer, has completed, and fetched this value.
    Moved(u32, u32, u64),
    /// A peer's write with this immediate data landed here.
    Landed(u64),
    /// An operation to this peer failed. The values are the transfer, if the operation was part of one, and the reason.
    Failed(u32, Option<u32>, String),
    /// An irrelevant event.
    Nothing,
}

/// The purpose of an operation in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Operation {
    peer: u32,
    transfer: u32,
    /// Whether it fetches the value of a cell.
    fetches: bool,
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

/// A wire in operation.
#[derive(Debug)]
pub(in crate::internals::fabric) struct Link<W: Wire> {
    /// The header slots, where peers write headers; `None` if writes carry none. Unlike the message buffers, peers may
    /// write this memory, so it is separate.
    header_slots: Option<W::Memory>,
    buffers: W::Memory,
    // Comes after the registrations, because they must end first.
    pub(in crate::internals::fabric) wire: W,
    /// The memory of both, which the provider may use until the wire has ended.
    windows: Vec<Window>,
    operations: Vec<Operation>,
    sending: Pool,
    moving: Pool,
    /// The number of the first transfer, and of the buffer for injected messages after the others.
    first_transfer: usize,
    pub(in crate::internals::fabric) limits: Limits,
    /// Whether writes carry immediate data, and whether it has a tag. Until [`Link::agree`], this is known only for
    /// this rank.
    pub(in crate::internals::fabric) uses_immediate: bool,
    pub(in crate::internals::fabric) tags_immediate: bool,
    /// The error with which the provider refused a returned message buffer.
    refused: Option<W::Error>,
    rank: u32,
    traffic: Traffic,
    /// The peers to which something was sent.
    reached: RankSet,
}

impl<W: Wire> Link<W> {
    pub(in crate::internals::fabric) fn new(
        wire: W,
        limits: Limits,
        (rank, ranks): (u32, u32),
    ) -> Result<Self, Failed<W::Error>> {
        let first_transfer = limits.first_transfer(ranks);
        let uses_immediate = limits.immediate >= ImmediateData::BYTES;
        let (buffers, header_slots) = limits.memory(ranks);
        let need = (buffers + header_slots.unwrap_or(0)) as u64;
        check_memory(rank, "make message buffers", need).map_err(Failed::System)?;
        let buffers = W::allocate(wire.registrar(), buffers, Purpose::Messages)?;
        let slots = |bytes| W::allocate(wire.registrar(), bytes, Purpose::Operations(Access::Write));
        let header_slots = header_slots.map(slots).transpose()?;
        let operations = limits.operations(ranks);
        let mut link = Link {
            windows: [&buffers].into_iter().chain(&header_slots).map(|memory| memory.window().clone()).collect(),
            header_slots,
            buffers,
            wire,
            operations: vec![Operation::default(); operations],
            sending: Pool::new(limits.receives..first_transfer, ranks),
            moving: Pool::new(first_transfer..operations, ranks),
            first_transfer,
            limits,
            uses_immediate,
            tags_immediate: limits.immediate >= ImmediateData::TAGGED_BYTES,
            refused: None,
            rank,
            traffic: Traffic::default(),
            reached: RankSet::empty(ranks),
        };
        for buffer in 0..limits.receives {
            link.post_receive(buffer).map_err(Failed::Code)?;
        }
        Ok(link)
    }

    /// Returns memory that the provider may use until the wire ends.
    pub(super) fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter()
    }

    /// Returns where peers write headers to this rank; `None` if writes carry none.
    pub(in crate::internals::fabric) fn header_slots(&self) -> Option<HeaderSlots> {
        let (key, base) = self.header_slots.as_ref()?.key()?;
        Some(HeaderSlots { key, base })
    }

    /// Returns the bytes of immediate data that a peer's write may bring to this rank; 0 if it is not used.
    pub(super) fn immediate(&self) -> usize {
        if self.uses_immediate { self.limits.immediate } else { 0 }
    }

    /// Returns whether this rank's device changes its cells for peers. Immediate data must then end its waits.
    pub(in crate::internals::fabric) fn is_by_device(&self) -> bool {
        self.uses_immediate && self.wire.atomicity() != Atomicity::Processor
    }

    /// Returns whether this rank polls its memory, so that it needs no wake for what devices change there.
    pub(super) fn polls_memory(&self) -> bool {
        self.is_by_device() && self.wire.polls_memory()
    }

    /// Sets what all ranks can do. Every rank takes at least `immediate` bytes of immediate data, and one of them takes
    /// no more. Devices may differ: a rank that takes no immediate data would wait for it for ever, and if only some
    /// writes had a tag, peers would look like strangers. `by_device`: the devices of all ranks change cells.
    /// `in_order`: they also order the bytes of a write.
    pub(super) fn agree(&mut self, immediate: usize, by_device: bool, in_order: bool) {
        self.uses_immediate &= immediate >= ImmediateData::BYTES;
        self.tags_immediate = immediate >= ImmediateData::TAGGED_BYTES;
        if !by_device && self.is_by_device() {
            tracing::warn!("not all ranks' devices carry out atomics: messages do, to the home's processor");
        }
        if !by_device {
            self.wire.forgo_atomics();
        }
        if !in_order {
            self.wire.forgo_order();
        }
    }

    /// Copies the header in a rank's slot, which the rank may overwrite afterwards.
    pub(super) fn header(&self, from: u32, number: u32) -> Option<[u8; SLOT_BYTES]> {
        let mut header = [0; SLOT_BYTES];
        self.header_slots.as_ref()?.window().read(header_slots::offset(from, number), &mut header);
        Some(header)
    }

    /// Returns what was sent to peers so far.
    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns how many peers were reached so far.
    pub(super) fn reached(&self) -> Reached {
        Reached { peers: self.reached.len(), queue_pairs: self.wire.queue_pairs() }
    }

    /// Counts what was posted to a peer. A device changes this rank's own cells by the same operations.
    #[inline]
    fn count(&mut self, peer: u32, what: Traffic) {
        if peer == self.rank {
            return;
        }
        self.traffic = self.traffic + what;
        self.reached.insert(peer);
    }

    /// Posts a buffer for the next message.
    pub(super) fn post_receive(&mut self, buffer: usize) -> Result<(), W::Error> {
        let to = Local { memory: &self.buffers, offset: buffer * BUFFER_BYTES, len: BUFFER_BYTES };
        // SAFETY: the buffers and their number belong to this value, and no code reads the buffer before its entry.
        unsafe { self.wire.receive(to, buffer) }
    }

    /// Returns the message in a buffer that was not posted again.
    pub(super) fn message(&self, buffer: usize, len: usize) -> &[u8] {
        let bytes = self.buffers.window().bytes(buffer * BUFFER_BYTES, len.min(BUFFER_BYTES));
        // SAFETY: the provider has completed the receive, and writes there only after
        // `post_receive`, which needs this value exclusively.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len.min(BUFFER_BYTES)) }
    }

    /// Sends a header, and the data that `fill` copies after it to an offset in a window. An uncounted message may use
    /// the reserved buffers.
    pub(super) fn send(
        &mut self,
        peer: u32,
        (header, content): (&Header, Content),
        len: usize,
        fill: impl FnOnce(&Window, usize),
    ) -> Posted<W::Error> {
        let len = header.len() + len;
        debug_assert!(len <= BUFFER_BYTES);
        let injects = len <= self.wire.most_injected();
        let buffer = match injects {
            // The message is copied before the call returns, so the buffer is always free.
            true => Some(self.first_transfer),
            false => self.sending.next(peer, if content.is_counted() { RESERVED } else { 0 }),
        };
        let Some(buffer) = buffer else { return Ok(false) };
        let (at, window) = (buffer * BUFFER_BYTES, self.buffers.window());
        window.write(at, header);
        fill(window, at + header.len());
        let sent = if injects {
            // SAFETY: the buffer belongs to this value, and no other reference to it exists.
            let message = unsafe { std::slice::from_raw_parts(window.bytes(at, len).as_ptr(), len) };
            self.wire.inject(peer, message)?
        } else {
            let from = Local { memory: &self.buffers, offset: at, len };
            // SAFETY: the buffer and its number are taken until the entry was read.
            unsafe { self.wire.send(peer, from, buffer) }?
        };
        if !sent {
            return Ok(false);
        }
        if !injects {
            self.operations[buffer] = Operation { peer, ..Operation::default() };
            self.sending.take(peer);
        }
        let (messages, control) = if content.is_control() { (0, 1) } else { (1, 0) };
        self.count(peer, Traffic { messages, control, bytes: len as u64, ..Traffic::default() });
        Ok(true)
    }

    /// Returns the number of rails over which the parts of a transfer of `len` bytes go in turn. A signal waits for the
    /// completion of a transfer over several rails.
    pub(super) fn rails(&self, len: usize) -> usize {
        if len < LEAST_SPREAD { 1 } else { self.wire.rails() }
    }

    /// Moves a part of a transfer between own memory and a peer's, by a rail. Without immediate data, completion of the
    /// part means that it lies in the peer's memory. With immediate data, it only means that the source was read.
    pub(super) fn transfer(
        &mut self,
        transfer: u32,
        (peer, rail): (u32, usize),
        ends: Ends<'_, W::Memory>,
        way: Way,
    ) -> Posted<W::Error> {
        let bytes = ends.0.len as u64;
        let what = match way {
            Way::Out | Way::OutWithImmediate(_) => Traffic { messages: 1, bytes, ..Traffic::default() },
            Way::In => Traffic { reads: 1, read_bytes: bytes, ..Traffic::default() },
        };
        // SAFETY: registered memory of a wire that is kept until its channel is closed on all
        // ranks. By the contract of `put` and `read` the source does not change, and no other
        // access touches the target, until completion.
        let posted = self.start((transfer, peer), what, |wire, _, number| unsafe {
            match way {
                Way::Out => wire.write((peer, rail), ends, None, number),
                Way::OutWithImmediate(immediate) => wire.write((peer, rail), ends, Some(immediate), number),
                Way::In => wire.read((peer, rail), ends, number),
            }
        });
        posted.map(|number| number.is_some())
    }

    /// Moves data to a peer, if there is any, and changes a cell there. If the cell lies `joins` bytes after the start
    /// of the data, the same write sets it: together they fit a header slot.
    pub(super) fn change(
        &mut self,
        (transfer, peer): (u32, u32),
        (data, joins): (Option<Ends<'_, W::Memory>>, Option<usize>),
        (cell, change): (Remote, CellChange),
        immediate: Option<u64>,
    ) -> Posted<W::Error> {
        let first_transfer = self.first_transfer;
        let moved = data.as_ref().map_or(0, |(near, _)| near.len as u64);
        let writes = u64::from(moved > 0 && joins.is_none());
        let cell_bytes = size_of::<u64>() as u64;
        let what = match change {
            CellChange::Set(_) => Traffic { messages: writes + 1, bytes: moved + cell_bytes, ..Traffic::default() },
            // Some devices read by an atomic that adds nothing.
            CellChange::Atomic(Atomic::FetchAdd(0)) => {
                Traffic { messages: writes, bytes: moved, reads: 1, read_bytes: cell_bytes, ..Traffic::default() }
            }
            CellChange::Atomic(_) => Traffic { messages: writes, bytes: moved, atomics: 1, ..Traffic::default() },
        };
        // A wake follows an atomic as an operation of its own.
        let wakes = immediate.is_some() && matches!(change, CellChange::Atomic(_));
        let what = Traffic { control: u64::from(wakes), ..what };
        let posted = self.start((transfer, peer), what, |wire, buffers, number| {
            let offset = header_at(first_transfer, number - first_transfer);
            let (data, to, before) = match (data, joins) {
                (Some((near, far)), Some(before)) => {
                    if near.len < before {
                        buffers.window().write(offset + before - size_of::<u64>(), &[0; size_of::<u64>()]);
                    }
                    Window::copy((near.memory.window(), near.offset), (buffers.window(), offset), near.len);
                    (None, far, before)
                }
                (data, _) => (data, cell, 0),
            };
            if let CellChange::Set(value) = change {
                buffers.window().write(offset + before, &value.to_ne_bytes());
            }
            let word = Local { memory: buffers, offset, len: before + size_of::<u64>() };
            // SAFETY: as in `transfer`; the word belongs to the number, which is taken until its
            // entry was read.
            unsafe { wire.change(peer, data, (to, change), word, immediate, number) }
        })?;
        let Some(number) = posted else { return Ok(false) };
        self.operations[number].fetches = matches!(change, CellChange::Atomic(_));
        Ok(true)
    }

    /// Moves all of a transfer to a peer in one operation, with immediate data and with a header
    /// for a slot there.
    pub(super) fn transfer_with_header(
        &mut self,
        transfer: u32,
        peer: u32,
        own: Local<'_, W::Memory>,
        remote: Remote,
        (immediate, header, slot): (u64, &Header, Remote),
    ) -> Posted<W::Error> {
        let first_transfer = self.first_transfer;
        let what = Traffic { messages: 1, bytes: (own.len + header.len()) as u64, ..Traffic::default() };
        let posted = self.start((transfer, peer), what, |wire, buffers, number| {
            let offset = header_at(first_transfer, number - first_transfer);
            buffers.window().write(offset, header);
            let places = [(own, remote), (Local { memory: buffers, offset, len: header.len() }, slot)];
            // SAFETY: as in `transfer`; the header belongs to the number, which is taken until its
            // entry was read.
            unsafe { wire.write_both(peer, places, immediate, number) }
        });
        posted.map(|number| number.is_some())
    }

    /// Starts a one-sided operation that counts as `what`, and returns its number, which `post` also gets. `None` if it
    /// cannot be posted now.
    fn start(
        &mut self,
        (transfer, peer): (u32, u32),
        what: Traffic,
        post: impl FnOnce(&mut W, &W::Memory, usize) -> Posted<W::Error>,
    ) -> Result<Option<usize>, W::Error> {
        let Some(number) = self.moving.next(peer, 0) else { return Ok(None) };
        if !post(&mut self.wire, &self.buffers, number)? {
            return Ok(None);
        }
        self.operations[number] = Operation { peer, transfer, fetches: false };
        self.moving.take(peer);
        self.count(peer, what);
        Ok(Some(number))
    }

    /// Makes progress and reads what has completed; [`Link::next`] returns it.
    pub(super) fn poll(&mut self) -> Result<(), W::Error> {
        match self.refused.take() {
            Some(error) => Err(error),
            None => self.wire.poll(),
        }
    }

    /// Returns the next event that [`Link::poll`] has read.
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            return Some(match self.wire.next()? {
                QueueEntry::Landed(data) => Event::Landed(data),
                QueueEntry::Unreachable { peer, reason } => Event::Failed(peer, None, reason),
                QueueEntry::Done { number, len } if number < self.limits.receives => Event::Message(number, len),
                QueueEntry::Done { number, .. } => self.release(number),
                // A stranger's message may have been too long; its buffer can be posted again.
                QueueEntry::Failed { number, .. } if number < self.limits.receives => {
                    self.refused = self.post_receive(number).err().or(self.refused);
                    continue;
                }
                QueueEntry::Failed { number, reason } => {
                    let Operation { peer, transfer, .. } = self.operations[number];
                    let moved = matches!(self.release(number), Event::Moved(..));
                    Event::Failed(peer, moved.then_some(transfer), reason)
                }
                QueueEntry::Nothing => Event::Nothing,
            });
        }
    }

    /// Ends an operation, and frees its number.
    fn release(&mut self, number: usize) -> Event {
        let Operation { transfer, peer, fetches } = self.operations[number];
        if number < self.first_transfer {
            self.sending.give_back(number, peer);
            return Event::Sent;
        }
        let mut word = [0; size_of::<u64>()];
        if fetches {
            let offset = header_at(self.first_transfer, number - self.first_transfer);
            self.buffers.window().read(offset, &mut word);
        }
        self.moving.give_back(number, peer);
        Event::Moved(transfer, peer, u64::from_ne_bytes(word))
    }

    /// Returns whether every message that the provider has accepted is sent.
    pub(super) fn has_sent_all(&self) -> bool {
        self.sending.is_whole()
    }

    /// Returns whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.has_sent_all() && self.moving.is_whole()
    }
}
