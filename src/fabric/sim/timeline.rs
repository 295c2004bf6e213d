//! What happens when: a queue by time, in which equal times keep their order.
//!
//! A radix heap. Times are never earlier than the last one taken. An entry is in the bucket of the highest digit in which
//! its time differs from that one, and moves to lower digits only: a few times, whatever the number of entries. A bucket
//! is a list of slots. Entries keep their slots, by which they can be removed. Most looks at a slot miss the caches, so
//! all that belongs to it lies together, and most entries are in the lowest digit at once.

use crate::time::Time;

/// Bits of the lowest digit: most times differ from the last one by less.
const LOWEST: u32 = 12;

/// Buckets of the lowest digit. All entries of one have the same time.
const LOW_BUCKETS: usize = 1 << LOWEST;

/// Bits of each other digit.
const DIGIT: u32 = 8;
const RADIX: usize = 1 << DIGIT;
const DIGITS: usize = (Time::BITS - LOWEST).div_ceil(DIGIT) as usize;
const BUCKETS: usize = LOW_BUCKETS + DIGITS * RADIX;

#[derive(Debug)]
pub(crate) struct Timeline<T> {
    /// The time that was taken last.
    last: Time,
    slots: Vec<Slot<T>>,
    /// The first slot without an entry.
    free: u32,
    /// By digit, and by what that digit is.
    buckets: Vec<Bucket>,
    /// Which buckets are not empty, a bit each. The first of them has the earliest entries.
    filled: [u64; BUCKETS / 64],
    /// Which words of `filled` are not zero.
    words: u128,
}

/// The end of a list.
const NONE: u32 = u32::MAX;

/// A place for an entry, and where that is in its list.
#[derive(Debug)]
struct Slot<T> {
    time: Time,
    next: u32,
    /// Of the first one in a list this is anything.
    before: u32,
    entry: Option<T>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// No entry is earlier. The one of this time may have been removed.
    earliest: Time,
    first: u32,
    last: u32,
}

impl<T> Timeline<T> {
    pub(crate) fn new() -> Self {
        let buckets = vec![Bucket { earliest: Time::MAX, first: NONE, last: NONE }; BUCKETS];
        Timeline { last: 0, slots: Vec::new(), free: NONE, buckets, filled: [0; _], words: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Adds an entry, behind those of the same time, and says in which slot. No time may be earlier than the last one
    /// taken.
    #[inline]
    pub(crate) fn push(&mut self, time: Time, entry: T) -> u32 {
        debug_assert!(time >= self.last, "{time} after {}", self.last);
        let mut slot = self.free;
        if slot == NONE {
            slot = self.slots.len() as u32;
            self.slots.push(Slot { time, next: NONE, before: NONE, entry: Some(entry) });
        } else {
            let place = &mut self.slots[slot as usize];
            self.free = place.next;
            (place.time, place.entry) = (time, Some(entry));
        }
        self.append(slot, time);
        slot
    }

    /// The bucket of a time.
    #[inline]
    fn place(&self, time: Time) -> usize {
        let highest = ((time ^ self.last) | 1).ilog2();
        let Some(above) = highest.checked_sub(LOWEST) else { return time as usize % LOW_BUCKETS };
        let digit = above / DIGIT;
        LOW_BUCKETS + digit as usize * RADIX + (time >> (LOWEST + digit * DIGIT)) as usize % RADIX
    }

    /// Puts a slot behind all others of the bucket of its time.
    #[inline]
    fn append(&mut self, slot: u32, time: Time) {
        let place = self.place(time);
        let bucket = &mut self.buckets[place];
        let link = &mut self.slots[slot as usize];
        (link.next, link.before) = (NONE, bucket.last);
        if bucket.first == NONE {
            *bucket = Bucket { earliest: time, first: slot, last: slot };
            self.filled[place / 64] |= 1 << (place % 64);
            self.words |= 1 << (place / 64);
        } else {
            self.slots[bucket.last as usize].next = slot;
            (bucket.earliest, bucket.last) = (bucket.earliest.min(time), slot);
        }
    }

    /// Removes the entry in a slot.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Slot { time, next, before, .. } = self.slots[slot as usize];
        let place = self.place(time);
        let bucket = &mut self.buckets[place];
        if bucket.last == slot {
            bucket.last = before;
        } else {
            self.slots[next as usize].before = before;
        }
        if bucket.first != slot {
            self.slots[before as usize].next = next;
        } else {
            bucket.first = next;
            if next == NONE {
                self.empty(place);
            }
        }
        self.vacate(slot);
    }

    /// Takes the entry out of a slot that is in no list.
    #[inline]
    fn vacate(&mut self, slot: u32) -> Option<T> {
        let place = &mut self.slots[slot as usize];
        place.next = std::mem::replace(&mut self.free, slot);
        place.entry.take()
    }

    /// The bucket with the earliest entries.
    #[inline]
    fn first(&self) -> Option<usize> {
        let word = self.words.trailing_zeros() as usize;
        self.filled.get(word).map(|filled| word * 64 + filled.trailing_zeros() as usize)
    }

    /// A time that no entry is earlier than; the time of the next entry, unless one was removed.
    #[inline]
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.first().map(|place| self.buckets[place].earliest)
    }

