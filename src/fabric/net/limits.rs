//! Limits of what is posted to a provider at once.
#![forbid(unsafe_code)]

use super::header_slots::SLOT_BYTES;
use super::message::MOST_DATA;
use super::shares::peers;

/// The maximum length of a part of a transfer, whatever the provider supports: messages to the same peer, including
/// signs of life, wait for it.
const MOST_PART: usize = 1 << 20;

/// The minimum length of a transfer whose parts go over several rails. Its signal waits for their completion, which
/// takes one more round trip to the peer: some microseconds. Writing half of it takes that time at 25 to 50 GB/s, and
/// more on slower links.
pub(in crate::internals::fabric) const LEAST_SPREAD: usize = 256 << 10;

/// Parts of a transfer over several rails are multiples of a page.
pub(super) const SPREAD_UNIT: usize = 4096;

/// The number of one-sided operations in flight, unless the world has more peers.
const MOVING: usize = 64;

/// The number of message buffers for incoming messages, unless a provider needs more.
const RECEIVE_BUFFERS: usize = 128;

/// The number of message buffers for outgoing messages, unless the world has more peers.
const SEND_BUFFERS: usize = 64;

/// The buffers of each peer's share that are reserved for uncounted messages, which wait for no other.
pub(super) const RESERVED: usize = 1;

/// Limits of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(in crate::internals::fabric) struct Limits {
    /// The maximum number of bytes of data in a message.
    pub(in crate::internals::fabric) put: usize,
    /// The maximum length of a part of a transfer.
    pub(in crate::internals::fabric) part: usize,
    /// The maximum length of a transfer that carries a header along.
    pub(in crate::internals::fabric) with_header: usize,
    /// The number of message buffers for incoming messages.
    pub(in crate::internals::fabric) receives: usize,
    /// The number of one-sided operations in flight.
    pub(in crate::internals::fabric) moving: usize,
    /// The bytes of immediate data that a peer's write can bring; 0 if writes carry none.
    pub(in crate::internals::fabric) immediate: usize,
    /// The number of locations of a peer that one write can reach.
    pub(in crate::internals::fabric) places: usize,
}

impl Limits {
    /// Returns the limits of an endpoint whose operations have at most `longest` bytes, in a world of `ranks`. Its
    /// writes carry neither immediate data nor headers.
    pub(in crate::internals::fabric) fn of(longest: usize, ranks: u32) -> Self {
        let (part, with_header) = (longest.clamp(1, MOST_PART), longest.saturating_sub(SLOT_BYTES).min(MOST_PART));
        let moving = MOVING.max(peers(ranks));
        Limits { put: MOST_DATA, part, with_header, receives: RECEIVE_BUFFERS, moving, immediate: 0, places: 1 }
    }

    /// Returns the number of operations that can be in flight in a world of `ranks`. Receives have the first numbers,
    /// then come sends and then transfers.
    pub(in crate::internals::fabric) fn operations(&self, ranks: u32) -> usize {
        self.first_transfer(ranks) + self.moving
    }

    /// Returns the number of the first transfer.
    pub(in crate::internals::fabric) fn first_transfer(&self, ranks: u32) -> usize {
        self.receives + SEND_BUFFERS.max(peers(ranks)) + RESERVED * peers(ranks)
    }
}
