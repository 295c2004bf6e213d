//! What happens when: a queue by time, in which equal times keep their order.
//!
//! A radix heap. Times are never earlier than the last one taken, so an entry lies in the bucket of the highest bit in
//! which it differs from that, and moves to lower buckets only: a few times, whatever the number of entries.

/// Nanoseconds of virtual time.
pub(crate) type Time = u64;

const BUCKETS: usize = Time::BITS as usize + 1;

#[derive(Debug)]
pub(crate) struct Timeline<T> {
    /// The time that was taken last.
    last: Time,
    /// Bucket 0 has what differs in no bit; the others the times that differ in that bit first.
    buckets: Vec<Bucket>,
    /// Buckets above the first that are not empty, a bit each: bucket 1 is bit 0.
    filled: u64,
    /// How many of bucket 0 were taken.
    taken: usize,
    /// Entries lie still, and their buckets say where.
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Bucket {
    /// Times and entries, in the order in which they came.
    places: Vec<(Time, u32)>,
    /// The earliest of these times.
    earliest: Time,
}

impl Bucket {
    const EMPTY: Bucket = Bucket { places: Vec::new(), earliest: Time::MAX };

    fn push(&mut self, time: Time, entry: u32) {
        self.earliest = self.earliest.min(time);
        self.places.push((time, entry));
    }
}

impl<T> Timeline<T> {
    pub(crate) fn new() -> Self {
        let (entries, free) = (Vec::new(), Vec::new());
        Timeline { last: 0, buckets: vec![Bucket::EMPTY; BUCKETS], filled: 0, taken: 0, entries, free }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next_time().is_none()
    }

    /// Adds an entry, behind those of the same time. No time may be earlier than the last one taken.
    pub(crate) fn push(&mut self, time: Time, entry: T) {
        debug_assert!(time >= self.last, "{time} after {}", self.last);
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[place as usize] = Some(entry);
        self.place(time.max(self.last), place);
    }

    fn place(&mut self, time: Time, entry: u32) {
        let bucket = BUCKETS - 1 - (time ^ self.last).leading_zeros() as usize;
        if bucket > 0 {
            self.filled |= 1 << (bucket - 1);
        }
        self.buckets[bucket].push(time, entry);
    }

    /// The lowest bucket above the first that is not empty.
    fn lowest(&self) -> Option<usize> {
        (self.filled != 0).then(|| self.filled.trailing_zeros() as usize + 1)
    }

    /// The time of the next entry.
    pub(crate) fn next_time(&self) -> Option<Time> {
        if self.taken < self.buckets[0].places.len() {
            return Some(self.last);
        }
        self.lowest().map(|bucket| self.buckets[bucket].earliest)
    }

    /// Takes the next entry.
    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        if self.taken == self.buckets[0].places.len() {
            self.refill()?;
        }
        let (time, place) = self.buckets[0].places[self.taken];
        self.taken += 1;
        self.free.push(place);
        self.entries[place as usize].take().map(|entry| (time, entry))
    }

    /// Moves the entries of the lowest bucket: those of the earliest time to bucket 0, the others to buckets between.
    fn refill(&mut self) -> Option<()> {
        let bucket = self.lowest()?;
        self.buckets[0].places.clear();
        self.taken = 0;
        self.filled &= !(1 << (bucket - 1));
        let Bucket { mut places, earliest } = std::mem::replace(&mut self.buckets[bucket], Bucket::EMPTY);
        self.last = earliest;
        places.drain(..).for_each(|(time, entry)| self.place(time, entry));
        // Nothing came to this bucket: it keeps its memory.
        self.buckets[bucket].places = places;
        Some(())
    }

    /// Keeps only what is wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&T) -> bool) {
        let Timeline { buckets, filled, taken, entries, free, .. } = self;
        buckets[0].places.drain(..std::mem::take(taken));
        for (index, bucket) in buckets.iter_mut().enumerate() {
            bucket.places.retain(|&(_, place)| {
                let entry = &mut entries[place as usize];
                let keeps = entry.as_ref().is_some_and(&is_wanted);
                if !keeps {
                    *entry = None;
                    free.push(place);
                }
                keeps
            });
            bucket.earliest = bucket.places.iter().map(|&(time, _)| time).min().unwrap_or(Time::MAX);
            if index > 0 && bucket.places.is_empty() {
                *filled &= !(1 << (index - 1));
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
