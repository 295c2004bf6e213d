//! The entries of a cut. Each is one cell, in the form that the record has, so a cut takes no more memory than its
//! record.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::durations::{Particulars, duration};

/// How a rank takes part in a round. There are only these three ways: a program that reads cuts handles all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// A contribution that came too late for its own round and entered this one.
    Carried,
    /// A contribution made for this round.
    Fresh,
    /// The rank's last arrival: it counts towards firing and brings no data.
    Leaving,
}

/// One rank's part in a round.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The rank.
    pub rank: u32,
    /// Fresh, carried or leaving.
    pub part: Part,
    /// The number of rounds by which the contribution entered late; 0 when fresh.
    pub age: u64,
    /// The weight that [`Allreduce::weigh`](crate::Allreduce::weigh) gave the contribution; otherwise 1.
    pub weight: u16,
    particulars: Particulars,
    /// The rank's buffer that holds the contribution, for a rank that reads it there. It is not part of what was
    /// agreed.
    pub(crate) buffer: u32,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.agreed() == other.agreed()
    }
}

impl Eq for Entry {}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.agreed().hash(state);
    }
}

/// A world has fewer ranks: a network names them by 16 bits, and shared memory by 12.
const RANK_BITS: u32 = 20;
const BUFFER_BITS: u32 = 2;
const PART_BITS: u32 = 2;
const PART_SHIFT: u32 = RANK_BITS + BUFFER_BITS;
const PARTICULARS_SHIFT: u32 = PART_SHIFT + PART_BITS;
/// The bits above hold the age. They are more than enough: a contribution is late by little more than the depth.
const AGE_SHIFT: u32 = PARTICULARS_SHIFT + Particulars::BITS;

impl Part {
    #[inline]
    fn code(self) -> u64 {
        match self {
            Part::Carried => 0,
            Part::Fresh => 1,
            Part::Leaving => 2,
        }
    }
}

impl Entry {
    pub(crate) fn new(rank: u32, part: Part, (age, particulars): (u64, Particulars), buffer: u32) -> Self {
        Entry { rank, part, age, weight: particulars.weight(), particulars, buffer }
    }

    /// Returns how long the rank computed the contribution: from the wait that returned its last outcome to the call
    /// that handed this one in. `None` where that is not known, see [`waited`](Entry::waited).
    #[must_use]
    pub fn computed(&self) -> Option<Duration> {
        duration(self.particulars.durations().computed())
    }

    /// Returns how long the rank waited for its round before this one, from its first call of `wait` on; nothing if it
    /// called none.
    ///
    /// Each rank measures with its own clock, and tells the result with its contribution, so all ranks know the same
    /// number. It is exact to 1.6 %, or to 64 ns. Steps below a millisecond are measured once in 16 rounds. Nothing is
    /// known of contributions with weights, of rounds that a provider runs, or of groups by order of arrival.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        duration(self.particulars.durations().waited())
    }

    pub(crate) fn particulars(&self) -> Particulars {
        self.particulars
    }

    fn agreed(&self) -> (u32, Part, u64, Particulars) {
        (self.rank, self.part, self.age, self.particulars)
    }

    fn encode(self) -> u64 {
        debug_assert!(self.rank >> RANK_BITS == 0 && self.age >> (u64::BITS - AGE_SHIFT) == 0);
        u64::from(self.rank)
            | u64::from(self.buffer) << RANK_BITS
            | self.part.code() << PART_SHIFT
            | self.particulars.encode() << PARTICULARS_SHIFT
            | self.age << AGE_SHIFT
    }

    #[inline]
    fn decode(cell: u64) -> Self {
        let field = |from: u32, bits: u32| cell >> from & ((1 << bits) - 1);
        let particulars = Particulars::decode(field(PARTICULARS_SHIFT, Particulars::BITS));
        Entry {
            rank: field(0, RANK_BITS) as u32,
            buffer: field(RANK_BITS, BUFFER_BITS) as u32,
            part: match field(PART_SHIFT, PART_BITS) {
                0 => Part::Carried,
                1 => Part::Fresh,
                _ => Part::Leaving,
            },
            weight: particulars.weight(),
            particulars,
            age: cell >> AGE_SHIFT,
        }
    }
}

