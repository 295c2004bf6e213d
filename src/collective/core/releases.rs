//! Checks whether all ranks have released a round.

use super::input::FOREVER;

/// The progress of the last checks of all ranks' releases. Releases only grow, so a rank that was seen to have released
/// a round is not read again until a later round is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Releases {
    /// The round that all ranks have released.
    by_all: u64,
    /// The round that the last check asked for.
    asked: u64,
    /// The first rank that was not seen to have released that round, and the lowest release of the ranks before it.
    next: u32,
    least: u64,
}

impl Releases {
    /// Returns whether all of `ranks` ranks have released a round; `released` returns the newest round that a rank has
    /// released.
    pub(super) fn reach(&mut self, round: u64, ranks: u32, released: impl Fn(u32) -> u64) -> bool {
        if self.by_all >= round {
            return true;
        }
        if self.asked != round {
            (self.asked, self.next, self.least) = (round, 0, FOREVER);
        }
        while self.next < ranks {
            let newest = released(self.next);
            if newest < round {
                return false;
            }
            self.least = self.least.min(newest);
            self.next += 1;
        }
        self.by_all = self.least;
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn who_has_released_a_round_is_not_looked_at_again() {
        let mut releases = Releases::default();
        let polls = Cell::new(0);
        let mut ask = |round: u64, cells: [u64; 4]| {
            polls.set(0);
            let released = |rank: u32| {
                polls.set(polls.get() + 1);
                cells[rank as usize]
            };
            (releases.reach(round, 4, released), polls.get())
        };
        assert_eq!(ask(0, [0; 4]), (true, 0));
        assert_eq!(ask(1, [2, 3, 0, 2]), (false, 3));
        assert_eq!(ask(1, [2, 3, 0, 2]), (false, 1));
        assert_eq!(ask(1, [2, 3, FOREVER, 2]), (true, 2));
        assert_eq!(ask(2, [2, 3, FOREVER, 2]), (true, 0));
        assert_eq!(ask(3, [4, 3, FOREVER, 2]), (false, 4));
        assert_eq!(ask(3, [4, 3, FOREVER, 3]), (true, 1));
    }
}
