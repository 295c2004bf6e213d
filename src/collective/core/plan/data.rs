//! The data region: bytes, laid out alike on every host.
//!
//! ```text
//! contributions  three buffers for each rank of the host, or for each rank of the world where others push theirs
//! outcomes       one for each round that may be unreleased; or registers, where ranks have some; or outcomes with records
//! partial sums   of a program that ranks run in shared memory
//! received       shares that a reducer receives
//! transit        segments on their way to other hosts
//! areas          the data that ranks relay (see `areas`)
//! ```

use super::super::cut::Cut;
use super::areas::{Areas, OUTCOME};
use super::rows::{Cursor, LINE, Rows, lines, slot_of};
use super::{BUFFERS, FIRST_HELD, Plan, RECEIVING_ROWS};
use crate::fabric::CACHE_LINE;
use crate::fault::Fault;
use crate::rule::{Absent, AgreementBy, MovementBy};

const CELL: usize = size_of::<u64>();

/// Rows for the pushed data of a synchronous rank: for the round that is being reduced, and for the next one, for which
/// a rank that has finished that round already pushes.
const ROWS: u32 = 2;

/// The location of an outcome and the record of its cut, which lie together where one rank reduces a round and
/// announces it to other hosts: a network writes both at once. A row holds the cut from the outcome downwards, and the
/// round right after the outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    rows: Rows,
    /// Bytes from the beginning of a row to the outcome and to the round.
    outcome: usize,
    round: usize,
}

impl Announced {
    fn of(plan: &Plan, cursor: &mut Cursor) -> Option<Self> {
        let parts = (Cut::cells(plan.ranks) - 1) * CELL;
        let bytes = plan.bytes.checked_next_multiple_of(CELL)?;
        // If at least one entry fits into one cache line with the data, the round ends that line. Otherwise the outcome
        // begins a line.
        let shares_line = bytes.checked_add(Cut::LEAST_CELLS * CELL)? <= CACHE_LINE;
        let begin = if shares_line { parts } else { lines(parts)? };
        let row = lines(begin.checked_add(bytes)?.checked_add(CELL)?)?;
        let round = if shares_line { row - CELL } else { begin + bytes };
        Some(Announced { rows: cursor.rows(Some(row), plan.depth), outcome: round - bytes, round })
    }

    /// Returns the offset of a slot's outcome.
    fn outcome(&self, slot: usize) -> usize {
        self.rows.row(slot) + self.outcome
    }

    /// Returns the offset of a slot's round.
    pub(super) fn round(&self, slot: usize) -> usize {
        self.rows.row(slot) + self.round
    }

    /// Returns the bytes between the cut and the round.
    pub(super) fn between(&self) -> usize {
        self.round - self.outcome
    }
}

/// Offsets in the data region, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct DataMap {
    pub(super) contributions: Rows,
    /// Outcomes, or the values of registers.
    outcomes: Rows,
    pub(super) announced: Option<Announced>,
    partials: Rows,
    received: Rows,
    transit: Rows,
    pub(super) areas: Option<Areas>,
    /// The bytes of the data region; `None` if they cannot be addressed.
    bytes: Option<usize>,
}

impl DataMap {
    pub(super) fn of(plan: &Plan) -> Self {
        let (mut cursor, stride) = (Cursor(Some(0)), lines(plan.bytes));
        let contributions = cursor.rows(stride, u64::from(plan.contribution_rows() * BUFFERS));
        let mut map = DataMap { contributions, ..DataMap::default() };
        if plan.agreement == AgreementBy::Relays {
            map.areas = cursor.0.and_then(|first| Areas::of(plan, first));
            cursor.0 = map.areas.as_ref().map(Areas::end);
        } else if plan.movement == MovementBy::Initiator && plan.topology.has_elsewhere() {
            map.announced = Announced::of(plan, &mut cursor);
            cursor.0 = cursor.0.filter(|_| map.announced.is_some());
        } else {
            map.outcomes = cursor.rows(stride, plan.outcome_slots());
            let partials = plan.depth.saturating_mul(u64::from(plan.partials()));
            map.partials = cursor.rows(lines(plan.wide_bytes), partials);
            map.received = cursor.rows(plan.received_bytes(), RECEIVING_ROWS);
            map.transit = cursor.rows(plan.transit_bytes(), u64::from(plan.topology.widest()));
        }
        map.bytes = cursor.0.filter(|&bytes| bytes <= isize::MAX as usize);
        map
    }
}

