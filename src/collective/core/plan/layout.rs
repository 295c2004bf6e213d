//! Where each thing lies.
//!
//! Every *host* (a set of ranks that can load and store each other's memory) has one control
//! region of 64-bit cells and one data region of bytes, both laid out alike everywhere; so an
//! address is a host and an offset, and nothing has to be exchanged but the regions themselves.

use super::super::cut::Cut;
use super::{BUFFERS, FIRST_HELD, Plan, RANKS_PER_WORD, RECEIVING_ROWS, RELAYED_ROUNDS, TOLD_ROUNDS};
use crate::fabric::CACHE_LINE;
use crate::fault::Fault;
use crate::rule::{Absent, AgreementBy, MovementBy};
use crate::trigger::{Buffer, InputCells};

/// Rows for the pushed data of a synchronous rank: of the round that is reduced, and of the next one, for
/// which a rank pushes that is done with it.
const ROWS: u64 = 2;

/// Cells in two cache lines: adjacent-line prefetch makes pairs of lines travel together.
pub(super) const LINE: usize = 16;

/// Bytes rounded up to whole lines, one at least; nothing if they cannot be addressed.
pub(super) fn lines(bytes: usize) -> Option<usize> {
    let line = LINE * size_of::<u64>();
    Some(bytes.checked_next_multiple_of(line)?.max(line))
}

/// Which of `slots` slots a round has. Rounds count from 1.
#[inline]
pub(crate) fn slot_of(round: u64, slots: u64) -> usize {
    let before = round - 1;
    // Synchronous rounds have two slots, and a division takes longer than the rest of a look at one.
    (if slots.is_power_of_two() { before & (slots - 1) } else { before % slots }) as usize
}

/// How many of what there are. Each look at a cell takes some of them, and to count them takes divisions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extents {
    slots: u64,
    segments: u64,
    shares: u64,
    word_cells: usize,
    home_cells: usize,
    slot_cells: usize,
}

impl Extents {
    pub(super) fn of(plan: &Plan) -> Self {
        let segments = plan.count_segments();
        let shares = Plan::count_shares(segments.saturating_mul(plan.most_groups()), plan.ranks);
        let word_cells = (plan.words() as usize).next_multiple_of(LINE);
        let home_cells = word_cells + LINE + shares as usize * LINE;
        let slot_cells = match (&plan.program, plan.agreement) {
            (Some(program), _) => program.cells(),
            (None, AgreementBy::Relays) => (plan.inputs().count() + plan.ranks as usize).next_multiple_of(LINE),
            _ => home_cells + LINE + plan.record_cells(),
        };
        // Activations go out before the gate closes, which shows that what lies in areas may be written.
        let least = if plan.agreement == AgreementBy::Relays { RELAYED_ROUNDS + 1 } else { 1 };
        Extents { slots: least.max(plan.depth + 1), segments, shares, word_cells, home_cells, slot_cells }
    }
}

impl Plan {
    /// Control slots: one more than `depth`, because the initiator of round r readies the slot of
    /// r + 1, and what a slot held before must have been released by all ranks.
    #[inline]
    pub(crate) fn slots(&self) -> u64 {
        self.extents.slots
    }

    #[inline]
    pub(crate) fn segments(&self) -> u64 {
        self.extents.segments
    }

    /// Work-stealing shares of a round.
    #[inline]
    pub(crate) fn shares(&self) -> u64 {
        self.extents.shares
    }

    /// The control slot of a round. Rounds count from 1.
    pub(crate) fn slot(&self, round: u64) -> usize {
        slot_of(round, self.slots())
    }

    /// How often the slot of `round` was used when `round` is over, `round` included.
    pub(crate) fn uses(&self, round: u64) -> u64 {
        (round - 1) / self.slots() + 1
    }
}

/// The cells of the tags of all ranks: a row for each rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TagCells {
    first: usize,
    by_rank: usize,
    by_number: usize,
}

