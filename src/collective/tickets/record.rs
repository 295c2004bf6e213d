//! The record of a group: its seats, its cut, and how many members have released it.
//!
//! Groups use the records of a ring in turn. A record's *turn* counts the groups that are over. Group g may use it when
//! the turn is g / records. The rank that releases the record last begins the next turn; then the group before is
//! *over*. An entry and a cut name their group, so what an earlier group left in a record is never taken for another
//! group's.
//!
//! ```text
//! 0  releases      members that have released the group
//! 1  turn          groups that have used the record and are over
//! 2  lender        group + 1, and a lender's rank + 1
//! 3  cut           group + 1, and the seats of the cut: the lender is visible before
//! 4  taken         segments of the data that members have begun to move, and requests that came too late
//! 5  moved         segments that are moved
//! 8  for each seat: iteration and weight, then group + 1, rank, buffer and whether the rank leaves
//! ```
//!
//! # Liveness
//! One record is enough for every arrival to end. A ticket of a later group exists only when the group before is full
//! or closed. Its members hold seats in no other group, and wait for no later group. So it ends by itself, and the next
//! one gets its record. More records let later groups overtake a slow one: 4 ceil(N / S) let each rank do so four
//! times.

use std::ops::Range;

use crate::collective::core::Cells;

const RELEASES: usize = 0;
const TURN: usize = 1;
const LENDER: usize = 2;
const CUT: usize = 3;
const TAKEN: usize = 4;
const MOVED: usize = 5;
const SEATS: usize = 8;
/// Cells of an entry.
const ENTRY: usize = 2;

const RANK_BITS: u32 = 21;
const BUFFER_SHIFT: u32 = RANK_BITS;
const LEAVING_SHIFT: u32 = BUFFER_SHIFT + 2;
/// The group fills the other 40 bits: there are fewer than 2^39 groups, because there are 2^40 tickets.
const GROUP_SHIFT: u32 = LEAVING_SHIFT + 1;
const WEIGHT_BITS: u32 = u16::BITS;
/// The first cell of an entry has the lower bits of the iteration and of the group. So a reader knows whether it
/// belongs to the second cell, which it may have read before.
const ITERATION_BITS: u32 = 24;
const ITERATION_MASK: u64 = ITERATIONS - 1;
/// An entry counts iterations modulo this.
pub(super) const ITERATIONS: u64 = 1 << ITERATION_BITS;

/// The most ranks that an entry can name. A cut has at most that number of seats.
pub(super) const MOST_RANKS: u32 = 1 << RANK_BITS;

/// Returns the number of cells in a record.
pub(super) fn cells(size: u32) -> usize {
    SEATS + size as usize * ENTRY
}

/// A member of a group, with its contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Member {
    pub(crate) rank: u32,
    /// The number of its buffer that holds the contribution: less than 4.
    pub(crate) buffer: u32,
    /// The number of its contributions before this one, modulo [`ITERATIONS`]. Where iterations weight models, the
    /// number of the newest member that took part in its last mean.
    pub(crate) iteration: u64,
    pub(crate) weight: u16,
    /// Whether this arrival is its last one, which brings no data.
    pub(crate) leaving: bool,
}

impl GroupCut {
    /// Returns the members that bring data, in the order of reduction.
    pub(crate) fn contributors(&self) -> impl Iterator<Item = &Member> + Clone {
        self.members.iter().filter(|member| !member.leaving)
    }
}

impl Member {
    fn encode(self, group: u64) -> [u64; ENTRY] {
        let Member { rank, buffer, iteration, weight, leaving } = self;
        debug_assert!(buffer < 4);
        let named = u64::from(rank) | u64::from(buffer) << BUFFER_SHIFT | u64::from(leaving) << LEAVING_SHIFT;
        let brought = u64::from(weight) | (iteration & ITERATION_MASK) << WEIGHT_BITS;
        [brought | (group + 1) << (WEIGHT_BITS + ITERATION_BITS), tagged(group, named)]
    }

    fn decode([brought, named]: [u64; ENTRY]) -> Self {
        Member {
            rank: (named & u64::from(MOST_RANKS - 1)) as u32,
            buffer: (named >> BUFFER_SHIFT & 3) as u32,
            iteration: brought >> WEIGHT_BITS & ITERATION_MASK,
            weight: brought as u16,
            leaving: named >> LEAVING_SHIFT & 1 == 1,
        }
    }
}

