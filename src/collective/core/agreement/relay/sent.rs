//! Messages between hosts that relay.

use super::super::super::input::Cells;
use super::super::super::label::Label;
use super::super::super::op::Counted;
use super::super::super::plan::{OUTCOME, Plan, RELAYED_ROUNDS, SIGNALLED_ROUNDS};
use crate::trigger::{Area, Chunk, LAST_ROUND};

/// What a host tells the one that counts a round's arrivals: absolute values, so that the newest says all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) round: u64,
    /// The number of ranks that are there: one at least.
    pub(super) count: u32,
    /// The index, on its host, of the rank that completed this number.
    pub(super) last: u32,
}

const _: () = assert!(LAST_ROUND >> (64 - 2 * Report::BITS) == 0);

impl Report {
    /// Enough for an index among the ranks of the largest host. All the others number the rounds of a collective.
    const BITS: u32 = 12;

    pub(super) fn cell(self) -> u64 {
        (self.round << Self::BITS | u64::from(self.count - 1)) << Self::BITS | u64::from(self.last)
    }

    /// Returns what a cell reports of a round; `None` if it reports of an older one.
    pub(super) fn of_round(round: u64, cell: u64) -> Option<Self> {
        let field = |value: u64| (value & ((1 << Self::BITS) - 1)) as u32;
        let report =
            Report { round: cell >> (2 * Self::BITS), count: field(cell >> Self::BITS) + 1, last: field(cell) };
        (report.round >= round).then_some(report)
    }
}

/// Returns the counter of data sent in a round.
pub(super) fn relayed_in(round: u64) -> Counted {
    Counted::Relayed { turn: (round % RELAYED_ROUNDS) as u32 }
}

/// Returns the counter of activations sent in a round.
pub(super) fn signalled_in(round: u64) -> Counted {
    Counted::Signalled { turn: (round % SIGNALLED_ROUNDS) as u32 }
}

/// Returns the label of the data at an offset.
pub(super) fn label_of(at: usize, plan: &Plan, cells: &impl Cells) -> Label<impl Fn(usize) -> u64> {
    let last = plan.cell_of_data(at) - 1;
    Label::new(move |index| cells.load(last - index))
}

/// Returns what to write to another host: the source, the target there, and the number of bytes. The label goes along.
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

/// Returns the same for a part of an outcome, if it is not empty: all hosts have the label.
pub(super) fn gathered(chunk: Chunk, round: u64, plan: &Plan) -> Option<(usize, usize, usize)> {
    let (skip, len) = plan.chunk_span(chunk);
    let at = plan.area(OUTCOME, round) + skip;
    Some((at, at, len)).filter(|_| len > 0)
}