impl TagCells {
    pub(super) fn of(plan: &Plan) -> Self {
        let Some(before) = plan.packed_tag() else {
            return TagCells { first: 0, by_rank: LINE, by_number: 1 };
        };
        // Data that is pushed has a row of its own for each rank.
        const CELL: usize = size_of::<u64>();
        let by_number = plan.stride() / CELL;
        let first = plan.control_cells() + before / CELL;
        TagCells { first, by_rank: BUFFERS as usize * by_number, by_number }
    }
}

/// How an outcome and the record of its cut lie together, where one rank reduces a round and tells other hosts of it: a
/// network writes both at once. A row has the cut from the outcome downwards, and the round right behind the outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    /// Bytes of a row, and from its begin to the outcome and to the round.
    row: usize,
    outcome: usize,
    round: usize,
}

impl Announced {
    /// Nothing where they lie apart, or cannot be addressed, which is refused later.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        if plan.topology.is_one_host() || plan.movement != MovementBy::Initiator {
            return None;
        }
        const CELL: usize = size_of::<u64>();
        let parts = (Cut::cells(plan.ranks) - 1) * CELL;
        let bytes = plan.bytes.checked_next_multiple_of(CELL)?;
        // With at least one part in one cache line, the round ends that line. Else the outcome begins one.
        let shares_line = bytes.checked_add(Cut::LEAST_CELLS * CELL)? <= CACHE_LINE;
        let begin = if shares_line { parts } else { lines(parts)? };
        let row = lines(begin.checked_add(bytes)?.checked_add(CELL)?)?;
        let round = if shares_line { row - CELL } else { begin + bytes };
        Some(Announced { row, outcome: round - bytes, round })
    }
}

/// Control cells, the same on every host. Numbers above them are cells of the data region.
impl Plan {
    /// The tag of a contribution. Where rounds are closed by tags there is one for each of the last rounds, so
    /// that all know where to look; else one for each buffer.
    #[inline]
    pub(crate) fn tag(&self, rank: u32, number: u32) -> usize {
        let TagCells { first, by_rank, by_number } = self.tags;
        first + rank as usize * by_rank + number as usize * by_number
    }

    /// Control cells, and those of the data region that are used as cells.
    #[cfg(test)]
    pub(crate) fn cells(&self) -> usize {
        let has_cells = self.packs_tags() || self.agreement == AgreementBy::Relays || self.announced.is_some();
        self.control_cells() + if has_cells { self.data_bytes() / size_of::<u64>() } else { 0 }
    }

    /// Where rounds are closed by tags: the tags of a round's contributions.
    pub(crate) fn tag_of(round: u64) -> u32 {
        (round % u64::from(BUFFERS)) as u32
    }

    pub(crate) fn released(&self, rank: u32) -> usize {
        rank as usize * LINE + BUFFERS as usize
    }

    /// The newest round of a slot of which a reducer has handed its share to this host.
    pub(crate) fn told(&self, reducer: u32, round: u64) -> usize {
        self.released(reducer) + 1 + self.slot(round)
    }

    /// How many pieces the contribution in a buffer lacks.
    pub(crate) fn unfilled(&self, rank: u32, buffer: u32) -> usize {
        rank as usize * LINE + LINE / 2 + buffer as usize
    }

    fn slot_base(&self, round: u64) -> usize {
        self.ranks as usize * LINE + self.slot(round) * self.extents.slot_cells
    }

    /// Words that hold the cut of a round.
    pub(crate) fn words(&self) -> u32 {
        self.ranks.div_ceil(RANKS_PER_WORD)
    }

    /// Cells of a slot that must be zero before its round begins: words, ticket, claims.
    #[inline]
    pub(crate) fn home_cells(&self) -> usize {
        self.extents.home_cells
    }

    /// A cell of the program's slot of a round.
    pub(crate) fn program_cell(&self, round: u64, cell: usize) -> usize {
        self.slot_base(round) + cell
    }