/// Returns a value that names its group. No group's value is zero.
fn tagged(group: u64, value: u64) -> u64 {
    (group + 1) << GROUP_SHIFT | value
}

/// Returns the value of a cell if the cell names this group.
fn of_group(group: u64, value: u64) -> Option<u64> {
    (value >> GROUP_SHIFT == group + 1).then_some(value & ((1 << GROUP_SHIFT) - 1))
}

/// A group that has formed: the same for all its members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct GroupCut {
    pub(crate) group: u64,
    /// The members in the order of reduction: ascending by rank.
    pub(crate) members: Vec<Member>,
    /// A computing rank whose register takes part.
    pub(crate) lender: Option<u32>,
}

/// The record of a group: its location, and its turn. A rank or a number of seats that does not exist was written by a
/// rank where it must not, and is ignored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Its first cell.
    first: usize,
    group: u64,
    /// The number of groups that use the record before.
    turn: u64,
    /// The number of ranks in the world.
    ranks: u32,
    /// The most seats of a group.
    size: u32,
}

impl Record {
    /// Returns the record of a group, in a world of `ranks` ranks with groups of at most `size` seats.
    pub(super) fn new(first: usize, (group, turn): (u64, u64), (ranks, size): (u32, u32)) -> Self {
        Record { first, group, turn, ranks, size }
    }

    /// Returns all its cells, in groups of `size` seats.
    pub(super) fn cells(self, size: u32) -> Range<usize> {
        self.first..self.first + cells(size)
    }

    fn seat(self, index: u32) -> usize {
        self.first + SEATS + index as usize * ENTRY
    }

    /// Returns the cell and the values of a seat's entry.
    pub(super) fn entry(self, index: u32, member: Member) -> (usize, [u64; 2]) {
        (self.seat(index), member.encode(self.group))
    }

    /// Returns the rank that a seat's entry names, once the entry is there.
    pub(super) fn rank_at(self, index: u32, cells: &impl Cells) -> Option<u32> {
        let named = of_group(self.group, cells.load(self.seat(index) + 1))?;
        let brought = cells.load(self.seat(index)) >> (WEIGHT_BITS + ITERATION_BITS);
        let belongs = brought == (self.group + 1) & ((1 << (64 - WEIGHT_BITS - ITERATION_BITS)) - 1);
        belongs.then(|| Member::decode([0, named]).rank).filter(|&rank| rank < self.ranks)
    }

    /// Reads the entries of the first seats, which are there. There is no lender.
    pub(super) fn read(self, seats: u32, cut: &mut GroupCut, cells: &impl Cells) {
        cut.group = self.group;
        cut.lender = None;
        cut.members.clear();
        let entry = |seat: usize| Member::decode([cells.load(seat), cells.load(seat + 1)]);
        let entries = (0..seats).map(|index| entry(self.seat(index)));
        cut.members.extend(entries.filter(|member| member.rank < self.ranks));
        cut.members.sort_unstable_by_key(|member| member.rank);
    }

    /// Reads the cut, if it is published and its entries are visible, too.
    pub(super) fn learn(self, cut: &mut GroupCut, cells: &impl Cells) -> bool {
        let is_seen = |&seats: &u32| (0..seats).all(|index| self.rank_at(index, cells).is_some());
        let Some(seats) = self.published(cells).filter(is_seen) else { return false };
        self.read(seats, cut, cells);
        cut.lender = self.lender(cells);
        true
    }

    /// Returns the cell and the values that publish a cut.
    pub(super) fn cut(self, cut: &GroupCut) -> (usize, [u64; 2]) {
        let lender = cut.lender.map_or(0, |rank| u64::from(rank) + 1);
        (self.first + LENDER, [tagged(self.group, lender), tagged(self.group, cut.members.len() as u64)])
    }

    /// Returns the number of the cut's seats, once it is published.
    pub(super) fn published(self, cells: &impl Cells) -> Option<u32> {
        let seats = of_group(self.group, cells.load(self.first + CUT))? as u32;
        (seats <= self.size).then_some(())?;
        of_group(self.group, cells.load(self.first + LENDER)).map(|_| seats)
    }

