//! The handle of a partial allreduce.
#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;

use super::calls::Calls;
use super::checkpoint::Checkpoint;
use super::core::{Cut, Stats};
use super::outcome::{Outcome, Outcomes};
use crate::error::{Error, Result};
use crate::reduce::{Dtype, Item};
use crate::rule::{Executor, Grace, Mover};
use crate::time::Deadline;

/// A persistent partial allreduce: round after round over the same memory.
///
/// The order of calls is *contribution, arrive, wait*, and at the end *finish*. One thread at a
/// time may use a handle. Dropping it without [`finish`](Allreduce::finish) aborts the job, because
/// the others would wait for this rank for ever.
#[derive(Debug)]
pub struct Allreduce<T> {
    calls: Calls,
    dtype: Dtype,
    lengths: Vec<usize>,
    /// Tells it apart from other collectives; the same on all ranks.
    run: u64,
    item: PhantomData<T>,
}

/// What a collective works with, where its builder may have left the choice open.
#[cfg(earlybird_tools)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// How data moves: by cut or by tree.
    pub mover: Mover,
    /// How long a round stays open after it fired.
    pub grace: Grace,
    /// Rounds that a rank may have unreleased; 1 where no rank gets ahead.
    pub depth: u64,
}

impl<T: Item> Allreduce<T> {
    pub(super) fn new(calls: Calls, (dtype, lengths): (Dtype, Vec<usize>), run: u64) -> Self {
        Allreduce { calls, dtype, lengths, run, item: PhantomData }
    }

    /// The type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Lengths of the tensors, in elements, as the builder got them. A contribution has them one
    /// after the other.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The memory of the next contribution: registered, and with the content of an earlier
    /// contribution. It may be written while the round of the last arrival is in progress.
    ///
    /// # Errors
    /// [`Error::Usage`] after `finish`.
    pub fn contribution(&mut self) -> Result<&mut [T]> {
        self.calls.check_process("contribution")?;
        self.calls.session().check_present("contribution")?;
        self.calls.settle();
        let (at, bytes) = self.calls.session_mut().begin();
        Ok(self.calls.memory_mut().contribution(at, bytes))
    }

    /// One tensor of the next contribution; see [`contribution`](Allreduce::contribution).
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such tensor, or after `finish`.
    pub fn tensor(&mut self, index: usize) -> Result<&mut [T]> {
        let missing = || self.usage("tensor", "there is no tensor of this number in the collective");
        let range = self.tensor_range(index).ok_or_else(missing)?;
        Ok(&mut self.contribution()?[range])
    }

    /// A tensor in contributions and outcomes.
    pub(super) fn tensor_range(&self, index: usize) -> Option<Range<usize>> {
        let length = *self.lengths.get(index)?;
        let from: usize = self.lengths[..index].iter().sum();
        let each = self.items_in_element();
        Some(from * each..(from + length) * each)
    }

    /// One, or the bytes of an element if data is lent as bytes.
    fn items_in_element(&self) -> usize {
        self.dtype.size() / size_of::<T>()
    }

    /// Copies tensors into the contribution and arrives: for data that lies elsewhere. Data that is
    /// produced in [`contribution`](Allreduce::contribution) needs no copy.
    ///
    /// If ranks share memory, large data arrives first and is copied then, a piece that fits into a
    /// cache at a time, while others reduce the pieces that are there. For each piece this call
    /// reduces a segment that is complete on all ranks, if there is one.
    ///
    /// # Errors
    /// [`Error::Usage`] if the tensors differ in number or length from those of the collective;
    /// otherwise as [`arrive`](Allreduce::arrive).
    pub fn arrive_with(&mut self, tensors: &[&[T]]) -> Result<()> {
        let each = self.items_in_element();
        let fits = tensors.iter().map(|tensor| tensor.len()).eq(self.lengths.iter().map(|length| length * each));
        let problem = "the tensors must be as many and as long as the collective was built for";
        self.calls.session().check("arrive_with", fits, problem)?;
        self.calls.arrive_with(|memory, at, range| copy_in(tensors, range.start, memory.contribution(at, range.len())))
    }