    /// The cell in which a rank is given an input of a round by another one: behind small data that comes with it.
    pub(crate) fn input_cell(&self, round: u64, input: usize) -> usize {
        let level = self.inputs().level(input);
        let behind = level.and_then(|level| self.cell_behind(Buffer::Inbox(level), round));
        behind.unwrap_or_else(|| self.program_cell(round, input))
    }

    /// Rounds for which activations and arrivals of a round may still land after it: their cells are not used again
    /// before, and each of these rounds is counted apart.
    pub(crate) fn told_rounds(&self) -> u64 {
        (self.slots() - 1).min(TOLD_ROUNDS - 1)
    }

    /// The cells in which a rank gets inputs from others.
    pub(crate) fn inputs(&self) -> InputCells {
        InputCells::of(self.ranks)
    }

    /// Where a rank is told that another one has arrived for a round, if it counts the arrivals.
    pub(crate) fn arrived(&self, round: u64, rank: u32) -> usize {
        self.program_cell(round, self.inputs().count() + rank as usize)
    }

    pub(crate) fn word(&self, round: u64, index: u32) -> usize {
        self.slot_base(round) + index as usize
    }

    pub(crate) fn ticket(&self, round: u64) -> usize {
        self.slot_base(round) + self.extents.word_cells
    }

    pub(crate) fn claim(&self, round: u64, share: u64) -> usize {
        self.slot_base(round) + self.extents.word_cells + LINE + share as usize * LINE
    }

    pub(crate) fn done(&self, round: u64) -> usize {
        self.slot_base(round) + self.home_cells()
    }

    /// Where a provider runs the program: the round once everything of it has run.
    pub(crate) fn over(&self, round: u64) -> usize {
        self.done(round)
    }

    /// The round of a record: written last, it makes the record valid.
    pub(crate) fn record(&self, round: u64) -> usize {
        match self.announced {
            Some(announced) => self.control_cells() + (self.announced_row(round) + announced.round) / size_of::<u64>(),
            None => self.done(round) + LINE + self.record_cells() - 1,
        }
    }

    /// Whether the record of a round lies beside its outcome.
    pub(crate) fn announces_outcomes(&self) -> bool {
        self.announced.is_some()
    }

    /// The first cell of the cut in a record, given its round's cell; the others lie below it, each below the one before.
    pub(crate) fn recorded(&self, record: usize) -> usize {
        let between = self.announced.map_or(0, |announced| (announced.round - announced.outcome) / size_of::<u64>());
        record - between - 1
    }

    /// Cells for a record in a slot.
    fn record_cells(&self) -> usize {
        Cut::cells(self.ranks).next_multiple_of(LINE)
    }

    /// Cells of a control region.
    pub(crate) fn control_cells(&self) -> usize {
        self.ranks as usize * LINE + self.slots() as usize * self.extents.slot_cells
    }
}

/// Data bytes, the same on every host.
impl Plan {
    fn stride(&self) -> usize {
        lines(self.bytes).unwrap_or(usize::MAX)
    }

    fn partial_stride(&self) -> usize {
        lines(self.wide_bytes).unwrap_or(usize::MAX)
    }

    /// Where a rank's contribution to a round lies in the data region of another host than its own, if it was pushed
    /// there. Of synchronous rounds no rank reads any but the last two: a rank that pushes knows that all have arrived
    /// for the last, and so have reduced the one before.
    pub(crate) fn pushed(&self, rank: u32, buffer: u32, round: u64) -> usize {
        let row = match self.by_tags() {
            true if self.packs_tags() => Self::tag_of(round),
            true => (round % ROWS) as u32,
            false => buffer,
        };
        self.contribution(rank, row)
    }

    /// Where a rank's buffer lies in the data region of its own host.
    pub(crate) fn contribution(&self, rank: u32, buffer: u32) -> usize {
        let row = if self.pushes() { rank } else { self.topology.index_on_host(rank) };
        (row * BUFFERS + buffer) as usize * self.stride()
    }

