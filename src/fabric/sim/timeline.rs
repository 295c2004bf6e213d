//! What happens when: a queue by time, in which equal times keep their order.
//!
//! A radix heap. Times are never earlier than the last one taken. An entry lies in the bucket of the highest digit in
//! which its time differs from that one, and moves to lower digits only: a few times, whatever the number of entries.

use std::collections::VecDeque;

use crate::time::Time;

/// Bits of a digit.
const DIGIT: u32 = 6;
const RADIX: usize = 1 << DIGIT;
const DIGITS: usize = Time::BITS.div_ceil(DIGIT) as usize;

#[derive(Debug)]
pub(crate) struct Timeline<T> {
    /// The time that was taken last.
    last: Time,
    /// The entries of that time.
    due: VecDeque<T>,
    /// All others, by the highest digit in which they differ from it, and by what that digit is.
    buckets: Vec<Bucket<T>>,
    /// Which buckets of each digit are not empty, a bit each.
    filled: [u64; DIGITS],
    /// Empty chunks.
    spare: Vec<Chunk<T>>,
}

/// Some entries, in the order in which they came. Buckets take chunks, so they need memory for what they have now and not
/// for the most they ever had.
type Chunk<T> = Vec<(Time, T)>;

/// Entries of a chunk.
const CHUNK: usize = 32;

#[derive(Debug)]
struct Bucket<T> {
    earliest: Time,
    /// Those before the last.
    chunks: Vec<Chunk<T>>,
    last: Chunk<T>,
}

impl<T> Timeline<T> {
    pub(crate) fn new() -> Self {
        let empty = || Bucket { earliest: Time::MAX, chunks: Vec::new(), last: Chunk::new() };
        let buckets = std::iter::repeat_with(empty).take(DIGITS * RADIX).collect();
        Timeline { last: 0, due: VecDeque::new(), buckets, filled: [0; DIGITS], spare: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next_time().is_none()
    }

    /// Adds an entry, behind those of the same time. No time may be earlier than the last one taken.
    pub(crate) fn push(&mut self, time: Time, entry: T) {
        debug_assert!(time >= self.last, "{time} after {}", self.last);
        let Some(highest) = (time ^ self.last).checked_ilog2() else { return self.due.push_back(entry) };
        let digit = (highest / DIGIT) as usize;
        let value = (time >> (digit as u32 * DIGIT)) as usize % RADIX;
        self.filled[digit] |= 1 << value;
        let bucket = &mut self.buckets[digit * RADIX + value];
        bucket.earliest = bucket.earliest.min(time);
        if bucket.last.len() == bucket.last.capacity() {
            let empty = self.spare.pop().unwrap_or_else(|| Chunk::with_capacity(CHUNK));
            let full = std::mem::replace(&mut bucket.last, empty);
            bucket.chunks.extend(Some(full).filter(|full| !full.is_empty()));
        }
        bucket.last.push((time, entry));
    }

    /// The bucket with the earliest entries that are not due: its digit, and what that is.
    fn first(&self) -> Option<(usize, usize)> {
        let digit = self.filled.iter().position(|&filled| filled != 0)?;
        Some((digit, self.filled[digit].trailing_zeros() as usize))
    }

    /// The time of the next entry.
    pub(crate) fn next_time(&self) -> Option<Time> {
        if !self.due.is_empty() {
            return Some(self.last);
        }
        self.first().map(|(digit, value)| self.buckets[digit * RADIX + value].earliest)
    }

    /// Takes the next entry.
    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        if self.due.is_empty() {
            self.refill()?;
        }
        self.due.pop_front().map(|entry| (self.last, entry))
    }

    /// Spreads the first bucket: the earliest of its entries are due, the others go to those of lower digits.
    fn refill(&mut self) -> Option<()> {
        let (digit, value) = self.first()?;
        self.filled[digit] &= !(1 << value);
        let bucket = &mut self.buckets[digit * RADIX + value];
        self.last = std::mem::replace(&mut bucket.earliest, Time::MAX);
        let (mut chunks, last) = (std::mem::take(&mut bucket.chunks), std::mem::take(&mut bucket.last));
        // It begins anew, in memory that may be in a cache.
        self.due.clear();
        for mut chunk in chunks.drain(..).chain([last]) {
            if digit == 0 {
                self.due.extend(chunk.drain(..).map(|(_, entry)| entry));
            } else {
                chunk.drain(..).for_each(|(time, entry)| self.push(time, entry));
            }
            self.spare.push(chunk);
        }
        // No entry came back to this bucket.
        self.buckets[digit * RADIX + value].chunks = chunks;
        Some(())
    }

    /// Keeps only what is wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        self.due.retain(&is_wanted);
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            let Bucket { earliest, chunks, last } = bucket;
            chunks.iter_mut().chain([&mut *last]).for_each(|chunk| chunk.retain(|(_, entry)| is_wanted(entry)));
            let left = chunks.iter().flatten().chain(&*last).map(|&(time, _)| time).min();
            *earliest = left.unwrap_or(Time::MAX);
            if left.is_none() {
                self.filled[index / RADIX] &= !(1 << (index % RADIX));
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
