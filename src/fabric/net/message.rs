//! The encoding of messages between ranks, which carry all but bulk data.

use crate::fabric::{Atomic, Change};

/// The maximum number of bytes of a message without its data.
pub(crate) const MOST_HEADER: usize = 64;

/// The bytes of a header without a second operand. With two words of data the message is so small that providers inject
/// it, which is faster than sending: 64 bytes over TCP. All 48 bytes are in use.
const SHORT: usize = 48;

/// The maximum number of bytes of data that travel in a message even where a write could carry the header. With a short
/// header such a message is injected.
pub(crate) const MOST_INLINE: usize = MOST_HEADER - SHORT;

/// The maximum number of bytes of data in a message, which providers copy at once. A header has 16 bits for the length.
pub(crate) const MOST_DATA: usize = 8 * 1024;

/// The maximum number of ranks of a world: a header has 16 bits for the sender.
pub(super) const MOST_RANKS: u32 = 1 << 16;

/// A location in a region of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Location {
    /// The receiver's number of the region, within the channel.
    pub(crate) region: u16,
    /// The bytes from its start.
    pub(crate) offset: u64,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Copy the data, if any, to `to`; then change a cell, if `signal` names one. With `ack_now` the sender waits for
    /// the ack.
    Put { to: Location, signal: Option<(Location, Change)>, ack_now: bool },
    /// Change a cell when `parts` writes with this `write_id`, which travel separately, have landed.
    Landing { write_id: u16, parts: u32, signal: (Location, Change), ack_now: bool },
    /// Change a cell and answer with its old value. `id` goes into the answer.
    Atomic { at: Location, atomic: Atomic, id: u32 },
    /// The old value of a cell.
    Value { id: u32, value: u64 },
    /// Only the acknowledgement that every message carries.
    Ack,
    /// The sender's bytes (the data) for an exchange, by its number.
    Exchange { turn: u64 },
    /// The same for an exchange by which ranks join. It is not counted, so that a stranger's message takes no number of
    /// a rank's later message.
    Join { turn: u64 },
    /// Asks for a sign of life.
    Ping,
    /// Asks a rank whether it sees the process of another rank on its host running.
    Ask { rank: u32 },
    /// Whether the sender sees the process of a rank running.
    Seen { rank: u32, runs: bool },
    /// The sender has taken `count` further wakes of the receiver.
    Woken { count: u32 },
    /// A rank has aborted the job; the data gives the reason. `last` if the sender ends now.
    Abort { by: u32, last: bool },
    /// A rank was found dead; the data says how. `last` if the sender ends now.
    Died { rank: u32, last: bool },
    /// The sender has closed the channel.
    Close,
    /// The sender leaves in good order, and stays for a while.
    Leave,
    /// The sender, which has left in good order, ends now and processes nothing any more.
    Ended,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The secret of the job. It keeps strangers out and tells worlds apart, because an address may have belonged to
    /// another world before.
    pub(crate) secret: u64,
    /// The sending rank.
    pub(crate) from: u32,
    /// The number of a counted message, from 1; unused for other messages.
    pub(crate) number: u32,
    /// Cumulative acknowledgement: the sender has processed the receiver's messages up to this number.
    pub(crate) ack: u32,
    /// The collective that it belongs to.
    pub(crate) channel: u16,
    /// The bytes of data that follow.
    pub(crate) len: u32,
    /// The kind of message and its operands.
    pub(crate) content: Content,
}

impl Content {
    /// Returns whether joining ranks send such messages.
    pub(super) fn is_of_joining(&self) -> bool {
        match self {
            Content::Join { .. }
            | Content::Ack
            | Content::Ping
            | Content::Ask { .. }
            | Content::Seen { .. }
            | Content::Abort { .. }
            | Content::Died { .. } => true,
            Content::Exchange { .. }
            | Content::Leave
            | Content::Ended
            | Content::Put { .. }
            | Content::Landing { .. }
            | Content::Atomic { .. }
            | Content::Value { .. }
            | Content::Woken { .. }
            | Content::Close => false,
        }
    }
}

const PUT: u8 = 1;
const ATOMIC: u8 = 2;
const VALUE: u8 = 3;
const ACK: u8 = 4;
const EXCHANGE: u8 = 5;
const PING: u8 = 6;
const ABORT: u8 = 7;
const DIED: u8 = 8;
const CLOSE: u8 = 9;
const LEAVE: u8 = 10;
const LANDING: u8 = 11;
const ENDED: u8 = 12;
const WOKEN: u8 = 13;
const ASK: u8 = 14;
const SEEN: u8 = 15;
const JOIN: u8 = 16;

/// How a cell changes, and whether the sender waits for the ack.
const NONE: u8 = 0;
const SET: u8 = 1;
const ADD: u8 = 2;
const ACK_NOW: u8 = 4;

