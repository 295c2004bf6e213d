//! How contributions become an outcome on every host that needs it: reducers, segments that waiting ranks claim, or the
//! program that also decides the cut.

mod fallback;
mod reducers;
mod registers;
mod segments;

use super::context::Context;
use super::cut::Cut;
use super::entry::Entry;
use super::input::{Cells, Effort};
use super::op::{Addend, Counted, Token};
use super::outbox::Outbox;
use super::plan::Plan;
use crate::fabric::Change;
use crate::reduce::Place;
use crate::rule::MovementBy;
pub(super) use reducers::Reducers;
pub(super) use segments::{Segments, fill, lack};

/// This rank's part in the movement of data.
#[derive(Clone, Debug, Hash)]
pub(super) enum Movement {
    /// Every rank reduces for itself.
    Everyone,
    /// The rank that closed the round reduces it before it publishes the record.
    Initiator,
    Reducers(Reducers),
    Segments(Segments),
    Program,
}

/// Reduces `len` bytes of the contributions of a cut, from byte `from` on, into an outcome that begins at `outcome`.
/// `elsewhere` returns the local copy, from that byte on, of a contribution of another host, given its entry and its
/// number in the cut.
#[inline]
pub(super) fn combine(
    round: Option<u64>,
    (cut, outcome): (&Cut, usize),
    (from, len): (usize, usize),
    elsewhere: impl Fn(Entry, usize) -> Place,
    (plan, outbox): (&Plan, &mut Outbox),
) {
    let inputs = cut.contributions().enumerate().map(|(number, entry)| Addend {
        at: match plan.host_of(entry.rank) == plan.host() {
            true => Place::Here(plan.contribution(entry.rank, entry.buffer) + from),
            false => elsewhere(entry, number),
        },
        entry: Some(entry),
    });
    outbox.combine(round, inputs, (outcome + from, len));
}

/// Reduces all contributions to a round whose cut is known, where each host has all of them.
pub(super) fn combine_what_was_pushed(round: u64, cx: &mut Context) {
    let Context { plan, ledger, outbox, .. } = cx;
    let pushed = |entry: Entry, _| Place::Here(plan.pushed(entry.rank, entry.buffer, round));
    combine(Some(round), (ledger.cut(round), plan.outcome(round)), (0, plan.bytes), pushed, (plan, outbox));
}

impl Movement {
    pub(super) fn new(plan: &Plan) -> Self {
        match plan.movement {
            MovementBy::Everyone => Movement::Everyone,
            MovementBy::Initiator => Movement::Initiator,
            MovementBy::Reducer | MovementBy::Reducers => Movement::Reducers(Reducers::new(plan)),
            MovementBy::Segments => Movement::Segments(Segments::new(plan)),
            MovementBy::Program => Movement::Program,
        }
    }

    /// Reserves now the memory that rounds need.
    pub(super) fn reserve(&mut self) {
        if let Movement::Reducers(reducers) = self {
            reducers.reserve();
        }
    }

    #[inline]
    pub(super) fn reducers(&self) -> Option<&Reducers> {
        if let Movement::Reducers(reducers) = self { Some(reducers) } else { None }
    }

    #[inline]
    pub(super) fn segments(&self) -> Option<&Segments> {
        if let Movement::Segments(segments) = self { Some(segments) } else { None }
    }

    /// Returns the offset of the newest round's outcome in the data region of this rank's host.
    #[inline]
    pub(super) fn outcome_at(&self, round: u64, plan: &Plan) -> usize {
        match self {
            Movement::Reducers(reducers) if reducers.has_read(round) => plan.fallback_outcome(),
            Movement::Segments(segments) => {
                segments.registers().map_or_else(|| plan.outcome(round), |registers| registers.offset(round, plan))
            }
            _ => plan.outcome(round),
        }
    }

