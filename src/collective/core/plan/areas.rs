//! The memory for relayed data, in the data region of a rank's host.
//!
//! The outcomes follow the contributions. After them comes an area for each buffer that a round's rows read or write,
//! for several rounds in turn. The label of each area's data lies right in front of the data.

use std::sync::Arc;

use super::rows::lines;
use super::{Plan, RELAYED_ROUNDS};
use crate::collective::core::label::{Form, most_cells};
use crate::fabric::CACHE_LINE;
use crate::rule::Schedule;
use crate::trigger::{Buffer, Chunk};

/// Rows of relayed data begin at multiples of this number of bytes, the size of a cell.
const ROW: usize = size_of::<u64>();

/// The bytes in the label of one contribution.
const LEAST_LABEL: usize = 3 * ROW;

/// Pieces of a chunk begin at multiples of this number of bytes.
const PIECE: usize = 64;

/// The offsets of areas. They are computed once, since each area lies after others.
#[derive(Clone, Debug)]
pub(super) struct Areas {
    /// The number of outcomes that the memory holds at once. Another rank writes some of them, so they take turns as
    /// areas do.
    outcomes: u64,
    /// Where the data of the first outcome begins, and the bytes from one outcome to the next.
    outcomes_from: usize,
    outcome_bytes: usize,
    /// Where the areas of each of the rounds that take turns begin.
    rounds_from: [usize; RELAYED_ROUNDS as usize],
    /// Where the data of each area of a round begins, counted from there, and the number of bytes to the cell that
    /// announces the data, if that cell lies right after it.
    starts: Arc<[(usize, Option<usize>)]>,
    /// Where the last area ends.
    end: usize,
}

impl Areas {
    /// Returns the areas that begin at an offset; `None` if they cannot be addressed.
    pub(super) fn of(plan: &Plan, first: usize) -> Option<Self> {
        let outcomes = plan.depth.max(RELAYED_ROUNDS);
        let (label, data) = plan.shape(Buffer::Outcome)?;
        let outcome_bytes = label.checked_add(data)?;
        let rounds = outcome_bytes.checked_mul(usize::try_from(outcomes).ok()?)?;
        let (mut starts, mut round) = (Vec::new(), 0usize);
        for area in plan.round_areas() {
            let (label, data) = plan.shape(area)?;
            let start = round.checked_add(label)?;
            starts.push((start, plan.packed(area)?));
            round = start.checked_add(data)?;
        }
        let total = rounds.checked_add(round.checked_mul(RELAYED_ROUNDS as usize)?)?;
        let end = first.checked_add(total)?;
        Some(Areas {
            outcomes,
            outcomes_from: first + label,
            outcome_bytes,
            rounds_from: std::array::from_fn(|turn| first + rounds + turn * round),
            starts: starts.into(),
            end,
        })
    }
}

impl Areas {
    /// Returns the number of outcomes that the memory holds at once.
    #[cfg(any(test, feature = "cli"))]
    pub(super) fn outcomes(&self) -> u64 {
        self.outcomes
    }

    /// Returns where the last area ends.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Returns the number of an area of a round; an outcome has none.
    fn number(&self, area: Buffer) -> Option<usize> {
        match area {
            Buffer::Contribution => Some(0),
            Buffer::Inbox(level) => Some(1 + 2 * level as usize),
            Buffer::Partial(level) => Some(2 + 2 * level as usize),
            Buffer::Outcome => None,
        }
    }
}

impl Plan {
    /// Returns the size of `bytes` bytes of a contribution in the width of sums; `None` if it cannot be addressed.
    fn widened(&self, bytes: usize) -> Option<usize> {
        bytes.checked_mul(self.wide_bytes.checked_div(self.bytes).unwrap_or(1))
    }

    /// Returns the size of `bytes` bytes of a contribution in the width of a form of data.
    fn formed(&self, bytes: usize, form: Form) -> usize {
        if form == Form::Sum { self.widened(bytes).unwrap_or(usize::MAX) } else { bytes }
    }

    /// Returns the bytes of a part of relayed data: all its rows, one after the other.
    pub(crate) fn part_bytes(&self, part: Chunk, form: Form) -> usize {
        let row = self.formed(self.chunk_span(part).1, form);
        form.rows().checked_sub(1).map_or(0, |before| before * row.next_multiple_of(ROW) + row)
    }

    /// Returns the offset of a part's row from the beginning of relayed data. The data consists of `before`, if there
    /// is such a part, followed by `part`.
    pub(crate) fn row_offset(&self, before: Option<Chunk>, part: Chunk, form: Form, row: usize) -> usize {
        let first = before.map_or(0, |before| self.part_bytes(before, form).next_multiple_of(ROW));
        first + row * self.formed(self.chunk_span(part).1, form).next_multiple_of(ROW)
    }

