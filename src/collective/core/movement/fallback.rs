//! Fallback reads: a rank reads all contributions and reduces them itself when the reducers take too long. The reducers
//! have arrived, and may be computing now.
//!
//! Where only the reducer knows which ranks have arrived, a rank that has waited for a while asks for every rank's tag,
//! in that rank's memory, until all are there. Where hosts share a round, every rank has the tags. Then the rank reads
//! the contributions, a part at a time, and reduces them in the same order, so the result has the same bits. The result
//! goes into the rank's own memory, because the reducers may write to the other memory at any time.

use super::super::context::Context;
use super::super::cut::Cut;
use super::super::entry::Entry;
use super::super::input::Time;
use super::super::op::{Counted, Token};
use super::super::plan::Plan;
use super::super::tag::Tag;
use super::combine;
use crate::fabric::Atomic;
use crate::fault::Fault;
use crate::reduce::Place;

/// The factor by which the wait for the reducers grows at most.
const MOST_PAUSE: Time = 64;

/// How far a rank has come with its fallback reads.
#[derive(Clone, Debug, Hash)]
pub(super) struct Fallback {
    stage: FallbackStage,
    /// The round whose reducers have until `next_at`.
    awaited: u64,
    /// When this rank asks next.
    next_at: Time,
    pause: Time,
    /// The cut of the round, as far as this rank knows it.
    cut: Cut,
    /// The rank that had not arrived when it was asked last, and that is asked first.
    lacking: Option<u32>,
    /// The newest round that this rank has read.
    read: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FallbackStage {
    Idle,
    /// The tag of this rank was asked for.
    Asking {
        round: u64,
        rank: u32,
    },
    /// Some contributions to this part of the data are not here yet.
    Reading {
        round: u64,
        part: usize,
    },
}

impl Fallback {
    pub(super) fn new(plan: &Plan) -> Self {
        let cut = Cut::with_room_for(plan.ranks);
        let stage = FallbackStage::Idle;
        Fallback { stage, awaited: 0, next_at: Time::MAX, pause: 0, cut, lacking: None, read: 0 }
    }

    /// Reserves the memory of the cut now.
    pub(super) fn reserve(&mut self) {
        self.cut.reserve();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.stage == FallbackStage::Idle
    }

    pub(super) fn has_read(&self, round: u64) -> bool {
        self.read == round
    }

    /// Returns when the time of the reducers of the round that this rank needs is over.
    pub(super) fn next_timer(&self, needed: Option<u64>) -> Option<Time> {
        let waits = self.is_idle() && needed == Some(self.awaited);
        waits.then_some(self.next_at)
    }

    /// Returns whether this rank waits for `rank`; `None` while it waits for the reducers.
    pub(super) fn waits_for(&self, rank: u32, cx: &Context) -> Option<bool> {
        match self.stage {
            FallbackStage::Asking { rank: asked, .. } => Some(rank == asked),
            FallbackStage::Reading { .. } => Some(cx.outbox.has_towards(Counted::Read, cx.plan.host_of(rank))),
            FallbackStage::Idle => self.lacking.map(|lacking| rank == lacking),
        }
    }

    /// Begins once the time of the reducers of the round that this rank needs is over. `own`: this rank's entry in the
    /// next round, if it has arrived for it.
    pub(super) fn step(&mut self, needed: Option<u64>, own: Option<Entry>, cx: &mut Context) {
        let Some(round) = needed.filter(|_| self.is_idle()) else { return };
        if self.awaited != round {
            let pause = cx.plan.pull_after;
            (self.awaited, self.lacking) = (round, None);
            (self.next_at, self.pause) = (cx.now + pause, pause);
        }
        if cx.now < self.next_at {
            return;
        }
        match self.lacking {
            // The round has fired: its cut is known.
            _ if round <= cx.ledger.fired() => {
                self.cut.entries.clone_from(&cx.ledger.cut(round).entries);
                self.read_parts(round, 0, cx);
            }
            Some(rank) => self.ask(rank, cx),
            None => self.ask_all(own, cx),
        }
    }

