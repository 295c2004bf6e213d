//! Claims on registers: one cell for each rank.
//!
//! A *register* holds a rank's model between its groups. It takes part in the rank's own group, or as a lender's in
//! another one, never in two at once. The cell holds one more than the group that uses the register. A claim ends with
//! its group, so no rank returns it: no rank writes to the cells of others when a group is over.
//!
//! - A rank claims its own register before it draws a ticket. It waits while the group that used it last is not over.
//!   At that time it holds nothing, so waiting ranks cannot form a cycle. When it has its ticket, it names the group.
//! - A closer takes another rank's register by one compare-swap that expects a claim that has ended. It takes it last,
//!   when its own group has formed, and if that fails it tries another rank. So the group does not wait.
//! - The compare-swap also fails if the rank has arrived meanwhile. So a lender has no ticket in any group that is not
//!   over.
//! - A rank that leaves keeps its own claim for ever.
//! - If another group borrows a register before its rank can claim it, the rank waits for that group, too. A rank that
//!   has just lent its register is the last one to be chosen again.
//!
//! A rank and a group meet once, so a cell never returns to an earlier value, and a compare-swap that succeeds has seen
//! the latest one.

use super::plan::TicketPlan;
use crate::collective::core::Cells;

/// The rank has arrived, and has no ticket yet or is leaving.
pub(super) const INSIDE: u64 = u64::MAX;

/// Returns the claim of a group.
pub(super) fn of(group: u64) -> u64 {
    group + 1
}

/// Returns the group that a claim names.
pub(super) fn group(claim: u64) -> Option<u64> {
    if claim == INSIDE { None } else { claim.checked_sub(1) }
}

/// Returns whether a claim has ended, or there was none yet.
pub(super) fn has_ended(claim: u64, plan: &TicketPlan, cells: &impl Cells) -> bool {
    claim != INSIDE && group(claim).is_none_or(|group| plan.record(group).is_over(cells))
}