    /// Returns the offset of an inner chunk from the beginning of its part.
    pub(crate) fn within(&self, part: Chunk, inner: Chunk, form: Form) -> usize {
        self.formed(self.chunk_span(inner).0 - self.chunk_span(part).0, form)
    }

    /// Returns the most bytes of a contribution that a rank reduces at a level, if they can be addressed.
    fn reach(&self, level: u32) -> Option<usize> {
        let divides = self.schedule == Schedule::Halving;
        let pieces = (1usize << self.ranks.ilog2()) >> level;
        let most = (self.bytes >> level).checked_add(1 + PIECE * pieces)?;
        Some(if divides { most.min(self.bytes) } else { self.bytes })
    }

    /// Returns the most bytes of an area's label and of its data; `None` if they cannot be addressed.
    fn extent(&self, area: Buffer) -> Option<(usize, usize)> {
        let two_rows = |bytes: usize| bytes.checked_next_multiple_of(ROW)?.checked_mul(2);
        let wide = |bytes: usize| Some(self.widened(bytes)?.max(bytes));
        let (ranks, data) = match area {
            Buffer::Contribution => (1, two_rows(self.bytes)?),
            // A level joins two halves, and at the first level each may be a pair of ranks.
            Buffer::Partial(level) => (2 << level.min(30), wide(self.reach(level)?)?),
            // From a rank that sends what it sealed, or from several.
            Buffer::Inbox(level @ 0..=1) => {
                let reach = self.reach(level)?;
                (1 << level, wide(reach)?.max(two_rows(reach)?))
            }
            Buffer::Inbox(level) => (1 << level.min(30), wide(self.reach(level)?)?),
            Buffer::Outcome => (self.ranks, self.bytes),
        };
        Some((most_cells(ranks.min(self.ranks)) * size_of::<u64>(), data))
    }

    /// Returns the bytes from the beginning of an inbox's data to the cell that announces it, if the data is so small
    /// that one cache line can hold it with a label and this cell. A network writes the line at once.
    fn packed(&self, area: Buffer) -> Option<Option<usize>> {
        let width = self.extent(area)?.1.checked_next_multiple_of(ROW)?;
        let packs = matches!(area, Buffer::Inbox(_)) && LEAST_LABEL + width + ROW <= CACHE_LINE;
        Some(packs.then_some(width))
    }

    /// Returns the bytes of an area for its label, and for its data with the cell after it; `None` if they cannot be
    /// addressed.
    pub(super) fn shape(&self, area: Buffer) -> Option<(usize, usize)> {
        let (label, data) = self.extent(area)?;
        Some(match self.packed(area)? {
            // The cell ends a line.
            Some(width) => (lines(label)? + CACHE_LINE - ROW - width, width + ROW),
            None => (lines(label)?, lines(data)?),
        })
    }

    /// Returns the areas of a round, in their order in memory.
    pub(super) fn round_areas(&self) -> impl Iterator<Item = Buffer> + use<> {
        // The sum of the last level is the outcome. After ranks have left, there are as many levels or fewer.
        let last = self.ranks.ilog2();
        let levels = (0..last).flat_map(|level| [Buffer::Inbox(level), Buffer::Partial(level)]);
        std::iter::once(Buffer::Contribution).chain(levels).chain([Buffer::Inbox(last)])
    }

    /// Returns where the data of a round's area begins. All of it can be addressed, as was checked when the plan was
    /// made.
    pub(crate) fn area(&self, area: Buffer, round: u64) -> usize {
        let areas = self.areas();
        match areas.number(area) {
            None => areas.outcomes_from + ((round - 1) % areas.outcomes) as usize * areas.outcome_bytes,
            Some(number) => areas.rounds_from[(round % RELAYED_ROUNDS) as usize] + areas.starts[number].0,
        }
    }

    /// Returns the cell that announces the data of an area in a round, if it lies right after the data.
    pub(super) fn cell_behind(&self, area: Buffer, round: u64) -> Option<usize> {
        let width = self.packed_width(area)?;
        Some(self.cell_of_data(self.area(area, round) + width))
    }

    /// Returns the number of bytes to write to an area for `data` bytes of data and `label` bytes of label before them.
    /// If one write also brings the cell that announces the data, these are all bytes up to that cell.
    pub(crate) fn written_bytes(&self, area: Buffer, label: usize, data: usize) -> usize {
        let width = self.packed_width(area).filter(|width| label + width + ROW <= CACHE_LINE);
        label + width.unwrap_or(data)
    }

    fn packed_width(&self, area: Buffer) -> Option<usize> {
        let areas = self.areas();
        // A level that these ranks do not use has no area.
        areas.starts.get(areas.number(area)?)?.1
    }

    fn areas(&self) -> &Areas {
        self.data.areas.as_ref().expect("ranks relay, in memory that can be addressed")
    }
}
