//! Which choices may be combined.

use super::combinations::{Combination, Kind, check};
use super::{AllreduceBuilder, MOST_DEPTH};
use crate::collective::allreduce::Allreduce;
use crate::collective::core::SavedQuorum;
use crate::collective::following::Following;
use crate::collective::options::Options;
use crate::error::Result;
use crate::reduce::Item;
use crate::rule::Fire;
use crate::time::Deadline;
use crate::world::World;

impl<'w, T: Item> AllreduceBuilder<'w, T> {
    /// Returns the elements and bytes of a contribution, or what is wrong with the choices for this kind of collective.
    pub(super) fn check_choices(&self, kind: Kind) -> Result<(usize, usize)> {
        let usage = |problem| self.usage(problem);
        self.chosen.fire.check(self.world.size())?;
        self.chosen.grace.check()?;
        if self.chosen.depth == 0 || self.chosen.depth > MOST_DEPTH {
            return Err(usage("depth must be between 1 and 65536"));
        }
        self.chosen.absent.check()?;
        self.chosen.scale.check()?;
        check(&self.combination(kind)).map_err(usage)?;
        let elements = self.lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
        let bytes = elements.and_then(|elements| elements.checked_mul(self.chosen.dtype.size()));
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

    fn combination(&self, kind: Kind) -> Combination {
        Combination {
            kind,
            restored: self.restored.is_some(),
            buckets: self.needs_buckets,
            world_replays: self.world.replay().is_some(),
            taped: self.is_taped(),
            given: self.is_given(),
            ..Combination::of_rounds(self.chosen, self.model().is_some(), self.world.topology())
        }
    }

    /// Returns the choices that every bucket of an allreduce in buckets shares, if all ranks have chosen alike.
    /// `buckets` is the text of the bucket choice, or what is wrong with it.
    pub(in crate::internals::collective) fn shared(
        &self,
        buckets: std::result::Result<String, &'static str>,
        until: Deadline,
    ) -> Result<Options> {
        let named = buckets.clone().unwrap_or_default();
        let choices = |_: &_| [self.common_choices(), vec![("buckets", named)]].concat();
        let checked = buckets.map_err(|problem| self.usage(problem)).and_then(|_| self.check_buckets());
        self.agree(checked, choices, until.instant())
    }

    /// Returns the choices that every bucket shares, or which choice a bucket cannot have.
    fn check_buckets(&self) -> Result<Options> {
        self.check_choices(Kind::Buckets)?;
        self.check_restored()?;
        Ok(self.chosen)
    }

    /// Begins one of several collectives that share these choices.
    fn of_chosen(world: &'w World, chosen: Options, lengths: &[usize], until: Deadline) -> Self {
        let builder = AllreduceBuilder::new(world, chosen.dtype, lengths).by(until);
        AllreduceBuilder { chosen, ..builder }
    }
}

impl Options {
    /// Builds a collective whose rounds wait for all ranks.
    pub(in crate::internals::collective) fn synchronous<T: Item>(
        self,
        world: &World,
        lengths: &[usize],
        until: Deadline,
    ) -> Result<Allreduce<T>> {
        let Options { grace, absent, depth, group, .. } = Options::usual(self.dtype);
        let chosen = Options { fire: Fire::ALL, grace, absent, depth, group, ..self };
        AllreduceBuilder::of_chosen(world, chosen, lengths, until).build()
    }

    /// Builds one of several collectives that share the cuts of the first, which may resume choosing its quorums.
    pub(in crate::internals::collective) fn following<T: Item>(
        self,
        world: &World,
        lengths: &[usize],
        (following, quorum): (Following, Option<SavedQuorum>),
        until: Deadline,
    ) -> Result<Allreduce<T>> {
        AllreduceBuilder::of_chosen(world, self, lengths, until).following(following).with_quorum(quorum).build()
    }
}
