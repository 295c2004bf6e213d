//! With which models ranks begin, and behind which round.

use std::time::Instant;

use super::{AllreduceBuilder, OPERATION};
use crate::collective::checkpoint::Checkpoint;
use crate::collective::choices::digest;
use crate::collective::regions::write_model;
use crate::error::{Error, Result};
use crate::fabric::Lender;
use crate::group::Group;
use crate::reduce::Item;

/// The model that a rank begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model<'w> {
    pub(super) bytes: &'w [u8],
    /// Other ranks may begin with others.
    pub(super) own: bool,
}

impl<'w, T: Item> AllreduceBuilder<'w, T> {
    /// Gives each rank a *register*, which holds a model, all tensors one after the other; at first this one, the same on
    /// all ranks. A contribution is an update of the model then, and an outcome is the model itself.
    ///
    /// In each round every group to which a member contributed averages the registers of its members, absent ones
    /// included, and adds the sum of the updates, divided by the number of members. All members have the result in their
    /// registers then. Under [`Absent::Carry`](crate::Absent::Carry) every update enters once, late ones in the next round that fires: but for
    /// rounding, the sum of all registers grows by the sum of the updates. A rank that leaves takes its register along. A
    /// rank computes its next update on its newest outcome.
    ///
    /// Under [`Absent::Hold`](crate::Absent::Hold) contributions are models.
    ///
    /// Floating-point sums only, with [`Scale::Sum`](crate::Scale::Sum): the division is that by the members.
    pub fn memory(mut self, initial: &'w [T]) -> Self {
        self.model = Some(Model { bytes: bytemuck::cast_slice(initial), own: false });
        self
    }

    /// As [`memory`](AllreduceBuilder::memory), but each rank begins with a model of its own. Under [`Group::World`] all have
    /// one register, so the models must be equal there.
    pub fn own_memory(mut self, initial: &'w [T]) -> Self {
        self.model = Some(Model { bytes: bytemuck::cast_slice(initial), own: true });
        self
    }

    /// Goes on from a [`checkpoint`](crate::Outcome::checkpoint): the first round is the one behind the saved one, and if the
    /// checkpoint has a model, the rank's register begins with it, in place of a [`memory`](AllreduceBuilder::memory). Each
    /// rank gives its own checkpoint, and all of them must be of the same round of the same run.
    ///
    /// Rules count from the saved round: which rounds are full, which rank is drawn, and which ranks are a group. Other choices
    /// than those of the saved collective are allowed. Under [`Absent::Hold`](crate::Absent::Hold) the restored model also stands for the rank's
    /// contribution, until the next one of it enters.
    ///
    /// Groups by order of arrival, and partial rounds that are recorded or replayed do not go on from a checkpoint.
    pub fn restore(mut self, checkpoint: &'w Checkpoint) -> Self {
        self.restored = Some(checkpoint);
        self.behind(checkpoint.round())
    }

    /// The model that this rank begins with, if ranks have registers: the one that was saved, or else the one that was given.
    pub(super) fn model(&self) -> Option<Model<'w>> {
        let saved = self.restored.and_then(Checkpoint::model_bytes);
        let model = saved.map(|bytes| Model { bytes, own: true }).or(self.model)?;
        // All have one register.
        Some(Model { own: model.own && self.group != Group::World, ..model })
    }

    /// If each rank begins with a model of its own: writes it to these places, where the memory of its host was made before.
    /// Returns when all ranks have done so. A register is read for a round, and a rank arrives for its first one when this
    /// has returned: so no register is read that its rank has not written.
    pub(super) fn write_own_model(
        &self,
        memory: &mut Lender,
        places: impl Iterator<Item = usize>,
        until: Instant,
    ) -> Result<()> {
        let Some(model) = self.model().filter(|model| model.own) else { return Ok(()) };
        write_model(memory, model.bytes, places);
        self.world.fabric().exchange(OPERATION, &[], until).map(drop)
    }

    /// Rejects a checkpoint from which this collective cannot go on.
    pub(super) fn check_restored(&self) -> Result<()> {
        let Some(checkpoint) = self.restored else { return Ok(()) };
        let (rank, ranks) = (self.world.rank(), self.world.size());
        if let Some(difference) = checkpoint.difference((rank, ranks), (self.dtype, &self.lengths)) {
            return Err(Error::Config(format!("rank {rank}: {OPERATION}: the checkpoint does not fit: {difference}")));
        }
        if self.model.is_some() && checkpoint.model_bytes().is_some() {
            return Err(self.usage("the checkpoint has this rank's model; give none, or do not restore"));
        }
        if self.is_taped() {
            return Err(self.usage(
                "a recording begins with the first round; go on from a checkpoint without EARLYBIRD_RECORD and EARLYBIRD_REPLAY",
            ));
        }
        Ok(())
    }

    /// A digest of the model that all begin with, if they have one in common.
    pub(super) fn model_digest(&self) -> String {
        let of = |model: Model<'_>| {
            if model.own {
                return "each rank's own".to_owned();
            }
            let word = |part: &[u8]| part.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            format!("{:016x}", digest(model.bytes.chunks(8).map(word)))
        };
        self.model().map_or_else(|| "none".to_owned(), of)
    }
}
