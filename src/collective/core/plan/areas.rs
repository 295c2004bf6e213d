//! Where a rank keeps what it relays, in the data region of its host.
//!
//! Behind the contributions lie the outcomes, and then an area for each thing that a round's rows read or write, for
//! some rounds in turn. In front of the data of each lies its label.

use super::layout::lines;
use super::{Plan, RELAYED_ROUNDS};
use crate::collective::core::label::{Form, most_cells};
use crate::rule::Schedule;
use crate::trigger::{Buffer, Chunk};

/// Rows of relayed data begin at such multiples.
const ROW: usize = size_of::<u64>();

/// Pieces of a chunk begin at such multiples.
const PIECE: usize = 64;

impl Plan {
    /// So many bytes of a contribution, in the width in which sums are made; nothing if they cannot be addressed.
    fn widened(&self, bytes: usize) -> Option<usize> {
        bytes.checked_mul(self.wide_bytes.checked_div(self.bytes).unwrap_or(1))
    }

    /// So many bytes of a contribution, in the width that a form of data has.
    fn formed(&self, bytes: usize, form: Form) -> usize {
        if form == Form::Sum { self.widened(bytes).unwrap_or(usize::MAX) } else { bytes }
    }

    /// Bytes of a part of relayed data: all its rows, one behind the other.
    pub(crate) fn part_bytes(&self, part: Chunk, form: Form) -> usize {
        let row = self.formed(self.chunk_span(part).1, form);
        form.rows().checked_sub(1).map_or(0, |before| before * row.next_multiple_of(ROW) + row)
    }

    /// How far behind the beginning of relayed data a row of a part lies. The data consists of `before`, if there is
    /// such a part, and then of this one.
    pub(crate) fn row_offset(&self, before: Option<Chunk>, part: Chunk, form: Form, row: usize) -> usize {
        let first = before.map_or(0, |before| self.part_bytes(before, form).next_multiple_of(ROW));
        first + row * self.formed(self.chunk_span(part).1, form).next_multiple_of(ROW)
    }

    /// The same for what lies within that part: its beginning is so much further on.
    pub(crate) fn within(&self, part: Chunk, inner: Chunk, form: Form) -> usize {
        self.formed(self.chunk_span(inner).0 - self.chunk_span(part).0, form)
    }

    /// The most bytes of a contribution that a rank reduces at a level, if they can be addressed.
    fn reach(&self, level: u32) -> Option<usize> {
        let divides = self.schedule == Schedule::Halving;
        let pieces = (1usize << self.ranks.ilog2()) >> level;
        let most = (self.bytes >> level).checked_add(1 + PIECE * pieces)?;
        Some(if divides { most.min(self.bytes) } else { self.bytes })
    }

    /// Bytes of an area, for its label and for its data; nothing if they cannot be addressed.
    pub(super) fn shape(&self, area: Buffer) -> Option<(usize, usize)> {
        let two_rows = |bytes: usize| bytes.checked_next_multiple_of(ROW)?.checked_mul(2);
        let wide = |bytes: usize| Some(self.widened(bytes)?.max(bytes));
        let (ranks, data) = match area {
            Buffer::Contribution => (1, two_rows(self.bytes)?),
            // A level joins two halves, and at the first level each may be a pair of ranks.
            Buffer::Partial(level) => (2 << level.min(30), wide(self.reach(level)?)?),
            // Of a rank that sends what it sealed, or of several.
            Buffer::Inbox(level @ 0..=1) => {
                let reach = self.reach(level)?;
                (1 << level, wide(reach)?.max(two_rows(reach)?))
            }
            Buffer::Inbox(level) => (1 << level.min(30), wide(self.reach(level)?)?),
            Buffer::Outcome => (self.ranks, self.bytes),
        };
        Some((lines(most_cells(ranks.min(self.ranks)) * size_of::<u64>())?, lines(data)?))
    }

    fn area_bytes(&self, area: Buffer) -> Option<usize> {
        self.shape(area).and_then(|(label, data)| label.checked_add(data))
    }

    /// The areas of a round, in their order in memory.
    pub(super) fn areas(&self) -> impl Iterator<Item = Buffer> + use<> {
        // The sum of the last level is the outcome. When ranks have left, there are as many levels or fewer.
        let last = self.ranks.ilog2();
        let levels = (0..last).flat_map(|level| [Buffer::Inbox(level), Buffer::Partial(level)]);
        std::iter::once(Buffer::Contribution).chain(levels).chain([Buffer::Inbox(last)])
    }

    fn round_bytes(&self) -> Option<usize> {
        self.areas().try_fold(0usize, |sum, area| sum.checked_add(self.area_bytes(area)?))
    }

    /// Outcomes that lie there at once: another rank writes some of them, so they take turns as areas do.
    fn relayed_outcomes(&self) -> u64 {
        self.depth.max(RELAYED_ROUNDS)
    }

    /// Bytes of all that is relayed, or nothing if they cannot be addressed.
    pub(super) fn relayed_bytes(&self) -> Option<usize> {
        let outcomes = self.area_bytes(Buffer::Outcome)?.checked_mul(usize::try_from(self.relayed_outcomes()).ok()?)?;
        outcomes.checked_add(self.round_bytes()?.checked_mul(RELAYED_ROUNDS as usize)?)
    }

    /// Where the data of an area begins that a round uses. All of it can be addressed: that was checked when the plan
    /// was made.
    #[inline(never)]
    pub(crate) fn area(&self, area: Buffer, round: u64) -> usize {
        let bytes = |area| self.area_bytes(area).unwrap_or(0);
        let label = self.shape(area).map_or(0, |(label, _)| label);
        let outcomes = self.relayed_outcomes();
        let first = self.contributions_end() + label;
        if area == Buffer::Outcome {
            return first + ((round - 1) % outcomes) as usize * bytes(area);
        }
        debug_assert!(self.areas().any(|other| other == area), "{area} is relayed");
        let before: usize = self.areas().take_while(|&other| other != area).map(bytes).sum();
        let turn = (round % RELAYED_ROUNDS) as usize * self.round_bytes().unwrap_or(0);
        first + outcomes as usize * bytes(Buffer::Outcome) + turn + before
    }

    /// The cell of the data region at an offset.
    pub(crate) fn cell_of_data(&self, offset: usize) -> usize {
        self.control_cells() + offset / size_of::<u64>()
    }
}
