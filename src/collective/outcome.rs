//! The outcome of a round, as every receiver sees it.
#![forbid(unsafe_code)]

use std::ops::{Deref, RangeInclusive};

use super::allreduce::Allreduce;
use super::core::{Cut, Entry, Part};
use crate::error::Result;
use crate::rank_set::RankSet;
use crate::reduce::{self, Element};
use crate::rule::Absent;

/// The outcomes that a call returned, oldest first. When this and every [`Outcome`] of it are
/// dropped, the rounds are released: their memory may be used again.
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
    /// The first round that the same call returned.
    first: u64,
}

impl<'a, T: Element> Outcomes<'a, T> {
    pub(super) fn new(of: &'a Allreduce<T>, rounds: RangeInclusive<u64>) -> Self {
        of.raw().hold();
        Outcomes { of, rounds }
    }

    /// The number of outcomes: 1 or more.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.rounds.end() + 1).saturating_sub(*self.rounds.start()) as usize
    }

    /// Always false: a call that returns outcomes returns one or more.
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
    /// catch up on, in one step. A single outcome is copied.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if `into` has another length than an outcome, or if outcomes are models: the
    /// newest has all that came before.
    pub fn sum_into(&self, into: &mut [T]) -> Result<()> {
        if self.of.raw().session().plan().has_memory() {
            return Err(self.of.usage("sum_into", "outcomes are models, and are not added; take the newest"));
        }
        let outcomes: Vec<Outcome<'_, T>> = self.iter().collect();
        let sources: Vec<&[T]> = outcomes.iter().map(|outcome| outcome.data).collect();
        if sources.iter().any(|source| source.len() != into.len()) {
            let problem = "the buffer must be as long as all tensors of an outcome together";
            return Err(self.of.usage("sum_into", problem));
        }
        reduce::sum(&sources, into);
        Ok(())
    }

    /// The newest outcome.
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

/// Iterates over outcomes, oldest first. None is released before all of them and this are dropped.
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

    /// The reduced elements, scaled; where ranks have a [`memory`](crate::AllreduceBuilder::memory), this rank's model.
    #[must_use]
    pub fn data(&self) -> &[T] {
        self.data
    }

    /// One tensor; `None` if there is none of this number.
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<&[T]> {
        self.data.get(self.of.tensor_range(index)?)
    }

    /// The round, counted from 1.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The contributions in it: ranks, kinds and ages. Where ranks average in groups, those of all groups.
    #[must_use]
    pub fn cut(&self) -> &'a Cut {
        self.of.cut(self.round)
    }

    /// The ranks whose contributions this outcome can have, this one among them: all that were active, or this rank's
    /// group of the round where ranks average in groups. Allocates.
    #[must_use]
    pub fn group(&self) -> RankSet {
        self.of.raw().session().group(self.round)
    }

    /// What this rank has in the round: a carried contribution, a fresh one, both or nothing.
    pub fn own(&self) -> impl Iterator<Item = Entry> + use<'a, T> {
        let session = self.of.raw().session();
        session.cut(self.round).of(session.plan().me)
    }

    /// Takes the newest average of models up to this round over into `own`, the model that this rank contributed last; under
    /// [`Absent::Hold`](crate::Absent::Hold). Call it on the newest outcome that `wait` returned. Allocates.
    ///
    /// If the contribution has entered by the round of that average, `own` becomes the average. Otherwise the average does
    /// not have it, and it counts as one more member: `own` becomes (*n* · average + own) / (*n* + 1), where *n* is the
    /// number of members. This is the rule of WAGMA-SGD (Li et al., TPDS 2021). If this rank's group has not moved since
    /// the contribution was made, `own` stays as it is.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) under another choice for late contributions, or if `own` has another length.
    pub fn merge_into(&self, own: &mut [T]) -> Result<()> {
        let session = self.of.raw().session();
        if session.plan().absent != Absent::Hold {
            return Err(self.of.usage("merge_into", "models are merged where they are held; build with Absent::Hold"));
        }
        if own.len() != self.data.len() {
            return Err(self.of.usage("merge_into", "the model must be as long as an outcome"));
        }
        // The contribution was made for the first round that the call returned.
        let (made_for, me) = (self.first, session.plan().me);
        let moved = |round: &u64| {
            let group = session.group(*round);
            session.cut(*round).contributions().any(|entry| group.contains(entry.rank))
        };
        let Some(averaged) = (made_for..=self.round).rev().find(moved) else { return Ok(()) };
        let is_own = |round: u64, entry: Entry| entry.part != Part::Leaving && round - entry.age == made_for;
        if (made_for..=averaged).any(|round| session.cut(round).of(me).any(|entry| is_own(round, entry))) {
            own.copy_from_slice(self.data);
        } else {
            let share = 1.0 / (session.group(averaged).len() + 1) as f32;
            let before = own.to_vec();
            reduce::scaled_sum([(self.data, 1.0 - share), (&before[..], share)].into_iter(), own);
        }
        Ok(())
    }

    /// Ranks with a fresh contribution. Allocates; [`Outcome::cut`] does not.
    #[must_use]
    pub fn fresh(&self) -> RankSet {
        self.cut().fresh()
    }

    /// Ranks with a carried contribution.
    #[must_use]
    pub fn carried(&self) -> RankSet {
        self.cut().carried()
    }

    /// The rank that closed the cut; `None` in a synchronous round, or if a provider counted the arrivals.
    #[must_use]
    pub fn initiator(&self) -> Option<u32> {
        self.cut().initiator()
    }

    /// Ages of the contributions by rank, in rounds: 0 for fresh ones.
    #[must_use]
    pub fn ages(&self) -> Vec<(u32, u64)> {
        self.cut().contributions().map(|entry| (entry.rank, entry.age)).collect()
    }

    /// The rounds since a rank was last fresh; 0 if it is fresh now.
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
