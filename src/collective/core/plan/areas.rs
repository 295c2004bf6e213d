//! The memory for relayed data, in the data region of a rank's host.
//!
//! The outcomes follow the contributions. After them come the areas of each buffer that a round's rows read or write, for
//! several rounds in turn: of a level, an area for each inbox; of a buffer that is sent in parts, an area for each part.
//! The label of each area's data lies right in front of the data.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rows::lines;
use super::{Plan, RELAYED_ROUNDS};
use crate::collective::core::label::{Form, most_cells};
use crate::fabric::CACHE_LINE;
use crate::fault::Fault;
use crate::rule::Schedule;
use crate::trigger::{Area, Buffer, Chunk, Inboxes, Shape};

/// Rows of relayed data begin at multiples of this number of bytes, the size of a cell.
const ROW: usize = size_of::<u64>();

/// The bytes in the label of one contribution.
const LEAST_LABEL: usize = 3 * ROW;

/// The outcome of a round.
pub(crate) const OUTCOME: Area = Area { buffer: Buffer::Outcome, index: 0, chunk: Chunk::WHOLE };

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
    /// Where the areas of each buffer begin, counted from there, the bytes of a label there, and the number of bytes from
    /// data to the cell that announces it, if that cell lies right after it.
    starts: Arc<[Start]>,
    /// Where the last area ends.
    end: usize,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    at: usize,
    label: usize,
    packed: Option<usize>,
}

