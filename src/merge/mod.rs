//! Which gradients share a message. A model's gradients become ready one after the other, from the
//! last layer to the first. A message with many of them pays its fixed cost once, and waits for the
//! last of them.
//!
//! The model has one channel, which sends one message at a time. A message of *m* bytes takes
//! α + β *m*. It begins when its last gradient is ready and the message before it has ended.
//!
//! [`Merging::Optimal`] makes the last message end at the earliest possible time:
//! - Messages are sent in the order of their last gradients; another order only waits longer.
//! - Buckets of consecutive gradients suffice. Move a gradient from its message to an earlier message that waits for a
//!   later gradient. That message ends later by the gradient's β *m*. The message that it was moved from is shorter by
//!   the same amount, so it and all messages after it end no later.
//! - The earlier a message begins, the earlier it ends. So of all plans for the first *i* gradients
//!   only the earliest end matters.
//!
//! Times are whole nanoseconds; the time of a message is rounded down. So equal input gives the same plan on every
//! rank.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

/// The cost of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// α: the fixed time of every message.
    pub message: Duration,
    /// β: the additional time of each MiB.
    pub per_mib: Duration,
}

impl Cost {
    /// Returns the time of a message of `bytes` bytes; centuries if that overflows.
    pub fn of(self, bytes: u64) -> Duration {
        Duration::from_nanos(Rates::from(self).of(bytes))
    }
}

/// A gradient. The gradients of a model are listed in the order in which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient {
    /// When it is computed, counted from the beginning of the backward pass.
    pub ready: Duration,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Gradients that share a message, and when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Indices of its gradients in the list; at least one.
    pub gradients: Range<usize>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// When the message begins, counted from the beginning of the backward pass.
    pub begin: Duration,
    /// When it has arrived.
    pub end: Duration,
}

/// How gradients are divided into buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// The last message ends as early as possible.
    Optimal,
    /// Each gradient has its own bucket.
    Each,
    /// All gradients share one bucket.
    One,
    /// A bucket is complete once it has at least this number of bytes.
    Bytes(u64),
}

/// Makes plans, and keeps its memory: planning again for at most the same number of gradients allocates nothing.
#[derive(Debug, Default)]
pub struct Planner {
    best: Vec<Best>,
    buckets: Vec<Bucket>,
}

/// The best plan for the first gradients of a list.
#[derive(Clone, Copy, Debug)]
struct Best {
    /// When its last message ends.
    end: u64,
    /// The first gradient of that message.
    first: usize,
    /// Bytes of all these gradients.
    bytes: u64,
}

/// A [`Cost`] in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Rates {
    message: u64,
    per_mib: u64,
}

impl From<Cost> for Rates {
    fn from(cost: Cost) -> Self {
        Rates { message: nanoseconds(cost.message), per_mib: nanoseconds(cost.per_mib) }
    }
}

impl Rates {
    fn of(self, bytes: u64) -> u64 {
        let data = (u128::from(self.per_mib) * u128::from(bytes)) >> 20;
        self.message.saturating_add(u64::try_from(data).unwrap_or(u64::MAX))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Planner {
    /// Divides gradients into buckets, and computes when each message begins and ends. A gradient that is ready before
    /// an earlier one of the list waits for it. The time of [`Merging::Optimal`] grows with the square of the number of
    /// gradients, and that of the others with the number.
    pub fn plan(&mut self, merging: Merging, gradients: &[Gradient], cost: Cost) -> &[Bucket] {
        self.buckets.clear();
        self.buckets.reserve(gradients.len());
        match merging {
            Merging::Optimal => self.optimize(gradients, cost.into()),
            Merging::Each => self.fill(gradients, 0),
            Merging::One => self.fill(gradients, u64::MAX),
            Merging::Bytes(bytes) => self.fill(gradients, bytes),
        }
        self.send(gradients, cost.into());
        &self.buckets
    }

    /// Computes when each message of given buckets begins and ends. Buckets hold the gradients in their order, each
    /// once.
    pub fn schedule(&mut self, buckets: &[Range<usize>], gradients: &[Gradient], cost: Cost) -> &[Bucket] {
        self.buckets.clear();
        for bucket in buckets {
            let bytes =
                gradients[bucket.clone()].iter().fold(0_u64, |sum, gradient| sum.saturating_add(gradient.bytes));
            self.add(bucket.clone(), bytes);
        }
        self.send(gradients, cost.into());
        &self.buckets
    }

    /// Adds a bucket without its times.
    fn add(&mut self, gradients: Range<usize>, bytes: u64) {
        self.buckets.push(Bucket { gradients, bytes, begin: Duration::ZERO, end: Duration::ZERO });
    }

    fn fill(&mut self, gradients: &[Gradient], enough: u64) {
        let (mut first, mut bytes) = (0, 0_u64);
        for (index, gradient) in gradients.iter().enumerate() {
            bytes = bytes.saturating_add(gradient.bytes);
            if bytes >= enough || index + 1 == gradients.len() {
                self.add(first..index + 1, bytes);
                (first, bytes) = (index + 1, 0);
            }
        }
    }

    fn optimize(&mut self, gradients: &[Gradient], rates: Rates) {
        self.best.clear();
        self.best.reserve(gradients.len() + 1);
        self.best.push(Best { end: 0, first: 0, bytes: 0 });
        let (mut ready, mut bytes) = (0, 0_u64);
        for gradient in gradients {
            ready = nanoseconds(gradient.ready).max(ready);
            bytes = bytes.saturating_add(gradient.bytes);
            let mut best = Best { end: u64::MAX, first: 0, bytes };
            for (first, before) in self.best.iter().enumerate() {
                let end = before.end.max(ready).saturating_add(rates.of(bytes - before.bytes));
                if end < best.end {
                    (best.end, best.first) = (end, first);
                }
            }
            self.best.push(best);
        }
        // Each plan names its last bucket, so the buckets are found from the last one to the first.
        let mut after = gradients.len();
        while after > 0 {
            let Best { first, bytes, .. } = self.best[after];
            self.add(first..after, bytes - self.best[first].bytes);
            after = first;
        }
        self.buckets.reverse();
    }

    fn send(&mut self, gradients: &[Gradient], rates: Rates) {
        let mut end = 0_u64;
        for bucket in &mut self.buckets {
            let ready = gradients[bucket.gradients.clone()].iter().map(|gradient| nanoseconds(gradient.ready));
            let begin = ready.fold(end, u64::max);
            end = begin.saturating_add(rates.of(bucket.bytes));
            (bucket.begin, bucket.end) = (Duration::from_nanos(begin), Duration::from_nanos(end));
        }
    }
}
