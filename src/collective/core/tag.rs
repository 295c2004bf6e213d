//! Tags: what ranks publish about their contributions, outside of any round's slot.

use super::durations::Particulars;
use super::entry::{Entry, Part};

/// What a rank publishes about a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The round that it was made for; 0 if there is none yet.
    pub(crate) target: u64,
    /// The index of the rank's buffer that holds it.
    pub(crate) buffer: u32,
    pub(crate) particulars: Particulars,
    pub(crate) leaving: bool,
}

const PARTICULARS_SHIFT: u32 = 1;
const BUFFER_SHIFT: u32 = PARTICULARS_SHIFT + Particulars::BITS;
const BUFFER_BITS: u32 = 2;
const TARGET_SHIFT: u32 = BUFFER_SHIFT + BUFFER_BITS;

impl Tag {
    pub(crate) fn from_cell(cell: u64) -> Self {
        Tag {
            target: cell >> TARGET_SHIFT,
            buffer: (cell >> BUFFER_SHIFT) as u32 & ((1 << BUFFER_BITS) - 1),
            particulars: Particulars::decode(cell >> PARTICULARS_SHIFT & ((1 << Particulars::BITS) - 1)),
            leaving: cell & 1 == 1,
        }
    }

    pub(crate) fn cell(self) -> u64 {
        self.target << TARGET_SHIFT
            | u64::from(self.buffer) << BUFFER_SHIFT
            | self.particulars.encode() << PARTICULARS_SHIFT
            | u64::from(self.leaving)
    }

    /// Returns the rank's entry in the round that this tag targets.
    pub(crate) fn entry(self, rank: u32) -> Entry {
        let part = if self.leaving { Part::Leaving } else { Part::Fresh };
        Entry::new(rank, part, (0, self.particulars), self.buffer)
    }
}