    /// Sets the weight of the next contribution. It counts as much as `weight` contributions of weight 1, for instance
    /// one for each sample in a batch. Needs [`Scale::Weights`](crate::Scale::Weights): rounds are weighted means
    /// then, and their cuts have the weights.
    ///
    /// The weight is a whole number, so that it is exact and fits the cut. A contribution of weight 0 adds nothing and
    /// still counts towards firing. Elements are multiplied by the weight before they are added: values near the
    /// largest of their type may become infinite.
    ///
    /// # Errors
    /// [`Error::Usage`] under another scale, or after `finish`.
    pub fn weigh(&mut self, weight: u16) -> Result<()> {
        let session = self.calls.session_mut();
        session.check_present("weigh")?;
        let weighted = session.facts().weighted;
        session.check("weigh", weighted, "this collective has no weights; build it with scale=weights")?;
        session.weigh(weight);
        Ok(())
    }

    /// Hands the contribution in and returns at once. If this arrival fires the round, the call may
    /// reduce small data. It reduces large data only under the peer executor, where it runs
    /// whatever this arrival triggers.
    ///
    /// The contribution is for the round after the newest outcome that was returned. It is *fresh*
    /// if that round is still open; otherwise it is *carried* into the next one that fires.
    ///
    /// # Errors
    /// [`Error::Usage`] while the outcome of the last arrival was not taken, or after `finish`;
    /// a dead peer, a failed transport or an aborted job.
    #[inline]
    pub fn arrive(&mut self) -> Result<()> {
        self.calls.arrive()
    }

