//! Tags: what ranks show of their contributions, outside of any round's slot.

/// What a rank shows of the contribution in one of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// The round it was made for; 0 for none yet.
    pub(super) target: u64,
    pub(super) weight: u16,
    pub(super) leaving: bool,
}

const WEIGHT_SHIFT: u32 = 1;
const TARGET_SHIFT: u32 = WEIGHT_SHIFT + u16::BITS;

impl Tag {
    pub(super) fn from_cell(cell: u64) -> Self {
        Tag { target: cell >> TARGET_SHIFT, weight: (cell >> WEIGHT_SHIFT) as u16, leaving: cell & 1 == 1 }
    }

    pub(super) fn cell(self) -> u64 {
        self.target << TARGET_SHIFT | u64::from(self.weight) << WEIGHT_SHIFT | u64::from(self.leaving)
    }
}
