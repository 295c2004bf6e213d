//! The data that a host relays: contributions as they were sealed, and sums of them, each after its label.

use std::ops::Range;

use super::Driver;
use crate::collective::core::{Cells, Cut, Entry, Form, Label, Part, Plan, label, rows};
use crate::fault::Fault;
use crate::reduce::{Goal, Place, Source};
use crate::trigger::{Addends, Area, Buffer, Chunk};

/// A cut that is being assembled, and the hosts that have reported that they have no free slot.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) cut: Cut,
    without_slot: Vec<u32>,
}

impl Parts {
    pub(super) fn with_room_for(ranks: u32) -> Self {
        Parts { cut: Cut::with_room_for(ranks), without_slot: Vec::with_capacity(ranks as usize) }
    }

    fn begin(&mut self, round: u64, initiator: Option<u32>) {
        self.cut.begin(round, initiator);
        self.without_slot.clear();
    }
}

fn has_data(entry: &Entry) -> bool {
    entry.part != Part::Leaving
}

impl Driver {
    /// Puts the contributions of a host's part in a round into the memory from which they are relayed: one, or those of
    /// a rank that is alone on its host, as they are, and otherwise their sum. Then the buffers of the ranks are free.
    #[inline(never)]
    pub(super) fn seal(&mut self, round: u64, initiator: Option<u32>, without_slot: bool, (whole, count): (Chunk, u8)) {
        let Driver { machine, control, arena, reduction, parts, operands, .. } = self;
        let plan = machine.plan();
        parts.begin(round, initiator);
        operands.entries.iter().for_each(|&entry| parts.cut.entries.push(entry));
        let backwards = plan.fault(Fault::AddHostBackwards);
        parts.without_slot.extend(without_slot.then_some(plan.host()));
        let rows = rows(parts.cut.entries());
        let is_sum = rows.rows() > 1 && plan.topology.is_shared(plan.host());
        let form = if is_sum { Form::Sum } else { rows };
        for (index, chunk) in divided(whole, count) {
            let to = plan.area(Area { buffer: Buffer::Contribution, index, chunk }, round);
            let (skip, len) = plan.chunk_span(chunk);
            let mut combine = |sources: &mut dyn Iterator<Item = Source>, at| {
                let goal = Goal { at, wide: is_sum };
                arena.combine(reduction.kind(), sources, goal, len / reduction.dtype.size(), None);
            };
            let place = |entry: Entry| Place::Here(plan.contribution(entry.rank, entry.buffer) + skip);
            let contributions = parts.cut.contributions();
            if is_sum && backwards {
                let last_first: Vec<Entry> = contributions.collect();
                let sources = last_first.into_iter().rev();
                combine(&mut sources.filter_map(|entry| reduction.source(entry, place(entry))), to);
            } else if is_sum {
                combine(&mut contributions.filter_map(|entry| reduction.source(entry, place(entry))), to);
            } else {
                for (row, entry) in contributions.enumerate() {
                    let source = Source { at: place(entry), wide: false, factor: 1.0 };
                    combine(&mut [source].into_iter(), to + plan.row_offset(chunk, form, row));
                }
            }
            control.store_down(last_cell(plan, to), label(parts.cut.encode(), form, &parts.without_slot));
        }
    }

    /// Sums data, and joins its cuts, into a buffer in equal parts.
    #[inline(never)]
    pub(super) fn sum(&mut self, round: u64, from: Addends, to: Buffer, count: u8) {
        let Driver { machine, control, arena, reduction, parts, sources, inputs, .. } = self;
        let plan = machine.plan();
        let (is_outcome, chunk) = (to == Buffer::Outcome, from.chunk);
        parts.begin(round, None);
        inputs.clear();
        for (index, area) in from.areas().enumerate() {
            let shifted = from.is_own(index) && !chunk.is_whole() && plan.fault(Fault::SumWhatWasSent);
            let area = if shifted { Area { index: from.another(), ..area } } else { area };
            let (at, first) = (plan.area(area, round), parts.cut.entries.len());
            let last = last_cell(plan, at);
            let label = Label::new(|index| control.load(last - index));
            parts.cut.add(|index| label.record(index));
            parts.without_slot.extend(label.without_slot());
            inputs.push(SumInput { at, form: label.form(), entries: first..parts.cut.entries.len() });
        }
        if plan.fault(Fault::AddOwnFirst) {
            let own = (0..inputs.len()).find(|&index| from.is_own(index)).unwrap_or(0);
            inputs.swap(0, own);
        }
        let contributions = parts.cut.contributions().count();
        // A single contribution is passed on unchanged: its weight counts in the outcome.
        let passes_on = !is_outcome && contributions <= 1;
        let form = match passes_on {
            true if contributions == 1 && plan.fault(Fault::RelaySumOfOne) => Form::Sum,
            true => Form::Rows(contributions),
            false if is_outcome => Form::Rows(1),
            false => Form::Sum,
        };
        let divisor = reduction.divisor(plan.ranks, parts.cut.contributions()).filter(|_| is_outcome);
        for (index, part) in divided(chunk, count) {
            let at = plan.area(Area { buffer: to, index, chunk: part }, round);
            if is_outcome || contributions > 0 {
                sources.clear();
                for input in &*inputs {
                    let inner = plan.within(chunk, part, input.form);
                    let place = |row| Place::Here(input.at + plan.row_offset(chunk, input.form, row) + inner);
                    if input.form == Form::Sum {
                        sources.push(Source { at: place(0), wide: true, factor: 1.0 });
                        continue;
                    }
                    let entries =
                        parts.cut.entries.from(input.entries.start).take(input.entries.len()).filter(has_data);
                    sources.extend(entries.enumerate().filter_map(|(row, entry)| match passes_on {
                        true => Some(Source { at: place(row), wide: false, factor: 1.0 }),
                        false => reduction.source(entry, place(row)),
                    }));
                }
                let skip = if is_outcome { plan.chunk_span(part).0 } else { 0 };
                let goal = Goal { at: at + skip, wide: form == Form::Sum };
                let elements = plan.chunk_span(part).1 / reduction.dtype.size();
                arena.combine(reduction.kind(), sources.iter().copied(), goal, elements, divisor);
            }
            control.store_down(last_cell(plan, at), label(parts.cut.encode(), form, &parts.without_slot));
        }
    }
}

/// One input of a sum.
#[derive(Debug)]
pub(super) struct SumInput {
    /// Where its data begins.
    at: usize,
    form: Form,
    /// The range of its label's entries among all entries.
    entries: Range<usize>,
}

/// Returns the equal parts of a chunk.
fn divided(chunk: Chunk, count: u8) -> impl Iterator<Item = (u32, Chunk)> {
    let count = u32::from(count);
    (0..count).map(move |index| (index, chunk.part(index, count)))
}

/// Returns the cell right in front of the data at an offset.
fn last_cell(plan: &Plan, at: usize) -> usize {
    plan.cell_of_data(at) - 1
}
