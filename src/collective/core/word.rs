//! The cut by word: 64 bits that one atomic operation reads and changes.
//!
//! Two bits a rank, *arrived* and *carried*, and one closed bit: 31 ranks fill a word. An arrival
//! adds its own bit and learns from the returned value who came earlier, so one atomic decides
//! both the order and the membership. Larger worlds use an array of words (`docs/semantics.md`).

/// Ranks in one word.
pub(crate) const RANKS_PER_WORD: u32 = 31;

const ARRIVED: u64 = (1 << RANKS_PER_WORD) - 1;
const CARRIED: u64 = ARRIVED << RANKS_PER_WORD;

/// Set when the cut was closed by compare-swap rather than by its own contents.
pub(crate) const CLOSED: u64 = 1 << 63;

/// The bit that a fresh arrival adds.
pub(crate) fn arrived_bit(index: u32) -> u64 {
    debug_assert!(index < RANKS_PER_WORD);
    1 << index
}

/// The bit that a late contribution adds to the first round it finds open.
pub(crate) fn carried_bit(index: u32) -> u64 {
    debug_assert!(index < RANKS_PER_WORD);
    1 << (RANKS_PER_WORD + index)
}

/// Fresh arrivals in a word, one bit a rank.
pub(crate) fn arrived(word: u64) -> u64 {
    word & ARRIVED
}

/// Carried contributions in a word, one bit a rank.
pub(crate) fn carried(word: u64) -> u64 {
    (word & CARRIED) >> RANKS_PER_WORD
}

/// What closes a round whose cut is a single word. Every rank evaluates the same function of the
/// same returned value, so nobody has to be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    /// Ranks that take part in this round, one bit a rank: known from the previous cut.
    pub(crate) active: u64,
    /// Fresh arrivals that fire the round.
    pub(crate) threshold: u32,
    /// No grace: the arrival that fires also closes.
    pub(crate) at_once: bool,
}

impl Closing {
    /// Whether an operation that returned `word` came after the cut was closed.
    pub(crate) fn closed(self, word: u64) -> bool {
        word & CLOSED != 0 || self.closed_by_arrivals(word)
    }

    /// Whether the arrivals alone close the cut, with no need for the closed bit.
    pub(crate) fn closed_by_arrivals(self, word: u64) -> bool {
        arrived(word) & self.active == self.active || (self.at_once && self.fires(word))
    }

    /// Whether enough ranks arrived.
    pub(crate) fn fires(self, word: u64) -> bool {
        arrived(word).count_ones() >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_do_not_overlap() {
        let mut all = CLOSED;
        for i in 0..RANKS_PER_WORD {
            for bit in [arrived_bit(i), carried_bit(i)] {
                assert_eq!(all & bit, 0);
                all |= bit;
            }
        }
        assert_eq!(all.count_ones(), 2 * RANKS_PER_WORD + 1);
        assert_eq!(arrived(all), carried(all));
    }

    #[test]
    fn the_order_of_additions_decides_membership() {
        let closing = Closing { active: 0b111, threshold: 2, at_once: true };
        let mut word = carried_bit(2);
        assert!(!closing.closed(word));
        word += arrived_bit(0);
        assert!(!closing.closed(word));
        word += arrived_bit(1);
        assert!(closing.closed(word) && closing.closed_by_arrivals(word));
        let graceful = Closing { at_once: false, ..closing };
        assert!(!graceful.closed(word) && graceful.fires(word));
        assert!(graceful.closed(word | CLOSED));
        assert!(graceful.closed(word + arrived_bit(2)));
    }
}