/// The number and size of each kind of row.
impl Plan {
    fn contribution_rows(&self) -> u32 {
        if self.pushes() { self.ranks } else { self.topology.widest() }
    }

    fn outcome_slots(&self) -> u64 {
        if self.has_memory() {
            return u64::from(self.register_rows()) * self.register_slots();
        }
        match self.movement {
            MovementBy::Everyone => u64::from(self.topology.widest()),
            // One for the reducers, and one for each rank's fallback reads.
            MovementBy::Reducer | MovementBy::Reducers => 1 + u64::from(self.topology.widest()),
            _ => self.depth,
        }
    }

    /// Returns the number of rows that a rank's pushed data uses in turn.
    pub(super) fn pushed_rows(&self) -> u32 {
        if self.by_tags() && !self.packs_tags() { ROWS } else { BUFFERS }
    }

    fn partials(&self) -> u32 {
        self.program.as_ref().map_or(0, |program| program.partials())
    }

    /// Returns the number of registers that a host keeps apart. Where all ranks average, their registers are always
    /// equal.
    fn register_rows(&self) -> u32 {
        if self.butterfly().is_some() { self.topology.widest() } else { 1 }
    }

    /// Returns how many values of a register are kept at once. When a register is written in round *t*, all ranks have
    /// released round *t* - depth. So a rank may hold the values after each of the `depth` - 1 rounds since, and the
    /// newest of them is read to compute the one that is written.
    pub(super) fn register_slots(&self) -> u64 {
        self.depth.max(2)
    }

    fn transit_bytes(&self) -> Option<usize> {
        if self.butterfly().is_some() && self.topology.has_elsewhere() { lines(self.staging_row()) } else { Some(0) }
    }

    /// Returns the bytes for the shares of a round that a reducer receives, for any number of reducers; `None` if they
    /// cannot be addressed.
    fn received_bytes(&self) -> Option<usize> {
        if self.movement != MovementBy::Reducers {
            return Some(0);
        }
        let rounding = self.topology.hosts() as usize * LINE * CELL;
        lines(self.bytes.checked_add(rounding)?)?.checked_mul(self.topology.widest() as usize)
    }

    /// Returns the bytes of a data region. A size that cannot be addressed was refused when the plan was made.
    pub(crate) fn data_bytes(&self) -> usize {
        self.checked_data_bytes().unwrap_or(usize::MAX)
    }

    /// Returns the bytes of a data region, or `None` if they cannot be addressed.
    pub(crate) fn checked_data_bytes(&self) -> Option<usize> {
        self.data.bytes
    }

    /// Returns whether the record of a round lies beside its outcome.
    pub(crate) fn announces_outcomes(&self) -> bool {
        self.data.announced.is_some()
    }

    /// Returns the number of control cells, plus the cells of the data region if it is used as cells.
    #[cfg(test)]
    pub(crate) fn cells(&self) -> usize {
        let has_cells = self.packs_tags() || self.agreement == AgreementBy::Relays || self.announces_outcomes();
        self.control_cells() + if has_cells { self.data_bytes() / CELL } else { 0 }
    }

    /// Returns the cell of the data region at an offset.
    pub(crate) fn cell_of_data(&self, offset: usize) -> usize {
        self.control_cells() + offset / CELL
    }
}

/// Offsets in the data region of a host.
impl Plan {
    /// Returns the offset of a rank's buffer in the data region of its own host.
    pub(crate) fn contribution(&self, rank: u32, buffer: u32) -> usize {
        let row = if self.pushes() { rank } else { self.topology.index_on_host(rank) };
        self.data.contributions.row((row * BUFFERS + buffer) as usize)
    }

