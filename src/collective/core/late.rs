//! What becomes of an arrival whose round fired without it.

use super::arrival::Stage;
use super::entry::Part;
use super::machine::Machine;
use super::op::Token;
use super::plan::Path;
use super::word;
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::rule::Absent;

/// A late contribution that enters together with the rank's next arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) made_for: u64,
    pub(super) buffer: u32,
}

impl Machine {
    pub(super) fn is_late(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let (target, part) = (arrival.target, arrival.part);
        if part != Part::Leaving {
            self.stats.late += 1;
        }
        self.enter(Stage::Late { tried: target });
    }

    /// Late, and every round up to the last attempt has fired: try the one that is open now.
    pub(super) fn find_a_place(&mut self) {
        let Some(arrival) = &self.arrival else { return };
        let (made_for, buffer) = (arrival.made_for, arrival.buffer);
        let open = self.fired + 1;
        if arrival.part == Part::Leaving {
            // What was missed is not wanted any more, but must be complete before this rank goes;
            // and the tag it shows next must not be overtaken by the one before.
            let complete = self.landed == self.fired && self.owes_nothing();
            if complete && !self.has_tags_under_way(buffer) {
                self.stats.finish_retries += 1;
                self.taken = self.fired;
                self.release(self.fired);
                if let Some(arrival) = &mut self.arrival {
                    arrival.target = open;
                }
                self.enter(Stage::Blocked);
            }
        } else if self.plan.absent == Absent::Drop {
            self.stats.dropped += u64::from(!self.plan.fault(Fault::DropUncounted));
            self.enter(Stage::Over { needs: self.fired });
        } else if self.plan.fault(Fault::ForgetCarriedBit) {
            self.enter(Stage::Over { needs: self.fired });
        } else if self.has_tags_under_way(buffer) && !self.plan.fault(Fault::PlaceBeforeTag) {
            // Once the bit is in, the initiator must find the tag; so that has to land first.
        } else if self.plan.fire.is_full(open) {
            if open - self.taken > self.plan.depth {
                // It cannot be waited for before the caller has released what it missed; and it
                // does not fire without this rank's next arrival.
                self.stats.deferred += 1;
                let forgotten = self.plan.fault(Fault::ForgetDeferred);
                self.pending = Some(Pending { made_for, buffer }).filter(|_| !forgotten);
                self.enter(Stage::Over { needs: self.fired });
            } else {
                if let Some(arrival) = &mut self.arrival {
                    (arrival.target, arrival.part) = (open, Part::Carried);
                }
                self.enter(Stage::Blocked);
            }
        } else {
            let bit = word::carried_bit(self.plan.me % word::RANKS_PER_WORD);
            let cell = self.plan.word(open, self.plan.me / word::RANKS_PER_WORD);
            self.ask_atomic(self.home_host(open), cell, Atomic::FetchAdd(bit), Token::Place);
            self.enter(Stage::Placing { round: open });
        }
    }

    /// Whether a late contribution goes into the gate of `round` without waiting for anything.
    pub(super) fn by_deposit(&self, round: u64) -> bool {
        let fresh = self.arrival.as_ref().is_some_and(|arrival| arrival.part == Part::Fresh);
        let carried = self.plan.absent != Absent::Drop && !self.plan.fire.is_full(round);
        matches!(self.plan.path, Path::Program | Path::Offloaded) && fresh && carried
    }
}
