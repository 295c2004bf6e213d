//! The handle of an allreduce in buckets.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bucket::{Bucket, BucketStage, finish_all, leave_all, waited_since};
use super::timing::{FIRST, PERIOD, Timing};
use super::{BucketOutcome, BucketOutcomes, Buckets};
use crate::collective::build::AllreduceBuilder;
use crate::collective::core::SavedQuorum;
use crate::collective::following::{Following, Inbox};
use crate::collective::lateness::Lateness;
use crate::collective::options::Options;
use crate::collective::outcome::Outcomes;
use crate::error::{Error, Misuse, Result};
use crate::fault::Fault;
use crate::merge::{Cost, Gradient, Planner};
use crate::reduce::{Dtype, Item};
use crate::rule::Executor;
use crate::time::Deadline;
use crate::world::World;

/// A persistent allreduce in buckets, which runs step after step.
///
/// The order of calls in a step is *begin*, then *tensor* and *filled* for each tensor, then *wait*; and at the end
/// *finish*. A bucket is handed in with its last tensor, and moves while the caller computes the next tensors.
///
/// Under a partial rule a step has one cut, that of the first bucket. A rank arrives with the first bucket, and must
/// then also hand in the others, because all buckets of a round have the same contributions.
#[derive(Debug)]
pub struct BucketedAllreduce<T: Item> {
    world: World,
    choices: Options,
    buckets: Buckets,
    parts: Vec<Bucket<T>>,
    lengths: Arc<[usize]>,
    /// Which tensors are filled in this step.
    filled: Vec<bool>,
    began: Option<Instant>,
    /// The measurements on which the buckets depend, if they do.
    timing: Option<Timing>,
    replans: u64,
    /// The newest round that was returned.
    newest: u64,
    /// Whether a rank has left. The others then keep their buckets, because a rank that left does not plan new ones.
    has_leavers: bool,
    finished: bool,
    /// Whether full rounds exist only to plan, because the caller's rule has none.
    meets_only_to_plan: bool,
    fault: Option<Fault>,
}

impl<T: Item> BucketedAllreduce<T> {
    pub(super) fn new(of_all: &AllreduceBuilder<'_, T>, buckets: Buckets) -> Result<Self> {
        let (world, lengths) = (of_all.world().clone(), Arc::<[usize]>::from(of_all.lengths()));
        let checked = match buckets.check() {
            Ok(()) if buckets == Buckets::Measured && of_all.is_taped() => Err(
                "buckets that follow from measurements are neither recorded nor replayed; use other buckets, or neither EARLYBIRD_RECORD nor EARLYBIRD_REPLAY",
            ),
            checked => checked.map(|()| buckets.to_string()),
        };
        let until = Deadline::from(Deadline::from(world.deadline()).instant());
        let mut choices = of_all.shared(checked, until)?;
        let meets_only_to_plan =
            buckets == Buckets::Measured && !choices.fire.is_synchronous() && !choices.fire.has_full_rounds();
        if meets_only_to_plan {
            choices.fire = choices.fire.full_every(FIRST);
        }
        let gradients: Vec<Gradient> = lengths
            .iter()
            .map(|length| Gradient { ready: Duration::ZERO, bytes: (length * choices.dtype.size()) as u64 })
            .collect();
        let free = Cost { message: Duration::ZERO, per_mib: Duration::ZERO };
        let mut planner = Planner::default();
        let planned = planner.plan(buckets.merging(false), &gradients, free);
        let ranges: Vec<Range<usize>> = planned.iter().map(|bucket| bucket.gradients.clone()).collect();
        if choices.executor == Executor::Auto && (ranges.len() > 1 || buckets == Buckets::Measured) {
            // A caller that computes moves no data.
            choices.executor = Executor::Thread;
        }
        let timing = match buckets {
            Buckets::Measured => Some(Timing::new::<T>(&world, &choices, &lengths, until)?),
            _ => None,
        };
        let filled = vec![false; lengths.len()];
        let mut made = BucketedAllreduce {
            world,
            choices,
            buckets,
            parts: Vec::new(),
            lengths,
            filled,
            began: None,
            timing,
            replans: 0,
            newest: choices.base,
            has_leavers: false,
            finished: false,
            meets_only_to_plan,
            fault: Fault::chosen(),
        };
        match made.make((&choices, of_all.quorum()), &ranges, until) {
            Ok(parts) => made.parts = parts,
            Err(error) => {
                // The world continues without this collective.
                made.timing.iter_mut().for_each(|timing| _ = timing.finish(soon()));
                return Err(error);
            }
        }
        Ok(made)
    }

