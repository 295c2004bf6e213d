//! From the choices to the plan of a collective.

use super::AllreduceBuilder;
use crate::collective::core::Plan;
use crate::collective::wanted::Wanted;
use crate::error::Result;
use crate::group::Group;
use crate::reduce::Item;
use crate::rule::{Absent, Executor, Mover, Scale};
use crate::topology::Topology;

impl<T: Item> AllreduceBuilder<'_, T> {
    /// Returns this rank's plan, or what is wrong with its choices.
    pub(super) fn plan(&self, offloaded: bool) -> Result<Plan> {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let usage = |problem| self.usage(problem);
        let (elements, bytes) = self.check_choices()?;
        if self.needs_buckets {
            return Err(usage(
                "mg-wfbp hands tensors in one by one; call buckets(Buckets::Measured), or choose Preset::Synchronous",
            ));
        }
        self.check_restored()?;
        if self.model().is_none() && (self.group != Group::World || self.absent == Absent::Hold) {
            return Err(usage(
                "groups, and to hold what is absent, are for models; give each rank a model, or choose others",
            ));
        }
        if self.model().is_some() {
            self.check_memory(elements)?;
        }
        let parameters = self.world.parameters();
        let topology = match offloaded {
            // Under a provider, ranks do not use shared memory.
            true => Topology::apart(ranks),
            false => self.world.topology().clone(),
        };
        if offloaded {
            self.check_offloaded()?;
        }
        let given = self.is_led() || (self.is_taped() && self.world.replay().is_some());
        if given && self.absent == Absent::Hold && topology.has_elsewhere() {
            return Err(usage(
                "held models are replayed on one host only; start all ranks on one machine, over shared memory (EARLYBIRD_FABRIC=shm)",
            ));
        }
        let tree = match self.mover {
            _ if offloaded => false,
            // No provider of the requested kind is available.
            Mover::Tree if self.executor == Executor::Provider => topology.is_one_host(),
            Mover::Tree if self.is_taped() => {
                return Err(usage(
                    "the tree mover adds in another order, so its rounds cannot be replayed; use the cut mover (--mover cut), or neither EARLYBIRD_RECORD nor EARLYBIRD_REPLAY",
                ));
            }
            Mover::Tree if topology.has_elsewhere() && !topology.is_apart() => {
                return Err(usage(
                    "the tree mover needs all ranks on one host, or each on a host of its own; use the cut mover",
                ));
            }
            Mover::Tree => true,
            _ if self.model().is_some() || self.is_taped() => false,
            Mover::Auto if topology.is_one_host() => parameters.mover() == Mover::Tree,
            Mover::Auto => self.may_relay() && self.would_relay(&topology, bytes),
            Mover::Cut => false,
        };
        let plan = Wanted {
            me: rank,
            topology,
            fire: self.fire,
            grace: self.grace,
            absent: self.absent,
            weighted: self.scale == Scale::Weights,
            depth: self.depth,
            base: self.base,
            memory: self.model().map(|_| self.group),
            bytes,
            wide_bytes: elements.saturating_mul(self.dtype.wide_size()),
            cores: self.world.cores(),
            tree,
            given,
            offloaded,
        }
        .plan(parameters);
        plan.checked_data_bytes()
            .ok_or_else(|| usage("more memory than can be addressed; use fewer elements or a smaller depth"))?;
        Ok(plan)
    }

    /// Returns whether `auto` selects relays here, if the executor allows it.
    pub(super) fn would_relay(&self, topology: &Topology, bytes: usize) -> bool {
        let alone = topology.has_elsewhere() && topology.is_apart() && self.model().is_none();
        let (parameters, by_processor) = (self.world.parameters(), self.world.fabric().changes_by_processor());
        self.mover == Mover::Auto && alone && parameters.relays(self.fire, bytes as u64, by_processor)
    }

    /// Returns whether this rank relays while it computes. A rank that does not would delay every round.
    pub(super) fn may_relay(&self) -> bool {
        matches!(self.executor, Executor::Auto | Executor::Thread)
    }
}
