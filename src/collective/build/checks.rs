//! Which choices may be combined.

use super::{AllreduceBuilder, MOST_DEPTH};
use crate::collective::allreduce::Allreduce;
use crate::collective::following::Following;
use crate::error::Result;
use crate::group::Group;
use crate::reduce::{Dtype, Item, Reduce};
use crate::rule::{Absent, Executor, Fire, Grace, Mover, Scale};
use crate::time::Deadline;
use crate::world::World;

impl<T: Item> AllreduceBuilder<'_, T> {
    /// Returns the elements and bytes of a contribution, or what is wrong with the choices, however ranks meet.
    pub(super) fn check_choices(&self) -> Result<(usize, usize)> {
        let usage = |problem| self.usage(problem);
        self.fire.check(self.world.size())?;
        self.grace.check()?;
        if self.depth == 0 || self.depth > MOST_DEPTH {
            return Err(usage("depth must be between 1 and 65536"));
        }
        self.absent.check()?;
        self.scale.check()?;
        if matches!(self.scale, Scale::Ages(_)) && !matches!(self.group, Group::Arrivals(_)) {
            return Err(usage(
                "ages are those of models in groups by order of arrival; use group=arrivals, or another scale",
            ));
        }
        if self.reduce == Reduce::Mean {
            return Err(usage(
                "the mean of a round is a sum that is divided; use reduce=sum and a scale, such as contributions",
            ));
        }
        let adds = self.adds_floats();
        if self.scale != Scale::Sum && !adds {
            return Err(usage("only sums of floating-point numbers can be divided; use scale=sum"));
        }
        if matches!(self.absent, Absent::Decay(_)) && !adds {
            return Err(usage("only sums of floating-point numbers can decay; use absent=carry or absent=drop"));
        }
        if self.group.schedule().is_err() {
            return Err(usage("groups need a size of 2 ranks or more"));
        }
        let elements = self.lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        let bytes = elements.and_then(|elements| elements.checked_mul(self.dtype.size()));
        elements.zip(bytes).ok_or_else(|| usage("more elements than can be addressed"))
    }

    pub(super) fn adds_floats(&self) -> bool {
        self.dtype.is_float() && self.reduce == Reduce::Sum
    }

    /// Rejects choices that cannot be combined with registers.
    pub(super) fn check_memory(&self, elements: usize) -> Result<()> {
        let usage = |problem| self.usage(problem);
        let bytes = self.model().map_or(0, |model| model.bytes.len());
        if !self.adds_floats() {
            return Err(usage("only floating-point models are averaged; use a memory with a sum of floats"));
        }
        if !matches!(self.scale, Scale::Sum | Scale::Ages(_)) {
            return Err(usage(
                "updates of a model are divided by the members of a group; use scale=sum, or a preset that averages models",
            ));
        }
        if self.mover == Mover::Tree {
            return Err(usage("the tree mover moves no models; use mover=auto or mover=cut"));
        }
        if self.executor == Executor::Provider {
            return Err(usage("no provider moves models; use executor=auto, caller, thread or peer"));
        }
        if elements.checked_mul(self.dtype.size()) != Some(bytes) {
            return Err(usage("the model must be as long as all tensors together"));
        }
        Ok(())
    }

    /// Rejects choices that a provider cannot carry out.
    pub(super) fn check_offloaded(&self) -> Result<()> {
        let usage = |problem| self.usage(problem);
        if self.mover == Mover::Cut {
            return Err(usage("a provider runs programs; use the tree mover, or auto"));
        }
        if self.is_taped() {
            return Err(usage(
                "rounds that a provider runs cannot be replayed; record and replay under another executor",
            ));
        }
        if !matches!(self.grace, Grace::Auto) && self.grace != Grace::NONE {
            return Err(usage("a provider has no clock; use no grace under its executor"));
        }
        if self.fire.limit().is_some() || (self.fire.is_full(0) && !self.fire.is_synchronous()) {
            return Err(usage(
                "a provider runs rounds that all look alike, without a deadline; use all, solo, majority or quorum",
            ));
        }
        Ok(())
    }

    /// Returns the choices that every bucket of an allreduce in buckets shares, if all ranks have chosen alike.
    /// `buckets` is the text of the bucket choice, or what is wrong with it.
    pub(in crate::internals::collective) fn shared(
        &self,
        buckets: std::result::Result<String, &'static str>,
        until: Deadline,
    ) -> Result<CommonChoices> {
        let named = buckets.clone().unwrap_or_default();
        let choices = |_: &_| [self.common_choices(), vec![("buckets", named)]].concat();
        let checked = buckets.map_err(|problem| self.usage(problem)).and_then(|_| self.check_buckets());
        self.agree(checked, choices, until.instant())
    }

    /// Returns the choices that every bucket shares, or which choice a bucket cannot have.
    fn check_buckets(&self) -> Result<CommonChoices> {
        self.check_choices()?;
        let usage = |problem| self.usage(problem);
        self.check_restored()?;
        if self.model().is_some() || self.group != Group::World || self.absent == Absent::Hold {
            return Err(usage(
                "models are not averaged in buckets; omit the model, the group and absent=hold, or the buckets",
            ));
        }
        if self.scale == Scale::Weights {
            return Err(usage("contributions in buckets have no weights; use another scale"));
        }
        if self.executor == Executor::Provider {
            return Err(usage("no provider moves buckets; use executor=auto, caller, thread or peer"));
        }
        if self.mover == Mover::Tree && !self.fire.is_synchronous() {
            return Err(usage("the tree mover decides cuts of its own for each bucket; use mover=auto or mover=cut"));
        }
        let Self { dtype, fire, grace, absent, depth, reduce, scale, mover, executor, base, .. } = *self;
        Ok(CommonChoices { dtype, fire, grace, absent, depth, reduce, scale, mover, executor, base })
    }
}

/// Choices that the collectives of all buckets share.
#[derive(Clone, Copy, Debug)]
pub(in crate::internals::collective) struct CommonChoices {
    pub(in crate::internals::collective) dtype: Dtype,
    pub(in crate::internals::collective) fire: Fire,
    grace: Grace,
    absent: Absent,
    depth: u32,
    reduce: Reduce,
    scale: Scale,
    mover: Mover,
    pub(in crate::internals::collective) executor: Executor,
    /// The round before the first one.
    pub(in crate::internals::collective) base: u64,
}

impl CommonChoices {
    /// Builds a collective whose rounds wait for all ranks.
    pub(in crate::internals::collective) fn synchronous<T: Item>(
        &self,
        world: &World,
        lengths: &[usize],
        until: Deadline,
    ) -> Result<Allreduce<T>> {
        let CommonChoices { dtype, reduce, scale, mover, executor, base, .. } = *self;
        let sum = AllreduceBuilder::new(world, dtype, lengths).reduce(reduce).scale(scale).behind(base);
        sum.mover(mover).executor(executor).by(until).build()
    }

    /// Builds one of several collectives that share the cuts of the first.
    pub(in crate::internals::collective) fn following<T: Item>(
        &self,
        world: &World,
        lengths: &[usize],
        following: Following,
        until: Deadline,
    ) -> Result<Allreduce<T>> {
        let CommonChoices { dtype, fire, grace, absent, depth, reduce, scale, executor, base, .. } = *self;
        let sum = AllreduceBuilder::new(world, dtype, lengths)
            .behind(base)
            .fire(fire)
            .grace(grace)
            .absent(absent)
            .depth(depth);
        sum.reduce(reduce).scale(scale).executor(executor).following(following).by(until).build()
    }
}
