//! The outcome of a round, as every receiver sees it.
#![forbid(unsafe_code)]

use std::ops::{Deref, RangeInclusive};

use super::allreduce::Allreduce;
use super::checkpoint::Checkpoint;
use super::core::{Cut, Entry, Part};
use crate::error::{Misuse, Result};
use crate::rank_set::RankSet;
use crate::reduce::{self, Element, Item};
use crate::rule::Absent;

/// The outcomes that a call returned, oldest first. A round is released, so that its memory may be used again, when
/// this value, its [`Outcome`]s and those of the rounds before it are dropped. A loop by value drops them one by one,
/// so that other ranks that wait for a free slot continue while this rank catches up.
#[derive(Debug)]
pub struct Outcomes<'a, T: Item> {
    of: &'a Allreduce<T>,
    rounds: RangeInclusive<u64>,
}

/// The outcome of one round: its data, its number and its cut. The data is read in place.
#[derive(Debug)]
pub struct Outcome<'a, T: Item> {
    of: &'a Allreduce<T>,
    data: &'a [T],
    round: u64,
    /// The first round that the same call returned.
    first: u64,
}

impl<'a, T: Item> Outcomes<'a, T> {
    pub(super) fn new(of: &'a Allreduce<T>, rounds: RangeInclusive<u64>) -> Self {
        of.calls().hold(rounds.clone());
        Outcomes { of, rounds }
    }

    /// Returns the number of outcomes: 1 or more.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.rounds.end() + 1).saturating_sub(*self.rounds.start()) as usize
    }

    /// Always returns false: a call that returns outcomes returns at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    /// Iterates over the outcomes, oldest first; none is released while this value is borrowed.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Outcome<'a, T>> + use<'_, 'a, T> {
        let (of, rounds) = (self.of, self.rounds.clone());
        let first = *rounds.start();
        rounds.map(move |round| Outcome::new(of, round, first))
    }

    /// Returns a tensor of the newest outcome; `None` if `index` is not the number of a tensor.
    pub(super) fn newest_tensor(&self, index: usize) -> Option<&[T]> {
        self.of.data(*self.rounds.end()).get(self.of.tensor_range(index)?)
    }

    /// Keeps the rounds unreleased until the next call that takes the handle by `&mut`, for callers that cannot hold a
    /// borrow. Returns the rounds; [`Allreduce::kept`] returns their outcomes.
    pub fn keep(self) -> RangeInclusive<u64> {
        let base = self.of.calls().session().facts().base;
        let rounds = base + self.rounds.start()..=base + self.rounds.end();
        std::mem::forget(self);
        rounds
    }

    /// Returns the newest outcome.
    #[must_use]
    pub fn newest(&self) -> Outcome<'a, T> {
        Outcome::new(self.of, *self.rounds.end(), *self.rounds.start())
    }
}

impl<T: Element> Outcomes<'_, T> {
    /// Writes the sum of all outcomes to `into`, element by element, oldest first: all that a rank that was away must
    /// catch up on, in one step. A single outcome is copied.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if `into` has another length than an outcome. Also if outcomes are models:
    /// the newest one contains the earlier ones.
    pub fn sum_into(&self, into: &mut [T]) -> Result<()> {
        if self.of.calls().session().facts().has_memory {
            return Err(self
                .of
                .usage("sum_into", Misuse::Unavailable("outcomes are models, and are not added; take the newest")));
        }
        let outcomes: Vec<Outcome<'_, T>> = self.iter().collect();
        let sources: Vec<&[T]> = outcomes.iter().map(|outcome| outcome.data).collect();
        if sources.iter().any(|source| source.len() != into.len()) {
            let problem = Misuse::Argument("the buffer must be as long as all tensors of an outcome together");
            return Err(self.of.usage("sum_into", problem));
        }
        reduce::sum(&sources, into);
        Ok(())
    }
}

impl<'a, T: Item> IntoIterator for Outcomes<'a, T> {
    type Item = Outcome<'a, T>;
    type IntoIter = IntoIter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        IntoIter { first: *self.rounds.start(), rest: self }
    }
}

/// Iterates over outcomes, oldest first. Each outcome is released when it and those before it are dropped.
#[derive(Debug)]
pub struct IntoIter<'a, T: Item> {
    first: u64,
    rest: Outcomes<'a, T>,
}

impl<'a, T: Item> Iterator for IntoIter<'a, T> {
    type Item = Outcome<'a, T>;

