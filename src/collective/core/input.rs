//! What a machine receives: the time, a view of its host's cells, and how much work it may do.

use serde::{Deserialize, Serialize};

pub(crate) use crate::time::Time;

/// The release of a rank that has left: no rank ever waits for it.
pub(crate) const FOREVER: u64 = u64::MAX;

/// The current control cells of this host. Loads have acquire order.
pub(crate) trait Cells {
    fn load(&self, cell: usize) -> u64;
}

impl<F: Fn(usize) -> u64> Cells for F {
    fn load(&self, cell: usize) -> u64 {
        self(cell)
    }
}

/// How much work a call does for other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    /// The call does no work and returns at once.
    Nothing,
    /// The call does the work that its own changes trigger, and shares of large data.
    Work,
    /// The call also searches for work that other ranks left undone.
    Search,
}
