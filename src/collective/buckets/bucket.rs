//! One of the buckets: a collective, its progress in the step, and how a rank leaves all buckets.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Instant;

use crate::collective::allreduce::Allreduce;
use crate::collective::following::Inbox;
use crate::collective::outcome::Outcomes;
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::reduce::Item;
use crate::time::Deadline;

/// The progress of a bucket in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketStage {
    /// Holds the number of its tensors that are not filled.
    Filling(usize),
    /// The bucket is handed in.
    HandedIn { at: Instant },
    /// Its outcomes are those of these rounds, and are held for the caller: [`Bucket::is_there`].
    There { first: u64, newest: u64 },
    /// Its outcomes were returned.
    Taken,
    /// This rank has left its collective.
    Left,
}

/// Tensors that share a collective.
#[derive(Debug)]
pub(super) struct Bucket<T> {
    pub(super) sum: Allreduce<T>,
    pub(super) tensors: Range<usize>,
    pub(super) stage: BucketStage,
    /// What this bucket is told about the cuts of the first bucket, if it follows them.
    pub(super) inbox: Option<Arc<Inbox>>,
}

impl<T: Item> Bucket<T> {
    /// Records that the outcomes of these rounds are available, and holds them until the caller gets them.
    pub(super) fn is_there(&mut self, rounds: RangeInclusive<u64>) {
        self.stage = BucketStage::There { first: *rounds.start(), newest: *rounds.end() };
        self.sum.calls().hold(rounds);
    }

    /// Hands out the outcomes that are available and that the caller has not got. The caller then holds them itself.
    pub(super) fn hand_out(&mut self) -> Option<(Range<usize>, Outcomes<'_, T>)> {
        let BucketStage::There { first, newest } = self.stage else { return None };
        self.stage = BucketStage::Taken;
        let outcomes = self.sum.held(first..=newest);
        self.sum.calls().drop_held(first..=newest);
        Some((self.tensors.clone(), outcomes))
    }

    /// Returns whether the outcomes of its last wait are still to be handed out.
    pub(super) fn waits_for_caller(&self) -> bool {
        matches!(self.stage, BucketStage::There { .. })
    }
}

/// Leaves the collectives of buckets in good order.
pub(super) fn finish_all<T: Item>(parts: &mut [Bucket<T>], deadline: Deadline, fault: Option<Fault>) -> Result<()> {
    while leave_all(parts, deadline, fault)? {
        parts
            .iter_mut()
            .filter(|part| part.stage != BucketStage::Left)
            .for_each(|part| part.stage = BucketStage::Taken);
    }
    Ok(())
}

/// Leaves the collectives of buckets as far as the next outcomes of all of them, and returns whether there are any. In
/// each collective, others may wait for this rank's last arrival, so it first hands in all of these. Then it waits for
/// one after the other, as others do in a step: what they need from this rank in a later bucket is due once they have
/// the outcomes of the earlier ones.
pub(super) fn leave_all<T: Item>(parts: &mut [Bucket<T>], deadline: Deadline, fault: Option<Fault>) -> Result<bool> {
    let (begun, until) = (Instant::now(), deadline.instant());
    if Fault::FinishOneByOne.is(fault) {
        return parts.iter_mut().try_for_each(|part| part.sum.finish(until)).map(|()| false);
    }
    for index in 0..parts.len() {
        match leave_one(parts, index, begun.into(), fault) {
            Err(Error::Timeout { .. }) => {}
            ended => ended?,
        }
    }
    for index in 0..parts.len() {
        leave_one(parts, index, deadline, fault).map_err(|error| waited_since(begun, error))?;
    }
    Ok(parts.iter().any(|part| part.stage != BucketStage::Left))
}

/// Leaves one bucket as far as its next outcomes, if the caller has its last ones.
fn leave_one<T: Item>(parts: &mut [Bucket<T>], index: usize, deadline: Deadline, fault: Option<Fault>) -> Result<()> {
    if parts[index].stage != BucketStage::Taken {
        return Ok(());
    }
    let rounds = parts[index].sum.leave_rounds(deadline)?;
    if let Some(rounds) = rounds.as_ref().filter(|_| index == 0 && !Fault::TellNoLastEnds.is(fault)) {
        parts.iter().filter_map(|part| part.inbox.as_ref()).for_each(|inbox| inbox.tell_end(*rounds.end()));
    }
    match rounds {
        Some(rounds) => parts[index].is_there(rounds),
        None => parts[index].stage = BucketStage::Left,
    }
    Ok(())
}

/// Corrects a timeout of a wait that was made in several parts.
pub(super) fn waited_since(begun: Instant, mut error: Error) -> Error {
    if let Error::Timeout { waited, .. } = &mut error {
        *waited = begun.elapsed();
    }
    error
}
