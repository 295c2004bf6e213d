//! How contributions become an outcome where it is wanted: reducers, segments that waiting ranks claim, or the program
//! that also agrees.

mod fallback;
mod reducers;
mod segments;

use super::context::{Context, View};
use super::cut::Cut;
use super::entry::Entry;
use super::input::{Cells, Effort};
use super::op::{Counted, Op, Token};
use super::plan::{MovementBy, Plan};
use crate::fabric::Change;
pub(super) use reducers::Reducers;
pub(super) use segments::{Segments, fill, lack};

/// This rank's part in moving.
#[derive(Clone, Debug, Hash)]
pub(super) struct Movement {
    form: Form,
}

#[derive(Clone, Debug, Hash)]
enum Form {
    Reducers(Reducers),
    Segments(Segments),
    Program,
}

/// What a reduction reads, and where it writes.
pub(crate) struct Inputs<'a> {
    plan: &'a Plan,
    movement: &'a Movement,
    /// Nothing for what a fallback read has brought.
    round: Option<u64>,
    pub(crate) cut: &'a Cut,
    /// Where the outcome lies in the data region of this rank's host.
    pub(crate) outcome: usize,
}

impl Inputs<'_> {
    /// Where on this rank's host a contribution lies from byte `from` on; nothing if it was read into staging memory. Of
    /// a round that hosts share, that is the part that was sent here.
    pub(crate) fn at_hand(&self, entry: Entry, from: usize) -> Option<usize> {
        let (plan, host) = (self.plan, self.plan.host_of(entry.rank));
        if host == plan.host() {
            return Some(plan.contribution(entry.rank, entry.buffer) + from);
        }
        match (&self.movement.form, self.round) {
            (Form::Reducers(reducers), Some(round)) => Some(reducers.pushed(plan, entry, round, from)),
            _ => None,
        }
    }
}

impl Movement {
    pub(super) fn new(plan: &Plan) -> Self {
        let form = match plan.movement() {
            MovementBy::Reducers(reducing) => Form::Reducers(Reducers::new(plan, reducing)),
            MovementBy::Segments => Form::Segments(Segments::default()),
            MovementBy::Program => Form::Program,
        };
        Movement { form }
    }

    #[inline]
    pub(super) fn reducers(&self) -> Option<&Reducers> {
        if let Form::Reducers(reducers) = &self.form { Some(reducers) } else { None }
    }

    #[inline]
    pub(super) fn reducers_mut(&mut self) -> Option<&mut Reducers> {
        if let Form::Reducers(reducers) = &mut self.form { Some(reducers) } else { None }
    }

    #[inline]
    pub(super) fn segments(&self) -> Option<&Segments> {
        if let Form::Segments(segments) = &self.form { Some(segments) } else { None }
    }

    pub(super) fn segments_mut(&mut self) -> Option<&mut Segments> {
        if let Form::Segments(segments) = &mut self.form { Some(segments) } else { None }
    }

    /// Where the contributions to a round lie, or without a round those that a fallback read has brought.
    #[inline]
    pub(super) fn inputs<'a>(&'a self, view: View<'a>, round: Option<u64>) -> Inputs<'a> {
        let (plan, movement) = (view.plan, self);
        let (cut, outcome) = match (&self.form, round) {
            (Form::Reducers(reducers), None) => (reducers.read_cut(), plan.fallback_outcome()),
            (_, round) => {
                let round = round.unwrap_or(view.ledger.open());
                (view.ledger.cut(round), plan.outcome(round))
            }
        };
        Inputs { plan, movement, round, cut, outcome }
    }

    /// Where the outcome of the newest round lies in the data region of this rank's host.
    #[inline]
    pub(super) fn outcome_at(&self, round: u64, plan: &Plan) -> usize {
        match &self.form {
            Form::Reducers(reducers) if reducers.has_read(round) => plan.fallback_outcome(),
            _ => plan.outcome(round),
        }
    }

    /// Whether this rank may arrive for `round`, as far as what it has moved itself goes: that has landed for the last
    /// time, or is where no other rank writes. Only of synchronous rounds.
    pub(super) fn has_settled(&self, round: u64, view: View<'_>) -> bool {
        let landed = !view.outbox.has(Counted::Push) || view.plan.topology.hosts() == 1;
        landed && if let Form::Reducers(reducers) = &self.form { reducers.has_settled(round, view) } else { true }
    }

    /// Synchronous: makes ready for a round, before this rank shows that it has arrived for it.
    pub(super) fn enter(&mut self, round: u64, cx: &mut Context<'_>) {
        match &mut self.form {
            Form::Reducers(reducers) => reducers.enter(round, cx),
            Form::Segments(_) => segments::clear_claims(round, cx),
            Form::Program => {}
        }
    }

    /// Shows what a buffer holds to every rank that has to see it: the data, if it is pushed, lands before its tag, a cell
    /// and its value.
    pub(super) fn show(&self, round: u64, tag: (usize, u64), (buffer, has_data): (u32, bool), cx: &mut Context<'_>) {
        let (cell, value) = tag;
        cx.outbox.push(Op::Store { cell, value });
        if let Form::Reducers(reducers) = &self.form
            && cx.plan.elects_reducers()
        {
            return reducers.show(round, tag, (buffer, has_data), cx);
        }
        let (plan, me) = (cx.plan, cx.plan.me);
        let data = (plan.pushes() && has_data)
            .then(|| (plan.contribution(me, buffer), plan.pushed(me, buffer, round), plan.bytes));
        for host in plan.hosts_elsewhere(cx.ledger.active()) {
            cx.outbox.signal(Counted::Tag { buffer }, host, data, (cell, Change::Set(value)));
        }
    }

    /// Whether the outcome of the oldest round that fired and has not landed is complete on this host.
    #[inline]
    pub(super) fn has_landed(&self, round: u64, view: View<'_>, cells: &impl Cells) -> bool {
        match &self.form {
            Form::Reducers(reducers) => reducers.has_landed(round, view, cells),
            Form::Segments(_) => view.plan.is_done(round, cells),
            Form::Program => true,
        }
    }

    /// Does what can be done now. `own`: this rank's entry in the next round, if it has arrived for it.
    #[inline]
    pub(super) fn step(&mut self, effort: Effort, own: Option<Entry>, cx: &mut Context<'_>, cells: &impl Cells) {
        match &mut self.form {
            Form::Reducers(reducers) => reducers.step(effort, own, cx),
            Form::Segments(segments) if effort > Effort::Nothing && cx.outbox.is_empty() => {
                segments.step(cx, cells);
            }
            Form::Segments(_) | Form::Program => {}
        }
    }

    /// Takes the result of an operation.
    pub(super) fn complete(&mut self, token: Token, value: u64, own: Option<Entry>, cx: &mut Context<'_>) {
        match &mut self.form {
            Form::Reducers(reducers) => reducers.answered(value, own, cx),
            Form::Segments(segments) => segments.complete(token, value, cx),
            Form::Program => debug_assert!(false, "{token:?} completed without a mover"),
        }
    }

    /// Whether no rank waits for something that this rank has claimed.
    #[inline]
    pub(super) fn owes_nothing(&self) -> bool {
        if let Form::Segments(segments) = &self.form { segments.owes_nothing() } else { true }
    }
}