    /// Returns one more than the group whose cut the record has, whatever its turn.
    #[cfg(all(test, earlybird_internals))]
    pub(super) fn newest_cut(self, cells: &impl Cells) -> u64 {
        cells.load(self.first + CUT) >> GROUP_SHIFT
    }

    /// Returns the rank that lends its register, if the cut is published.
    pub(super) fn lender(self, cells: &impl Cells) -> Option<u32> {
        let lender = of_group(self.group, cells.load(self.first + LENDER))?;
        lender.checked_sub(1).map(|rank| rank as u32).filter(|&rank| rank < self.ranks)
    }

    /// Returns the cell that counts releases.
    pub(super) fn releases(self) -> usize {
        self.first + RELEASES
    }

    /// Returns the cell that counts the segments that members have begun to move.
    pub(super) fn taken(self) -> usize {
        self.first + TAKEN
    }

    /// Returns the cell that counts the segments that are moved.
    pub(super) fn moved(self) -> usize {
        self.first + MOVED
    }

    /// Returns the number of moved segments, of a group that is not over.
    pub(super) fn count_moved(self, cells: &impl Cells) -> u64 {
        cells.load(self.moved())
    }

    /// Returns the cell and the values that clear the counts of segments for the next turn.
    pub(super) fn clear(self) -> (usize, [u64; 2]) {
        (self.taken(), [0, 0])
    }

    /// Returns the cell and the values that end the group.
    pub(super) fn end(self) -> (usize, [u64; 2]) {
        (self.releases(), [0, self.turn + 1])
    }

    /// Returns the number of groups that have used this memory and are over.
    pub(super) fn turns(self, cells: &impl Cells) -> u64 {
        cells.load(self.first + TURN)
    }

    /// Returns whether the group may use the record.
    pub(super) fn is_free(self, cells: &impl Cells) -> bool {
        self.turns(cells) == self.turn
    }

    /// Returns whether all members have released the group.
    pub(super) fn is_over(self, cells: &impl Cells) -> bool {
        self.turns(cells) > self.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(cells: &mut [u64], (cell, values): (usize, [u64; 2])) {
        cells[cell..cell + 2].copy_from_slice(&values);
    }

    #[test]
    fn entries_keep_what_they_hold() {
        let most = (1 << 39) - 1;
        for rank in [0, 5, MOST_RANKS - 1] {
            for (buffer, iteration, weight) in [(0, 0, 0), (3, ITERATION_MASK, u16::MAX), (1, 70_000, 1)] {
                for leaving in [false, true] {
                    let member = Member { rank, buffer, iteration, weight, leaving };
                    let [brought, named] = member.encode(most);
                    assert_eq!(of_group(most, named).map(|named| Member::decode([brought, named])), Some(member));
                    assert_eq!(of_group(most - 1, named), None);
                }
            }
        }
    }

    #[test]
    fn a_cut_is_read_as_it_was_published_and_by_its_own_group_only() {
        let mut cells = vec![0; 8 + cells(3)];
        let (record, later) = (Record::new(8, (2, 0), (99, 3)), Record::new(8, (14, 1), (99, 3)));
        for (index, rank) in (0..).zip([7, 0, 4]) {
            let member = Member { rank, buffer: 1, iteration: u64::from(rank) * 9, weight: 3, leaving: rank == 4 };
            store(&mut cells, record.entry(index, member));
        }
        let view = |cells: &[u64]| {
            let cells = cells.to_vec();
            move |cell: usize| cells[cell]
        };
        let mut cut = GroupCut::default();
        assert!(!record.learn(&mut cut, &view(&cells)));
        record.read(3, &mut cut, &view(&cells));
        cut.lender = Some(0);
        store(&mut cells, record.cut(&cut));
        let mut other = GroupCut::default();
        assert!(record.learn(&mut other, &view(&cells)) && other == cut);
        assert!(other.members.iter().map(|member| member.rank).eq([0, 4, 7]));
        assert!(!later.learn(&mut other, &view(&cells)));
        assert_eq!(later.rank_at(0, &view(&cells)), None);
        assert!(record.is_free(&view(&cells)) && !later.is_free(&view(&cells)));
        store(&mut cells, record.end());
        assert!(record.is_over(&view(&cells)) && later.is_free(&view(&cells)));
    }
}
