//! The cut of a round: the contributions that it holds, and its form on the wire.

use super::durations::Particulars;
use super::entry::{Entries, Entry, Part};
use crate::rank_set::RankSet;
use crate::trigger::Deposit;

/// The agreed set of contributions in a round: the same for every receiver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Cut {
    pub(crate) round: u64,
    pub(crate) initiator: Option<u32>,
    pub(crate) entries: Entries,
    /// The cells that were read do not form a cut of this world.
    is_damaged: bool,
}

impl Cut {
    /// Returns an empty cut. The first [`begin`](Cut::begin) reserves memory for the greatest number of entries, unless
    /// [`reserve`](Cut::reserve) has done so before.
    pub(crate) fn with_room_for(ranks: u32) -> Self {
        Cut { entries: Entries::with_room_for(2 * ranks as usize), ..Cut::default() }
    }

    /// Returns a cut with these entries, which the caller gives in the order of reduction.
    pub(crate) fn of_entries(round: u64, initiator: Option<u32>, entries: Vec<Entry>) -> Self {
        let mut cut = Cut { round, initiator, entries: Entries::with_room_for(entries.len()), is_damaged: false };
        cut.entries.clear();
        entries.into_iter().for_each(|entry| cut.entries.push(entry));
        cut
    }

    /// Reserves the memory of the cut now.
    pub(crate) fn reserve(&mut self) {
        self.entries.reserve();
    }

    /// Empties the cut for a round.
    pub(crate) fn begin(&mut self, round: u64, initiator: Option<u32>) {
        (self.round, self.initiator, self.is_damaged) = (round, initiator, false);
        self.entries.clear();
    }

    /// Makes it the cut of a round that no single rank has closed.
    pub(crate) fn fill(&mut self, round: u64, entries: impl Iterator<Item = Entry>) {
        self.begin(round, None);
        entries.for_each(|entry| self.entries.push(entry));
    }

    /// The number of the round, counted from 1. Rounds before a [`checkpoint`](crate::AllreduceBuilder::restore) count
    /// too.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The rank whose arrival closed the cut. There is none in a synchronous round, because every rank closes it for
    /// itself, nor where a provider counted the arrivals.
    #[must_use]
    pub fn initiator(&self) -> Option<u32> {
        self.initiator
    }