/// The entries of a cut in the order of reduction.
#[derive(Default)]
pub(crate) struct Entries {
    cells: Vec<u64>,
    /// The greatest number of entries.
    most: usize,
}

/// The bits of an entry's cell that ranks have agreed on.
const AGREED: u64 = !(((1 << BUFFER_BITS) - 1) << RANK_BITS);

impl Entries {
    pub(super) fn with_room_for(most: usize) -> Self {
        Entries { cells: Vec::new(), most }
    }

    /// Returns the greatest number of entries.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Returns how many more entries fit.
    pub(super) fn room(&self) -> usize {
        self.most.saturating_sub(self.cells.len())
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Removes all entries, and reserves memory for the greatest number of them if that was not done before.
    pub(crate) fn clear(&mut self) {
        self.cells.clear();
        self.reserve();
    }

    /// Reserves memory for the greatest number of entries.
    pub(super) fn reserve(&mut self) {
        self.cells.reserve_exact(self.most.saturating_sub(self.cells.len()));
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.cells.truncate(len);
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.cells.push(entry.encode());
    }

    /// Sorts the entries by rank, the carried one of a rank first.
    pub(super) fn sort(&mut self) {
        let key = |cell: &u64| (cell & ((1 << RANK_BITS) - 1), cell >> PART_SHIFT & ((1 << PART_BITS) - 1));
        if !self.cells.is_sorted_by_key(key) {
            self.cells.sort_unstable_by_key(key);
        }
    }

    pub(super) fn extend_from_cells(&mut self, cells: impl Iterator<Item = u64>) {
        self.cells.extend(cells);
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = u64> {
        self.cells.iter().copied()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Entry> + DoubleEndedIterator + Clone {
        self.from(0)
    }

    /// Returns the entries from index `first` on.
    pub(crate) fn from(&self, first: usize) -> impl ExactSizeIterator<Item = Entry> + DoubleEndedIterator + Clone {
        self.cells[first..].iter().map(|&cell| Entry::decode(cell))
    }

    /// Returns the ranks that take part in this way. Each round is searched for leaving ranks, and few leave.
    pub(crate) fn ranks(&self, part: Part) -> impl Iterator<Item = u32> {
        let (code, field) = (part.code() << PART_SHIFT, ((1 << PART_BITS) - 1) << PART_SHIFT);
        self.cells().filter(move |cell| cell & field == code).map(|cell| Entry::decode(cell).rank)
    }

    /// Returns the entries of a rank and of all higher ranks.
    pub(super) fn at_or_after(&self, rank: u32) -> impl Iterator<Item = Entry> {
        self.from(self.cells.partition_point(|&cell| Entry::decode(cell).rank < rank))
    }

    fn agreed(&self) -> impl Iterator<Item = u64> {
        self.cells().map(|cell| cell & AGREED)
    }
}

impl Clone for Entries {
    fn clone(&self) -> Self {
        Entries { cells: self.cells.clone(), most: self.most }
    }

    /// Keeps the memory for the greatest number of entries.
    fn clone_from(&mut self, source: &Self) {
        self.most = source.most;
        self.clear();
        self.cells.extend_from_slice(&source.cells);
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        // Both are usually equal, so comparing all cells at once is the fastest.
        let differences = self.agreed().zip(other.agreed()).fold(0, |seen, (mine, other)| seen | (mine ^ other));
        self.len() == other.len() && differences == 0
    }
}

impl Eq for Entries {}

impl Hash for Entries {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.agreed().for_each(|cell| cell.hash(state));
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
