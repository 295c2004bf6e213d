//! Tags: what ranks show of their contributions, outside of any round's slot.

/// What a rank shows of a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// The round it was made for; 0 for none yet.
    pub(super) target: u64,
    /// Where it lies among the rank's buffers.
    pub(super) buffer: u32,
    pub(super) weight: u16,
    pub(super) leaving: bool,
}

const WEIGHT_SHIFT: u32 = 1;
const BUFFER_SHIFT: u32 = WEIGHT_SHIFT + u16::BITS;
const BUFFER_BITS: u32 = 2;
const TARGET_SHIFT: u32 = BUFFER_SHIFT + BUFFER_BITS;

impl Tag {
    pub(super) fn from_cell(cell: u64) -> Self {
        Tag {
            target: cell >> TARGET_SHIFT,
            buffer: (cell >> BUFFER_SHIFT) as u32 & ((1 << BUFFER_BITS) - 1),
            weight: (cell >> WEIGHT_SHIFT) as u16,
            leaving: cell & 1 == 1,
        }
    }

    pub(super) fn cell(self) -> u64 {
        self.target << TARGET_SHIFT
            | u64::from(self.buffer) << BUFFER_SHIFT
            | u64::from(self.weight) << WEIGHT_SHIFT
            | u64::from(self.leaving)
    }
}