    fn next(&mut self) -> Option<Self::Item> {
        let round = self.rest.rounds.next()?;
        let outcome = Outcome::new(self.rest.of, round, self.first);
        self.rest.of.calls().drop_held(round..=round);
        Some(outcome)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.rounds.size_hint()
    }
}

impl<T: Item> Drop for Outcomes<'_, T> {
    fn drop(&mut self) {
        self.of.calls().drop_held(self.rounds.clone());
    }
}

impl<'a, T: Item> Outcome<'a, T> {
    pub(super) fn new(of: &'a Allreduce<T>, round: u64, first: u64) -> Self {
        of.calls().hold(round..=round);
        Outcome { of, data: of.data(round), round, first }
    }

    /// Returns the reduced and scaled elements; where ranks have a [`memory`](crate::AllreduceBuilder::memory), this
    /// rank's model.
    #[must_use]
    pub fn data(&self) -> &[T] {
        self.data
    }

    /// Returns one tensor; `None` if `index` is not the number of a tensor.
    #[must_use]
    pub fn tensor(&self, index: usize) -> Option<&[T]> {
        self.data.get(self.of.tensor_range(index)?)
    }

    /// Returns the round, counted from 1, including rounds before a [`checkpoint`](crate::AllreduceBuilder::restore).
    #[must_use]
    pub fn round(&self) -> u64 {
        self.of.calls().session().facts().base + self.round
    }

    /// Returns the contributions in the round: ranks, kinds and ages. Where ranks average in groups, it holds those of
    /// all groups.
    #[must_use]
    pub fn cut(&self) -> &'a Cut {
        self.of.cut(self.round)
    }

    /// Returns the ranks whose contributions this outcome can hold, including this rank: all active ranks, or this
    /// rank's group of the round where ranks average in groups. With groups by order of arrival it also holds a lender,
    /// which is not in the cut. Allocates.
    #[must_use]
    pub fn group(&self) -> RankSet {
        self.of.calls().members(self.round)
    }

    /// Returns what this rank has in the round: a carried contribution, a fresh one, both or none.
    pub fn own(&self) -> impl Iterator<Item = Entry> + use<'a, T> {
        let session = self.of.calls().session();
        session.cut(self.round).of(session.facts().me)
    }

    /// Returns whether a [`checkpoint`](Outcome::checkpoint) can be made after this round. All ranks get the same
    /// answer for a round.
    ///
    /// It can be made where nothing is carried into a later round: every active rank is fresh, or the rule made the
    /// round wait for all ([`Fire::full_every`](crate::Fire::full_every)). It cannot be made after a rank has left, or
    /// with groups by order of arrival.
    #[must_use]
    pub fn can_checkpoint(&self) -> bool {
        self.check_checkpoint().is_ok()
    }

    /// Returns what this rank must save to resume from this round in a new world, besides the state of its application.
    /// [`AllreduceBuilder::restore`](crate::AllreduceBuilder::restore) takes it. All ranks save the same round.
    ///
    /// The state of the application must match the round. All that this rank contributed up to now is in this round or
    /// before, so its position in its data is the present one. The state must contain the outcomes up to this one and
    /// no later one: save after applying the outcomes up to this one, oldest first.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use earlybird::{Checkpoint, World};
    ///
    /// # let deadline = Duration::from_secs(10);
    /// let world = World::from_env()?;
    /// let mut sum = world.allreduce::<f32>(&[100]).build()?;
    /// sum.arrive()?;
    /// let mut file = Vec::new();
    /// sum.wait(deadline)?.newest().checkpoint()?.write_to(&mut file)?;
    /// sum.finish(deadline)?;
    ///
    /// // In a later job:
    /// let saved = Checkpoint::read_from(&file[..])?;
    /// let mut sum = world.allreduce::<f32>(&[100]).restore(&saved).build()?;
    /// sum.arrive()?;
    /// assert_eq!(sum.wait(deadline)?.newest().round(), 2);
    /// sum.finish(deadline)?;
    /// # Ok::<(), earlybird::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) where [`can_checkpoint`](Outcome::can_checkpoint) is false.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        self.checkpoint_of(self.of.lengths())
    }

    /// Makes the checkpoint of a collective that has this outcome for only some of its tensors.
    pub(super) fn checkpoint_of(&self, lengths: &[usize]) -> Result<Checkpoint> {
        self.check_checkpoint()?;
        Ok(self.of.checkpoint(self.round, lengths))
    }

    fn check_checkpoint(&self) -> Result<()> {
        let calls = self.of.calls();
        let problem = if !calls.have_common_rounds() {
            Misuse::Unavailable(
                "groups by order of arrival have no rounds in common; let all ranks finish, keep each rank's model, and begin a new collective with these models",
            )
        } else if !calls.has_all_ranks(self.round) {
            Misuse::Order("a rank has left, and all ranks are needed to go on; save before the first one finishes")
        } else if !calls.carries_nothing(self.round) {
            Misuse::Order(
                "a rank may have a contribution that enters a later round; save after rounds that wait for all, of a rule with full=N the multiples of N",
            )
        } else {
            return Ok(());
        };
        Err(self.of.usage("checkpoint", problem))
    }

    /// Returns the ranks with a fresh contribution. Allocates; [`Outcome::cut`] does not.
    #[must_use]
    pub fn fresh(&self) -> RankSet {
        self.cut().fresh()
    }

    /// Returns the ranks with a carried contribution.
    #[must_use]
    pub fn carried(&self) -> RankSet {
        self.cut().carried()
    }

    /// Returns the rank that closed the cut. `None` in a synchronous round, in a group by order of arrival, or if a
    /// provider counted the arrivals.
    #[must_use]
    pub fn initiator(&self) -> Option<u32> {
        self.cut().initiator()
    }

    /// Returns the rank and the age, in rounds, of each contribution. The age of a fresh contribution is 0.
    #[must_use]
    pub fn ages(&self) -> Vec<(u32, u64)> {
        self.cut().contributions().map(|entry| (entry.rank, entry.age)).collect()
    }

    /// Returns the rounds since a rank was last fresh; 0 if it is fresh now.
    #[must_use]
    pub fn rounds_late(&self, rank: u32) -> u64 {
        let fresh_in = |round: &u64| self.of.cut(*round).holds(rank, Part::Fresh);
        let newest = (self.first..=self.round).rev().find(fresh_in);
        let before = || self.of.calls().session().last_fresh(rank);
        self.round - newest.unwrap_or_else(before)
    }
}

