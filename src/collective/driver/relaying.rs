//! What a rank relays: contributions as they were sealed, and sums of them, each behind its label.

use super::Driver;
use crate::collective::core::{Cells, Cut, Entry, Form, Label, Part, Plan, label, rows};
use crate::fault::Fault;
use crate::reduce::{Goal, Place, Source};
use crate::trigger::{Buffer, Deposit};

/// A cut that is being assembled, and the ranks that said that they have no room.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) cut: Cut,
    crowded: Vec<u32>,
}

impl Parts {
    pub(super) fn with_room_for(ranks: u32) -> Self {
        Parts { cut: Cut::with_room_for(ranks), crowded: Vec::with_capacity(ranks as usize) }
    }

    fn begin(&mut self, round: u64, initiator: Option<u32>) {
        self.cut.begin(round, initiator);
        self.crowded.clear();
    }
}

fn has_data(entry: &Entry) -> bool {
    entry.part != Part::Leaving
}

impl Driver {
    /// Copies what a gate let in to where it is relayed from: the buffers are free then.
    #[inline(never)]
    pub(super) fn seal(&mut self, round: u64, (deposit, initiator): (Deposit, Option<u32>), crowded: bool) {
        let Driver { machine, control, arena, reduction, parts, .. } = self;
        let plan = machine.plan();
        let to = plan.area(Buffer::Contribution, round);
        parts.begin(round, initiator);
        parts.cut.add_gate(plan.me, deposit, |buffer| plan.weight(plan.me, buffer, &*control));
        parts.crowded.extend(crowded.then_some(plan.me));
        let elements = plan.bytes / reduction.dtype.size();
        for (row, entry) in parts.cut.contributions().enumerate() {
            let at = Place::Here(plan.contribution(plan.me, entry.buffer));
            let goal = Goal { at: to + row * plan.row(), wide: false };
            arena.combine(
                reduction.kind(),
                [Source { at, wide: false, factor: 1.0 }].into_iter(),
                goal,
                elements,
                None,
            );
        }
        let form = rows(parts.cut.entries());
        control.store_down(last_cell(plan, to), label(parts.cut.encode(), form, &parts.crowded));
    }

    /// Sums what lies in one or two buffers, and joins what is in them.
    #[inline(never)]
    pub(super) fn sum(&mut self, round: u64, from: (Buffer, Option<Buffer>), to: Buffer) {
        let Driver { machine, control, arena, reduction, parts, sources, .. } = self;
        let plan = machine.plan();
        let is_outcome = to == Buffer::Outcome;
        let to = plan.area(to, round);
        parts.begin(round, None);
        sources.clear();
        let mut only = None;
        for from in [Some(from.0), from.1].into_iter().flatten() {
            let at = plan.area(from, round);
            let last = last_cell(plan, at);
            let label = Label::new(|index| control.load(last - index));
            let first = parts.cut.entries.len();
            parts.cut.add(|index| label.record(index));
            parts.crowded.extend(label.crowded());
            let added = parts.cut.entries.from(first).filter(has_data);
            match label.form() {
                Form::Sum => sources.push(Source { at: Place::Here(at), wide: true, factor: 1.0 }),
                Form::Rows(_) => {
                    for (row, entry) in added.enumerate() {
                        let at = Place::Here(at + row * plan.row());
                        only = Some(at);
                        sources.extend(reduction.source(entry, at));
                    }
                }
            }
        }
        let elements = plan.bytes / reduction.dtype.size();
        let count = parts.cut.contributions().count();
        let (form, divisor) = match (is_outcome, count) {
            (true, _) => (Form::Rows(1), reduction.divisor(plan.ranks, &parts.cut)),
            // One contribution is passed on as it is: its weight counts in the outcome.
            (false, 0 | 1) => {
                sources.clear();
                sources.extend(only.map(|at| Source { at, wide: false, factor: 1.0 }));
                (Form::Rows(count), None)
            }
            (false, _) => (Form::Sum, None),
        };
        let form = if plan.fault(Fault::RelaySumOfOne) && count == 1 && !is_outcome { Form::Sum } else { form };
        if is_outcome || count > 0 {
            let goal = Goal { at: to, wide: form == Form::Sum };
            arena.combine(reduction.kind(), sources.iter().copied(), goal, elements, divisor);
        }
        control.store_down(last_cell(plan, to), label(parts.cut.encode(), form, &parts.crowded));
    }
}

/// The cell right in front of the data at an offset.
fn last_cell(plan: &Plan, at: usize) -> usize {
    plan.cell_of_data(at) - 1
}