    /// Makes the collectives of buckets. If one cannot be made, which all ranks notice, they leave those that were
    /// made.
    fn make(
        &self,
        (choices, quorum): (&Options, Option<SavedQuorum>),
        ranges: &[Range<usize>],
        until: Deadline,
    ) -> Result<Vec<Bucket<T>>> {
        let world = &self.world;
        let inboxes: Vec<Arc<Inbox>> = ranges.iter().skip(1).map(|_| Arc::default()).collect();
        let mut parts = Vec::with_capacity(ranges.len());
        for (index, tensors) in ranges.iter().enumerate() {
            let lengths = &self.lengths[tensors.clone()];
            let inbox = index.checked_sub(1).map(|index| inboxes[index].clone());
            let is_partial = !choices.fire.is_synchronous();
            let sum = match &inbox {
                _ if !is_partial => choices.synchronous(world, lengths, until),
                None => choices.following(world, lengths, (Following::leading(inboxes.clone()), quorum.clone()), until),
                Some(inbox) => choices.following(world, lengths, (Following::Follows(inbox.clone()), None), until),
            };
            let sum = sum.inspect_err(|_| _ = finish_all(&mut parts, soon(), None))?;
            let inbox = inbox.filter(|_| is_partial);
            parts.push(Bucket { sum, tensors: tensors.clone(), stage: BucketStage::Taken, inbox });
        }
        Ok(parts)
    }

