//! The control cells of this host, with the memory ordering of each operation on them.

use std::ops::Range;

use crate::collective::core::Cells;
use crate::fabric::Window;
use crate::sync::{self, AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct HostCells {
    control: Window,
    /// Its cells follow those of the control region.
    data: Window,
}

impl Cells for HostCells {
    #[inline]
    fn load(&self, cell: usize) -> u64 {
        sync::look(self.cell(cell))
    }
}

impl HostCells {
    /// Returns the first `len` cells of a control region, and those of a data region after them.
    pub(super) fn new(control: Window, len: usize, data: Window) -> Self {
        HostCells { control: control.truncated(len * size_of::<u64>()), data }
    }

    #[inline]
    fn cell(&self, index: usize) -> &AtomicU64 {
        match self.control.get_cell(index) {
            Some(cell) => cell,
            None => self.cell_of_data(index),
        }
    }

    /// Returns a cell of the data region. Few cells lie there, and none where all ranks share memory.
    #[cold]
    fn cell_of_data(&self, index: usize) -> &AtomicU64 {
        self.data.cell(index - self.control.len() / size_of::<u64>())
    }

    /// Stores a cell, with release order.
    #[inline]
    pub(super) fn announce(&self, cell: usize, value: u64) {
        sync::announce(self.cell(cell), value);
    }

    /// Raises a cell to a value, if the cell holds less.
    #[inline]
    pub(super) fn raise(&self, cell: usize, value: u64) {
        sync::raise(self.cell(cell), value);
    }

    /// Stores consecutive cells, to be published by a later release.
    #[inline]
    pub(super) fn store_all(&self, first: usize, values: impl Iterator<Item = u64>) {
        for (value, cell) in values.zip(first..) {
            self.cell(cell).store(value, Ordering::Relaxed);
        }
    }

    /// Stores cells, each below the one before, for a later put.
    pub(super) fn store_down(&self, last: usize, values: impl Iterator<Item = u64>) {
        for (value, cell) in values.zip((0..=last).rev()) {
            self.cell(cell).store(value, Ordering::Relaxed);
        }
    }

    /// Zeroes cells, to be published by a later release.
    #[inline]
    pub(super) fn clear(&self, cells: Range<usize>) {
        self.control.clear(cells);
    }
}
