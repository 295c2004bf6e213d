//! The operations that the machine asks its driver to carry out.

use crate::fabric::Atomic;

/// One operation. A machine has at most one in flight, and continues when the driver reports its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TicketOp {
    /// Runs an atomic on a cell; completes with the value before.
    Atomic { cell: usize, atomic: Atomic },
    /// Stores two neighbouring cells. A rank that sees the second one also sees the first one. It completes when all
    /// ranks see both if they must be `seen`, and otherwise at once.
    StorePair { cell: usize, values: [u64; 2], seen: bool },
    /// Moves a segment of a group's data: the models of its members and its lender become the group's mean, in all
    /// their registers and outcomes. `TicketMachine::cut` names them. It completes when all of that is written and no
    /// source is read any more.
    Combine { group: u64, segment: u64 },
}
