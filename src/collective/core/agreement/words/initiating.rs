//! What the initiator does from closing a cut until all ranks know it.

use super::super::super::context::Context;
use super::super::super::entry::{Entry, Part};
use super::super::super::input::Cells;
use super::super::super::movement::combine_what_was_pushed;
use super::super::super::op::{Awaited, Counted, Token};
use super::super::super::plan::{BUFFERS, Plan};
use super::super::super::tag::Tag;
use super::super::arrival::Arrival;
use super::super::bits;
use super::{WordStage, Words, place_of};
use crate::fault::Fault;
use crate::rule::MovementBy;

impl Words {
    /// Writes the cut once the tag of every member is here. Tags travel separately from bits, so some may still be
    /// missing.
    pub(super) fn gather(&mut self, arrival: &mut Arrival<WordStage>, cx: &mut Context, cells: &impl Cells) {
        let round = cx.ledger.open();
        let unseen = self.fill(round, cx, cells);
        self.unseen = unseen.unwrap_or(0);
        if unseen.is_some() {
            return;
        }
        // The next round's words must be zero before any rank can learn that this round is over. All ranks have
        // released the round that used them last: this rank checked that when it arrived.
        let (next, host) = (round + 1, cx.ledger.home_host_after(round, &cx.plan));
        arrival.enter(WordStage::Clearing, &mut cx.outbox);
        if cx.plan.fault(Fault::SkipRearm) || cx.plan.fault(Fault::LateRearm) {
            self.cleared(arrival, cx);
        } else {
            self.asked = Some(host);
            cx.outbox.clear(host, next, Token::Clear, &cx.plan);
        }
        if cx.plan.fault(Fault::LateRearm) {
            let token = cx.outbox.count(Counted::Push, host);
            cx.outbox.clear(host, next, token, &cx.plan);
        }
    }

    /// Returns whether a rank has a carried and a fresh part in the words that this rank knows.
    fn parts_of(&self, rank: u32) -> (bool, bool) {
        let (index, bit) = place_of(rank);
        let known = self.words[index as usize];
        let has = |bits: u64| bits >> bit & 1 == 1;
        (has(bits::carried(known)), has(bits::arrived(known)))
    }

    /// Returns the members of the cut that this rank has closed whose tags are not here.
    pub(super) fn untagged(&self, cx: &Context, cells: &impl Cells) -> impl Iterator<Item = u32> {
        let Context { plan, ledger, .. } = cx;
        let round = ledger.open();
        (0..plan.ranks).filter(move |&rank| {
            let (carried, fresh) = self.parts_of(rank);
            (carried && carried_tag(plan, rank, round, cells).is_none())
                || (fresh && fresh_tag(plan, rank, round, cells).is_none())
        })
    }

    /// Continues the cut from the first member whose tag was not seen, and returns the rank that is first now, if there
    /// is one. A seen tag stays unchanged until the round has fired.
    fn fill(&self, round: u64, cx: &mut Context, cells: &impl Cells) -> Option<u32> {
        let plan = &cx.plan;
        let cut = cx.ledger.cut_mut(round);
        if self.unseen == 0 {
            cut.begin(round, Some(plan.me));
        }
        (self.unseen..plan.ranks).find(|&rank| {
            let complete = cut.entries.len();
            let (carried, fresh) = self.parts_of(rank);
            if carried {
                let Some(tag) = carried_tag(plan, rank, round, cells) else { return true };
                let part = if plan.fault(Fault::CarriedAsFresh) { Part::Fresh } else { Part::Carried };
                let age = round - tag.target + u64::from(plan.fault(Fault::WrongAge));
                cut.entries.push(Entry::new(rank, part, (age, tag.particulars), tag.buffer));
            }
            if fresh {
                let Some(tag) = fresh_tag(plan, rank, round, cells) else {
                    cut.entries.truncate(complete);
                    return true;
                };
                cut.entries.push(tag.entry(rank));
            }
            false
        })
    }

    /// Hands out the record after the next round was made ready. The data that the initiator reduces itself is in place
    /// before.
    pub(super) fn cleared(&self, arrival: &mut Arrival<WordStage>, cx: &mut Context) {
        let round = cx.ledger.open();
        let reduces = cx.plan.movement == MovementBy::Initiator;
        let early = cx.plan.fault(Fault::LandBeforeData);
        if reduces && !early {
            combine_what_was_pushed(round, cx);
        }
        let Context { plan, ledger, outbox, stats, .. } = &mut *cx;
        outbox.record(ledger.cut(round), plan);
        for host in plan.hosts_elsewhere(ledger.active()) {
            stats.activations += 1;
            outbox.publish(Counted::Push, host, ledger.cut(round), plan);
        }
        if reduces && early {
            combine_what_was_pushed(round, cx);
        }
        if !cx.plan.fault(Fault::ForgetWake) {
            cx.outbox.wake(cx.plan.callees(), Awaited::Outcome);
        }
        arrival.enter(WordStage::Published, &mut cx.outbox);
    }
}

/// Returns the tags of a rank's buffers, each with its buffer.
fn tags(plan: &Plan, rank: u32, cells: &impl Cells) -> impl Iterator<Item = Tag> {
    (0..BUFFERS).map(move |buffer| Tag { buffer, ..Tag::from_cell(cells.load(plan.tag(rank, buffer))) })
}

fn fresh_tag(plan: &Plan, rank: u32, round: u64, cells: &impl Cells) -> Option<Tag> {
    tags(plan, rank, cells).find(|tag| tag.target == round)
}

/// Returns the tag of the carried contribution: a rank's contributions enter in order, so the carried one is the newest
/// of those made for earlier rounds.
fn carried_tag(plan: &Plan, rank: u32, round: u64, cells: &impl Cells) -> Option<Tag> {
    let earlier = |tag: &Tag| tag.target > 0 && tag.target < round && !tag.leaving;
    tags(plan, rank, cells).filter(earlier).max_by_key(|tag| tag.target)
}
