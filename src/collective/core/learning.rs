//! How a machine learns of cuts and outcomes, from the cells of its host.

use super::entry::Part;
use super::machine::{Cells, Machine};
use super::op::{Interest, Op};
use super::plan::{Path, Plan};
use super::tag::Tag;
use crate::fault::Fault;
use crate::rule::When;

impl Machine {
    /// Learns cuts and landings from the cells of this host.
    pub(super) fn learn(&mut self, cells: &impl Cells) {
        if self.plan.path == Path::Gathered {
            self.learn_gathered(cells);
        } else if self.plan.by_tags() {
            self.learn_tags(cells);
        } else if self.plan.path == Path::Program {
            while self.learn_outcome(cells) {}
        } else if self.plan.path == Path::Offloaded {
            while self.learn_offloaded(cells) {}
        } else {
            while self.learn_record(cells) {}
        }
        while self.landed < self.fired {
            let round = self.landed + 1;
            let landed = match self.plan.path {
                // What this rank reduces for itself was done by the operation before this poll.
                Path::Replicated | Path::Gathered => self.ops.is_empty(),
                Path::Scattered => self.ops.is_empty() && (self.is_pulled(round) || self.has_every_share(round, cells)),
                Path::Eager | Path::Segmented => {
                    cells.load(self.plan.done(round)) >= self.plan.uses(round) * self.plan.segments()
                }
                Path::Program | Path::Offloaded => true,
            };
            if !landed {
                break;
            }
            self.land(round);
        }
    }

    fn land(&mut self, round: u64) {
        debug_assert_eq!(round, self.landed + 1);
        self.landed = round;
        self.transitions += 1;
        if self.plan.fault(Fault::ReleaseOnLanding) {
            self.release(round);
        }
    }

    fn learn_record(&mut self, cells: &impl Cells) -> bool {
        let round = self.fired + 1;
        if self.left || round - self.taken > self.plan.depth {
            return false;
        }
        let known = self.read_record(round, cells);
        if known {
            self.fire(round);
        }
        known
    }

    /// The cut of a round as its record has it, if there is one.
    pub(super) fn read_record(&mut self, round: u64, cells: &impl Cells) -> bool {
        let record = self.plan.record(round);
        let known = cells.load(record) == round;
        if known {
            let slot = self.plan.slot(round);
            self.cuts[slot].decode(round, |index| cells.load(record + 1 + index));
        }
        known
    }

    /// By tags: the round has fired when every active rank has shown its tag.
    fn learn_tags(&mut self, cells: &impl Cells) {
        let round = self.fired + 1;
        // A round beyond the own arrival cannot fire, and its tags would mean nothing yet.
        if self.left || !self.arrival.as_ref().is_some_and(|arrival| arrival.is_tagged(round)) {
            return;
        }
        if !self.cut_by_tags(round, cells) {
            return;
        }
        self.fire(round);
        if self.plan.path == Path::Replicated {
            self.push(Op::Combine { round, segment: 0 });
        }
        let most = if self.plan.path == Path::Segmented { self.plan.helpers } else { u32::MAX };
        self.wake_after_firing(most);
    }

    /// The cut of a round that fires when every active rank has shown its tag; whether all have.
    pub(super) fn cut_by_tags(&mut self, round: u64, cells: &impl Cells) -> bool {
        let number = Plan::tag_of(round);
        while let Some(rank) = self.active.next(self.missing) {
            if Tag::from_cell(cells.load(self.plan.tag(rank, number))).target != round {
                return false;
            }
            self.missing = rank + 1;
        }
        let slot = self.plan.slot(round);
        let cut = &mut self.cuts[slot];
        (cut.round, cut.initiator) = (round, None);
        cut.entries.clear();
        for rank in self.active.iter() {
            let tag = Tag::from_cell(cells.load(self.plan.tag(rank, number)));
            let part = if tag.leaving { Part::Leaving } else { Part::Fresh };
            cut.entries.push(super::Entry::new(rank, part, (0, tag.weight), tag.buffer));
        }
        self.missing = 0;
        true
    }

    /// Only the last arrivals wake: whoever parked earlier was seen by one of them.
    fn wake_after_firing(&mut self, most: u32) {
        if self.arriving {
            self.wake(most, Interest::Outcome);
        }
    }

    pub(super) fn fire(&mut self, round: u64) {
        debug_assert_eq!(round, self.fired + 1);
        if matches!(self.plan.fire.when(), When::Majority(_)) && !self.plan.fire.is_full(round) {
            let arrived = self.cut(round).entries.iter().filter(|entry| entry.part != Part::Carried).count();
            self.pace.saw(arrived as u32 >= self.active.len());
        }
        self.fired = round;
        let cut = &self.cuts[self.plan.slot(round)];
        self.leavers.clear();
        for rank in cut.leaving() {
            if !self.plan.fault(Fault::ForgetLeavers) {
                self.active.remove(rank);
            }
            self.leavers.insert(rank);
        }
        self.transitions += 1;
    }
}