    /// Where the contributions of a cut lie, each with its rank.
    pub(crate) fn contributions<'a>(&'a self, cut: &'a Cut) -> impl Iterator<Item = (u32, usize)> + 'a {
        cut.contributions().map(|entry| (entry.rank, self.contribution(entry.rank, entry.buffer)))
    }

    fn contribution_rows(&self) -> u32 {
        if self.pushes() { self.ranks } else { self.topology.widest() }
    }

    /// Where contributions end in a data region; nothing if they cannot be addressed.
    pub(super) fn checked_contributions_end(&self) -> Option<usize> {
        lines(self.bytes)?.checked_mul((self.contribution_rows() * BUFFERS) as usize)
    }

    fn outcome_slots(&self) -> u64 {
        if self.has_memory() {
            return u64::from(self.register_rows()) * self.register_slots();
        }
        match self.movement {
            MovementBy::Everyone => u64::from(self.topology.widest()),
            // The reducers', and one for each rank's fallback reads.
            MovementBy::Reducer | MovementBy::Reducers => 1 + u64::from(self.topology.widest()),
            _ => self.depth,
        }
    }

    fn partials(&self) -> u32 {
        self.program.as_ref().map_or(0, |program| program.partials())
    }

    /// Where a partial sum of a round lies in the data region of this rank's host.
    pub(crate) fn partial(&self, round: u64, number: u32) -> usize {
        let slot = (round - 1) % self.depth;
        let row = slot * u64::from(self.partials()) + u64::from(number);
        let before = u64::from(self.contribution_rows() * BUFFERS) + self.depth;
        before as usize * self.stride() + row as usize * self.partial_stride()
    }

    /// Where the outcome of a round lies in the data region of this rank's host.
    #[inline]
    pub(crate) fn outcome(&self, round: u64) -> usize {
        let slot = match self.movement {
            MovementBy::Everyone => u64::from(self.topology.index_on_host(self.me)),
            // A rank that has arrived for a round reads no earlier one, and reducers wait for the last writes of it.
            MovementBy::Reducer | MovementBy::Reducers => 0,
            MovementBy::Program if self.agreement == AgreementBy::Relays => return self.area(Buffer::Outcome, round),
            _ => {
                if let Some(announced) = self.announced {
                    return self.announced_row(round) + announced.outcome;
                }
                (round - 1) % self.depth
            }
        };
        ((self.contribution_rows() * BUFFERS) as usize + slot as usize) * self.stride()
    }

    /// Where the row of a round begins in which its outcome and its record lie. When a row is written, all ranks have
    /// released the round that it was used for before.
    fn announced_row(&self, round: u64) -> usize {
        let row = self.announced.map_or(0, |announced| announced.row);
        (self.contribution_rows() * BUFFERS) as usize * self.stride() + slot_of(round, self.depth) * row
    }

    /// Registers that a host keeps apart. Where all ranks average, theirs are always equal.
    fn register_rows(&self) -> u32 {
        if self.butterfly().is_some() { self.topology.widest() } else { 1 }
    }

    /// How many values of a register are kept at once. When a register is written in round *t*, all ranks have released
    /// round *t* - depth. So a rank may hold those that it had after the `depth` - 1 rounds since, and the newest of them
    /// is read for the one that is written.
    fn register_slots(&self) -> u64 {
        self.depth.max(2)
    }

    /// Where the value of a rank's register lies in the data region of its host that was written as number `count`; the
    /// first one has number 0.
    pub(crate) fn register(&self, rank: u32, count: u64) -> usize {
        let row = if self.butterfly().is_some() { self.topology.index_on_host(rank) } else { 0 };
        let slot = u64::from(row) * self.register_slots() + count % self.register_slots();
        ((self.contribution_rows() * BUFFERS) as usize + slot as usize) * self.stride()
    }

