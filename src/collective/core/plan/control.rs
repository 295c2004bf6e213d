//! The control region: 64-bit cells, laid out alike on every host.
//!
//! ```text
//! rank lines     a line for each rank: tags, the newest round released, rounds reported, pieces missing, and of the
//!                  lowest rank of a host that relays, the newest round closed and the newest one landed
//! slots          one for each round of the ring:
//!                  words and tags      words | ticket | claims | done | record
//!                  a program's gates   the cells of its layout
//!                  relays              inputs | reports
//!                  runner              as words; only done and the record are used
//! ```
//!
//! Numbers above the last cell are cells of the data region, which follow.

use super::super::cut::Cut;
use super::rows::{LINE, Rows, slot_of};
use super::{BUFFERS, Plan, RANKS_PER_WORD, RELAYED_ROUNDS, SIGNALLED_ROUNDS};
use crate::rule::AgreementBy;
use crate::trigger::{Area, Buffer, Chunk, InputCells};

const CELL: usize = size_of::<u64>();

/// The cells of a rank, counted from the beginning of its line.
mod rank_line {
    use super::{BUFFERS, LINE};

    pub(super) const TAGS: usize = 0;
    pub(super) const RELEASED: usize = BUFFERS as usize;
    pub(super) const REPORTED: usize = RELEASED + 1;
    pub(super) const UNFILLED: usize = LINE / 2;
    pub(super) const CLOSED: usize = UNFILLED + BUFFERS as usize;
    pub(super) const LANDED: usize = CLOSED + 1;
    /// Slots of which reducers can report.
    pub(super) const REPORTED_SLOTS: usize = UNFILLED - REPORTED;
}

/// Numbers that follow from the terms. Each poll of a cell needs some of them, and computing them takes divisions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    slots: u64,
    segments: u64,
    shares: u64,
}

impl Counts {
    pub(super) fn of(plan: &Plan) -> Self {
        let segments = plan.count_segments();
        // Activations go out before the leaf closes, and its closing shows that areas may be written.
        let least = if plan.agreement == AgreementBy::Relays { RELAYED_ROUNDS + 1 } else { 1 };
        Counts {
            slots: least.max(plan.depth + 1),
            segments,
            shares: Plan::count_shares(segments.saturating_mul(plan.most_groups()), plan.ranks),
        }
    }
}

/// The locations of cells.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ControlMap {
    /// The slots, in cells.
    slots: Rows,
    slot: SlotMap,
    tags: TagCells,
    /// Where others give inputs, if ranks relay.
    inputs: Option<InputCells>,
}

/// The locations of cells in a slot, counted in cells from its beginning, where its words lie.
#[derive(Clone, Copy, Debug, Default)]
struct SlotMap {
    ticket: usize,
    claims: usize,
    /// The count of landed segments. Everything before it must be zero before a round begins.
    done: usize,
    /// The round of the record.
    record: usize,
    /// Where the arrivals of each host are counted, if ranks relay.
    reports: usize,
}

impl SlotMap {
    fn of(plan: &Plan) -> Self {
        let ticket = (plan.words() as usize).next_multiple_of(LINE);
        let claims = ticket + LINE;
        let done = claims + plan.shares() as usize * LINE;
        let record = done + LINE + Cut::cells(plan.ranks).next_multiple_of(LINE) - 1;
        SlotMap { ticket, claims, done, record, reports: plan.inputs().count() }
    }

    fn cells(&self, plan: &Plan) -> usize {
        match (&plan.program, plan.agreement) {
            (Some(program), _) => program.cells(),
            (None, AgreementBy::Relays) => (self.reports + plan.topology.hosts() as usize).next_multiple_of(LINE),
            _ => self.record + 1,
        }
    }
}

/// The tags of all ranks: a row of cells for each rank.
#[derive(Clone, Copy, Debug, Default)]
struct TagCells {
    first: usize,
    by_rank: usize,
    by_number: usize,
}

impl TagCells {
    /// Locates the tags; the control region has `control` cells.
    fn of(plan: &Plan, control: usize) -> Self {
        let Some(before) = plan.packed_tag() else {
            return TagCells { first: rank_line::TAGS, by_rank: LINE, by_number: 1 };
        };
        // Pushed data has a row of its own for each rank.
        let by_number = plan.data.contributions.stride() / CELL;
        TagCells { first: control + before / CELL, by_rank: BUFFERS as usize * by_number, by_number }
    }
}

impl ControlMap {
    /// Returns the map of cells. The map of data must exist before, because some cells lie in the data region.
    pub(super) fn of(plan: &Plan) -> Self {
        debug_assert!(
            !plan.elects_reducers() || rank_line::REPORTED_SLOTS as u64 >= plan.slots(),
            "what reducers report would lie among the pieces"
        );
        let slot = SlotMap::of(plan);
        let slots = Rows::new(plan.ranks as usize * LINE, slot.cells(plan), plan.slots());
        let inputs = (plan.agreement == AgreementBy::Relays).then(|| plan.inputs());
        ControlMap { slots, slot, tags: TagCells::of(plan, slots.end()), inputs }
    }
}

/// Numbers of slots, segments and other parts.
impl Plan {
    /// Returns the number of control slots: one more than `depth`, because the initiator of round r prepares the slot
    /// of r + 1, and all ranks must have released what that slot held before.
    #[inline]
    pub(crate) fn slots(&self) -> u64 {
        self.counts.slots
    }

    #[inline]
    pub(crate) fn segments(&self) -> u64 {
        self.counts.segments
    }

    /// Returns the number of work-stealing shares of a round.
    #[inline]
    pub(crate) fn shares(&self) -> u64 {
        self.counts.shares
    }

