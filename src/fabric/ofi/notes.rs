//! Notes: messages that a peer writes into memory of this rank, each into a slot of its own.
//!
//! Remote completion data says which slot, so a note needs no room at the receiver, and the layers that libfabric
//! puts between a message and its room are not passed. A write of data brings its note along.
#![forbid(unsafe_code)]

use earlybird_ffi::ofi::Remote;

use super::message::MOST_HEADER;
use super::peer::WINDOW;

/// Most bytes of a note.
pub(super) const NOTE: usize = MOST_HEADER;

/// What marks of notes have, and marks of other writes have not: behind it stands the message's number.
pub(super) const NOTED: u16 = 1 << 15;

/// Where a rank's peers write notes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notes {
    pub(crate) key: u64,
    /// Where the first lies, by the provider's count.
    pub(crate) base: u64,
}

impl Notes {
    /// Where a rank's message of this number goes to, at a peer of this address, and the mark that tells of it.
    pub(super) fn place(self, peer: u64, from: u32, number: u32) -> (u64, Remote) {
        let mark = u64::from(from) << 16 | u64::from(NOTED) | u64::from(number % WINDOW);
        (mark, Remote { peer, address: self.base.wrapping_add(offset(from, number) as u64), key: self.key })
    }
}

/// Bytes for the notes of so many ranks: as many as may be under way.
pub(super) fn size(ranks: u32) -> usize {
    offset(ranks, 0)
}

/// Where the note that a rank's message of this number is lies among all.
pub(super) fn offset(from: u32, number: u32) -> usize {
    (from as usize * WINDOW as usize + (number % WINDOW) as usize) * NOTE
}
