//! What happens when: a queue by time, in which equal times keep their order.
//!
//! A radix heap. Times are never earlier than the last one taken. An entry is in the bucket of the highest digit in which
//! its time differs from that one, and moves to lower digits only: a few times, whatever the number of entries. The entries
//! of a bucket lie together in chunks, because most looks at one elsewhere would miss the caches.

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

/// Entries of a chunk: few enough for buckets that have one.
const CHUNK: usize = 6;

#[derive(Debug)]
pub(crate) struct Timeline<T> {
    /// The time that was taken last.
    last: Time,
    /// How many entries there are.
    len: usize,
    chunks: Chunks<T>,
    /// By digit, and by what that digit is.
    buckets: Vec<Bucket>,
    /// Which buckets are not empty, a bit each. The first of them has the earliest entries.
    filled: [u64; BUCKETS / 64],
    /// Which words of `filled` are not zero.
    words: u128,
}

/// No chunk.
const NONE: u32 = u32::MAX;

/// Entries in their order, and the chunk with those that follow. An entry that was taken or is not wanted leaves `None`.
#[derive(Debug)]
struct Chunk<T> {
    entries: [Option<(Time, T)>; CHUNK],
    next: u32,
}

/// The chunks of all buckets.
#[derive(Debug)]
struct Chunks<T> {
    all: Vec<Chunk<T>>,
    /// The first one that no bucket has; the others follow.
    free: u32,
}

impl<T> Chunks<T> {
    /// A chunk that no bucket has.
    #[inline]
    fn take(&mut self) -> u32 {
        let taken = self.free;
        if taken == NONE {
            self.all.push(Chunk { entries: [const { None }; CHUNK], next: NONE });
            return (self.all.len() - 1) as u32;
        }
        self.free = std::mem::replace(&mut self.all[taken as usize].next, NONE);
        taken
    }

    /// Takes a chunk back, and says which one followed it.
    #[inline]
    fn give_back(&mut self, chunk: u32) -> u32 {
        let next = std::mem::replace(&mut self.all[chunk as usize].next, self.free);
        self.free = chunk;
        next
    }
}

/// Entries in chunks: from `head` in the first one to `tail` in the last one.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// No entry is earlier.
    earliest: Time,
    first: u32,
    last: u32,
    head: u32,
    tail: u32,
}

impl Bucket {
    const EMPTY: Bucket = Bucket { earliest: Time::MAX, first: NONE, last: NONE, head: 0, tail: 0 };

    #[inline]
    fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Adds an entry behind the others.
    #[inline]
    fn append<T>(&mut self, chunks: &mut Chunks<T>, time: Time, entry: T) {
        if self.is_empty() {
            let chunk = chunks.take();
            (self.first, self.last) = (chunk, chunk);
        } else if self.tail as usize == CHUNK {
            let chunk = chunks.take();
            chunks.all[self.last as usize].next = chunk;
            (self.last, self.tail) = (chunk, 0);
        }
        chunks.all[self.last as usize].entries[self.tail as usize] = Some((time, entry));
        self.tail += 1;
        self.earliest = self.earliest.min(time);
    }

    /// Takes the next entry, if it is wanted, and gives a chunk back that has no other. The bucket must not be empty.
    #[inline]
    fn take<T>(&mut self, chunks: &mut Chunks<T>) -> Option<(Time, T)> {
        let taken = chunks.all[self.first as usize].entries[self.head as usize].take();
        self.head += 1;
        if self.first == self.last && self.head == self.tail {
            chunks.give_back(self.first);
            *self = Bucket::EMPTY;
        } else if self.head as usize == CHUNK {
            (self.first, self.head) = (chunks.give_back(self.first), 0);
        }
        taken
    }
}