    /// Returns the control slot of a round. Rounds count from 1.
    pub(crate) fn slot(&self, round: u64) -> usize {
        slot_of(round, self.slots())
    }

    /// Returns how often the slot of `round` was used when `round` is over, `round` included.
    pub(crate) fn uses(&self, round: u64) -> u64 {
        (round - 1) / self.slots() + 1
    }

    /// Returns the number of words that hold the cut of a round.
    pub(crate) fn words(&self) -> u32 {
        self.ranks.div_ceil(RANKS_PER_WORD)
    }

    /// Returns the cells in which a host that relays gets inputs from others.
    pub(crate) fn inputs(&self) -> InputCells {
        InputCells::of(self.topology.hosts(), self.radix)
    }

    /// Returns the number of later rounds during which a round's activations may still land. Their cells
    /// are not reused before, and each of these rounds is counted separately.
    pub(crate) fn signalled_rounds(&self) -> u64 {
        (self.slots() - 1).min(SIGNALLED_ROUNDS - 1)
    }

    /// Returns the number of cells in a control region.
    pub(crate) fn control_cells(&self) -> usize {
        self.control.slots.end()
    }
}

/// The cells of a rank.
impl Plan {
    /// Returns the cell of a contribution's tag. Where rounds are closed by tags there is one tag for each of the last
    /// rounds, so that all ranks know which one to read; otherwise one for each buffer.
    #[inline]
    pub(crate) fn tag(&self, rank: u32, number: u32) -> usize {
        let TagCells { first, by_rank, by_number } = self.control.tags;
        first + rank as usize * by_rank + number as usize * by_number
    }

    /// Where rounds are closed by tags: returns the number of the tags of a round's contributions.
    pub(crate) fn tag_of(round: u64) -> u32 {
        (round % u64::from(BUFFERS)) as u32
    }

    /// Returns the cell of the newest round that a rank has released.
    pub(crate) fn released(&self, rank: u32) -> usize {
        rank as usize * LINE + rank_line::RELEASED
    }

    /// Where ranks relay: returns the cell of the newest round that the agent of this host has closed.
    pub(crate) fn closed(&self) -> usize {
        self.agent() as usize * LINE + rank_line::CLOSED
    }

    /// Where ranks relay: returns the cell of the newest round whose outcome is on this host.
    pub(crate) fn landed(&self) -> usize {
        self.agent() as usize * LINE + rank_line::LANDED
    }

    /// Returns the cell of the newest round of a slot for which a reducer has handed its share to this host.
    pub(crate) fn reported(&self, reducer: u32, round: u64) -> usize {
        reducer as usize * LINE + rank_line::REPORTED + self.slot(round)
    }

    /// Returns the cell of the number of pieces that the contribution in a buffer lacks.
    pub(crate) fn unfilled(&self, rank: u32, buffer: u32) -> usize {
        rank as usize * LINE + rank_line::UNFILLED + buffer as usize
    }
}

/// The cells of a round's slot.
impl Plan {
    #[inline]
    fn in_slot(&self, round: u64, cell: usize) -> usize {
        self.control.slots.row(self.slot(round)) + cell
    }

    pub(crate) fn word(&self, round: u64, index: u32) -> usize {
        self.in_slot(round, index as usize)
    }

    pub(crate) fn ticket(&self, round: u64) -> usize {
        self.in_slot(round, self.control.slot.ticket)
    }

    pub(crate) fn claim(&self, round: u64, share: u64) -> usize {
        self.in_slot(round, self.control.slot.claims + share as usize * LINE)
    }

    /// Returns the number of cells that must be zero before a slot's round begins: words, ticket, claims.
    #[inline]
    pub(crate) fn home_cells(&self) -> usize {
        self.control.slot.done
    }

    pub(crate) fn done(&self, round: u64) -> usize {
        self.in_slot(round, self.control.slot.done)
    }

    /// Where a runner runs the program: returns the cell that holds the round once all its operations have run.
    pub(crate) fn over(&self, round: u64) -> usize {
        self.done(round)
    }

    /// Returns the cell of a record's round: it is written last and makes the record valid.
    pub(crate) fn record(&self, round: u64) -> usize {
        match self.data.announced {
            Some(announced) => self.cell_of_data(announced.round(slot_of(round, self.depth))),
            None => self.in_slot(round, self.control.slot.record),
        }
    }

    /// Returns the first cell of the cut in a record, given the cell of its round. The other cells lie below it, each
    /// below the one before.
    pub(crate) fn recorded(&self, record: usize) -> usize {
        record - self.data.announced.map_or(0, |announced| announced.between() / CELL) - 1
    }

    /// Returns a cell of the program's slot of a round.
    pub(crate) fn program_cell(&self, round: u64, cell: usize) -> usize {
        self.in_slot(round, cell)
    }

    /// Returns the cell in which another rank gives this rank an input of a round: after small data that arrives with
    /// it.
    pub(crate) fn input_cell(&self, round: u64, input: usize) -> usize {
        let inbox = self.control.inputs.and_then(|inputs| inputs.inbox(input));
        let area = |(level, index)| Area { buffer: Buffer::Inbox(level), index, chunk: Chunk::WHOLE };
        let behind = inbox.and_then(|inbox| self.cell_behind(area(inbox), round));
        behind.unwrap_or_else(|| self.program_cell(round, input))
    }

    /// Returns the cell in which a host that counts arrivals is told how many there are on another one.
    pub(crate) fn report(&self, round: u64, host: u32) -> usize {
        self.in_slot(round, self.control.slot.reports + host as usize)
    }
}
