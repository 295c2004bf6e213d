//! Tags: what ranks show of their contributions, outside of any round's slot.

/// What a rank shows of the contribution in one of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// The round it was made for; 0 for none yet.
    pub(super) target: u64,
    pub(super) leaving: bool,
}

impl Tag {
    pub(super) fn from_cell(cell: u64) -> Self {
        Tag { target: cell >> 1, leaving: cell & 1 == 1 }
    }

    pub(super) fn cell(self) -> u64 {
        self.target << 1 | u64::from(self.leaving)
    }
}