    /// Waits for the outcome of the last arrival. Returns it together with all outcomes that were
    /// missed, oldest first. While it waits, this rank moves data for all ranks.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming who is missing: call again to go on waiting. [`Error::Usage`]
    /// without an arrival; a dead peer, a failed transport or an aborted job.
    #[inline]
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Outcomes<'_, T>> {
        let rounds = self.take(deadline.into())?;
        Ok(self.held(rounds))
    }

    /// As [`wait`](Allreduce::wait), for a caller that [holds](Allreduce::held) the rounds later, with no other call in
    /// between.
    pub(super) fn take(&mut self, deadline: Deadline) -> Result<RangeInclusive<u64>> {
        self.calls.wait(deadline)
    }

    /// Does what there is to do now, for a caller that waits in another collective and has no thread.
    pub(super) fn tend(&mut self, operation: &'static str) -> Result<()> {
        self.calls.tend(operation)
    }

    /// The outcomes of rounds that were taken.
    pub(super) fn held(&self, rounds: RangeInclusive<u64>) -> Outcomes<'_, T> {
        Outcomes::new(self, rounds)
    }

    /// As [`wait`](Allreduce::wait) without blocking: `None` if it would have to wait.
    ///
    /// # Errors
    /// As `wait`, except for the timeout.
    pub fn try_wait(&mut self) -> Result<Option<Outcomes<'_, T>>> {
        let rounds = self.calls.try_wait()?;
        Ok(rounds.map(|rounds| Outcomes::new(self, rounds)))
    }

    /// The outcome of a round that was [kept](Outcomes::keep) and is not released; `None` of any other.
    #[must_use]
    pub fn kept(&self, round: u64) -> Option<Outcome<'_, T>> {
        let session = self.calls.session();
        let (rounds, round) = (session.held(), round.checked_sub(session.facts().base)?);
        rounds.contains(&round).then(|| Outcome::new(self, round, *rounds.start()))
    }

    /// Releases the rounds that were [kept](Outcomes::keep): their memory may be used again.
    pub fn release(&mut self) {
        self.calls.settle();
    }

    /// The same, of those up to a round.
    pub fn release_up_to(&mut self, round: u64) {
        let base = self.calls.session().facts().base;
        self.calls.release(round.saturating_sub(base));
    }

    /// Leaves in good order: with one more, empty arrival, which counts towards firing. After the
    /// round that it enters, no rank waits for this one. Blocks until that round is complete, so
    /// all contributions of this rank have entered. Outcomes that were not taken are dropped; [`leave`](Allreduce::leave)
    /// returns them.
    ///
    /// Under [`Executor::Provider`] it also waits for all ranks to leave, within the world's deadline.
    ///
    /// A rank that leaves several collectives earlier than others leaves them by turns: it calls `finish` for each with a
    /// deadline of a millisecond, until all calls succeed. Otherwise it may wait in one for ranks that wait for it in another.
    ///
    /// # Errors
    /// [`Error::Timeout`]: call again to go on; a dead peer, a failed transport or an aborted job.
    pub fn finish(&mut self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = Deadline::from(deadline.into().instant());
        while self.leave(deadline)?.is_some() {}
        Ok(())
    }

    /// Leaves as [`finish`](Allreduce::finish), a part of the way: returns the next outcomes that were not taken, oldest
    /// first, and `None` once this rank has left. The last ones end with the round that has this rank's last arrival, so a
    /// rank that takes them all has all that it contributed.
    ///
    /// Call it until it returns `None`; other ranks may wait meanwhile. In groups by order of arrival a rank gets no outcome
    /// for its last arrival.
    ///
    /// A rank that has left hears of no later round. To wait until all have left, ranks call
    /// [`World::barrier`](crate::World::barrier) after it, with a deadline for as long as others may go on.
    ///
    /// ```
    /// # use earlybird::World;
    /// # let deadline = std::time::Duration::from_secs(10);
    /// # let world = World::from_env()?;
    /// let mut sum = world.allreduce::<f32>(&[100]).build()?;
    /// let mut model = vec![0.0; 100];
    /// sum.arrive()?;
    /// while let Some(outcomes) = sum.leave(deadline)? {
    ///     for outcome in outcomes {
    ///         model.iter_mut().zip(outcome.data()).for_each(|(x, gradient)| *x -= gradient);
    ///     }
    /// }
    /// # Ok::<(), earlybird::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`finish`](Allreduce::finish).
    pub fn leave(&mut self, deadline: impl Into<Deadline>) -> Result<Option<Outcomes<'_, T>>> {
        let rounds = self.leave_rounds(deadline.into())?;
        Ok(rounds.map(|rounds| self.held(rounds)))
    }

    /// As [`leave`](Allreduce::leave), for a caller that [holds](Allreduce::held) the rounds later, with no other call in
    /// between.
    pub(super) fn leave_rounds(&mut self, deadline: Deadline) -> Result<Option<RangeInclusive<u64>>> {
        self.calls.leave(deadline)
    }

    /// Whether the outcome of the last arrival is there. Does no work for it.
    ///
    /// # Errors
    /// An endpoint that has failed.
    pub fn is_complete(&self) -> Result<bool> {
        self.calls.is_complete()
    }

    /// A descriptor that is readable when [`try_wait`](Allreduce::try_wait) would return outcomes or an error: for `poll`, `epoll`
    /// or an event loop that waits for other things, too. It stays the same and open as long as the handle, and only
    /// [`wait`](Allreduce::wait) and `try_wait` read from it. It may be readable when there is nothing to take yet.
    ///
    /// # Errors
    /// [`Error::Usage`] under another executor than the helper thread's, [`Executor::Thread`]; the process has no
    /// descriptor left.
    pub fn completion(&self) -> Result<BorrowedFd<'_>> {
        self.calls.completion()
    }

    /// This rank's counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.calls.stats()
    }

    /// The name of the path of the data: `replicated`, `gathered`, `scattered`, `eager`,
    /// `segmented`, `tree` or `offloaded`.
    #[must_use]
    pub fn path(&self) -> &'static str {
        self.calls.session().facts().path
    }

    /// The agent that carries rounds out.
    #[must_use]
    pub fn executor(&self) -> Executor {
        self.calls.executor()
    }

    /// What became of the builder's choices.
    #[cfg(earlybird_tools)]
    #[must_use]
    pub fn chosen(&self) -> Chosen {
        let facts = self.calls.session().facts();
        Chosen { mover: facts.mover, grace: facts.grace, depth: facts.depth }
    }

    #[inline]
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// This rank's part of the collective after a held round, behind which nothing is carried.
    pub(super) fn checkpoint(&self, round: u64, lengths: &[usize]) -> Checkpoint {
        let facts = self.calls.session().facts();
        let model = facts.has_memory.then(|| bytemuck::cast_slice(self.data(round)));
        Checkpoint::new((facts.me, facts.ranks), self.run, self.cut(round), (self.dtype, lengths), model)
    }

    pub(super) fn cut(&self, round: u64) -> &Cut {
        self.calls.session().cut(round)
    }

    /// The elements of a held round.
    #[inline]
    pub(super) fn data(&self, round: u64) -> &[T] {
        let (at, bytes) = self.calls.session().place(round);
        self.calls.memory().outcome(at, bytes)
    }

    pub(super) fn usage(&self, operation: &'static str, problem: &'static str) -> Error {
        self.calls.session().usage(operation, problem)
    }
}

/// Copies the bytes from `from` on of consecutive tensors.
fn copy_in<T: Item>(tensors: &[&[T]], from: usize, mut to: &mut [T]) {
    let mut skip = from / size_of::<T>();
    for tensor in tensors {
        let from = &tensor[skip.min(tensor.len())..];
        let (place, rest) = to.split_at_mut(from.len().min(to.len()));
        place.copy_from_slice(&from[..place.len()]);
        skip -= tensor.len() - from.len();
        to = rest;
    }
}
