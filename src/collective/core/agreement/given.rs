//! Agreement where cuts are given: they were decided before, in another run or by another collective.
//!
//! The owner of the machine gives the cuts, round by round. With each of its own arrivals it gives the last round to be
//! returned for that arrival. A round fires at a rank when its cut was given and the tag of each member is there. Every
//! rank checks this for itself, so there is no initiator and no word.
//!
//! An arrival publishes only its tag: the given cuts decide whether it enters its target, a later round or none. Its
//! tag may be there long before it is in a cut, so a tag alone means nothing.
//!
//! Tags do not stay: a rank that is ahead rewrites its buffers once the rounds that read them have landed. So each rank
//! that sees all tags of a round writes the same record of its cut before it moves any of the round's data. A rank of
//! that host that comes later reads the record. On another host the outcome itself shows that the round has fired.
//!
//! In that case a rank does not learn which buffers held the contributions. Nothing reads them again, except held
//! models ([`Absent::Hold`]), whose rounds can be given on one host only.

use std::collections::VecDeque;

use super::super::context::Context;
use super::super::cut::Cut;
use super::super::durations::Particulars;
use super::super::entry::{Entry, Part};
use super::super::input::{Cells, Effort};
use super::super::movement::Movement;
use super::super::op::{Awaited, Counted, Op};
use super::super::plan::{BUFFERS, Plan};
use super::super::tag::Tag;
use super::Form;
use super::arrival::Arrival;
use crate::fault::Fault;
use crate::rank_set::RankSet;
use crate::rule::Absent;

/// The cuts and ends that were given to this rank and that it has not used up.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Given {
    /// The cuts of the rounds that have not fired here, starting with the next one.
    cuts: VecDeque<Cut>,
    /// The last round to be returned for each of this rank's arrivals, starting with the arrival that is not over.
    ends: VecDeque<u64>,
    /// The index of the next cut's first entry whose tag was not seen.
    unseen: usize,
    /// All tags of the next cut are here, but a rank still reads what its slot held before.
    lacks_room: bool,
}

impl Given {
    pub(crate) fn give(&mut self, cut: Cut) {
        debug_assert!(self.cuts.back().is_none_or(|last| last.round + 1 == cut.round), "cuts are given in order");
        self.cuts.push_back(cut);
    }

    pub(crate) fn give_end(&mut self, round: u64) {
        self.ends.push_back(round);
    }

