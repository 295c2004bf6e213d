//! The outcomes of a step in buckets.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::collective::checkpoint::Checkpoint;
use crate::collective::core::Cut;
use crate::collective::outcome::{Outcome, Outcomes};
use crate::error::Result;
use crate::reduce::Item;

/// The outcomes that a wait for all buckets returned: one for each round, the same rounds of every bucket. Under
/// synchronous rounds it is one. When this is dropped, their memory may be used again.
#[derive(Debug)]
pub struct BucketOutcomes<'a, T: Item> {
    /// The tensors of each bucket whose outcomes are here, and these.
    parts: Vec<(Range<usize>, Outcomes<'a, T>)>,
    lengths: Arc<[usize]>,
}

/// The outcome of one round in all buckets.
#[derive(Debug)]
pub struct BucketOutcome<'a, T: Item> {
    /// One or more.
    parts: Vec<(Range<usize>, Outcome<'a, T>)>,
    lengths: Arc<[usize]>,
}

impl<'a, T: Item> BucketOutcomes<'a, T> {
    pub(super) fn new(parts: Vec<(Range<usize>, Outcomes<'a, T>)>, lengths: Arc<[usize]>) -> Self {
        BucketOutcomes { parts, lengths }
    }

    /// The reduced elements of a tensor in the newest outcome; `None` if there is none of this number, or if the outcomes
    /// of its bucket were returned by [`wait_bucket`](super::BucketedAllreduce::wait_bucket).
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<&[T]> {
        let (tensors, outcomes) = self.parts.iter().find(|(tensors, _)| tensors.contains(&index))?;
        outcomes.newest_tensor(index - tensors.start)
    }

    /// The number of outcomes: more than 1 if this rank was late; 0 if those of all buckets were returned by
    /// [`wait_bucket`](super::BucketedAllreduce::wait_bucket).
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.first().map_or(0, |(_, outcomes)| outcomes.len())
    }

    /// As [`Outcomes::keep`]: [`BucketedAllreduce::kept`](super::BucketedAllreduce::kept) gives the outcomes. `None` if
    /// those of all buckets were returned before.
    pub fn keep(self) -> Option<RangeInclusive<u64>> {
        self.parts.into_iter().map(|(_, outcomes)| outcomes.keep()).fold(None, |_, rounds| Some(rounds))
    }

    /// Whether the outcomes of all buckets were returned before.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The outcomes, oldest first. A rank that was late has to catch up on all of them. Allocates.
    pub fn iter(&self) -> impl Iterator<Item = BucketOutcome<'a, T>> + '_ {
        let mut rounds: Vec<_> = self.parts.iter().map(|(tensors, outcomes)| (tensors, outcomes.iter())).collect();
        (0..self.len()).map(move |_| BucketOutcome {
            parts: rounds
                .iter_mut()
                .filter_map(|(tensors, outcomes)| Some((tensors.clone(), outcomes.next()?)))
                .collect(),
            lengths: self.lengths.clone(),
        })
    }
}

impl<'a, T: Item> BucketOutcome<'a, T> {
    pub(super) fn new(parts: Vec<(Range<usize>, Outcome<'a, T>)>, lengths: Arc<[usize]>) -> Self {
        BucketOutcome { parts, lengths }
    }

    /// The reduced elements of a tensor, scaled; `None` as in [`BucketOutcomes::tensor`].
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<&[T]> {
        let (tensors, outcome) = self.parts.iter().find(|(tensors, _)| tensors.contains(&index))?;
        outcome.tensor(index - tensors.start)
    }

    /// The round, counted from 1, also where buckets have changed.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.parts[0].1.round()
    }

    /// The contributions in it, the same in all buckets: ranks, kinds and ages.
    #[must_use]
    pub fn cut(&self) -> &Cut {
        self.parts[0].1.cut()
    }

    /// As [`Outcome::can_checkpoint`].
    #[must_use]
    pub fn can_checkpoint(&self) -> bool {
        self.parts[0].1.can_checkpoint()
    }

    /// As [`Outcome::checkpoint`]: buckets go on from there under a partial rule, too, with nothing lost that was late.
    ///
    /// # Errors
    /// As [`Outcome::checkpoint`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.parts[0].1.checkpoint_of(&self.lengths)
    }
}