    /// Returns the lengths of the tensors, in elements, as the builder got them.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.choices.dtype
    }

    /// Returns the tensors of each bucket, as they are now.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        self.parts.iter().map(|part| part.tensors.clone())
    }

    /// Returns how often the buckets have changed.
    #[must_use]
    pub fn replans(&self) -> u64 {
        self.replans
    }

    /// Returns when the last bucket of a step ends according to the plan, counted from the beginning of the step. Known
    /// under [`Buckets::Measured`], from the first plan by measurements on.
    #[must_use]
    pub fn predicted(&self) -> Option<Duration> {
        self.timing.as_ref().and_then(Timing::predicted)
    }

    /// Returns the measured cost of a message: a fixed time, and the time for each MiB. Known under
    /// [`Buckets::Measured`].
    #[must_use]
    pub fn cost(&self) -> Option<(Duration, Duration)> {
        self.timing.as_ref().map(|timing| (timing.cost().message, timing.cost().per_mib))
    }

    /// Begins a step. Under [`Buckets::Measured`] the buckets may change now. All ranks meet for that, within the
    /// world's deadline, after 10 steps and then after every 100. Under a partial rule they meet after full rounds; if
    /// the rule has no full rounds, it gets one where ranks must meet.
    ///
    /// # Errors
    /// [`Error::Usage`] before all outcomes of the last step were returned. Otherwise as [`AllreduceBuilder::build`].
    pub fn begin(&mut self) -> Result<()> {
        self.check("begin", !self.finished, Misuse::Finished("this rank has finished"))?;
        let over = self.parts.iter().all(|part| part.stage == BucketStage::Taken);
        self.check("begin", over, Misuse::Order("the last step is not over; call wait first"))?;
        if self.is_plan_due() {
            self.plan_again()?;
        }
        self.timing.iter_mut().for_each(Timing::count_step);
        self.filled.fill(false);
        for part in &mut self.parts {
            part.stage = BucketStage::Filling(part.tensors.len());
        }
        self.began = Some(Instant::now());
        Ok(())
    }

    /// Returns whether all ranks must plan before their next step. No contribution of any rank is then pending: each
    /// was in the last round, which is the newest.
    fn is_plan_due(&self) -> bool {
        let Self { timing: Some(timing), choices, newest, .. } = self else { return false };
        if self.has_leavers {
            return false;
        }
        if choices.fire.is_synchronous() {
            return timing.is_due_after_steps();
        }
        let is_full = *newest > choices.base && choices.fire.is_full(*newest);
        is_full && (self.meets_only_to_plan || timing.is_due_after(*newest))
    }

    /// Plans, and exchanges the buckets if that is worth it. If it fails, this rank has changed nothing.
    fn plan_again(&mut self) -> Result<()> {
        let until = Deadline::from(Deadline::from(self.world.deadline()).instant());
        let current: Vec<Range<usize>> = self.buckets().collect();
        let merging = self.buckets.merging(true);
        let Some(timing) = &mut self.timing else { return Ok(()) };
        let Some(planned) = timing.plan((&current, merging), self.newest, until)? else {
            self.keep_buckets();
            return Ok(());
        };
        let mut choices = self.choices;
        if self.meets_only_to_plan {
            choices.fire = choices.fire.full_every(PERIOD);
        }
        let rarer = choices.fire != self.choices.fire;
        let is_new = planned != current;
        if !is_new && !rarer {
            return Ok(());
        }
        choices.base = self.newest;
        let quorum = self.parts.first().and_then(|first| first.sum.newest_quorum());
        let made = self.make((&choices, quorum), &planned, until)?;
        finish_all(&mut self.parts, until, None)?;
        (self.parts, self.choices) = (made, choices);
        self.replans += u64::from(is_new);
        Ok(())
    }

    /// Stops planning, because a rank has left: no rank waits for it to plan, and it waits for none.
    fn keep_buckets(&mut self) {
        self.has_leavers = true;
        self.timing.iter_mut().for_each(Timing::leave);
    }

    /// Returns the memory of a tensor in this step's contribution.
    ///
    /// # Errors
    /// [`Error::Usage`] if `index` is not the number of a tensor, if the tensor is filled already, or before `begin`.
    pub fn tensor(&mut self, index: usize) -> Result<&mut [T]> {
        let part = self.open("tensor", index)?;
        let within = index - self.parts[part].tensors.start;
        self.parts[part].sum.tensor(within)
    }

    /// Marks a tensor as complete. The last tensor of a bucket hands in the bucket.
    ///
    /// # Errors
    /// As [`tensor`](BucketedAllreduce::tensor), and as [`Allreduce::arrive`](crate::Allreduce::arrive).
    pub fn filled(&mut self, index: usize) -> Result<()> {
        let operation = "filled";
        let part = self.open(operation, index)?;
        let now = Instant::now();
        self.filled[index] = true;
        if let (Some(timing), Some(began)) = (&mut self.timing, self.began) {
            timing.is_ready(index, now - began);
        }
        let Bucket { sum, stage, .. } = &mut self.parts[part];
        match stage {
            BucketStage::Filling(1) => {
                sum.arrive()?;
                *stage = BucketStage::HandedIn { at: now };
            }
            BucketStage::Filling(left) => *left -= 1,
            BucketStage::HandedIn { .. } | BucketStage::There { .. } | BucketStage::Taken | BucketStage::Left => {}
        }
        Ok(())
    }

    /// Returns the bucket of a tensor, if the tensor may be written.
    fn open(&self, operation: &'static str, index: usize) -> Result<usize> {
        self.check(
            operation,
            index < self.lengths.len(),
            Misuse::Argument("there is no tensor of this number in the collective"),
        )?;
        let part = self.parts.partition_point(|part| part.tensors.end <= index);
        let writable = matches!(self.parts[part].stage, BucketStage::Filling(_));
        self.check(operation, writable || self.filled[index], Misuse::Order("no step has begun; call begin first"))?;
        self.check(operation, !self.filled[index], Misuse::Order("the tensor is filled already in this step"))?;
        Ok(part)
    }

    /// Waits for a bucket and returns its outcomes. In them, the tensors of the bucket are counted from 0.
    ///
    /// # Errors
    /// [`Error::Usage`] if `bucket` is not the number of a bucket, if one of its tensors is not filled, or if its
    /// outcome was returned before. Under a partial rule also if a tensor of the first bucket is not filled. Otherwise
    /// as [`Allreduce::wait`](crate::Allreduce::wait).
    pub fn wait_bucket(&mut self, bucket: usize, deadline: impl Into<Deadline>) -> Result<Outcomes<'_, T>> {
        let operation = "wait_bucket";
        let deadline = Deadline::from(deadline.into().instant());
        let stage = self.parts.get(bucket).map(|part| part.stage);
        self.check(operation, stage.is_some(), Misuse::Argument("there is no bucket of this number"))?;
        let here = matches!(stage, Some(BucketStage::HandedIn { .. } | BucketStage::There { .. }));
        self.check(operation, here, Misuse::Order("the bucket is not handed in, or its outcome was returned"))?;
        if self.parts[bucket].inbox.is_some() {
            let leads = !matches!(self.parts[0].stage, BucketStage::Filling(_));
            self.check(
                operation,
                leads,
                Misuse::Order("the first bucket, whose cut is that of all, is not handed in"),
            )?;
            self.reach(0, deadline, None)?;
        }
        self.reach(bucket, deadline, None)?;
        Ok(self.hand_out(bucket..bucket + 1).remove(0).1)
    }

    /// Waits for all buckets whose outcomes were not returned, and returns their outcomes. After a timeout, call it
    /// again.
    ///
    /// # Errors
    /// [`Error::Usage`] if a tensor is not filled, or before the first step. Otherwise as
    /// [`Allreduce::wait`](crate::Allreduce::wait).
    pub fn wait(&mut self, deadline: impl Into<Deadline>) -> Result<BucketOutcomes<'_, T>> {
        self.check("wait", self.began.is_some(), Misuse::Order("no step has begun; call begin first"))?;
        self.settle("wait", Deadline::from(deadline.into().instant()))?;
        Ok(self.outcomes())
    }

    /// Hands out the available outcomes of all buckets.
    fn outcomes(&mut self) -> BucketOutcomes<'_, T> {
        let lengths = self.lengths.clone();
        BucketOutcomes::new(self.hand_out(0..self.parts.len()), lengths)
    }

    /// Waits until the outcomes of all buckets are available, or were returned.
    fn settle(&mut self, operation: &'static str, deadline: Deadline) -> Result<()> {
        let filled = self.parts.iter().all(|part| !matches!(part.stage, BucketStage::Filling(_)));
        self.check(operation, filled, Misuse::Order("not all tensors are filled; call filled for each"))?;
        let mut before = None;
        for bucket in 0..self.parts.len() {
            before = self.reach(bucket, deadline, before)?;
        }
        Ok(())
    }

    /// Hands out the available outcomes of these buckets to the caller.
    fn hand_out(&mut self, buckets: Range<usize>) -> Vec<(Range<usize>, Outcomes<'_, T>)> {
        self.parts[buckets].iter_mut().filter_map(Bucket::hand_out).collect()
    }

    /// Waits until the outcomes of a bucket are available, and returns when they became so, if this rank waited for
    /// them. `before` is when those of the previous bucket became available, if this rank waited for them.
    fn reach(&mut self, bucket: usize, deadline: Deadline, before: Option<Instant>) -> Result<Option<Instant>> {
        let Bucket { sum, stage, .. } = &mut self.parts[bucket];
        let &mut BucketStage::HandedIn { at } = stage else { return Ok(None) };
        let waits = !sum.is_complete()?;
        let rounds = self.take(bucket, deadline)?;
        let end = Instant::now();
        self.parts[bucket].is_there(rounds.clone());
        let Bucket { sum, tensors, .. } = &self.parts[bucket];
        let is_first = bucket == 0;
        if let (Some(timing), true, true) = (&mut self.timing, waits, is_first || before.is_some()) {
            let bytes = self.lengths[tensors.clone()].iter().sum::<usize>() * self.choices.dtype.size();
            timing.has_taken(bytes as u64, end - before.map_or(at, |before| before.max(at)));
        }
        let has_leavers = is_first && rounds.clone().any(|round| sum.cut(round).leaving().next().is_some());
        if is_first {
            self.newest = self.choices.base + *rounds.end();
            let inboxes = self.parts.iter().filter_map(|part| part.inbox.as_ref());
            inboxes.for_each(|inbox| inbox.tell_end(*rounds.end()));
        }
        if has_leavers && !self.has_leavers {
            self.keep_buckets();
        }
        Ok(waits.then_some(end))
    }

    /// Waits for the outcomes of a bucket, and takes them. If no thread works for this rank, it also works for the
    /// other buckets, for which other ranks may be waiting.
    fn take(&mut self, bucket: usize, deadline: Deadline) -> Result<RangeInclusive<u64>> {
        if self.choices.executor == Executor::Thread || self.parts.len() == 1 {
            return self.parts[bucket].sum.take(deadline);
        }
        let (begun, until) = (Instant::now(), deadline.instant());
        loop {
            let end = until.min(Instant::now() + MOMENT);
            match self.parts[bucket].sum.take(end.into()) {
                Err(Error::Timeout { .. }) if Instant::now() < until => {}
                ended => return ended.map_err(|error| waited_since(begun, error)),
            }
            let handed_in = |part: &&mut Bucket<T>| matches!(part.stage, BucketStage::HandedIn { .. });
            self.parts.iter_mut().filter(handed_in).try_for_each(|part| part.sum.tend("wait"))?;
        }
    }

    /// Returns the outcome of a round that was [kept](BucketOutcomes::keep) and not released in any bucket; `None` for
    /// any other round.
    #[must_use]
    pub fn kept(&self, round: u64) -> Option<BucketOutcome<'_, T>> {
        if self.parts.is_empty() || self.parts.iter().any(Bucket::waits_for_caller) {
            return None;
        }
        let kept = self.parts.iter().map(|part| Some((part.tensors.clone(), part.sum.kept(round)?)));
        Some(BucketOutcome::new(kept.collect::<Option<_>>()?, self.lengths.clone()))
    }

    /// Releases the rounds that were [kept](BucketOutcomes::keep), up to `round`, so that their memory may be used
    /// again.
    pub fn release_up_to(&mut self, round: u64) {
        let parts = self.parts.iter_mut().filter(|part| !part.waits_for_caller());
        parts.for_each(|part| part.sum.release_up_to(round));
    }

    /// As [`Allreduce::begin_computation`](crate::Allreduce::begin_computation).
    pub fn begin_computation(&mut self) {
        self.parts.iter_mut().for_each(|part| part.sum.begin_computation());
    }

    /// Returns the account of the rounds that this rank has released, like
    /// [`Allreduce::lateness`](crate::Allreduce::lateness), with the times of the first bucket. It begins anew with new
    /// buckets.
    #[must_use]
    pub fn lateness(&self) -> Lateness {
        self.parts.first().map(|part| part.sum.lateness()).unwrap_or_default()
    }

    /// Leaves in good order, like [`Allreduce::finish`](crate::Allreduce::finish). Drops outcomes that were not
    /// returned; [`leave`](BucketedAllreduce::leave) returns them.
    ///
    /// # Errors
    /// [`Error::Usage`] in the middle of a step, when one bucket is handed in and another is not. Otherwise as
    /// [`Allreduce::finish`](crate::Allreduce::finish).
    pub fn finish(&mut self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = Deadline::from(deadline.into().instant());
        while self.leave(deadline)?.is_some() {}
        Ok(())
    }

    /// Leaves step by step, like [`Allreduce::leave`](crate::Allreduce::leave): returns the next outcomes of all
    /// buckets that were not taken, and `None` once this rank has left. Call it until it returns `None`.
    ///
    /// # Errors
    /// As [`finish`](BucketedAllreduce::finish).
    pub fn leave(&mut self, deadline: impl Into<Deadline>) -> Result<Option<BucketOutcomes<'_, T>>> {
        let deadline = Deadline::from(deadline.into().instant());
        if !self.finished {
            if self.parts.iter().any(|part| !matches!(part.stage, BucketStage::Filling(_) | BucketStage::Taken))
                || self.is_in_a_step()
            {
                self.settle("finish", deadline)?;
                return Ok(Some(self.outcomes()));
            }
            self.finished = true;
            self.parts.iter_mut().for_each(|part| part.stage = BucketStage::Taken);
            // Other ranks may wait for this one in any of them.
            self.timing.iter_mut().for_each(Timing::leave);
        }
        if leave_all(&mut self.parts, deadline, self.fault)? {
            return Ok(Some(self.outcomes()));
        }
        self.timing.as_mut().map_or(Ok(()), |timing| timing.finish(deadline)).map(|()| None)
    }

    /// Returns whether one bucket is handed in and another is not.
    fn is_in_a_step(&self) -> bool {
        let is_filling = |part: &Bucket<T>| matches!(part.stage, BucketStage::Filling(_));
        self.parts.iter().any(is_filling) && !self.parts.iter().all(is_filling)
    }

    fn check(&self, operation: &'static str, allowed: bool, problem: Misuse) -> Result<()> {
        if allowed { Ok(()) } else { Err(Error::Usage { rank: self.world.rank(), operation, problem }) }
    }
}

/// The deadline for leaving what this rank made before an error that all ranks have noticed by now.
fn soon() -> Deadline {
    Deadline::from(Instant::now() + Duration::from_secs(1))
}

/// How long a rank waits in one collective before it works for others that have no thread.
const MOMENT: Duration = Duration::from_millis(1);