/// The bytes of a cell.
const CELL: u64 = 8;

/// The flag for a sender that ends.
const LAST: u8 = 1;

const FETCH_ADD: u8 = 0;
const COMPARE_SWAP: u8 = 1;

impl Content {
    /// Returns whether the message is counted, and so delivered exactly once and acknowledged.
    pub(crate) fn is_counted(self) -> bool {
        !matches!(
            self,
            Content::Ack
                | Content::Join { .. }
                | Content::Ping
                | Content::Ask { .. }
                | Content::Seen { .. }
                | Content::Woken { .. }
                | Content::Abort { .. }
                | Content::Died { .. }
                | Content::Ended
        )
    }

    /// Returns whether only the transport needs the message: an acknowledgement, a sign of life.
    pub(super) fn is_control(self) -> bool {
        !self.is_counted() && !matches!(self, Content::Join { .. })
    }

    /// Returns whether the sender sends and processes nothing after it.
    pub(crate) fn is_last(self) -> bool {
        matches!(self, Content::Abort { last: true, .. } | Content::Died { last: true, .. } | Content::Ended)
    }
}

/// The fields of a header before interpretation.
#[derive(Default)]
struct Fields {
    kind: u8,
    change: u8,
    first: Location,
    second: u16,
    /// The number of a cell in the second region, or the id of an atomic.
    id: u32,
    value: u64,
    other: Option<u64>,
}

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    bytes: [u8; MOST_HEADER],
    len: usize,
}

