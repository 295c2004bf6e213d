//! Messages from one rank to another, of any length.
//!
//! For each other rank a rank has a *lane* of two slots, into which it writes its messages part by part; the receiver
//! reads them from there. The word that one rank tells another counts the parts that it has written for that rank, and
//! those that it has taken of it. A message whose tag no call waits for is kept until a call does.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;

use super::peers::{Memory, Peers, Purpose};
use crate::error::{Error, Misuse, Result};
use crate::fabric::{At, CACHE_LINE, Endpoint, Window};
use crate::fault::Fault;

/// Slots of a lane.
const SLOTS: u32 = 2;

/// Bytes of all lanes of a rank, and bounds of those of a slot.
const LANES: usize = 4 << 20;
const LEAST_SLOT: usize = 1 << 10;
const MOST_SLOT: usize = 64 << 10;

/// What comes before the data of a part: the tag, and the bytes of the whole message.
type Header = [u64; 2];

const HEADER: usize = size_of::<Header>();

/// Parts that a poll moves at most. Between polls a call looks at its deadline.
const MOST_AT_ONCE: u32 = 256;

/// This rank's lanes, and its way to those of the others.
#[derive(Debug)]
pub(crate) struct Pairs {
    me: u32,
    peers: Peers,
    /// The lanes; and where parts from other hosts are read to, one of each rank.
    memory: Memory,
    /// Bytes of a slot.
    slot: usize,
    ends: Vec<End>,
    /// Calls so far.
    calls: u64,
    /// A call failed in the middle of a message.
    is_broken: bool,
    fault: Option<Fault>,
}

/// What this rank has with another one.
#[derive(Debug, Default)]
struct End {
    /// Parts that were written for it, and parts of it that were taken. They wrap.
    written: u32,
    taken: u32,
    /// Calls that send to it: the first one writes.
    senders: VecDeque<u64>,
    read: Read,
    /// The message whose parts come now.
    current: Option<Current>,
    /// Messages that no call has waited for, by their tags.
    kept: VecDeque<(u64, Vec<u8>)>,
}

/// The next part, if it comes from another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Read {
    #[default]
    Not,
    UnderWay,
    Done,
}

#[derive(Debug)]
enum Current {
    /// It goes to the memory of a call.
    For(u64),
    /// It is kept.
    Kept { tag: u64, length: usize, data: Vec<u8> },
}

/// A call that sends a message or receives one.
#[derive(Debug)]
pub(crate) struct Transfer {
    operation: &'static str,
    number: u64,
    peer: u32,
    tag: u64,
    /// Bytes that have moved; a message may have none.
    done: usize,
    has_begun: bool,
}

impl Transfer {
    /// The rank at the other end.
    pub(crate) fn peer(&self) -> u32 {
        self.peer
    }
}

