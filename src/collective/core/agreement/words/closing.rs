//! Closing the words of a round.

use super::super::super::context::Context;
use super::super::super::op::Token;
use super::super::{Arrival, ArrivalStage, bits};
use super::{Words, home_host, is_one_word};
use crate::fabric::Atomic;
use crate::fault::Fault;

impl Words {
    /// Closes the words of the target, the first of which decides which rank is the initiator.
    pub(in super::super) fn close(&mut self, arrival: &mut Arrival, cx: &mut Context<'_>) {
        let unclosed = if is_one_word(cx.plan) { Fault::CloseWithoutWord } else { Fault::TrustTicket };
        if cx.plan.fault(unclosed) {
            return self.closed(arrival, cx);
        }
        self.close_word(0, arrival, cx);
    }

    fn close_word(&mut self, index: u32, arrival: &mut Arrival, cx: &mut Context<'_>) {
        let expect = self.words[index as usize];
        let atomic = Atomic::CompareSwap { expect, new: expect | bits::CLOSED };
        let (home, cell) = (home_host(cx.view()), cx.plan.word(arrival.target, index));
        arrival.ask_atomic(home, cell, atomic, Token::Close, cx.outbox);
        arrival.enter(ArrivalStage::Closing { index }, cx.outbox);
    }

    pub(super) fn close_answered(&mut self, index: u32, found: u64, arrival: &mut Arrival, cx: &mut Context<'_>) {
        if cx.ledger.fired() >= arrival.target {
            return arrival.enter(ArrivalStage::Published, cx.outbox);
        }
        if found == self.words[index as usize] {
            if index + 1 < cx.plan.words() {
                self.close_word(index + 1, arrival, cx);
            } else {
                self.closed(arrival, cx);
            }
            return;
        }
        let one_word = is_one_word(cx.plan);
        let closed = || Self::closing(arrival, cx.view()).closed(found);
        if if one_word { closed() } else { found & bits::CLOSED != 0 } {
            debug_assert_eq!(index, 0, "only the rank that closed the first word closes the others");
            return arrival.enter(ArrivalStage::Published, cx.outbox);
        }
        self.words[index as usize] = found;
        self.close_word(index, arrival, cx);
    }

    /// This rank is the initiator, and `words` is the cut.
    pub(super) fn closed(&mut self, arrival: &mut Arrival, cx: &mut Context<'_>) {
        cx.stats.initiated += 1;
        arrival.unmeasured = Some(arrival.target);
        arrival.enter(ArrivalStage::Gathering, cx.outbox);
    }
}