    /// Every entry, in the order of reduction: ascending rank, carried before fresh.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + DoubleEndedIterator + Clone {
        self.entries.iter()
    }

    /// The entries that carry data, in the order of reduction.
    pub fn contributions(&self) -> impl Iterator<Item = Entry> + Clone {
        self.entries.iter().filter(|entry| entry.part != Part::Leaving)
    }

    /// Ranks for which this is the last round.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = u32> {
        self.entries.ranks(Part::Leaving)
    }

    /// Ranks with a fresh contribution.
    #[must_use]
    pub fn fresh(&self) -> RankSet {
        self.entries.ranks(Part::Fresh).collect()
    }

    /// Ranks with a carried contribution.
    #[must_use]
    pub fn carried(&self) -> RankSet {
        self.entries.ranks(Part::Carried).collect()
    }

    /// Ranks for which this is the last round.
    #[must_use]
    pub fn leavers(&self) -> RankSet {
        self.leaving().collect()
    }

    /// Adds the contents of a rank's gate. `particulars` returns those of the contribution in a buffer.
    pub(crate) fn add_gate(&mut self, rank: u32, deposit: Deposit, particulars: impl Fn(u32) -> Particulars) {
        if deposit.initiator {
            self.note_initiator(rank);
        }
        if let Some((buffer, age)) = deposit.carried {
            self.entries.push(Entry::new(rank, Part::Carried, (age, particulars(buffer)), buffer));
        }
        if let Some(buffer) = deposit.fresh {
            self.entries.push(Entry::new(rank, Part::Fresh, (0, particulars(buffer)), buffer));
        }
        if deposit.leaving {
            self.entries.push(Entry::new(rank, Part::Leaving, (0, Particulars::weighing(0)), 0));
        }
    }

    /// Notes an initiator. Of several initiators, the cut names the lowest rank.
    fn note_initiator(&mut self, rank: u32) {
        self.initiator = Some(self.initiator.map_or(rank, |known| known.min(rank)));
    }

    /// Returns the entries of a rank: at most one carried entry, followed by at most one that is not carried.
    pub(crate) fn of(&self, rank: u32) -> impl Iterator<Item = Entry> {
        self.entries.at_or_after(rank).take_while(move |entry| entry.rank == rank)
    }

    pub(crate) fn holds(&self, rank: u32, part: Part) -> bool {
        self.of(rank).any(|entry| entry.part == part)
    }

    /// The smallest number of cells in the record of a cut: round, head and one entry.
    pub(crate) const LEAST_CELLS: usize = 3;

    /// Returns the greatest number of cells in the record of a cut: round, head and two entries for each rank.
    pub(crate) fn cells(ranks: u32) -> usize {
        2 + 2 * ranks as usize
    }

    /// Returns all cells of the record except the round, which is written last and makes the record valid.
    pub(crate) fn encode(&self) -> impl Iterator<Item = u64> + '_ {
        let initiator = self.initiator.map_or(0, |rank| u64::from(rank) + 1);
        let head = initiator << 32 | self.entries.len() as u64;
        std::iter::once(head).chain(self.entries.cells())
    }

    /// Reads what [`Cut::encode`] wrote: `cell` returns the cells in the order in which it wrote them.
    pub(crate) fn decode(&mut self, round: u64, cell: impl Fn(usize) -> u64) {
        self.begin(round, None);
        self.add(cell);
    }

    /// Sorts the entries in the order of reduction.
    pub(super) fn sort(&mut self) {
        self.entries.sort();
    }

    /// Adds the entries of other ranks that [`Cut::encode`] wrote.
    pub(crate) fn add(&mut self, cell: impl Fn(usize) -> u64) {
        let head = cell(0);
        if let Some(rank) = (head >> 32).checked_sub(1) {
            self.note_initiator(rank as u32);
        }
        let (room, ranks) = (self.entries.room(), self.entries.most() / 2);
        let count = (head & u64::from(u32::MAX)) as usize;
        self.entries.extend_from_cells((0..count.min(room)).map(|index| cell(1 + index)));
        if count > room || self.entries.iter().any(|entry| entry.rank as usize >= ranks) {
            self.is_damaged = true;
            self.entries.clear();
        }
    }

    /// Returns whether the cells that were read do not form a cut, because a rank has written where it must not.
    pub(super) fn is_damaged(&self) -> bool {
        self.is_damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_survives_the_wire() {
        let entry = |rank, part, age, buffer| {
            Entry::new(rank, part, (age, Particulars::weighing(7 * age as u16 + 60_000)), buffer)
        };
        let mut cut = Cut::with_room_for(4);
        cut.round = 9;
        cut.initiator = Some(3);
        let parts = [
            entry(0, Part::Carried, 5, 2),
            entry(0, Part::Fresh, 0, 0),
            entry(2, Part::Leaving, 0, 1),
            entry(3, Part::Fresh, 0, 1),
        ];
        parts.into_iter().for_each(|entry| cut.entries.push(entry));
        assert!(cut.entries().eq(parts));
        let cells: Vec<u64> = cut.encode().collect();
        let mut copy = Cut::with_room_for(4);
        copy.decode(9, |index| cells[index]);
        assert_eq!(copy, cut);
        let places = |cut: &Cut| cut.entries.iter().map(|entry| entry.buffer).collect::<Vec<_>>();
        assert_eq!(places(&copy), places(&cut));
        assert_eq!(copy.fresh().iter().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(copy.contributions().count(), 3);
        assert!(copy.leavers().contains(2) && copy.holds(0, Part::Carried) && !copy.holds(3, Part::Carried));
        let counts: Vec<usize> = (0..5).map(|rank| copy.of(rank).count()).collect();
        assert_eq!(counts, [2, 0, 1, 1, 0]);
    }
}