impl Pairs {
    /// Makes the lanes, and what [`Pairs::meet`] of the other ranks is to be told. `shared`: all ranks share memory.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn new(endpoint: Box<dyn Endpoint>, me: u32, ranks: u32, shared: bool) -> Result<(Self, Vec<u8>)> {
        let slot = LANES / (ranks as usize * SLOTS as usize);
        Self::with_slots(endpoint, me, ranks, shared, slot.clamp(LEAST_SLOT, MOST_SLOT))
    }

    pub(super) fn with_slots(
        endpoint: Box<dyn Endpoint>,
        me: u32,
        ranks: u32,
        shared: bool,
        slot: usize,
    ) -> Result<(Self, Vec<u8>)> {
        let slot = slot.next_multiple_of(CACHE_LINE);
        let places = (!shared).then_some(ranks as usize * slot);
        let lanes = ranks as usize * SLOTS as usize * slot;
        let (peers, memory, told) = Peers::new(endpoint, me, ranks, lanes, places)?;
        let ends = (0..ranks).map(|_| End::default()).collect();
        let (calls, is_broken, fault) = (0, false, Fault::chosen());
        Ok((Pairs { me, peers, memory, slot, ends, calls, is_broken, fault }, told))
    }

    /// Gets to know what all ranks have told, in rank order.
    ///
    /// # Errors
    /// A rank told something else.
    pub(crate) fn meet(&mut self, told: &[Vec<u8>]) -> Result<()> {
        self.peers.meet(told)
    }

    /// Begins to send a message to a rank.
    ///
    /// # Errors
    /// An earlier call failed in the middle of a message.
    pub(crate) fn send(&mut self, operation: &'static str, to: u32, tag: u64) -> Result<Transfer> {
        let transfer = self.begin(operation, to, tag)?;
        self.ends[to as usize].senders.push_back(transfer.number);
        Ok(transfer)
    }

    /// Begins to receive a message of a rank.
    ///
    /// # Errors
    /// As [`Pairs::send`].
    pub(crate) fn receive(&mut self, operation: &'static str, from: u32, tag: u64) -> Result<Transfer> {
        self.begin(operation, from, tag)
    }

    fn check_whole(&self, operation: &'static str) -> Result<()> {
        let problem = Misuse::OutOfStep("an earlier message of this world was cut off; start a new world");
        match self.is_broken {
            true => Err(Error::Usage { rank: self.me, operation, problem }),
            false => Ok(()),
        }
    }

    fn begin(&mut self, operation: &'static str, peer: u32, tag: u64) -> Result<Transfer> {
        self.check_whole(operation)?;
        self.calls += 1;
        Ok(Transfer { operation, number: self.calls, peer, tag, done: 0, has_begun: false })
    }

    /// Writes what there is room for. Whether all is written, so that the data may change.
    ///
    /// # Errors
    /// An operation that failed.
    pub(crate) fn poll_send(&mut self, transfer: &mut Transfer, data: &[u8]) -> Result<bool> {
        self.progress(transfer.operation)?;
        let peer = transfer.peer;
        if self.ends[peer as usize].senders.front() != Some(&transfer.number) {
            return Ok(false);
        }
        let room = self.slot - HEADER;
        let mut parts = 0..MOST_AT_ONCE;
        while transfer.done < data.len() || !transfer.has_begun {
            if parts.next().is_none() {
                return Ok(false);
            }
            let (_, taken) = self.heard(peer);
            let end = &mut self.ends[peer as usize];
            let free = if Fault::OverwriteLane.is(self.fault) { u32::MAX } else { SLOTS };
            if end.written.wrapping_sub(taken) >= free {
                return Ok(false);
            }
            let at = Self::lane(self.slot, peer, end.written);
            end.written = end.written.wrapping_add(1);
            let part = &data[transfer.done..data.len().min(transfer.done + room)];
            self.memory.slots.write(at, bytemuck::bytes_of::<Header>(&[transfer.tag, data.len() as u64]));
            self.memory.slots.write(at + HEADER, part);
            transfer.done += part.len();
            transfer.has_begun = true;
            self.tell(peer)?;
        }
        if !self.peers.is_told() {
            return Ok(false);
        }
        self.ends[peer as usize].senders.pop_front();
        Ok(true)
    }

    /// Reads what has come. Whether the message is there.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it has another length; an operation that failed.
    pub(crate) fn poll_receive(&mut self, transfer: &mut Transfer, data: &mut [u8]) -> Result<bool> {
        self.progress(transfer.operation)?;
        for _ in 0..MOST_AT_ONCE {
            if transfer.has_begun && transfer.done == data.len() {
                return Ok(self.peers.is_told());
            }
            let kept = &mut self.ends[transfer.peer as usize].kept;
            if !transfer.has_begun
                && let Some(index) = kept.iter().position(|(tag, _)| *tag == transfer.tag)
                && let Some((_, message)) = kept.remove(index)
            {
                self.compare(transfer, data.len(), message.len())?;
                data.copy_from_slice(&message);
                (transfer.has_begun, transfer.done) = (true, data.len());
                continue;
            }
            let Some((part, [tag, length])) = self.next_part(transfer.peer)? else { return Ok(false) };
            let is_mine = tag == transfer.tag || Fault::TakeAnyTag.is(self.fault);
            let current = &mut self.ends[transfer.peer as usize].current;
            match current {
                None if is_mine && !transfer.has_begun => *current = Some(Current::For(transfer.number)),
                Some(Current::For(number)) if *number == transfer.number => {}
                // Another call takes this message.
                Some(Current::For(_)) => return Ok(false),
                None | Some(Current::Kept { .. }) => {
                    self.keep_part(transfer.peer, &part, [tag, length])?;
                    continue;
                }
            }
            self.compare(transfer, data.len(), usize::try_from(length).unwrap_or(usize::MAX))?;
            let rest = &mut data[transfer.done..];
            let most = rest.len().min(self.slot - HEADER);
            part.0.read(part.1 + HEADER, &mut rest[..most]);
            transfer.done += most;
            transfer.has_begun = true;
            if transfer.done == data.len() {
                self.ends[transfer.peer as usize].current = None;
            }
            self.take_part(transfer.peer)?;
        }
        Ok(false)
    }

    /// Whether a message with this tag has come from a rank, or begins to. Messages before it are kept.
    ///
    /// # Errors
    /// An operation that failed.
    pub(crate) fn has_message(&mut self, operation: &'static str, from: u32, tag: u64) -> Result<bool> {
        self.progress(operation)?;
        for _ in 0..MOST_AT_ONCE {
            let End { kept, current, .. } = &self.ends[from as usize];
            if kept.iter().any(|(kept, _)| *kept == tag) {
                return Ok(true);
            }
            let (begins, is_taken) = (current.is_none(), matches!(current, Some(Current::For(_))));
            if is_taken {
                return Ok(false);
            }
            let Some((part, header)) = self.next_part(from)? else { return Ok(false) };
            if begins && header[0] == tag {
                return Ok(true);
            }
            self.keep_part(from, &part, header)?;
        }
        Ok(false)
    }

    /// Keeps a part of a message that no call waits for.
    fn keep_part(&mut self, from: u32, (window, at): &(Window, usize), [tag, length]: Header) -> Result<()> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let end = &mut self.ends[from as usize];
        let current = end.current.get_or_insert_with(|| Current::Kept { tag, length, data: Vec::new() });
        let Current::Kept { tag: begun, length: whole, data } = current else { return Ok(()) };
        if (*begun, *whole) != (tag, length) {
            let cause = "it sent a part of another message in the middle of one";
            return Err(Error::transport(self.me, from, "receive", cause));
        }
        let done = data.len();
        data.resize(done + (length - done).min(self.slot - HEADER), 0);
        window.read(at + HEADER, &mut data[done..]);
        if data.len() == length {
            let message = std::mem::take(data);
            end.current = None;
            end.kept.push_back((tag, message));
        }
        self.take_part(from)
    }

    /// A call ends before it is done, because its time is over or because it failed. Whether there can be no other call:
    /// in the middle of a message.
    pub(crate) fn give_up(&mut self, transfer: &Transfer, failed: bool) -> bool {
        let end = &mut self.ends[transfer.peer as usize];
        end.senders.retain(|&number| number != transfer.number);
        let is_taking = matches!(end.current, Some(Current::For(number)) if number == transfer.number);
        self.is_broken |= failed || transfer.has_begun || is_taking;
        self.is_broken
    }

    /// Announces a sleep. What comes from now on ends it.
    pub(crate) fn prepare_sleep(&mut self) {
        self.peers.prepare_sleep();
    }

    pub(crate) fn cancel_sleep(&mut self) {
        self.peers.cancel_sleep();
    }

    pub(crate) fn sleep(&mut self, at_most: Duration) {
        self.peers.sleep(at_most);
    }

    /// Takes what a network has done.
    ///
    /// # Errors
    /// An operation that failed; an earlier call failed in the middle of a message.
    fn progress(&mut self, operation: &'static str) -> Result<()> {
        self.check_whole(operation)?;
        while let Some((_, rank)) = self.peers.completed()? {
            self.ends[rank as usize].read = Read::Done;
        }
        Ok(())
    }

    /// The parts that a rank has written for this one, and those that it has taken of it.
    fn heard(&self, rank: u32) -> (u32, u32) {
        let word = self.peers.heard(rank);
        ((word >> u32::BITS) as u32, word as u32)
    }

    fn tell(&mut self, rank: u32) -> Result<()> {
        let End { written, taken, .. } = self.ends[rank as usize];
        self.peers.tell(rank, u64::from(written) << u32::BITS | u64::from(taken))?;
        self.peers.wake();
        Ok(())
    }

    /// Tells a rank another word than it should.
    #[cfg(test)]
    pub(super) fn tell_falsely(&mut self, rank: u32, word: u64) {
        self.peers.tell(rank, word).unwrap();
    }

    /// Where a part for a rank lies.
    fn lane(slot: usize, rank: u32, part: u32) -> usize {
        (rank * SLOTS + part % SLOTS) as usize * slot
    }

    /// Where the next part of a rank can be read, if it is there, and its header.
    fn next_part(&mut self, rank: u32) -> Result<Option<((Window, usize), Header)>> {
        let Some((window, at)) = self.find_part(rank)? else { return Ok(None) };
        let mut header = Header::default();
        window.read(at, bytemuck::bytes_of_mut(&mut header));
        Ok(Some(((window, at), header)))
    }

    fn find_part(&mut self, rank: u32) -> Result<Option<(Window, usize)>> {
        let (written, _) = self.heard(rank);
        let End { taken, read, .. } = self.ends[rank as usize];
        match written.wrapping_sub(taken) {
            0 => return Ok(None),
            1..=SLOTS => {}
            _ if Fault::OverwriteLane.is(self.fault) => {}
            _ => return Err(Error::transport(self.me, rank, "receive", "it counts messages that there cannot be")),
        }
        let from = Self::lane(self.slot, self.me, taken);
        if let Some(window) = self.peers.slots(rank)? {
            return Ok(Some((window.clone(), from)));
        }
        let Some((region, window)) = &self.memory.places else { return Ok(None) };
        let offset = rank as usize * self.slot;
        let there = match read {
            Read::Done => true,
            Read::UnderWay => false,
            Read::Not => {
                let to = At { region: *region, offset };
                let there = self.peers.read(rank, from, to, self.slot, Purpose::Copied)?;
                self.ends[rank as usize].read = if there { Read::Done } else { Read::UnderWay };
                there
            }
        };
        Ok(there.then(|| (window.clone(), offset)))
    }

    fn take_part(&mut self, rank: u32) -> Result<()> {
        let end = &mut self.ends[rank as usize];
        end.taken = end.taken.wrapping_add(1);
        end.read = Read::Not;
        self.tell(rank)
    }

    fn compare(&self, transfer: &Transfer, mine: usize, theirs: usize) -> Result<()> {
        if mine == theirs {
            return Ok(());
        }
        let what = "the length of the message in bytes";
        Err(Error::mismatch(self.me, transfer.operation, what, mine, (transfer.peer, theirs)))
    }
}