impl<T: Element> Outcome<'_, T> {
    /// Updates `own`, the model that this rank contributed last, with the newest average of models up to this round. It
    /// is for [`Absent::Hold`](crate::Absent::Hold). Call it on the newest outcome that `wait` returned. Allocates.
    ///
    /// If the contribution entered by the round of that average, `own` becomes the average. Otherwise the average does
    /// not contain the contribution, which then counts as one more member: `own` becomes (*n* · average + own) / (*n* +
    /// 1), where *n* is the number of members. This is the rule of WAGMA-SGD (Li et al., TPDS 2021). If this rank's
    /// group has not averaged since the contribution was made, `own` stays unchanged.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) under another choice for late contributions, or if `own` has another length.
    pub fn merge_into(&self, own: &mut [T]) -> Result<()> {
        let session = self.of.calls().session();
        if session.facts().absent != Absent::Hold {
            return Err(self.of.usage(
                "merge_into",
                Misuse::Unavailable("models are merged where they are held; build with absent=hold"),
            ));
        }
        if own.len() != self.data.len() {
            return Err(self.of.usage("merge_into", Misuse::Argument("the model must be as long as an outcome")));
        }
        // The contribution was made for the first round that the call returned.
        let (made_for, me) = (self.first, session.facts().me);
        let moved = |round: &u64| {
            let group = self.of.calls().members(*round);
            session.cut(*round).contributions().any(|entry| group.contains(entry.rank))
        };
        let Some(averaged) = (made_for..=self.round).rev().find(moved) else { return Ok(()) };
        let is_own = |round: u64, entry: Entry| entry.part != Part::Leaving && round - entry.age == made_for;
        if (made_for..=averaged).any(|round| session.cut(round).of(me).any(|entry| is_own(round, entry))) {
            own.copy_from_slice(self.data);
        } else {
            let share = 1.0 / (self.of.calls().members(averaged).len() + 1) as f32;
            let before = own.to_vec();
            reduce::scaled_sum([(self.data, 1.0 - share), (&before[..], share)].into_iter(), own);
        }
        Ok(())
    }
}

impl<T: Item> Deref for Outcome<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.data
    }
}

impl<T: Item> Drop for Outcome<'_, T> {
    fn drop(&mut self) {
        self.of.calls().drop_held(self.round..=self.round);
    }
}
