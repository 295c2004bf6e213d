//! Messages between ranks that relay, and notices to the rank that counts arrivals.

use super::super::super::input::{Cells, Time};
use super::super::super::label::Label;
use super::super::super::op::Counted;
use super::super::super::plan::{OUTCOME, Plan, RELAYED_ROUNDS, SIGNALLED_ROUNDS};
use crate::trigger::{Area, Chunk};

/// A notice to the rank that counts arrivals: the round that the sender arrived for, and how long the round stays open
/// if this arrival fires it.
pub(super) struct ArrivalNotice {
    pub(super) round: u64,
    pub(super) grace: Time,
}

impl ArrivalNotice {
    const GRACE_BITS: u32 = 24;
    /// The unit of the grace in a notice: the field holds more than four seconds.
    const UNIT: Time = 256;

    pub(super) fn cell(self) -> u64 {
        self.round << Self::GRACE_BITS | self.grace.div_ceil(Self::UNIT).min((1 << Self::GRACE_BITS) - 1)
    }

    pub(super) fn from_cell(cell: u64) -> Self {
        let grace = (cell & ((1 << Self::GRACE_BITS) - 1)) * Self::UNIT;
        ArrivalNotice { round: cell >> Self::GRACE_BITS, grace }
    }
}

/// Returns the counter of data sent in a round.
pub(super) fn relayed_in(round: u64) -> Counted {
    Counted::Relayed { turn: (round % RELAYED_ROUNDS) as u32 }
}

/// Returns the counter of activations and arrivals sent in a round.
pub(super) fn signalled_in(round: u64) -> Counted {
    Counted::Signalled { turn: (round % SIGNALLED_ROUNDS) as u32 }
}

/// Returns the label of the data at an offset.
pub(super) fn label_of(at: usize, plan: &Plan, cells: &impl Cells) -> Label<impl Fn(usize) -> u64> {
    let last = plan.cell_of_data(at) - 1;
    Label::new(move |index| cells.load(last - index))
}

/// Returns what to write to another rank: the source, the target there, and the number of bytes. The label goes along.
pub(super) fn relayed(
    source: Area,
    target: Area,
    round: u64,
    plan: &Plan,
    cells: &impl Cells,
) -> (usize, usize, usize) {
    let (from, to) = (plan.area(source, round), plan.area(target, round));
    let label = label_of(from, plan, cells);
    let before = label.cells() * size_of::<u64>();
    let bytes = plan.written_bytes(target.buffer, before, plan.part_bytes(source.chunk, label.form()));
    (from - before, to - before, bytes)
}

/// Returns the same for a part of an outcome, if it is not empty: all ranks have the label.
pub(super) fn gathered(chunk: Chunk, round: u64, plan: &Plan) -> Option<(usize, usize, usize)> {
    let (skip, len) = plan.chunk_span(chunk);
    let at = plan.area(OUTCOME, round) + skip;
    Some((at, at, len)).filter(|_| len > 0)
}