impl std::ops::Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Message {
    pub(crate) fn encode(&self) -> Header {
        let mut fields = Fields::default();
        let signal = |fields: &mut Fields, (at, change): (Location, Change)| {
            // A cell is named by its number; one beyond 2^32 would lie beyond 32 GiB.
            debug_assert!(at.offset.is_multiple_of(CELL) && at.offset / CELL <= u64::from(u32::MAX));
            (fields.second, fields.id) = (at.region, (at.offset / CELL) as u32);
            fields.change = if matches!(change, Change::Set(_)) { SET } else { ADD };
            fields.value = change.value();
        };
        match self.content {
            Content::Put { to, signal: change, ack_now } => {
                (fields.kind, fields.first) = (PUT, to);
                change.into_iter().for_each(|change| signal(&mut fields, change));
                fields.change |= if ack_now { ACK_NOW } else { 0 };
            }
            Content::Landing { write_id, parts, signal: change, ack_now } => {
                (fields.kind, fields.first) = (LANDING, Location { region: write_id, offset: u64::from(parts) });
                signal(&mut fields, change);
                fields.change |= if ack_now { ACK_NOW } else { 0 };
            }
            Content::Atomic { at, atomic, id } => {
                (fields.kind, fields.first, fields.id) = (ATOMIC, at, id);
                (fields.change, fields.value, fields.other) = match atomic {
                    Atomic::FetchAdd(value) => (FETCH_ADD, value, None),
                    Atomic::CompareSwap { expect, new } => (COMPARE_SWAP, expect, Some(new)),
                };
            }
            Content::Value { id, value } => (fields.kind, fields.id, fields.value) = (VALUE, id, value),
            Content::Ack => fields.kind = ACK,
            Content::Exchange { turn } => (fields.kind, fields.value) = (EXCHANGE, turn),
            Content::Join { turn } => (fields.kind, fields.value) = (JOIN, turn),
            Content::Ping => fields.kind = PING,
            Content::Ask { rank } => (fields.kind, fields.id) = (ASK, rank),
            Content::Seen { rank, runs } => (fields.kind, fields.change, fields.id) = (SEEN, u8::from(runs), rank),
            Content::Woken { count } => (fields.kind, fields.id) = (WOKEN, count),
            Content::Abort { by, last } => (fields.kind, fields.change, fields.id) = (ABORT, u8::from(last), by),
            Content::Died { rank, last } => (fields.kind, fields.change, fields.id) = (DIED, u8::from(last), rank),
            Content::Close => fields.kind = CLOSE,
            Content::Leave => fields.kind = LEAVE,
            Content::Ended => fields.kind = ENDED,
        }
        let mut bytes = [0; MOST_HEADER];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&[fields.kind, fields.change]);
        debug_assert!(self.from < MOST_RANKS && self.len <= u32::from(u16::MAX));
        for field in [self.channel, self.from as u16, self.len as u16] {
            put(&field.to_le_bytes());
        }
        for field in [self.number, self.ack, fields.id] {
            put(&field.to_le_bytes());
        }
        for field in [fields.first.region, fields.second] {
            put(&field.to_le_bytes());
        }
        for field in [fields.first.offset, fields.value, self.secret] {
            put(&field.to_le_bytes());
        }
        if let Some(other) = fields.other {
            put(&other.to_le_bytes());
        }
        let len = at;
        Header { bytes, len }
    }

    /// Returns a message and its data; `None` for bytes that are not a message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, mut data) = bytes.split_first_chunk::<SHORT>()?;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| header[at + index]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| header[at + index]));
        let (id, first, value) = (word(16), Location { region: half(20), offset: long(24) }, long(32));
        let content = match (header[0], header[1]) {
            (PUT | LANDING, change) => {
                let cell = Location { region: half(22), offset: u64::from(id) * CELL };
                let signal = match change & !ACK_NOW {
                    NONE => None,
                    SET => Some((cell, Change::Set(value))),
                    ADD => Some((cell, Change::Add(value))),
                    _ => return None,
                };
                match header[0] {
                    PUT => Content::Put { to: first, signal, ack_now: change & ACK_NOW != 0 },
                    _ => {
                        let parts = u32::try_from(first.offset).ok()?;
                        Content::Landing {
                            write_id: first.region,
                            parts,
                            signal: signal?,
                            ack_now: change & ACK_NOW != 0,
                        }
                    }
                }
            }
            (ATOMIC, FETCH_ADD) => Content::Atomic { at: first, atomic: Atomic::FetchAdd(value), id },
            (ATOMIC, COMPARE_SWAP) => {
                let (new, rest) = data.split_first_chunk()?;
                data = rest;
                let atomic = Atomic::CompareSwap { expect: value, new: u64::from_le_bytes(*new) };
                Content::Atomic { at: first, atomic, id }
            }
            (VALUE, 0) => Content::Value { id, value },
            (ACK, 0) => Content::Ack,
            (EXCHANGE, 0) => Content::Exchange { turn: value },
            (JOIN, 0) => Content::Join { turn: value },
            (PING, 0) => Content::Ping,
            (ASK, 0) => Content::Ask { rank: id },
            (SEEN, runs @ (0 | 1)) => Content::Seen { rank: id, runs: runs == 1 },
            (WOKEN, 0) => Content::Woken { count: id },
            (ABORT, last @ (0 | LAST)) => Content::Abort { by: id, last: last == LAST },
            (DIED, last @ (0 | LAST)) => Content::Died { rank: id, last: last == LAST },
            (CLOSE, 0) => Content::Close,
            (LEAVE, 0) => Content::Leave,
            (ENDED, 0) => Content::Ended,
            _ => return None,
        };
        let message = Message {
            secret: long(40),
            from: u32::from(half(4)),
            number: word(8),
            ack: word(12),
            channel: half(2),
            len: u32::from(half(6)),
            content,
        };
        let data = data.get(..message.len as usize)?;
        Some((message, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let location = |region| Location { region, offset: 1 << 33 | 8 };
        let contents = [
            Content::Put { to: location(3), signal: Some((location(4), Change::Add(u64::MAX))), ack_now: false },
            Content::Put { to: location(3), signal: Some((location(4), Change::Set(7))), ack_now: true },
            Content::Put { to: location(u16::MAX), signal: None, ack_now: true },
            Content::Landing { write_id: 7, parts: 3, signal: (location(4), Change::Set(7)), ack_now: false },
            Content::Landing { write_id: 7, parts: 3, signal: (location(4), Change::Add(7)), ack_now: true },
            Content::Atomic { at: location(1), atomic: Atomic::FetchAdd(5), id: 9 },
            Content::Atomic { at: location(1), atomic: Atomic::CompareSwap { expect: 1, new: 2 }, id: u32::MAX },
            Content::Value { id: 4, value: 5 },
            Content::Ack,
            Content::Exchange { turn: 1 << 33 },
            Content::Join { turn: 1 << 33 },
            Content::Ping,
            Content::Ask { rank: 3 },
            Content::Seen { rank: 3, runs: false },
            Content::Seen { rank: MOST_RANKS - 1, runs: true },
            Content::Woken { count: 9 },
            Content::Abort { by: 3, last: false },
            Content::Abort { by: MOST_RANKS - 1, last: true },
            Content::Died { rank: 6, last: false },
            Content::Died { rank: 6, last: true },
            Content::Close,
            Content::Leave,
            Content::Ended,
        ];
        for content in contents {
            let number = u32::from(content.is_counted()) * 77;
            let secret = u64::MAX - 1;
            let message = Message { secret, from: MOST_RANKS - 1, number, ack: 4, channel: 5, len: 3, content };
            let header = message.encode();
            // With two words of data it is injected over TCP.
            assert!(header.len() == SHORT || matches!(content, Content::Atomic { .. }), "{} bytes", header.len());
            let bytes = [&header[..], b"abcdef"].concat();
            assert_eq!(Message::decode(&bytes), Some((message, &b"abc"[..])));
            assert_eq!(Message::decode(&bytes[..bytes.len() - 4]), None, "data is missing");
        }
    }
}
