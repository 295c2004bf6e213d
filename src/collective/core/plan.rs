//! What all ranks of a collective agreed on, and where each thing lies because of it.
//!
//! Every *host* (a set of ranks that can load and store each other's memory) has one control
//! region of 64-bit cells and one data region of bytes, both laid out alike everywhere; so an
//! address is a host and an offset, and nothing has to be exchanged but the regions themselves.

use std::sync::Arc;

use super::Time;
use super::cut::Cut;
use super::machine::Cells;
use super::tag::Tag;
use super::topology::Topology;
use super::word::RANKS_PER_WORD;
use crate::fault::Fault;
use crate::rank_set::RankSet;
pub(crate) use crate::rule::Path;
use crate::rule::{Absent, Fire, Grace, Schedule};
use crate::trigger::{Layout, Request, Start, span};

/// Buffers of a rank: one being moved, one carried, one being written.
pub(crate) const BUFFERS: u32 = 3;

/// Rows for the pushed data of a synchronous rank: of the round that is reduced, and of the one that those push
/// for who are done with it.
const ROWS: u64 = 2;

/// Rows for the shares that homes receive: those of two rounds in turn, and one that has rested for when shares
/// change.
pub(super) const RECEIVING_ROWS: u64 = 3;

/// Cells in two cache lines: adjacent-line prefetch makes pairs of lines travel together.
const LINE: usize = 16;

/// Most work-stealing shares of a round. More would only cost memory: a share is a claim counter.
const MAX_SHARES: u64 = 32;

/// Bytes rounded up to whole lines, one at least; nothing if they cannot be addressed.
fn lines(bytes: usize) -> Option<usize> {
    let line = LINE * size_of::<u64>();
    Some(bytes.checked_next_multiple_of(line)?.max(line))
}

/// The tables of a collective whose ranks share memory.
pub(crate) fn program(
    ranks: u32,
    (fire, grace): (Fire, Grace),
    schedule: Schedule,
    (bytes, chunk): (usize, usize),
    depth: u64,
) -> Arc<Layout> {
    let start = Start::of(fire, grace, ranks);
    let (bytes, chunk) = (bytes as u64, chunk as u64);
    Arc::new(Layout::new(&Request { ranks, start, schedule, bytes, chunk, slots: depth }))
}

/// The agreed form of a collective, as one rank sees it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) ranks: u32,
    pub(crate) me: u32,
    pub(crate) topology: Topology,
    pub(crate) fire: Fire,
    pub(crate) grace: Grace,
    pub(crate) absent: Absent,
    /// Whether contributions have weights.
    pub(crate) weighted: bool,
    /// Rounds that may be unreleased anywhere.
    pub(crate) depth: u64,
    pub(crate) path: Path,
    /// Bytes of a contribution.
    pub(crate) bytes: usize,
    /// Bytes of a partial sum of contributions.
    pub(crate) wide_bytes: usize,
    /// Bytes of a segment, the last one excepted; a multiple of the element size.
    pub(crate) segment: usize,
    /// Segments of a piece.
    pub(crate) run: u64,
    /// Ranks worth waking to move a round.
    pub(crate) helpers: u32,
    /// How long the homes of a round are waited for at first.
    pub(crate) pull_after: Time,
    /// The tables, on the path that has some.
    pub(crate) program: Option<Arc<Layout>>,
    pub(crate) fault: Option<Fault>,
}

#[cfg(test)]
impl Plan {
    /// A small world of ranks on these hosts, with nothing but the ordinary; tests change what they are about.
    pub(crate) fn sample(me: u32, hosts: Vec<u32>, fire: Fire, path: Path) -> Self {
        let word = size_of::<u64>();
        Plan {
            ranks: hosts.len() as u32,
            me,
            topology: Topology::new(hosts),
            fire,
            grace: Grace::NONE,
            absent: Absent::Carry,
            weighted: false,
            depth: 1,
            path,
            bytes: word,
            wide_bytes: word,
            segment: word,
            run: 1,
            helpers: 1,
            pull_after: 1,
            program: None,
            fault: None,
        }
    }
}

