//! Which choices may be combined.

use super::combinations::{Chosen, Kind, check};
use super::{AllreduceBuilder, MOST_DEPTH};
use crate::collective::allreduce::Allreduce;
use crate::collective::following::Following;
use crate::error::Result;
use crate::reduce::{Dtype, Item, Reduce};
use crate::rule::{Absent, Executor, Fire, Grace, Mover, Scale};
use crate::time::Deadline;
use crate::world::World;

impl<T: Item> AllreduceBuilder<'_, T> {
    /// Returns the elements and bytes of a contribution, or what is wrong with the choices for this kind of collective.
    pub(super) fn check_choices(&self, kind: Kind) -> Result<(usize, usize)> {
        let usage = |problem| self.usage(problem);
        self.fire.check(self.world.size())?;
        self.grace.check()?;
        if self.depth == 0 || self.depth > MOST_DEPTH {
            return Err(usage("depth must be between 1 and 65536"));
        }
        self.absent.check()?;
        self.scale.check()?;
        check(&self.chosen(kind)).map_err(usage)?;
        let elements = self.lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        let bytes = elements.and_then(|elements| elements.checked_mul(self.dtype.size()));
        elements.zip(bytes).ok_or_else(|| usage("more elements than can be addressed"))
    }

    /// Checks that the model, if there is one, is as long as a contribution.
    pub(super) fn check_model(&self, bytes: usize) -> Result<()> {
        match self.model() {
            Some(model) if model.bytes.len() != bytes => {
                Err(self.usage("the model must be as long as all tensors together"))
            }
            _ => Ok(()),
        }
    }

    fn chosen(&self, kind: Kind) -> Chosen {
        let topology = self.world.topology();
        Chosen {
            kind,
            fire: self.fire,
            grace: self.grace,
            absent: self.absent,
            reduce: self.reduce,
            scale: self.scale,
            group: self.group,
            mover: self.mover,
            executor: self.executor,
            floats: self.dtype.is_float(),
            model: self.model().is_some(),
            restored: self.restored.is_some(),
            buckets: self.needs_buckets,
            world_tapes: self.world.record().is_some() || self.world.replay().is_some(),
            taped: self.is_taped(),
            given: self.is_given(),
            one_host: topology.is_one_host(),
            apart: topology.is_apart(),
        }
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
        self.check_choices(Kind::Buckets)?;
        self.check_restored()?;
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