    /// Where the model that a rank begins with lies in the data region of its host. No other rank's does, unless all
    /// average: then all have one register.
    pub(crate) fn first_models(&self, rank: u32) -> impl Iterator<Item = usize> {
        let held = (self.absent == Absent::Hold).then(|| self.contribution(rank, FIRST_HELD));
        let mates = self.topology.ranks_of(self.host_of(rank));
        let rank = match self.fault(Fault::BeginWithAnother) {
            true => mates[(self.topology.index_on_host(rank) as usize + 1) % mates.len()],
            false => rank,
        };
        [self.register(rank, 0)].into_iter().chain(held)
    }

    /// Where this rank puts a segment of a group that has no member on its host, before it sends it.
    pub(crate) fn transit(&self) -> usize {
        let before = (self.contribution_rows() * BUFFERS) as usize + self.outcome_slots() as usize;
        before * self.stride()
            + self.topology.index_on_host(self.me) as usize * self.transit_bytes().unwrap_or(usize::MAX)
    }

    fn transit_bytes(&self) -> Option<usize> {
        if self.butterfly().is_some() && self.topology.has_elsewhere() { lines(self.staging_row()) } else { Some(0) }
    }

    /// Where an outcome lies that this rank made by a fallback read.
    pub(crate) fn fallback_outcome(&self) -> usize {
        let slot = 1 + self.topology.index_on_host(self.me);
        (self.contribution_rows() * BUFFERS + slot) as usize * self.stride()
    }

    /// Bytes for the shares of a round that a reducer receives, however many reducers there are; nothing if they
    /// cannot be addressed.
    fn receiving(&self) -> Option<usize> {
        if self.movement != MovementBy::Reducers {
            return Some(0);
        }
        let rounding = self.topology.hosts() as usize * LINE * size_of::<u64>();
        lines(self.bytes.checked_add(rounding)?)?.checked_mul(self.topology.widest() as usize)
    }

    /// Where a share lies in the data region of its reducer's host that was received, in a row, from a rank on the
    /// host of reducer `from`, of `reducers`.
    pub(crate) fn received(&self, rank: u32, row: u64, (from, reducers): (usize, usize)) -> usize {
        let place = from * self.topology.widest() as usize + self.topology.index_on_host(rank) as usize;
        let before = (self.contribution_rows() * BUFFERS) as usize + self.outcome_slots() as usize;
        let area = before * self.stride() + row as usize * self.receiving().unwrap_or(usize::MAX);
        area + place * self.share_stride(reducers)
    }

    /// Bytes of a data region. More than can be addressed was refused when the plan was made.
    pub(crate) fn data_bytes(&self) -> usize {
        self.checked_data_bytes().unwrap_or(usize::MAX)
    }

    /// Bytes of a data region, or nothing when they cannot be addressed.
    pub(crate) fn checked_data_bytes(&self) -> Option<usize> {
        let sized = |bytes: usize, rows: u64| lines(bytes)?.checked_mul(usize::try_from(rows).ok()?);
        let contributions = u64::from(self.contribution_rows() * BUFFERS);
        if self.agreement == AgreementBy::Relays {
            let total = self.checked_contributions_end()?.checked_add(self.relayed_bytes()?)?;
            return Some(total).filter(|&total| total <= isize::MAX as usize);
        }
        if self.movement == MovementBy::Initiator && self.topology.has_elsewhere() {
            let rows = self.announced?.row.checked_mul(usize::try_from(self.depth).ok()?)?;
            let total = self.checked_contributions_end()?.checked_add(rows)?;
            return Some(total).filter(|&total| total <= isize::MAX as usize);
        }
        let rows = contributions + self.outcome_slots();
        let partials = self.depth.checked_mul(u64::from(self.partials()))?;
        let total = sized(self.bytes, rows)?.checked_add(sized(self.wide_bytes, partials)?)?;
        let total = total.checked_add(self.receiving()?.checked_mul(RECEIVING_ROWS as usize)?)?;
        let total = total.checked_add(self.transit_bytes()?.checked_mul(self.topology.widest() as usize)?)?;
        Some(total).filter(|&total| total <= isize::MAX as usize)
    }
}
