//! Rows: items of one size, one after the other, of which each round uses one in turn.

use crate::fabric::CACHE_LINE;

const CELL: usize = size_of::<u64>();

/// Cells in two cache lines: adjacent-line prefetch fetches pairs of lines together.
pub(super) const LINE: usize = 16;

const _: () = assert!(LINE * CELL == 2 * CACHE_LINE);

/// Returns which of `slots` slots a round uses. Rounds count from 1.
#[inline]
pub(crate) fn slot_of(round: u64, slots: u64) -> usize {
    let before = round - 1;
    // Synchronous rounds have two slots, and a division takes longer than the rest of a poll of one.
    (if slots.is_power_of_two() { before & (slots - 1) } else { before % slots }) as usize
}

/// Rounds bytes up to whole lines, at least one; returns `None` if they cannot be addressed.
pub(super) fn lines(bytes: usize) -> Option<usize> {
    let line = LINE * CELL;
    Some(bytes.checked_next_multiple_of(line)?.max(line))
}

/// Items of one size, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rows {
    at: usize,
    stride: usize,
    count: u64,
}

impl Rows {
    /// Returns rows that can be addressed.
    pub(super) fn new(at: usize, stride: usize, count: u64) -> Self {
        Rows { at, stride, count }
    }

    #[inline]
    pub(super) fn row(&self, index: usize) -> usize {
        self.at + index * self.stride
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn end(&self) -> usize {
        self.row(self.count as usize)
    }
}

/// Lays out rows one after the other. It holds where the next rows begin, or `None` once that cannot be addressed.
pub(super) struct Cursor(pub(super) Option<usize>);

impl Cursor {
    /// Lays out `count` rows of a size; `None` stands for a size that cannot be addressed.
    pub(super) fn rows(&mut self, stride: Option<usize>, count: u64) -> Rows {
        let at = self.0.unwrap_or(0);
        let bytes = usize::try_from(count).ok().and_then(|count| stride?.checked_mul(count));
        self.0 = self.0.zip(bytes).and_then(|(at, bytes)| at.checked_add(bytes));
        Rows { at, stride: stride.unwrap_or(0), count }
    }
}