    /// Takes the next entry, unless its time is later than this.
    #[inline]
    pub(crate) fn pop_within(&mut self, time: Time) -> Option<(Time, T)> {
        loop {
            let place = self.first()?;
            let Bucket { earliest, first: slot, .. } = self.buckets[place];
            if earliest > time {
                return None;
            }
            self.last = earliest;
            if place < LOW_BUCKETS {
                let next = self.slots[slot as usize].next;
                self.buckets[place].first = next;
                if next == NONE {
                    self.empty(place);
                }
                return self.vacate(slot).map(|entry| (earliest, entry));
            }
            let mut slot = self.empty(place);
            while slot != NONE {
                let Slot { time, next, .. } = self.slots[slot as usize];
                self.append(slot, time);
                slot = next;
            }
        }
    }

    /// Empties a bucket; says which slot was the first in it.
    fn empty(&mut self, place: usize) -> u32 {
        self.filled[place / 64] &= !(1 << (place % 64));
        self.words &= !(u128::from(self.filled[place / 64] == 0) << (place / 64));
        std::mem::replace(&mut self.buckets[place].first, NONE)
    }

    /// Keeps only what is wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].entry.as_ref().is_some_and(|entry| !is_wanted(entry)) {
                self.remove(slot as u32);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    #[test]
    fn equal_times_keep_their_order_and_all_others_are_sorted() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let (mut timeline, mut expected, mut now) = (Timeline::new(), BTreeMap::new(), 0);
        for number in 0..50_000u64 {
            let far = [1, 3, 50, 5_000, 1 << 40][rng.random_range(0..5)];
            let time = now + rng.random_range(0..far);
            if rng.random_bool(0.6) {
                expected.insert((time, number), timeline.push(time, number));
            } else if rng.random_bool(0.2) {
                if let Some((&key, &slot)) = expected.range((time, 0)..).next() {
                    timeline.remove(slot);
                    expected.remove(&key);
                }
            } else {
                assert!(timeline.next_time() <= expected.keys().next().map(|&(time, _)| time));
                let next = expected.pop_first().map(|(key, _)| key);
                assert_eq!(next.and_then(|(time, _)| timeline.pop_within(time.checked_sub(1)?)), None);
                assert_eq!(timeline.pop_within(Time::MAX), next);
                now = next.map_or(now, |(time, _)| time);
            }
            if number % 9_000 == 0 {
                timeline.retain(|number| number % 3 != 0);
                expected.retain(|(_, number), _| number % 3 != 0);
            }
        }
        while let Some(next) = timeline.pop_within(Time::MAX) {
            assert_eq!(Some(next), expected.pop_first().map(|(key, _)| key));
        }
        assert!(expected.is_empty() && timeline.is_empty());
        timeline.push(Time::MAX, 1);
        assert_eq!((timeline.next_time(), timeline.pop_within(Time::MAX)), (Some(Time::MAX), Some((Time::MAX, 1))));
    }
}
