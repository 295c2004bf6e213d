//! What the machine asks its driver to do.

use crate::fabric::Atomic;

/// One operation. A machine has one in flight at most, and goes on when it is told that it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TicketOp {
    /// An atomic on a cell; completes with the value before.
    Atomic { cell: usize, atomic: Atomic },
    /// Stores two neighbouring cells. A rank that sees the second one also sees the first one. It completes when all ranks
    /// see both if it is to be `seen`, and otherwise at once.
    StorePair { cell: usize, values: [u64; 2], seen: bool },
    /// Moves a segment of a group's data: what its members and its lender have becomes the group's mean, in all their
    /// registers and outcomes. `TicketMachine::cut` says which. It completes when all of that is there, and no source is read
    /// any more.
    Combine { group: u64, segment: u64 },
}
