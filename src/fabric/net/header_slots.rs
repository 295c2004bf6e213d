//! Header slots: memory of this rank into which a peer's write of data also deposits its header. Each message in flight
//! has a slot.
//!
//! Immediate data names the slot. A slot is written again once its message is acknowledged, so a write must not be
//! repeated after its data was seen to complete; a reliable endpoint does not repeat it. Messages without data are
//! sent, because as writes they would take as long.
#![forbid(unsafe_code)]

use super::message::MOST_HEADER;
use super::sequence::WINDOW;
use super::wire::Remote;

/// The bytes of a slot.
pub(super) const SLOT_BYTES: usize = MOST_HEADER;

/// Set in the immediate data of a write that carries a header; the lower bits are the slot's
/// number. Other writes leave it clear.
pub(in crate::internals::fabric) const IN_SLOT: u16 = 1 << 15;

/// Immediate data: what a write brings to the completion queue of its target. It holds the sender, the write's id, and
/// the job's tag where there are bytes for it. Without the tag any process could claim that a write has landed: over
/// `tcp` and `shm` (1.17) a write of no bytes needs no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::internals::fabric) struct ImmediateData {
    pub(in crate::internals::fabric) from: u32,
    /// The id of the write, or [`IN_SLOT`] with the number of the slot.
    pub(in crate::internals::fabric) which: u16,
}

impl ImmediateData {
    /// Its bytes without a tag, and with one.
    pub(in crate::internals::fabric) const BYTES: usize = 4;
    pub(super) const TAGGED_BYTES: usize = 8;

    pub(in crate::internals::fabric) fn encode(self, tag: u32) -> u64 {
        u64::from(tag) << 32 | u64::from(self.from) << 16 | u64::from(self.which)
    }

    /// Decodes it and its tag.
    pub(super) fn decode(data: u64) -> (Self, u32) {
        (ImmediateData { from: (data >> 16) as u32 & 0xFFFF, which: data as u16 }, (data >> 32) as u32)
    }
}

/// The memory into which a rank's peers write headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderSlots {
    pub(crate) key: u64,
    /// The remote address of the first slot.
    pub(crate) base: u64,
}

impl HeaderSlots {
    /// Returns the slot of the message `number` from rank `from`, and the immediate data that names it.
    pub(super) fn target(self, from: u32, number: u32) -> (ImmediateData, Remote) {
        let immediate = ImmediateData { from, which: IN_SLOT | (number % WINDOW) as u16 };
        (immediate, Remote { address: self.base.wrapping_add(offset(from, number) as u64), key: self.key })
    }
}

/// Returns the bytes of the slots for `ranks` ranks: one slot for each message in flight.
pub(super) fn size(ranks: u32) -> usize {
    offset(ranks, 0)
}

/// Returns the offset of the slot of a rank's message.
pub(super) fn offset(from: u32, number: u32) -> usize {
    (from as usize * WINDOW as usize + (number % WINDOW) as usize) * SLOT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_survives_encoding() {
        for which in [0, 7, IN_SLOT, IN_SLOT | 63] {
            let immediate = ImmediateData { from: 0xFFFF, which };
            for tag in [0, 9, u32::MAX] {
                assert_eq!(ImmediateData::decode(immediate.encode(tag)), (immediate, tag));
            }
        }
    }
}
