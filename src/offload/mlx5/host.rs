//! A host of the mock: its memory, its queues, and the state that its NIC reads there.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::ring::SendRing;
use super::wqe::{Condition, Element, Location, Miss, Operation, Payload, WaitWord};

/// Numbers of queues and keys of a host begin here, so that none is taken for an index.
const FIRST_NUMBER: u32 = 0x100;

/// The reason for which an element failed, with its syndrome in `mlx5dv.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// An element that is malformed, or that belongs to another queue pair or index.
    LocalOperation = 0x02,
    /// Local memory that is not registered.
    LocalProtection = 0x04,
    /// An element after one that failed.
    Flushed = 0x05,
    /// An address at the target that no atomic can have.
    RemoteInvalid = 0x12,
    /// Memory at the target that is not registered, or is not registered for others.
    RemoteAccess = 0x13,
}

/// The content of an entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The element with this index is complete.
    Sent(u16),
    /// A write with this number has landed.
    Received(u32),
    /// The element with this index has failed.
    Failed(u16, Syndrome),
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEntry {
    /// The number of the queue pair.
    pub queue: u32,
    /// Its content.
    pub what: What,
}

/// A queue of a host, or a registration: the host and the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Number {
    /// The host.
    pub host: usize,
    /// The number at that host.
    pub number: u32,
}

impl Number {
    pub(super) fn new(host: usize, index: usize) -> Self {
        Number { host, number: FIRST_NUMBER + index as u32 }
    }
}

pub(super) fn index(number: u32) -> usize {
    number.wrapping_sub(FIRST_NUMBER) as usize
}

pub(super) struct Region {
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
    /// Whether other hosts may write it.
    pub(super) shared: bool,
}

pub(super) struct Completions {
    /// Entries before the first of `entries`.
    pub(super) before: u32,
    pub(super) entries: Vec<CompletionEntry>,
}

/// The progress of an element that has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The target has not answered.
    InFlight,
    /// The element has taken effect; an atomic has this earlier value.
    Landed(u64),
    Failed(Syndrome),
}

pub(super) struct Started {
    pub(super) index: u16,
    pub(super) element: Element,
    pub(super) payload: Vec<u8>,
    pub(super) progress: Progress,
}

impl Started {
    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.element.operation, Operation::FetchAdd { .. })
    }
}

pub(super) struct QueuePair {
    pub(super) ring: SendRing,
    /// The newest block number that the doorbell has announced to the NIC.
    pub(super) rung: u16,
    /// The block of the next element to start.
    pub(super) next: u16,
    /// Blocks before this one are free.
    pub(super) released: u16,
    pub(super) started: VecDeque<Started>,
    /// Whether no further element starts.
    pub(super) is_stopped: bool,
    pub(super) send: usize,
    pub(super) receive: usize,
    pub(super) peer: Option<Number>,
    /// Receives that are posted and unused.
    pub(super) receives: u32,
    /// The numbers of messages that it has taken from its peer, and of its own messages that were answered.
    pub(super) taken: u64,
    pub(super) answered: u64,
    /// The earlier value of the last atomic that it has carried out, for a repetition.
    pub(super) last_atomic: u64,
}

#[derive(Default)]
pub(super) struct Host {
    pub(super) regions: Vec<Region>,
    pub(super) completions: Vec<Completions>,
    pub(super) pairs: Vec<QueuePair>,
}

impl Host {
    /// Returns the bytes at a location, if all of them are registered under its key.
    pub(super) fn bytes(
        &mut self,
        Location { key, address }: Location,
        length: usize,
        by_peer: bool,
    ) -> Option<&mut [u8]> {
        let region = self.regions.get_mut(index(key)).filter(|region| region.shared || !by_peer)?;
        let from = usize::try_from(address.checked_sub(region.base)?).ok()?;
        region.bytes.get_mut(from..from.checked_add(length)?)
    }

    pub(super) fn word(&mut self, location: Location, by_peer: bool) -> Option<&mut [u8; 8]> {
        self.bytes(location, 8, by_peer)?.first_chunk_mut()
    }

    pub(super) fn report(&mut self, completions: usize, queue: usize, what: What) {
        let entry = CompletionEntry { queue: Number::new(0, queue).number, what };
        self.completions[completions].entries.push(entry);
    }

    /// Returns the current data of a write.
    pub(super) fn gather(&mut self, payload: &Payload) -> Option<Vec<u8>> {
        match payload {
            Payload::Inline(bytes) => Some(bytes.clone()),
            Payload::Gather(pieces) => {
                let mut data = Vec::new();
                for &(from, length) in pieces {
                    data.extend_from_slice(self.bytes(from, length as usize, false)?);
                }
                Some(data)
            }
        }
    }

    /// Returns whether a wait is over.
    pub(super) fn is_over(&mut self, wait: &WaitWord) -> Result<bool, Syndrome> {
        let word = *self.word(wait.word, false).ok_or(Syndrome::LocalProtection)?;
        let mask = u64::from_be_bytes(wait.mask);
        let (value, memory) = (u64::from_be_bytes(wait.value) & mask, u64::from_be_bytes(word) & mask);
        let difference = value.wrapping_sub(memory).cast_signed();
        let holds = match wait.condition {
            Condition::Always => true,
            Condition::Equal => value == memory,
            Condition::Bigger => value > memory,
            Condition::Smaller => value < memory,
            Condition::CyclicBigger => difference > 0,
            Condition::CyclicSmaller => difference < 0,
        };
        match wait.miss {
            _ if holds != wait.invert => Ok(true),
            Miss::Retry => Ok(false),
            Miss::Fail => Err(Syndrome::LocalOperation),
        }
    }

    /// Returns whether a completion queue has had `count` entries.
    pub(super) fn has_entries(&self, queue: u32, count: u32) -> Result<bool, Syndrome> {
        let queue = self.completions.get(index(queue)).ok_or(Syndrome::LocalOperation)?;
        // Numbers of 24 bits that wrap: at the top, so that the sign is that of the difference.
        Ok((queue.count().wrapping_sub(count) << 8).cast_signed() >= 0)
    }
}

impl Completions {
    pub(super) fn count(&self) -> u32 {
        self.before.wrapping_add(self.entries.len() as u32) & 0x00ff_ffff
    }
}
