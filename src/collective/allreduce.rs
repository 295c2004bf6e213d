//! The handle of a partial allreduce.
#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use super::core::{Cut, Stats};
use super::outcome::Outcomes;
use super::raw::Raw;
use crate::error::{Error, Result};
use crate::reduce::Element;
use crate::rule::{Executor, Grace, Mover};
use crate::time::Deadline;

/// A persistent partial allreduce: round after round over the same memory.
///
/// The order of calls is *contribution, arrive, wait*, and at the end *finish*. A handle belongs
/// to one thread at a time. Dropping it without [`finish`](Allreduce::finish) aborts the job: the
/// others would wait for this rank for ever.
#[derive(Debug)]
pub struct Allreduce<T> {
    raw: Raw,
    lengths: Vec<usize>,
    element: PhantomData<T>,
}

impl<T: Element> Allreduce<T> {
    pub(super) fn new(raw: Raw, lengths: Vec<usize>) -> Self {
        Allreduce { raw, lengths, element: PhantomData }
    }

    /// Lengths of the tensors, in elements, as they were given: a contribution is one after the
    /// other.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The memory of the next contribution: registered, in place, holding whatever an earlier one
    /// left there. May be written while the last arrival is still under way.
    ///
    /// # Errors
    /// [`Error::Usage`] after `finish`.
    pub fn contribution(&mut self) -> Result<&mut [T]> {
        self.raw.settle();
        self.raw.session().check_present("contribution")?;
        let (at, bytes) = self.raw.session_mut().begin();
        Ok(self.raw.memory_mut().contribution(at, bytes))
    }

    /// One tensor of the next contribution, as [`contribution`](Allreduce::contribution) has it.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is no such tensor, or after `finish`.
    pub fn tensor(&mut self, index: usize) -> Result<&mut [T]> {
        let missing = || self.usage("tensor", "there is no tensor of this number in the collective");
        let range = self.tensor_range(index).ok_or_else(missing)?;
        Ok(&mut self.contribution()?[range])
    }

    /// Where a tensor lies in contributions and outcomes.
    pub(super) fn tensor_range(&self, index: usize) -> Option<Range<usize>> {
        let length = *self.lengths.get(index)?;
        let from = self.lengths[..index].iter().sum();
        Some(from..from + length)
    }

    /// Copies tensors in and hands them in: for data that lies elsewhere. Where it can be made in
    /// [`contribution`](Allreduce::contribution), nothing has to be copied.
    ///
    /// Large data of ranks that share memory is handed in first, and copied then, a piece that fits
    /// into a cache at a time, while others reduce what is there already. For each piece this call
    /// reduces a segment that is complete everywhere, if there is one.
    ///
    /// # Errors
    /// [`Error::Usage`] if these are not as many tensors, or not as long, as the collective has;
    /// else as [`arrive`](Allreduce::arrive).
    pub fn arrive_with(&mut self, tensors: &[&[T]]) -> Result<()> {
        let fits = tensors.iter().map(|tensor| tensor.len()).eq(self.lengths.iter().copied());
        let problem = "the tensors must be as many and as long as the collective was built for";
        self.raw.session().check("arrive_with", fits, problem)?;
        self.raw.arrive_with(|memory, at, range| copy_in(tensors, range.start, memory.contribution(at, range.len())))
    }

    /// Gives the next contribution a weight: it counts as much as so many of weight 1, for instance
    /// one for each sample in a batch. Needs [`Scale::Weights`](crate::Scale::Weights), which makes a
    /// weighted mean of a round; its cut tells the weights.
    ///
    /// A whole number, so that it is exact and fits the cut; 0 for a contribution that has nothing
    /// to say and counts towards firing all the same. Elements are multiplied by it before they are
    /// added up: what is near the largest number of its type may become infinite.
    ///
    /// # Errors
    /// [`Error::Usage`] under another scale, or after `finish`.
    pub fn weigh(&mut self, weight: u16) -> Result<()> {
        let session = self.raw.session_mut();
        session.check_present("weigh")?;
        let weighted = session.plan().weighted;
        session.check("weigh", weighted, "this collective has no weights; build it with Scale::Weights")?;
        session.weigh(weight);
        Ok(())
    }

