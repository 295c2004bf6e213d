//! What happens when: a queue by time, in which equal times keep their order.
//!
//! A radix heap. Times are never earlier than the last one taken. An entry is in the bucket of the highest digit in which
//! its time differs from that one, and moves to lower digits only: a few times, whatever the number of entries. A bucket
//! is a list of slots. Entries keep their slots; what has to be read to move them is apart from them, and fits into a
//! cache.

use crate::time::Time;

/// Bits of a digit: most times differ from the last one in the lowest two digits only.
const DIGIT: u32 = 8;
const RADIX: usize = 1 << DIGIT;
const DIGITS: usize = Time::BITS.div_ceil(DIGIT) as usize;
const BUCKETS: usize = DIGITS * RADIX;

#[derive(Debug)]
pub(crate) struct Timeline<T> {
    /// The time that was taken last.
    last: Time,
    entries: Vec<Option<T>>,
    /// By slot: the time of its entry.
    times: Vec<Time>,
    /// By slot: the one behind it in its list.
    next: Vec<u32>,
    /// The first slot without an entry.
    free: u32,
    /// By digit, and by what that digit is.
    buckets: Vec<Bucket>,
    /// Which buckets are not empty, a bit each. The first of them has the earliest entries.
    filled: [u64; BUCKETS / 64],
}

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    earliest: Time,
    first: u32,
    last: u32,
}

impl<T> Timeline<T> {
    pub(crate) fn new() -> Self {
        let buckets = vec![Bucket { earliest: Time::MAX, first: NONE, last: NONE }; BUCKETS];
        let (entries, times, next) = (Vec::new(), Vec::new(), Vec::new());
        Timeline { last: 0, entries, times, next, free: NONE, buckets, filled: [0; _] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Adds an entry, behind those of the same time. No time may be earlier than the last one taken.
    #[inline]
    pub(crate) fn push(&mut self, time: Time, entry: T) {
        debug_assert!(time >= self.last, "{time} after {}", self.last);
        let mut slot = self.free;
        if slot == NONE {
            slot = self.entries.len() as u32;
            self.entries.push(Some(entry));
            self.times.push(time);
            self.next.push(NONE);
        } else {
            self.free = self.next[slot as usize];
            self.entries[slot as usize] = Some(entry);
            self.times[slot as usize] = time;
        }
        self.append(slot, time);
    }

    /// Puts a slot behind all others of the bucket of its time.
    #[inline]
    fn append(&mut self, slot: u32, time: Time) {
        let digit = (time ^ self.last).checked_ilog2().unwrap_or(0) / DIGIT;
        let place = digit as usize * RADIX + (time >> (digit * DIGIT)) as usize % RADIX;
        let bucket = &mut self.buckets[place];
        self.next[slot as usize] = NONE;
        if bucket.first == NONE {
            *bucket = Bucket { earliest: time, first: slot, last: slot };
            self.filled[place / 64] |= 1 << (place % 64);
        } else {
            self.next[bucket.last as usize] = slot;
            (bucket.earliest, bucket.last) = (bucket.earliest.min(time), slot);
        }
    }

    /// The bucket with the earliest entries.
    #[inline]
    fn first(&self) -> Option<usize> {
        let word = self.filled.iter().position(|&filled| filled != 0)?;
        Some(word * 64 + self.filled[word].trailing_zeros() as usize)
    }

    /// The time of the next entry.
    #[inline]
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.first().map(|place| self.buckets[place].earliest)
    }

    /// Takes the next entry.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        let mut place = self.first()?;
        self.last = self.buckets[place].earliest;
        if place >= RADIX {
            // The earliest of them go to the lowest digit, in which all entries of a bucket have the same time.
            let mut slot = self.empty(place);
            while slot != NONE {
                let next = self.next[slot as usize];
                self.append(slot, self.times[slot as usize]);
                // Soon it is taken. A processor loads several of them at once here, and waits for each of them there.
                std::hint::black_box(self.entries[slot as usize].is_some());
                slot = next;
            }
            place = self.last as usize % RADIX;
        }
        let slot = self.buckets[place].first;
        let next = std::mem::replace(&mut self.next[slot as usize], self.free);
        self.free = slot;
        self.buckets[place].first = next;
        if next == NONE {
            self.empty(place);
        }
        self.entries[slot as usize].take().map(|entry| (self.last, entry))
    }

    /// Empties a bucket; says which slot was the first in it.
    fn empty(&mut self, place: usize) -> u32 {
        self.filled[place / 64] &= !(1 << (place % 64));
        std::mem::replace(&mut self.buckets[place].first, NONE)
    }

    /// Keeps only what is wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        for place in 0..BUCKETS {
            let mut slot = self.empty(place);
            while slot != NONE {
                let next = self.next[slot as usize];
                let entry = &mut self.entries[slot as usize];
                if entry.as_ref().is_some_and(&is_wanted) {
                    self.append(slot, self.times[slot as usize]);
                } else {
                    *entry = None;
                    self.next[slot as usize] = std::mem::replace(&mut self.free, slot);
                }
                slot = next;
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
            if rng.random_bool(0.52) {
                let time = now + rng.random_range(0..far);
                timeline.push(time, number);
                expected.insert((time, number), ());
            } else {
                assert_eq!(timeline.next_time(), expected.keys().next().map(|&(time, _)| time));
                let next = expected.pop_first().map(|(key, ())| key);
                assert_eq!(timeline.pop(), next);
                now = next.map_or(now, |(time, _)| time);
            }
            if number % 9_000 == 0 {
                timeline.retain(|number| number % 3 != 0);
                expected.retain(|(_, number), ()| number % 3 != 0);
            }
        }
        while let Some(next) = timeline.pop() {
            assert_eq!(Some(next), expected.pop_first().map(|(key, ())| key));
        }
        assert!(expected.is_empty() && timeline.is_empty());
        timeline.push(Time::MAX, 1);
        assert_eq!((timeline.next_time(), timeline.pop()), (Some(Time::MAX), Some((Time::MAX, 1))));
    }
}
