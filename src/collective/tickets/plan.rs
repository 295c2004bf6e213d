//! The terms that all ranks agree on: the size of groups, the number of records, and the locations of cells.
//!
//! All cells lie in one memory, and begin at zero.
//!
//! ```text
//! tickets          word
//! gone             64 ranks a cell     ranks that left
//! records          one a line or more  record
//! claims           one a line          claim
//! ```

use std::ops::Range;

use super::isolation;
use super::record::{self, Record};
use super::word;
use crate::collective::core::{Cells, Time};
use crate::fault::Fault;

/// Cells in a cache line.
const LINE: usize = 8;

/// The first cell of the bits of ranks that left.
const FIRST_GONE: usize = LINE;

/// The terms of a collective with groups by tickets.
#[derive(Clone, Debug)]
pub(crate) struct TicketTerms {
    pub(crate) me: u32,
    pub(crate) ranks: u32,
    /// The number of ranks in a group.
    pub(crate) size: u32,
    /// How long an arrival waits for its group to fill.
    pub(crate) deadline: Option<Time>,
    /// Whether computing ranks lend their registers to groups that would be apart from the others.
    pub(crate) lends: bool,
    /// The number of parts in which members move a group's data: 1 or more.
    pub(crate) segments: u64,
    pub(crate) fault: Option<Fault>,
}

#[cfg(test)]
impl TicketTerms {
    /// Returns the terms of rank 0 in a world without deadline and lenders.
    pub(super) fn sample(ranks: u32, size: u32) -> Self {
        TicketTerms { me: 0, ranks, size, deadline: None, lends: false, segments: 1, fault: None }
    }
}

/// The terms, with the numbers that follow from them.
#[derive(Clone, Debug)]
pub(crate) struct TicketPlan {
    terms: TicketTerms,
    records: u64,
    window: u64,
}

impl TicketPlan {
    /// # Panics
    /// If groups have fewer than two seats, or there are more ranks than entries can name.
    pub(crate) fn new(terms: TicketTerms) -> Self {
        assert!(terms.size >= 2, "a group of one rank averages nothing");
        assert!(terms.ranks >= 1 && terms.ranks <= record::MOST_RANKS && terms.size <= record::MOST_RANKS);
        assert!(terms.me < terms.ranks && terms.segments >= 1);
        let sweep = u64::from(terms.ranks.div_ceil(terms.size));
        let window = isolation::horizon(terms.ranks, terms.size);
        let records = if terms.lends { window + 2 * sweep } else { 4 * sweep };
        TicketPlan { terms, records, window }
    }

    /// Returns the same plan with another number of records. One is enough for every arrival to end.
    #[cfg(test)]
    pub(super) fn with_records(mut self, records: u64) -> Self {
        self.records = records;
        self
    }

    pub(super) fn me(&self) -> u32 {
        self.terms.me
    }

    pub(super) fn ranks(&self) -> u32 {
        self.terms.ranks
    }

    pub(super) fn size(&self) -> u32 {
        self.terms.size
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.terms.deadline
    }

    pub(super) fn lends(&self) -> bool {
        self.terms.lends
    }

    pub(super) fn segments(&self) -> u64 {
        self.terms.segments
    }

    pub(super) fn chosen_fault(&self) -> Option<Fault> {
        self.terms.fault
    }

    pub(super) fn fault(&self, fault: Fault) -> bool {
        fault.is(self.terms.fault)
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Returns the first group of the window that ends with `group`, as far as records go back.
    pub(super) fn window_before(&self, group: u64) -> u64 {
        (group + 1).saturating_sub(self.window.min(self.records))
    }

    /// Returns the cell of the tickets.
    pub(super) fn tickets(&self) -> usize {
        0
    }

    /// Returns the cell with a rank's bit among those that left, and the bit.
    pub(super) fn gone(&self, rank: u32) -> (usize, u64) {
        (FIRST_GONE + rank as usize / 64, 1 << (rank % 64))
    }

    /// Returns the cells with the bits of the ranks that left.
    pub(super) fn leavers(&self) -> Range<usize> {
        FIRST_GONE..self.first_record()
    }

    fn first_record(&self) -> usize {
        FIRST_GONE + (self.terms.ranks as usize).div_ceil(64).next_multiple_of(LINE)
    }

    fn record_cells(&self) -> usize {
        record::cells(self.terms.size).next_multiple_of(LINE)
    }

    /// Returns the record of a group.
    pub(super) fn record(&self, group: u64) -> Record {
        let first = self.first_record() + (group % self.records) as usize * self.record_cells();
        Record::new(first, (group, group / self.records), (self.ranks(), self.size()))
    }

    /// Returns the cell of the claim on a rank's register.
    pub(super) fn claim(&self, rank: u32) -> usize {
        self.first_record() + self.records as usize * self.record_cells() + rank as usize * LINE
    }

    /// Returns the number of cells.
    pub(crate) fn cells(&self) -> usize {
        self.claim(self.terms.ranks)
    }

    /// Returns whether every rank has left and every group is over. From then on no rank uses any cell.
    pub(super) fn is_over(&self, cells: &impl Cells) -> bool {
        let word = cells.load(self.tickets());
        let groups = word::groups(word, self.size());
        // The record of group `first` served every `records`th group from there on.
        let turns = |first: u64| (groups + self.records - 1 - first) / self.records;
        let is_used_up = |first: u64| self.record(first).turns(cells) == turns(first);
        word::leavers(word) == self.ranks() && (0..self.records).all(is_used_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// No two ranges overlap, and none lies outside.
    #[test]
    fn cells_are_apart() {
        for (ranks, size, lends) in [(1, 2, false), (8, 3, true), (70, 2, true), (129, 64, false)] {
            let plan = TicketPlan::new(TicketTerms { lends, ..TicketTerms::sample(ranks, size) });
            let mut seen = HashSet::from([plan.tickets()]);
            for rank in 0..ranks {
                let (cell, bit) = plan.gone(rank);
                assert_eq!(bit.count_ones(), 1);
                assert!(rank % 64 > 0 || seen.insert(cell));
                assert!(seen.insert(plan.claim(rank)));
            }
            for group in 0..plan.records() {
                let first = plan.record(group).releases();
                assert!((0..record::cells(size)).all(|cell| seen.insert(first + cell)));
                let (end, (again, [_, turns])) = (plan.record(group).end(), plan.record(group + plan.records()).end());
                assert_eq!((end, turns), ((again, [0, 1]), 2));
            }
            assert!(seen.iter().all(|&cell| cell < plan.cells()));
        }
    }
}
