//! A set of ranks as a bitmap of fixed size.
#![forbid(unsafe_code)]

use std::fmt;

/// A set of the ranks of one world, with one bit for each rank. Its memory is allocated once, for the size of the
/// world.
#[derive(PartialEq, Eq, Hash, Default)]
pub struct RankSet {
    bits: Vec<u64>,
}

/// Prints the members, like any set.
impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Clone for RankSet {
    fn clone(&self) -> Self {
        RankSet { bits: self.bits.clone() }
    }

    /// Reuses the memory, which a derived `clone_from` would not: this runs in every round.
    fn clone_from(&mut self, source: &Self) {
        self.bits.clone_from(&source.bits);
    }
}

impl RankSet {
    /// Returns the empty set over a world of `ranks`.
    #[must_use]
    pub fn empty(ranks: u32) -> Self {
        RankSet { bits: vec![0; ranks.div_ceil(64) as usize] }
    }

    /// Returns the set of every rank of a world of `ranks`.
    #[must_use]
    pub fn full(ranks: u32) -> Self {
        let mut set = Self::empty(ranks);
        (0..ranks).for_each(|rank| set.insert(rank));
        set
    }

    /// Returns whether `rank` is in the set; false for a rank outside the world.
    #[must_use]
    #[inline]
    pub fn contains(&self, rank: u32) -> bool {
        self.bits.get(rank as usize / 64).is_some_and(|word| word >> (rank % 64) & 1 == 1)
    }

    /// Returns the number of ranks in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits.iter().all(|&word| word == 0)
    }

    /// Returns the members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.bits.iter().enumerate().flat_map(|(index, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    index as u32 * 64 + bit
                })
            })
        })
    }

    /// Returns the bitmap, least significant rank first.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.bits
    }

    #[inline]
    pub(crate) fn insert(&mut self, rank: u32) {
        self.bits[rank as usize / 64] |= 1 << (rank % 64);
    }

    pub(crate) fn clear(&mut self) {
        self.bits.fill(0);
    }

    #[inline]
    pub(crate) fn remove(&mut self, rank: u32) {
        self.bits[rank as usize / 64] &= !(1 << (rank % 64));
    }

    /// Returns the least member that is at least `from`.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let mut index = from as usize / 64;
        let mut word = self.bits.get(index)? & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            word = *self.bits.get(index)?;
        }
        Some(index as u32 * 64 + word.trailing_zeros())
    }

    /// Returns the number of members below `rank`.
    pub(crate) fn below(&self, rank: u32) -> u32 {
        let (index, mask) = (rank as usize / 64, !(u64::MAX << (rank % 64)));
        let words = self.bits.iter().take(index).map(|word| word.count_ones());
        words.sum::<u32>() + self.bits.get(index).map_or(0, |word| (word & mask).count_ones())
    }

    /// Replaces positions in the list of members by the members there. Positions count from 0, ascend, and are below
    /// `len`.
    pub(crate) fn replace_positions(&self, positions: &mut [u32]) {
        // The members of a word from position `first` on.
        let (mut index, mut first, mut word) = (0, 0, self.bits.first().map_or(0, |&word| word));
        for position in positions {
            while first + word.count_ones() <= *position {
                first += word.count_ones();
                index += 1;
                word = self.bits[index];
            }
            word = (first..*position).fold(word, |word, _| word & (word - 1));
            first = *position;
            *position = index as u32 * 64 + word.trailing_zeros();
        }
    }

    /// Returns the bits of fewer than 64 ranks from `first` on, shifted down to bit 0.
    pub(crate) fn group(&self, first: u32, ranks: u32) -> u64 {
        let (index, shift) = (first as usize / 64, first % 64);
        let low = self.bits.get(index).map_or(0, |word| word >> shift);
        let high = if shift == 0 { 0 } else { self.bits.get(index + 1).map_or(0, |word| word << (64 - shift)) };
        (low | high) & ((1 << ranks) - 1)
    }
}

impl FromIterator<u32> for RankSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let mut set = Self::empty(ranks.iter().max().map_or(0, |max| max + 1));
        ranks.into_iter().for_each(|rank| set.insert(rank));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_successors_agree_with_membership() {
        for ranks in [1, 31, 32, 62, 64, 65, 130] {
            let mut set = RankSet::empty(ranks);
            (0..ranks).filter(|rank| rank % 3 != 1).for_each(|rank| set.insert(rank));
            for first in (0..ranks).step_by(31) {
                for bit in 0..31 {
                    assert_eq!(set.group(first, 31) >> bit & 1 == 1, set.contains(first + bit));
                }
            }
            for from in 0..ranks {
                assert_eq!(set.next(from), (from..ranks).find(|&rank| set.contains(rank)));
            }
            assert_eq!(set.iter().count() as u32, set.len());
            assert!(set.iter().all(|rank| set.contains(rank)));
            for step in [1, 2, 5, 70] {
                let positions = || (0..set.len()).step_by(step);
                let mut members: Vec<u32> = positions().collect();
                set.replace_positions(&mut members);
                assert!(members.iter().copied().eq(set.iter().step_by(step)), "{ranks} ranks, every {step}th");
                assert!(members.iter().map(|&rank| set.below(rank)).eq(positions()));
            }
            assert_eq!(set.below(ranks + 200), set.len());
        }
        assert_eq!(RankSet::full(70).len(), 70);
        RankSet::empty(0).replace_positions(&mut []);
    }
}
