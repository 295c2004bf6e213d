//! The steps of a closer from closing its group until all members know it.

use super::super::claim;
use super::super::isolation::IsolationWindow;
use super::super::op::TicketOp;
use super::super::plan::TicketPlan;
use super::super::record::GroupCut;
use super::{TicketMachine, TicketStage};
use crate::collective::core::Cells;
use crate::fabric::Atomic;
use crate::fault::Fault;

impl TicketMachine {
    /// Publishes the cut once the entry of every seat is there. It adds a lender if the members are apart from other
    /// ranks.
    pub(super) fn gather(&mut self, seats: u32, cells: &impl Cells) {
        let group = self.ticket.seat.group;
        let record = self.plan.record(group);
        let is_there = |&index: &u32| record.rank_at(index, cells).is_some();
        self.seen += (self.seen..seats).take_while(is_there).count() as u32;
        if self.seen < seats {
            return;
        }
        record.read(seats, &mut self.cut, cells);
        let Some(member) = self.apart(cells) else { return self.publish() };
        match self.choose(member, cells) {
            None => {
                self.stats.no_lender += 1;
                self.publish();
            }
            Some((lender, _)) if self.plan.fault(Fault::UnclaimedBridge) => self.borrow(lender),
            Some((lender, claim)) => {
                let atomic = Atomic::CompareSwap { expect: claim, new: claim::of(group) };
                let op = TicketOp::Atomic { cell: self.plan.claim(lender), atomic };
                self.ask(op, TicketStage::Borrowing { seats, lender, claim });
            }
        }
    }

    /// Returns a member that stays, if the window that ends with the group leaves an active rank apart from it.
    fn apart(&mut self, cells: &impl Cells) -> Option<u32> {
        if !self.plan.lends() {
            return None;
        }
        look_back(&mut self.window, &self.cut, &self.plan, cells);
        let member = self.cut.members.iter().find(|member| !member.leaving)?.rank;
        self.window.is_apart(member).then_some(member)
    }

    /// Returns a rank whose register can take part, if there is one, with the claim on it, which has ended.
    fn choose(&mut self, member: u32, cells: &impl Cells) -> Option<(u32, u64)> {
        let TicketMachine { plan, refused, window, .. } = self;
        window.lender(member, |rank, newest| {
            // Reading the records costs less than a claim.
            let is_over = newest.is_none_or(|group| plan.record(group).is_over(cells)) && !refused.contains(&rank);
            let claim = if is_over { cells.load(plan.claim(rank)) } else { claim::INSIDE };
            claim::has_ended(claim, plan, cells).then_some(claim)
        })
    }

    /// Adds the lender to the cut and publishes it.
    pub(super) fn borrow(&mut self, lender: u32) {
        self.stats.bridges += 1;
        self.cut.lender = Some(lender);
        self.publish();
    }

    fn publish(&mut self) {
        self.stats.closed += 1;
        // Members do not release a group before they have seen its cut. A closer that is alone could end the group
        // while the write of its cut is in flight, so that it lands in the record's next turn.
        let alone = self.cut.members.len() == 1 && !self.plan.fault(Fault::OverlookCut);
        self.write(self.plan.record(self.cut.group).cut(&self.cut), alone, TicketStage::Publishing);
    }
}

/// Fills the window that ends with a group. It leaves out groups that records no longer hold, and groups that are not
/// published. With fewer edges, ranks may seem apart that are not, never the other way round.
fn look_back(window: &mut IsolationWindow, cut: &GroupCut, plan: &TicketPlan, cells: &impl Cells) {
    window.clear();
    for group in plan.window_before(cut.group)..cut.group {
        let record = plan.record(group);
        let Some(seats) = record.published(cells) else { continue };
        let members = (0..seats).filter_map(|index| record.rank_at(index, cells));
        window.add(group, members.chain(record.lender(cells)));
    }
    window.add(cut.group, cut.members.iter().map(|member| member.rank));
    for rank in 0..plan.ranks() {
        let (cell, bit) = plan.gone(rank);
        if cells.load(cell) & bit != 0 {
            window.leave(rank);
        }
    }
}
