//! What a machine is given: the time, a cx of its host's cells, and how much it may do.

use serde::{Deserialize, Serialize};

pub(crate) use crate::time::Time;

/// Released by a rank that left: nothing will ever wait for it.
pub(crate) const FOREVER: u64 = u64::MAX;

/// The control cells of the own host, as they are now. Loads have acquire order.
pub(crate) trait Cells {
    fn load(&self, cell: usize) -> u64;
}

impl<F: Fn(usize) -> u64> Cells for F {
    fn load(&self, cell: usize) -> u64 {
        self(cell)
    }
}

/// How much a call does for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effort {
    /// Nothing: it returns at once.
    Nothing,
    /// What its own changes set off, and shares of large data.
    Work,
    /// Also looks for what others left undone.
    Search,
}
