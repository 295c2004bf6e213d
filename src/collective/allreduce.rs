//! The handle of a partial allreduce.
#![forbid(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;

use super::calls::Calls;
use super::checkpoint::Checkpoint;
use super::core::{Cut, SavedQuorum, Stats};
use super::lateness::Lateness;
use super::outcome::{Outcome, Outcomes};
use crate::error::{Error, Misuse, Result};
use crate::reduce::{Dtype, Item};
use crate::rule::{Executor, Grace, Mover};
use crate::time::Deadline;

/// A persistent partial allreduce, which runs round after round over the same memory.
///
/// The order of calls is *contribution, arrive, wait*, and at the end *finish*. One thread at a time may use a handle.
/// Dropping it without [`finish`](Allreduce::finish) aborts the job, because the others would wait for this rank for
/// ever.
#[derive(Debug)]
pub struct Allreduce<T> {
    calls: Calls,
    dtype: Dtype,
    lengths: Vec<usize>,
    /// The same number on all ranks, which tells this collective apart from others.
    run: u64,
    item: PhantomData<T>,
}

/// The choices that a collective works with, including those that its builder left open.
#[cfg(earlybird_tools)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// How data moves: by cut or by tree.
    pub mover: Mover,
    /// How long a round stays open after it has fired.
    pub grace: Grace,
    /// The number of rounds that a rank may have unreleased; 1 where no rank gets ahead.
    pub depth: u64,
}

impl<T: Item> Allreduce<T> {
    pub(super) fn new(calls: Calls, (dtype, lengths): (Dtype, Vec<usize>), run: u64) -> Self {
        Allreduce { calls, dtype, lengths, run, item: PhantomData }
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the lengths of the tensors, in elements, as the builder got them. A contribution holds the tensors one
    /// after the other.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Returns the memory of the next contribution: all tensors, one after the other. It is registered and holds the
    /// content of an earlier contribution. The caller may write it while the round of the last arrival is in progress.
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

    /// Returns one tensor of the next contribution; see [`contribution`](Allreduce::contribution).
    ///
    /// # Errors
    /// [`Error::Usage`] if `index` is not the number of a tensor, or after `finish`.
    pub fn tensor(&mut self, index: usize) -> Result<&mut [T]> {
        let missing = || self.usage("tensor", Misuse::Argument("there is no tensor of this number in the collective"));
        let range = self.tensor_range(index).ok_or_else(missing)?;
        Ok(&mut self.contribution()?[range])
    }

    /// Returns the range of a tensor in contributions and outcomes.
    pub(super) fn tensor_range(&self, index: usize) -> Option<Range<usize>> {
        let length = *self.lengths.get(index)?;
        let from: usize = self.lengths[..index].iter().sum();
        let each = self.items_in_element();
        Some(from * each..(from + length) * each)
    }

    /// Returns the number of items in an element: one, or its bytes if data is lent as bytes.
    fn items_in_element(&self) -> usize {
        self.dtype.size() / size_of::<T>()
    }

    /// Copies tensors into the contribution and arrives, for data that lies elsewhere. Data that is produced in
    /// [`contribution`](Allreduce::contribution) needs no copy.
    ///
    /// If ranks share memory, large data arrives first and is copied afterwards, one cache-sized piece at a time, while
    /// other ranks reduce the pieces that are there. After each piece, this call reduces a segment that is complete on
    /// all ranks, if there is one.
    ///
    /// # Errors
    /// [`Error::Usage`] if the tensors differ in number or length from those of the collective;
    /// otherwise as [`arrive`](Allreduce::arrive).
    pub fn arrive_with(&mut self, tensors: &[&[T]]) -> Result<()> {
        let each = self.items_in_element();
        let fits = tensors.iter().map(|tensor| tensor.len()).eq(self.lengths.iter().map(|length| length * each));
        let problem = Misuse::Argument("the tensors must be as many and as long as the collective was built for");
        self.calls.session().check("arrive_with", fits, problem)?;
        self.calls.arrive_with(|memory, at, range| copy_in(tensors, range.start, memory.contribution(at, range.len())))
    }

    /// Sets the weight of the next contribution, which then counts like `weight` contributions of weight 1, for
    /// instance one for each sample in a batch. Needs [`Scale::Weights`](crate::Scale::Weights): rounds are then
    /// weighted means, and their cuts hold the weights.
    ///
    /// The weight is a whole number, so that it is exact and fits the cut. A contribution of weight 0 adds nothing and
    /// still counts towards firing. Elements are multiplied by the weight before they are added, so values near the
    /// largest of their type may become infinite.
    ///
    /// # Errors
    /// [`Error::Usage`] under another scale, or after `finish`.
    pub fn weigh(&mut self, weight: u16) -> Result<()> {
        let session = self.calls.session_mut();
        session.check_present("weigh")?;
        let weighted = session.facts().weighted;
        session.check(
            "weigh",
            weighted,
            Misuse::Unavailable("this collective has no weights; build it with scale=weights"),
        )?;
        session.weigh(weight);
        Ok(())
    }

    /// Hands in the contribution and returns at once. If this arrival fires the round, the call may reduce small data.
    /// It reduces large data only under the peer executor, where it runs everything that this arrival triggers.
    ///
    /// The contribution is meant for the round after the newest outcome that was returned. It is *fresh* if that round
    /// is still open; otherwise it is *carried* into the next round that fires.
    ///
    /// # Errors
    /// [`Error::Usage`] while the outcome of the last arrival has not been taken, or after `finish`. Also a dead peer,
    /// a failed transport or an aborted job.
    #[inline]
    pub fn arrive(&mut self) -> Result<()> {
        self.calls.arrive()
    }

    /// Waits for the outcome of the last arrival. Returns it together with all outcomes that this rank missed, oldest
    /// first. While it waits, this rank moves data for all ranks.
    ///
    /// # Errors
    /// [`Error::Timeout`], which names the missing ranks; call again to continue waiting. [`Error::Usage`] without an
    /// arrival. Also a dead peer, a failed transport or an aborted job.
    #[inline]
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<Outcomes<'_, T>> {
        let rounds = self.take(deadline.into())?;
        Ok(self.held(rounds))
    }

