//! What the machine lends a part for one step.

use super::cut::Cut;
use super::input::{Cells, Time};
use super::ledger::Ledger;
use super::outbox::Outbox;
use super::plan::Plan;
use super::stats::Stats;
use crate::fault::Fault;

/// What all parts share.
pub(super) struct Context<'a> {
    pub plan: &'a Plan,
    pub ledger: &'a mut Ledger,
    pub outbox: &'a mut Outbox,
    pub stats: &'a mut Stats,
    pub now: Time,
}

/// The same for those that only look.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub plan: &'a Plan,
    pub ledger: &'a Ledger,
    pub outbox: &'a Outbox,
}

impl Context<'_> {
    #[inline]
    pub(super) fn view(&self) -> View<'_> {
        View { plan: self.plan, ledger: self.ledger, outbox: self.outbox }
    }

    /// The next round has fired, with the cut that was filled in.
    #[inline]
    pub(super) fn fire(&mut self, round: u64) -> &Cut {
        self.ledger.fire(round, self.plan);
        self.outbox.note();
        self.ledger.cut(round)
    }

    /// The outcome of the next round is complete.
    #[inline]
    pub(super) fn land(&mut self, round: u64) {
        self.ledger.land(round);
        self.outbox.note();
        if self.plan.fault(Fault::ReleaseOnLanding) {
            self.release(round);
        }
    }

    pub(super) fn release(&mut self, round: u64) {
        self.ledger.release(round, self.plan, self.outbox);
    }

    pub(super) fn read_record(&mut self, round: u64, cells: &impl Cells) -> bool {
        self.ledger.read_record(round, self.plan, cells)
    }
}