impl<T> Timeline<T> {
    pub(crate) fn new() -> Self {
        let chunks = Chunks { all: Vec::new(), free: NONE };
        Timeline { last: 0, len: 0, chunks, buckets: vec![Bucket::EMPTY; BUCKETS], filled: [0; _], words: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry, behind those of the same time. No time may be earlier than the last one taken.
    #[inline]
    pub(crate) fn push(&mut self, time: Time, entry: T) {
        debug_assert!(time >= self.last, "{time} after {}", self.last);
        self.len += 1;
        self.append(time, entry);
    }

    /// The bucket of a time.
    #[inline]
    fn place(&self, time: Time) -> usize {
        let highest = ((time ^ self.last) | 1).ilog2();
        let Some(above) = highest.checked_sub(LOWEST) else { return time as usize % LOW_BUCKETS };
        let digit = above / DIGIT;
        LOW_BUCKETS + digit as usize * RADIX + (time >> (LOWEST + digit * DIGIT)) as usize % RADIX
    }

    /// Puts an entry behind all others of the bucket of its time.
    #[inline]
    fn append(&mut self, time: Time, entry: T) {
        let place = self.place(time);
        self.filled[place / 64] |= 1 << (place % 64);
        self.words |= 1 << (place / 64);
        self.buckets[place].append(&mut self.chunks, time, entry);
    }

    /// The bucket with the earliest entries.
    #[inline]
    fn first(&self) -> Option<usize> {
        let word = self.words.trailing_zeros() as usize;
        self.filled.get(word).map(|filled| word * 64 + filled.trailing_zeros() as usize)
    }

    /// A time that no entry is earlier than; the time of the next entry, unless that is no longer wanted.
    #[inline]
    pub(crate) fn next_time(&self) -> Option<Time> {
        self.first().filter(|_| self.len > 0).map(|place| self.buckets[place].earliest)
    }

    /// Takes the next entry, unless its time is later than this.
    #[inline]
    pub(crate) fn pop_within(&mut self, time: Time) -> Option<(Time, T)> {
        // Those that are not wanted may be later than the next time that something is pushed for.
        while self.len > 0 {
            let place = self.first()?;
            let earliest = self.buckets[place].earliest;
            if earliest > time {
                return None;
            }
            if place >= LOW_BUCKETS {
                self.spread(place);
                continue;
            }
            let taken = self.buckets[place].take(&mut self.chunks);
            if self.buckets[place].is_empty() {
                self.mark_empty(place);
            }
            if taken.is_some() {
                (self.last, self.len) = (earliest, self.len - 1);
                return taken;
            }
        }
        None
    }

    /// Moves the entries of a bucket to those of lower digits.
    fn spread(&mut self, place: usize) {
        self.last = self.buckets[place].earliest;
        self.mark_empty(place);
        let mut bucket = std::mem::replace(&mut self.buckets[place], Bucket::EMPTY);
        while !bucket.is_empty() {
            if let Some((time, entry)) = bucket.take(&mut self.chunks) {
                self.append(time, entry);
            }
        }
    }

    fn mark_empty(&mut self, place: usize) {
        self.filled[place / 64] &= !(1 << (place % 64));
        self.words &= !(u128::from(self.filled[place / 64] == 0) << (place / 64));
    }

    /// Keeps only what is wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        for place in self.chunks.all.iter_mut().flat_map(|chunk| &mut chunk.entries) {
            self.len -= usize::from(place.take_if(|(_, entry)| !is_wanted(entry)).is_some());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use rand::{RngExt, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    #[test]
    fn equal_times_keep_their_order_and_all_others_are_sorted() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let (mut timeline, mut expected, mut now) = (Timeline::new(), BTreeSet::new(), 0);
        for number in 0..50_000u64 {
            let far = [1, 3, 50, 5_000, 1 << 40][rng.random_range(0..5)];
            let time = now + rng.random_range(0..far);
            if rng.random_bool(0.6) {
                timeline.push(time, number);
                expected.insert((time, number));
            } else {
                assert!(timeline.next_time() <= expected.first().map(|&(time, _)| time));
                let next = expected.pop_first();
                assert_eq!(next.and_then(|(time, _)| timeline.pop_within(time.checked_sub(1)?)), None);
                assert_eq!(timeline.pop_within(Time::MAX), next);
                now = next.map_or(now, |(time, _)| time);
            }
            if number % 9_000 == 0 {
                timeline.retain(|number| number % 3 != 0);
                expected.retain(|(_, number)| number % 3 != 0);
            }
        }
        while let Some(next) = timeline.pop_within(Time::MAX) {
            now = next.0;
            assert_eq!(Some(next), expected.pop_first());
        }
        assert!(expected.is_empty() && timeline.is_empty());
        timeline.push(now + 100_000, 1);
        timeline.retain(|_| false);
        assert_eq!((timeline.next_time(), timeline.pop_within(Time::MAX)), (None, None));
        timeline.push(now + 1, 2);
        assert_eq!(timeline.pop_within(Time::MAX), Some((now + 1, 2)));
        let mut timeline = Timeline::new();
        timeline.push(Time::MAX, 1);
        assert_eq!((timeline.next_time(), timeline.pop_within(Time::MAX)), (Some(Time::MAX), Some((Time::MAX, 1))));
    }
}
