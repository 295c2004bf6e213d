//! What the machine asks its driver to do.

use crate::fabric::Atomic;

/// One operation. A machine has one in flight at most, and goes on when it is told that it is complete.
///
/// Each names the rank whose memory it changes. Where all cells lie in one memory, a driver need not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// An atomic on a cell; completes with the value before.
    Atomic { rank: u32, cell: usize, atomic: Atomic },
    /// Stores a cell, with release order.
    Store { rank: u32, cell: usize, value: u64 },
    /// Stores two neighbouring cells. A rank that sees the second one also sees the first one.
    StorePair { rank: u32, cell: usize, values: [u64; 2] },
    /// Does this rank's part of moving a group's data. `Machine::cut` says which. It completes when this rank reads no
    /// buffer and no register of the others any more, and what it writes for them is there.
    Combine { group: u64 },
}
