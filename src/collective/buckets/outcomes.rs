//! The outcomes of a step in buckets.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::collective::checkpoint::Checkpoint;
use crate::collective::core::Cut;
use crate::collective::outcome::{Outcome, Outcomes};
use crate::error::Result;
use crate::reduce::Item;

/// The outcomes that a wait for all buckets returned: one for each round, with the same rounds in every bucket.
/// Synchronous rounds give one outcome. The memory of the outcomes may be used again when this value is dropped.
#[derive(Debug)]
pub struct BucketOutcomes<'a, T: Item> {
    /// The tensors of each bucket whose outcomes are here, and its outcomes.
    parts: Vec<(Range<usize>, Outcomes<'a, T>)>,
    lengths: Arc<[usize]>,
}

/// The outcome of one round in all buckets.
#[derive(Debug)]
pub struct BucketOutcome<'a, T: Item> {
    /// The outcome of each bucket; at least one.
    parts: Vec<(Range<usize>, Outcome<'a, T>)>,
    lengths: Arc<[usize]>,
}

impl<'a, T: Item> BucketOutcomes<'a, T> {
    pub(super) fn new(parts: Vec<(Range<usize>, Outcomes<'a, T>)>, lengths: Arc<[usize]>) -> Self {
        BucketOutcomes { parts, lengths }
    }

    /// Returns the reduced elements of a tensor in the newest outcome. `None` if `index` is not the number of a tensor,
    /// or if [`wait_bucket`](super::BucketedAllreduce::wait_bucket) returned the outcomes of its bucket.
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<&[T]> {
        let (tensors, outcomes) = self.parts.iter().find(|(tensors, _)| tensors.contains(&index))?;
        outcomes.newest_tensor(index - tensors.start)
    }

    /// Returns the number of outcomes: more than 1 if this rank was late; 0 if
    /// [`wait_bucket`](super::BucketedAllreduce::wait_bucket) returned those of all buckets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.first().map_or(0, |(_, outcomes)| outcomes.len())
    }

    /// Keeps the rounds, as [`Outcomes::keep`] does; [`BucketedAllreduce::kept`](super::BucketedAllreduce::kept)
    /// returns the outcomes. `None` if the outcomes of all buckets were returned before.
    pub fn keep(self) -> Option<RangeInclusive<u64>> {
        self.parts.into_iter().map(|(_, outcomes)| outcomes.keep()).fold(None, |_, rounds| Some(rounds))
    }

    /// Returns whether the outcomes of all buckets were returned before.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Iterates over the outcomes, oldest first. A rank that was late must catch up on all of them. Allocates.
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

    /// Returns the reduced and scaled elements of a tensor; `None` as in [`BucketOutcomes::tensor`].
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<&[T]> {
        let (tensors, outcome) = self.parts.iter().find(|(tensors, _)| tensors.contains(&index))?;
        outcome.tensor(index - tensors.start)
    }

    /// Returns the round, counted from 1, also if the buckets have changed.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.parts[0].1.round()
    }

    /// Returns the contributions in the round, which are the same in all buckets: ranks, kinds and ages.
    #[must_use]
    pub fn cut(&self) -> &Cut {
        self.parts[0].1.cut()
    }

    /// As [`Outcome::can_checkpoint`].
    #[must_use]
    pub fn can_checkpoint(&self) -> bool {
        self.parts[0].1.can_checkpoint()
    }

    /// As [`Outcome::checkpoint`]. Buckets resume from it under a partial rule, too, and no late contribution is lost.
    ///
    /// # Errors
    /// As [`Outcome::checkpoint`].
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.parts[0].1.checkpoint_of(&self.lengths)
    }
}