    /// As [`wait`](Allreduce::wait), for a caller that [holds](Allreduce::held) the rounds later, without another call
    /// in between.
    pub(super) fn take(&mut self, deadline: Deadline) -> Result<RangeInclusive<u64>> {
        self.calls.wait(deadline)
    }

    /// Does the work that is due now, for a caller that waits in another collective and has no thread.
    pub(super) fn tend(&mut self, operation: &'static str) -> Result<()> {
        self.calls.tend(operation)
    }

    /// Returns the outcomes of rounds that were taken.
    pub(super) fn held(&self, rounds: RangeInclusive<u64>) -> Outcomes<'_, T> {
        Outcomes::new(self, rounds)
    }

    /// Returns what [`wait`](Allreduce::wait) would return, without blocking; `None` if that would have to wait.
    ///
    /// # Errors
    /// As `wait`, except for the timeout.
    pub fn try_wait(&mut self) -> Result<Option<Outcomes<'_, T>>> {
        let rounds = self.calls.try_wait()?;
        Ok(rounds.map(|rounds| Outcomes::new(self, rounds)))
    }

    /// Returns the outcome of a round that was [kept](Outcomes::keep) and not released; `None` for any other round.
    #[must_use]
    pub fn kept(&self, round: u64) -> Option<Outcome<'_, T>> {
        let session = self.calls.session();
        let (rounds, round) = (session.held(), round.checked_sub(session.facts().base)?);
        rounds.contains(&round).then(|| Outcome::new(self, round, *rounds.start()))
    }

    /// Releases the rounds that were [kept](Outcomes::keep), so that their memory may be used again.
    pub fn release(&mut self) {
        self.calls.settle();
    }

    /// Releases the rounds that were [kept](Outcomes::keep), up to `round`.
    pub fn release_up_to(&mut self, round: u64) {
        let base = self.calls.session().facts().base;
        self.calls.release(round.saturating_sub(base));
    }

    /// Leaves in good order, with one more, empty arrival, which counts towards firing. After the round that this
    /// arrival enters, no rank waits for this one. Blocks until that round is complete, so all contributions of this
    /// rank have entered. Drops outcomes that were not taken; [`leave`](Allreduce::leave) returns them.
    ///
    /// Under [`Executor::Provider`] it also waits for all ranks to leave, within the world's deadline. Where ranks of
    /// several hosts relay ([`Allreduce::path`]), the lowest rank of a host waits until all ranks of its host have left,
    /// because it relays for them.
    ///
    /// A rank that leaves several collectives earlier than other ranks must leave them by turns: it calls `finish` for
    /// each with a deadline of a millisecond, until all calls succeed. Otherwise it may wait in one collective for
    /// ranks that wait for it in another.
    ///
    /// # Errors
    /// [`Error::Timeout`]: call again to continue. Also a dead peer, a failed transport or an aborted job.
    pub fn finish(&mut self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = Deadline::from(deadline.into().instant());
        while self.leave(deadline)?.is_some() {}
        Ok(())
    }

    /// Leaves like [`finish`](Allreduce::finish), step by step. Returns the next outcomes that were not taken, oldest
    /// first, and `None` once this rank has left. The last outcomes end with the round that holds this rank's last
    /// arrival, so a rank that takes them all has all that it contributed.
    ///
    /// Call it until it returns `None`; other ranks may be waiting meanwhile. In groups by order of arrival, a rank
    /// gets no outcome for its last arrival.
    ///
    /// A rank that has left learns of no later round. To wait until all ranks have left, ranks call
    /// [`World::barrier`](crate::World::barrier) afterwards, with a deadline that covers the time for which others may
    /// continue.
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

    /// As [`leave`](Allreduce::leave), for a caller that [holds](Allreduce::held) the rounds later, without another
    /// call in between.
    pub(super) fn leave_rounds(&mut self, deadline: Deadline) -> Result<Option<RangeInclusive<u64>>> {
        self.calls.leave(deadline)
    }

    /// Returns whether the outcome of the last arrival is available. Does no work for it.
    ///
    /// # Errors
    /// The endpoint has failed.
    pub fn is_complete(&self) -> Result<bool> {
        self.calls.is_complete()
    }

    /// Returns a descriptor that is readable when [`try_wait`](Allreduce::try_wait) would return outcomes or an error. It is
    /// for `poll`, `epoll` or an event loop that waits for other things, too. The descriptor stays open and the same
    /// while the handle lives, and only [`wait`](Allreduce::wait) and `try_wait` read from it. It may be readable although
    /// `try_wait` returns nothing yet.
    ///
    /// # Errors
    /// [`Error::Usage`] under an executor other than the helper thread's, [`Executor::Thread`]. Also if the process has
    /// no descriptor left.
    pub fn completion(&self) -> Result<BorrowedFd<'_>> {
        self.calls.completion()
    }

    /// Notes that the application begins to compute its next contribution now. What it has done since its last outcome,
    /// such as applying it, then does not count in [`Entry::computed`](crate::Entry::computed). Without this call it
    /// does.
    pub fn begin_computation(&mut self) {
        self.calls.begin_computation();
    }

    /// Returns which ranks were late, since when, and what that costs, in the rounds whose outcomes this rank has
    /// released. It follows from the cuts, so all ranks know the same of the same rounds.
    #[must_use]
    pub fn lateness(&self) -> Lateness {
        self.calls.session().lateness()
    }

    /// Returns this rank's counts so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.calls.stats()
    }

    /// Returns the name of the path that the data takes: `replicated`, `gathered`, `scattered`, `eager`, `segmented`,
    /// `tree`, `relayed` or `offloaded`.
    #[must_use]
    pub fn path(&self) -> &'static str {
        self.calls.session().facts().path
    }

    /// Returns the agent that carries out rounds.
    #[must_use]
    pub fn executor(&self) -> Executor {
        self.calls.executor()
    }

    /// Returns the final values of the builder's choices, for the command.
    #[cfg(earlybird_tools)]
    pub(crate) fn resulting(&self) -> Chosen {
        let facts = self.calls.session().facts();
        Chosen { mover: facts.mover, grace: facts.grace, depth: facts.depth }
    }

    /// Returns the final values of the builder's choices, for the tests of this repository.
    #[cfg(earlybird_internals)]
    #[must_use]
    pub fn chosen(&self) -> Chosen {
        self.resulting()
    }

    #[inline]
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Returns this rank's part of the collective after a held round. Nothing may be carried into a later round.
    pub(super) fn checkpoint(&self, round: u64, lengths: &[usize]) -> Checkpoint {
        let facts = self.calls.session().facts();
        let model = facts.has_memory.then(|| bytemuck::cast_slice(self.data(round)));
        Checkpoint::new(
            (facts.me, facts.ranks),
            self.run,
            self.cut(round),
            (self.dtype, lengths),
            model,
            self.calls.session().quorum_after(round),
        )
    }

    /// Returns what quorums follow from after the newest round that the caller took, if the collective chooses them
    /// itself.
    pub(super) fn newest_quorum(&self) -> Option<SavedQuorum> {
        let session = self.calls.session();
        session.quorum_after(*session.held().end())
    }

    pub(super) fn cut(&self, round: u64) -> &Cut {
        self.calls.session().cut(round)
    }

    /// Returns the elements of a held round.
    #[inline]
    pub(super) fn data(&self, round: u64) -> &[T] {
        let (at, bytes) = self.calls.session().place(round);
        self.calls.memory().outcome(at, bytes)
    }

    pub(super) fn usage(&self, operation: &'static str, problem: Misuse) -> Error {
        self.calls.session().usage(operation, problem)
    }
}

/// Copies consecutive tensors to `to`, starting at byte `from` of them.
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