    fn ask_all(&mut self, own: Option<Entry>, cx: &mut Context) {
        self.cut.entries.clear();
        self.ask_from(0, own, cx);
    }

    fn ask(&mut self, rank: u32, cx: &mut Context) {
        let round = cx.ledger.open();
        self.stage = FallbackStage::Asking { round, rank };
        let cell = cx.plan.tag(rank, Plan::tag_of(round));
        cx.outbox.atomic(cx.plan.host_of(rank), cell, Atomic::FetchAdd(0), Token::Look);
    }

    /// Asks for the tag of the next rank; after the last one, reads all contributions.
    fn ask_from(&mut self, first: u32, own: Option<Entry>, cx: &mut Context) {
        let Some(own) = own else { return };
        let mut next = cx.ledger.active().next(first);
        if next == Some(own.rank) {
            self.cut.entries.push(own);
            next = cx.ledger.active().next(own.rank + 1);
        }
        match next {
            Some(rank) => self.ask(rank, cx),
            None => self.read_parts(cx.ledger.open(), 0, cx),
        }
    }

    /// Reads a part of all contributions; after the last one the round is complete.
    fn read_parts(&mut self, round: u64, first: usize, cx: &mut Context) {
        for part in first..cx.plan.parts() {
            if cx.outbox.read_from_elsewhere(&cx.plan, cx.plan.contributions(&self.cut), cx.plan.part_span(part)) {
                self.stage = FallbackStage::Reading { round, part };
                return;
            }
            self.combine(part, cx);
        }
        self.complete(round, cx);
    }

    /// Takes a tag that was asked for, or a contribution that was read.
    pub(super) fn answered(&mut self, value: u64, needed: Option<u64>, own: Option<Entry>, cx: &mut Context) {
        match self.stage {
            // The reducer has announced the round meanwhile.
            FallbackStage::Asking { round, .. } if round != cx.ledger.open() => self.stage = FallbackStage::Idle,
            FallbackStage::Asking { round, rank } => {
                let tag = Tag::from_cell(value);
                if tag.target != round && !cx.plan.fault(Fault::PullUnasked) {
                    self.stage = FallbackStage::Idle;
                    self.lacking = Some(rank);
                    self.next_at = cx.now + self.pause;
                    self.pause = (2 * self.pause).min(MOST_PAUSE * cx.plan.pull_after);
                } else if self.lacking.take().is_some() {
                    self.ask_all(own, cx);
                } else {
                    self.cut.entries.push(tag.entry(rank));
                    self.ask_from(rank + 1, own, cx);
                }
            }
            FallbackStage::Reading { .. } if cx.outbox.has(Counted::Read) => {}
            FallbackStage::Reading { round, part } => {
                self.stage = FallbackStage::Idle;
                // The reducers may have announced the round meanwhile.
                if needed == Some(round) {
                    self.combine(part, cx);
                    self.read_parts(round, part + 1, cx);
                }
            }
            FallbackStage::Idle => debug_assert!(false, "an answer to no question"),
        }
    }

    /// Reduces a part of the contributions that were read.
    fn combine(&self, part: usize, cx: &mut Context) {
        let (plan, outbox) = (&cx.plan, &mut cx.outbox);
        let read = |_, number| Place::Staged(number * plan.staging_row());
        combine(None, (&self.cut, plan.fallback_outcome()), plan.part_span(part), read, (plan, outbox));
    }

    fn complete(&mut self, round: u64, cx: &mut Context) {
        self.stage = FallbackStage::Idle;
        self.read = round;
        cx.stats.pulled += 1;
        cx.outbox.note();
        if round > cx.ledger.fired() {
            let cut = cx.ledger.cut_mut(round);
            cut.begin(round, None);
            cut.entries.clone_from(&self.cut.entries);
            cx.fire(round);
        }
    }
}
