//! The control cells of the own host: with which ordering each operation works on them.

use std::ops::Range;

use crate::collective::core::Cells;
use crate::fabric::Window;
use crate::sync::{self, Ordering};

#[derive(Debug)]
pub(super) struct HostCells(Window);

impl Cells for HostCells {
    #[inline]
    fn load(&self, cell: usize) -> u64 {
        sync::look(self.0.cell(cell))
    }
}

impl HostCells {
    pub(super) fn new(window: Window) -> Self {
        HostCells(window)
    }

    /// Stores a cell, with release order.
    #[inline]
    pub(super) fn announce(&self, cell: usize, value: u64) {
        sync::announce(self.0.cell(cell), value);
    }

    /// Raises a cell to a value, if it is less.
    #[inline]
    pub(super) fn raise(&self, cell: usize, value: u64) {
        sync::raise(self.0.cell(cell), value);
    }

    /// Stores cells in a row, to be published by a later release.
    #[inline]
    pub(super) fn store_all(&self, first: usize, values: impl Iterator<Item = u64>) {
        for (value, cell) in values.zip(first..) {
            self.0.cell(cell).store(value, Ordering::Relaxed);
        }
    }

    /// Zeroes cells, to be published by a later release.
    #[inline]
    pub(super) fn clear(&self, cells: Range<usize>) {
        self.0.clear(cells);
    }
}
