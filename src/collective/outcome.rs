//! What a round leads to, as every receiver sees it.
#![forbid(unsafe_code)]

use std::ops::{Deref, RangeInclusive};

use super::allreduce::Allreduce;
use super::core::{Cut, Part};
use crate::error::Result;
use crate::rank_set::RankSet;
use crate::reduce::{self, Element};

/// The outcomes that a call returned, oldest first. The rounds are released (their memory may be
/// used again) when this and every [`Outcome`] of it are dropped.
#[derive(Debug)]
pub struct Outcomes<'a, T: Element> {
    of: &'a Allreduce<T>,
    rounds: RangeInclusive<u64>,
}

/// The outcome of one round: data, round and cut. Read in place.
#[derive(Debug)]
pub struct Outcome<'a, T: Element> {
    of: &'a Allreduce<T>,
    data: &'a [T],
    round: u64,
    /// The first round that was returned together with this one.
    first: u64,
}

impl<'a, T: Element> Outcomes<'a, T> {
    pub(super) fn new(of: &'a Allreduce<T>, rounds: RangeInclusive<u64>) -> Self {
        of.raw().hold();
        Outcomes { of, rounds }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.rounds.end() + 1).saturating_sub(*self.rounds.start()) as usize
    }

    /// Never: a call that returns outcomes returns one or more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    /// The outcomes, oldest first; none is released while this is borrowed.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Outcome<'a, T>> + use<'_, 'a, T> {
        let (of, rounds) = (self.of, self.rounds.clone());
        let first = *rounds.start();
        rounds.map(move |round| Outcome::new(of, round, first))
    }

    /// The sum of all outcomes, element by element, oldest first: what a rank that was away has to
    /// catch up on, in one step. One outcome alone is copied.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if `into` is not as long as an outcome.
    pub fn sum_into(&self, into: &mut [T]) -> Result<()> {
        let outcomes: Vec<Outcome<'_, T>> = self.iter().collect();
        let sources: Vec<&[T]> = outcomes.iter().map(|outcome| outcome.data).collect();
        if sources.iter().any(|source| source.len() != into.len()) {
            let problem = "the buffer must be as long as all tensors of an outcome together";
            return Err(self.of.usage("sum_into", problem));
        }
        reduce::sum(&sources, into);
        Ok(())
    }

    /// The newest.
    #[must_use]
    pub fn newest(&self) -> Outcome<'a, T> {
        Outcome::new(self.of, *self.rounds.end(), *self.rounds.start())
    }
}

impl<'a, T: Element> IntoIterator for Outcomes<'a, T> {
    type Item = Outcome<'a, T>;
    type IntoIter = IntoIter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        IntoIter { rounds: self.rounds.clone(), outcomes: self }
    }
}

/// Outcomes one by one, oldest first. None is released before all are dropped, and this is.
#[derive(Debug)]
pub struct IntoIter<'a, T: Element> {
    rounds: RangeInclusive<u64>,
    outcomes: Outcomes<'a, T>,
}

impl<'a, T: Element> Iterator for IntoIter<'a, T> {
    type Item = Outcome<'a, T>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = *self.outcomes.rounds.start();
        self.rounds.next().map(|round| Outcome::new(self.outcomes.of, round, first))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rounds.size_hint()
    }
}

impl<T: Element> Drop for Outcomes<'_, T> {
    fn drop(&mut self) {
        self.of.raw().drop_one();
    }
}

impl<'a, T: Element> Outcome<'a, T> {
    fn new(of: &'a Allreduce<T>, round: u64, first: u64) -> Self {
        of.raw().hold();
        Outcome { of, data: of.data(round), round, first }
    }

    /// The reduced elements, scaled.
    #[must_use]
    pub fn data(&self) -> &[T] {
        self.data
    }

    /// One tensor; nothing if there is none of this number.
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<&[T]> {
        self.data.get(self.of.tensor_range(index)?)
    }

    /// The round, counted from 1.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whose contributions it holds, and how old they are.
    #[must_use]
    pub fn cut(&self) -> &'a Cut {
        self.of.cut(self.round)
    }

    /// Ranks with a fresh contribution. (A copy; [`Outcome::cut`] allocates nothing.)
    #[must_use]
    pub fn fresh(&self) -> RankSet {
        self.cut().fresh()
    }

    /// Ranks with a carried contribution.
    #[must_use]
    pub fn carried(&self) -> RankSet {
        self.cut().carried()
    }

    /// The rank that closed the cut; none in a synchronous round, or where a provider counted the arrivals.
    #[must_use]
    pub fn initiator(&self) -> Option<u32> {
        self.cut().initiator()
    }

    /// Ages of the contributions by rank, in rounds: 0 for fresh ones.
    #[must_use]
    pub fn ages(&self) -> Vec<(u32, u64)> {
        self.cut().contributions().map(|entry| (entry.rank, entry.age)).collect()
    }

    /// How many rounds late a rank is: rounds since it was last fresh, 0 if it is now.
    #[must_use]
    pub fn rounds_late(&self, rank: u32) -> u64 {
        let fresh_in = |round: &u64| self.of.cut(*round).holds(rank, Part::Fresh);
        let newest = (self.first..=self.round).rev().find(fresh_in);
        let before = || self.of.raw().session().last_fresh(rank);
        self.round - newest.unwrap_or_else(before)
    }
}

impl<T: Element> Deref for Outcome<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.data
    }
}

impl<T: Element> Drop for Outcome<'_, T> {
    fn drop(&mut self) {
        self.of.raw().drop_one();
    }
}