    /// Returns the last round to be returned for the arrival; the maximum if it was not given yet.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.ends.front().copied().unwrap_or(u64::MAX)
    }

    /// Removes and returns that round when the caller takes rounds.
    pub(crate) fn pass_end(&mut self, plan: &Plan) -> Option<u64> {
        self.ends.pop_front().filter(|_| !plan.fault(Fault::TakeMoreThanGiven))
    }

    /// Returns the cut of a round that was given and not taken.
    fn cut<'a>(&'a self, round: u64, cx: &'a Context) -> Option<&'a Cut> {
        match round.checked_sub(cx.ledger.open()) {
            None => Some(cx.ledger.cut(round)),
            Some(ahead) => self.cuts.get(usize::try_from(ahead).ok()?),
        }
    }

    /// Returns whether the outcome of the next round is already here: ranks on other hosts have moved it, and their
    /// tags may have been overwritten. Then no rank will read a contribution to it any more, and the location of each
    /// does not matter.
    fn has_come(&mut self, round: u64, movement: &mut Movement, cx: &mut Context, cells: &impl Cells) -> bool {
        let Some(given) = self.cuts.front() else { return false };
        let moves = given.contributions().next().is_some();
        let elsewhere = cx.plan.topology.has_elsewhere() && !cx.plan.fault(Fault::WaitForGoneTags);
        if !elsewhere || !moves || cx.ledger.landed() < cx.ledger.fired() {
            return false;
        }
        // The cut determines which groups move.
        self.unseen = 0;
        let cut = cx.ledger.cut_mut(round);
        cut.begin(round, given.initiator);
        given.entries.iter().for_each(|entry| cut.entries.push(entry));
        movement.has_landed(round, cx, cells)
    }

    /// Returns whether all ranks have released what the slot of the next round held. The fresh ranks of that round
    /// checked this before they published their tags; a full round may hold only carried contributions.
    fn has_room(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        let has_room = cx.ledger.is_released(round.saturating_sub(cx.plan.depth), &cx.plan, cells);
        if self.lacks_room == has_room {
            self.lacks_room = !has_room;
            // Otherwise this rank may be about to sleep until something else happens.
            cx.outbox.note();
        }
        has_room
    }

    /// Continues the next cut from the first entry whose tag was not seen; returns whether it is complete. What a tag
    /// said stays true after the tag was overwritten, because a contribution is made in one buffer.
    fn gather(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        let Some(given) = self.cuts.front() else { return false };
        let (plan, cut) = (&cx.plan, cx.ledger.cut_mut(round));
        if self.unseen == 0 {
            cut.begin(round, given.initiator);
        }
        for entry in given.entries.from(self.unseen) {
            let Some(tag) = tag_of(entry, round, plan, cells) else {
                if plan.fault(Fault::BucketWithoutMember) && self.unseen > 0 {
                    break;
                }
                return false;
            };
            cut.entries.push(Entry::new(
                entry.rank,
                entry.part,
                (entry.age, given_particulars(entry, tag)),
                tag.buffer,
            ));
            self.unseen += 1;
        }
        if plan.fault(Fault::TakeEarlyTag) {
            let behind = given.entries.iter().last().map_or(0, |entry| entry.rank + 1);
            let early = |rank| Entry::new(rank, Part::Fresh, (0, Particulars::PLAIN), 0);
            let here = |rank: u32| Some((rank, tag_of(early(rank), round, plan, cells)?));
            (behind..plan.ranks).filter_map(here).for_each(|(rank, tag)| cut.entries.push(tag.entry(rank)));
        }
        true
    }

    /// Ends the arrival, whose target has fired with it or without it.
    fn fired(&self, arrival: &mut Arrival<GivenStage>, cx: &mut Context) {
        let (target, me) = (arrival.target, cx.plan.me);
        if cx.ledger.cut(target).holds(me, arrival.part) {
            return arrival.entered(cx);
        }
        arrival.missed(cx);
        let fate = if arrival.is_carried(&cx.plan) { self.fate(target, cx) } else { Fate::Dropped };
        match fate {
            Fate::Carried { by } => cx.stats.jumps += u64::from(by >= 2),
            Fate::Unknown => {}
            Fate::Dropped => {
                cx.stats.dropped += 1;
                if cx.plan.absent == Absent::Hold {
                    // The contribution that stands for this rank stays the same.
                    arrival.superseded();
                }
            }
        }
        arrival.over(target, cx);
    }

    /// Returns the fate of this rank's contribution for a round that fired without it. The contribution enters at the
    /// latest in the round for which the next one is made.
    fn fate(&self, target: u64, cx: &Context) -> Fate {
        let Some(&end) = self.ends.front() else { return Fate::Unknown };
        for round in target + 1..=end.saturating_add(1) {
            let Some(cut) = self.cut(round, cx) else { return Fate::Unknown };
            let by = round - target;
            if cut.of(cx.plan.me).any(|entry| entry.part == Part::Carried && entry.age == by) {
                return Fate::Carried { by };
            }
        }
        Fate::Dropped
    }
}

/// How far an arrival has come.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum GivenStage {
    /// Its tag was published to all ranks.
    Shown,
    /// The last arrival, which the cut of its target does not contain.
    NotGiven,
}

impl Form for Given {
    type Stage = GivenStage;

    /// Publishes the arrival's tag. The last arrival publishes it only for the round in which it leaves.
    fn enter(&mut self, arrival: &mut Arrival<GivenStage>, movement: &mut Movement, cx: &mut Context, _: &impl Cells) {
        if arrival.part == Part::Leaving {
            let Some(cut) = self.cut(arrival.target, cx) else { return };
            if !cut.holds(cx.plan.me, Part::Leaving) {
                return arrival.enter(GivenStage::NotGiven, &mut cx.outbox);
            }
        }
        arrival.show(movement, cx);
        // Any sleeping rank may be waiting only for this tag.
        cx.outbox.push(Op::Fence);
        cx.outbox.wake(u32::MAX, Awaited::Outcome);
        arrival.enter(GivenStage::Shown, &mut cx.outbox);
    }

