//! The state that the parts of a machine share.

use std::sync::Arc;

use super::input::{Cells, Time};
use super::ledger::Ledger;
use super::outbox::Outbox;
use super::plan::Plan;
use super::stats::Stats;
use crate::fault::Fault;

/// The state that each part of a machine reads and changes besides its own.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub plan: Arc<Plan>,
    pub ledger: Ledger,
    pub outbox: Outbox,
    pub stats: Stats,
    /// The time that the caller gave with its last call.
    pub now: Time,
    /// What the endpoint reports as [`waits_fence_peer`](crate::fabric::Endpoint::waits_fence_peer).
    pub waits_fence_peer: bool,
    /// An impossible state: a rank has written where it must not.
    pub problem: Option<&'static str>,
}

impl Context {
    /// Notes that the next round has fired with the cut that was filled in.
    #[inline]
    pub(super) fn fire(&mut self, round: u64) {
        if self.ledger.cut(round).is_damaged() {
            self.problem = Some("the record of a round's cut is damaged");
        }
        self.ledger.fire(round, &self.plan, self.now);
        self.outbox.note();
    }

    /// Notes that the outcome of the next round is complete.
    #[inline]
    pub(super) fn land(&mut self, round: u64) {
        self.ledger.land(round);
        self.outbox.note();
        if self.plan.fault(Fault::ReleaseOnLanding) {
            self.release(round);
        }
    }

    pub(super) fn release(&mut self, round: u64) {
        self.ledger.release(round, &self.plan, &mut self.outbox);
    }

    pub(super) fn read_record(&mut self, round: u64, cells: &impl Cells) -> bool {
        self.ledger.read_record(round, &self.plan, cells)
    }
}
