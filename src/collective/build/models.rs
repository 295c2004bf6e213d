//! The models that ranks begin with, and the round after which they begin.

use std::time::Instant;

use super::{AllreduceBuilder, OPERATION};
use crate::collective::checkpoint::Checkpoint;
use crate::collective::choices::digest;
use crate::collective::regions::write_model;
use crate::error::{Error, Result};
use crate::fabric::HostMemory;
use crate::group::Group;
use crate::reduce::Item;

/// The model with which a rank begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model<'w> {
    pub(super) bytes: &'w [u8],
    /// Whether other ranks may begin with other models.
    pub(super) own: bool,
}

impl<'w, T: Item> AllreduceBuilder<'w, T> {
    /// Gives each rank a *register*, which holds a model: all tensors, one after the other. It begins with this model,
    /// the same on all ranks. A contribution is then an update of the model, and an outcome is the model itself.
    ///
    /// In each round, every group to which a member contributed averages the registers of its members, including absent
    /// ones. It adds the sum of the updates, divided by the number of members, and all members then have the result in
    /// their registers. Under [`Absent::Carry`](crate::Absent::Carry) every update enters once; late ones enter the
    /// next round that fires. So except for rounding, the sum of all registers grows by the sum of the updates. A rank
    /// that leaves takes its register along. A rank computes its next update from its newest outcome.
    ///
    /// Under [`Absent::Hold`](crate::Absent::Hold) contributions are models.
    ///
    /// Only for floating-point sums, with [`Scale::Sum`](crate::Scale::Sum): the only division is the one by the number
    /// of members.
    pub fn memory(mut self, initial: &'w [T]) -> Self {
        self.model = Some(Model { bytes: bytemuck::cast_slice(initial), own: false });
        self
    }

    /// As [`memory`](AllreduceBuilder::memory), but each rank begins with a model of its own. Under [`Group::World`]
    /// all ranks share one register, so the models must be equal there.
    pub fn own_memory(mut self, initial: &'w [T]) -> Self {
        self.model = Some(Model { bytes: bytemuck::cast_slice(initial), own: true });
        self
    }

    /// Resumes from a [`checkpoint`](crate::Outcome::checkpoint). The first round is the one after the saved one. If
    /// the checkpoint has a model, the rank's register begins with it, in place of a
    /// [`memory`](AllreduceBuilder::memory). Each rank passes its own checkpoint, and all checkpoints must be of the
    /// same round of the same run.
    ///
    /// Rules count from the saved round: which rounds are full, which rank is drawn, and which ranks form a group. The
    /// choices may differ from those of the saved collective. Under [`Absent::Hold`](crate::Absent::Hold) the restored
    /// model also represents the rank's contribution, until the rank's next contribution enters.
    ///
    /// A collective with groups by order of arrival cannot resume from a checkpoint, nor can one whose partial rounds
    /// are recorded or replayed.
    pub fn restore(mut self, checkpoint: &'w Checkpoint) -> Self {
        self.restored = Some(checkpoint);
        self.behind(checkpoint.round()).with_quorum(checkpoint.quorum().cloned())
    }

    /// Returns the model that this rank begins with, if ranks have registers: the saved one, or else the given one.
    pub(super) fn model(&self) -> Option<Model<'w>> {
        let saved = self.restored.and_then(Checkpoint::model_bytes);
        let model = saved.map(|bytes| Model { bytes, own: true }).or(self.model)?;
        // All ranks share one register.
        Some(Model { own: model.own && self.chosen.group != Group::World, ..model })
    }

    /// Writes the model to these locations, if each rank begins with a model of its own, and returns when all ranks
    /// have done so. The memory of its host must exist. A rank arrives for its first round only after this has
    /// returned, so no register is read before its rank has written it.
    pub(super) fn write_own_model(
        &self,
        memory: &mut HostMemory,
        places: impl Iterator<Item = usize>,
        until: Instant,
    ) -> Result<()> {
        let Some(model) = self.model().filter(|model| model.own) else { return Ok(()) };
        write_model(memory, model.bytes, places);
        self.world.fabric().exchange(OPERATION, &[], until).map(drop)
    }

    /// Rejects a checkpoint from which this collective cannot resume.
    pub(super) fn check_restored(&self) -> Result<()> {
        let Some(checkpoint) = self.restored else { return Ok(()) };
        let (rank, ranks) = (self.world.rank(), self.world.size());
        if let Some(difference) = checkpoint.difference((rank, ranks), (self.chosen.dtype, &self.lengths)) {
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

    /// Returns a digest of the model that all ranks begin with, if they share one.
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
