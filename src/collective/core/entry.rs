//! The entries of a cut, each a cell: as the record has them, so that a cut takes no more memory than its record.

use std::fmt;
use std::hash::{Hash, Hasher};

/// In what way a rank takes part in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
pub struct Entry {
    /// Whose.
    pub rank: u32,
    /// Fresh, carried or leaving.
    pub part: Part,
    /// Rounds between the one it was made for and the one it entered; 0 when fresh.
    pub age: u64,
    /// What it was given with [`Allreduce::weigh`](crate::Allreduce::weigh); else 1.
    pub weight: u16,
    /// Which of the rank's buffers holds it, for a rank that reads it there; no part of what was agreed.
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

const RANK_BITS: u32 = 24;
const BUFFER_BITS: u32 = 2;
const PART_BITS: u32 = 2;
const WEIGHT_BITS: u32 = u16::BITS;
/// The rest is the age, and more than enough: a contribution is late by little more than the depth.
const AGE_SHIFT: u32 = RANK_BITS + BUFFER_BITS + PART_BITS + WEIGHT_BITS;

impl Entry {
    pub(crate) fn new(rank: u32, part: Part, (age, weight): (u64, u16), buffer: u32) -> Self {
        Entry { rank, part, age, weight, buffer }
    }

    fn agreed(&self) -> (u32, Part, u64, u16) {
        (self.rank, self.part, self.age, self.weight)
    }

    fn encode(self) -> u64 {
        let part = match self.part {
            Part::Carried => 0,
            Part::Fresh => 1,
            Part::Leaving => 2,
        };
        u64::from(self.rank)
            | u64::from(self.buffer) << RANK_BITS
            | part << (RANK_BITS + BUFFER_BITS)
            | u64::from(self.weight) << (RANK_BITS + BUFFER_BITS + PART_BITS)
            | self.age << AGE_SHIFT
    }

    fn decode(cell: u64) -> Self {
        let field = |from: u32, bits: u32| cell >> from & ((1 << bits) - 1);
        Entry {
            rank: field(0, RANK_BITS) as u32,
            buffer: field(RANK_BITS, BUFFER_BITS) as u32,
            part: match field(RANK_BITS + BUFFER_BITS, PART_BITS) {
                0 => Part::Carried,
                1 => Part::Fresh,
                _ => Part::Leaving,
            },
            weight: field(RANK_BITS + BUFFER_BITS + PART_BITS, WEIGHT_BITS) as u16,
            age: cell >> AGE_SHIFT,
        }
    }
}

/// Entries in the order of reduction.
#[derive(Default)]
pub(crate) struct Entries(Vec<u64>);

/// What was agreed of an entry's cell.
const AGREED: u64 = !(((1 << BUFFER_BITS) - 1) << RANK_BITS);

impl Entries {
    pub(super) fn with_room_for(entries: usize) -> Self {
        Entries(Vec::with_capacity(entries))
    }

    /// How many more there is memory for.
    pub(super) fn room(&self) -> usize {
        self.0.capacity() - self.0.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.0.push(entry.encode());
    }

    pub(super) fn extend_from_cells(&mut self, cells: impl Iterator<Item = u64>) {
        self.0.extend(cells);
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Entry> + DoubleEndedIterator + Clone {
        self.from(0)
    }

    /// All but the first so many.
    pub(crate) fn from(&self, first: usize) -> impl ExactSizeIterator<Item = Entry> + DoubleEndedIterator + Clone {
        self.0[first..].iter().map(|&cell| Entry::decode(cell))
    }

    /// Those of a rank, and of all behind it.
    pub(super) fn at_or_after(&self, rank: u32) -> impl Iterator<Item = Entry> {
        self.from(self.0.partition_point(|&cell| Entry::decode(cell).rank < rank))
    }

    fn agreed(&self) -> impl Iterator<Item = u64> {
        self.cells().map(|cell| cell & AGREED)
    }
}

impl Clone for Entries {
    /// Keeps the room for more.
    fn clone(&self) -> Self {
        let mut cells = Vec::with_capacity(self.0.capacity());
        cells.extend_from_slice(&self.0);
        Entries(cells)
    }

    fn clone_from(&mut self, source: &Self) {
        self.0.clone_from(&source.0);
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.agreed().eq(other.agreed())
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