impl Areas {
    /// Returns the areas that begin at an offset; `None` if they cannot be addressed.
    pub(super) fn of(plan: &Plan, first: usize) -> Option<Self> {
        let outcomes = plan.depth.max(RELAYED_ROUNDS);
        let (label, data) = plan.shape_of(OUTCOME)?;
        let outcome_bytes = label.checked_add(data)?;
        let rounds = outcome_bytes.checked_mul(usize::try_from(outcomes).ok()?)?;
        let (mut starts, mut round) = (Vec::new(), 0usize);
        let mut room = plan.most_bytes()?;
        for buffer in plan.round_buffers() {
            let start = Start { at: round, label: lines(plan.label_bytes(buffer)?)?, packed: plan.packed(buffer)? };
            starts.push(start);
            round = round.checked_add(room.remove(&buffer).unwrap_or_default())?;
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

    /// Returns the number of a buffer of a round; an outcome has none.
    fn number(&self, buffer: Buffer) -> Option<usize> {
        match buffer {
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

    /// Returns the bytes of relayed data: all its rows, one after the other.
    pub(crate) fn part_bytes(&self, part: Chunk, form: Form) -> usize {
        let row = self.formed(self.chunk_span(part).1, form);
        form.rows().checked_sub(1).map_or(0, |before| before * row.next_multiple_of(ROW) + row)
    }

    /// Returns the offset of a row from the beginning of relayed data.
    pub(crate) fn row_offset(&self, part: Chunk, form: Form, row: usize) -> usize {
        row * self.formed(self.chunk_span(part).1, form).next_multiple_of(ROW)
    }

    /// Returns the offset of an inner chunk from the beginning of its part.
    pub(crate) fn within(&self, part: Chunk, inner: Chunk, form: Form) -> usize {
        self.formed(self.chunk_span(inner).0 - self.chunk_span(part).0, form)
    }

    /// Returns the most bytes that any chunk of as many pieces covers.
    fn most_of(&self, chunk: Chunk) -> usize {
        self.chunk_span(Chunk { from: 0, to: chunk.pieces(), of: chunk.of }).1
    }

    /// Returns the most bytes of a buffer's label, also among fewer ranks; `None` if they cannot be addressed.
    fn label_bytes(&self, buffer: Buffer) -> Option<usize> {
        // Places join at a level, and each has two hosts; a star has one place.
        let star = self.radix == 1;
        let widest = u64::from(self.topology.widest());
        let block = |level: u32| {
            let places = u64::from(self.radix).checked_pow(level).unwrap_or(u64::MAX);
            places.saturating_mul(2 * widest)
        };
        let ranks = match buffer {
            Buffer::Contribution | Buffer::Inbox(0) => widest,
            Buffer::Partial(_) | Buffer::Inbox(_) if star => u64::from(self.ranks),
            Buffer::Inbox(level) => block(level - 1),
            Buffer::Partial(level) => block(level),
            Buffer::Outcome => u64::from(self.ranks),
        };
        let ranks = ranks.min(u64::from(self.ranks)) as u32;
        most_cells(ranks).checked_mul(size_of::<u64>())
    }

    /// Returns the most bytes of a buffer's data for this number of bytes of a contribution; `None` if they cannot be addressed.
    fn data_bytes_of(&self, buffer: Buffer, bytes: usize) -> Option<usize> {
        let two_rows = bytes.checked_next_multiple_of(ROW)?.checked_mul(2);
        let wide = self.widened(bytes)?.max(bytes);
        match buffer {
            // The contributions of a rank that is alone on its host, or one or the sum of those of several ranks.
            Buffer::Contribution if self.topology.is_apart() => two_rows,
            Buffer::Contribution => Some(wide.max(two_rows?)),
            Buffer::Partial(_) => Some(wide),
            // From a rank that sends what it sealed, or from several.
            Buffer::Inbox(0..=1) => Some(wide.max(two_rows?)),
            Buffer::Inbox(_) => Some(wide),
            Buffer::Outcome => Some(bytes),
        }
    }

    /// Returns the bytes from the beginning of an inbox's data to the cell that announces it, if the data is so small
    /// that one cache line can hold it with a label and this cell. A network writes the line at once.
    fn packed(&self, buffer: Buffer) -> Option<Option<usize>> {
        let width = self.data_bytes_of(buffer, self.bytes)?.checked_next_multiple_of(ROW)?;
        let is_whole = self.schedule != Schedule::Halving;
        let packs = is_whole && matches!(buffer, Buffer::Inbox(_)) && LEAST_LABEL + width + ROW <= CACHE_LINE;
        Some(packs.then_some(width))
    }

    /// Returns the bytes of an area for its label, and for its data with the cell after it; `None` if they cannot be
    /// addressed.
    pub(super) fn shape_of(&self, area: Area) -> Option<(usize, usize)> {
        let label = lines(self.label_bytes(area.buffer)?)?;
        Some(match self.packed(area.buffer)? {
            // The cell ends a line.
            Some(width) => (label + CACHE_LINE - ROW - width, width + ROW),
            None => (label, lines(self.data_bytes_of(area.buffer, self.most_of(area.chunk))?)?),
        })
    }

    /// Returns the buffers of a round, in their order in memory. After ranks have left, there are as many levels or fewer.
    pub(super) fn round_buffers(&self) -> impl Iterator<Item = Buffer> + use<> {
        let levels = Inboxes::of(self.topology.hosts(), self.radix).levels();
        let buffers = (0..=levels).flat_map(|level| [Buffer::Inbox(level), Buffer::Partial(level)]);
        std::iter::once(Buffer::Contribution).chain(buffers)
    }

    /// Returns the areas that a table among a number of members has, one of each kind and how many there are of it.
    pub(super) fn areas_among(&self, members: u32) -> Vec<(Area, u32)> {
        let shape = Shape::of(members, self.radix);
        let divides = self.schedule == Schedule::Halving;
        let whole = if divides { shape.pieces() } else { Chunk::WHOLE };
        let last = shape.levels();
        // What a place keeps at a level, and in how many parts it sends what it has after it.
        let kept = |level: u32| match divides {
            true => Chunk { to: shape.pieces().of / shape.block(level + 1), ..whole },
            false => whole,
        };
        let parts = |level: u32| if divides && level < last { shape.radix(level + 1) } else { 1 };
        let area = |buffer, chunk| Area { buffer, index: 0, chunk };
        let sent = |level: u32| if level < last { kept(level + 1) } else { whole };
        let mut all = vec![(area(Buffer::Contribution, sent(0)), parts(0))];
        all.push((area(Buffer::Inbox(0), whole), shape.most_hung()));
        for level in 0..last {
            all.push((area(Buffer::Partial(level), sent(level)), parts(level)));
            all.push((area(Buffer::Inbox(level + 1), kept(level + 1)), shape.radix(level + 1) - 1));
        }
        all
    }

    /// Returns the most bytes of each buffer of a round, also among fewer members; `None` if they cannot be addressed.
    fn most_bytes(&self) -> Option<BTreeMap<Buffer, usize>> {
        let mut most = BTreeMap::new();
        // A member that hangs on another one sends its contribution as a whole.
        let whole = Area { buffer: Buffer::Contribution, ..OUTCOME };
        let among = (1..=self.topology.hosts()).flat_map(|members| self.areas_among(members));
        for (area, count) in among.chain([(whole, 1)]) {
            let (label, data) = self.shape_of(area)?;
            let bytes = label.checked_add(data)?.checked_mul(count as usize)?;
            let known: &mut usize = most.entry(area.buffer).or_default();
            *known = bytes.max(*known);
        }
        Some(most)
    }

    /// Returns where the data of a round's area begins. All of it can be addressed, as was checked when the plan was
    /// made.
    pub(crate) fn area(&self, area: Area, round: u64) -> usize {
        let areas = self.areas();
        let Some(number) = areas.number(area.buffer) else {
            return areas.outcomes_from + ((round - 1) % areas.outcomes) as usize * areas.outcome_bytes;
        };
        let Start { at, label, packed } = areas.starts[number];
        let rounds = if self.fault(Fault::UseTwoAreas) { 2 } else { RELAYED_ROUNDS };
        let first = areas.rounds_from[(round % rounds) as usize] + at;
        match (packed, area.index) {
            (Some(width), index) => first + index as usize * (label + CACHE_LINE) + label + CACHE_LINE - ROW - width,
            (None, 0) => first + label,
            (None, index) => {
                let data =
                    self.data_bytes_of(area.buffer, self.most_of(area.chunk)).and_then(lines).unwrap_or_default();
                first + index as usize * (label + data) + label
            }
        }
    }

    /// Returns the cell that announces the data of an area in a round, if it lies right after the data.
    pub(super) fn cell_behind(&self, area: Area, round: u64) -> Option<usize> {
        let width = self.packed_width(area.buffer)?;
        Some(self.cell_of_data(self.area(area, round) + width))
    }

    /// Returns the number of bytes to write to a buffer for `data` bytes of data and `label` bytes of label before them.
    /// If one write also brings the cell that announces the data, these are all bytes up to that cell.
    pub(crate) fn written_bytes(&self, buffer: Buffer, label: usize, data: usize) -> usize {
        let width = self.packed_width(buffer).filter(|width| label + width + ROW <= CACHE_LINE);
        label + width.unwrap_or(data)
    }

    fn packed_width(&self, buffer: Buffer) -> Option<usize> {
        let areas = self.areas();
        areas.starts.get(areas.number(buffer)?)?.packed
    }

    fn areas(&self) -> &Areas {
        self.data.areas.as_ref().expect("ranks relay, in memory that can be addressed")
    }
}