    /// Hands the contribution in and returns at once. Small data may be reduced here, if this
    /// arrival fires the round; large data only under the peer executor, which does here whatever
    /// this arrival sets off.
    ///
    /// The contribution is made for the round after the newest outcome that was returned. It is
    /// *fresh* if that round is still open; else it is *carried* into the next one that fires.
    ///
    /// # Errors
    /// [`Error::Usage`] while the outcome of the last arrival was not taken, or after `finish`;
    /// a dead peer or an aborted job.
    #[inline]
    pub fn arrive(&mut self) -> Result<()> {
        self.raw.arrive()
    }

    /// Waits for the outcome of the last arrival, and returns it with everything that was missed,
    /// oldest first. While waiting, this rank moves data for everybody.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming who is missing: call again to go on waiting. [`Error::Usage`]
    /// without an arrival; a dead peer or an aborted job.
    #[inline]
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Outcomes<'_, T>> {
        let rounds = self.raw.wait(deadline.into())?;
        Ok(Outcomes::new(self, rounds))
    }

    /// As [`wait`](Allreduce::wait) without blocking: nothing where it would have to wait.
    ///
    /// # Errors
    /// As `wait`, but for the timeout.
    pub fn test(&mut self) -> Result<Option<Outcomes<'_, T>>> {
        let rounds = self.raw.test()?;
        Ok(rounds.map(|rounds| Outcomes::new(self, rounds)))
    }

    /// Leaves in good order: one more, empty arrival that counts towards firing, and nothing is
    /// expected of this rank after the round that it enters. Waits until that round is complete,
    /// so everything this rank contributed has entered. Outcomes that were not taken are dropped.
    ///
    /// # Errors
    /// [`Error::Timeout`]: call again to go on; a dead peer or an aborted job.
    pub fn finish(&mut self, deadline: impl Into<Deadline>) -> Result<()> {
        self.raw.finish(deadline.into())
    }

    /// Whether the outcome of the last arrival is there. Looks, and does nothing for it.
    ///
    /// # Errors
    /// A broken endpoint.
    pub fn is_complete(&self) -> Result<bool> {
        self.raw.is_complete()
    }

    /// What happened to this rank so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.raw.stats()
    }

    /// The name of the way in which data moves: `replicated`, `gathered`, `scattered`, `eager`, `segmented`, `tree` or
    /// `offloaded`.
    #[must_use]
    pub fn path(&self) -> &'static str {
        self.raw.session().plan().path.name()
    }

    /// Who carries rounds out.
    #[must_use]
    pub fn executor(&self) -> Executor {
        self.raw.executor()
    }

    /// What became of the builder's mover, grace and depth.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn chosen(&self) -> (Mover, Grace, u64) {
        use super::core::Path;
        let plan = self.raw.session().plan();
        let is_program = matches!(plan.path, Path::Program | Path::Offloaded);
        (if is_program { Mover::Tree } else { Mover::Cut }, plan.grace, plan.depth)
    }

    #[inline]
    pub(super) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(super) fn cut(&self, round: u64) -> &Cut {
        self.raw.session().cut(round)
    }

    /// The elements of a round that is held.
    #[inline]
    pub(super) fn data(&self, round: u64) -> &[T] {
        let (at, bytes) = self.raw.session().place(round);
        self.raw.memory().outcome(at, bytes)
    }

    pub(super) fn usage(&self, operation: &'static str, problem: &'static str) -> Error {
        self.raw.session().usage(operation, problem)
    }
}

/// Copies what lies from a byte on of tensors, one after the other.
fn copy_in<T: Element>(tensors: &[&[T]], from: usize, mut to: &mut [T]) {
    let mut skip = from / size_of::<T>();
    for tensor in tensors {
        let from = &tensor[skip.min(tensor.len())..];
        let (place, rest) = to.split_at_mut(from.len().min(to.len()));
        place.copy_from_slice(&from[..place.len()]);
        skip -= tensor.len() - from.len();
        to = rest;
    }
}