    /// Returns the ranks and the offsets of the contributions of a cut.
    pub(crate) fn contributions<'a>(&'a self, cut: &'a Cut) -> impl Iterator<Item = (u32, usize)> + 'a {
        cut.contributions().map(|entry| (entry.rank, self.contribution(entry.rank, entry.buffer)))
    }

    /// Returns the offset of a rank's contribution to a round in the data region of another host, if the rank pushed it
    /// there. Ranks read only the last two synchronous rounds: a rank that pushes knows that all ranks have arrived for
    /// the last round, and so have reduced the one before.
    pub(crate) fn pushed(&self, rank: u32, buffer: u32, round: u64) -> usize {
        let row = if self.by_tags() { (round % u64::from(self.pushed_rows())) as u32 } else { buffer };
        self.contribution(rank, row)
    }

    /// Returns the offset of a round's outcome in the data region of this rank's host.
    #[inline]
    pub(crate) fn outcome(&self, round: u64) -> usize {
        let slot = match self.movement {
            MovementBy::Everyone => self.topology.index_on_host(self.me) as usize,
            // A rank that has arrived for a round reads no earlier one, and reducers wait until the last writes of it
            // have landed.
            MovementBy::Reducer | MovementBy::Reducers => 0,
            MovementBy::Program if self.agreement == AgreementBy::Relays => return self.area(OUTCOME, round),
            // When a slot is written, all ranks have released the round that used it before.
            _ => slot_of(round, self.depth),
        };
        match self.data.announced {
            Some(announced) => announced.outcome(slot),
            None => self.data.outcomes.row(slot),
        }
    }

    /// Returns the offset of an outcome that this rank computed by a fallback read.
    pub(crate) fn fallback_outcome(&self) -> usize {
        self.data.outcomes.row(1 + self.topology.index_on_host(self.me) as usize)
    }

    /// Returns the offset of a partial sum of a round in the data region of this rank's host.
    pub(crate) fn partial(&self, round: u64, number: u32) -> usize {
        self.data.partials.row(slot_of(round, self.depth) * self.partials() as usize + number as usize)
    }

    /// Returns the offset of the value that was written as number `count` to a rank's register, in the data region of
    /// the rank's host. The first value has number 0.
    pub(crate) fn register(&self, rank: u32, count: u64) -> usize {
        let row = if self.butterfly().is_some() { self.topology.index_on_host(rank) } else { 0 };
        self.data.outcomes.row((u64::from(row) * self.register_slots() + count % self.register_slots()) as usize)
    }

    /// Returns the offsets of the model that a rank begins with, in the data region of its host. No other rank's model
    /// lies there, unless all ranks average: then all share one register.
    pub(crate) fn first_models(&self, rank: u32) -> impl Iterator<Item = usize> {
        let held = (self.absent == Absent::Hold).then(|| self.contribution(rank, FIRST_HELD));
        let mates = self.topology.ranks_of(self.host_of(rank));
        let rank = match self.fault(Fault::BeginWithAnother) {
            true => mates[(self.topology.index_on_host(rank) as usize + 1) % mates.len()],
            false => rank,
        };
        [self.register(rank, 0)].into_iter().chain(held)
    }

    /// Returns the offset at which this rank puts a segment of a group without a member on its host, before it sends
    /// it.
    pub(crate) fn transit(&self) -> usize {
        self.data.transit.row(self.topology.index_on_host(self.me) as usize)
    }

    /// Returns the offset of a received share in the data region of its reducer's host. The share is in `row`, and a
    /// rank on the host of reducer `from`, of `reducers`, sent it.
    pub(crate) fn received(&self, rank: u32, row: u64, (from, reducers): (usize, usize)) -> usize {
        let place = from * self.topology.widest() as usize + self.topology.index_on_host(rank) as usize;
        self.data.received.row(row as usize) + place * self.share_stride(reducers)
    }
}
