//! What becomes of an arrival whose round fired without it.

use super::super::context::Context;
use super::super::entry::Part;
use super::super::op::Token;
use super::super::plan::Plan;
use super::words::place_of;
use super::{Arrival, ArrivalStage, Deferred, bits};
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rule::Absent;

impl Arrival {
    /// The target fired without it.
    pub(super) fn is_late(&mut self, cx: &mut Context) {
        cx.stats.late += u64::from(self.part != Part::Leaving);
        self.enter(ArrivalStage::Late { tried: self.target }, &mut cx.outbox);
    }

    /// Whether a late contribution goes into the gate of `round` without waiting for anything.
    pub(super) fn fits_gate(&self, round: u64, plan: &Plan) -> bool {
        self.is_carried(plan) && !plan.is_full(round)
    }

    /// Whether it is a contribution that enters a later round if it is late.
    pub(super) fn is_carried(&self, plan: &Plan) -> bool {
        self.part == Part::Fresh && plan.absent != Absent::Drop
    }

    /// Late, and every round up to the last attempt has fired: tries the one that is open now.
    pub(super) fn find_a_place(&mut self, cx: &mut Context) {
        let (plan, buffer) = (&cx.plan, self.buffer);
        let (open, passed) = (cx.ledger.open(), ArrivalStage::Over { needs: cx.ledger.fired() });
        if self.part == Part::Leaving {
            // The caller takes what it missed, and leaves again.
            cx.stats.finish_retries += 1;
            self.enter(passed, &mut cx.outbox);
        } else if plan.absent == Absent::Drop {
            cx.stats.dropped += u64::from(!plan.fault(Fault::DropUncounted));
            self.enter(passed, &mut cx.outbox);
        } else if plan.fault(Fault::ForgetCarriedBit) {
            self.enter(passed, &mut cx.outbox);
        } else if cx.outbox.has_tag(buffer) && !plan.fault(Fault::PlaceBeforeTag) {
            // Once the bit is in, the initiator must find the tag; so that has to land first.
        } else if !plan.is_full(open) {
            let (index, bit) = place_of(plan.me);
            let question = (plan.word(open, index), Atomic::FetchAdd(bits::carried_bit(bit)));
            self.ask_home(question, Token::Place, ArrivalStage::Placing { round: open }, cx);
        } else if cx.ledger.is_within_depth(open, plan) {
            (self.target, self.part) = (open, Part::Carried);
            self.enter(ArrivalStage::Blocked, &mut cx.outbox);
        } else {
            // It cannot be waited for before the caller has released what it missed; and it
            // does not fire without this rank's next arrival.
            if plan.absent == Absent::Hold {
                // The next one is newer, and no two of a rank stand for it in one round.
                cx.stats.dropped += 1;
                self.superseded = Some(buffer);
                return self.enter(passed, &mut cx.outbox);
            }
            cx.stats.deferred += 1;
            let forgotten = plan.fault(Fault::ForgetDeferred);
            self.deferred = Some(Deferred { made_for: self.made_for, buffer }).filter(|_| !forgotten);
            self.enter(passed, &mut cx.outbox);
        }
    }
}
