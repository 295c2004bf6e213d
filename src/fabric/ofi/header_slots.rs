//! Notes: messages that a peer's writes of data bring along, each into a slot of its own in memory of this rank.
//!
//! Remote completion data says which slot. A slot is written again when the message was dealt with, so a write must
//! not be repeated once its data was seen to complete, as one of a reliable endpoint is not.
//!
//! Messages without data are sent. Written with `fi_inject_writedata` they take as long, and when one cannot be
//! delivered because the peer is dead, `ofi_rxm` (1.17 to 2.5) follows a null pointer: `tcp` reports the failure of
//! what has no context.
#![forbid(unsafe_code)]

use earlybird_ffi::ofi::Remote;

use super::message::MOST_HEADER;
use super::sequence::WINDOW;

/// Most bytes of a note.
pub(super) const SLOT_BYTES: usize = MOST_HEADER;

/// What marks of notes have, and marks of other writes have not: behind it stands the message's number.
pub(super) const IN_SLOT: u16 = 1 << 15;

/// What a write brings to the queue of its target: whose it is and which, and the job's tag where that has room. Without
/// it anybody could say that a write has landed: over `tcp` and `shm` (1.17) one of no bytes needs no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImmediateData {
    pub(super) from: u32,
    /// By its number, or [`IN_SLOT`] with that of the slot.
    pub(super) which: u16,
}

impl ImmediateData {
    /// Bytes that it takes without a tag, and with one.
    pub(super) const BYTES: usize = 4;
    pub(super) const TAGGED_BYTES: usize = 8;

    pub(super) fn encode(self, tag: u32) -> u64 {
        u64::from(tag) << 32 | u64::from(self.from) << 16 | u64::from(self.which)
    }

    /// Nothing for one with another tag.
    pub(super) fn decode(data: u64, tag: u32) -> Option<Self> {
        let immediate = ImmediateData { from: (data >> 16) as u32 & 0xFFFF, which: data as u16 };
        (data >> 32 == u64::from(tag)).then_some(immediate)
    }
}

/// Where a rank's peers write notes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderSlots {
    pub(crate) key: u64,
    /// Where the first lies, by the provider's count.
    pub(crate) base: u64,
}

impl HeaderSlots {
    /// Where a rank's message of this number goes to, at a peer of this address, and the mark that tells of it.
    pub(super) fn target(self, peer: u64, from: u32, number: u32) -> (ImmediateData, Remote) {
        let immediate = ImmediateData { from, which: IN_SLOT | (number % WINDOW) as u16 };
        (immediate, Remote { peer, address: self.base.wrapping_add(offset(from, number) as u64), key: self.key })
    }
}

/// Bytes for the notes of so many ranks: as many as may be under way.
pub(super) fn size(ranks: u32) -> usize {
    offset(ranks, 0)
}

/// Where the note that a rank's message of this number is lies among all.
pub(super) fn offset(from: u32, number: u32) -> usize {
    (from as usize * WINDOW as usize + (number % WINDOW) as usize) * SLOT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_known_by_their_tag() {
        for which in [0, 7, IN_SLOT, IN_SLOT | 63] {
            let immediate = ImmediateData { from: 0xFFFF, which };
            assert_eq!(ImmediateData::decode(immediate.encode(9), 9), Some(immediate));
            assert_eq!(ImmediateData::decode(immediate.encode(0), 0), Some(immediate));
            for tag in [0, 8, u32::MAX] {
                assert_eq!(ImmediateData::decode(immediate.encode(9), tag), None);
            }
        }
    }
}
