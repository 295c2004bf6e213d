//! The cut by word: 64 bits that one atomic operation reads and changes.
//!
//! A rank has two bits, *arrived* and *carried*, and a word has one closed bit, so a word holds 31 ranks. An arrival
//! adds its own bit and learns from the returned value which ranks came earlier, so one atomic decides both the order
//! and the membership. Larger worlds use an array of words (`docs/semantics.md`).

use super::super::plan::RANKS_PER_WORD;
use crate::rule::Condition;

const ARRIVED: u64 = (1 << RANKS_PER_WORD) - 1;
const CARRIED: u64 = ARRIVED << RANKS_PER_WORD;

/// Set when the cut was closed by compare-swap rather than by its own contents.
pub(super) const CLOSED: u64 = 1 << 63;

/// Returns the bit that a fresh arrival adds.
pub(super) fn arrived_bit(index: u32) -> u64 {
    debug_assert!(index < RANKS_PER_WORD);
    1 << index
}

/// Returns the bit that a late contribution adds to the first round it finds open.
pub(super) fn carried_bit(index: u32) -> u64 {
    debug_assert!(index < RANKS_PER_WORD);
    1 << (RANKS_PER_WORD + index)
}

/// Returns the fresh arrivals in a word, one bit for each rank.
pub(super) fn arrived(word: u64) -> u64 {
    word & ARRIVED
}

/// Returns the carried contributions in a word, one bit for each rank.
pub(super) fn carried(word: u64) -> u64 {
    (word & CARRIED) >> RANKS_PER_WORD
}

/// Returns whether a round need not wait for a rank.
pub(super) fn is_present(word: u64, index: u32, condition: Condition) -> bool {
    let carried = if condition == Condition::Full { carried(word) } else { 0 };
    (arrived(word) | carried) >> index & 1 == 1
}

/// The rule that closes a round whose cut is a single word. Every rank evaluates the same function of the same returned
/// value, so no rank needs a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    /// Ranks that take part in this round, one bit for each rank, known from the previous cut.
    active: u64,
    /// The condition under which the round fires.
    condition: Condition,
    /// Whether the arrival that fires the round also closes it, because there is no grace.
    at_once: bool,
}

impl Closing {
    pub(super) fn new(active: u64, condition: Condition, at_once: bool) -> Self {
        Closing { active, condition, at_once }
    }

    /// Returns whether an operation that returned `word` came after the cut was closed.
    pub(super) fn closed(self, word: u64) -> bool {
        word & CLOSED != 0 || self.closed_by_arrivals(word)
    }

    /// Returns whether the arrivals alone close the cut, without the closed bit.
    pub(super) fn closed_by_arrivals(self, word: u64) -> bool {
        self.present(word) & self.active == self.active || (self.at_once && self.fires(word))
    }

    /// Returns whether the condition holds.
    pub(super) fn fires(self, word: u64) -> bool {
        match self.condition {
            Condition::Count(least) => arrived(word).count_ones() >= least,
            Condition::Rank(rank) => arrived(word) >> rank & 1 == 1,
            Condition::Full => self.present(word) & self.active == self.active,
        }
    }

    /// Returns the ranks that a full round need not wait for.
    fn present(self, word: u64) -> u64 {
        match self.condition {
            Condition::Full => arrived(word) | carried(word),
            Condition::Count(_) | Condition::Rank(_) => arrived(word),
        }
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
        let closing = Closing { active: 0b111, condition: Condition::Count(2), at_once: true };
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

    #[test]
    fn a_drawn_rank_fires_alone_and_what_is_carried_counts_in_full_rounds_only() {
        let drawn = Closing { active: 0b111, condition: Condition::Rank(2), at_once: true };
        let word = arrived_bit(0) | arrived_bit(1) | carried_bit(2);
        assert!(!drawn.closed(word) && drawn.closed(word | arrived_bit(2)) && drawn.closed(arrived_bit(2)));
        let full = Closing { condition: Condition::Full, ..drawn };
        assert!(full.closed(word) && full.fires(word));
        assert!(!full.closed(arrived_bit(0) | carried_bit(0) | arrived_bit(1)));
    }
}
