//! Questions that only a program or a provider asks.

use super::Machine;
use crate::collective::core::input::Cells;
use crate::trigger::Task;

impl Machine {
    /// Returns whether an operation of a program's next round is in progress, or one of this rank's own of any round.
    pub(crate) fn is_pending(&self, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_pending(&self.cx, cells))
    }

    /// Returns whether the next round of a program has fired; any living rank can complete it.
    pub(crate) fn has_fired(&self, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.has_fired(&self.cx, cells))
    }

    /// Returns whether a task has given any of its signals.
    pub(crate) fn is_announced(&self, task: Task, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_announced(task, &self.cx, cells))
    }

    /// Returns whether a cell names the rank that claimed an operation.
    pub(crate) fn is_claim(&self, cell: usize) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_claim(cell, &self.cx.plan))
    }

    /// Returns the cells that name the claiming ranks of operations whose effects have all happened.
    pub(crate) fn spent_claims(&self, cells: &impl Cells) -> Vec<usize> {
        self.agreement.gates().map_or_else(Vec::new, |gates| gates.spent_claims(&self.cx.plan, cells))
    }

    /// Returns the next round whose outcome a provider may have, and whether the caller wants its data.
    pub(crate) fn expected(&self) -> Option<(u64, bool)> {
        self.agreement.runner()?.expected(&self.cx)
    }

    /// Returns the next round of which a provider may have run every operation.
    pub(crate) fn nearly_over(&self) -> Option<u64> {
        self.agreement.runner()?.nearly_over(&self.cx)
    }
}
