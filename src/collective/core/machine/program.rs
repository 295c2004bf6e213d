//! What only a program needs of its driver, or a provider.

use super::Machine;
use crate::collective::core::input::Cells;
use crate::trigger::Task;

impl Machine {
    /// Whether an operation of a program's next round is under way, or an own one of any round.
    pub(crate) fn is_pending(&self, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_pending(&self.cx, cells))
    }

    /// Whether the next round of a program has fired: any rank that is alive can complete it.
    pub(crate) fn has_fired(&self, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.has_fired(&self.cx, cells))
    }

    /// Whether a task has given any of its signals.
    pub(crate) fn is_announced(&self, task: Task, cells: &impl Cells) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_announced(task, &self.cx, cells))
    }

    /// Whether a cell says which rank claimed an operation.
    pub(crate) fn is_claim(&self, cell: usize) -> bool {
        self.agreement.gates().is_some_and(|gates| gates.is_claim(cell, &self.cx.plan))
    }

    /// Cells that say which ranks claimed operations, all of whose effects have happened.
    pub(crate) fn spent_claims(&self, cells: &impl Cells) -> Vec<usize> {
        self.agreement.gates().map_or_else(Vec::new, |gates| gates.spent_claims(&self.cx.plan, cells))
    }

    /// The next round whose outcome a provider may have, and whether its data is wanted.
    pub(crate) fn expected(&self) -> Option<(u64, bool)> {
        self.agreement.cards()?.expected(&self.cx)
    }

    /// The next round of which a provider may have run everything.
    pub(crate) fn nearly_over(&self) -> Option<u64> {
        self.agreement.cards()?.nearly_over(&self.cx)
    }
}