    /// Fires the next round if its cut was given and all its tags, its record or its outcome are here.
    fn learn(
        &mut self,
        _: &mut Arrival<GivenStage>,
        movement: &mut Movement,
        cx: &mut Context,
        cells: &impl Cells,
    ) -> bool {
        let round = cx.ledger.open();
        if self.cuts.is_empty() && cx.plan.fault(Fault::SecondCutInAStep) {
            self.cuts.extend(cut_of_tags(round, cx, cells));
        }
        if self.cuts.is_empty() || !cx.ledger.wants_next(&cx.plan) {
            return false;
        }
        if !cx.read_record(round, cells) && !self.has_come(round, movement, cx, cells) {
            if !self.gather(round, cx, cells) || !self.has_room(round, cx, cells) {
                return false;
            }
            if !cx.plan.fault(Fault::ForgetGivenRecord) {
                cx.outbox.record(cx.ledger.cut(round), &cx.plan);
            }
        }
        self.cuts.pop_front();
        (self.unseen, self.lacks_room) = (0, false);
        cx.fire(round);
        true
    }

    fn step(
        &mut self,
        stage: GivenStage,
        arrival: &mut Arrival<GivenStage>,
        _: Effort,
        _: &mut Movement,
        cx: &mut Context,
        _: &impl Cells,
    ) {
        match stage {
            _ if cx.ledger.fired() < arrival.target => {}
            GivenStage::Shown => self.fired(arrival, cx),
            GivenStage::NotGiven => arrival.leave_again(cx),
        }
    }

    /// Adds the members of the next cut whose tags are not here, and the ranks that still read what its slot held
    /// before.
    fn missing(
        &self,
        arrival: &Arrival<GivenStage>,
        _: &Movement,
        cx: &Context,
        cells: &impl Cells,
        missing: &mut RankSet,
    ) {
        let (plan, round) = (&cx.plan, cx.ledger.open());
        if arrival.target < round {
            return;
        }
        let entries = self.cuts.front().into_iter().flat_map(Cut::entries);
        let untagged = entries.filter(|&entry| tag_of(entry, round, plan, cells).is_none());
        untagged.for_each(|entry| missing.insert(entry.rank));
        if self.lacks_room {
            self.without_room(round, cx, cells, missing);
        }
    }

    fn awaits(&self, what: Counted, stage: GivenStage, _: &Arrival<GivenStage>, _: &Context) -> bool {
        matches!((what, stage), (Counted::Outcome, GivenStage::Shown))
    }

    fn lacks_room(&self) -> bool {
        self.lacks_room
    }
}

/// Returns a cut of the ranks that have arrived for a round, if this rank has.
fn cut_of_tags(round: u64, cx: &Context, cells: &impl Cells) -> Option<Cut> {
    let fresh = |rank| {
        tag_of(Entry::new(rank, Part::Fresh, (0, Particulars::PLAIN), 0), round, &cx.plan, cells)
            .map(|tag| tag.entry(rank))
    };
    fresh(cx.plan.me)?;
    Some(Cut::of_entries(round, None, cx.ledger.active().iter().filter_map(fresh).collect()))
}

/// The fate of a late contribution.
enum Fate {
    /// The contribution enters `by` rounds later.
    Carried {
        by: u64,
    },
    Dropped,
    /// Not all cuts that may contain it were given.
    Unknown,
}

/// Returns what an entry says: the durations that were given, and the weight of the contribution.
fn given_particulars(given: Entry, tag: Tag) -> Particulars {
    match given.particulars() {
        measured if measured.is_measured() => measured,
        _ => Particulars::weighing(tag.particulars.weight()),
    }
}

/// Returns the tag of an entry of a round, if it is here.
fn tag_of(entry: Entry, round: u64, plan: &Plan, cells: &impl Cells) -> Option<Tag> {
    let target = round.checked_sub(entry.age)?;
    let tags = (0..BUFFERS).map(|buffer| Tag { buffer, ..Tag::from_cell(cells.load(plan.tag(entry.rank, buffer))) });
    let leaves = entry.part == Part::Leaving;
    tags.into_iter().find(|tag| tag.target == target && tag.leaving == leaves)
}
