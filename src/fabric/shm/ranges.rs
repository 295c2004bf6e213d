//! The ranges of the world's file that a rank has taken for its regions, and reuses.
//!
//! A range belongs for good to the rank that took it first. When that rank has closed the endpoint that used it, others
//! may still have it open. Once all have closed it, which the channels of the world show, the range is free.

use std::collections::BTreeMap;

/// The endpoint that used a range: its number and its channel.
pub(super) type User = (u64, u32);

#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The lengths of free ranges by their offsets. No two ranges touch.
    free: BTreeMap<u64, u64>,
    /// The ranges whose endpoints this rank has closed, and perhaps not all ranks.
    closed: Vec<(User, u64, u64)>,
}

impl Ranges {
    /// Records that this rank has closed the endpoint that used a range.
    pub(super) fn give_back(&mut self, user: User, offset: u64, len: u64) {
        self.closed.push((user, offset, len));
    }

    /// Takes a range of `len` bytes, if one is free: the smallest that is large enough.
    pub(super) fn take(&mut self, len: u64, is_open: impl Fn(User) -> bool) -> Option<u64> {
        let (open, free) = std::mem::take(&mut self.closed).into_iter().partition(|&(user, ..)| is_open(user));
        self.closed = open;
        let free: Vec<(User, u64, u64)> = free;
        free.into_iter().for_each(|(_, offset, len)| self.join(offset, len));
        let fits = self.free.iter().filter(|&(_, &room)| room >= len);
        let (&offset, &room) = fits.min_by_key(|&(_, &room)| room)?;
        self.free.remove(&offset);
        if room > len {
            self.free.insert(offset + len, room - len);
        }
        Some(offset)
    }

    /// Adds a free range, and merges it with those that it touches.
    fn join(&mut self, mut offset: u64, mut len: u64) {
        if let Some(behind) = self.free.remove(&(offset + len)) {
            len += behind;
        }
        if let Some((&before, &room)) = self.free.range(..offset).next_back()
            && before + room == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, room + len);
        }
        self.free.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_again_once_all_ranks_have_closed_them() {
        let mut ranges = Ranges::default();
        ranges.give_back((7, 1), 100, 50);
        assert_eq!(ranges.take(50, |user| user == (7, 1)), None, "another rank has it open");
        assert_eq!(ranges.take(60, |_| false), None);
        assert_eq!(ranges.take(30, |_| false), Some(100));
        assert_eq!(ranges.take(30, |_| false), None);
        assert_eq!(ranges.take(20, |_| false), Some(130));
    }

    #[test]
    fn ranges_that_touch_become_one() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut ranges = Ranges::default();
            order.iter().for_each(|part| ranges.give_back((1, 1), 10 * part, 10));
            assert_eq!(ranges.take(30, |_| false), Some(0), "{order:?}");
            assert!(ranges.free.is_empty());
        }
    }

    #[test]
    fn the_smallest_range_that_has_room_is_taken() {
        let mut ranges = Ranges::default();
        [(0, 100), (200, 30), (300, 50)].into_iter().for_each(|(offset, len)| ranges.give_back((1, 1), offset, len));
        assert_eq!(ranges.take(40, |_| false), Some(300));
        assert_eq!(ranges.take(30, |_| false), Some(200));
        assert_eq!(ranges.take(100, |_| false), Some(0));
    }
}
