//! Where a rank keeps what it relays, in the data region of its host.
//!
//! Behind the contributions lie the outcomes, and then an area for each thing that a round's rows read or write, for
//! some rounds in turn. In front of the data of each lies its label.

use super::layout::lines;
use super::{Plan, RELAYED_ROUNDS};
use crate::collective::core::label::most_cells;
use crate::trigger::Buffer;

impl Plan {
    /// Bytes from a contribution as it was handed in to the one behind it.
    pub(crate) fn row(&self) -> usize {
        self.bytes.next_multiple_of(size_of::<u64>())
    }

    /// Bytes of an area, for its label and for its data; nothing if they cannot be addressed.
    pub(super) fn shape(&self, area: Buffer) -> Option<(usize, usize)> {
        let rows = self.bytes.checked_next_multiple_of(size_of::<u64>())?.checked_mul(2)?;
        let (ranks, data) = match area {
            Buffer::Contribution => (1, rows),
            // A level joins two halves, and at the first level each may be a pair of ranks.
            Buffer::Partial(level) => (2 << level.min(30), self.wide_bytes.max(self.bytes)),
            // Of a rank that sends what it sealed, or of several.
            Buffer::Inbox(level @ 0..=1) => (1 << level, self.wide_bytes.max(rows)),
            Buffer::Inbox(level) => (1 << level.min(30), self.wide_bytes.max(self.bytes)),
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