impl Plan {
    pub(crate) fn host(&self) -> u32 {
        self.topology.host_of(self.me)
    }

    pub(crate) fn host_of(&self, rank: u32) -> u32 {
        self.topology.host_of(rank)
    }

    /// Synchronous rounds need no word: a round is closed when every tag is there.
    pub(crate) fn by_tags(&self) -> bool {
        self.fire.is_synchronous() && !matches!(self.path, Path::Program | Path::Offloaded)
    }

    /// Words that hold the cut of a round.
    pub(crate) fn words(&self) -> u32 {
        self.ranks.div_ceil(RANKS_PER_WORD)
    }

    /// Control slots: one more than `depth`, because the initiator of round r readies the slot of
    /// r + 1, and what a slot held before must have been released by everybody.
    pub(crate) fn slots(&self) -> u64 {
        self.depth + 1
    }

    /// The control slot of a round. Rounds count from 1.
    pub(crate) fn slot(&self, round: u64) -> usize {
        ((round - 1) % self.slots()) as usize
    }

    /// How often the slot of `round` was used when `round` is over, `round` included.
    pub(crate) fn uses(&self, round: u64) -> u64 {
        (round - 1) / self.slots() + 1
    }

    pub(crate) fn segments(&self) -> u64 {
        match self.path {
            Path::Segmented => self.parts().max(1) as u64,
            _ => 1,
        }
    }

    /// Bytes of a contribution that segment `index` covers: offset and length.
    pub(crate) fn segment_span(&self, index: u64) -> (usize, usize) {
        match self.path {
            Path::Segmented => self.part_span(index as usize),
            _ => (0, self.bytes),
        }
    }

    /// Parts of a segment's size, in which a contribution is read by who makes a round for itself.
    pub(super) fn parts(&self) -> usize {
        self.bytes.div_ceil(self.segment)
    }

    /// Bytes of a contribution that such a part covers: offset and length.
    pub(crate) fn part_span(&self, index: usize) -> (usize, usize) {
        let from = index * self.segment;
        (from, self.segment.min(self.bytes - from))
    }

    /// Bytes between the shares of so many homes.
    fn home_stride(&self, homes: usize) -> usize {
        const LARGE: usize = 4096;
        let each = self.bytes.div_ceil(homes.max(1));
        each.next_multiple_of(if each < LARGE { size_of::<u64>() } else { LINE * size_of::<u64>() })
    }

    /// Bytes of a contribution that the share of one of so many homes covers: offset and length.
    pub(crate) fn home_span(&self, home: usize, homes: usize) -> (usize, usize) {
        let each = self.home_stride(homes);
        let from = self.bytes.min(home * each);
        (from, each.min(self.bytes - from))
    }

    /// Bytes of a contribution that a chunk of a program covers: offset and length.
    pub(crate) fn chunk_span(&self, chunk: (u32, u32)) -> (usize, usize) {
        let (from, len) = span(self.bytes as u64, chunk);
        (from as usize, len as usize)
    }

    /// Bytes between the pieces of a segment that are read from other hosts.
    pub(crate) fn staging_row(&self) -> usize {
        self.segment.min(self.bytes)
    }

    pub(crate) fn shares(&self) -> u64 {
        self.segments().min(u64::from(self.ranks)).min(MAX_SHARES)
    }

    /// Segments of share `index`, from and to.
    pub(crate) fn share(&self, index: u64) -> (u64, u64) {
        let bound = |i| i * self.segments() / self.shares();
        (bound(index), bound(index + 1))
    }