    /// Returns whether this rank may arrive for `round`, as far as the data that it moved itself is concerned: the
    /// writes have completed, or went where no other rank writes. Only synchronous rounds ask this.
    pub(super) fn has_settled(&self, round: u64, cx: &Context) -> bool {
        let landed = !cx.outbox.has(Counted::Push) || cx.plan.topology.is_one_host();
        landed && if let Movement::Reducers(reducers) = self { reducers.has_settled(round, cx) } else { true }
    }

    /// Synchronous: prepares for a round, before this rank shows that it has arrived for it.
    pub(super) fn enter(&mut self, round: u64, cx: &mut Context) {
        match self {
            Movement::Reducers(reducers) => reducers.enter(round, cx),
            Movement::Segments(_) => segments::clear_claims(round, cx),
            Movement::Everyone | Movement::Initiator | Movement::Program => {}
        }
    }

    /// Publishes what a buffer holds to every rank on another host that has to see it. Pushed data lands before its
    /// tag, which is a cell and its value.
    pub(super) fn show_elsewhere(
        &mut self,
        round: u64,
        tag: (usize, u64),
        (buffer, has_data): (u32, bool),
        cx: &mut Context,
    ) {
        let (cell, value) = tag;
        if let Movement::Reducers(reducers) = self {
            return reducers.show(round, tag, (buffer, has_data), cx);
        }
        let (plan, me) = (&cx.plan, cx.plan.me);
        if plan.topology.is_one_host() {
            return;
        }
        let data = (plan.pushes() && has_data)
            .then(|| (plan.contribution(me, buffer), plan.pushed(me, buffer, round), plan.bytes));
        for host in plan.hosts_elsewhere(cx.ledger.active()) {
            cx.outbox.signal(Counted::Tag { buffer }, host, data, (cell, Change::Set(value)));
        }
    }

    /// Notes that a synchronous round has fired. Returns whether this rank is the one reducer, and so wakes the ranks
    /// that wait for it.
    pub(super) fn fired(&mut self, round: u64, cx: &mut Context) -> bool {
        match self {
            Movement::Everyone => combine_what_was_pushed(round, cx),
            Movement::Reducers(reducers) if reducers.tells_cuts() => {
                reducers.hand_out(round, cx);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Returns whether the outcome of the oldest round that fired and has not landed is complete on this host.
    #[inline(never)]
    pub(super) fn has_landed(&mut self, round: u64, cx: &mut Context, cells: &impl Cells) -> bool {
        match self {
            // The operation before this poll has reduced what this rank reduces for itself.
            Movement::Everyone => cx.outbox.is_empty(),
            Movement::Reducers(reducers) => cx.outbox.is_empty() && reducers.has_landed(round, &cx.plan, cells),
            Movement::Segments(segments) => segments.has_landed(round, cx, cells),
            // The record shows it.
            Movement::Initiator | Movement::Program => true,
        }
    }

    /// Notes that this round has landed.
    #[inline]
    pub(super) fn land(&mut self, cx: &mut Context) {
        if let Movement::Segments(segments) = self {
            segments.land(cx);
        }
    }

    /// Does everything that can be done now.
    #[inline]
    pub(super) fn step(&mut self, effort: Effort, cx: &mut Context, cells: &impl Cells) {
        match self {
            Movement::Reducers(reducers) => reducers.step(effort, cx),
            Movement::Segments(segments) if effort > Effort::Nothing && cx.outbox.is_empty() => {
                segments.step(cx, cells);
            }
            _ => {}
        }
    }

    /// Takes the result of an operation.
    pub(super) fn complete(&mut self, token: Token, value: u64, cx: &mut Context) {
        match self {
            Movement::Reducers(reducers) => reducers.answered(value, cx),
            Movement::Segments(segments) => segments.complete(token, value, cx),
            _ => debug_assert!(false, "{token:?} completed without a mover"),
        }
    }

    /// Returns whether no rank waits for something that this rank has claimed.
    #[inline]
    pub(super) fn has_nothing_pending(&self) -> bool {
        if let Movement::Segments(segments) = self { segments.has_nothing_pending() } else { true }
    }
}