    /// The rank whose memory holds the words and claims of a round: fixed by the round and by who
    /// is active, so all agree without asking. Its processor takes no part.
    pub(crate) fn home(&self, round: u64, active: &RankSet) -> u32 {
        let start = (round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % u64::from(self.ranks);
        active.next(start as u32).or_else(|| active.next(0)).unwrap_or(self.me)
    }

    // Control cells, the same on every host.

    /// The tag of a contribution. Where rounds are closed by tags there is one for each of the last rounds, so
    /// that all know where to look; else one for each buffer.
    pub(crate) fn tag(&self, rank: u32, number: u32) -> usize {
        rank as usize * LINE + number as usize
    }

    /// Where rounds are closed by tags: the tags of a round's contributions.
    pub(super) fn tag_of(round: u64) -> u32 {
        (round % u64::from(BUFFERS)) as u32
    }

    pub(crate) fn released(&self, rank: u32) -> usize {
        rank as usize * LINE + BUFFERS as usize
    }

    /// The newest round of a slot of which a home has handed its share to this host.
    pub(super) fn told(&self, home: u32, round: u64) -> usize {
        self.released(home) + 1 + self.slot(round)
    }

    /// How many pieces the contribution in a buffer lacks.
    pub(crate) fn unfilled(&self, rank: u32, buffer: u32) -> usize {
        rank as usize * LINE + LINE / 2 + buffer as usize
    }

    fn slot_base(&self, round: u64) -> usize {
        self.ranks as usize * LINE + self.slot(round) * self.slot_cells()
    }

    fn word_cells(&self) -> usize {
        (self.words() as usize).next_multiple_of(LINE)
    }

    /// Cells of a slot that must be zero before its round begins: words, ticket, claims.
    pub(crate) fn home_cells(&self) -> usize {
        self.word_cells() + LINE + self.shares() as usize * LINE
    }

    fn slot_cells(&self) -> usize {
        if let Some(program) = &self.program {
            return program.cells();
        }
        self.home_cells() + LINE + Cut::cells(self.ranks).next_multiple_of(LINE)
    }

    /// A cell of the program's slot of a round.
    pub(crate) fn program_cell(&self, round: u64, cell: usize) -> usize {
        self.slot_base(round) + cell
    }

    pub(crate) fn word(&self, round: u64, index: u32) -> usize {
        self.slot_base(round) + index as usize
    }

    pub(crate) fn ticket(&self, round: u64) -> usize {
        self.slot_base(round) + self.word_cells()
    }

    pub(crate) fn claim(&self, round: u64, share: u64) -> usize {
        self.slot_base(round) + self.word_cells() + LINE + share as usize * LINE
    }

    pub(crate) fn done(&self, round: u64) -> usize {
        self.slot_base(round) + self.home_cells()
    }

    /// Where a provider runs the program: the round once everything of it has run.
    pub(crate) fn over(&self, round: u64) -> usize {
        self.done(round)
    }

    pub(crate) fn record(&self, round: u64) -> usize {
        self.done(round) + LINE
    }

    /// Cells of a control region.
    pub(crate) fn control_cells(&self) -> usize {
        self.ranks as usize * LINE + self.slots() as usize * self.slot_cells()
    }

    // Data bytes, the same on every host.

    fn stride(&self) -> usize {
        lines(self.bytes).unwrap_or(usize::MAX)
    }

    fn partial_stride(&self) -> usize {
        lines(self.wide_bytes).unwrap_or(usize::MAX)
    }

    /// Where a rank's contribution to a round lies in the data region of another host than its own, if it was pushed
    /// there. Of synchronous rounds nobody reads any but the last two: who pushes knows that all have arrived for
    /// the last, and so have reduced the one before.
    pub(super) fn pushed(&self, rank: u32, buffer: u32, round: u64) -> usize {
        self.contribution(rank, if self.by_tags() { (round % ROWS) as u32 } else { buffer })
    }

    /// Where a rank's buffer lies in the data region of its own host.
    pub(crate) fn contribution(&self, rank: u32, buffer: u32) -> usize {
        let row = if self.path.pushes() { rank } else { self.topology.index_on_host(rank) };
        (row * BUFFERS + buffer) as usize * self.stride()
    }

    fn contribution_rows(&self) -> u32 {
        if self.path.pushes() { self.ranks } else { self.topology.widest() }
    }

    fn outcome_slots(&self) -> u64 {
        match self.path {
            Path::Replicated => u64::from(self.topology.widest()),
            // The homes', and one for each rank that makes a round for itself.
            Path::Gathered | Path::Scattered => 1 + u64::from(self.topology.widest()),
            Path::Eager | Path::Segmented | Path::Program | Path::Offloaded => self.depth,
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
    pub(crate) fn outcome(&self, round: u64) -> usize {
        let slot = match self.path {
            Path::Replicated => u64::from(self.topology.index_on_host(self.me)),
            // Who has arrived for a round reads no earlier one, and homes wait for the last writes of it.
            Path::Gathered | Path::Scattered => 0,
            Path::Eager | Path::Segmented | Path::Program | Path::Offloaded => (round - 1) % self.depth,
        };
        ((self.contribution_rows() * BUFFERS) as usize + slot as usize) * self.stride()
    }

    /// Where an outcome lies that this rank made for itself.
    pub(crate) fn pulled_outcome(&self) -> usize {
        let slot = 1 + self.topology.index_on_host(self.me);
        (self.contribution_rows() * BUFFERS + slot) as usize * self.stride()
    }

    /// Bytes for the shares of a round that a home receives, however many homes there are; nothing if they
    /// cannot be addressed.
    fn receiving(&self) -> Option<usize> {
        if self.path != Path::Scattered {
            return Some(0);
        }
        let rounding = self.topology.hosts() as usize * LINE * size_of::<u64>();
        lines(self.bytes.checked_add(rounding)?)?.checked_mul(self.topology.widest() as usize)
    }

    /// Where a share lies in the data region of its home's host that was received, in a row, from a rank on the
    /// host of home `from`, of so many.
    pub(crate) fn received(&self, rank: u32, row: u64, (from, homes): (usize, usize)) -> usize {
        let place = from * self.topology.widest() as usize + self.topology.index_on_host(rank) as usize;
        let before = (self.contribution_rows() * BUFFERS) as usize + self.outcome_slots() as usize;
        let area = before * self.stride() + row as usize * self.receiving().unwrap_or(usize::MAX);
        area + place * self.home_stride(homes)
    }

    /// Bytes of a data region. More than can be addressed was refused when the plan was made.
    pub(crate) fn data_bytes(&self) -> usize {
        self.checked_data_bytes().unwrap_or(usize::MAX)
    }

    /// Bytes of a data region, or nothing when they cannot be addressed.
    pub(crate) fn checked_data_bytes(&self) -> Option<usize> {
        let sized = |bytes: usize, rows: u64| lines(bytes)?.checked_mul(usize::try_from(rows).ok()?);
        let rows = u64::from(self.contribution_rows() * BUFFERS) + self.outcome_slots();
        let partials = self.depth.checked_mul(u64::from(self.partials()))?;
        let total = sized(self.bytes, rows)?.checked_add(sized(self.wide_bytes, partials)?)?;
        let total = total.checked_add(self.receiving()?.checked_mul(RECEIVING_ROWS as usize)?)?;
        Some(total).filter(|&total| total <= isize::MAX as usize)
    }

    /// The weight of what is in a buffer, while that may not be written.
    pub(crate) fn weight(&self, rank: u32, buffer: u32, cells: &impl Cells) -> u16 {
        if self.weighted { Tag::from_cell(cells.load(self.tag(rank, buffer))).weight } else { 1 }
    }

    /// Operations that a rank has to do at once in an ordinary round. For more the queue grows, once.
    pub(super) fn usual_ops(&self) -> usize {
        let (hosts, ranks) = (self.topology.hosts() as usize, self.ranks as usize);
        20 + match self.path {
            Path::Replicated => hosts,
            // An initiator tells every other host the outcome, and then the cut.
            Path::Eager => 2 * hosts,
            // A home does so too, and another rank may read all contributions.
            Path::Gathered | Path::Scattered => 2 * hosts + ranks,
            Path::Segmented if hosts > 1 => 2 * hosts + 2 * ranks,
            Path::Segmented => 0,
            // What a worker does at once may go over all ranks.
            Path::Program | Path::Offloaded => 2 * ranks,
        }
    }

    pub(crate) fn fault(&self, fault: Fault) -> bool {
        fault.is(self.fault)
    }
}
